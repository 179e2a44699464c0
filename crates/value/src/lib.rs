//! The values: strings, lists, hashes, sets and sorted sets that are cloned in O(1).
