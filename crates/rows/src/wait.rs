//! Clients that wait for rows.
//!
//! ```text
//! no row ─► ask, Held ─► Arrival::Loaded ─► run again ─► there, or known to be absent ─► reply
//!                        Arrival::Failed ─► run again ─► an item past its time, or the error
//!                        nothing in time ─► run again ─► -SOURCESLOW
//! ```

use super::entry::{Age, Entry, RowPlace};
use super::lent::{Arrival, Lent};
use super::{Pending, Rows};
use command::{Command, Error, facts};
use keyspace::{Keyspace, View};
use resp::Args;
use source::hub::{Refusal, Ticket};
use source::{Id, Writes};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Largest number of loads that a command waits for. A row that is removed before it can be read is loaded
/// again.
const TRIES: usize = 8;
/// Time beyond what the source's thread may take, in milliseconds.
const SLACK_MS: u64 = 1000;

const GONE: &str = "SOURCEDOWN the source was removed";

/// The reason why a command cannot run now.
pub enum Stop {
    /// It waits for rows until that time at most (milliseconds since 1970), and runs again.
    Held(u64),
    /// It gets this error.
    Refused(Error),
}

/// The client whose command asks for rows, its loop, and the loop's clocks.
#[derive(Clone, Copy)]
pub struct Asker {
    pub client: u64,
    pub loop_id: usize,
    /// Milliseconds since 1970.
    pub now_ms: u64,
    /// The monotonic clock.
    pub clock_ns: u64,
}

/// A command that waits for rows.
#[derive(Debug)]
pub struct Loading {
    /// The begin of its wait, by the monotonic clock.
    pub since_ns: u64,
    /// The latest end of its wait, in milliseconds since 1970.
    until_ms: u64,
    tries: usize,
    arrival: Option<Arrival>,
    /// The moments of its first request to each source (`source::Marks`).
    asked: Vec<(RowPlace, u64)>,
    /// Rows lent to it, by their keys.
    lent: BTreeMap<Id, Arc<Lent>>,
}

impl Loading {
    /// Notes that some of the rows were there. A command of many waits for one load after the other.
    pub(super) fn progressed(&mut self) {
        self.tries = 0;
    }

    /// The row that was lent for a key. A command may name the key twice. Cost: O(log rows lent).
    pub(super) fn lent(&self, key: &[u8]) -> Option<Arc<Lent>> {
        self.lent.get(key).cloned()
    }

