//! What somebody keeps alive by holding a handle: for limits on readers of values that were removed meanwhile.

/// The root of something large, and how many handles it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Names the root as long as it is held.
    pub root: usize,
    pub owners: usize,
    /// About what would be given back if all of them went: what other versions share of it is left out, as far as it lies below
    /// the root.
    pub bytes: usize,
}

impl Held {
    /// What belongs to `owner` alone.
    pub fn own<T>(owner: &T, bytes: usize) -> Held {
        Held { root: std::ptr::from_ref(owner).addr(), owners: 1, bytes }
    }
}
