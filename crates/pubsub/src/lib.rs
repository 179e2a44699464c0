//! Channels: the subscribers of each loop, and the way of a message to them.
//!
//! ```text
//! PUBLISH ── counts per loop (a short lock) ──► a letter per loop ──► that loop's table ──► its clients
//! ```
//!
//! - B1: the shared table holds only the number of subscribers per loop; each loop has a table of the
//!   clients. So PUBLISH costs O(loops + patterns) (see B5), and the fan-out is each loop's work, in slices.
//! - B2: the count answered is the number of subscriptions that matched when the message was sent.
//! - B3: subscriptions of a loop are numbered as they come. A fan-out goes by number and ends at the newest
//!   number of its begin, so it can stop anywhere. A client that left meanwhile gets nothing more; a later
//!   one gets nothing.
//! - B4: a fan-out encodes its message once per protocol version; the subscribers share the bytes.
//! - B5: a message passes patterns for some 10 µs at a time: there may be very many, and each may take long.
//!   A client that subscribes meanwhile may get the message or not.
//! - B6: a message may tell of a write, as a reply does. Under `appendfsync always` it waits in its
//!   subscriber's connection for its publisher's gate. Keyspace events, and messages of scripts, wait for
//!   everything before them.

#![forbid(unsafe_code)]

pub mod flood;
mod message;
pub mod monitor;
mod notify;
mod run;
pub mod tracking;

pub use message::{Encoded, Kind, Published, Shared, encode};
pub use notify::wanted_classes;

use config::Config;
use flood::Flood;
use keyspace::{Event, Keyspace, Lsn, To};
use message::SHARED;
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use stdx::glob::Match;

/// Deliveries under way above which it is [`Flood::full`]. Without a limit, clients that publish faster than
/// messages are delivered would fill the memory.
const BACKLOG: usize = 100_000;
/// The weight of an announced message while it waits for its turn, in deliveries.
const WAITING: usize = 10;
/// Bytes of such a message that weigh as much as one more delivery.
const WAITING_BYTES: usize = 64;
/// Channels looked at under one lock.
const PAGE: usize = 256;
/// Bytes of patterns looked at under one lock (B5).
const LOOKS: usize = 8 * 1024;
/// The cost of a pattern besides its matching, in such bytes.
const PATTERN_LOOKS: usize = 32;
/// Patterns that a message passes in one go, about.
pub const FEW_PATTERNS: usize = LOOKS / PATTERN_LOOKS;

/// Subscribers per loop.
type Counts = Vec<u32>;
/// Subscribers by name. It is a tree, since a hash table would have to grow as a whole.
type Table = BTreeMap<Arc<[u8]>, Counts>;

#[derive(Default)]
struct Tables {
    channels: Table,
    patterns: Table,
    shard_channels: Table,
    monitors: Table,
}

impl Tables {
    fn of(&mut self, kind: Kind) -> &mut Table {
        match kind {
            Kind::Channel => &mut self.channels,
            Kind::Pattern => &mut self.patterns,
            Kind::Shard => &mut self.shard_channels,
            Kind::Monitor => &mut self.monitors,
        }
    }
}

/// One loop's subscribers, by kind and channel or pattern. All parts are trees, as in [`Table`].
#[derive(Default)]
pub struct Subscribers {
    names: BTreeMap<(Kind, Arc<[u8]>), Crowd>,
    /// The number of the newest subscription (B3).
    last: u64,
}

/// The subscribers of one name.
#[derive(Default)]
struct Crowd {
    by_number: BTreeMap<u64, u64>,
    by_client: BTreeMap<u64, u64>,
}

impl Subscribers {
    pub fn add(&mut self, kind: Kind, name: &Arc<[u8]>, client: u64) {
        self.last += 1;
        let crowd = self.names.entry((kind, name.clone())).or_default();
        crowd.by_number.insert(self.last, client);
        crowd.by_client.insert(client, self.last);
    }

    pub fn remove(&mut self, kind: Kind, name: &Arc<[u8]>, client: u64) {
        let id = (kind, name.clone());
        let Some(crowd) = self.names.get_mut(&id) else { return };
        if let Some(number) = crowd.by_client.remove(&client) {
            crowd.by_number.remove(&number);
        }
        if crowd.by_client.is_empty() {
            self.names.remove(&id);
        }
    }

    /// Begins to deliver a message to the subscribers there are now. O(1).
    pub fn fan_out(&self, message: Published) -> FanOut {
        FanOut { message, encoded: [None, None], after: 0, to: self.last, delivered: 0 }
    }
}