    /// Notes an arrival. A failure is not forgotten because other rows came.
    pub fn arrived(&mut self, arrival: Arrival) {
        if let Arrival::Lent(lent) = &arrival
            // The row may be for an earlier command, which got an error.
            && self.asked.iter().any(|asked| lent.is_after(*asked))
        {
            self.lent.insert(lent.key().clone(), lent.clone());
        }
        if !matches!(self.arrival, Some(Arrival::Failed(_))) {
            self.arrival = Some(arrival);
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The knowledge of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Known {
    Item,
    /// An item past its time.
    Stale,
    Absent,
    Nothing,
}

impl Known {
    /// It has to be loaded.
    fn is_missing(self) -> bool {
        matches!(self, Known::Stale | Known::Nothing)
    }
}

/// The keys that a command names, as they were when it came. A client that waited for a row does not hit it
/// afterwards.
#[derive(Default)]
pub(super) struct Tally {
    hits: u64,
    negative: u64,
    misses: u64,
}

impl Tally {
    /// Adds a key. A text that cannot be an id is known to have no row.
    #[inline]
    pub(super) fn add(&mut self, entry: &Entry, key: &[u8], known: Known, now_ms: u64) {
        match known {
            Known::Item => self.hits += 1,
            Known::Absent => self.negative += 1,
            Known::Nothing if !accepts(entry, key) => {
                self.negative += 1;
                return;
            }
            Known::Stale | Known::Nothing => self.misses += 1,
        }
        entry.sizing.accessed(key, now_ms);
    }

    #[inline]
    pub(super) fn count(self, entry: &Entry) {
        let seen = &entry.seen;
        for (counter, n) in
            [(&seen.hits, self.hits), (&seen.negative_hits, self.negative), (&seen.misses, self.misses)]
        {
            if n > 0 {
                counter.fetch_add(n, Ordering::Relaxed);
            }
        }
    }
}

/// Whether a row can have that key. O(key).
pub(super) fn accepts(entry: &Entry, key: &[u8]) -> bool {
    entry.spec().pattern.id(key).is_some_and(|id| entry.source.accepts(id))
}

/// Counts an error for want of rows, once for each source.
pub(super) fn count_errors(missing: &[(&Entry, &[u8])]) {
    for (i, (entry, _)) in missing.iter().enumerate() {
        if missing[..i].iter().all(|(before, _)| before.db != entry.db) {
            count(&entry.seen.errors);
        }
    }
}

/// Counts items given out after their time.
pub(super) fn count_stale(entry: &Entry, items: u64) {
    entry.seen.stale.fetch_add(items, Ordering::Relaxed);
}

/// The knowledge in a view that holds the key's shard. The view is in the source's database, and stays there.
#[inline]
pub(super) fn known(entry: &Entry, view: &mut View<'_>, key: &[u8]) -> Known {
    let age = view.expire_ms(key).map(|expire| entry.age(key, expire, view.now_ms()));
    if age == Some(Age::Fresh) {
        return Known::Item;
    }
    view.select(entry.absent_db());
    let absent = view.exists(key);
    view.select(entry.db);
    match (absent && entry.source.blind_since_ms() == 0, age) {
        (true, _) => Known::Absent,
        (false, Some(Age::Stale)) => Known::Stale,
        (false, _) => Known::Nothing,
    }
}

/// Whether a view knows enough of a key to answer a command. The key is in the source's database.
pub fn is_known(entry: &Entry, view: &mut View<'_>, key: &[u8]) -> bool {
    known(entry, view, key) != Known::Nothing || !accepts(entry, key)
}

/// Whether a command needs the row: it reads it, or changes a part of the item.
fn reads_through(entry: &Entry, command: &Command) -> bool {
    let changes = entry.spec().writes == Writes::Local && !command.is(facts::REMOVES);
    !command.is_write() || command.is(facts::READS_VALUE) || changes
}

/// Checks that the rows read by a command within a transaction are there: an earlier command may have given
/// one up, and it cannot be loaded now. Errors: a row is missing. O(keys).
#[cold]
pub fn look_within(
    entry: &Entry,
    view: &mut View<'_>,
    command: &Command,
    args: Args<'_>,
) -> Result<(), Error> {
    let mut removed = None;
    if !command.is_write() || command.is(facts::READS_VALUE) {
        command.each_key(args, &mut |i, _| {
            if removed.is_none() && !is_known(entry, view, args.at(i)) {
                removed = Some(args.at(i));
            }
        });
    }
    match removed {
        None => Ok(()),
        Some(key) => {
            count_errors(&[(entry, key)]);
            Err(removed_before(entry, key))
        }
    }
}

/// The error of a command whose loaded row is gone when its turn comes.
pub fn removed_before(entry: &Entry, key: &[u8]) -> Error {
    let (name, key) = (&entry.spec().name, String::from_utf8_lossy(key));
    format!("SOURCEBUSY source '{name}': row '{key}' was removed before it was read").into()
}

/// Checks that the rows a command names are there, in a view that holds their shards. `None`: it may run.
/// Else its client waits, or gets an error.
#[inline]
pub fn look(
    asker: Asker,
    pending: &mut Pending,
    entry: &Entry,
    view: &mut View<'_>,
    command: &Command,
    args: Args<'_>,
) -> Option<Stop> {
    if !reads_through(entry, command) {
        return None;
    }
    let mut tally = Tally::default();
    let mut missing = [0usize; 16];
    let mut n = 0;
    let first = pending.loading.is_none();
    command.each_key(args, &mut |i, _| {
        let known = known(entry, view, args.at(i));
        if first {
            tally.add(entry, args.at(i), known, view.now_ms());
        }
        // Keys for which there is no room are looked at once the others are there.
        if known.is_missing() && n < missing.len() {
            missing[n] = i;
            n += 1;
        }
    });
    tally.count(entry);
    if n == 1 && borrow(pending, entry, view, command, args, args.at(missing[0])) {
        n = 0;
    }
    if n == 0 {
        pending.end_loading();
        return None;
    }
    let missing = missing[..n].iter().map(|i| args.at(*i));
    miss(asker, pending, entry, view, missing)
}

/// Shows a command a row that was loaded for its client and is not kept. The caller takes it away after the
/// command ([`Pending::lent`]). True if there is one.
#[cold]
fn borrow(
    pending: &mut Pending,
    entry: &Entry,
    view: &mut View<'_>,
    command: &Command,
    args: Args<'_>,
    key: &[u8],
) -> bool {
    // MGET and the like of one key run as commands that can have no more.
    let alone = super::first_key(command).is_some_and(|first| args.len() == first + 1);
    if command.is_write() || command.single_key().is_none() && !alone {
        return false;
    }
    let lent = pending.loading.as_ref().and_then(|loading| loading.lent(key));
    let Some(lent) = lent else { return false };
    lent.show(view, entry);
    pending.lent = Some(key.into());
    true
}

/// Handles missing rows.
#[cold]
fn miss<'a>(
    asker: Asker,
    pending: &mut Pending,
    entry: &Entry,
    view: &mut View<'_>,
    missing: impl Iterator<Item = &'a [u8]> + Clone,
) -> Option<Stop> {
    let keys: Vec<(&Entry, &[u8])> = missing.map(|key| (entry, key)).collect();
    let stop = wait(asker, pending, &keys)?;
    let refused = matches!(stop, Stop::Refused(_));
    let all_stale = keys.iter().all(|(entry, key)| known(entry, view, key) == Known::Stale);
    if refused && all_stale {
        keys.iter().for_each(|(entry, _)| count_stale(entry, 1));
        return None;
    }
    if refused {
        count_errors(&keys);
    }
    Some(stop)
}

/// Asks for rows. `None`: none of them can exist, or the client waited in vain. Else the client waits, or
/// gets an error.
pub(super) fn wait(asker: Asker, pending: &mut Pending, missing: &[(&Entry, &[u8])]) -> Option<Stop> {
    let loading = pending.loading.take();
    pending.loaded_since_ns = loading.as_ref().map(|loading| loading.since_ns);
    let (since_ns, tries) = loading.as_ref().map_or((asker.clock_ns, 0), |l| (l.since_ns, l.tries));
    let (mut before, mut lent) = Default::default();
    if let Some(mut loading) = loading {
        (before, lent) = (std::mem::take(&mut loading.asked), std::mem::take(&mut loading.lent));
        match loading.arrival {
            Some(Arrival::Failed(text)) => return Some(Stop::Refused(Error::from(text.to_string()))),
            Some(Arrival::Gone) => return Some(Stop::Refused(Error::new(GONE))),
            None if asker.now_ms < loading.until_ms => {
                // The command ran again for another reason.
                (loading.asked, loading.lent) = (before, lent);
                (pending.loading, pending.loaded_since_ns) = (Some(loading), None);
                return Some(hold(pending));
            }
            None => return Some(Stop::Refused(slow(missing))),
            Some(Arrival::Loaded | Arrival::Lent(_)) if tries >= TRIES => {
                return Some(Stop::Refused(restless(missing)));
            }
            Some(Arrival::Loaded | Arrival::Lent(_)) => {}
        }
    }
    let mut asked = false;
    for (entry, key) in missing {
        if before.iter().all(|(place, _)| *place != entry.place()) {
            before.push((entry.place(), entry.source.marks.now()));
        }
        let ticket = Some(Ticket { loop_id: asker.loop_id, client: asker.client });
        let id = entry.spec().pattern.id(key).unwrap_or_default();
        match entry.source.want(id, ticket) {
            Ok(()) => asked = true,
            Err(Refusal::NoId) => {}
            Err(refusal) => return Some(Stop::Refused(refused(entry, refusal))),
        }
    }
    if !asked {
        return None;
    }
    let longest = missing.iter().map(|(entry, _)| entry.spec().timeout.as_millis() as u64).max();
    let until_ms = asker.now_ms + 2 * longest.unwrap_or(0) + SLACK_MS;
    pending.loaded_since_ns = None;
    let tries = tries + 1;
    pending.loading = Some(Loading { since_ns, until_ms, tries, arrival: None, asked: before, lent });
    Some(hold(pending))
}

fn hold(pending: &Pending) -> Stop {
    Stop::Held(pending.loading.as_ref().map_or(0, |loading| loading.until_ms))
}

fn name<'a>(missing: &[(&'a Entry, &[u8])]) -> &'a str {
    missing.first().map_or("", |(entry, _)| &entry.spec().name)
}

