//! A queue of letters for one thread that sleeps elsewhere, and a bell that wakes it.
//!
//! ```text
//! sender:   put the letter in ──► rung? no: set it, ring
//! receiver: rung? clear it, silence the bell, take the letters ──► sleeps only while not rung
//! ```
//!
//! - M1: letters of one sender arrive in order.
//! - M2: the bell is rung only when the receiver may be asleep: once per batch, not once per letter.
//! - M3: the receiver must look at `is_rung` before it sleeps, and sleep only until the bell rings. Then no letter is left
//!   lying: either its sender rang after the receiver last took letters, or the flag is still set.
//! - M4: a sender that was held up may ring after its letter was taken. So the bell must wake once each time it is rung,
//!   not as long as nobody silences it.
//!
//! `tests/models` runs this file, and broken variants of it, in every order of its steps.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

/// What wakes the receiver.
pub trait Bell {
    /// Wakes the receiver, or keeps it from falling asleep.
    fn ring(&self);
    /// Takes back what was rung so far.
    fn silence(&self);
}

/// See the module.
pub struct Letterbox<T, B> {
    queue: Mutex<Vec<T>>,
    rung: AtomicBool,
    bell: B,
}

impl<T, B: Bell> Letterbox<T, B> {
    pub fn new(bell: B) -> Letterbox<T, B> {
        Letterbox { queue: Mutex::new(Vec::new()), rung: AtomicBool::new(false), bell }
    }

    /// Never blocks for longer than another letter takes to be put in.
    pub fn send(&self, letter: T) {
        self.queue.lock().push(letter);
        if !self.rung.swap(true, Ordering::AcqRel) {
            self.bell.ring();
        }
    }

    /// True if there may be letters: the receiver must not sleep (M3).
    pub fn is_rung(&self) -> bool {
        self.rung.load(Ordering::Acquire)
    }

    /// Takes all letters; for the receiver itself.
    pub fn drain(&self, into: &mut Vec<T>) {
        if self.rung.swap(false, Ordering::AcqRel) {
            self.bell.silence();
            into.append(&mut self.queue.lock());
        }
    }

    pub fn bell(&self) -> &B {
        &self.bell
    }
}
