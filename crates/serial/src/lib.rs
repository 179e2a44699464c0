//! Values to Redis's serialized form and back: DUMP payloads, and the objects of RDB files.
//!
//! ```text
//! Value ── encode ──────► payload     iterates over the value, a charge for every few elements
//! Value ── encode_into ─► an Out      the same into a buffer that is emptied on the way
//! payload ── decode ────► Value       rdb checks and reads, a Maker builds
//! object ── decode_body ► Value       the same without a footer
//! ```
//!
//! All take time in proportion to the value and say so as they go, through `charge` (steps of about 50 ns):
//! inline that ends in a run on a worker, there in the end of a turn.
//!
//! - Z1: a field that has expired is not written, and not read either. A hash that has only such fields is no
//!   value.
//! - Z2: strings, elements and fields are compressed if `rdbcompression` says so and they get shorter by it;
//!   of the latter those of up to 64 KB, for nothing looks at the budget within one.
//! - Z3: `encode_into` keeps nothing of a value but what the `Out` does, some 100 KB, and the one string of a
//!   compressed bitmap.

mod roaring;
mod stream;

use rdb::{CompressedPieces, CompressedString, Dialect, Form, Item, Sink, StreamPart, Writer};
use roaring::Refused;
use std::fmt;
use std::ops::ControlFlow::{Break, Continue};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use value::trie::NEVER;
use value::{Elem, Hash, Ints, List, Run, Set, Str, StrRef, Value, ZSet, hash, list};

/// Charges for steps; an error stops a long run.
pub type Charge<'c, E> = dyn FnMut(usize) -> Result<(), E> + 'c;

/// Why nothing came of a value or a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure<E> {
    /// The wish of the charge, or of the [`Out`].
    Stopped(E),
    /// A compressed bitmap or a leaf of a stream that is too long to be written.
    TooLong,
    /// The payload's version or checksum.
    Sum,
    Malformed,
    Unsupported(rdb::Unsupported),
}

impl<E> From<E> for Failure<E> {
    fn from(stop: E) -> Failure<E> {
        Failure::Stopped(stop)
    }
}

impl<E: fmt::Display> fmt::Display for Failure<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Stopped(stop) => stop.fmt(f),
            Failure::TooLong => {
                f.write_str("a compressed bitmap or an entry of a stream is too long to be written")
            }
            Failure::Sum => f.write_str("wrong version or checksum"),
            Failure::Malformed => f.write_str("malformed value"),
            Failure::Unsupported(what) => what.fmt(f),
        }
    }
}

/// Elements between two charges.
const PIECE: usize = 64;
/// Steps for an element that is written, and for one that is read.
const WRITE_STEPS: usize = 1;
const READ_STEPS: usize = 3;
/// Bytes copied, unpacked or summed in a step.
const BYTES_PER_STEP: usize = 64;
/// Longer elements are written in pieces of so many bytes.
const LONG_ELEMENT: usize = 64 * 1024;
/// Longer strings are packed twice rather than held a second time, unless the [`Out`] holds all anyway.
const PACKED_AT_ONCE: usize = 256 * 1024;
/// Bytes compressed in a step.
const COMPRESSED_PER_STEP: usize = 8;

/// `rdbcompression`.
static COMPRESSION: AtomicBool = AtomicBool::new(true);

/// Sets whether texts are compressed (Z2).
pub fn set_compression(on: bool) {
    COMPRESSION.store(on, Relaxed);
}

fn compression() -> bool {
    COMPRESSION.load(Relaxed)
}

/// Steps it takes to write a value. O(1).
pub fn write_cost(value: value::ValueRef<'_>) -> usize {
    let (elements, bytes) = match value {
        value::ValueRef::Str(text) if compression() => {
            return text.len() / COMPRESSED_PER_STEP + text.len() / (BYTES_PER_STEP / 2);
        }
        value::ValueRef::Str(text) => return text.len() / (BYTES_PER_STEP / 2),
        value::ValueRef::List(v) => (v.len(), v.mem_bytes()),
        value::ValueRef::Hash(v) => (v.len(), v.mem_bytes()),
        value::ValueRef::Set(v) => (v.len(), v.mem_bytes()),
        value::ValueRef::ZSet(v) => (v.len(), v.mem_bytes()),
        value::ValueRef::Stream(v) => return stream::write_cost(v),
        value::ValueRef::Roaring(v) | value::ValueRef::Roaring64(v) => return roaring::write_cost(v),
    };
    elements * 2 * WRITE_STEPS + if compression() { bytes / COMPRESSED_PER_STEP } else { 0 }
}