fn slow(missing: &[(&Entry, &[u8])]) -> Error {
    format!("SOURCESLOW source '{}': the row did not come in time", name(missing)).into()
}

fn restless(missing: &[(&Entry, &[u8])]) -> Error {
    format!("SOURCEBUSY source '{}': the row was removed each time it had been loaded", name(missing)).into()
}

fn refused(entry: &Entry, refusal: Refusal) -> Error {
    let name = &entry.spec().name;
    match refusal {
        Refusal::Paused => format!("SOURCEDOWN source '{name}' is paused").into(),
        Refusal::Removed => Error::new(GONE),
        _ => format!("SOURCEBUSY source '{name}': {} rows wait to be loaded", entry.spec().queue).into(),
    }
}

/// Checks that the rows named by a transaction or script are there, and asks for the missing ones.
pub(super) fn load_all(
    keyspace: &Keyspace,
    asker: Asker,
    pending: &mut Pending,
    wanted: &[(Arc<Entry>, &[u8])],
) -> Option<Stop> {
    let mut missing = Missing::new(pending);
    for (entry, key) in wanted {
        let mut view = View::locked_one(keyspace, key, entry.db, asker.now_ms);
        let known = missing.look(entry, &mut view, key);
        drop(view.finish());
        missing.add(entry, key, known);
    }
    missing.ask(asker, pending)
}

