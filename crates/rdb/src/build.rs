//! Payloads for RESTORE, built from the outside: for applications and loaders, and for DUMP.
//!
//! ```
//! let mut list = rdb::ListPayload::new();
//! list.push(b"one").push(b"2");
//! let payload = list.finish().expect("not empty");      // RESTORE key 0 payload
//! # assert!(rdb::open(&payload).is_some());
//!
//! let set: rdb::SetPayload = ["a", "b"].into_iter().collect();
//! let payload = set.finish().expect("not empty");
//! ```
//!
//! The encodings are the plain ones, with elements compressed if that is asked for: every Redis from 4.0 on
//! and every Valkey reads them, and makes of them what it would have made of the commands. Only fields that
//! expire need Redis 7.4, or Valkey 9, which write them differently ([`Dialect`]).
//!
//! - B1: what is in a payload is the caller's affair: servers refuse a set, sorted set or hash with a member
//!   twice.
//!
//! Cost: O(bytes); whoever knows how many elements will come saves moving them once (`with_len`).

#[cfg(doc)]
use crate::is_compressed;

use crate::compressed::Shortener;
use crate::string::put_text;
use crate::{
    Item, Reader, VERSION_FIELD_EXPIRY, VERSION_VALKEY_9, VERSION_VALUES, put_int, put_len, seal, types,
};

/// How fields that expire are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// For Redis from 7.4 on, and Evenkeel.
    #[default]
    Redis,
    /// For Valkey from 9 on, and Evenkeel.
    Valkey,
}

impl Dialect {
    pub(crate) fn version(self) -> u16 {
        match self {
            Dialect::Redis => VERSION_FIELD_EXPIRY,
            Dialect::Valkey => VERSION_VALKEY_9,
        }
    }

    /// The type of a hash with fields that expire.
    pub(crate) fn hash_type(self) -> u8 {
        match self {
            Dialect::Redis => types::HASH_METADATA,
            Dialect::Valkey => types::VALKEY_HASH_2,
        }
    }

    /// The beginning of a hash of so many fields of which the first expires at `soonest_ms`.
    fn begin(self, len: usize, soonest_ms: u64) -> Counted {
        match self {
            Dialect::Redis => Counted::new(self.hash_type(), &soonest_ms.to_le_bytes(), len),
            Dialect::Valkey => Counted::new(self.hash_type(), &[], len),
        }
    }

    /// Writes the part before a field that expires at `time`, if the dialect has one.
    pub(crate) fn put_before(self, out: &mut Vec<u8>, time: Option<u64>, soonest_ms: u64) {
        if self == Dialect::Redis {
            put_len(out, time.map_or(0, |time| time.saturating_sub(soonest_ms).saturating_add(1)));
        }
    }

    /// Writes the part behind a field's value, if the dialect has one.
    pub(crate) fn put_behind(self, out: &mut Vec<u8>, time: Option<u64>) {
        if self == Dialect::Valkey {
            out.extend_from_slice(&time.map_or(-1, |time| time as i64).to_le_bytes());
        }
    }
}

/// The payload of a string. O(length).
pub fn string_payload(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 24);
    out.push(types::STRING);
    put_text(&mut out, text);
    seal(&mut out, VERSION_VALUES);
    out
}

/// A type, a number of elements and the elements.
struct Counted {
    out: Vec<u8>,
    announced: u64,
    count: u64,
    /// Where the number ends.
    elements_at: usize,
    number_at: usize,
    /// If elements are compressed that get shorter by it.
    shortener: Option<Box<Shortener>>,
}

impl Counted {
    fn new(kind: u8, prefix: &[u8], announced: usize) -> Counted {
        let mut out = vec![kind];
        out.extend_from_slice(prefix);
        let number_at = out.len();
        put_len(&mut out, announced as u64);
        let elements_at = out.len();
        Counted { out, announced: announced as u64, count: 0, elements_at, number_at, shortener: None }
    }

    /// Everything but the footer; None without elements.
    fn into_body(mut self) -> Option<Vec<u8>> {
        if self.count != self.announced {
            let mut number = Vec::new();
            put_len(&mut number, self.count);
            self.out.splice(self.number_at..self.elements_at, number);
        }
        (self.count > 0).then_some(self.out)
    }

    fn put(&mut self, item: Item<'_>) {
        match item {
            Item::Int(number) => put_int(&mut self.out, number),
            Item::Bytes(text) => {
                let shortener = self.shortener.as_mut();
                if !shortener.is_some_and(|shortener| shortener.put(text, &mut self.out)) {
                    put_text(&mut self.out, text);
                }
            }
        }
    }
}

fn sealed(body: Option<Vec<u8>>, version: u16) -> Option<Vec<u8>> {
    body.map(|mut payload| {
        seal(&mut payload, version);
        payload
    })
}

