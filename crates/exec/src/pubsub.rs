//! Channels: who listens, by loop, and the way of a message to them.
//!
//! ```text
//! PUBLISH ── counts per loop (here, one short lock) ──► one letter per loop ──► that loop's own table ──► its clients
//! ```
//!
//! - B1: the shared table knows only how many subscribers each loop has; who they are each loop knows itself. So
//!   PUBLISH costs O(loops + patterns) (see B5), and the fan-out is each loop's work, in slices.
//! - B2: the count answered is the number of subscriptions that matched when the message was sent.
//! - B3: subscriptions of a loop are numbered as they come. A fan-out goes by number and ends at the newest there was when
//!   it began, so it can stop anywhere: who left meanwhile gets nothing more, who came later gets nothing of it.
//! - B4: a message is encoded once per protocol version; its subscribers share the bytes.
//! - B5: patterns are gone through some 10 µs at a time, for there may be very many, and each may take long. Who comes to
//!   listen meanwhile may get the message or not.

mod run;

use crate::Server;
use crate::flood::Flood;
use crate::mail::{Mail, Published};
use parking_lot::Mutex;
use resp::{OwnedArgs, Reply};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::{Bound, Deref};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use stdx::glob::Match;

/// Deliveries under way above which it is [`Flood::full`]: who publishes faster than messages can be delivered would fill the
/// memory.
const BACKLOG: usize = 100_000;
/// What a message nobody waits for counts while it waits for its turn through the patterns, in deliveries, and each so many
/// bytes of it.
const WAITING: usize = 10;
const WAITING_BYTES: usize = 64;
/// Channels looked at under one lock.
const PAGE: usize = 256;
/// Bytes of patterns looked at under one lock (B5), and what a pattern costs besides, in such bytes.
const LOOKS: usize = 8 * 1024;
const PATTERN_LOOKS: usize = 32;
/// Patterns that are gone through in one go, about.
pub const FEW_PATTERNS: usize = LOOKS / PATTERN_LOOKS;
/// Payloads above this are not copied to each subscriber's buffer but sent from where they are.
const SHARED: usize = 16 * 1024;

/// The three kinds of subscription.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    Channel,
    Pattern,
    Shard,
}

/// Subscribers per loop.
type Counts = Vec<u32>;
/// A tree, for it never grows by leaps.
type Table = BTreeMap<Arc<[u8]>, Counts>;

#[derive(Default)]
struct Tables {
    channels: Table,
    patterns: Table,
    shard_channels: Table,
}

impl Tables {
    fn of(&mut self, kind: Kind) -> &mut Table {
        match kind {
            Kind::Channel => &mut self.channels,
            Kind::Pattern => &mut self.patterns,
            Kind::Shard => &mut self.shard_channels,
        }
    }
}

/// Bytes many may hold at once.
#[derive(Clone)]
pub enum Shared {
    Own(Arc<[u8]>),
    /// A word of a command of many bytes.
    Word(Arc<OwnedArgs>, usize),
}

impl Deref for Shared {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Shared::Own(bytes) => bytes,
            Shared::Word(args, i) => args.args().at(*i),
        }
    }
}

/// A message as its subscribers see it.
#[derive(Clone)]
pub enum Encoded {
    Short(Arc<[u8]>),
    /// Its payload stays where it is.
    Long([Shared; 3]),
}

impl Encoded {
    #[allow(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        match self {
            Encoded::Short(bytes) => bytes.len(),
            Encoded::Long(parts) => parts.iter().map(|part| part.len()).sum(),
        }
    }
}

/// Encodes a message for one protocol version. O(its length), at most some 16 KB.
pub fn encode(message: &Published, resp3: bool) -> Encoded {
    let mut out = Reply::new(resp3);
    match &message.pattern {
        Some(pattern) => {
            out.push(4);
            out.bulk(b"pmessage");
            out.bulk(pattern);
        }
        None => {
            out.push(3);
            out.bulk(if message.kind == Kind::Shard { b"smessage" } else { b"message" });
        }
    }
    out.bulk(&message.channel);
    if message.payload.len() <= SHARED {
        out.bulk(&message.payload);
        return Encoded::Short(out.as_bytes().into());
    }
    out.begin_bulk(message.payload.len());
    let mut end = Reply::new(resp3);
    end.end_bulk();
    let own = |part: Reply| Shared::Own(part.as_bytes().into());
    Encoded::Long([own(out), message.payload.clone(), own(end)])
}

