//! A 16-way copy-on-write hash trie with packed leaves, for sets, hashes and a sorted set's member → score.
//!
//! API as users in this crate see it (`K` says how entries are packed, hashed and compared):
//!
//! ```text
//! Trie<K>: Clone (O(1), one count), Send + Sync, 24–40 bytes: keep it inside your own Arc'd root
//!   new() len() mem_bytes()
//!   get(key: K::Key<'_>) -> Option<K::Entry<'_>>        get_hashed(key, hash)
//!   insert(entry: K::Entry<'_>) -> bool                  true if the key is new; else the entry is replaced
//!   remove(key: K::Key<'_>) -> bool
//!   iter() iter_from(rank) nth(rank)                     in the trie's own order
//!   scan(cursor: u64, count: usize, f: &mut dyn FnMut(K::Entry<'_>)) -> u64
//! kinds: set::Members (Elem), hash::Fields (field, value, expiry), trie::Scores (Key = &[u8], Entry = (&[u8], f64))
//! ```
