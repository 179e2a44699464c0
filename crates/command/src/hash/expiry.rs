//! Fields that expire: HEXPIRE and its kin, HTTL and its kin, HPERSIST, HGETEX, HSETEX.
//!
//! A time in the past removes the fields at once (`hdel`). The log receives absolute times, and only the
//! fields that changed.

use super::fields::{counted, counted_or};
use super::{per_argument, purge};
use crate::options::{int, is};
use crate::table::*;
use crate::{Cx, Error};
use keyspace::Class;
use resp::Args;
use value::Hash;
use value::hash::Entry;
use value::trie::NEVER;

/// The latest time at which a field may expire.
const LATEST: u64 = (1 << 46) - 1;

const CHANGED: &[KeySpec] = &[KeySpec::one(1, RW_UPDATE)];
const ASKED: &[KeySpec] = &[KeySpec::one(1, RO_ACCESS)];

const fn setter(name: &'static str, run: Handler, summary: &'static str) -> Command {
    Command::new(name, -6, Run::Write(run), WRITE | FAST, acl::HASH)
        .keys(CHANGED)
        .cost(per_argument)
        .effect(Effect::Noted)
        .doc("hash", "7.4.0", "O(N) for N fields named.", summary)
}

const fn getter(name: &'static str, run: Handler, summary: &'static str) -> Command {
    Command::new(name, -5, Run::Read(run), READONLY | FAST, acl::HASH).keys(ASKED).cost(per_argument).doc(
        "hash",
        "7.4.0",
        "O(N) for N fields named.",
        summary,
    )
}

const SECOND: FieldUnit = FieldUnit { ms: 1000, relative: true };
const MILLISECOND: FieldUnit = FieldUnit { ms: 1, relative: true };
const UNIX: FieldUnit = FieldUnit { ms: 1000, relative: false };
const UNIX_MS: FieldUnit = FieldUnit { ms: 1, relative: false };

pub(crate) static COMMANDS: &[Command] = &[
    setter("hexpire", |cx, args| expire(cx, args, SECOND), "Lets fields expire in so many seconds."),
    setter(
        "hpexpire",
        |cx, args| expire(cx, args, MILLISECOND),
        "Lets fields expire in so many milliseconds.",
    ),
    setter("hexpireat", |cx, args| expire(cx, args, UNIX), "Lets fields expire at a Unix time."),
    setter(
        "hpexpireat",
        |cx, args| expire(cx, args, UNIX_MS),
        "Lets fields expire at a Unix time in milliseconds.",
    ),
    getter("httl", |cx, args| left(cx, args, SECOND), "Tells in how many seconds fields expire.")
        .tips(&["nondeterministic_output"]),
    getter("hpttl", |cx, args| left(cx, args, MILLISECOND), "Tells in how many milliseconds fields expire.")
        .tips(&["nondeterministic_output"]),
    getter("hexpiretime", |cx, args| left(cx, args, UNIX), "Tells at what Unix time fields expire."),
    getter(
        "hpexpiretime",
        |cx, args| left(cx, args, UNIX_MS),
        "Tells at what Unix time in milliseconds fields expire.",
    ),
    Command::new("hpersist", -5, Run::Write(hpersist), WRITE | FAST, acl::HASH)
        .keys(CHANGED)
        .cost(per_argument)
        .doc("hash", "7.4.0", "O(N) for N fields named.", "Takes the expiry off fields."),
    Command::new("hgetex", -5, Run::Write(hgetex), WRITE | FAST, acl::HASH)
        .portable(704)
        .keys(&[KeySpec::one(1, RW_ACCESS_UPDATE)])
        .cost(per_argument)
        .effect(Effect::Noted)
        .doc(
            "hash",
            "8.0.0",
            "O(N) for N fields named.",
            "Answers the values of fields and sets when they expire.",
        ),
    Command::new("hsetex", -6, Run::Write(hsetex), WRITE | DENYOOM | FAST, acl::HASH)
        .portable(704)
        .keys(CHANGED)
        .cost(per_argument)
        .effect(Effect::Noted)
        .doc("hash", "8.0.0", "O(N) for N fields.", "Gives fields values and sets when they expire."),
];

