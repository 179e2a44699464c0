//! A queue of letters for one thread, with a bell that wakes it.
//!
//! ```text
//! sender:   put the letter in ──► rung? no: set it, ring
//! receiver: rung? clear it, silence the bell, take the letters ──► sleeps only while not rung
//! ```
//!
//! - M1: letters of one sender arrive in order.
//! - M2: the bell is rung only when the receiver may be asleep: once per batch, not per letter.
//! - M3: the receiver looks at `is_rung` before it sleeps, and sleeps only until the bell rings. So no letter
//!   is missed: its sender rang after the last `drain`, or the flag is still set.
//! - M4: a delayed sender may ring after its letter was taken. So the bell must wake once per ring, not until
//!   it is silenced.
//!
//! `tests/models` runs this file, and broken variants of it, in every order of its steps.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

/// Wakes the receiver.
pub trait Bell {
    /// Wakes the receiver, or keeps it from falling asleep.
    fn ring(&self);
    /// Cancels earlier rings.
    fn silence(&self);
}

/// A queue of letters for one receiver. See the module.
pub struct Letterbox<T, B> {
    queue: Mutex<Vec<T>>,
    rung: AtomicBool,
    bell: B,
}

impl<T, B: Bell> Letterbox<T, B> {
    pub fn new(bell: B) -> Letterbox<T, B> {
        Letterbox { queue: Mutex::new(Vec::new()), rung: AtomicBool::new(false), bell }
    }

    /// Adds a letter and wakes the receiver. Waits at most for another sender to add its letter.
    pub fn send(&self, letter: T) {
        self.queue.lock().push(letter);
        if !self.rung.swap(true, Ordering::AcqRel) {
            self.bell.ring();
        }
    }

    /// Whether there may be letters; then the receiver must not sleep (M3).
    pub fn is_rung(&self) -> bool {
        self.rung.load(Ordering::Acquire)
    }

    /// Takes all letters. Only the receiver may call it.
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
