//! DUMP and RESTORE: a value as bytes that any Redis understands, and back. MIGRATE, which `exec` performs,
//! uses both.
//!
//! Both take time in proportion to the value. A run longer than a quantum goes to a worker, which returns a
//! finished payload, or a finished value to be committed in O(1).

use super::object::{FREQ_NEW, FREQ_STEP};
use crate::facts;
use crate::hash::expiry::note_times;
use crate::options::{int, is};
use crate::serial::{self, Decoded};
use crate::stream::idmp;
use crate::table::*;
use crate::{Cx, Error, Held, Stream};
use ::serial::Failure;
use keyspace::{Class, View};
use resp::{Args, Reply};
use stdx::points::{self, Point};
use value::stream::Producers;
use value::trie::NEVER;
use value::{Hash, Value};

const TRIP: &str = "O(N) for the N bytes of the payload.";

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("dump", 2, Run::Read(dump), READONLY, acl::KEYSPACE)
        .keys(&[KeySpec::one(1, RO_ACCESS)])
        .tips(&["nondeterministic_output"])
        .cost(dump_cost)
        .doc("generic", "2.6.0", TRIP, "Gives a value in the serialized form that RESTORE takes."),
    Command::new("restore", -4, Run::Write(restore), WRITE | DENYOOM, acl::KEYSPACE | acl::DANGEROUS)
        .keys(&[KeySpec::one(1, OW_UPDATE)])
        .cost(restore_cost)
        .portable(500)
        .doc("generic", "2.6.0", TRIP, "Makes a key of a value in serialized form."),
    Command::new(
        "mrestore",
        -5,
        Run::Write(mrestore),
        WRITE | DENYOOM | MOVABLEKEYS,
        acl::KEYSPACE | acl::DANGEROUS,
    )
    .keys(&[RESTORED])
    .cost(mrestore_cost)
    .effect(Effect::Noted)
    .portable(500)
    .doc("generic", "1.0.0", TRIP, "Makes keys of values in serialized form."),
    Command::new("migrate", -6, Run::Exec, WRITE | MOVABLEKEYS, acl::KEYSPACE | acl::DANGEROUS)
        .portable(100)
        .facts(facts::CHANGES | facts::MANY_WORDS | facts::KEY_WORDS | facts::KEYS_BEHIND)
        .keys(&[KeySpec::one(3, MOVED), MOVED_TOO])
        .tips(&["nondeterministic_output"])
        .effect(Effect::Noted)
        .doc("generic", "2.6.0", "A DUMP and DEL here, a RESTORE there.", "Moves keys to another server."),
];

/// The number of keys. Each key is followed by its time to live and its payload.
const RESTORED: KeySpec = KeySpec {
    find: Find::KeyNum { num: 0, first: 1, step: RESTORED_STEP },
    ..KeySpec::numkeys(1, OW_UPDATE)
};
const RESTORED_STEP: usize = 3;

const MOVED: Use = Use(&["RW", "access", "delete"]);
const MIGRATE_OPTIONS: OptionWords = OptionWords { from: 6, takes: &[("auth", 1), ("auth2", 2)] };
const MOVED_TOO: KeySpec = KeySpec {
    begin: Begin::Keyword { word: "KEYS", shown: -2, options: MIGRATE_OPTIONS },
    ..KeySpec::range(0, -1, 1, Use(&["RW", "access", "delete", "incomplete"]))
};

/// Fields of one command that is noted.
const NOTED: usize = 512;
/// Steps to note a field.
const NOTE_STEPS: usize = 4;

/// Bytes above which a payload is streamed.
const STREAM_BYTES: usize = 64 * 1024;

fn dump_cost(view: &View<'_>, args: Args<'_>) -> usize {
    view.value(args.at(1)).map_or(0, serial::write_cost)
}

/// `DUMP key`: the payload, or null.
///
/// Cost: O(n), n = bytes of the value; more than 64 KB are streamed. Errors: a compressed bitmap too long for
/// a string.
fn dump(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    points::trip(Point::Read);
    let owned = cx.view.owned(key);
    let due_ms = cx.view.due_ms();
    let payload = match &owned {
        Some(owned) => serial::encode(&owned.value, due_ms, &mut |steps| cx.budget.charge(steps))?,
        None => None,
    };
    cx.view.count_lookup(key, payload.is_some());
    match payload {
        None => cx.out.null(),
        Some(payload) if payload.len() > STREAM_BYTES => {
            cx.out.begin_bulk(payload.len());
            cx.stream(Payload { bytes: payload, at: 0 })?;
        }
        Some(payload) => cx.out.bulk(&payload),
    }
    Ok(())
}

