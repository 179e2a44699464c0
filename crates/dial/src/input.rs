//! Bytes that have arrived and were not read yet.

/// Least room for one read.
const ROOM: usize = 64 << 10;
/// Most room that is kept while nothing is in it.
const KEPT: usize = 16 << 20;

/// A buffer: bytes `start..end` of `room` have arrived.
#[derive(Default)]
pub struct Input {
    room: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    pub fn held(&self) -> &[u8] {
        &self.room[self.start..self.end]
    }

    /// Room behind the held bytes. O(1) per byte that arrives: they move only to where as many were dropped,
    /// or when the room doubles.
    pub fn room(&mut self) -> &mut [u8] {
        if self.room.len() - self.end < ROOM && self.start >= self.end - self.start {
            self.room.copy_within(self.start..self.end, 0);
            self.end -= std::mem::take(&mut self.start);
        }
        if self.room.len() - self.end < ROOM {
            self.room.resize(self.room.len() + self.room.len().max(ROOM), 0);
        }
        &mut self.room[self.end..]
    }

    /// The first `n` bytes of the room have arrived.
    pub fn arrived(&mut self, n: usize) {
        self.end = (self.end + n).min(self.room.len());
    }

    /// Drops the first `n` of the held bytes, or all if there are less. O(1).
    pub fn drop_first(&mut self, n: usize) {
        self.start = (self.start + n).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.room.len() > KEPT {
                self.room = Vec::new();
            }
        }
    }
}
