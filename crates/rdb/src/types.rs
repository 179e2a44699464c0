//! The types of objects: their first byte.

use crate::{VERSION_VALKEY_9, module};

pub(crate) const STRING: u8 = 0;
pub(crate) const LIST: u8 = 1;
pub(crate) const SET: u8 = 2;
pub(crate) const ZSET: u8 = 3;
pub(crate) const HASH: u8 = 4;
pub(crate) const ZSET_2: u8 = 5;
/// A value of a module, as release candidates of Redis 4.0 wrote it.
pub(crate) const MODULE: u8 = 6;
/// A value of a module, in a form that can be skipped.
pub(crate) const MODULE_2: u8 = 7;
pub(crate) const HASH_ZIPMAP: u8 = 9;
pub(crate) const LIST_ZIPLIST: u8 = 10;
pub(crate) const SET_INTSET: u8 = 11;
pub(crate) const ZSET_ZIPLIST: u8 = 12;
pub(crate) const HASH_ZIPLIST: u8 = 13;
pub(crate) const LIST_QUICKLIST: u8 = 14;
pub(crate) const STREAM: u8 = 15;
pub(crate) const HASH_LISTPACK: u8 = 16;
pub(crate) const ZSET_LISTPACK: u8 = 17;
pub(crate) const LIST_QUICKLIST_2: u8 = 18;
pub(crate) const STREAM_2: u8 = 19;
pub(crate) const SET_LISTPACK: u8 = 20;
pub(crate) const STREAM_3: u8 = 21;
/// Written by release candidates of Redis 7.4.
pub(crate) const HASH_METADATA_CANDIDATE: u8 = 22;
pub(crate) const HASH_LISTPACK_EX_CANDIDATE: u8 = 23;
pub(crate) const HASH_METADATA: u8 = 24;
pub(crate) const HASH_LISTPACK_EX: u8 = 25;
/// With the numbers of idempotent producers (Redis 8.6).
pub(crate) const STREAM_4: u8 = 26;
/// No type: what modules know of a key comes before the type (Redis 8.6).
pub(crate) const KEY_METADATA: u8 = 243;
/// In Valkey 9 this number has another meaning.
pub(crate) const VALKEY_HASH_2: u8 = 22;

/// The kind of values in a payload, in the plural: "hashes". Checks nothing. O(1).
pub fn kind_of(payload: &[u8]) -> &'static str {
    let [kind, .., low, high, _, _, _, _, _, _, _, _] = payload else { return "values of no known type" };
    let version = u16::from_le_bytes([*low, *high]);
    let behind = || Some(module::pass_metadata(payload, version).ok()?.first().copied().unwrap_or(*kind));
    match behind().unwrap_or(*kind) {
        kind @ 0..=HASH_LISTPACK_EX => name(kind),
        kind => unread(kind, version).unwrap_or(name(kind)),
    }
}

/// The kind of the objects of a type, in the plural.
pub(crate) fn name(kind: u8) -> &'static str {
    match kind {
        STRING => "strings",
        LIST | LIST_ZIPLIST | LIST_QUICKLIST | LIST_QUICKLIST_2 => "lists",
        SET | SET_INTSET | SET_LISTPACK => "sets",
        ZSET | ZSET_2 | ZSET_ZIPLIST | ZSET_LISTPACK => "sorted sets",
        HASH | HASH_ZIPMAP | HASH_ZIPLIST | HASH_LISTPACK => "hashes",
        HASH_METADATA_CANDIDATE..=HASH_LISTPACK_EX => "hashes",
        MODULE | MODULE_2 => "values of modules",
        STREAM | STREAM_2 | STREAM_3 | STREAM_4 => "streams",
        _ => "values of no known type",
    }
}

/// The name of a type that is not read here, as servers of this version number it. `None` if they have no
/// such type.
pub(crate) fn unread(kind: u8, version: u16) -> Option<&'static str> {
    let redis_from = |first| (first..VERSION_VALKEY_9).contains(&version);
    Some(match kind {
        27 if redis_from(14) => "streams",
        28 if redis_from(14) => "arrays",
        29..=32 if redis_from(15) => "hashes of a template",
        23 if version > VERSION_VALKEY_9 => "path hashes",
        _ => return None,
    })
}