/// One loop's subscribers, by kind and channel or pattern. Nothing in it grows by leaps.
#[derive(Default)]
pub struct Subscribers {
    names: BTreeMap<(Kind, Arc<[u8]>), Crowd>,
    /// Number of the newest subscription (B3).
    last: u64,
}

/// Who subscribed to one name.
#[derive(Default)]
struct Crowd {
    by_number: BTreeMap<u64, u64>,
    by_client: BTreeMap<u64, u64>,
}

impl Subscribers {
    pub(crate) fn add(&mut self, kind: Kind, name: &Arc<[u8]>, client: u64) {
        self.last += 1;
        let crowd = self.names.entry((kind, name.clone())).or_default();
        crowd.by_number.insert(self.last, client);
        crowd.by_client.insert(client, self.last);
    }

    pub(crate) fn remove(&mut self, kind: Kind, name: &Arc<[u8]>, client: u64) {
        let id = (kind, name.clone());
        let Some(crowd) = self.names.get_mut(&id) else { return };
        if let Some(number) = crowd.by_client.remove(&client) {
            crowd.by_number.remove(&number);
        }
        if crowd.by_client.is_empty() {
            self.names.remove(&id);
        }
    }

    /// Begins to deliver a message.
    pub fn fan_out(&self, message: Published) -> FanOut {
        FanOut { message, encoded: [None, None], after: 0, to: self.last, delivered: 0 }
    }
}

/// A message on its way to a loop's subscribers.
pub struct FanOut {
    message: Published,
    /// For RESP2 and RESP3, once somebody needs it.
    encoded: [Option<Encoded>; 2],
    /// Number of the last subscription served, and of the last to be served.
    after: u64,
    to: u64,
    delivered: u64,
}

impl FanOut {
    /// How many subscribers there were when it was sent.
    pub fn count(&self) -> usize {
        self.message.count
    }

    /// Length of the payload.
    pub fn bytes(&self) -> usize {
        self.message.payload.len()
    }

    /// How many subscribers it was delivered to so far.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// The next clients to deliver to, at most so many; they go to `clients`. O(log subscribers + count).
    pub fn next(&mut self, subscribers: &Subscribers, count: usize, clients: &mut Vec<u64>) {
        let name = self.message.pattern.as_ref().unwrap_or(&self.message.channel);
        let Some(crowd) = subscribers.names.get(&(self.message.kind, name.clone())) else { return };
        let rest = (Bound::Excluded(self.after), Bound::Included(self.to));
        if self.after >= self.to {
            return;
        }
        for (number, client) in crowd.by_number.range(rest).take(count) {
            self.after = *number;
            self.delivered += 1;
            clients.push(*client);
        }
    }

    /// What a subscriber is told.
    pub fn encoded(&mut self, resp3: bool) -> &Encoded {
        let FanOut { message, encoded, .. } = self;
        encoded[usize::from(resp3)].get_or_insert_with(|| encode(message, resp3))
    }

    /// Says that the message was delivered to all.
    pub fn end(self, pubsub: &PubSub) {
        pubsub.flood.remove(self.message.count, BACKLOG);
        pubsub.sending.fetch_sub(self.message.count, Ordering::Relaxed);
        if self.message.payload.len() > SHARED {
            crate::job::discard(self);
        }
    }
}

/// How far a message is on its way through the patterns (B5).
#[derive(Default)]
struct Passage {
    /// The last pattern it has passed.
    after: Option<Arc<[u8]>>,
    /// The one it stopped in, if it did.
    at: Option<Arc<[u8]>>,
    matching: Match,
}

