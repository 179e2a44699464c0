//! The values, cloned in O(1): strings, lists, hashes, sets, sorted sets, streams and compressed bitmaps.
//!
//! ```text
//! Value ─┬─ Str    flat bytes, or a counted tree of chunks          str.rs
//!        ├─ List   counted tree of packed leaves                    list.rs   ctree/
//!        ├─ Hash   one packed leaf, or a hash trie of packed leaves hash.rs   trie/
//!        ├─ Set    the same; integers of large ones in containers   set.rs    trie/ ints/
//!        ├─ ZSet   counted tree by (score, member) and a hash trie  zset.rs   ctree/ trie/
//!        ├─ Stream tree of packed blocks, groups of consumers        stream/
//!        └─ Ints   integers in order, of 32 bits or 64              ints/
//! ```
//!
//! - V1: cloning any value is O(1): one count goes up, whatever its size. A clone never sees later changes of
//!   the original, and the original none of the clone.
//! - V2: a node with one owner is changed in place. A shared one is copied first, and only after a look-up
//!   has shown a change. Uniqueness is tested from the root down: below a shared node everything is shared.
//! - V3: no node or leaf is larger than a few kilobytes; elements of more than [`elem::INLINE_MAX`] bytes are
//!   in blocks of their own. So the first change under a snapshot copies a bounded amount.
//! - V4: the last owner of a large value hands it to `stdx::reclaim` instead of freeing it.
//! - V5: reads never change anything, not even a statistic.

mod alone;
pub mod arc;
mod cell;
pub mod ctree;
pub mod elem;
pub mod hash;
mod held;
pub mod ints;
pub mod limits;
pub mod list;
pub mod packed;
mod place;
pub mod set;
pub mod str;
pub mod stream;
#[cfg(test)]
mod testing;
pub mod trie;
pub mod zset;

pub use elem::Elem;
pub use hash::Hash;
pub use held::Held;
pub use ints::Ints;
pub use list::List;
pub use set::Set;
pub use str::{Run, Str, StrRef};
pub use stream::{Stream, StreamId};
pub use zset::{LexBound, ScoreBound, ZSet};

/// A value of any type. 16 bytes; `clone` is O(1).
#[derive(Clone)]
pub enum Value {
    Str(Str),
    List(List),
    Hash(Hash),
    Set(Set),
    ZSet(ZSet),
    Stream(Stream),
    /// Bits below 2^32, compressed.
    Roaring(Ints),
    /// Bits below 2^64, compressed.
    Roaring64(Ints),
}