/// A message on its way to a loop's subscribers.
pub struct FanOut {
    message: Published,
    /// The message in RESP2 and RESP3, encoded when first needed.
    encoded: [Option<Encoded>; 2],
    /// The number of the last subscription served; `to` is that of the last to be served.
    after: u64,
    to: u64,
    delivered: u64,
}

impl FanOut {
    /// The number of the loop's subscribers when the message was sent.
    pub fn count(&self) -> usize {
        self.message.count
    }

    /// The length of the payload.
    pub fn bytes(&self) -> usize {
        self.message.payload.len()
    }

    /// The LSN that has to be durable before the message leaves; 0: none.
    pub fn gate(&self) -> Lsn {
        self.message.gate
    }

    /// The number of subscribers served so far.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Appends the next clients to deliver to, at most `count`, to `clients`. O(log subscribers + count).
    pub fn next(&mut self, subscribers: &Subscribers, count: usize, clients: &mut Vec<u64>) {
        let name = self.message.pattern.as_ref().unwrap_or(&self.message.channel);
        let Some(crowd) = subscribers.names.get(&(self.message.kind, name.clone())) else { return };
        let rest = (Bound::Excluded(self.after), Bound::Included(self.to));
        if self.after >= self.to {
            return;
        }
        let without = self.message.without;
        let others = crowd.by_number.range(rest).filter(|(_, client)| **client != without);
        for (number, client) in others.take(count) {
            self.after = *number;
            self.delivered += 1;
            clients.push(*client);
        }
    }

    /// The message in one protocol version. O(length) the first time, as [`encode`]; then O(1).
    pub fn encoded(&mut self, resp3: bool) -> &Encoded {
        let FanOut { message, encoded, .. } = self;
        encoded[usize::from(resp3)].get_or_insert_with(|| encode(message, resp3))
    }

    /// Ends the delivery: its deliveries are no longer under way.
    pub fn end(self, pubsub: &PubSub) {
        let bytes = self.message.payload.len();
        if self.message.kind == Kind::Monitor {
            return pubsub.monitors.arrived(bytes);
        }
        pubsub.flood.remove(self.message.count, BACKLOG);
        pubsub.sending.fetch_sub(self.message.count, Ordering::Relaxed);
        if bytes > SHARED {
            stdx::reclaim::defer(bytes, move || drop(self));
        }
    }
}

/// The position of a message on its way through the patterns (B5).
#[derive(Default)]
struct Passage {
    /// The last pattern the message has passed.
    after: Option<Arc<[u8]>>,
    /// The pattern it stopped in, if it stopped in one.
    at: Option<Arc<[u8]>>,
    matching: Match,
}

impl Passage {
    /// Passes some patterns, and calls `f` for those that match. True if there are more. O(1): some 10 µs.
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
                // The pattern has no subscribers any more.
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
    /// The kind of the channel, while its own subscribers have not got the message.
    direct: Option<Kind>,
    passage: Passage,
    /// Subscriptions matched so far.
    sent: usize,
    /// See [`Published::gate`].
    gate: Lsn,
}

thread_local! {
    static MADE: Cell<usize> = const { Cell::new(0) };
}

/// The deliveries this thread has put under way, ever. Announced messages count with their weight.
pub fn made() -> usize {
    MADE.get()
}

fn make(pubsub: &PubSub, count: usize) {
    MADE.set(MADE.get() + count);
    pubsub.flood.add(count, BACKLOG);
}

impl Passing {
    /// The weight of the message in deliveries while it waits for its turn.
    fn weight(&self) -> usize {
        WAITING + (self.channel.len() + self.payload.len()) / WAITING_BYTES
    }

    fn send(&mut self, pubsub: &PubSub, kind: Kind, pattern: Option<&Arc<[u8]>>, counts: &Counts) {
        for (loop_id, n) in counts.iter().enumerate().filter(|(_, n)| **n > 0) {
            let count = *n as usize;
            self.sent += count;
            make(pubsub, count);
            pubsub.sending.fetch_add(count, Ordering::Relaxed);
            let (channel, payload, pattern) = (self.channel.clone(), self.payload.clone(), pattern.cloned());
            let gate = self.gate;
            (pubsub.post)(
                loop_id,
                Letter::Publish(Published { kind, channel, pattern, payload, count, gate, without: 0 }),
            );
        }
    }
}

/// Work of the first loop, which publishes it in slices, one after the other.
pub enum Announced {
    Message(Box<Passing>),
    /// The events of a key.
    Run(Box<run::Running>),
}

