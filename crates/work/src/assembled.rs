//! A long reply that stands in memory, with large values in it that are written only as its client reads
//! them.
//!
//! ```text
//!   bytes  ───────┬──────────────┬────►  sent piece by piece, as the socket drains
//!   streams       └─ a large value, kept as an O(1) clone, at its place
//! ```
//!
//! - A1: its bytes, and the values that its streams keep alive, count like those of any streamed reply
//!   (`snapshots.rs` P3). A client that does not read it is cut off when they are too many or too old. They
//!   are not memory of work (`work-max-memory`) any more.
//! - A2: its bytes count to `client-output-buffer-limit`, as they would if the reply were written at once.
//!
//! Cost: O(1) a piece, besides copying it.

use command::{Held, Stream};
use observe::ClientInfo;
use resp::Reply;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use stdx::budget::Share;

/// Largest number of streams that are told at a time. Those behind are told in their turn.
const TOLD: usize = 64;
/// Bytes of a reply up to which it is handed over as it is.
const SHORT: usize = 64 << 10;
/// Bytes that are handed over at once.
const FIRST: usize = 16 << 10;

/// Rests of replies, each with its place in the bytes.
pub type Rests = VecDeque<(usize, Box<dyn Stream>)>;

/// See the module.
struct Assembled {
    bytes: Vec<u8>,
    read: usize,
    rests: Rests,
    info: Option<Arc<ClientInfo>>,
}

/// A reply as it is handed to its client: the bytes written at once, and the rest. `share` is the memory that
/// its bytes held while they were made.
pub fn assemble(
    bytes: Vec<u8>,
    rests: Rests,
    share: Option<Share>,
    info: Option<&Arc<ClientInfo>>,
) -> (Vec<u8>, Option<Box<dyn Stream>>) {
    drop(share);
    let told = |bytes: u64| info.into_iter().for_each(|info| info.work_bytes.store(bytes, Relaxed));
    if rests.is_empty() && bytes.len() <= SHORT {
        told(0);
        return (bytes, None);
    }
    told(bytes.len() as u64);
    let mut assembled = Assembled { bytes, read: 0, rests, info: info.cloned() };
    let mut first = Reply::new(false);
    match assembled.fill(&mut first, FIRST) {
        true => (first.into_bytes(), Some(Box::new(assembled))),
        false => (first.into_bytes(), None),
    }
}

impl Stream for Assembled {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let end = out.len().saturating_add(room.max(1));
        loop {
            let to = self.rests.front().map_or(self.bytes.len(), |(at, _)| *at);
            let count = (to - self.read).min(end.saturating_sub(out.len()));
            out.encoded(&self.bytes[self.read..self.read + count]);
            self.read += count;
            match self.rests.front_mut() {
                _ if self.read < to => return true,
                None => return false,
                Some(_) if out.len() >= end => return true,
                Some((_, rest)) => {
                    if rest.fill(out, end - out.len()) {
                        return true;
                    }
                    self.rests.pop_front();
                }
            }
        }
    }

    fn holds(&self, held: &mut dyn FnMut(Held)) {
        // A1.
        held(Held::own(self, self.bytes.capacity().max(1)));
        self.rests.iter().take(TOLD).for_each(|(_, rest)| rest.holds(held));
    }

    /// A2.
    fn unsent_bytes(&self) -> usize {
        self.bytes.len() - self.read
    }
}

impl Drop for Assembled {
    fn drop(&mut self) {
        self.info.iter().for_each(|info| info.work_bytes.store(0, Relaxed));
        let bytes = std::mem::take(&mut self.bytes);
        if bytes.capacity() > SHORT {
            crate::job::discard(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A byte, so many times, in pieces.
    struct Run(u8, usize);

    impl Stream for Run {
        fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
            let count = self.1.min(room);
            out.encoded(&vec![self.0; count]);
            self.1 -= count;
            self.1 > 0
        }
    }

    #[test]
    fn rests_come_to_stand_at_their_places() {
        for room in [1, 7, 100, 5_000, 1 << 20] {
            let (mut bytes, mut rests, mut whole) = (Vec::new(), Rests::new(), Vec::new());
            for i in 0..40usize {
                let own = format!("+{i}\r\n").repeat(i % 4 * 300);
                bytes.extend_from_slice(own.as_bytes());
                whole.extend_from_slice(own.as_bytes());
                let (byte, count) = (b'a' + (i % 26) as u8, [1, 500, 30_000][i % 3]);
                rests.push_back((bytes.len(), Box::new(Run(byte, count)) as Box<dyn Stream>));
                whole.extend(std::iter::repeat_n(byte, count));
            }
            let (first, rest) = assemble(bytes, rests, None, None);
            let mut out = Reply::with_buffer(first, false);
            let mut rest = rest.expect("there is more");
            let mut before = out.len();
            while rest.fill(&mut out, room) {
                assert!(out.len() <= before + room, "room {room}");
                before = out.len();
            }
            assert!(out.as_bytes() == whole, "room {room}");
        }
    }
}
