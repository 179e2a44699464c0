//! The rings of sealed minutes, each with its share of the memory.
//!
//! | ring | sixteenths | lasts |
//! |---|---|---|
//! | seconds | 7 | a day |
//! | edges | 3 | a day |
//! | records | 3 | some 10,000 |
//! | minutes | 3 | a week |

use crate::minute::Sealed;
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes of an entry besides its own.
const ENTRY_BYTES: usize = 64;
const DAY: u64 = 24 * 60;

/// A part of one sealed minute.
#[derive(Clone)]
pub(crate) struct Part {
    pub minute: u64,
    /// Seconds in it.
    count: u8,
    pub bytes: Arc<[u8]>,
}

/// Parts of minutes, oldest first.
#[derive(Default)]
pub(crate) struct Ring {
    parts: VecDeque<Part>,
    bytes: usize,
}

impl Ring {
    /// Adds a part as the newest, and drops the oldest beyond the limit and the age.
    fn push(&mut self, part: Part, limit: usize, minutes: u64) {
        let oldest = part.minute.saturating_sub(minutes);
        self.bytes += part.bytes.len() + ENTRY_BYTES;
        self.parts.push_back(part);
        while self.bytes > limit || self.parts.front().is_some_and(|part| part.minute < oldest) {
            let Some(gone) = self.parts.pop_front() else { return };
            self.bytes -= gone.bytes.len() + ENTRY_BYTES;
        }
    }

    /// Adds a part as the oldest, if there is room.
    fn push_older(&mut self, part: Part, limit: usize, minutes: u64) {
        let newest = self.parts.back().map_or(part.minute, |newest| newest.minute);
        let bytes = part.bytes.len() + ENTRY_BYTES;
        if self.bytes + bytes <= limit && part.minute + minutes >= newest {
            self.bytes += bytes;
            self.parts.push_front(part);
        }
    }

    /// Shares of the parts of the minutes from `from` to `to`, both included. O(parts)
    pub fn between(&self, from: u64, to: u64) -> Vec<Part> {
        self.parts.iter().filter(|part| (from..=to).contains(&part.minute)).cloned().collect()
    }

    /// The first minute that it has.
    pub fn oldest(&self) -> Option<u64> {
        self.parts.iter().map(|part| part.minute).min()
    }
}

#[derive(Default)]
pub(crate) struct Rings {
    pub seconds: Ring,
    pub flows: Ring,
    pub records: Ring,
    pub sums: Ring,
}

impl Rings {
    fn each(&mut self, sealed: &Sealed, limit: usize, push: impl Fn(&mut Ring, Part, usize, u64)) {
        let part =
            |bytes: &Arc<[u8]>| Part { minute: sealed.minute, count: sealed.count, bytes: bytes.clone() };
        for (ring, bytes, share, minutes) in [
            (&mut self.seconds, &sealed.seconds, 7, DAY),
            (&mut self.flows, &sealed.flows, 3, DAY),
            (&mut self.records, &sealed.records, 3, 7 * DAY),
            (&mut self.sums, &sealed.sum, 3, 7 * DAY),
        ] {
            if !bytes.is_empty() {
                push(ring, part(bytes), limit / 16 * share, minutes);
            }
        }
    }

    /// Adds the newest minute. `limit`: bytes of all rings together.
    pub fn push(&mut self, sealed: &Sealed, limit: usize) {
        self.each(sealed, limit, Ring::push);
    }

    /// Adds a minute that is older than all that are here.
    pub fn push_older(&mut self, sealed: &Sealed, limit: usize) {
        self.each(sealed, limit, Ring::push_older);
    }

    pub fn bytes(&self) -> usize {
        [&self.seconds, &self.flows, &self.records, &self.sums].iter().map(|ring| ring.bytes).sum()
    }

    pub fn seconds(&self) -> u64 {
        self.seconds.parts.iter().map(|part| u64::from(part.count)).sum()
    }
}