/// The unit and base of a time.
#[derive(Clone, Copy)]
struct FieldUnit {
    ms: u64,
    /// The base of the time: now, else 1970.
    relative: bool,
}

impl FieldUnit {
    /// The unit of an option of HGETEX or HSETEX.
    fn of(word: &[u8]) -> Option<FieldUnit> {
        [("ex", SECOND), ("px", MILLISECOND), ("exat", UNIX), ("pxat", UNIX_MS)]
            .into_iter()
            .find_map(|(name, unit)| is(word, name).then_some(unit))
    }

    /// The absolute time of an argument, in milliseconds. Errors: not an integer, negative, later than
    /// [`LATEST`], unless it is replayed: Valkey takes later times.
    fn read(self, cx: &Cx<'_, '_>, name: &[u8], arg: &[u8]) -> Result<u64, Error> {
        let amount =
            u64::try_from(int(arg)?).map_err(|_| Error::new("ERR invalid expire time, must be >= 0"))?;
        let base = if self.relative { cx.view.now_ms() } else { 0 };
        let at = amount.checked_mul(self.ms).and_then(|ms| ms.checked_add(base));
        // To a view that shows expired fields, 0 is the time that has come.
        at.map(|at| at.max(1))
            .filter(|at| *at <= LATEST || cx.caller.in_replay)
            .ok_or_else(|| Error::InvalidExpire(String::from_utf8_lossy(name).to_lowercase()))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Condition {
    Always,
    Nx,
    Xx,
    Gt,
    Lt,
}

impl Condition {
    fn of(word: &[u8]) -> Option<Condition> {
        [("nx", Condition::Nx), ("xx", Condition::Xx), ("gt", Condition::Gt), ("lt", Condition::Lt)]
            .into_iter()
            .find_map(|(name, condition)| is(word, name).then_some(condition))
    }

    /// Whether a field that expires at `old` may expire at `new`. No expiry counts as never.
    fn allows(self, old: Option<u64>, new: u64) -> bool {
        match self {
            Condition::Always => true,
            Condition::Nx => old.is_none(),
            Condition::Xx => old.is_some(),
            Condition::Gt => old.is_some_and(|old| new > old),
            Condition::Lt => old.is_none_or(|old| new < old),
        }
    }
}

/// The change to a field's expiry.
#[derive(Clone, Copy)]
enum Expiry {
    At(u64),
    /// The time has passed.
    Gone,
    Never,
}

impl Expiry {
    /// The change for a time. A replay and import mode keep a time in the past ([`Cx::is_past`]).
    fn at(cx: &Cx<'_, '_>, at: u64) -> Expiry {
        if cx.is_past(at) { Expiry::Gone } else { Expiry::At(at) }
    }
}

impl Expiry {
    fn apply(self, hash: &mut Hash, field: &[u8]) {
        match self {
            Expiry::At(at) => hash.set_expire(field, Some(at)),
            Expiry::Gone => hash.remove(field),
            Expiry::Never => hash.set_expire(field, None),
        };
    }
}

/// Reports and notes an expiry applied to some fields. Removes the key if the hash is empty.
fn told(cx: &mut Cx<'_, '_>, key: &[u8], fields: &[&[u8]], expiry: Expiry) {
    if !fields.is_empty() {
        let (mut time, mut count) = (itoa::Buffer::new(), itoa::Buffer::new());
        let mut effect: Vec<&[u8]> = Vec::with_capacity(fields.len() + 5);
        let event = match expiry {
            Expiry::At(at) => {
                cx.view.field_expires(key, at);
                effect.extend([b"HPEXPIREAT", key, time.format(at).as_bytes()]);
                "hexpire"
            }
            Expiry::Gone => {
                effect.extend([b"HDEL", key]);
                "hdel"
            }
            Expiry::Never => {
                // When a log is read the fields' old times may have come, and Redis 8 keeps those then.
                note_times(cx, key, LATEST, fields.iter().copied());
                effect.extend([b"HPERSIST", key]);
                "hpersist"
            }
        };
        if !matches!(expiry, Expiry::Gone) {
            effect.extend([b"FIELDS", count.format(fields.len()).as_bytes()]);
        }
        effect.extend(fields);
        cx.effect(&effect);
        cx.view.changed(key, Class::Hash, event);
    }
    cx.view.remove_if_empty(key);
}

/// `HEXPIRE key seconds [NX | XX | GT | LT] FIELDS numfields field [field ...]`, and HPEXPIRE, HEXPIREAT,
/// HPEXPIREAT. Per field: -2 no such field, 0 condition not met, 1 done, 2 time in the past and field
/// removed.
///
/// Cost: O(fields). Errors: WRONGTYPE, bad time, FIELDS missing, numbers that disagree.
fn expire(cx: &mut Cx<'_, '_>, args: Args<'_>, unit: FieldUnit) -> Result<(), Error> {
    let key = args.at(1);
    cx.view.hash(key)?;
    let at = unit.read(cx, args.at(0), args.at(2))?;
    let condition = Condition::of(args.at(3));
    let words = args.from(if condition.is_some() { 4 } else { 3 });
    let condition = condition.unwrap_or(Condition::Always);
    let fields = counted_or(words, "ERR Parameter `numFields` should be greater than 0")?;
    let expiry = Expiry::at(cx, at);
    each(cx, args, fields, expiry, |old| match expiry {
        _ if !condition.allows(old, at) => Err(0),
        Expiry::Gone => Ok(2),
        _ => Ok(1),
    })
}

/// Asks `f` about the expiry of each field. `f` gives the reply; `Ok` also applies `expiry`.
fn each(
    cx: &mut Cx<'_, '_>,
    args: Args<'_>,
    fields: Args<'_>,
    expiry: Expiry,
    f: impl Fn(Option<u64>) -> Result<i64, i64>,
) -> Result<(), Error> {
    let key = args.at(1);
    purge(cx, args, fields, 1, Effect::Noted)?;
    cx.out.array(fields.len());
    let mut hash = cx.view.hash_mut(key)?;
    let mut changed: Vec<&[u8]> = Vec::with_capacity(fields.len());
    for field in fields.iter() {
        let answer = match hash.as_deref().and_then(|hash| hash.expire_at(field)) {
            Some(old) => f(old),
            None => Err(-2),
        };
        if let (Ok(_), Some(hash)) = (answer, hash.as_deref_mut()) {
            expiry.apply(hash, field);
            changed.push(field);
        }
        cx.out.int(answer.unwrap_or_else(|refused| refused));
    }
    told(cx, key, &changed, expiry);
    Ok(())
}

/// `HTTL key FIELDS numfields field [field ...]`, and HPTTL, HEXPIRETIME, HPEXPIRETIME. Per field: -2 no such
/// field, -1 no expiry, else the time. Seconds are rounded up.
///
/// Cost: O(fields). Errors: WRONGTYPE, FIELDS missing, numbers that disagree.
fn left(cx: &mut Cx<'_, '_>, args: Args<'_>, unit: FieldUnit) -> Result<(), Error> {
    let (key, now) = (args.at(1), cx.view.due_ms());
    let hash = cx.view.hash(key)?;
    let hit = hash.is_some();
    let fields = counted(args.from(2))?;
    let base = if unit.relative { cx.view.now_ms() } else { 0 };
    cx.out.array(fields.len());
    for field in fields.iter() {
        cx.out.int(match hash.and_then(|hash| hash.expire_at(field)) {
            None => -2,
            Some(None) => -1,
            Some(Some(at)) if at <= now => -2,
            Some(Some(at)) => at.saturating_sub(base).div_ceil(unit.ms) as i64,
        });
    }
    cx.view.count_lookup(key, hit);
    Ok(())
}

/// `HPERSIST key FIELDS numfields field [field ...]`: removes the expiry. Per field: -2 no such field, -1 no
/// expiry, 1 done.
///
/// Cost: O(fields). Errors: WRONGTYPE, FIELDS missing, numbers that disagree.
fn hpersist(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    cx.view.hash(args.at(1))?;
    let fields = counted(args.from(2))?;
    each(cx, args, fields, Expiry::Never, |old| if old.is_some() { Ok(1) } else { Err(-1) })
}

/// `HGETEX key [EX seconds | PX ms | EXAT time | PXAT ms | PERSIST] FIELDS numfields field [field ...]`: the
/// values, or null.
///
/// Cost: O(fields). Errors: WRONGTYPE, bad time, FIELDS missing, numbers that disagree.
fn hgetex(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (key, now) = (args.at(1), cx.view.due_ms());
    cx.view.hash(key)?;
    let option = args.at(2);
    let (expiry, words) = match FieldUnit::of(option) {
        Some(unit) => {
            let at = unit.read(cx, args.at(0), args.at(3))?;
            (Some(Expiry::at(cx, at)), args.from(4))
        }
        None if is(option, "persist") => (Some(Expiry::Never), args.from(3)),
        None => (None, args.from(2)),
    };
    if words.len() < 2 {
        return Err(Error::Arity("hgetex".to_owned()));
    }
    let fields = counted(words)?;
    match expiry {
        Some(expiry) => get_and_apply(cx, args, fields, expiry),
        None => {
            let hash = cx.view.hash(key)?;
            cx.out.array(fields.len());
            for field in fields.iter() {
                cx.out.bulk_or_null(hash.and_then(|hash| hash.get_at(field, now)));
            }
            Ok(())
        }
    }
}

fn get_and_apply(cx: &mut Cx<'_, '_>, args: Args<'_>, fields: Args<'_>, expiry: Expiry) -> Result<(), Error> {
    let key = args.at(1);
    purge(cx, args, fields, 1, Effect::Noted)?;
    cx.out.array(fields.len());
    let mut hash = cx.view.hash_mut(key)?;
    let mut changed: Vec<&[u8]> = Vec::with_capacity(fields.len());
    for field in fields.iter() {
        let entry = hash.as_deref().and_then(|hash| hash.entry(field));
        cx.out.bulk_or_null(entry.map(|entry| entry.value));
        let applies = match expiry {
            Expiry::Never => entry.is_some_and(|entry| entry.expire_at != NEVER),
            _ => entry.is_some(),
        };
        if let (true, Some(hash)) = (applies, hash.as_deref_mut()) {
            expiry.apply(hash, field);
            changed.push(field);
        }
    }
    told(cx, key, &changed, expiry);
    Ok(())
}

/// The expiry that HSETEX gives.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FieldKeep {
    /// The fields do not expire.
    No,
    Ttl,
    At(u64),
}

/// The options of HSETEX and the pairs behind them.
struct SetOptions<'a> {
    /// A condition: all fields exist (true), or none does (false).
    there: Option<bool>,
    keep: FieldKeep,
    pairs: Args<'a>,
}

