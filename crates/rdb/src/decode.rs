//! Decodes objects of any server into elements, and gives these one by one to a [`Sink`].
//!
//! ```text
//! body: type, 1 byte │ contents
//!
//!   0 text
//!   1 elements           10 ziplist    14 ziplists    18 pieces: one text, or a listpack        list
//!   2 members            11 intset     20 listpack                                               set
//!   3 members, scores as text          5 members, scores as doubles     12 ziplist  17 listpack  sorted set
//!   4 fields, values      9 zipmap     13 ziplist     16 listpack                                hash
//!  22 23 24 25            fields that expire: see `Decoder::fields`                              hash
//!  15 19 21 26            see `stream.rs`                                                    stream
//!   7 value of a module: one string, if the sink knows the module ([`crate::module_body`])
//! ```
//!
//! Any other module's value is refused by the module's name, other types of servers by theirs
//! ([`Unsupported`]). Bytes behind the object are ignored, as in Redis.

use crate::pack::{Intset, Listpack, Ziplist, Zipmap};
use crate::string::Text;
use crate::{Item, Malformed, Reader, StreamPart, VERSION_METADATA, VERSION_VALKEY_9, module, types};
use std::fmt;

/// Receives the elements of an object. After an error the sink must throw away what it got.
pub trait Sink {
    /// The sink's reason to stop.
    type Stop;

    /// Announces work on this many elements and bytes: the moment to charge, pause or stop. Between two calls
    /// come at most a few dozen elements, unless they are long.
    fn work(&mut self, elements: usize, bytes: usize) -> Result<(), Self::Stop>;

    /// Announces about how many elements or fields and bytes will come. A broken payload may lie.
    fn expect(&mut self, elements: usize, bytes: usize) {
        let _ = (elements, bytes);
    }

    /// A string. It is the only value.
    fn string(&mut self, text: Item<'_>);

    /// The next element of a list.
    fn element(&mut self, element: Item<'_>);

    /// A member of a set. Returns false if the set has it already.
    fn member(&mut self, member: Item<'_>) -> bool;

    /// A member of a sorted set and its score, which is never NaN. Returns false if the set has it already.
    fn scored(&mut self, member: Item<'_>, score: f64) -> bool;

    /// A field of a hash, and its expiry in milliseconds since 1970. Returns false if the hash has it
    /// already.
    fn field(&mut self, field: Item<'_>, value: Item<'_>, expire_ms: Option<u64>) -> bool;

    /// An entry of a stream, with its fields and values. Returns false if it cannot stand behind the entries
    /// before.
    fn entry<'f>(&mut self, id: (u64, u64), fields: &mut dyn Iterator<Item = (&'f [u8], &'f [u8])>) -> bool {
        let _ = (id, fields);
        false
    }

    /// A part of a stream behind its entries. Returns false if it does not fit what came before.
    fn stream(&mut self, part: StreamPart<'_>) -> bool {
        let _ = part;
        false
    }

    /// Whether the sink takes values of this version of a module. They have the form of one string then.
    fn knows(&self, module: &[u8; 9], version: u16) -> bool {
        let _ = (module, version);
        false
    }

    /// A value of a module that the sink knows. Returns false if the string is no such value. The sink
    /// charges long work itself.
    fn module(&mut self, name: &[u8; 9], data: &[u8]) -> Result<bool, Self::Stop> {
        let _ = (name, data);
        Ok(false)
    }
}

/// Contents of a valid payload that no sink takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsupported {
    /// Values of a type that is not supported, such as arrays.
    Values(&'static str),
    /// A value of a module. Its name has only letters, digits, `-` and `_`.
    Module { name: [u8; 9], version: u16 },
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unsupported::Values(what) => write!(f, "{what} are not supported"),
            Unsupported::Module { name, version } => {
                let name = name.escape_ascii();
                write!(f, "a value of the module {name} (version {version}) is not supported")
            }
        }
    }
}

/// Why a payload could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure<S> {
    Malformed,
    /// The payload is not checked any further.
    Unsupported(Unsupported),
    /// The sink stopped it.
    Stopped(S),
}

