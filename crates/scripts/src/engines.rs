//! The engines of the threads that run scripts, and the memory they hold.

use super::{Code, LuaState};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// The engines of threads, and the bytes they hold: for scripts, and for functions.
#[derive(Default)]
pub(super) struct Engines {
    pub(super) scripts: AtomicU64,
    pub(super) functions: AtomicU64,
    all: Mutex<Vec<Weak<Mutex<Station>>>>,
}

/// The engine of a thread. The thread has it locked while it works, and others may tidy it at other times.
pub(super) struct Station {
    pub(super) lua: LuaState,
    share: Share,
}

impl Station {
    pub(super) fn count(&mut self) {
        self.share.set(self.lua.bytes());
    }
}

impl Engines {
    /// An engine for a thread.
    pub(super) fn add(self: &Arc<Engines>, code: &Arc<Code>) -> Arc<Mutex<Station>> {
        let share = Share { of: self.clone(), bytes: (0, 0) };
        let station = Arc::new(Mutex::new(Station { lua: LuaState::new(code.clone()), share }));
        let mut all = self.all.lock();
        all.retain(|station| station.strong_count() > 0);
        all.push(Arc::downgrade(&station));
        station
    }

    /// Makes engines of idle threads heed the requests to all engines. The others do so after their current
    /// run.
    pub(super) fn heed(&self) {
        let all: Vec<_> = self.all.lock().iter().filter_map(Weak::upgrade).collect();
        for station in all {
            if let Some(mut station) = station.try_lock() {
                station.lua.heed();
                station.count();
            }
        }
        stdx::reclaim::flush();
    }
}

/// One thread's part of the bytes, until it ends.
struct Share {
    of: Arc<Engines>,
    bytes: (u64, u64),
}

impl Share {
    fn set(&mut self, (scripts, functions): (usize, usize)) {
        let (old, new) = (self.bytes, (scripts as u64, functions as u64));
        self.of.scripts.fetch_add(new.0.wrapping_sub(old.0), Ordering::Relaxed);
        self.of.functions.fetch_add(new.1.wrapping_sub(old.1), Ordering::Relaxed);
        self.bytes = new;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set((0, 0));
    }
}