impl<'a> SetOptions<'a> {
    fn parse(cx: &Cx<'_, '_>, args: Args<'a>) -> Result<SetOptions<'a>, Error> {
        let arity = || Error::Arity("hsetex".to_owned());
        let (mut there, mut keep, mut i) = (None, FieldKeep::No, 2);
        while let Some(word) = args.get(i) {
            let unit = FieldUnit::of(word);
            if is(word, "fields") {
                if args.len() < i + 4 {
                    return Err(arity());
                }
                let count = args.get(i + 1).and_then(stdx::num::parse_i64).unwrap_or(0);
                if !(1..=i64::from(i32::MAX)).contains(&count) {
                    return Err(Error::new("ERR invalid number of fields"));
                }
                let pairs = args.from(i + 2);
                if pairs.len() as i64 != count.saturating_mul(2) {
                    return Err(arity());
                }
                return Ok(SetOptions { there, keep, pairs });
            } else if is(word, "fnx") || is(word, "fxx") {
                if there.is_some() {
                    return Err(Error::new("ERR Only one of FXX or FNX arguments can be specified"));
                }
                there = Some(is(word, "fxx"));
            } else if unit.is_some() || is(word, "keepttl") {
                if keep != FieldKeep::No {
                    let text = "ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be specified";
                    return Err(Error::new(text));
                }
                keep = FieldKeep::Ttl;
                if let Some(unit) = unit {
                    i += 1;
                    keep = FieldKeep::At(unit.read(cx, args.at(0), args.get(i).ok_or_else(arity)?)?);
                }
            } else {
                return Err(format!("ERR unknown argument: {}", String::from_utf8_lossy(word)).into());
            }
            i += 1;
        }
        Err(arity())
    }

    fn fields(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.pairs.iter().step_by(2)
    }
}

/// `HSETEX key [FNX | FXX] [EX seconds | PX ms | EXAT time | PXAT ms | KEEPTTL] FIELDS numfields field value
/// [field value ...]`: 1 if the fields were set, 0 if the condition was not met.
///
/// Cost: O(fields). Errors: arity, bad time, bad number of fields, unknown options or options that exclude
/// each other, WRONGTYPE.
fn hsetex(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (key, now) = (args.at(1), cx.view.due_ms());
    let options = SetOptions::parse(cx, args)?;
    let hash = cx.view.hash(key)?;
    let mut states = options.fields().map(|field| hash.is_some_and(|hash| hash.get_at(field, now).is_some()));
    if !options.there.is_none_or(|wanted| states.all(|there| there == wanted)) {
        cx.out.int(0);
        return Ok(());
    }
    purge(cx, args, options.pairs, 2, Effect::Noted)?;
    set_pairs(cx, key, &options)?;
    cx.view.changed(key, Class::Hash, "hset");
    match options.keep {
        FieldKeep::At(at) if matches!(Expiry::at(cx, at), Expiry::Gone) => {
            let fields: Vec<&[u8]> = options.fields().collect();
            if let Some(hash) = cx.view.hash_mut(key)? {
                fields.iter().for_each(|field| Expiry::Gone.apply(hash, field));
            }
            told(cx, key, &fields, Expiry::Gone);
        }
        FieldKeep::At(at) => {
            cx.view.field_expires(key, at);
            cx.view.notify(key, Class::Hash, "hexpire");
            note(cx, key, &options);
        }
        FieldKeep::Ttl | FieldKeep::No => note(cx, key, &options),
    }
    cx.out.int(1);
    Ok(())
}

fn set_pairs(cx: &mut Cx<'_, '_>, key: &[u8], options: &SetOptions<'_>) -> Result<(), Error> {
    let hash = cx.view.hash_or_new(key)?;
    for (i, field) in options.fields().enumerate() {
        let value = options.pairs.at(2 * i + 1);
        match options.keep {
            FieldKeep::No => hash.insert(field, value),
            FieldKeep::Ttl => hash.insert_keep_ttl(field, value),
            FieldKeep::At(expire_at) => hash.put(Entry { field, value, expire_at }),
        };
    }
    Ok(())
}

/// Notes the deterministic form, in words that servers without HSETEX know. Conditions are settled.
fn note(cx: &mut Cx<'_, '_>, key: &[u8], options: &SetOptions<'_>) {
    if !cx.view.listens() {
        return;
    }
    let mut words: Vec<&[u8]> = vec![b"HSET", key];
    words.extend(options.pairs.iter());
    cx.effect(&words);
    match options.keep {
        FieldKeep::No => {}
        FieldKeep::At(at) => note_times(cx, key, at, options.fields()),
        FieldKeep::Ttl => {
            let time = |hash: &Hash, field| Some((hash.expire_at(field).flatten()?, field));
            let hash = cx.view.hash(key).ok().flatten();
            let times: Vec<(u64, &[u8])> = hash
                .map(|hash| options.fields().filter_map(|field| time(hash, field)).collect())
                .unwrap_or_default();
            times.into_iter().for_each(|(at, field)| note_times(cx, key, at, std::iter::once(field)));
        }
    }
}

/// Notes when fields expire. O(fields).
pub(crate) fn note_times<'f>(
    cx: &mut Cx<'_, '_>,
    key: &[u8],
    at: u64,
    fields: impl Iterator<Item = &'f [u8]>,
) {
    if !cx.view.listens() {
        return;
    }
    let (mut time, mut count) = (itoa::Buffer::new(), itoa::Buffer::new());
    let fields: Vec<&[u8]> = fields.collect();
    let mut words: Vec<&[u8]> = vec![b"HPEXPIREAT", key, time.format(at).as_bytes(), b"FIELDS"];
    words.push(count.format(fields.len()).as_bytes());
    words.extend(fields);
    cx.effect(&words);
}