macro_rules! payload {
    ($name:ident, $kind:expr, $what:literal) => {
        impl $name {
            #[doc = concat!("The payload of ", $what, " without elements so far.")]
            pub fn new() -> $name {
                $name::with_len(0)
            }

            /// For so many elements. If other than announced come, they are moved once at the end.
            pub fn with_len(len: usize) -> $name {
                $name { counted: Counted::new($kind, &[], len) }
            }

            /// Elements so far.
            pub fn len(&self) -> usize {
                self.counted.count as usize
            }

            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// Bytes so far, about.
            pub fn size_bytes(&self) -> usize {
                self.counted.out.len()
            }

            /// Takes memory for so many bytes.
            pub fn reserve(&mut self, bytes: usize) {
                self.counted.out.reserve(bytes);
            }

            /// From now on elements are compressed that get shorter by it ([`is_compressed`]).
            pub fn compress(&mut self) {
                self.counted.shortener = Some(Box::default());
            }

            /// The payload; None without elements, because there are no empty collections.
            pub fn finish(self) -> Option<Vec<u8>> {
                sealed(self.into_body(), VERSION_VALUES)
            }

            /// All but the footer, for [`crate::seal_in_pieces`] with [`VERSION_VALUES`].
            pub fn into_body(self) -> Option<Vec<u8>> {
                self.counted.into_body()
            }
        }

        impl Default for $name {
            fn default() -> $name {
                $name::new()
            }
        }
    };
}

/// The payload of a list. See the module.
pub struct ListPayload {
    counted: Counted,
}

payload!(ListPayload, types::LIST, "a list");

impl ListPayload {
    /// Adds an element at the end.
    pub fn push(&mut self, element: &[u8]) -> &mut ListPayload {
        self.push_item(Item::Bytes(element))
    }

    pub fn push_item(&mut self, element: Item<'_>) -> &mut ListPayload {
        self.counted.put(element);
        self.counted.count += 1;
        self
    }
}

impl<T: AsRef<[u8]>> Extend<T> for ListPayload {
    fn extend<I: IntoIterator<Item = T>>(&mut self, elements: I) {
        for element in elements {
            self.push(element.as_ref());
        }
    }
}

/// The payload of a set. See the module.
pub struct SetPayload {
    counted: Counted,
}

payload!(SetPayload, types::SET, "a set");

impl SetPayload {
    /// Adds a member, which must not be there yet (B1).
    pub fn insert(&mut self, member: &[u8]) -> &mut SetPayload {
        self.insert_item(Item::Bytes(member))
    }

    pub fn insert_item(&mut self, member: Item<'_>) -> &mut SetPayload {
        self.counted.put(member);
        self.counted.count += 1;
        self
    }
}

impl<T: AsRef<[u8]>> Extend<T> for SetPayload {
    fn extend<I: IntoIterator<Item = T>>(&mut self, members: I) {
        for member in members {
            self.insert(member.as_ref());
        }
    }
}

/// The payload of a sorted set. See the module.
pub struct ZSetPayload {
    counted: Counted,
}

payload!(ZSetPayload, types::ZSET_2, "a sorted set");

impl ZSetPayload {
    /// Adds a member, which must not be there yet (B1), in any order. False, and not added, if the score is
    /// NaN.
    pub fn insert(&mut self, member: &[u8], score: f64) -> bool {
        if score.is_nan() {
            return false;
        }
        self.counted.put(Item::Bytes(member));
        self.counted.out.extend_from_slice(&score.to_le_bytes());
        self.counted.count += 1;
        true
    }
}

impl<T: AsRef<[u8]>> Extend<(T, f64)> for ZSetPayload {
    /// Leaves out members whose score is NaN.
    fn extend<I: IntoIterator<Item = (T, f64)>>(&mut self, members: I) {
        for (member, score) in members {
            self.insert(member.as_ref(), score);
        }
    }
}

/// The payload of a hash. See the module.
pub struct HashPayload {
    counted: Counted,
    /// If fields that expire are written at once: how, and when the first of them does.
    at_once: Option<(Dialect, u64)>,
    /// Else which fields expire, counted from the first, and when.
    times: Vec<(u64, u64)>,
}

impl HashPayload {
    /// The payload of a hash without fields so far.
    pub fn new() -> HashPayload {
        HashPayload::with_len(0)
    }

    /// For so many fields. If other than announced come, they are moved once at the end.
    pub fn with_len(len: usize) -> HashPayload {
        HashPayload { counted: Counted::new(types::HASH, &[], len), at_once: None, times: Vec::new() }
    }

    /// For so many fields of which the first expires at `soonest_ms`, written in this dialect at once:
    /// `finish` needs not go through them again, and gives the same whatever it is told.
    pub fn expiring(dialect: Dialect, len: usize, soonest_ms: u64) -> HashPayload {
        let counted = dialect.begin(len, soonest_ms);
        HashPayload { counted, at_once: Some((dialect, soonest_ms)), times: Vec::new() }
    }