/// Payloads that are not looked through for what they cost: doing so would be a good part of it. One of them
/// can unpack to more than it seems, which the budget notices then.
const SHORT_PAYLOAD: usize = 256;

/// Steps it takes to read a payload, at most by a factor of two unless it is short. O(1): see
/// [`rdb::estimate`].
pub fn read_cost(payload: &[u8]) -> usize {
    if payload.len() <= SHORT_PAYLOAD {
        return payload.len() / 4 * READ_STEPS;
    }
    let (elements, bytes) = rdb::estimate(payload);
    (elements.saturating_mul(READ_STEPS)).saturating_add(payload.len().saturating_add(bytes) / BYTES_PER_STEP)
}

/// The same for one of many payloads, whose costs add up: a short one is taken for what most are.
pub fn read_cost_of_many(payload: &[u8]) -> usize {
    if payload.len() <= SHORT_PAYLOAD { 4 + payload.len() / 4 } else { read_cost(payload) }
}

/// Whether a value is written differently for Redis and for Valkey: fields expire. O(1).
pub fn has_dialects(value: &Value) -> bool {
    matches!(value, Value::Hash(hash) if hash.has_ttls())
}

/// Takes what is written.
pub trait Out {
    /// Why it does not want to go on.
    type Stop;

    /// Where bytes are appended. It may be emptied in [`Out::work`].
    fn buffer(&mut self) -> &mut Vec<u8>;

    /// So many steps of about 50 ns come: the moment to charge, to pause, and to empty the buffer. Between
    /// two calls less than 400 KB are appended; 70 KB unless a string is compressed.
    fn work(&mut self, steps: usize) -> Result<(), Self::Stop>;

    /// Whether the buffer is never emptied.
    fn is_whole(&self) -> bool {
        false
    }
}

/// A payload that arises.
struct Payload<'a, 'c, E> {
    bytes: Vec<u8>,
    charge: &'a mut Charge<'c, E>,
}

impl<E> Out for Payload<'_, '_, E> {
    type Stop = E;

    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    fn work(&mut self, steps: usize) -> Result<(), E> {
        (self.charge)(steps)
    }

    fn is_whole(&self) -> bool {
        true
    }
}

/// The payload of a value as of now, for Redis; None if nothing of it is left (Z1). Cost: O(bytes).
///
/// Errors: those of `charge`.
pub fn encode<E>(
    value: &Value,
    now_ms: u64,
    charge: &mut Charge<'_, E>,
) -> Result<Option<Vec<u8>>, Failure<E>> {
    encode_for(Dialect::Redis, value, now_ms, charge)
}

/// The same for servers of a dialect.
pub fn encode_for<E>(
    dialect: Dialect,
    value: &Value,
    now_ms: u64,
    charge: &mut Charge<'_, E>,
) -> Result<Option<Vec<u8>>, Failure<E>> {
    let mut out = Payload { bytes: Vec::with_capacity(room(value)), charge };
    let Some(version) = encode_into(&mut out, dialect, value, None, Some(now_ms))? else { return Ok(None) };
    let Payload { mut bytes, charge } = out;
    rdb::seal_in_pieces(&mut bytes, version, &mut |bytes| charge(bytes / BYTES_PER_STEP))?;
    Ok(Some(bytes))
}

/// Bytes that a payload is about to have, at most by what a footer and a count take.
fn room(value: &Value) -> usize {
    const MORE: usize = 32;
    match value {
        // A long text is given its room when it is known that it is not compressed.
        Value::Str(_) | Value::Roaring(_) | Value::Roaring64(_) => MORE,
        _ => value.mem_bytes() + MORE,
    }
}

