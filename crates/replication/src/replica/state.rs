//! The link, as others see and stop it.

use super::Position;
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The progress of the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// It waits before it tries again.
    #[default]
    Down,
    Connecting,
    Handshake,
    /// The file of a snapshot is on its way, or is loaded.
    Sync,
    Connected,
}

/// The outcome of a wish that the other server, a replica of this one, is to lead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HandOver {
    /// There is no such wish.
    #[default]
    No,
    Wanted,
    Done,
    /// It refused, and leads not.
    Refused(String),
}

/// The figures of INFO and ROLE.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    pub phase: Phase,
    /// Why the link is down.
    pub error: Option<String>,
    /// Since when it is down (milliseconds since 1970); 0: it never was up.
    pub down_since_ms: u64,
    /// When the primary was last heard (milliseconds since 1970).
    pub heard_ms: u64,
    /// Bytes of the file: in all, if that is known, and read so far.
    pub total_bytes: Option<u64>,
    pub read_bytes: u64,
    pub position: Option<Position>,
    pub full_syncs: u64,
    pub partial_syncs: u64,
    pub hand_over: HandOver,
}

/// See the module.
#[derive(Default)]
pub struct State {
    figures: Mutex<Figures>,
    /// When the primary was last heard, and bytes of the file read so far.
    heard_ms: AtomicU64,
    read_bytes: AtomicU64,
    stops: AtomicBool,
    /// Whether the thread is changing the data.
    busy: Mutex<bool>,
    idle: Condvar,
}

impl State {
    /// A link that goes on from there, to a server that is told to lead first if it `hands_over`.
    pub(super) fn new(from: Option<Position>, hands_over: bool) -> State {
        let state = State::default();
        let hand_over = if hands_over { HandOver::Wanted } else { HandOver::No };
        state.change(|figures| (figures.position, figures.hand_over) = (from, hand_over));
        state
    }

    /// The figures now. O(1)
    pub fn figures(&self) -> Figures {
        let figures = self.figures.lock().clone();
        let heard_ms = self.heard_ms.load(Ordering::Relaxed);
        Figures { heard_ms, read_bytes: self.read_bytes.load(Ordering::Relaxed), ..figures }
    }

    /// Whether the link is to end.
    pub fn is_stopped(&self) -> bool {
        self.stops.load(Ordering::Acquire)
    }

    /// Notes that the primary was heard.
    pub fn heard(&self) {
        self.heard_ms.store(stdx::clock::wall_ms(), Ordering::Relaxed);
    }

    /// Milliseconds since the primary was heard.
    pub fn silent_ms(&self) -> u64 {
        stdx::clock::wall_ms().saturating_sub(self.heard_ms.load(Ordering::Relaxed))
    }

    pub(super) fn read(&self, bytes: u64) {
        self.read_bytes.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Figures) -> T) -> T {
        change(&mut self.figures.lock())
    }

    pub(super) fn position(&self) -> Option<Position> {
        self.figures.lock().position.clone()
    }

    /// Runs something that changes the data, unless the link was stopped before. None: it was.
    pub(super) fn busy<T>(&self, run: impl FnOnce() -> T) -> Option<T> {
        {
            let mut busy = self.busy.lock();
            if self.is_stopped() {
                return None;
            }
            *busy = true;
        }
        let result = run();
        *self.busy.lock() = false;
        self.idle.notify_all();
        Some(result)
    }

    /// Stops the link, and waits until nothing of it changes the data.
    pub(super) fn stop(&self) {
        let mut busy = self.busy.lock();
        self.stops.store(true, Ordering::Release);
        while *busy {
            self.idle.wait(&mut busy);
        }
    }
}