impl Passage {
    /// Goes on, and tells which patterns match. True if there are more. O(1): some 10 µs.
    fn go_on<'t>(
        &mut self,
        patterns: &'t Table,
        channel: &[u8],
        f: &mut dyn FnMut(&'t Arc<[u8]>, &'t Counts),
    ) -> bool {
        let (start, mut passed, mut looks) = (self.after.take(), None::<&Arc<[u8]>>, LOOKS);
        let from = start.clone().map_or(Bound::Unbounded, Bound::Excluded);
        for (pattern, counts) in patterns.range::<Arc<[u8]>, _>((from, Bound::Unbounded)) {
            if self.at.take().is_some_and(|at| at != *pattern) {
                // Nobody has it any more.
                self.matching = Match::default();
            }
            let Some(verdict) = self.matching.go_on(pattern, channel, false, &mut looks) else {
                self.at = Some(pattern.clone());
                self.after = passed.cloned().or(start);
                return true;
            };
            self.matching = Match::default();
            if verdict {
                f(pattern, counts);
            }
            looks = looks.saturating_sub(PATTERN_LOOKS);
            passed = Some(pattern);
        }
        false
    }
}

/// A message that has not passed all patterns yet.
pub struct Passing {
    channel: Arc<[u8]>,
    payload: Shared,
    /// Who listens to the channel itself has not got it yet.
    direct: Option<Kind>,
    passage: Passage,
    /// Subscriptions it matched so far.
    sent: usize,
}

thread_local! {
    static MADE: Cell<usize> = const { Cell::new(0) };
}

/// What this thread has set on its way so far, in deliveries.
pub(crate) fn made() -> usize {
    MADE.get()
}

fn make(pubsub: &PubSub, count: usize) {
    MADE.set(MADE.get() + count);
    pubsub.flood.add(count, BACKLOG);
}

impl Passing {
    /// What it counts while it waits for its turn.
    fn weight(&self) -> usize {
        WAITING + (self.channel.len() + self.payload.len()) / WAITING_BYTES
    }

    fn send(
        &mut self,
        pubsub: &PubSub,
        server: &Server,
        kind: Kind,
        pattern: Option<&Arc<[u8]>>,
        counts: &Counts,
    ) {
        for (loop_id, n) in counts.iter().enumerate().filter(|(_, n)| **n > 0) {
            let count = *n as usize;
            self.sent += count;
            make(pubsub, count);
            pubsub.sending.fetch_add(count, Ordering::Relaxed);
            let (channel, payload, pattern) = (self.channel.clone(), self.payload.clone(), pattern.cloned());
            server.send(loop_id, Mail::Publish(Published { kind, channel, pattern, payload, count }));
        }
    }
}

/// What the first loop publishes in slices, one after the other.
pub enum Announced {
    Message(Box<Passing>),
    /// Events of a key.
    Run(Box<run::Running>),
}

impl Announced {
    /// What it counts while it waits for its turn.
    fn weight(&self) -> usize {
        match self {
            Announced::Message(passing) => passing.weight(),
            Announced::Run(run) => WAITING + run.bytes() / WAITING_BYTES,
        }
    }

    /// Does some 10 µs of it; true if it is over.
    pub(crate) fn advance(&mut self, server: &Server) -> bool {
        // As it was when it was announced.
        let (pubsub, weight) = (&server.pubsub, self.weight());
        let over = match self {
            Announced::Message(passing) => pubsub.pass(server, passing).is_some(),
            Announced::Run(run) => run.advance(server),
        };
        if over {
            pubsub.flood.remove(weight, BACKLOG);
            pubsub.announced.fetch_sub(1, Ordering::Release);
        }
        over
    }
}

/// The shared part.
#[derive(Default)]
pub struct PubSub {
    tables: Mutex<Tables>,
    /// Deliveries that are under way, and what waits for its turn.
    pub(crate) flood: Flood,
    /// Deliveries that are under way.
    sending: AtomicUsize,
    /// Messages nobody waits for that have patterns to pass, and runs of events.
    announced: AtomicUsize,
}

