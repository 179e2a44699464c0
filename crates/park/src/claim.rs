//! The right to act for a waiting client: one word.
//!
//! ```text
//! free ──take──► taken ──give_back──► free
//!                  │ somebody brings something meanwhile
//!                  └──► missed ──give_back refused──► taken
//! ```
//!
//! - P1: between `take` and `give_back` no other thread holds it.
//! - P5: a writer that brings something and finds it taken leaves a note. The holder, which may have looked
//!   before, cannot give it back without looking once more. So nothing lies there for a client that waits.
//!
//! `tests/models` runs this file, and broken variants of it, in every order of its steps.

use stdx::sync::atomic::{AtomicU8, Ordering};

const FREE: u8 = 0;
const TAKEN: u8 = 1;
const MISSED: u8 = 2;

/// See the module.
pub(crate) struct Claim(AtomicU8);

impl Claim {
    pub(crate) fn new() -> Claim {
        Claim(AtomicU8::new(FREE))
    }

    /// Takes it, if it is free.
    pub(crate) fn take(&self) -> bool {
        self.0.compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Takes it for the sake of something new. If it is taken, its holder will look again (P5).
    pub(crate) fn take_or_note(&self) -> bool {
        let next = |word| Some(if word == FREE { TAKEN } else { MISSED });
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) == Ok(FREE)
    }

    /// Gives it back; false if something came meanwhile: then the holder has it still and must look again.
    pub(crate) fn give_back(&self) -> bool {
        if self.0.compare_exchange(TAKEN, FREE, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return true;
        }
        self.0.store(TAKEN, Ordering::Release);
        false
    }
}