/// The bytes of a bulk whose header is written.
struct Payload {
    bytes: Vec<u8>,
    at: usize,
}

impl Stream for Payload {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let to = self.at.saturating_add(room.max(1)).min(self.bytes.len());
        out.bulk_part(&self.bytes[self.at..to]);
        self.at = to;
        if to == self.bytes.len() {
            out.end_bulk();
        }
        to < self.bytes.len()
    }

    fn holds(&self, held: &mut dyn FnMut(Held)) {
        held(Held::own(self, self.bytes.capacity()));
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        stdx::reclaim::defer(bytes.capacity(), move || drop(bytes));
    }
}

fn restore_cost(view: &View<'_>, args: Args<'_>) -> usize {
    args.get(3).map_or(0, serial::read_cost) << usize::from(view.listens())
}

#[derive(Default)]
struct RestoreOptions {
    replace: bool,
    absttl: bool,
    idle_s: Option<u64>,
    freq: Option<i64>,
}

impl RestoreOptions {
    fn parse(args: Args<'_>) -> Result<RestoreOptions, Error> {
        let (mut options, mut i) = (RestoreOptions::default(), 0);
        while i < args.len() {
            let more = i + 1 < args.len();
            if is(args.at(i), "replace") {
                options.replace = true;
            } else if is(args.at(i), "absttl") {
                options.absttl = true;
            } else if is(args.at(i), "idletime") && more && options.freq.is_none() {
                let idle = int(args.at(i + 1))?;
                let refused = || Error::new("ERR Invalid IDLETIME value, must be >= 0");
                options.idle_s = Some(u64::try_from(idle).map_err(|_| refused())?);
                i += 1;
            } else if is(args.at(i), "freq") && more && options.idle_s.is_none() {
                let freq = int(args.at(i + 1))?;
                if !(0..=255).contains(&freq) {
                    return Err(Error::new("ERR Invalid FREQ value, must be >= 0 and <= 255"));
                }
                options.freq = Some(freq);
                i += 1;
            } else {
                return Err(Error::Syntax);
            }
            i += 1;
        }
        Ok(options)
    }

    /// Reads the options of MRESTORE. Errors: syntax, for IDLETIME and FREQ too.
    fn parse_some(args: Args<'_>) -> Result<RestoreOptions, Error> {
        let options = RestoreOptions::parse(args)?;
        if options.idle_s.is_some() || options.freq.is_some() { Err(Error::Syntax) } else { Ok(options) }
    }

    /// Refuses a key that exists, unless it may be replaced. Errors: BUSYKEY.
    fn admit(&self, cx: &Cx<'_, '_>, key: &[u8]) -> Result<(), Error> {
        if !self.replace && cx.view.exists(key) {
            return Err(Error::new("BUSYKEY Target key name already exists."));
        }
        Ok(())
    }
}

/// `RESTORE key ttl serialized-value [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]`: OK. FREQ sets
/// the value of OBJECT FREQ, as near as possible. A time in the past makes no key.
///
/// Cost: O(n), n = bytes of the payload, unpacked. Errors: syntax, BUSYKEY, a negative time, a payload of an
/// unsupported form, a broken payload.
fn restore(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let options = RestoreOptions::parse(args.from(4))?;
    options.admit(cx, key)?;
    let ttl = time_to_live(args.at(2))?;
    let decoded = decode(cx, args.at(3))?;
    // Encoding comes before any change too.
    let told = Told::of(cx, &decoded, args.at(3))?;
    match put(cx, key, ttl, decoded, &options) {
        Put::Made => told.note(cx, key, deadline(cx, ttl, options.absttl), args.from(4)),
        Put::Removed => cx.effect(&[b"DEL", key]),
        Put::Nothing => {}
    }
    cx.out.ok();
    Ok(())
}

fn mrestore_cost(view: &View<'_>, args: Args<'_>) -> usize {
    let payloads = (4..args.len()).step_by(RESTORED_STEP).map(|at| args.at(at));
    payloads.map(serial::read_cost_of_many).fold(0, usize::saturating_add) << usize::from(view.listens())
}

