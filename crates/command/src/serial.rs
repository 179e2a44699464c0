//! Values to Redis's serialized form and back: DUMP payloads, for RESTORE here and on any Redis.
//!
//! ```text
//! Value ── encode ──► payload         iterates over the value, a charge for every few elements
//! payload ── decode ──► Value         rdb checks and reads, a Maker builds
//! ```
//!
//! Both take time in proportion to the value and report it as they go, through `charge` (steps of about 50
//! ns). A refused charge moves an inline run to a worker; on a worker a charge may end a turn.
//!
//! - Z1: an expired field is neither written nor read. A hash with only such fields is no value.
//! - Z2: with `rdbcompression`, strings, elements and fields are compressed if that makes them shorter.
//!   Elements and fields of more than 64 KB are not, as the budget is not checked within one.

mod roaring;

use crate::Error;
use rdb::{
    CompressedString, Dialect, Failure, HashPayload, Item, ListPayload, SetPayload, Sink, ZSetPayload,
};
use roaring::Refused;
use std::ops::ControlFlow::{Break, Continue};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use value::trie::NEVER;
use value::{Elem, Hash, Ints, List, Run, Set, Str, StrRef, Value, ZSet, hash, list};

/// A function that is charged steps and may stop a long run.
pub type Charge<'c> = dyn FnMut(usize) -> Result<(), Error> + 'c;

/// Elements between two charges.
const PIECE: usize = 64;
/// Steps to write an element, and to read one.
const WRITE_STEPS: usize = 1;
const READ_STEPS: usize = 3;
/// Bytes copied, unpacked or summed in a step.
const BYTES_PER_STEP: usize = 64;
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

/// Steps to write a value. O(1).
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
        value::ValueRef::Roaring(v) | value::ValueRef::Roaring64(v) => return roaring::write_cost(v),
    };
    elements * 2 * WRITE_STEPS + if compression() { bytes / COMPRESSED_PER_STEP } else { 0 }
}

/// Length up to which a payload's cost is not estimated, as estimating would be a good part of the cost. Such
/// a payload can unpack to more than it seems; the budget notices that.
const SHORT_PAYLOAD: usize = 256;

/// Steps to read a payload, at most by a factor of two unless it is short. O(1): see [`rdb::estimate`].
pub fn read_cost(payload: &[u8]) -> usize {
    if payload.len() <= SHORT_PAYLOAD {
        return payload.len() / 4 * READ_STEPS;
    }
    let (elements, bytes) = rdb::estimate(payload);
    (elements.saturating_mul(READ_STEPS)).saturating_add(payload.len().saturating_add(bytes) / BYTES_PER_STEP)
}

/// As [`read_cost`], for one of many payloads whose costs add up. A short one counts as an average one.
pub fn read_cost_of_many(payload: &[u8]) -> usize {
    if payload.len() <= SHORT_PAYLOAD { 4 + payload.len() / 4 } else { read_cost(payload) }
}

/// Whether Redis and Valkey write a value differently: its fields expire. O(1).
pub fn has_dialects(value: &Value) -> bool {
    matches!(value, Value::Hash(hash) if hash.has_ttls())
}

/// The payload of a value as of now, for Redis. None if nothing of it is left (Z1). Cost: O(bytes).
///
/// Errors: those of `charge`.
pub fn encode(value: &Value, now_ms: u64, charge: &mut Charge<'_>) -> Result<Option<Vec<u8>>, Error> {
    encode_for(Dialect::Redis, value, now_ms, charge)
}

/// As [`encode`], for servers of a dialect.
pub fn encode_for(
    dialect: Dialect,
    value: &Value,
    now_ms: u64,
    charge: &mut Charge<'_>,
) -> Result<Option<Vec<u8>>, Error> {
    let body = match value {
        Value::Str(v) => Some((string_body(v.as_ref(), charge)?, rdb::VERSION_VALUES)),
        Value::List(v) => plain(list_body(v, charge)?.into_body()),
        Value::Set(v) => plain(set_body(v, charge)?.into_body()),
        Value::ZSet(v) => plain(zset_body(v, charge)?.into_body()),
        Value::Hash(v) => hash_body(dialect, v, now_ms, charge)?.into_body(dialect),
        Value::Roaring(v) => plain(Some(rdb::module_body(
            roaring::NARROW,
            roaring::VERSION,
            &roaring::encode(v, false, charge)?,
        ))),
        Value::Roaring64(v) => {
            plain(Some(rdb::module_body(roaring::WIDE, roaring::VERSION, &roaring::encode(v, true, charge)?)))
        }
    };
    let Some((mut payload, version)) = body else { return Ok(None) };
    rdb::seal_in_pieces(&mut payload, version, &mut |bytes| charge(bytes / BYTES_PER_STEP))?;
    Ok(Some(payload))
}