/// A borrowed value of any type. Strings may also be bytes inside a key's entry.
#[derive(Clone, Copy)]
pub enum ValueRef<'a> {
    Str(StrRef<'a>),
    List(&'a List),
    Hash(&'a Hash),
    Set(&'a Set),
    ZSet(&'a ZSet),
    Stream(&'a Stream),
    Roaring(&'a Ints),
    Roaring64(&'a Ints),
}

/// The types of value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    Str,
    List,
    Hash,
    Set,
    ZSet,
    Stream,
    Roaring,
    Roaring64,
}

/// Redis's name for the encoding of a value (`OBJECT ENCODING`). The form here is another matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Enc {
    Int,
    EmbStr,
    Raw,
    ListPack,
    ListPackEx,
    QuickList,
    IntSet,
    HashTable,
    SkipList,
    Stream,
}

impl Kind {
    /// The name in the reply of `TYPE`.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Str => "string",
            Kind::List => "list",
            Kind::Hash => "hash",
            Kind::Set => "set",
            Kind::ZSet => "zset",
            Kind::Stream => "stream",
            // The names of the module that clients know.
            Kind::Roaring => "reroaring",
            Kind::Roaring64 => "roaring64",
        }
    }
}

impl Enc {
    /// The name in the reply of `OBJECT ENCODING`.
    pub const fn name(self) -> &'static str {
        match self {
            Enc::Int => "int",
            Enc::EmbStr => "embstr",
            Enc::Raw => "raw",
            Enc::ListPack => "listpack",
            Enc::ListPackEx => "listpackex",
            Enc::QuickList => "quicklist",
            Enc::IntSet => "intset",
            Enc::HashTable => "hashtable",
            Enc::SkipList => "skiplist",
            Enc::Stream => "stream",
        }
    }
}

impl Value {
    /// The same value without what streams remember of producers, which old servers do not read. O(1).
    pub fn without_producers(&self) -> Value {
        match self {
            Value::Stream(stream) => Value::Stream(stream.without_producers()),
            value => value.clone(),
        }
    }

    /// The type of the value.
    pub const fn kind(&self) -> Kind {
        match self {
            Value::Str(_) => Kind::Str,
            Value::List(_) => Kind::List,
            Value::Hash(_) => Kind::Hash,
            Value::Set(_) => Kind::Set,
            Value::ZSet(_) => Kind::ZSet,
            Value::Stream(_) => Kind::Stream,
            Value::Roaring(_) => Kind::Roaring,
            Value::Roaring64(_) => Kind::Roaring64,
        }
    }

    /// Bytes of a string, elements of a collection, one less than 2^64 for a full bitmap. O(1).
    pub fn len(&self) -> usize {
        match self {
            Value::Str(v) => v.len(),
            Value::List(v) => v.len(),
            Value::Hash(v) => v.len(),
            Value::Set(v) => v.len(),
            Value::ZSet(v) => v.len(),
            Value::Stream(v) => v.len(),
            Value::Roaring(v) | Value::Roaring64(v) => usize::try_from(v.len()).unwrap_or(usize::MAX),
        }
    }

    /// True for the empty string and for collections without elements (a keyspace keeps only bitmaps and
    /// streams of these).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes the value occupies, shared nodes counted fully. O(1).
    pub fn mem_bytes(&self) -> usize {
        match self {
            Value::Str(v) => v.mem_bytes(),
            Value::List(v) => v.mem_bytes(),
            Value::Hash(v) => v.mem_bytes(),
            Value::Set(v) => v.mem_bytes(),
            Value::ZSet(v) => v.mem_bytes(),
            Value::Stream(v) => v.mem_bytes(),
            Value::Roaring(v) | Value::Roaring64(v) => v.mem_bytes(),
        }
    }

    /// An estimate of the bytes that other versions do not share. O(height), see [`Held`].
    pub fn alone_bytes(&self) -> usize {
        let held = match self {
            Value::Str(v) => v.held(),
            Value::List(v) => v.held(),
            Value::Hash(v) => v.held(),
            Value::Set(v) => v.held(),
            Value::ZSet(v) => v.held(),
            Value::Stream(v) => v.held(),
            Value::Roaring(v) | Value::Roaring64(v) => v.held(),
        };
        held.map_or_else(|| self.mem_bytes(), |held| held.bytes)
    }

    /// Redis's name for the encoding.
    pub fn encoding(&self) -> Enc {
        match self {
            Value::Str(v) => v.encoding(),
            Value::List(v) => v.encoding(),
            Value::Hash(v) => v.encoding(),
            Value::Set(v) => v.encoding(),
            Value::ZSet(v) => v.encoding(),
            Value::Stream(v) => v.encoding(),
            // Redis gives this for every module's value.
            Value::Roaring(_) | Value::Roaring64(_) => Enc::Raw,
        }
    }

    /// Borrows the value.
    pub fn as_ref(&self) -> ValueRef<'_> {
        match self {
            Value::Str(v) => ValueRef::Str(v.as_ref()),
            Value::List(v) => ValueRef::List(v),
            Value::Hash(v) => ValueRef::Hash(v),
            Value::Set(v) => ValueRef::Set(v),
            Value::ZSet(v) => ValueRef::ZSet(v),
            Value::Stream(v) => ValueRef::Stream(v),
            Value::Roaring(v) => ValueRef::Roaring(v),
            Value::Roaring64(v) => ValueRef::Roaring64(v),
        }
    }
}

impl std::fmt::Debug for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}", self.kind().name(), self.len())
    }
}

impl ValueRef<'_> {
    /// The type of the value.
    pub const fn kind(&self) -> Kind {
        match self {
            ValueRef::Str(_) => Kind::Str,
            ValueRef::List(_) => Kind::List,
            ValueRef::Hash(_) => Kind::Hash,
            ValueRef::Set(_) => Kind::Set,
            ValueRef::ZSet(_) => Kind::ZSet,
            ValueRef::Stream(_) => Kind::Stream,
            ValueRef::Roaring(_) => Kind::Roaring,
            ValueRef::Roaring64(_) => Kind::Roaring64,
        }
    }

    /// An owned handle: O(1), except for strings inside an entry, which are copied (they are short).
    pub fn to_value(&self) -> Value {
        match *self {
            ValueRef::Str(v) => Value::Str(v.to_str()),
            ValueRef::List(v) => Value::List(v.clone()),
            ValueRef::Hash(v) => Value::Hash(v.clone()),
            ValueRef::Set(v) => Value::Set(v.clone()),
            ValueRef::ZSet(v) => Value::ZSet(v.clone()),
            ValueRef::Stream(v) => Value::Stream(v.clone()),
            ValueRef::Roaring(v) => Value::Roaring(v.clone()),
            ValueRef::Roaring64(v) => Value::Roaring64(v.clone()),
        }
    }
}

const _: () = {
    const fn shared<T: Send + Sync + Clone>() {}
    shared::<Value>();
    assert!(size_of::<Value>() <= 16);
};