/// `MRESTORE numkeys key ttl serialized-value [key ttl serialized-value ...] [REPLACE] [ABSTTL]`: an array of
/// RESTORE's answers, one for each key. All restored keys appear at once.
///
/// Cost: O(n), n = bytes of all payloads, unpacked. Errors: bad numkeys and bad options, and then nothing is
/// done. An error of a single key is in its place in the array.
fn mrestore(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let most = (args.len() - 2) / RESTORED_STEP;
    let keys = int(args.at(1)).ok().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
    let keys = keys.ok_or(Error::new("ERR invalid numkeys value or out of range"))?;
    if keys > most {
        return Err(Error::Syntax);
    }
    let end = 2 + RESTORED_STEP * keys;
    let options = RestoreOptions::parse_some(args.from(end))?;
    // Decoding comes before any change, as the run may be dropped here.
    let mut decoded = Vec::with_capacity(keys);
    for at in (4..end).step_by(RESTORED_STEP) {
        let both =
            decode(cx, args.at(at)).and_then(|decoded| Ok((Told::of(cx, &decoded, args.at(at))?, decoded)));
        decoded.push(match both {
            Err(Error::Budget) => return Err(Error::Budget),
            other => other,
        });
    }
    cx.out.array(keys);
    for (at, decoded) in (2..end).step_by(RESTORED_STEP).zip(decoded) {
        let key = args.at(at);
        let outcome = options.admit(cx, key).and_then(|()| {
            let ttl = time_to_live(args.at(at + 1))?;
            let (told, decoded) = decoded?;
            match put(cx, key, ttl, decoded, &options) {
                Put::Made => told.note(cx, key, deadline(cx, ttl, options.absttl), args.to(0)),
                Put::Removed => cx.effect(&[b"DEL", key]),
                Put::Nothing => {}
            }
            Ok(())
        });
        match outcome {
            Ok(()) => cx.out.ok(),
            Err(error) => cx.out.error(&error.text()),
        }
    }
    Ok(())
}

fn time_to_live(word: &[u8]) -> Result<i64, Error> {
    let ttl = int(word)?;
    if ttl < 0 { Err(Error::new("ERR Invalid TTL value, must be >= 0")) } else { Ok(ttl) }
}

fn decode(cx: &mut Cx<'_, '_>, payload: &[u8]) -> Result<Decoded, Error> {
    let due_ms = cx.view.due_ms();
    serial::decode(payload, due_ms, &mut |steps| cx.budget.charge(steps))
}

/// The time of expiry for a time to live. A sum that overflows counts as past, as in Redis.
fn deadline(cx: &Cx<'_, '_>, ttl: i64, absolute: bool) -> Option<u64> {
    let at = if absolute { ttl } else { ttl.checked_add(cx.view.now_ms() as i64).unwrap_or(1) };
    (ttl > 0).then_some(at as u64)
}

/// The result for a key.
enum Put {
    Made,
    Removed,
    Nothing,
}

fn put(cx: &mut Cx<'_, '_>, key: &[u8], ttl: i64, decoded: Decoded, options: &RestoreOptions) -> Put {
    let expire_ms = deadline(cx, ttl, options.absttl);
    let replaced = options.replace && cx.view.remove(key);
    match decoded {
        Decoded::Value(value) if expire_ms.is_none_or(|at| !cx.is_past(at)) => {
            cx.view.put(key, value, expire_ms);
            if let Some(idle_s) = options.idle_s {
                cx.view.set_idle(key, idle_s);
            }
            if let Some(freq) = options.freq.filter(|_| cx.view.tells_freq()) {
                cx.view.set_freq(key, ((freq - FREQ_NEW).max(0) as f64 / FREQ_STEP as f64).round() as u8);
            }
            cx.view.changed(key, Class::Generic, "restore");
            Put::Made
        }
        _ if replaced => {
            cx.view.changed(key, Class::Generic, "del");
            Put::Removed
        }
        _ => Put::Nothing,
    }
}

/// A restored value in a form that Redis and Valkey read alike. Neither takes the other's versions of
/// payloads, nor the other's hashes with fields that expire; and both would go on with the old value.
enum Told {
    /// Nobody listens, or there is no value.
    Nothing,
    Payload(Vec<u8>),
    /// A stream without its producers, and these.
    Produced(Vec<u8>, ::value::Stream),
    /// It has fields that expire, so commands make it.
    Hash(Hash),
}