fn plain(body: Option<Vec<u8>>) -> Option<(Vec<u8>, u16)> {
    body.map(|body| (body, rdb::VERSION_VALUES))
}

/// Charges for elements, [`PIECE`] at a time.
struct Pace<'a, 'c> {
    charge: &'a mut Charge<'c>,
    done: usize,
    bytes: usize,
    /// Steps due for texts that were or will be compressed. None if texts are not compressed.
    compressed: Option<usize>,
}

impl<'a, 'c> Pace<'a, 'c> {
    fn new(charge: &'a mut Charge<'c>) -> Pace<'a, 'c> {
        Pace { charge, done: 0, bytes: 0, compressed: None }
    }

    /// A pace for texts that may be compressed.
    fn compressing(charge: &'a mut Charge<'c>) -> Pace<'a, 'c> {
        Pace { compressed: compression().then_some(0), ..Pace::new(charge) }
    }

    /// Counts a text of so many bytes.
    fn text(&mut self, len: usize) -> Result<(), Error> {
        if let Some(due) = &mut self.compressed
            && rdb::is_compressed(len)
        {
            *due += len / COMPRESSED_PER_STEP;
            if *due >= PIECE {
                return (self.charge)(std::mem::take(due));
            }
        }
        Ok(())
    }

    fn item(&mut self, item: Item<'_>) -> Result<(), Error> {
        match item {
            Item::Bytes(text) => self.text(text.len()),
            Item::Int(_) => Ok(()),
        }
    }

    /// Counts one more element. `bytes`: the length written so far.
    fn tick(&mut self, bytes: usize) -> Result<(), Error> {
        self.done += 1;
        if self.done.is_multiple_of(PIECE) || bytes > self.bytes + PIECE * BYTES_PER_STEP {
            let more = bytes.saturating_sub(self.bytes);
            self.bytes = bytes;
            (self.charge)(PIECE * WRITE_STEPS + more / BYTES_PER_STEP)?;
        }
        Ok(())
    }
}

fn string_body(text: StrRef<'_>, charge: &mut Charge<'_>) -> Result<Vec<u8>, Error> {
    if let Some(number) = text.as_i64() {
        let mut out = Vec::with_capacity(32);
        rdb::put_number(&mut out, number);
        return Ok(out);
    }
    if compression()
        && let Some(body) = compressed_body(text, charge)?
    {
        return Ok(body);
    }
    let mut out = Vec::with_capacity(text.len() + 24);
    rdb::begin_string(&mut out, text.len());
    let mut pace = Pace::new(charge);
    for piece in pieces(text) {
        pace.tick(out.len() + piece.len())?;
        out.extend_from_slice(piece);
    }
    Ok(out)
}

/// None if compression would not make it shorter.
fn compressed_body(text: StrRef<'_>, charge: &mut Charge<'_>) -> Result<Option<Vec<u8>>, Error> {
    let Some(mut string) = CompressedString::new(text.len()) else { return Ok(None) };
    for piece in pieces(text) {
        charge(piece.len() / COMPRESSED_PER_STEP)?;
        if !string.push(piece) {
            return Ok(None);
        }
    }
    Ok(string.into_body())
}

/// The bytes of a string, a few KB at a time. A string of zeros comes in many pieces too.
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

fn list_body(list: &List, charge: &mut Charge<'_>) -> Result<ListPayload, Error> {
    let mut out = ListPayload::with_len(list.len());
    out.reserve(list.mem_bytes());
    let mut pace = Pace::compressing(charge);
    if pace.compressed.is_some() {
        out.compress();
    }
    for elem in list.iter() {
        pace.tick(out.size_bytes())?;
        pace.item(item(elem))?;
        out.push_item(item(elem));
    }
    Ok(out)
}

fn set_body(set: &Set, charge: &mut Charge<'_>) -> Result<SetPayload, Error> {
    let mut out = SetPayload::with_len(set.len());
    out.reserve(set.mem_bytes());
    let mut pace = Pace::compressing(charge);
    if pace.compressed.is_some() {
        out.compress();
    }
    for elem in set.iter() {
        pace.tick(out.size_bytes())?;
        pace.item(item(elem))?;
        out.insert_item(item(elem));
    }
    Ok(out)
}

fn zset_body(set: &ZSet, charge: &mut Charge<'_>) -> Result<ZSetPayload, Error> {
    let mut out = ZSetPayload::with_len(set.len());
    out.reserve(set.mem_bytes());
    let mut pace = Pace::compressing(charge);
    if pace.compressed.is_some() {
        out.compress();
    }
    for (member, score) in set.iter() {
        pace.tick(out.size_bytes())?;
        pace.text(member.len())?;
        out.insert(member, score);
    }
    Ok(out)
}

