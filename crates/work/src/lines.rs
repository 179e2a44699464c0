//! Lines: long writes that lose to each other go one after the other.
//!
//! Long work runs beside everything else, and runs again if the keys it read were changed meanwhile. Ten
//! clients that change one list in its middle would lose to each other, nine times out of ten at the start.
//! So work that lost a race stands in the line of its kind: the same command or script with the same first
//! key. Work that comes while there is a line stands in it, too.
//!
//! ```text
//! a race is lost ─┐                  ┌─ first ──► snapshot, thread, commit (attempt) ──► answered: the next is first
//!  comes after it ┴─► a line of them ┴─ waits, holding nothing
//! ```
//!
//! - Q1: different work on the same keys races. So no short write waits for a long one of another kind.
//! - Q2: waiting work holds nothing: no snapshot, no thread and no lock. The first of a line waits for nobody
//!   in a line. So no two works wait for each other.
//! - Q3: the first gives up its place when it is answered, at the latest when it is dropped. Work that has
//!   been first for [`FIRST_NS`] while others wait is first no more: it may never end, and the next one races
//!   with it.
//! - Q4: a line in which no work waits ends with its first.
//! - Q5: work that waited is told for how long, and which work was first when it came.
//! - Q6: where there is no line, asking costs one load; else O(1), and O(n) for a first key of n bytes.

use crate::attempt::Long;
use crate::piece::{Letter, Piece, Post};
use observe::waits::Queued;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use stdx::hash::hash_bytes;

/// See the module.
pub struct Lines {
    count: AtomicUsize,
    /// Works that wait in all of them.
    waiting: AtomicUsize,
    /// Works that were first so far.
    firsts: AtomicU64,
    lines: Mutex<HashMap<u64, Line>>,
    post: Post,
}

struct Line {
    /// The first: its client, its command, and the time since when it is.
    first: (u64, &'static str, u64),
    /// Its number among all that were first in a line.
    number: u64,
    waiting: VecDeque<Box<dyn Piece>>,
}

/// The first place of a line; given up when dropped.
pub struct Place {
    lines: Weak<Lines>,
    line: u64,
    number: u64,
}

/// The time for which a work is first while others wait (Q3).
const FIRST_NS: u64 = 5_000_000_000;

/// The number of a line: a command's name or a script's digest, a database, and a key.
pub fn kind(name: &[u8], db: usize, key: Option<&[u8]>) -> u64 {
    // Two kinds of one number would share a line: rare, and harmless.
    let key = key.map_or(0, |key| hash_bytes(key).rotate_left(1 + db as u32 % 61));
    hash_bytes(name) ^ key
}

impl Lines {
    /// No lines yet. `post` tells a loop whose work is first.
    pub fn new(post: Post) -> Arc<Lines> {
        Arc::new(Lines {
            count: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            firsts: AtomicU64::new(0),
            lines: Mutex::default(),
            post,
        })
    }

    /// Number of works that wait in lines, at most one a client.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Lets work pass that is about to open its snapshot, unless it has to wait in the line of its kind.
    /// Waiting work comes back by [`Letter::First`]. Work that has lost a race opens a line if there is none.
    pub fn stand<L: Long>(self: &Arc<Lines>, mut work: Box<L>) -> Option<Box<L>> {
        let attempt = work.attempt();
        let lost = attempt.races.lost > 0;
        if !lost && self.count.load(Ordering::Relaxed) == 0 || attempt.place.is_some() {
            return Some(work);
        }
        let Some(kind) = work.kind() else { return Some(work) };
        let now_ns = stdx::clock::mono_ns();
        let mut lines = self.lines.lock();
        match lines.get_mut(&kind) {
            Some(line) => {
                let (client, command, since_ns) = line.first;
                let behind = (client, command, now_ns.saturating_sub(since_ns));
                work.attempt_mut().spent.line = Some(Queued::new(now_ns, Some(behind)));
                line.waiting.push_back(work);
                self.waiting.fetch_add(1, Ordering::Relaxed);
                None
            }
            None if lost => {
                let who = work.attempt().who;
                let number = self.firsts.fetch_add(1, Ordering::Relaxed);
                let first = (who.client, who.command, now_ns);
                lines.insert(kind, Line { first, number, waiting: VecDeque::new() });
                self.count.store(lines.len(), Ordering::Relaxed);
                work.attempt_mut().place = Some(self.place(kind, number));
                Some(work)
            }
            None => Some(work),
        }
    }

    fn place(self: &Arc<Lines>, line: u64, number: u64) -> Place {
        Place { lines: Arc::downgrade(self), line, number }
    }

    /// Makes the next of a line the first, if one waits.
    fn advance(self: &Arc<Lines>, line: &mut Line, kind: u64) -> Option<Box<dyn Piece>> {
        let mut next = line.waiting.pop_front()?;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        let who = next.who();
        line.first = (who.client, who.command, stdx::clock::mono_ns());
        line.number = self.firsts.fetch_add(1, Ordering::Relaxed);
        next.stands_first(self.place(kind, line.number));
        Some(next)
    }

    /// Lets the next go on where a work has been first for long (Q3). Called now and then. Cost: O(lines).
    pub fn tend(self: &Arc<Lines>, now_ns: u64) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut lines = self.lines.lock();
        let old = |line: &Line| now_ns.saturating_sub(line.first.2) >= FIRST_NS;
        let late = lines.iter_mut().filter(|(_, line)| old(line));
        let next: Vec<_> = late.filter_map(|(kind, line)| self.advance(line, *kind)).collect();
        drop(lines);
        next.into_iter().for_each(|next| self.send(next));
    }

    /// Sends the first of a line to its loop.
    fn send(&self, first: Box<dyn Piece>) {
        (self.post)(first.who().loop_id, Letter::First(first));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(all) = self.lines.upgrade() else { return };
        let mut lines = all.lines.lock();
        let Some(line) = lines.get_mut(&self.line).filter(|line| line.number == self.number) else { return };
        let Some(next) = all.advance(line, self.line) else {
            lines.remove(&self.line);
            return all.count.store(lines.len(), Ordering::Relaxed);
        };
        drop(lines);
        all.send(next);
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
