//! Replies of several values: short ones at once, long ones as the socket drains.

use crate::{Held, Stream};
use resp::Reply;

/// The long value that is being written, if one is.
#[derive(Default)]
pub struct Open(Option<Box<dyn Stream>>);

impl Open {
    /// Writes values as long as there is room; false when there are no more. `next` writes one and gives what
    /// is left of it if it is long, or None if there is none.
    pub fn fill(
        &mut self,
        out: &mut Reply,
        room: usize,
        mut next: impl FnMut(&mut Reply) -> Option<Option<Box<dyn Stream>>>,
    ) -> bool {
        let end = out.len().saturating_add(room);
        while out.len() < end {
            match &mut self.0 {
                Some(long) => {
                    if !long.fill(out, end - out.len()) {
                        self.0 = None;
                    }
                }
                None => match next(out) {
                    None => return false,
                    Some(long) => self.0 = long,
                },
            }
        }
        true
    }

    /// Names the values that the reply being written keeps alive.
    pub fn holds(&self, held: &mut dyn FnMut(Held)) {
        self.0.iter().for_each(|long| long.holds(held));
    }
}