/// Writes the object of a value: its type, the key if there is one, and its contents. Gives the version of
/// the format it needs.
///
/// Fields that have expired by `now_ms` are left out (Z1), and None is given if all have; without `now_ms`
/// all are written with their times, as in files.
///
/// Cost: O(bytes); a long string that gets shorter is packed twice unless the `out` is whole. Memory: Z3.
///
/// Errors: those of the `out`; a compressed bitmap is too long.
pub fn encode_into<O: Out + ?Sized>(
    out: &mut O,
    dialect: Dialect,
    value: &Value,
    key: Option<&[u8]>,
    now_ms: Option<u64>,
) -> Result<Option<u16>, Failure<O::Stop>> {
    let form = match value {
        Value::Str(text) => put_str(out, text.as_ref(), key)?,
        Value::List(list) => put_list(out, list, key)?,
        Value::Set(set) => put_set(out, set, key)?,
        Value::ZSet(set) => put_zset(out, set, key)?,
        Value::Hash(hash) => match put_hash(out, dialect, hash, key, now_ms)? {
            Some(form) => form,
            None => return Ok(None),
        },
        Value::Stream(v) => stream::put(out, v, key)?,
        Value::Roaring(bits) => put_bits(out, bits, false, key)?,
        Value::Roaring64(bits) => put_bits(out, bits, true, key)?,
    };
    Ok(Some(form.version()))
}

/// Elements of a collection on their way: says every [`PIECE`]th time how many are due, and what their bytes
/// are.
struct Elements<'o, O: Out + ?Sized> {
    out: &'o mut O,
    writer: Writer,
    done: usize,
    bytes: usize,
    /// Steps for texts that were or will be compressed; None if none are.
    compressed: Option<usize>,
}