impl Announced {
    /// The weight in deliveries while it waits for its turn.
    fn weight(&self) -> usize {
        match self {
            Announced::Message(passing) => passing.weight(),
            Announced::Run(run) => WAITING + run.bytes() / WAITING_BYTES,
        }
    }

    /// Publishes for some 10 µs. True if all is published.
    pub fn advance(&mut self, pubsub: &PubSub) -> bool {
        // The weight is the same as at the announcement.
        let weight = self.weight();
        let over = match self {
            Announced::Message(passing) => pubsub.pass(passing).is_some(),
            Announced::Run(run) => run.advance(pubsub),
        };
        if over {
            pubsub.flood.remove(weight, BACKLOG);
            pubsub.announced.fetch_sub(1, Ordering::Release);
        }
        over
    }
}

/// The subscriptions of one client.
#[derive(Default)]
pub struct Subscriptions {
    // All are trees, since a hash table would have to grow as a whole.
    pub channels: BTreeSet<Arc<[u8]>>,
    pub patterns: BTreeSet<Arc<[u8]>>,
    pub shard_channels: BTreeSet<Arc<[u8]>>,
    /// The name of MONITOR's lines, if the client asked for them. It does not make a subscriber of it.
    pub monitor: BTreeSet<Arc<[u8]>>,
}

impl Subscriptions {
    /// The number of subscriptions that SUBSCRIBE and PSUBSCRIBE answer: channels and patterns.
    pub fn count(&self) -> usize {
        self.channels.len() + self.patterns.len()
    }

    pub fn is_empty(&self) -> bool {
        self.channels.is_empty() && self.patterns.is_empty() && self.shard_channels.is_empty()
    }
}

/// Mail to a loop.
pub enum Letter {
    /// A message for the loop's subscribers.
    Publish(Published),
    /// An announced message, for the first loop.
    Announce(Announced),
    /// This client is to be closed.
    CutOff(u64),
}

/// Sends a letter to the loop of that number.
pub type Post = Box<dyn Fn(usize, Letter) + Send + Sync>;

/// The channels of one server, shared by its threads.
pub struct PubSub {
    post: Post,
    config: Arc<Config>,
    keyspace: Arc<Keyspace>,
    tables: Mutex<Tables>,
    /// Deliveries under way, and the weight of announced messages that wait for their turn.
    pub flood: Flood,
    /// Deliveries under way.
    sending: AtomicUsize,
    /// Announced messages and runs of events that are not yet published.
    announced: AtomicUsize,
    monitors: monitor::Monitors,
    /// In a cluster: tells the other nodes of a message, in place of the stream. Set once, before the first
    /// client.
    pub peers: OnceLock<Tell>,
}

/// Tells others of a channel's message.
pub type Tell = Box<dyn Fn(&[u8], &[u8]) + Send + Sync>;

impl PubSub {
    pub fn new(config: Arc<Config>, keyspace: Arc<Keyspace>, post: Post) -> PubSub {
        PubSub {
            post,
            config,
            keyspace,
            tables: Mutex::default(),
            flood: Flood::default(),
            sending: AtomicUsize::new(0),
            announced: AtomicUsize::new(0),
            monitors: monitor::Monitors::default(),
            peers: OnceLock::new(),
        }
    }

    /// Publishes keyspace events as `notify-keyspace-events` asks. O(events · loops), and some 10 µs for
    /// patterns.
    pub fn notify(&self, events: &[Event]) {
        notify::notify(self, events);
    }

    /// Counts one more subscriber on a loop. O(log names).
    pub fn add(&self, kind: Kind, channel: &Arc<[u8]>, loop_id: usize) {
        let mut tables = self.tables.lock();
        let counts = tables.of(kind).entry(channel.clone()).or_default();
        if counts.len() <= loop_id {
            counts.resize(loop_id + 1, 0);
        }
        counts[loop_id] += 1;
    }

    /// Counts one subscriber less on a loop. O(log names + loops).
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

    /// Publishes a message; returns how many subscriptions it matched. `Err`: there are more patterns, or
    /// slow ones, and [`PubSub::pass`] has to go on. O(loops) per matching name, and some 10 µs for patterns.
    /// `gate`: the LSN of the newest write that the publisher made or saw.
    pub fn publish(
        &self,
        shard: bool,
        channel: &[u8],
        gate: Lsn,
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
        let mut passing = Passing { channel, payload: payload(), direct: None, passage, sent: 0, gate };
        if let Some((_, counts)) = direct {
            passing.send(self, if shard { Kind::Shard } else { Kind::Channel }, None, counts);
        }
        for (pattern, counts) in matching {
            passing.send(self, Kind::Pattern, Some(pattern), counts);
        }
        if more { Err(Box::new(passing)) } else { Ok(passing.sent) }
    }

