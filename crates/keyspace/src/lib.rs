//! All keys: shards, segments, expiry, the sequence of writes and snapshots.