impl PubSub {
    /// One more subscriber on a loop.
    pub fn add(&self, kind: Kind, channel: &Arc<[u8]>, loop_id: usize) {
        let mut tables = self.tables.lock();
        let counts = tables.of(kind).entry(channel.clone()).or_default();
        if counts.len() <= loop_id {
            counts.resize(loop_id + 1, 0);
        }
        counts[loop_id] += 1;
    }

    /// One fewer.
    pub fn remove(&self, kind: Kind, channel: &[u8], loop_id: usize) {
        let mut tables = self.tables.lock();
        let table = tables.of(kind);
        if let Some(counts) = table.get_mut(channel) {
            counts[loop_id] = counts[loop_id].saturating_sub(1);
            if counts.iter().all(|n| *n == 0) {
                table.remove(channel);
            }
        }
    }

    /// Sends a message on its way and tells how many subscriptions it matched; with very many patterns, or slow ones, it has
    /// to go on ([`PubSub::pass`]). O(loops), and some 10 µs for patterns.
    pub fn publish(
        &self,
        server: &Server,
        shard: bool,
        channel: &[u8],
        payload: impl FnOnce() -> Shared,
    ) -> Result<usize, Box<Passing>> {
        let tables = self.tables.lock();
        let direct = if shard { &tables.shard_channels } else { &tables.channels }.get_key_value(channel);
        let (mut passage, mut matching) = (Passage::default(), Vec::new());
        let more =
            !shard && passage.go_on(&tables.patterns, channel, &mut |p, counts| matching.push((p, counts)));
        if direct.is_none() && matching.is_empty() && !more {
            return Ok(0);
        }
        let channel: Arc<[u8]> = direct.map_or_else(|| channel.into(), |(name, _)| name.clone());
        let mut passing = Passing { channel, payload: payload(), direct: None, passage, sent: 0 };
        if let Some((_, counts)) = direct {
            passing.send(self, server, if shard { Kind::Shard } else { Kind::Channel }, None, counts);
        }
        for (pattern, counts) in matching {
            passing.send(self, server, Kind::Pattern, Some(pattern), counts);
        }
        if more { Err(Box::new(passing)) } else { Ok(passing.sent) }
    }

    /// Lets a message pass some more patterns; how many subscriptions it matched when it has passed all. O(1).
    pub fn pass(&self, server: &Server, passing: &mut Passing) -> Option<usize> {
        let tables = self.tables.lock();
        if let Some(kind) = passing.direct.take() {
            let direct = if kind == Kind::Shard { &tables.shard_channels } else { &tables.channels };
            if let Some(counts) = direct.get(&passing.channel) {
                passing.send(self, server, kind, None, counts);
            }
            if kind == Kind::Shard {
                return Some(passing.sent);
            }
        }
        let (mut passage, mut matching) = (std::mem::take(&mut passing.passage), Vec::new());
        let more =
            passage.go_on(&tables.patterns, &passing.channel, &mut |p, counts| matching.push((p, counts)));
        passing.passage = passage;
        for (pattern, counts) in matching {
            passing.send(self, server, Kind::Pattern, Some(pattern), counts);
        }
        (!more).then_some(passing.sent)
    }

    /// Publishes a message nobody waits for. What is left of it goes on in slices of the first loop, and what comes while
    /// something is left goes there as a whole: such messages are heard in their order, if perhaps after a PUBLISH that came later.
    pub(crate) fn announce(
        &self,
        server: &Server,
        shard: bool,
        channel: &[u8],
        payload: impl FnOnce() -> Shared,
    ) {
        // With Release: the letters of those before have been sent then.
        let passing = if self.announced.load(Ordering::Acquire) == 0 {
            let Err(passing) = self.publish(server, shard, channel, payload) else { return };
            passing
        } else {
            let direct = Some(if shard { Kind::Shard } else { Kind::Channel });
            let (channel, payload) = (channel.into(), payload());
            Box::new(Passing { channel, payload, direct, passage: Passage::default(), sent: 0 })
        };
        self.send_announced(server, Announced::Message(passing));
    }

    fn send_announced(&self, server: &Server, announced: Announced) {
        self.announced.fetch_add(1, Ordering::Relaxed);
        make(self, announced.weight());
        server.send(0, Mail::Announce(announced));
    }

