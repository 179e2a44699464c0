//! An element in a payload: a number or a text.

/// A borrowed element. Integers are those with a canonical text: `Int(7)` and `Bytes(b"7")` are the same
/// element.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    Int(i64),
    Bytes(&'a [u8]),
}

impl Item<'_> {
    /// Calls `f` with the text. O(length).
    pub fn with<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        match *self {
            Item::Int(n) => f(itoa::Buffer::new().format(n).as_bytes()),
            Item::Bytes(bytes) => f(bytes),
        }
    }

    /// The number that the text spells, as scores are written. `None` if it is no number, or NaN. O(length).
    pub(crate) fn to_score(self) -> Option<f64> {
        let score = match self {
            Item::Int(n) => n as f64,
            Item::Bytes(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok()?,
        };
        (!score.is_nan()).then_some(score)
    }
}

impl PartialEq for Item<'_> {
    fn eq(&self, other: &Item<'_>) -> bool {
        self.with(|one| other.with(|two| one == two))
    }
}
