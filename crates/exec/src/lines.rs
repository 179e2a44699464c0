//! Lines: long writes that lose to each other go one after the other.
//!
//! Long work runs beside everything else, and runs again if what it read was changed meanwhile. Ten clients that all have one
//! list changed in its middle would lose to each other, nine times out of ten at first. So who lost a race stands in the
//! line of its kind, which is the same command or script with the same first key, and so does who comes while there is one.
//!
//! ```text
//! a race is lost ─┐                  ┌─ first ──► snapshot, thread, commit (job.rs) ──► answered: the next is first
//!  comes after it ┴─► a line of them ┴─ waits, holding nothing
//! ```
//!
//! - Q1: different work on the same keys races as ever: nobody's short write waits for somebody's long one.
//! - Q2: who waits holds nothing, no snapshot, no thread and no lock, and the first waits for nobody in a line. So no two
//!   wait for each other.
//! - Q3: the first gives up its place when it is answered, at the latest when it is dropped. One that has been first for
//!   [`FIRST_NS`] while others wait is first no more: it may never end, and the next races with it.
//! - Q4: a line nobody waits in ends with its first.
//! - Q5: who waited is told for how long, and who was first when it came.
//! - Q6: where there is no line, asking costs one load; else O(1), and O(n) for a first key of n bytes.

use crate::Server;
use crate::bulk::BulkJob;
use crate::job::Job;
use crate::mail::Mail;
use crate::scripts::ScriptJob;
use crate::waits::Queued;
use crate::waits::Spent;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use stdx::hash::hash_bytes;

/// A long write.
pub enum Write {
    Job(Box<Job>),
    Script(Box<ScriptJob>),
    Bulk(Box<BulkJob>),
}

impl Write {
    /// Which line it would stand in, if in any.
    fn kind(&self) -> Option<u64> {
        match self {
            Write::Job(job) => job.kind(),
            Write::Script(job) => job.kind(),
            Write::Bulk(job) => Some(job.kind()),
        }
    }

    /// Its client, its command and its loop.
    fn who(&self) -> (u64, &'static str, usize) {
        match self {
            Write::Job(job) => (job.client, job.body.command(), job.loop_id),
            Write::Script(job) => job.who(),
            Write::Bulk(job) => job.who(),
        }
    }

    fn spent(&mut self) -> &mut Spent {
        match self {
            Write::Job(job) => &mut job.spent,
            Write::Script(job) => &mut job.spent,
            Write::Bulk(job) => &mut job.spent,
        }
    }

    fn place(&mut self) -> &mut Option<Place> {
        match self {
            Write::Job(job) => &mut job.place,
            Write::Script(job) => &mut job.place,
            Write::Bulk(job) => &mut job.place,
        }
    }
}

/// See the module.
#[derive(Default)]
pub struct Lines {
    count: AtomicUsize,
    /// Works that wait in all of them.
    waiting: AtomicUsize,
    /// Works that were first so far.
    firsts: AtomicU64,
    lines: Mutex<HashMap<u64, Line>>,
}

struct Line {
    /// Who is first: its client, its command, and since when it is.
    first: (u64, &'static str, u64),
    /// Which of all that were first in a line.
    number: u64,
    waiting: VecDeque<Write>,
}

/// The first place of a line; given up when dropped.
pub struct Place {
    server: Weak<Server>,
    line: u64,
    number: u64,
}

/// How long one is first while others wait (Q3).
const FIRST_NS: u64 = 5_000_000_000;

/// What works of one kind have in common: a command's name or a script's digest, a database, and a key.
pub(crate) fn kind(name: &[u8], db: usize, key: Option<&[u8]>) -> u64 {
    // Two kinds of one number would share a line: rare, and harmless.
    let key = key.map_or(0, |key| hash_bytes(key).rotate_left(1 + db as u32 % 61));
    hash_bytes(name) ^ key
}

impl Lines {
    /// Works that stand in lines and wait: at most one a client.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

/// Lets work pass that is about to open its snapshot, unless it has to wait in the line of its kind: then it comes back by
/// [`Mail::First`]. `lost`: it has lost a race, and opens a line if there is none.
pub(crate) fn stand(server: &Arc<Server>, mut write: Write, lost: bool) -> Option<Write> {
    if !lost && server.lines.count.load(Ordering::Relaxed) == 0 || write.place().is_some() {
        return Some(write);
    }
    let Some(kind) = write.kind() else { return Some(write) };
    let now_ns = stdx::clock::mono_ns();
    let mut lines = server.lines.lines.lock();
    match lines.get_mut(&kind) {
        Some(line) => {
            let (client, command, since_ns) = line.first;
            let behind = (client, command, now_ns.saturating_sub(since_ns));
            write.spent().line = Some(Queued::new(now_ns, Some(behind)));
            line.waiting.push_back(write);
            server.lines.waiting.fetch_add(1, Ordering::Relaxed);
            None
        }
        None if lost => {
            let (client, command, _) = write.who();
            let number = server.lines.firsts.fetch_add(1, Ordering::Relaxed);
            let first = (client, command, now_ns);
            lines.insert(kind, Line { first, number, waiting: VecDeque::new() });
            server.lines.count.store(lines.len(), Ordering::Relaxed);
            *write.place() = Some(Place { server: Arc::downgrade(server), line: kind, number });
            Some(write)
        }
        None => Some(write),
    }
}

impl Line {
    /// Makes the next the first, if one waits.
    fn advance(&mut self, server: &Arc<Server>, kind: u64) -> Option<Write> {
        let mut next = self.waiting.pop_front()?;
        server.lines.waiting.fetch_sub(1, Ordering::Relaxed);
        let (client, command, _) = next.who();
        self.first = (client, command, stdx::clock::mono_ns());
        self.number = server.lines.firsts.fetch_add(1, Ordering::Relaxed);
        *next.place() = Some(Place { server: Arc::downgrade(server), line: kind, number: self.number });
        Some(next)
    }
}

/// Lets the next go on where one has been first for long (Q3). Called now and then. Cost: O(lines).
pub fn tend(server: &Arc<Server>, now_ns: u64) {
    if server.lines.count.load(Ordering::Relaxed) == 0 {
        return;
    }
    let mut lines = server.lines.lines.lock();
    let old = |line: &Line| now_ns.saturating_sub(line.first.2) >= FIRST_NS;
    let late = lines.iter_mut().filter(|(_, line)| old(line));
    let next: Vec<Write> = late.filter_map(|(kind, line)| line.advance(server, *kind)).collect();
    drop(lines);
    next.into_iter().for_each(|write| server.send(write.who().2, Mail::First(write)));
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(server) = self.server.upgrade() else { return };
        let mut lines = server.lines.lines.lock();
        let Some(line) = lines.get_mut(&self.line).filter(|line| line.number == self.number) else { return };
        let Some(next) = line.advance(&server, self.line) else {
            lines.remove(&self.line);
            return server.lines.count.store(lines.len(), Ordering::Relaxed);
        };
        drop(lines);
        server.send(next.who().2, Mail::First(next));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_a_name_a_database_and_a_key() {
        let all = [
            kind(b"linsert", 0, Some(b"a")),
            kind(b"linsert", 0, Some(b"b")),
            kind(b"linsert", 1, Some(b"a")),
            kind(b"lrem", 0, Some(b"a")),
            kind(b"linsert", 0, None),
        ];
        let different: std::collections::HashSet<u64> = all.into_iter().collect();
        assert_eq!(different.len(), all.len());
        assert_eq!(kind(b"lrem", 0, Some(b"a")), all[3]);
    }
}
