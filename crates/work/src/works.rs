//! Long work on a loop: it is done in slices between serving clients. Keys are read at a snapshot, commits go
//! on.
//!
//! - L1: a slice ends after [`SLICE_NS`], between two batches of [`KEYS`] keys.
//! - L2: pieces of work take turns, so that a small one does not wait for a large one.
//! - L3: while CLIENT PAUSE stops writes, no commit is decided. A commit on its way stays as it is, with its
//!   snapshot open, and goes on when the pause ends. Work that has not begun to commit gives its place to
//!   those that wait, and runs again.

use crate::lines::Lines;
use crate::pause::Pause;
use crate::piece::{Piece, Post, Tray};
use crate::snapshots::Snapshots;
use crate::worker::Workers;
use keyspace::Keyspace;
use observe::Observe;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use stdx::budget::Budget;
use stdx::turns::Turns;

/// Time that a slice may take.
pub const SLICE_NS: u64 = 50_000;
/// Keys read or committed at a stretch, some 10 µs.
pub const KEYS: usize = 32;

/// The part of the server that the long work of all loops shares.
pub struct Work {
    pub keyspace: Arc<Keyspace>,
    pub workers: Workers,
    /// Jobs and scripts take turns.
    pub turns: Arc<Turns>,
    /// Counters and logs, and the rank of each thread.
    pub observe: Arc<Observe>,
    /// Snapshots that are open, and work that waits for a place.
    pub snapshots: Snapshots,
    /// Long writes that lost to each other.
    pub lines: Arc<Lines>,
    pub pause: Pause,
    /// Writers that are refused because another server is followed.
    pub follows: crate::follows::Follows,
    /// Memory that work may hold beside the data.
    pub budget: Arc<Budget>,
    pub post: Post,
}

impl Work {
    /// Makes the work, without threads yet. `post` sends letters to the loops.
    pub fn start(
        keyspace: Arc<Keyspace>,
        turns: Arc<Turns>,
        observe: Arc<Observe>,
        budget: Arc<Budget>,
        post: Post,
    ) -> Arc<Work> {
        let work = Arc::new(Work {
            workers: Workers::start(keyspace.clone(), turns.clone(), observe.crowd.clone(), post.clone()),
            snapshots: Snapshots::new(keyspace.clone(), post.clone()),
            lines: Lines::new(post.clone()),
            pause: Pause::new(keyspace.clone()),
            follows: crate::follows::Follows::default(),
            keyspace,
            turns,
            observe,
            budget,
            post,
        });
        let weak = Arc::downgrade(&work);
        work.keyspace.on_snapshot_closed(move || {
            if let Some(work) = weak.upgrade() {
                work.snapshots.closed();
            }
        });
        work
    }
}

/// The work of one loop.
#[derive(Default)]
pub struct Works {
    queue: VecDeque<Box<dyn Piece>>,
    /// Pieces that CLIENT PAUSE holds (L3), and since when (monotonic clock).
    paused: Vec<(u64, Box<dyn Piece>)>,
    /// Work that waits for a place, by its ticket (`snapshots/places.rs`).
    waiting: BTreeMap<u64, Box<dyn Piece>>,
    /// An empty tray for the next slice.
    tray: Tray,
}

impl Works {
    /// True if there is something to do now.
    #[inline]
    pub fn any(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Adds a piece behind all others (L2).
    #[inline]
    pub fn push(&mut self, piece: Box<dyn Piece>) {
        self.queue.push_back(piece);
    }

    /// Adds a piece that keeps its place for the rest of a slice (L2).
    pub fn push_front(&mut self, piece: Box<dyn Piece>) {
        self.queue.push_front(piece);
    }

    /// The next piece in turn.
    pub fn pop(&mut self) -> Option<Box<dyn Piece>> {
        self.queue.pop_front()
    }

    /// Keeps a write until CLIENT PAUSE ends.
    pub fn pause(&mut self, work: &Work, piece: Box<dyn Piece>) {
        work.pause.held.fetch_add(1, Relaxed);
        self.paused.push((stdx::clock::mono_ns(), piece));
    }

    /// Goes on with the pieces that CLIENT PAUSE held, if they may or have to. `stopped` says that the pause
    /// goes on. O(pieces held).
    pub fn resume(&mut self, work: &Work, stopped: bool) {
        if self.paused.is_empty() {
            return;
        }
        let now_ns = stdx::clock::mono_ns();
        for (since_ns, mut piece) in std::mem::take(&mut self.paused) {
            if stopped && !piece.is_useless() && !piece.gives_way() {
                self.paused.push((since_ns, piece));
                continue;
            }
            work.pause.held.fetch_sub(1, Relaxed);
            piece.spent().into_iter().for_each(|spent| spent.pause_ns += now_ns.saturating_sub(since_ns));
            self.push(piece);
        }
    }

    /// Keeps a piece that waits for a place.
    pub fn wait(&mut self, ticket: u64, piece: Box<dyn Piece>) {
        self.waiting.insert(ticket, piece);
    }

    /// The piece that waits with that ticket.
    pub(crate) fn take_waiting(&mut self, ticket: u64) -> Option<Box<dyn Piece>> {
        self.waiting.remove(&ticket)
    }

    /// Whether something waits with that ticket.
    pub fn waits(&self, ticket: u64) -> bool {
        self.waiting.contains_key(&ticket)
    }

    /// Takes out the pieces that wait for a place and are of no use any more. O(pieces that wait).
    pub(crate) fn take_useless(&mut self) -> Vec<(u64, Box<dyn Piece>)> {
        let useless = self.waiting.iter().filter(|(_, piece)| piece.is_useless());
        let tickets: Vec<u64> = useless.map(|(ticket, _)| *ticket).collect();
        tickets.into_iter().filter_map(|ticket| Some((ticket, self.waiting.remove(&ticket)?))).collect()
    }

    /// Number of pieces of work, and of those that wait for a snapshot.
    pub fn load(&self) -> (usize, usize) {
        (self.queue.len(), self.waiting.len())
    }

    /// An empty tray.
    pub(crate) fn take_tray(&mut self) -> Tray {
        std::mem::take(&mut self.tray)
    }

    /// Gives the tray back, empty.
    pub(crate) fn put_tray(&mut self, tray: Tray) {
        self.tray = tray;
    }
}
