//! Clients that wait for rows.
//!
//! ```text
//! no row ─► ask, Held ─► Arrival::Loaded ─► run again ─► there, or known to be absent ─► reply
//!                        Arrival::Failed ─► run again ─► an item past its time, or the error
//!                        nothing in time ─► run again ─► -SOURCESLOW
//! ```

use super::Entry;
use crate::call::Flow;
use crate::session::flag;
use crate::{Local, Server, Session};
use command::{Command, Error};
use keyspace::View;
use resp::Args;
use source::Writes;
use source::hub::{Refusal, Ticket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Loads a command waits for at most: a row that is removed before it can be read is loaded again.
const TRIES: usize = 8;
/// Time beyond what the source's thread may take, in milliseconds.
const SLACK_MS: u64 = 1000;

const GONE: &str = "SOURCEDOWN the source was removed";

/// What became of rows a client waits for.
#[derive(Clone, Debug)]
pub enum Arrival {
    /// They were loaded, as far as this client can be told: it has to look.
    Loaded,
    /// The error it gets unless there is an item past its time.
    Failed(Arc<str>),
    /// The source was removed.
    Gone,
}

/// A command that waits for rows.
#[derive(Debug)]
pub struct Loading {
    /// By the monotonic clock.
    pub since_ns: u64,
    /// Until when it waits at most, in milliseconds since 1970.
    until_ms: u64,
    tries: usize,
    arrival: Option<Arrival>,
}

impl Loading {
    /// Some of the rows were there: a command of many waits for one load after the other.
    pub(super) fn progressed(&mut self) {
        self.tries = 0;
    }

    /// Notes what arrived. A failure is not forgotten because other rows came.
    pub fn arrived(&mut self, arrival: Arrival) {
        if !matches!(self.arrival, Some(Arrival::Failed(_))) {
            self.arrival = Some(arrival);
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// What is known of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Known {
    Item,
    /// An item past its time.
    Stale,
    Absent,
    Nothing,
}

/// What keys a command names were found to be when it came: who waited for a row does not hit it afterwards.
#[derive(Default)]
struct Tally {
    hits: u64,
    negative: u64,
    misses: u64,
}

impl Tally {
    #[inline]
    fn add(&mut self, known: Known) {
        match known {
            Known::Item => self.hits += 1,
            Known::Absent => self.negative += 1,
            Known::Stale | Known::Nothing => self.misses += 1,
        }
    }

    #[inline]
    fn count(self, entry: &Entry) {
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

/// What a view that holds the key's shard knows. The view is in the source's database, and stays there.
#[inline]
pub(super) fn known(entry: &Entry, view: &mut View<'_>, key: &[u8]) -> Known {
    let item = view.expire_ms(key);
    if let Some(expire) = item
        && entry.is_fresh(expire, view.now_ms())
    {
        return Known::Item;
    }
    view.select(entry.absent_db());
    let absent = view.exists(key);
    view.select(entry.db);
    match (absent, item) {
        (true, _) => Known::Absent,
        (false, Some(_)) => Known::Stale,
        (false, None) => Known::Nothing,
    }
}

/// Whether a command can be answered from what a view knows of a key, which is in the source's database.
pub(crate) fn is_known(entry: &Entry, view: &mut View<'_>, key: &[u8]) -> bool {
    let no_id = || !entry.source.accepts(entry.spec().pattern.id(key).unwrap_or_default());
    known(entry, view, key) != Known::Nothing || no_id()
}

/// Whether a command needs the row: it reads it, or changes a part of the item.
fn reads_through(entry: &Entry, command: &Command) -> bool {
    let changes = entry.spec().writes == Writes::Local && !matches!(command.name, "del" | "unlink");
    !command.is_write() || command.name == "getex" || changes
}

/// Looks whether the rows a command names are there, in a view that holds their shards. None: it may run; else how its client
/// goes on, or the error it gets.
#[inline]
pub(crate) fn look(
    local: &Local,
    session: &mut Session,
    entry: &Entry,
    view: &mut View<'_>,
    command: &Command,
    args: Args<'_>,
) -> Option<Result<Flow, Error>> {
    if !reads_through(entry, command) {
        return None;
    }
    let mut tally = Tally::default();
    let mut missing = [0usize; 16];
    let mut n = 0;
    let first = session.loading.is_none();
    command.each_key(args, &mut |i, _| {
        let known = known(entry, view, args.at(i));
        tally.add(known);
        if first {
            entry.sizing.accessed(args.at(i), view.now_ms());
        }
        // Those for which there is no room are looked at when the others are there.
        if matches!(known, Known::Stale | Known::Nothing) && n < missing.len() {
            missing[n] = i;
            n += 1;
        }
    });
    if first {
        tally.count(entry);
    }
    if n == 0 {
        session.end_loading();
        return None;
    }
    let missing = missing[..n].iter().map(|i| args.at(*i));
    miss(local, session, entry, view, missing)
}

/// Some rows are not there.
#[cold]
fn miss<'a>(
    local: &Local,
    session: &mut Session,
    entry: &Entry,
    view: &mut View<'_>,
    missing: impl Iterator<Item = &'a [u8]> + Clone,
) -> Option<Result<Flow, Error>> {
    let keys: Vec<(&Entry, &[u8])> = missing.map(|key| (entry, key)).collect();
    let waits = wait(local, session, &keys)?;
    let all_stale = keys.iter().all(|(entry, key)| known(entry, view, key) == Known::Stale);
    if waits.is_err() && all_stale {
        count(&entry.seen.stale);
        return None;
    }
    if waits.is_err() {
        count(&entry.seen.errors);
    }
    Some(waits)
}

/// Asks for rows; how the client goes on. None: none of them can exist, or it waited for nothing.
pub(super) fn wait(
    local: &Local,
    session: &mut Session,
    missing: &[(&Entry, &[u8])],
) -> Option<Result<Flow, Error>> {
    let loading = session.loading.take();
    session.loaded_since_ns = loading.as_ref().map(|loading| loading.since_ns);
    let (since_ns, tries) = loading.as_ref().map_or((local.clock_ns, 0), |l| (l.since_ns, l.tries));
    if let Some(loading) = loading {
        match loading.arrival {
            Some(Arrival::Failed(text)) => return Some(Err(Error::from(text.to_string()))),
            Some(Arrival::Gone) => return Some(Err(Error::new(GONE))),
            None if local.now_ms < loading.until_ms => {
                // Run again for another reason.
                (session.loading, session.loaded_since_ns) = (Some(loading), None);
                return Some(Ok(hold(session)));
            }
            None => return Some(Err(slow(missing))),
            Some(Arrival::Loaded) if tries >= TRIES => return Some(Err(restless(missing))),
            Some(Arrival::Loaded) => {}
        }
    }
    let mut asked = false;
    for (entry, key) in missing {
        let ticket = Some(Ticket { loop_id: local.id, client: session.id });
        let id = entry.spec().pattern.id(key).unwrap_or_default();
        match entry.source.want(id, ticket) {
            Ok(()) => asked = true,
            Err(Refusal::NoId) => {}
            Err(refusal) => return Some(Err(refused(entry, refusal))),
        }
    }
    if !asked {
        return None;
    }
    let longest = missing.iter().map(|(entry, _)| entry.spec().timeout.as_millis() as u64).max();
    let until_ms = local.now_ms + 2 * longest.unwrap_or(0) + SLACK_MS;
    session.loaded_since_ns = None;
    session.loading = Some(Loading { since_ns, until_ms, tries: tries + 1, arrival: None });
    Some(Ok(hold(session)))
}

fn hold(session: &Session) -> Flow {
    session.set_flag(flag::BLOCKED, true);
    Flow::Held(session.loading.as_ref().map_or(0, |loading| loading.until_ms))
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

/// Looks whether rows are there that a transaction or script names, and asks for those that are not.
pub(super) fn load_all(
    server: &Server,
    local: &Local,
    session: &mut Session,
    wanted: &[(Arc<Entry>, &[u8])],
) -> Option<Result<Flow, Error>> {
    let mut missing: Vec<(&Entry, &[u8])> = Vec::new();
    let mut stale = true;
    let first = session.loading.is_none();
    for (entry, key) in wanted {
        let mut view = View::locked_one(&server.keyspace, key, entry.db, local.now_ms);
        let known = known(entry, &mut view, key);
        drop(view.finish());
        if first {
            let mut tally = Tally::default();
            tally.add(known);
            tally.count(entry);
        }
        if matches!(known, Known::Stale | Known::Nothing) {
            stale &= known == Known::Stale;
            missing.push((entry, key));
        }
    }
    if missing.is_empty() {
        session.end_loading();
        return None;
    }
    match wait(local, session, &missing)? {
        Err(_) if stale => None,
        waits => Some(waits),
    }
}

/// Asks for a row nobody waits for yet, if it is not there.
pub(super) fn ask(server: &Server, local: &Local, entry: &Entry, key: &[u8]) {
    let mut view = View::locked_one(&server.keyspace, key, entry.db, local.now_ms);
    let known = known(entry, &mut view, key);
    drop(view.finish());
    if matches!(known, Known::Nothing | Known::Stale) {
        let id = entry.spec().pattern.id(key).unwrap_or_default();
        let _ = entry.source.want(id, None);
    }
}

/// What a client's write to a source's key leaves, in the view it was made in: nothing, or what it wrote, for as long as an item
/// lives.
#[cold]
pub(crate) fn after_write(entry: &Entry, view: &mut View<'_>, command: &Command, args: Args<'_>) {
    let now_ms = view.now_ms();
    let gone = entry.source.is_removed();
    command.each_key(args, &mut |i, _| {
        let key = args.at(i);
        if gone || entry.spec().writes == Writes::Evict && command.name != "getex" {
            view.remove(key);
        } else if view.expire_ms(key) == Some(None) {
            view.set_expire(key, Some(entry.expire_ms(key, now_ms)));
        }
        if command.name != "getex" {
            // It is not what the row was at that time.
            view.forget_changed(key);
            view.select(entry.absent_db());
            view.remove(key);
            view.select(entry.db);
        }
    });
}

/// Before a client's write: what is being loaded of its keys is older than that.
#[cold]
pub(crate) fn before_write(entry: &Entry, command: &Command, args: Args<'_>) {
    if command.name == "getex" {
        return;
    }
    command.each_key(args, &mut |i, _| {
        let id = entry.spec().pattern.id(args.at(i)).unwrap_or_default();
        entry.source.marks.mark([id].into_iter());
    });
}
