//! IDs of entries: a time and a number.

/// The ID of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StreamId {
    pub ms: u64,
    pub seq: u64,
}

impl StreamId {
    /// Both parts as one number: a search compares without branches.
    #[inline]
    fn number(self) -> u128 {
        u128::from(self.ms) << 64 | u128::from(self.seq)
    }
}

impl PartialOrd for StreamId {
    #[inline]
    fn partial_cmp(&self, other: &StreamId) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }

    #[inline]
    fn lt(&self, other: &StreamId) -> bool {
        self.number() < other.number()
    }

    #[inline]
    fn le(&self, other: &StreamId) -> bool {
        self.number() <= other.number()
    }
}

impl Ord for StreamId {
    #[inline]
    fn cmp(&self, other: &StreamId) -> std::cmp::Ordering {
        self.number().cmp(&other.number())
    }
}

impl StreamId {
    /// The lowest ID. No entry has it.
    pub const MIN: StreamId = StreamId::new(0, 0);
    /// The highest ID.
    pub const MAX: StreamId = StreamId::new(u64::MAX, u64::MAX);

    /// The ID of these parts.
    pub const fn new(ms: u64, seq: u64) -> StreamId {
        StreamId { ms, seq }
    }

    /// The ID behind this one; none behind [`StreamId::MAX`].
    pub fn next(self) -> Option<StreamId> {
        match self.seq.checked_add(1) {
            Some(seq) => Some(StreamId::new(self.ms, seq)),
            None => Some(StreamId::new(self.ms.checked_add(1)?, 0)),
        }
    }

    /// The ID before this one; none before [`StreamId::MIN`].
    pub fn prev(self) -> Option<StreamId> {
        match self.seq.checked_sub(1) {
            Some(seq) => Some(StreamId::new(self.ms, seq)),
            None => Some(StreamId::new(self.ms.checked_sub(1)?, u64::MAX)),
        }
    }
}