    /// Fields so far.
    pub fn len(&self) -> usize {
        self.counted.count as usize
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes so far, about.
    pub fn size_bytes(&self) -> usize {
        self.counted.out.len()
    }

    /// Takes memory for so many bytes.
    pub fn reserve(&mut self, bytes: usize) {
        self.counted.out.reserve(bytes);
    }

    /// From now on fields and values are compressed that get shorter by it ([`is_compressed`]).
    pub fn compress(&mut self) {
        self.counted.shortener = Some(Box::default());
    }

    /// Adds a field, which must not be there yet (B1).
    pub fn insert(&mut self, field: &[u8], value: &[u8]) -> &mut HashPayload {
        self.put(field, value, None)
    }

    /// Adds a field that expires, at a time in milliseconds since 1970.
    pub fn insert_expiring(&mut self, field: &[u8], value: &[u8], expire_ms: u64) -> &mut HashPayload {
        self.put(field, value, Some(expire_ms))
    }

    fn put(&mut self, field: &[u8], value: &[u8], expire_ms: Option<u64>) -> &mut HashPayload {
        let out = &mut self.counted.out;
        match self.at_once {
            Some((dialect, soonest_ms)) => dialect.put_before(out, expire_ms, soonest_ms),
            None => self.times.extend(expire_ms.map(|time| (self.counted.count, time))),
        }
        self.counted.put(Item::Bytes(field));
        self.counted.put(Item::Bytes(value));
        if let Some((dialect, _)) = self.at_once {
            dialect.put_behind(&mut self.counted.out, expire_ms);
        }
        self.counted.count += 1;
        self
    }

    /// The payload; None without fields, because there are no empty hashes.
    pub fn finish(self, dialect: Dialect) -> Option<Vec<u8>> {
        let (body, version) = self.into_body(dialect)?;
        sealed(Some(body), version)
    }

    /// All but the footer, and the version for [`crate::seal_in_pieces`].
    pub fn into_body(self, dialect: Dialect) -> Option<(Vec<u8>, u16)> {
        let times = self.times;
        let (count, elements_at) = (self.counted.count, self.counted.elements_at);
        if times.is_empty() {
            let version = self.at_once.map_or(VERSION_VALUES, |(dialect, _)| dialect.version());
            return self.counted.into_body().map(|body| (body, version));
        }
        let fields = Timed { fields: Reader::new(&self.counted.out[elements_at..]), count, times };
        Some(fields.write(dialect))
    }
}

impl Default for HashPayload {
    fn default() -> HashPayload {
        HashPayload::new()
    }
}

impl<F: AsRef<[u8]>, V: AsRef<[u8]>> Extend<(F, V)> for HashPayload {
    fn extend<I: IntoIterator<Item = (F, V)>>(&mut self, fields: I) {
        for (field, value) in fields {
            self.insert(field.as_ref(), value.as_ref());
        }
    }
}

/// Fields and values one after the other, and the times of some.
struct Timed<'a> {
    fields: Reader<'a>,
    count: u64,
    times: Vec<(u64, u64)>,
}

impl Timed<'_> {
    fn write(mut self, dialect: Dialect) -> (Vec<u8>, u16) {
        let soonest_ms = self.times.iter().map(|(_, time)| *time).min().unwrap_or(0);
        let mut out = dialect.begin(self.count as usize, soonest_ms).out;
        let mut times = self.times.iter().copied().peekable();
        for i in 0..self.count {
            let time = times.next_if(|(at, _)| *at == i).map(|(_, time)| time);
            let before = self.fields.rest();
            // They were written by us a moment ago.
            let len = match (self.fields.skip_string(), self.fields.skip_string()) {
                (Ok(_), Ok(_)) => before.len() - self.fields.rest().len(),
                _ => 0,
            };
            dialect.put_before(&mut out, time, soonest_ms);
            out.extend_from_slice(&before[..len]);
            dialect.put_behind(&mut out, time);
        }
        (out, dialect.version())
    }
}

impl<T: AsRef<[u8]>> FromIterator<T> for ListPayload {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> ListPayload {
        let elements = elements.into_iter();
        let mut list = ListPayload::with_len(elements.size_hint().0);
        list.extend(elements);
        list
    }
}

impl<T: AsRef<[u8]>> FromIterator<T> for SetPayload {
    fn from_iter<I: IntoIterator<Item = T>>(members: I) -> SetPayload {
        let members = members.into_iter();
        let mut set = SetPayload::with_len(members.size_hint().0);
        set.extend(members);
        set
    }
}

impl<T: AsRef<[u8]>> FromIterator<(T, f64)> for ZSetPayload {
    fn from_iter<I: IntoIterator<Item = (T, f64)>>(members: I) -> ZSetPayload {
        let members = members.into_iter();
        let mut set = ZSetPayload::with_len(members.size_hint().0);
        set.extend(members);
        set
    }
}

impl<F: AsRef<[u8]>, V: AsRef<[u8]>> FromIterator<(F, V)> for HashPayload {
    fn from_iter<I: IntoIterator<Item = (F, V)>>(fields: I) -> HashPayload {
        let fields = fields.into_iter();
        let mut hash = HashPayload::with_len(fields.size_hint().0);
        hash.extend(fields);
        hash
    }
}
