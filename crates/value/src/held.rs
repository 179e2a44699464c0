//! The memory that a handle keeps alive, for limits on readers of values that were removed meanwhile.

/// The root of something large, and its number of handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Identifies the root as long as it is held.
    pub root: usize,
    pub owners: usize,
    /// An estimate of the bytes freed if all handles went. Parts below the root that other versions share are
    /// left out.
    pub bytes: usize,
}

impl Held {
    /// Memory that belongs to `owner` alone.
    pub fn own<T>(owner: &T, bytes: usize) -> Held {
        Held { root: std::ptr::from_ref(owner).addr(), owners: 1, bytes }
    }
}
