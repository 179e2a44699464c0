//! The names of a history: its id, and the one that it went on from.

/// Hexadecimal digits of an id.
pub const DIGITS: usize = 40;

/// An id, and a second one that is valid up to an offset.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Ids {
    pub id: String,
    /// The history before, and the first offset that is not shared with it, counted from 1.
    pub second: Option<(String, u64)>,
}

impl Ids {
    /// A new history.
    pub fn fresh() -> Ids {
        Ids { id: new_id(), second: None }
    }

    /// Whether a history has all of another up to `at` bytes. O(1)
    pub fn has(&self, id: &[u8], at: u64) -> bool {
        let is_second = |(second, upto): &(String, u64)| second.as_bytes() == id && at < *upto;
        self.id.as_bytes() == id || self.second.as_ref().is_some_and(is_second)
    }

    /// The history goes on under a new id, behind `end` bytes.
    pub fn go_on(&mut self, end: u64) {
        let before = std::mem::replace(&mut self.id, new_id());
        self.second = Some((before, end + 1));
    }
}

/// A random id. It can be guessed: it is no secret.
pub fn new_id() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NTH: AtomicU64 = AtomicU64::new(0);
    let nth = NTH.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let seed = stdx::clock::wall_ns() ^ u64::from(std::process::id()).rotate_left(32) ^ nth;
    let part = |salt: u64| stdx::hash::hash_u64(seed ^ salt);
    format!("{:016x}{:016x}{:08x}", part(1), part(2), part(3) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_id_holds_up_to_its_offset() {
        let mut ids = Ids::fresh();
        let first = ids.id.clone();
        assert_eq!(first.len(), DIGITS);
        ids.go_on(10);
        assert_ne!(ids.id, first);
        assert!(ids.has(ids.id.as_bytes(), 100));
        assert!(ids.has(first.as_bytes(), 10) && !ids.has(first.as_bytes(), 11));
        assert!(!ids.has(&[b'0'; 40], 0));
    }
}