    /// Publishes what happened to a key, in slices of the first loop, in the order that [`PubSub::announce`] keeps. O(1).
    pub(crate) fn announce_run(&self, server: &Server, run: keyspace::Run) {
        self.send_announced(server, Announced::Run(Box::new(run::Running::new(run))));
    }

    /// True if so much is under way that who publishes without being waited for had better wait.
    pub(crate) fn is_busy(&self) -> bool {
        self.sending.load(Ordering::Relaxed) > BACKLOG
    }

    /// True if nobody listens to anything but shard channels.
    fn is_unheard(&self) -> bool {
        let tables = self.tables.lock();
        tables.channels.is_empty() && tables.patterns.is_empty()
    }

    /// How many subscriptions a message to this channel would match now. None if `may_go_on`, which is asked every 10 µs, says
    /// no.
    pub fn matching(
        &self,
        shard: bool,
        channel: &[u8],
        may_go_on: &mut dyn FnMut() -> bool,
    ) -> Option<usize> {
        let sum = |counts: &Counts| counts.iter().sum::<u32>() as usize;
        let kind = if shard { Kind::Shard } else { Kind::Channel };
        let (mut found, mut passage) = (self.count(kind, channel), Passage::default());
        while !shard
            && passage.go_on(&self.tables.lock().patterns, channel, &mut |_, counts| found += sum(counts))
        {
            if !may_go_on() {
                return None;
            }
        }
        Some(found)
    }

    /// Active channels that match (PUBSUB CHANNELS, SHARDCHANNELS), as many as there are from beginning to end. O(channels);
    /// the lock is held for [`PAGE`] of them at a time.
    pub fn channels(&self, kind: Kind, pattern: Option<&[u8]>) -> Vec<Arc<[u8]>> {
        let mut found: Vec<Arc<[u8]>> = Vec::new();
        let mut last: Option<Arc<[u8]>> = None;
        loop {
            let from = last.take().map_or(Bound::Unbounded, Bound::Excluded);
            let page: Vec<Arc<[u8]>> = {
                let mut tables = self.tables.lock();
                let rest = tables.of(kind).range::<Arc<[u8]>, _>((from, Bound::Unbounded));
                rest.take(PAGE).map(|(name, _)| name.clone()).collect()
            };
            let Some(end) = page.last() else { return found };
            last = Some(end.clone());
            let matches = |name: &Arc<[u8]>| pattern.is_none_or(|p| stdx::glob::matches(p, name, false));
            found.extend(page.into_iter().filter(matches));
        }
    }

    /// Subscribers of a channel.
    pub fn count(&self, kind: Kind, channel: &[u8]) -> usize {
        self.tables.lock().of(kind).get(channel).map_or(0, |counts| counts.iter().sum::<u32>() as usize)
    }

    /// Distinct channels or patterns with subscribers.
    pub fn len(&self, kind: Kind) -> usize {
        self.tables.lock().of(kind).len()
    }