impl<S> From<Malformed> for Failure<S> {
    fn from(_: Malformed) -> Failure<S> {
        Failure::Malformed
    }
}

/// Elements between two calls of [`Sink::work`].
const PIECE: usize = 64;
/// Longer texts are announced before they are read.
const LONG: usize = 1024;

/// The containers of a quicklist's pieces. The last one is implied in old quicklists, and never written.
const CONTAINER_PLAIN: u64 = 1;
const CONTAINER_PACKED: u64 = 2;
const CONTAINER_ZIPLIST: u64 = u64::MAX;

/// The latest expiry of a field, as in Redis.
const LAST_EXPIRY_MS: u64 = (1 << 48) - 1;

/// Decodes the object in a body. The footer's version decides between two meanings of a type. O(bytes),
/// unpacked. What modules know of the key is passed over.
pub fn decode<S: Sink>(body: &[u8], version: u16, sink: &mut S) -> Result<(), Failure<S::Stop>> {
    let mut reader = Reader::new(module::pass_metadata(body, version)?);
    let kind = reader.byte()?;
    Decoder { reader, sink, untold: 0 }.object(kind, version)
}

/// Bytes of a body that an estimate looks through.
const LOOKED_THROUGH: usize = 8 * 1024;
/// About how many bytes an element of a pack has.
const PACKED_ELEMENT: usize = 4;
/// The bytes that a byte of a stream, whose nodes servers compress, usually unpacks to.
const STREAM_UNPACKED: usize = 4;
/// Most bytes that one byte may unpack to.
const MOST_UNPACKED: usize = 88;

/// Estimates the work for a body: elements, and bytes they unpack to. A short body is looked through without
/// unpacking; for a long collection the worst case is assumed. O(1).
pub fn estimate(body: &[u8]) -> (usize, usize) {
    let worst = body.len().saturating_mul(MOST_UNPACKED);
    match looked_through(body) {
        Ok(Some(estimate)) => estimate,
        // A malformed body is detected before much is done.
        Ok(None) | Err(Malformed) if body.len() > LOOKED_THROUGH => (worst / PACKED_ELEMENT, worst),
        Ok(None) | Err(Malformed) => (body.len(), body.len()),
    }
}

fn looked_through(body: &[u8]) -> Result<Option<(usize, usize)>, Malformed> {
    let is_short = body.len() <= LOOKED_THROUGH;
    if body.first() == Some(&types::KEY_METADATA) && !is_short {
        return Ok(None);
    }
    let body = module::pass_metadata(body, VERSION_METADATA)?;
    let mut reader = Reader::new(body);
    let kind = reader.byte()?;
    // Strings per element, bytes behind them, and whether a number comes first.
    let (strings, behind, before) = match kind {
        types::STRING => return Ok(Some((1, reader.unpacked_len()?))),
        types::LIST | types::SET => (1, 0, false),
        types::HASH => (2, 0, false),
        types::ZSET_2 => (1, 8, false),
        types::LIST_QUICKLIST => (1, 0, false),
        types::LIST_QUICKLIST_2 => (1, 0, true),
        types::HASH_METADATA => (2, 0, true),
        types::MODULE_2 => return module::estimate(body),
        types::STREAM | types::STREAM_2 | types::STREAM_3 | types::STREAM_4 => {
            return packed_estimate(body.len().saturating_mul(STREAM_UNPACKED));
        }
        types::HASH_LISTPACK_EX => {
            reader.array::<8>()?;
            return packed_estimate(reader.unpacked_len()?);
        }
        _ => return packed_estimate(reader.unpacked_len()?),
    };
    if body.len() > LOOKED_THROUGH {
        return Ok(None);
    }
    if kind == types::HASH_METADATA {
        reader.array::<8>()?;
    }
    let is_packed = matches!(kind, types::LIST_QUICKLIST | types::LIST_QUICKLIST_2);
    let (mut elements, mut bytes) = (0_usize, 0_usize);
    for _ in 0..reader.len()? {
        if before {
            reader.len()?;
        }
        for _ in 0..strings {
            let unpacked = reader.skip_string()?;
            // An announced length need not be true.
            elements = elements.saturating_add(if is_packed { unpacked / PACKED_ELEMENT } else { 1 });
            bytes = bytes.saturating_add(unpacked);
        }
        reader.bytes(behind)?;
    }
    Ok(Some((elements, bytes)))
}