    /// Lets a message pass some more patterns, for some 10 µs. `Some`: it has passed all, and matched so many
    /// subscriptions.
    pub fn pass(&self, passing: &mut Passing) -> Option<usize> {
        let tables = self.tables.lock();
        if let Some(kind) = passing.direct.take() {
            let direct = if kind == Kind::Shard { &tables.shard_channels } else { &tables.channels };
            if let Some(counts) = direct.get(&passing.channel) {
                passing.send(self, kind, None, counts);
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
            passing.send(self, Kind::Pattern, Some(pattern), counts);
        }
        (!more).then_some(passing.sent)
    }

    /// Publishes a message whose count is not needed. If patterns remain, the first loop goes on in slices;
    /// until it is done, later announcements go there as a whole. So announcements keep their order. A
    /// PUBLISH may overtake them.
    pub fn announce(&self, shard: bool, channel: &[u8], payload: impl FnOnce() -> Shared) {
        let gate = self.gate_of_all();
        // Pairs with the Release in `advance`: at 0, all letters of earlier announcements have been sent.
        let passing = if self.announced.load(Ordering::Acquire) == 0 {
            let Err(passing) = self.publish(shard, channel, gate, payload) else { return };
            passing
        } else {
            let direct = Some(if shard { Kind::Shard } else { Kind::Channel });
            let (channel, payload) = (channel.into(), payload());
            Box::new(Passing { channel, payload, direct, passage: Passage::default(), sent: 0, gate })
        };
        self.send_announced(Announced::Message(passing));
    }

    /// The gate of a message that may tell of anything so far; 0: nobody waits for durability.
    pub fn gate_of_all(&self) -> Lsn {
        if self.keyspace.gates() { self.keyspace.last_lsn() } else { 0 }
    }

    fn send_announced(&self, announced: Announced) {
        self.announced.fetch_add(1, Ordering::Relaxed);
        make(self, announced.weight());
        (self.post)(0, Letter::Announce(announced));
    }

    /// Tells a message to replicas, which have subscribers of their own, or to all nodes of a cluster. O(its
    /// bytes), or nothing without replicas.
    pub fn tell_followers(&self, shard: bool, channel: &[u8], message: &[u8]) {
        if let Some(tell) = self.peers.get().filter(|_| !shard) {
            return tell(channel, message);
        }
        let name: &[u8] = if shard { b"SPUBLISH" } else { b"PUBLISH" };
        self.keyspace.tell_apart(To::Replicas, &mut [name, channel, message].into_iter());
    }

    /// Publishes the events of a key in slices of the first loop, in order with [`PubSub::announce`]. O(1).
    pub fn announce_run(&self, run: keyspace::Run) {
        self.send_announced(Announced::Run(Box::new(run::Running::new(run, self.gate_of_all()))));
    }

    /// True if so many deliveries are under way that runs of events should pause.
    pub fn is_busy(&self) -> bool {
        self.sending.load(Ordering::Relaxed) > BACKLOG
    }

    /// True if no client is subscribed to a channel or a pattern. Shard channels do not count.
    fn is_unheard(&self) -> bool {
        let tables = self.tables.lock();
        tables.channels.is_empty() && tables.patterns.is_empty()
    }

    /// The number of subscriptions that a message to this channel would match now. O(loops + patterns).
    /// `may_go_on` is called about every 10 µs; None if it returns false.
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

    /// The active channels (PUBSUB CHANNELS, SHARDCHANNELS). A channel that comes or goes
    /// meanwhile may be missed. O(channels); the lock is held for [`PAGE`] of them at a time.
    pub fn channels(&self, kind: Kind) -> Vec<Arc<[u8]>> {
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
            found.extend(page);
        }
    }

    /// The number of subscribers of a channel. O(log names + loops).
    pub fn count(&self, kind: Kind, channel: &[u8]) -> usize {
        self.tables.lock().of(kind).get(channel).map_or(0, |counts| counts.iter().sum::<u32>() as usize)
    }

    /// The number of distinct channels or patterns with subscribers. O(1).
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
    use crate::message::tests::message;

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

    /// The number of matching patterns on each page of a message's way.
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
}