/// The missing rows of a transaction or script.
struct Missing<'a> {
    rows: Vec<(&'a Entry, &'a [u8])>,
    /// Items past their time are in their place.
    stale: bool,
    /// This is the first check for the command.
    first: bool,
}

impl<'a> Missing<'a> {
    fn new(pending: &Pending) -> Missing<'a> {
        Missing { rows: Vec::new(), stale: true, first: pending.loading.is_none() }
    }

    /// Looks at one, in a view that holds its shard and is in the source's database.
    fn look(&self, entry: &Entry, view: &mut View<'_>, key: &[u8]) -> Known {
        let known = known(entry, view, key);
        if self.first {
            let mut tally = Tally::default();
            tally.add(entry, key, known, view.now_ms());
            tally.count(entry);
        }
        known
    }

    fn add(&mut self, entry: &'a Entry, key: &'a [u8], known: Known) {
        if known.is_missing() {
            self.stale &= known == Known::Stale;
            self.rows.push((entry, key));
        }
    }

    /// Asks for them. `None`: nothing is missing, or waiting brings nothing better.
    fn ask(self, asker: Asker, pending: &mut Pending) -> Option<Stop> {
        if self.rows.is_empty() {
            pending.end_loading();
            return None;
        }
        let stop = wait(asker, pending, &self.rows)?;
        let refused = matches!(stop, Stop::Refused(_));
        if refused && self.stale {
            self.rows.iter().for_each(|(entry, _)| count_stale(entry, 1));
            return None;
        }
        if refused {
            count_errors(&self.rows);
        }
        Some(stop)
    }
}

/// Rows of a transaction under its locks. Rows that are there when it begins stay there to its end.
#[derive(Default)]
pub struct TransactionRows<'a> {
    wanted: Vec<(Arc<Entry>, &'a [u8])>,
    /// It writes none of them. A lent row is not kept, so neither would be a change of it.
    reads: bool,
    /// Rows that were loaded for it and are not kept.
    lent: Vec<(Arc<Entry>, Arc<Lent>)>,
}

impl<'a> TransactionRows<'a> {
    /// The rows that the commands name. O(keys · sources), without a lock.
    #[cold]
    pub fn of(rows: &Rows, calls: impl Iterator<Item = (&'static Command, Args<'a>)>) -> TransactionRows<'a> {
        let mut named = TransactionRows { reads: true, ..TransactionRows::default() };
        for (command, args) in calls {
            command.each_key(args, &mut |i, _| {
                if let Some(entry) = rows.of(args.at(i)) {
                    named.reads &= !command.is_write();
                    named.wanted.push((entry, args.at(i)));
                }
            });
        }
        named
    }

    /// Checks that they are there, in a view that holds their shards, and asks for the missing ones. `None`:
    /// they are there or were lent. Else the client waits, or gets an error. O(keys · log rows lent).
    pub fn look(&mut self, asker: Asker, pending: &mut Pending, view: &mut View<'_>) -> Option<Stop> {
        if self.wanted.is_empty() {
            return None;
        }
        let mut missing = Missing::new(pending);
        for (entry, key) in &self.wanted {
            view.select(entry.db);
            let known = missing.look(entry, view, key);
            let loading = pending.loading.as_ref().filter(|_| self.reads && known.is_missing());
            match loading.and_then(|loading| loading.lent(key)) {
                Some(lent) => self.lent.push((entry.clone(), lent)),
                None => missing.add(entry, key, known),
            }
        }
        missing.ask(asker, pending)
    }

    /// Whether the transaction changes or removes some of them. Then none is lent to it.
    pub fn are_changed(&self) -> bool {
        !self.wanted.is_empty() && !self.reads
    }

    /// Puts the lent rows into their places. O(rows lent).
    pub fn show(&self, view: &mut View<'_>) {
        for (entry, lent) in &self.lent {
            view.select(entry.db);
            lent.show(view, entry);
        }
    }

    /// Takes them away again.
    pub fn give_back(self, view: &mut View<'_>) {
        for (entry, lent) in self.lent {
            entry.shelf().take_back(view, lent.key());
        }
    }
}