    pub fn is_empty(&self) -> bool {
        self.len(Kind::Channel) + self.len(Kind::Pattern) + self.len(Kind::Shard) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(count: usize) -> Published {
        let (channel, payload) = (Arc::from(&b"news"[..]), Shared::Own(Arc::from(&b"hello"[..])));
        Published { kind: Kind::Channel, channel, pattern: None, payload, count }
    }

    #[test]
    fn a_fan_out_reaches_who_is_there_and_nobody_who_left_or_came_later() {
        let mut subscribers = Subscribers::default();
        let name: Arc<[u8]> = Arc::from(&b"news"[..]);
        (1..=5).for_each(|client| subscribers.add(Kind::Channel, &name, client));
        let mut fan_out = subscribers.fan_out(message(5));
        let next = |fan_out: &mut FanOut, subscribers: &Subscribers, count: usize| {
            let mut clients = Vec::new();
            fan_out.next(subscribers, count, &mut clients);
            clients
        };
        assert_eq!(next(&mut fan_out, &subscribers, 1), [1]);
        subscribers.remove(Kind::Channel, &name, 1);
        subscribers.remove(Kind::Channel, &name, 3);
        subscribers.add(Kind::Channel, &name, 3);
        subscribers.add(Kind::Channel, &name, 6);
        assert_eq!(next(&mut fan_out, &subscribers, 2), [2, 4]);
        assert_eq!(next(&mut fan_out, &subscribers, 9), [5]);
        assert!(next(&mut fan_out, &subscribers, 9).is_empty());
        assert_eq!(fan_out.delivered(), 4);
        (1..=6).for_each(|client| subscribers.remove(Kind::Channel, &name, client));
        assert!(subscribers.names.is_empty());
    }

    fn table(patterns: impl IntoIterator<Item = String>) -> Table {
        patterns.into_iter().map(|pattern| (Arc::from(pattern.as_bytes()), vec![1])).collect()
    }

    /// All pages of a message's way, and how many patterns matched on each.
    fn pages(patterns: &Table, channel: &str) -> Vec<usize> {
        let (mut passage, mut pages, mut more) = (Passage::default(), Vec::new(), true);
        while more {
            let mut found = 0;
            more = passage.go_on(patterns, channel.as_bytes(), &mut |_, _| found += 1);
            pages.push(found);
        }
        pages
    }

    #[test]
    fn a_message_passes_few_patterns_at_a_time() {
        let patterns = table((0..5000).map(|i| format!("ne*{i:04}").replace(['1', '3'], "*")));
        let expected = patterns.keys().filter(|p| stdx::glob::matches(p, b"news0204", false)).count();
        let pages = pages(&patterns, "news0204");
        assert!(expected > 2 && pages.iter().sum::<usize>() == expected);
        assert!(pages.len() >= patterns.len() / FEW_PATTERNS, "{}", pages.len());
    }

    #[test]
    fn a_slow_pattern_takes_several_turns() {
        let slow = format!("*{}b", "a".repeat(400));
        let patterns = table([slow, "a*".into(), "b*".into(), "z".into()]);
        let pages = pages(&patterns, &"a".repeat(3000));
        assert!(pages.len() > 400 * 2500 / LOOKS, "{}", pages.len());
        assert_eq!(pages.iter().sum::<usize>(), 1);
        assert_eq!(pages.last(), Some(&1));
    }

    #[test]
    fn patterns_that_go_on_the_way_are_passed_over() {
        let slow = |i: usize| format!("*{}{i}", "a".repeat(400));
        let channel = format!("{}2", "a".repeat(3000));
        let mut patterns = table((0..3).map(slow));
        let (mut passage, mut found) = (Passage::default(), 0);
        assert!(passage.go_on(&patterns, channel.as_bytes(), &mut |_, _| found += 1));
        assert_eq!(passage.at.as_deref(), Some(slow(0).as_bytes()));
        patterns.remove(slow(0).as_bytes());
        patterns.remove(slow(1).as_bytes());
        while passage.go_on(&patterns, channel.as_bytes(), &mut |_, _| found += 1) {}
        assert_eq!(found, 1);
        let mut nothing_left =
            Passage { after: None, at: Some(Arc::from(&b"gone"[..])), matching: Match::default() };
        assert!(!nothing_left.go_on(&Table::new(), b"x", &mut |_, _| panic!("nothing is there")));
    }

    #[test]
    fn a_message_is_the_same_in_one_piece_and_in_three() {
        for len in [0, 1, SHARED, SHARED + 1, 3 * SHARED] {
            let mut published = message(1);
            published.payload = Shared::Own(vec![b'x'; len].into());
            for resp3 in [false, true] {
                let bytes = match encode(&published, resp3) {
                    Encoded::Short(bytes) => bytes.to_vec(),
                    Encoded::Long(parts) => parts.iter().flat_map(|part| part.to_vec()).collect(),
                };
                let mut expected = Reply::new(resp3);
                expected.push(3);
                [&b"message"[..], b"news", &published.payload].iter().for_each(|word| expected.bulk(word));
                assert_eq!(bytes, expected.as_bytes());
            }
        }
    }
}