fn packed_estimate(bytes: usize) -> Result<Option<(usize, usize)>, Malformed> {
    Ok(Some((bytes / PACKED_ELEMENT, bytes)))
}

pub(crate) struct Decoder<'a, 's, S> {
    pub(crate) reader: Reader<'a>,
    pub(crate) sink: &'s mut S,
    /// Elements not yet announced to the sink.
    untold: usize,
}

pub(crate) type Outcome<S> = Result<(), Failure<<S as Sink>::Stop>>;

impl<'a, S: Sink> Decoder<'a, '_, S> {
    fn object(&mut self, kind: u8, version: u16) -> Outcome<S> {
        match kind {
            types::STRING => {
                let text = self.text()?;
                self.sink.string(text.item());
                Ok(())
            }
            types::LIST => self.each(|this| {
                let text = this.text()?;
                this.sink.element(text.item());
                Ok(())
            }),
            types::SET => self.each(|this| {
                let text = this.text()?;
                distinct(this.sink.member(text.item()))
            }),
            types::ZSET => self.each(|this| this.scored(text_score)),
            types::ZSET_2 => self.each(|this| this.scored(binary_score)),
            types::HASH => self.each_expected(|this| {
                let (field, value) = (this.text()?, this.text()?);
                distinct(this.sink.field(field.item(), value.item(), None))
            }),
            types::LIST_QUICKLIST | types::LIST_QUICKLIST_2 => {
                self.quicklist(kind == types::LIST_QUICKLIST_2)
            }
            types::LIST_ZIPLIST => self.packed(|this, blob| this.elements(Ziplist::new(blob)?)),
            types::SET_INTSET => self.packed(|this, blob| this.members(Intset::new(blob)?)),
            types::SET_LISTPACK => self.packed(|this, blob| this.members(Listpack::new(blob)?)),
            types::ZSET_ZIPLIST => self.packed(|this, blob| this.ranked(Ziplist::new(blob)?)),
            types::ZSET_LISTPACK => self.packed(|this, blob| this.ranked(Listpack::new(blob)?)),
            types::HASH_ZIPMAP => self.packed(|this, blob| this.pairs(Zipmap::new(blob)?)),
            types::HASH_ZIPLIST => self.packed(|this, blob| this.pairs(Ziplist::new(blob)?)),
            types::HASH_LISTPACK => self.packed(|this, blob| {
                let items = Listpack::new(blob)?;
                this.sink.expect(items.announced() / 2, blob.len());
                this.pairs(items)
            }),
            types::STREAM | types::STREAM_2 | types::STREAM_3 | types::STREAM_4 => self.stream(kind),
            types::MODULE_2 => self.module(true),
            types::MODULE => self.module(false),
            _ => self.fields(kind, version),
        }
    }

    fn module(&mut self, can_be_skipped: bool) -> Outcome<S> {
        let (name, version) = module::name_and_version(self.reader.len()?);
        if !can_be_skipped || !self.sink.knows(&name, version) {
            return Err(Failure::Unsupported(Unsupported::Module { name, version }));
        }
        if self.reader.len()? != module::PIECE_STRING {
            return Err(Failure::Malformed);
        }
        let data = self.text()?;
        if self.reader.len()? != module::PIECES_END {
            return Err(Failure::Malformed);
        }
        let is_one = self.sink.module(&name, data.bytes()?).map_err(Failure::Stopped)?;
        if is_one { Ok(()) } else { Err(Failure::Malformed) }
    }

    /// Decodes hashes with fields that expire.
    ///
    /// ```text
    /// 24  soonest time, 8 bytes │ fields, a length │ (time, field, value) …  time: 0, or ms after soonest + 1
    /// 22  of a release candidate: no soonest time, and times since 1970
    /// 25  soonest time, 8 bytes │ listpack of (field, value, time) …         time: 0, or since 1970
    /// 23  of a release candidate: no soonest time
    /// 22  of Valkey 9: fields, a length │ (field, value, time) …             time: 8 bytes, -1, or since 1970
    /// ```
    fn fields(&mut self, kind: u8, version: u16) -> Outcome<S> {
        let is_valkey = version >= VERSION_VALKEY_9;
        match kind {
            types::VALKEY_HASH_2 if is_valkey => self.each(|this| {
                let (field, value) = (this.text()?, this.text()?);
                let time = match i64::from_le_bytes(this.reader.array()?) {
                    -1 => None,
                    // Times of Valkey are not bounded; ours are.
                    at => Some(u64::try_from(at).map_err(|_| Malformed)?.min(LAST_EXPIRY_MS)),
                };
                distinct(this.sink.field(field.item(), value.item(), time))
            }),
            // From this version on, Valkey gives the other numbers its own meanings.
            _ if is_valkey => Err(refused(kind, version)),
            types::HASH_METADATA_CANDIDATE => self.timed(1),
            types::HASH_METADATA => {
                let soonest = u64::from_le_bytes(self.reader.array()?);
                self.timed(soonest)
            }
            types::HASH_LISTPACK_EX_CANDIDATE => self.packed(|this, blob| this.triples(blob)),
            types::HASH_LISTPACK_EX => {
                self.reader.array::<8>()?;
                self.packed(|this, blob| this.triples(blob))
            }
            _ => Err(refused(kind, version)),
        }
    }

    fn timed(&mut self, soonest: u64) -> Outcome<S> {
        self.each(|this| {
            let time = match this.reader.len()? {
                0 => None,
                after => Some(expiry((after - 1).checked_add(soonest))?),
            };
            let (field, value) = (this.text()?, this.text()?);
            distinct(this.sink.field(field.item(), value.item(), time))
        })
    }

    fn triples(&mut self, blob: &[u8]) -> Result<usize, Failure<S::Stop>> {
        let mut items = Listpack::new(blob)?;
        let mut found = 0;
        while let Some(field) = items.next() {
            self.tick()?;
            let (value, time) = (follower(&mut items)?, follower(&mut items)?);
            let time = match time {
                Item::Int(0) => None,
                Item::Int(at) => Some(expiry(u64::try_from(at).ok())?),
                Item::Bytes(_) => return Err(Failure::Malformed),
            };
            distinct::<S::Stop>(self.sink.field(field?, value, time))?;
            found += 1;
        }
        Ok(found)
    }

    fn quicklist(&mut self, has_containers: bool) -> Outcome<S> {
        let mut found = 0;
        self.each(|this| {
            let container = if has_containers { this.reader.len()? } else { CONTAINER_ZIPLIST };
            let blob = this.text()?;
            match container {
                CONTAINER_PLAIN => {
                    this.sink.element(blob.item());
                    found += 1;
                }
                CONTAINER_PACKED => found += this.elements(Listpack::new(blob.bytes()?)?)?,
                CONTAINER_ZIPLIST => found += this.elements(Ziplist::new(blob.bytes()?)?)?,
                _ => return Err(Failure::Malformed),
            }
            Ok(())
        })?;
        some(found)
    }

    fn scored(&mut self, read: fn(&mut Reader<'a>) -> Result<Option<f64>, Malformed>) -> Outcome<S> {
        let member = self.text()?;
        let score = read(&mut self.reader)?.ok_or(Malformed)?;
        distinct(self.sink.scored(member.item(), score))
    }

    fn elements<'i>(&mut self, items: impl Items<'i>) -> Result<usize, Failure<S::Stop>> {
        let mut found = 0;
        for item in items {
            self.tick()?;
            self.sink.element(item?);
            found += 1;
        }
        Ok(found)
    }

    fn members<'i>(&mut self, items: impl Items<'i>) -> Result<usize, Failure<S::Stop>> {
        let mut found = 0;
        for item in items {
            self.tick()?;
            distinct::<S::Stop>(self.sink.member(item?))?;
            found += 1;
        }
        Ok(found)
    }

    fn ranked<'i>(&mut self, mut items: impl Items<'i>) -> Result<usize, Failure<S::Stop>> {
        let mut found = 0;
        while let Some(member) = items.next() {
            self.tick()?;
            let score = follower(&mut items)?.to_score().ok_or(Malformed)?;
            distinct::<S::Stop>(self.sink.scored(member?, score))?;
            found += 1;
        }
        Ok(found)
    }

    fn pairs<'i>(&mut self, mut items: impl Items<'i>) -> Result<usize, Failure<S::Stop>> {
        let mut found = 0;
        while let Some(field) = items.next() {
            self.tick()?;
            let value = follower(&mut items)?;
            distinct::<S::Stop>(self.sink.field(field?, value, None))?;
            found += 1;
        }
        Ok(found)
    }

    /// Runs `one` as often as the length announces, at least once.
    fn each(&mut self, one: impl FnMut(&mut Self) -> Outcome<S>) -> Outcome<S> {
        let count = self.reader.len()?;
        self.times(count, one)
    }

    /// As `each`, and announces the number to the sink.
    fn each_expected(&mut self, one: impl FnMut(&mut Self) -> Outcome<S>) -> Outcome<S> {
        let count = self.reader.len()?;
        self.sink.expect(usize::try_from(count).unwrap_or(usize::MAX), self.reader.rest().len());
        self.times(count, one)
    }

    fn times(&mut self, count: u64, mut one: impl FnMut(&mut Self) -> Outcome<S>) -> Outcome<S> {
        for _ in 0..count {
            self.tick()?;
            one(self)?;
        }
        some(count)
    }

    /// Decodes a collection in one string. `read` returns how many elements it had; there must be at least
    /// one.
    fn packed(
        &mut self,
        read: impl FnOnce(&mut Self, &[u8]) -> Result<usize, Failure<S::Stop>>,
    ) -> Outcome<S> {
        let blob = self.text()?;
        let found = read(self, blob.bytes()?)?;
        some(found)
    }

    pub(crate) fn text(&mut self) -> Result<Text<'a>, Failure<S::Stop>> {
        let len = self.reader.unpacked_len()?;
        if len >= LONG {
            self.sink.work(0, len).map_err(Failure::Stopped)?;
        }
        Ok(self.reader.text()?)
    }

    /// Counts an element.
    pub(crate) fn tick(&mut self) -> Outcome<S> {
        self.untold += 1;
        if self.untold == PIECE {
            self.sink.work(std::mem::take(&mut self.untold), 0).map_err(Failure::Stopped)?;
        }
        Ok(())
    }
}

