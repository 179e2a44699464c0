//! The bytes of a connection that have not run yet.
//!
//! A command of many megabytes comes in pieces of some kilobytes. A vector that doubles would copy all of it
//! at once, again and again, while other clients wait. So a large buffer moves to its next place bit by bit,
//! with every piece that comes:
//!
//! ```text
//! bytes: ████████████████████████████░░░░   nearly full: `next`, larger, is made
//! next:  ███████████░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░   and gets eight times as much as comes
//! ```
//!
//! - N1: `next` is a prefix of `bytes`.
//! - N2: when `bytes` is full, `next` has all of it and takes its place.
//!
//! Cost: [`Input::append`] is O(n) for n bytes, however much is there already. If a command announces its
//! size, the first move is the last.

/// Size up to which it grows as vectors do.
const SMALL: usize = 128 * 1024;
/// An announced size is believed up to this multiple of what came.
const BELIEVED: usize = 64;
/// Bytes copied for each byte that comes. Copying begins when less than 1/`PACE` of `bytes` is free.
const PACE: usize = 8;

#[derive(Default)]
pub(crate) struct Input {
    bytes: Vec<u8>,
    next: Option<Vec<u8>>,
}

impl Input {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Appends bytes. `expected`: the final length, if known, else less. Cost: O(bytes).
    pub(crate) fn append(&mut self, fresh: &[u8], expected: usize) {
        self.room(fresh.len(), expected).extend_from_slice(fresh);
    }

    /// Whether appending `n` bytes copies [`PACE`] times as many.
    pub(crate) fn moves_with(&self, n: usize) -> bool {
        let (len, capacity) = (self.bytes.len(), self.bytes.capacity());
        len + n > SMALL && (self.next.is_some() || len + n > capacity - capacity / PACE)
    }

    /// The bytes, with room for `n` more. `expected`: as for [`Input::append`].
    pub(crate) fn room(&mut self, n: usize, expected: usize) -> &mut Vec<u8> {
        let (len, capacity) = (self.bytes.len(), self.bytes.capacity());
        if len + n <= SMALL {
            if expected > capacity && expected <= SMALL {
                self.bytes.reserve_exact(expected - len);
            }
            self.bytes.reserve(n);
            return &mut self.bytes;
        }
        if self.next.is_none() && self.moves_with(n) {
            let expected = expected.min((len + n).saturating_mul(BELIEVED));
            self.next = Some(Vec::with_capacity((expected + expected / 4).max(2 * (len + n))));
        }
        self.go_on(PACE * n);
        if len + n > capacity {
            // Next to nothing is left to copy, unless much came at once.
            self.go_on(usize::MAX);
            let next = self.next.take().unwrap_or_default();
            free(std::mem::replace(&mut self.bytes, next));
            self.bytes.reserve(n);
        }
        &mut self.bytes
    }

    /// Copies the next `count` bytes to `next` (N1).
    fn go_on(&mut self, count: usize) {
        if let Some(next) = &mut self.next {
            let from = next.len();
            let to = from.saturating_add(count).min(self.bytes.len());
            next.extend_from_slice(&self.bytes[from..to]);
        }
    }

    /// Drops the first `n` bytes. Cost: O(bytes left).
    pub(crate) fn drop_front(&mut self, n: usize) {
        self.bytes.drain(..n);
        self.next.take().into_iter().for_each(free);
    }

    /// Takes the bytes up to `end`; those after it stay. Cost: O(bytes after `end`).
    pub(crate) fn take_to(&mut self, end: usize) -> Vec<u8> {
        self.next.take().into_iter().for_each(free);
        let rest = self.bytes.split_off(end);
        std::mem::replace(&mut self.bytes, rest)
    }

    /// Frees its memory.
    pub(crate) fn release(&mut self) {
        self.next.take().into_iter().for_each(free);
        free(std::mem::take(&mut self.bytes));
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.next.take().into_iter().for_each(free);
    }
}

/// Frees a buffer; a large one is freed on another thread.
fn free(buffer: Vec<u8>) {
    if buffer.capacity() > SMALL {
        stdx::reclaim::discard(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random pieces, with a known size and without, against a plain vector. The bytes copied with one piece
    /// are bounded.
    #[test]
    fn it_holds_what_came_and_never_moves_much_at_once() {
        let mut seed = 7u64;
        let mut random = move |below: usize| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as usize % below
        };
        for expected in [0, 100_000, 3_000_000, 1 << 40] {
            let (mut input, mut model) = (Input::default(), Vec::new());
            while model.len() < 5_000_000 {
                let piece: Vec<u8> = (0..1 + random(8192)).map(|i| (i * 31 + model.len()) as u8).collect();
                let (before, next) = (input.bytes.as_ptr(), input.next.as_ref().map_or(0, Vec::len));
                let full = input.len() + piece.len() > input.capacity();
                input.append(&piece, expected);
                model.extend_from_slice(&piece);
                if full && model.len() > 4 * SMALL {
                    assert_ne!(before, input.bytes.as_ptr());
                    assert!(model.len() - next <= (2 + PACE) * 8192, "much was copied at once");
                }
                if random(2000) == 0 {
                    let n = model.len() / 2 + 1;
                    input.drop_front(n);
                    model.drain(..n);
                }
                assert_eq!(input.len(), model.len());
            }
            assert!(input.bytes() == model);
            let taken = input.take_to(4_000_000);
            assert!(taken == model[..4_000_000] && input.bytes() == &model[4_000_000..]);
        }
    }

    #[test]
    fn a_size_that_is_known_is_made_room_for_once() {
        let mut input = Input::default();
        let mut moves = 0;
        for _ in 0..1000 {
            let before = input.bytes.as_ptr();
            input.append(&[7; 8192], 8_500_000);
            moves += usize::from(input.len() > SMALL && before != input.bytes.as_ptr());
        }
        assert!(moves <= 2, "{moves} moves");
    }
}