fn hash_body(
    dialect: Dialect,
    hash: &Hash,
    now_ms: u64,
    charge: &mut Charge<'_>,
) -> Result<HashPayload, Error> {
    let live = count_live(hash, now_ms, charge)?;
    let mut out = match hash.next_expiry() {
        // All of them may have expired already; the time then says nothing and does no harm.
        Some(soonest) => HashPayload::expiring(dialect, live, soonest.max(now_ms)),
        None => HashPayload::with_len(live),
    };
    out.reserve(hash.mem_bytes());
    let mut pace = Pace::compressing(charge);
    if pace.compressed.is_some() {
        out.compress();
    }
    for entry in hash.entries_from(0) {
        pace.tick(out.size_bytes())?;
        if entry.expire_at <= now_ms {
            continue;
        }
        pace.text(entry.field.len())?;
        pace.text(entry.value.len())?;
        match entry.expire_at {
            NEVER => out.insert(entry.field, entry.value),
            at => out.insert_expiring(entry.field, entry.value, at),
        };
    }
    Ok(out)
}

fn count_live(hash: &Hash, now_ms: u64, charge: &mut Charge<'_>) -> Result<usize, Error> {
    let mut refused = None;
    let live = hash.count_live(now_ms, &mut |fields| match charge(fields * WRITE_STEPS) {
        Ok(()) => Continue(()),
        Err(error) => {
            refused = Some(error);
            Break(())
        }
    });
    live.ok_or_else(|| refused.unwrap_or(Error::Cancelled))
}

/// The content of a sound payload. See [`decode`].
#[derive(Debug)]
pub enum Decoded {
    Value(Value),
    /// A hash whose fields have all expired.
    Expired,
}

/// The value of a payload as of now. Cost: O(bytes), unpacked.
///
/// Errors: DUMP payload version or checksum are wrong; Bad data format (with the reason, if the payload is
/// sound but not supported); those of `charge`.
pub fn decode(payload: &[u8], now_ms: u64, charge: &mut Charge<'_>) -> Result<Decoded, Error> {
    let opened = rdb::open_in_pieces(payload, &mut |bytes| charge(bytes / BYTES_PER_STEP))?;
    let (body, version) = opened.ok_or(Error::new("ERR DUMP payload version or checksum are wrong"))?;
    let mut maker = Maker { made: Made::Nothing, expected: (0, 0), now_ms, charge };
    match rdb::decode(body, version, &mut maker) {
        Ok(()) => maker.made.finish(),
        Err(Failure::Stopped(error)) => Err(error),
        Err(Failure::Malformed) => Err(BAD_FORMAT),
        Err(Failure::Unsupported(what)) => Err(Error::from(format!("{BAD_FORMAT_TEXT}: {what}"))),
    }
}

const BAD_FORMAT_TEXT: &str = "ERR Bad data format";
const BAD_FORMAT: Error = Error::new(BAD_FORMAT_TEXT);

enum Made {
    Nothing,
    Str(Str),
    List(list::Growing),
    Hash(Hash),
    Set(Set),
    ZSet(ZSet),
    Value(Value),
}

impl Made {
    fn finish(self) -> Result<Decoded, Error> {
        Ok(Decoded::Value(match self {
            Made::Nothing => return Err(BAD_FORMAT),
            Made::Hash(v) if v.is_empty() => return Ok(Decoded::Expired),
            Made::Str(v) => Value::Str(v),
            Made::List(v) => Value::List(v.finish()),
            Made::Hash(v) => Value::Hash(v),
            Made::Set(v) => Value::Set(v),
            Made::ZSet(v) => Value::ZSet(v),
            Made::Value(v) => v,
        }))
    }
}

/// Builds the value.
struct Maker<'a, 'c> {
    made: Made,
    /// Fields still to come, and their bytes.
    expected: (usize, usize),
    now_ms: u64,
    charge: &'a mut Charge<'c>,
}

impl Sink for Maker<'_, '_> {
    type Stop = Error;

    fn work(&mut self, elements: usize, bytes: usize) -> Result<(), Error> {
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

    fn knows(&self, module: &[u8; 9], version: u16) -> bool {
        matches!(module, roaring::NARROW | roaring::WIDE) && version == roaring::VERSION
    }

    fn module(&mut self, name: &[u8; 9], data: &[u8]) -> Result<bool, Error> {
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

impl Maker<'_, '_> {
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

/// The form of an element. Numbers are canonical; texts may be numbers.
fn elem(item: Item<'_>) -> Elem<'_> {
    match item {
        Item::Int(number) => Elem::Int(number),
        Item::Bytes(bytes) => Elem::parse(bytes),
    }
}
