// The base of `record.rs` and `sequence.rs`, played: each thread has a slot and a ring, as `tell.rs` and
// `order.rs` of the crate `persist` have it.

use super::rings::{self, Pool, Putter, Taker};
use super::sequence::Lsn;
use super::slots::{Seat, Slots};
use std::cell::RefCell;
use std::sync::{Arc, Mutex};

pub trait Effects: Send + Sync {}

pub type Announce = Option<Arc<dyn Effects>>;

/// Effects without words.
pub(crate) struct Something;

impl Effects for Something {}

loom::thread_local! {
    static VOICE: RefCell<Option<(Seat, Putter<()>)>> = RefCell::new(None);
}

pub(crate) struct Tell {
    pub(crate) slots: Slots,
    pool: Pool,
    /// The rings of all threads. They sit down before the model begins to look.
    takers: Mutex<Vec<Taker<()>>>,
}

impl Default for Tell {
    fn default() -> Tell {
        Tell { slots: Slots::default(), pool: Pool::new(2), takers: Mutex::default() }
    }
}

/// A slot and a ring, on their way to their thread.
pub(crate) struct Voice(Seat, Putter<()>);

impl Voice {
    /// This thread has them from now on.
    pub(crate) fn sit_down(self) {
        VOICE.with(|voice| *voice.borrow_mut() = Some((self.0, self.1)));
    }
}

impl Tell {
    pub(crate) fn voice(&self) -> Voice {
        let (putter, taker) = rings::ring(&self.pool);
        self.takers.lock().unwrap().push(taker);
        Voice(self.slots.seat(), putter)
    }

    pub(crate) fn enter(&self, last: impl FnOnce() -> Lsn) {
        VOICE.with(|voice| voice.borrow().as_ref().unwrap().0.enter(last));
    }

    pub(crate) fn leave(&self) {
        VOICE.with(|voice| voice.borrow().as_ref().unwrap().0.leave());
    }

    pub(crate) fn put(&self, lsn: Lsn) {
        VOICE.with(|voice| voice.borrow_mut().as_mut().unwrap().1.put(&self.pool, lsn, 0, &[]));
    }

    pub(crate) fn shared(&self, lsn: Lsn, _: Arc<dyn Effects>) {
        self.put(lsn);
    }

    /// What the rings have.
    pub(crate) fn take(&self) -> Vec<Lsn> {
        let mut taken = Vec::new();
        for taker in self.takers.lock().unwrap().iter_mut() {
            taker.take(&self.pool, &mut |lsn, _, _| taken.push(lsn));
        }
        taken
    }
}