impl Told {
    /// The form for a value. O(bytes), in steps; nothing if no sink listens. Errors: those of the budget.
    fn of(cx: &mut Cx<'_, '_>, decoded: &Decoded, payload: &[u8]) -> Result<Told, Error> {
        let Decoded::Value(value) = decoded else { return Ok(Told::Nothing) };
        if !cx.view.listens() {
            return Ok(Told::Nothing);
        }
        match value {
            Value::Hash(hash) if hash.has_ttls() => {
                cx.charge(hash.len() * NOTE_STEPS)?;
                Ok(Told::Hash(hash.clone()))
            }
            // Only servers with the module read a compressed bitmap, and these read what came.
            Value::Roaring(_) | Value::Roaring64(_) => Ok(Told::Payload(payload.to_vec())),
            Value::Stream(stream) if stream.producers().is_some() => {
                let producers = stream.producers().into_iter().flat_map(Producers::iter);
                cx.charge(producers.map(|(_, producer)| 1 + producer.len() * NOTE_STEPS).sum())?;
                match Told::of_plain(cx, &value.without_producers(), payload)? {
                    Told::Payload(plain) => Ok(Told::Produced(plain, stream.clone())),
                    other => Ok(other),
                }
            }
            value => Told::of_plain(cx, value, payload),
        }
    }

    /// The form of a value that all servers write alike.
    fn of_plain(cx: &mut Cx<'_, '_>, value: &Value, payload: &[u8]) -> Result<Told, Error> {
        let due_ms = cx.view.due_ms();
        match ::serial::encode(value, due_ms, &mut |steps| cx.budget.charge(steps)) {
            Ok(Some(written)) => Ok(Told::Payload(written)),
            Err(Failure::Stopped(error)) => Err(error),
            Ok(None) | Err(_) => Ok(Told::Payload(payload.to_vec())),
        }
    }

    /// Notes what makes the key. `at` is when it expires; `options` may tell of its use.
    fn note(self, cx: &mut Cx<'_, '_>, key: &[u8], at: Option<u64>, options: Args<'_>) {
        let mut time = itoa::Buffer::new();
        match self {
            Told::Nothing => {}
            Told::Payload(payload) => note_payload(cx, key, at, (&payload, options)),
            Told::Produced(payload, stream) => {
                note_payload(cx, key, at, (&payload, options));
                stream.producers().into_iter().for_each(|producers| idmp::tell_all(cx, key, producers));
            }
            Told::Hash(hash) => {
                note_hash(cx, key, &hash);
                if let Some(at) = at {
                    cx.effect(&[b"PEXPIREAT", key, time.format(at).as_bytes()]);
                }
            }
        }
    }
}

/// Notes a RESTORE of a payload, with the options that tell of the key's use.
fn note_payload(cx: &mut Cx<'_, '_>, key: &[u8], at: Option<u64>, (payload, options): (&[u8], Args<'_>)) {
    let mut time = itoa::Buffer::new();
    let time = time.format(at.unwrap_or(0)).as_bytes();
    let mut words: Vec<&[u8]> = vec![b"RESTORE", key, time, payload, b"REPLACE", b"ABSTTL"];
    words.extend(options.iter().filter(|word| !is(word, "replace") && !is(word, "absttl")));
    cx.effect(&words);
}

/// Notes the commands that make a hash with fields that expire. O(fields · log fields).
fn note_hash(cx: &mut Cx<'_, '_>, key: &[u8], hash: &Hash) {
    let due_ms = cx.view.due_ms();
    cx.effect(&[b"DEL", key]);
    let entries: Vec<_> = hash.entries_from(0).filter(|entry| entry.expire_at > due_ms).collect();
    for entries in entries.chunks(NOTED) {
        let mut words: Vec<&[u8]> = vec![b"HSET", key];
        words.extend(entries.iter().flat_map(|entry| [entry.field, entry.value]));
        cx.effect(&words);
    }
    let mut timed: Vec<_> = entries.into_iter().filter(|entry| entry.expire_at != NEVER).collect();
    timed.sort_by_key(|entry| entry.expire_at);
    for entries in timed.chunk_by(|a, b| a.expire_at == b.expire_at).flat_map(|same| same.chunks(NOTED)) {
        note_times(cx, key, entries[0].expire_at, entries.iter().map(|entry| entry.field));
    }
}

#[cfg(test)]
mod tests;