impl<'o, O: Out + ?Sized> Elements<'o, O> {
    fn begin(out: &'o mut O, form: Form, key: Option<&[u8]>, count: usize) -> Elements<'o, O> {
        let mut writer = Writer::begin(out.buffer(), form, key);
        writer.count(out.buffer(), count);
        let compressed = compression().then_some(0);
        if compressed.is_some() {
            writer.compress();
        }
        Elements { out, writer, done: 0, bytes: 0, compressed }
    }

    /// One more element, field or member comes.
    fn tick(&mut self) -> Result<(), O::Stop> {
        self.done += 1;
        if self.done.is_multiple_of(PIECE) || self.bytes > PIECE * BYTES_PER_STEP {
            let bytes = std::mem::take(&mut self.bytes);
            self.out.work(PIECE * WRITE_STEPS + bytes / BYTES_PER_STEP)?;
        }
        Ok(())
    }

    fn item(&mut self, item: Item<'_>) -> Result<(), O::Stop> {
        if let Item::Bytes(text) = item {
            if text.len() > LONG_ELEMENT {
                return self.long(text);
            }
            self.compresses(text.len())?;
        }
        let buffer = self.out.buffer();
        let before = buffer.len();
        self.writer.item(buffer, item);
        self.bytes += buffer.len() - before;
        Ok(())
    }

    /// A text of so many bytes may be compressed.
    fn compresses(&mut self, len: usize) -> Result<(), O::Stop> {
        if let Some(due) = &mut self.compressed
            && rdb::is_compressed(len)
        {
            *due += len / COMPRESSED_PER_STEP;
            if *due >= PIECE {
                return self.out.work(std::mem::take(due));
            }
        }
        Ok(())
    }

    fn long(&mut self, text: &[u8]) -> Result<(), O::Stop> {
        rdb::put_len(self.out.buffer(), text.len() as u64);
        for piece in text.chunks(LONG_ELEMENT) {
            self.out.work(piece.len() / BYTES_PER_STEP)?;
            self.out.buffer().extend_from_slice(piece);
        }
        Ok(())
    }
}

fn put_str<O: Out + ?Sized>(out: &mut O, text: StrRef<'_>, key: Option<&[u8]>) -> Result<Form, O::Stop> {
    let form = Form::String;
    Writer::begin(out.buffer(), form, key);
    if let Some(number) = text.as_i64() {
        rdb::put_int(out.buffer(), number);
        return Ok(form);
    }
    let is_compressed = compression()
        && if out.is_whole() || text.len() <= PACKED_AT_ONCE {
            put_compressed(out, text)?
        } else {
            put_compressed_in_pieces(out, text)?
        };
    if is_compressed {
        return Ok(form);
    }
    if out.is_whole() {
        out.buffer().reserve(text.len() + 24);
    }
    rdb::put_len(out.buffer(), text.len() as u64);
    let mut bytes = 0;
    for piece in pieces(text) {
        bytes += piece.len();
        if bytes > PIECE * BYTES_PER_STEP {
            out.work(std::mem::take(&mut bytes) / BYTES_PER_STEP)?;
        }
        out.buffer().extend_from_slice(piece);
    }
    Ok(form)
}

/// False, and nothing is written, if it would not be shorter.
fn put_compressed<O: Out + ?Sized>(out: &mut O, text: StrRef<'_>) -> Result<bool, O::Stop> {
    if !rdb::gains_from(text.len()) {
        return Ok(false);
    }
    let mut string = CompressedString::within(std::mem::take(out.buffer()), text.len());
    for piece in pieces(text) {
        // The buffer is away meanwhile: nothing of it is written out here.
        if let Err(stop) = out.work(piece.len() / COMPRESSED_PER_STEP) {
            *out.buffer() = string.given_up();
            return Err(stop);
        }
        if !string.push(piece) {
            *out.buffer() = string.given_up();
            return Ok(false);
        }
    }
    let (buffer, gains) = match string.into_buffer() {
        Ok(buffer) => (buffer, true),
        Err(buffer) => (buffer, false),
    };
    *out.buffer() = buffer;
    Ok(gains)
}

/// The same, packed twice: the length must be known first.
fn put_compressed_in_pieces<O: Out + ?Sized>(out: &mut O, text: StrRef<'_>) -> Result<bool, O::Stop> {
    let Some(mut string) = CompressedPieces::new(text.len()) else { return Ok(false) };
    let mut dropped = Vec::new();
    for piece in pieces(text) {
        out.work(piece.len() / COMPRESSED_PER_STEP)?;
        string.push(piece, &mut dropped);
        dropped.clear();
        if !string.gains() {
            return Ok(false);
        }
    }
    string.finish(&mut dropped);
    if !string.gains() {
        return Ok(false);
    }
    string.begin(out.buffer());
    for piece in pieces(text) {
        out.work(piece.len() / COMPRESSED_PER_STEP)?;
        string.push(piece, out.buffer());
    }
    string.finish(out.buffer());
    Ok(true)
}

/// The bytes of a string, a few KB at a time: one that is all zeros comes in many pieces too.
fn pieces(text: StrRef<'_>) -> impl Iterator<Item = &[u8]> {
    static ZEROS: [u8; 4096] = [0; 4096];
    text.runs(0..text.len()).flat_map(|run| {
        let (bytes, zeros) = match run {
            Run::Bytes(bytes) => (bytes, 0),
            Run::Zeros(zeros) => (&[][..], zeros as usize),
        };
        let whole = std::iter::repeat_n(&ZEROS[..], zeros / ZEROS.len());
        bytes.chunks(ZEROS.len()).chain(whole).chain([&ZEROS[..zeros % ZEROS.len()]])
    })
}

fn item(elem: Elem<'_>) -> Item<'_> {
    match elem {
        Elem::Int(number) => Item::Int(number),
        Elem::Bytes(bytes) => Item::Bytes(bytes),
    }
}

fn put_list<O: Out + ?Sized>(out: &mut O, list: &List, key: Option<&[u8]>) -> Result<Form, O::Stop> {
    let mut elements = Elements::begin(out, Form::List, key, list.len());
    for elem in list.iter() {
        elements.tick()?;
        elements.item(item(elem))?;
    }
    Ok(Form::List)
}

fn put_set<O: Out + ?Sized>(out: &mut O, set: &Set, key: Option<&[u8]>) -> Result<Form, O::Stop> {
    let mut elements = Elements::begin(out, Form::Set, key, set.len());
    for elem in set.iter() {
        elements.tick()?;
        elements.item(item(elem))?;
    }
    Ok(Form::Set)
}

fn put_zset<O: Out + ?Sized>(out: &mut O, set: &ZSet, key: Option<&[u8]>) -> Result<Form, O::Stop> {
    let mut elements = Elements::begin(out, Form::ZSet, key, set.len());
    for (member, score) in set.iter() {
        elements.tick()?;
        elements.item(Item::Bytes(member))?;
        elements.writer.score(elements.out.buffer(), score);
    }
    Ok(Form::ZSet)
}

fn put_hash<O: Out + ?Sized>(
    out: &mut O,
    dialect: Dialect,
    hash: &Hash,
    key: Option<&[u8]>,
    now_ms: Option<u64>,
) -> Result<Option<Form>, O::Stop> {
    let (now, count) = match now_ms {
        Some(now) => (now, count_live(hash, now, out)?),
        None => (0, hash.len()),
    };
    if count == 0 {
        return Ok(None);
    }
    let form = match hash.next_expiry() {
        // All that expire may have expired already; then the time says nothing, and does no harm.
        Some(soonest) => Form::Expiring { dialect, soonest_ms: soonest.max(now) },
        None => Form::Hash,
    };
    let mut elements = Elements::begin(out, form, key, count);
    for entry in hash.entries_from(0) {
        elements.tick()?;
        if entry.expire_at <= now && now_ms.is_some() {
            continue;
        }
        let expire_ms = Some(entry.expire_at).filter(|at| *at != NEVER);
        elements.writer.before_field(elements.out.buffer(), expire_ms);
        elements.item(Item::Bytes(entry.field))?;
        elements.item(Item::Bytes(entry.value))?;
        elements.writer.behind_field(elements.out.buffer(), expire_ms);
    }
    Ok(Some(form))
}

fn put_bits<O: Out + ?Sized>(
    out: &mut O,
    bits: &Ints,
    wide: bool,
    key: Option<&[u8]>,
) -> Result<Form, Failure<O::Stop>> {
    let data = roaring::encode(bits, wide, &mut |steps| out.work(steps))?;
    let name = if wide { roaring::WIDE } else { roaring::NARROW };
    Writer::begin(out.buffer(), Form::Module, key);
    if out.is_whole() {
        out.buffer().reserve(data.len() + 24);
    }
    rdb::begin_module(out.buffer(), name, roaring::VERSION, data.len());
    for piece in data.chunks(LONG_ELEMENT) {
        out.work(piece.len() / BYTES_PER_STEP)?;
        out.buffer().extend_from_slice(piece);
    }
    rdb::end_module(out.buffer());
    Ok(Form::Module)
}

fn count_live<O: Out + ?Sized>(hash: &Hash, now_ms: u64, out: &mut O) -> Result<usize, O::Stop> {
    let mut refused = None;
    let live = hash.count_live(now_ms, &mut |fields| match out.work(fields * WRITE_STEPS) {
        Ok(()) => Continue(()),
        Err(error) => {
            refused = Some(error);
            Break(())
        }
    });
    // Only a refusal breaks it off.
    refused.map_or(Ok(live.unwrap_or_default()), Err)
}

/// The contents of a payload, if it is sound; see [`decode`].
#[derive(Debug)]
pub enum Decoded {
    Value(Value),
    /// A hash whose fields have all expired.
    Expired,
}

/// The value of a payload as of now. Cost: O(bytes), unpacked.
///
/// Errors: DUMP payload version or checksum are wrong, Bad data format (and of what, if it is sound but not
/// supported); those of `charge`.
pub fn decode<E>(payload: &[u8], now_ms: u64, charge: &mut Charge<'_, E>) -> Result<Decoded, Failure<E>> {
    let opened = rdb::open_in_pieces(payload, &mut |bytes| charge(bytes / BYTES_PER_STEP))?;
    let (body, version) = opened.ok_or(Failure::Sum)?;
    decode_body(body, version, now_ms, charge)
}

/// The same without a footer: an object of a file that was written in this version. At time 0 nothing has
/// expired.
pub fn decode_body<E>(
    body: &[u8],
    version: u16,
    now_ms: u64,
    charge: &mut Charge<'_, E>,
) -> Result<Decoded, Failure<E>> {
    let mut maker = Maker { made: Made::Nothing, expected: (0, 0), now_ms, charge };
    match rdb::decode(body, version, &mut maker) {
        Ok(()) => maker.made.finish(),
        Err(rdb::Failure::Stopped(error)) => Err(Failure::Stopped(error)),
        Err(rdb::Failure::Malformed) => Err(Failure::Malformed),
        Err(rdb::Failure::Unsupported(what)) => Err(Failure::Unsupported(what)),
    }
}

enum Made {
    Nothing,
    Str(Str),
    List(list::Growing),
    Hash(Hash),
    Set(Set),
    ZSet(ZSet),
    Stream(stream::Growing),
    Value(Value),
}

impl Made {
    fn finish<E>(self) -> Result<Decoded, Failure<E>> {
        Ok(Decoded::Value(match self {
            Made::Nothing => return Err(Failure::Malformed),
            Made::Hash(v) if v.is_empty() => return Ok(Decoded::Expired),
            Made::Str(v) => Value::Str(v),
            Made::List(v) => Value::List(v.finish()),
            Made::Hash(v) => Value::Hash(v),
            Made::Set(v) => Value::Set(v),
            Made::ZSet(v) => Value::ZSet(v),
            Made::Stream(v) => Value::Stream(v.finish().ok_or(Failure::Malformed)?),
            Made::Value(v) => v,
        }))
    }
}

/// Builds the value.
struct Maker<'a, 'c, E> {
    made: Made,
    /// Fields that are to come, and their bytes.
    expected: (usize, usize),
    now_ms: u64,
    charge: &'a mut Charge<'c, E>,
}

impl<E> Sink for Maker<'_, '_, E> {
    type Stop = E;

    fn work(&mut self, elements: usize, bytes: usize) -> Result<(), E> {
        (self.charge)(elements * READ_STEPS + bytes / BYTES_PER_STEP)
    }

    fn expect(&mut self, elements: usize, bytes: usize) {
        self.expected = (elements, bytes);
    }

    fn string(&mut self, text: Item<'_>) {
        self.made = Made::Str(text.with(Str::from_slice));
    }

    fn element(&mut self, element: Item<'_>) {
        if let Made::Nothing = self.made {
            self.made = Made::List(list::Growing::new());
        }
        if let Made::List(list) = &mut self.made {
            list.push(elem(element));
        }
    }

    fn member(&mut self, member: Item<'_>) -> bool {
        if let Made::Nothing = self.made {
            self.made = Made::Set(Set::new());
        }
        let Made::Set(set) = &mut self.made else { return false };
        let member = elem(member);
        set.insert_elem(member, member.hash())
    }

    fn scored(&mut self, member: Item<'_>, score: f64) -> bool {
        if let Made::Nothing = self.made {
            self.made = Made::ZSet(ZSet::new());
        }
        let Made::ZSet(set) = &mut self.made else { return false };
        member.with(|member| set.insert(member, score)).is_none()
    }

    fn entry<'f>(&mut self, id: (u64, u64), fields: &mut dyn Iterator<Item = (&'f [u8], &'f [u8])>) -> bool {
        self.stream_begun().is_some_and(|stream| stream.entry(id, fields))
    }

    fn stream(&mut self, part: StreamPart<'_>) -> bool {
        self.stream_begun().is_some_and(|stream| stream.part(part))
    }

    fn knows(&self, module: &[u8; 9], version: u16) -> bool {
        matches!(module, roaring::NARROW | roaring::WIDE) && version == roaring::VERSION
    }

    fn module(&mut self, name: &[u8; 9], data: &[u8]) -> Result<bool, E> {
        let wide = name == roaring::WIDE;
        let make: fn(Ints) -> Value = if wide { Value::Roaring64 } else { Value::Roaring };
        match roaring::decode(data, wide, self.charge) {
            Ok(bits) => self.made = Made::Value(make(bits)),
            Err(Refused::Malformed) => return Ok(false),
            Err(Refused::Stopped(error)) => return Err(error),
        }
        Ok(true)
    }

    fn field(&mut self, field: Item<'_>, value: Item<'_>, expire_ms: Option<u64>) -> bool {
        let expire_at = expire_ms.unwrap_or(NEVER);
        field.with(|field| value.with(|value| self.entry(hash::Entry { field, value, expire_at })))
    }
}

impl<E> Maker<'_, '_, E> {
    fn stream_begun(&mut self) -> Option<&mut stream::Growing> {
        if let Made::Nothing = self.made {
            self.made = Made::Stream(stream::Growing::default());
        }
        if let Made::Stream(stream) = &mut self.made { Some(stream) } else { None }
    }

    fn entry(&mut self, entry: hash::Entry<'_>) -> bool {
        let expired = entry.expire_at <= self.now_ms; // Z1
        match &mut self.made {
            Made::Hash(_) if expired => true,
            Made::Hash(hash) => hash.put(entry),
            Made::Nothing => {
                let (fields, bytes) = self.expected;
                let begun = || Hash::begun(entry, fields, bytes);
                self.made = Made::Hash(if expired { Hash::new() } else { begun() });
                true
            }
            _ => false,
        }
    }
}

/// The form of an element: numbers are canonical, texts may be numbers.
fn elem(item: Item<'_>) -> Elem<'_> {
    match item {
        Item::Int(number) => Elem::Int(number),
        Item::Bytes(bytes) => Elem::parse(bytes),
    }
}

#[cfg(test)]
mod tests;