trait Items<'i>: Iterator<Item = Result<Item<'i>, Malformed>> {}

impl<'i, I: Iterator<Item = Result<Item<'i>, Malformed>>> Items<'i> for I {}

/// The next item, which must exist: it belongs to the item before.
fn follower<'i>(items: &mut impl Items<'i>) -> Result<Item<'i>, Malformed> {
    items.next().ok_or(Malformed)?
}

/// Refuses an empty collection.
fn some<S>(count: impl TryInto<usize> + PartialEq + Default) -> Result<(), Failure<S>> {
    if count == Default::default() { Err(Failure::Malformed) } else { Ok(()) }
}

fn distinct<S>(is_new: bool) -> Result<(), Failure<S>> {
    if is_new { Ok(()) } else { Err(Failure::Malformed) }
}

fn refused<S>(kind: u8, version: u16) -> Failure<S> {
    let named = types::unread(kind, version).map(Unsupported::Values);
    named.map_or(Failure::Malformed, Failure::Unsupported)
}

fn expiry(at_ms: Option<u64>) -> Result<u64, Malformed> {
    at_ms.filter(|at| *at <= LAST_EXPIRY_MS).ok_or(Malformed)
}

fn binary_score(reader: &mut Reader<'_>) -> Result<Option<f64>, Malformed> {
    let score = f64::from_le_bytes(reader.array()?);
    Ok((!score.is_nan()).then_some(score))
}

/// Reads a score: one byte of length and a number as text. Three lengths stand for scores without digits.
fn text_score(reader: &mut Reader<'_>) -> Result<Option<f64>, Malformed> {
    Ok(match reader.byte()? {
        255 => Some(f64::NEG_INFINITY),
        254 => Some(f64::INFINITY),
        253 => None,
        len => Item::Bytes(reader.bytes(usize::from(len))?).to_score(),
    })
}