/// Asks for a missing row that no client waits for yet.
pub(super) fn ask(keyspace: &Keyspace, now_ms: u64, entry: &Entry, key: &[u8]) {
    let mut view = View::locked_one(keyspace, key, entry.db, now_ms);
    let known = known(entry, &mut view, key);
    drop(view.finish());
    if known.is_missing() {
        let id = entry.spec().pattern.id(key).unwrap_or_default();
        let _ = entry.source.want(id, None);
    }
}

/// Removes a client's write to a source's key, or bounds its life by that of an item. The view is the one of
/// the write. GETEX writes nothing but that time.
#[cold]
pub fn after_write(entry: &Entry, view: &mut View<'_>, command: &Command, args: Args<'_>) {
    let gone = entry.source.is_removed();
    command.each_key(args, &mut |i, _| {
        let key = args.at(i);
        if command.is(facts::READS_VALUE) && !gone {
            return after_getex(entry, view, key, args);
        }
        if gone || entry.spec().writes == Writes::Evict {
            view.remove(key);
        } else {
            bound_expiry(entry, view, key, sets_expiry(command, args));
        }
        // The item is not the row of that time any more.
        view.forget_changed(key);
        view.select(entry.absent_db());
        view.remove(key);
        view.select(entry.db);
    });
}

/// Bounds the time that GETEX set. An item may end sooner than it would. Where clients may change items, it
/// may end as late as one loaded now.
fn after_getex(entry: &Entry, view: &mut View<'_>, key: &[u8], args: Args<'_>) {
    let (now_ms, grace_ms) = (view.now_ms(), view.grace_ms());
    let Some(asked) = command::getex_asks(args, now_ms) else { return };
    let (Ok(Some(_)), Some(Some(kept))) = (view.string(key), view.expire_ms(key)) else { return };
    let latest = match entry.spec().writes {
        Writes::Local => entry.expire_ms(key, now_ms),
        Writes::Refuse | Writes::Evict => kept,
    };
    let at = asked.map_or(latest, |at| at.saturating_add(grace_ms).min(latest));
    if at <= now_ms {
        view.remove(key);
    } else if at != kept {
        view.set_expire(key, Some(at));
    }
    if at > kept {
        // The time of its load follows from its expiry, and the account of its changes relies on that.
        view.forget_changed(key);
    }
}

/// Whether a command itself says when its key expires.
fn sets_expiry(command: &Command, args: Args<'_>) -> bool {
    match command.name {
        "set" => args.len() > 3,
        "setex" | "psetex" | "msetex" | "restore" => true,
        "expire" | "pexpire" | "expireat" | "pexpireat" => true,
        _ => false,
    }
}

/// Bounds the life of a client's write by that of an item. `asked`: the client named the time, without the
/// time an item is kept beyond it.
fn bound_expiry(entry: &Entry, view: &mut View<'_>, key: &[u8], asked: bool) {
    let Some(expire) = view.expire_ms(key) else { return };
    let latest = entry.expire_ms(key, view.now_ms());
    let grace_ms = if asked { view.grace_ms() } else { 0 };
    let at = expire.map_or(latest, |at| at.saturating_add(grace_ms).min(latest));
    if expire != Some(at) {
        view.set_expire(key, Some(at));
    }
}

/// Before a client's write: marks its keys, as loads under way are older than the write.
#[cold]
pub fn before_write(entry: &Entry, command: &Command, args: Args<'_>) {
    if command.is(facts::READS_VALUE) {
        return;
    }
    command.each_key(args, &mut |i, _| {
        let id = entry.spec().pattern.id(args.at(i)).unwrap_or_default();
        entry.source.marks.mark([id].into_iter());
    });
}
