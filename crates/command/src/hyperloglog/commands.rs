//! PFADD, PFCOUNT, PFMERGE, PFDEBUG, PFSELFTEST.

use super::estimate::{cardinality, place};
use super::sketch::{self, BYTES_MAX, REGISTERS, Sketch, header, histogram, sparse_max_bytes};
use super::sparse::{self, Hint};
use crate::facts;
use crate::options::is;
use crate::string::BYTES_PER_STEP;
use crate::table::{
    ADMIN, Command, DENYOOM, FAST, KeySpec, READONLY, RO_ACCESS, RW_ACCESS, RW_INSERT, Run, Use, WRITE, acl,
};
use crate::{Cx, Error};
use keyspace::{Class, View};
use resp::Args;
use std::fmt::Write;
use value::{Str, StrRef, Value};

const GROUP: &str = "hyperloglog";

const COUNTED: KeySpec = KeySpec {
    notes: "RW because it may change the internal representation of the key, and propagate to replicas",
    ..KeySpec::range(1, -1, 1, RW_ACCESS)
};

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("pfadd", -2, Run::Write(pfadd), WRITE | DENYOOM | FAST, acl::HYPERLOGLOG)
        .keys(&[KeySpec::one(1, RW_INSERT)])
        .cost(add_cost)
        .doc(GROUP, "2.8.9", "O(1) to add every element.", "Adds elements to a HyperLogLog."),
    Command::new("pfcount", -2, Run::Read(pfcount), READONLY, acl::HYPERLOGLOG)
        .keys(&[COUNTED])
        .cost(count_cost)
        .apart()
        .facts(facts::REPLICATES)
        .doc(GROUP, "2.8.9", "O(N) for N keys.", "Estimates how many different elements were added."),
    Command::new("pfmerge", -2, Run::Write(pfmerge), WRITE | DENYOOM, acl::HYPERLOGLOG)
        .keys(&[KeySpec::one(1, Use(&["RW", "access", "insert"])), KeySpec::range(2, -1, 1, RO_ACCESS)])
        .cost(merge_cost)
        .doc(GROUP, "2.8.9", "O(N) for N keys.", "Puts the elements of several HyperLogLogs into one."),
    Command::new("pfdebug", 3, Run::Write(pfdebug), WRITE | DENYOOM | ADMIN, acl::HYPERLOGLOG)
        .keys(&[KeySpec::one(2, RW_ACCESS)])
        .cost(|_, _| STEPS)
        .doc(GROUP, "2.8.9", "N/A", "Shows or changes the inner form of a HyperLogLog."),
    Command::new("pfselftest", 1, Run::Read(pfselftest), ADMIN, acl::HYPERLOGLOG).cost(|_, _| 1_500).doc(
        GROUP,
        "2.8.9",
        "N/A",
        "Tests registers and estimates of HyperLogLogs.",
    ),
];

/// Steps to go through all registers once.
const STEPS: usize = 300;
/// Steps to merge a dense string, or to make one.
const DENSE_STEPS: usize = 40;
/// Bytes of runs passed over in a step.
const RUN_BYTES_PER_STEP: usize = 40;

/// Bytes that will be looked at of a key's string.
fn looked_at(view: &View<'_>, key: &[u8]) -> usize {
    view.string(key).ok().flatten().map_or(0, |s| s.len().min(BYTES_MAX))
}

/// Steps to merge a string of so many bytes.
fn steps_to_merge(bytes: usize) -> usize {
    4 + if bytes == sketch::DENSE_BYTES { DENSE_STEPS } else { bytes / RUN_BYTES_PER_STEP }
}

/// Steps to add an element to a string of so many bytes.
fn steps_to_add(bytes: usize) -> usize {
    if bytes == sketch::DENSE_BYTES { 1 } else { 1 + bytes / RUN_BYTES_PER_STEP }
}

fn add_cost(view: &View<'_>, args: Args<'_>) -> usize {
    let (old, elements) = (looked_at(view, args.at(1)), args.len() - 2);
    // Each element adds three bytes at most.
    let bytes =
        if old == sketch::DENSE_BYTES { old } else { (old + 3 * elements).min(sparse_max_bytes().max(old)) };
    args.bytes() / BYTES_PER_STEP + elements * (1 + steps_to_add(bytes)) + old / RUN_BYTES_PER_STEP
}

fn count_cost(view: &View<'_>, args: Args<'_>) -> usize {
    let keys = args.from(1);
    STEPS + keys.iter().map(|key| steps_to_merge(looked_at(view, key))).sum::<usize>()
}

fn merge_cost(view: &View<'_>, args: Args<'_>) -> usize {
    let sparse = |key| Some(looked_at(view, key)).filter(|bytes| *bytes != sketch::DENSE_BYTES).unwrap_or(0);
    // Each run of the sparse strings may become a change of the result.
    let changes: usize = args.from(1).iter().map(|key| sparse(key) / 2).sum();
    count_cost(view, args) + STEPS + changes.min(2 * REGISTERS)
}

/// Stores a sketch whose cardinality is stale. The expiry stays.
fn store(cx: &mut Cx<'_, '_>, key: &[u8], mut sketch: Sketch) -> Result<(), Error> {
    let expire = cx.view.string_and_expire(key)?.and_then(|(_, expire)| expire);
    sketch.make_stale();
    cx.view.put(key, Value::Str(Str::from_slice_raw(sketch.as_bytes())), expire);
    cx.view.changed(key, Class::String, "pfadd");
    Ok(())
}

/// The sketch of a key. Errors: WRONGTYPE, no HyperLogLog, a broken one.
fn read(view: &View<'_>, key: &[u8]) -> Result<Option<Sketch>, Error> {
    view.string(key)?.map(Sketch::read).transpose()
}

/// `PFADD key [element ...]`: adds elements and answers 1 if that changed a register or made the key, else 0.
///
/// Cost: O(elements) in a dense string; O(elements · bytes) in a sparse one, of 3000 bytes at most by default.
/// Errors: WRONGTYPE, no HyperLogLog, a broken one. Source: Redis 7.0.
fn pfadd(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (key, elements) = (args.at(1), args.from(2));
    let changed = match cx.view.string(key)? {
        None => {
            let mut sketch = Sketch::new();
            add(cx, &mut sketch, elements)?;
            store(cx, key, sketch)?;
            true
        }
        Some(old) => {
            if sketch::is_dense(&header(old)?) && !changes_dense(old, elements) || elements.is_empty() {
                false
            } else {
                let mut sketch = Sketch::read(old)?;
                let changed = add(cx, &mut sketch, elements)?;
                if changed {
                    store(cx, key, sketch)?;
                }
                changed
            }
        }
    };
    cx.out.int(changed.into());
    Ok(())
}

/// Adds elements; true if a register changed.
fn add(cx: &mut Cx<'_, '_>, sketch: &mut Sketch, elements: Args<'_>) -> Result<bool, Error> {
    let mut changed = false;
    for element in elements.iter() {
        cx.charge(steps_to_add(sketch.as_bytes().len()) + element.len() / BYTES_PER_STEP)?;
        let (register, rank) = place(element);
        changed |= sketch.raise(&mut Hint::default(), register, rank);
    }
    Ok(changed)
}

/// Whether one of the elements changes a dense string. O(elements).
fn changes_dense(s: StrRef<'_>, elements: Args<'_>) -> bool {
    elements.iter().any(|element| {
        let (register, rank) = place(element);
        let (at, shift) = sketch::dense_place(register);
        let next = (at + 1 < s.len()).then(|| s.byte(at + 1));
        sketch::dense_rank(s.byte(at), next, shift) < rank
    })
}

/// `PFCOUNT key [key ...]`: the estimated number of different elements added to all the keys. Missing keys have
/// none. Unlike in Redis, nothing is written (H1).
///
/// Cost: O(keys), some 2 µs each; O(1) for one key with a fresh cardinality. Errors: WRONGTYPE, no HyperLogLog,
/// a broken one. Source: Redis 7.0.
fn pfcount(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let keys = args.from(1);
    let count = if keys.len() == 1 {
        count_one(cx, args.at(1))?
    } else {
        cardinality(&histogram(&merged(cx, keys)?.0))
    };
    cx.out.int(count);
    Ok(())
}

fn count_one(cx: &mut Cx<'_, '_>, key: &[u8]) -> Result<i64, Error> {
    let found = cx.view.string(key)?;
    let hit = found.is_some();
    let cached = match found {
        None => Some(0),
        Some(s) => sketch::cached(&header(s)?),
    };
    let count = match cached {
        Some(count) => count as i64,
        None => {
            cx.charge(STEPS)?;
            read(cx.view, key)?.map_or(0, |sketch| cardinality(&sketch.histogram()))
        }
    };
    cx.view.count_lookup(key, hit);
    Ok(count)
}

/// The highest ranks of the registers of several keys, and whether one of them is dense. Counts the look-ups.
fn merged(cx: &mut Cx<'_, '_>, keys: Args<'_>) -> Result<(Vec<u8>, bool), Error> {
    let (mut registers, mut dense) = (vec![0; REGISTERS], false);
    for key in keys.iter() {
        let Cx { view, budget, .. } = &mut *cx;
        let found = view.string(key)?;
        budget.charge(steps_to_merge(found.map_or(0, |s| s.len().min(BYTES_MAX))))?;
        if let Some(found) = found {
            dense |= sketch::merge(found, &mut registers)?;
        }
        let hit = found.is_some();
        cx.view.count_lookup(key, hit);
    }
    Ok((registers, dense))
}

/// `PFMERGE destkey [sourcekey ...]`: adds the elements of the sources to `destkey`, which may be missing. The
/// result is dense if one of the keys is.
///
/// Cost: O(keys), some 2 µs each for dense ones. Errors: WRONGTYPE, no HyperLogLog, a broken one. Source:
/// Redis 7.0.
fn pfmerge(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let (registers, dense) = merged(cx, args.from(1))?;
    let sketch = if dense {
        cx.charge(DENSE_STEPS)?;
        Sketch::dense(cx.view.string(key)?.map(header).transpose()?, &registers)
    } else {
        raised(cx, key, &registers)?
    };
    store(cx, key, sketch)?;
    cx.out.ok();
    Ok(())
}

/// The sketch of a key with its registers raised to these. It is sparse unless that gets too long.
/// O(registers + bytes).
fn raised(cx: &mut Cx<'_, '_>, key: &[u8], registers: &[u8]) -> Result<Sketch, Error> {
    cx.charge(STEPS)?;
    let mut sketch = read(cx.view, key)?.unwrap_or_else(Sketch::new);
    let mut hint = Hint::default();
    for (register, rank) in registers.iter().enumerate().filter(|(_, rank)| **rank > 0) {
        cx.charge(1)?;
        sketch.raise(&mut hint, register, *rank);
    }
    Ok(sketch)
}

/// `PFDEBUG GETREG | DECODE | ENCODING | TODENSE key`: all registers; the runs of a sparse string; the name
/// of its form; makes it dense. GETREG makes it dense too, as in Redis.
///
/// Cost: O(registers). Errors: WRONGTYPE, no such key, no HyperLogLog, a broken one, unknown subcommand.
/// Source: Redis 7.0.
fn pfdebug(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (word, key) = (args.at(1), args.at(2));
    let found = cx.view.string(key)?.ok_or(Error::new("ERR The specified key does not exist"))?;
    let dense = sketch::is_dense(&header(found)?);
    if is(word, "getreg") {
        let registers = make_dense(cx, key)?.registers();
        cx.out.array(REGISTERS);
        registers.iter().for_each(|rank| cx.out.int((*rank).into()));
    } else if is(word, "decode") {
        if dense {
            return Err(Error::new("ERR HLL encoding is not sparse"));
        }
        cx.out.bulk(decoded(&Sketch::read(found)?).as_bytes());
    } else if is(word, "encoding") {
        cx.out.simple(if dense { "dense" } else { "sparse" });
    } else if is(word, "todense") {
        make_dense(cx, key)?;
        cx.out.int((!dense).into());
    } else {
        let word = String::from_utf8_lossy(word);
        return Err(format!("ERR Unknown PFDEBUG subcommand '{word}'").into());
    }
    Ok(())
}

/// Makes the sketch of a key dense, if it is there. The cardinality in its header stays.
fn make_dense(cx: &mut Cx<'_, '_>, key: &[u8]) -> Result<Sketch, Error> {
    cx.charge(STEPS)?;
    let Some((found, expire)) = cx.view.string_and_expire(key)? else { return Ok(Sketch::new()) };
    let mut sketch = Sketch::read(found)?;
    if !sketch.is_dense() {
        sketch.make_dense();
        cx.view.put(key, Value::Str(Str::from_slice_raw(sketch.as_bytes())), expire);
        cx.view.changed(key, Class::String, "pfdebug");
    }
    Ok(sketch)
}

/// The runs of a sparse sketch as text.
fn decoded(sketch: &Sketch) -> String {
    let mut text = String::new();
    for span in sparse::spans(sketch.body()) {
        let blank = if text.is_empty() { "" } else { " " };
        let done = match (span.rank, span.bytes) {
            (0, 1) => write!(text, "{blank}z:{}", span.len),
            (0, _) => write!(text, "{blank}Z:{}", span.len),
            (rank, _) => write!(text, "{blank}v:{rank},{}", span.len),
        };
        debug_assert!(done.is_ok(), "a string takes any text");
    }
    text
}

/// `PFSELFTEST`: OK if registers keep their ranks and estimates are near the number of elements.
///
/// Cost: about 60 µs. Errors: TESTFAILED. Source: Redis 7.0, which tests longer.
fn pfselftest(cx: &mut Cx<'_, '_>, _: Args<'_>) -> Result<(), Error> {
    const FAILED: Error = Error::new("TESTFAILED registers or estimates of HyperLogLogs are wrong");
    let mut sketch = Sketch::new();
    sketch.make_dense();
    let mut model = vec![0; REGISTERS];
    for i in 0..1_500u64 {
        cx.charge(1)?;
        let (register, rank) = place(&i.to_le_bytes());
        sketch.raise(&mut Hint::default(), register, rank);
        model[register] = rank.max(model[register]);
        if matches!(i + 1, 10 | 100 | 1_500) {
            let off = cardinality(&sketch.histogram()).abs_diff(i as i64 + 1);
            // Six standard errors.
            if off as f64 > (0.0488 * (i + 1) as f64).ceil() {
                return Err(FAILED);
            }
        }
    }
    if sketch.registers() != model {
        return Err(FAILED);
    }
    cx.out.ok();
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Db;

    const FOREIGN: &str = "-WRONGTYPE Key is not a valid HyperLogLog string value.";
    const BROKEN_TEXT: &str = "-INVALIDOBJ Corrupted HLL object detected";

    #[test]
    fn elements_are_added_counted_and_merged() {
        Db::both(|mut db| {
            db.check(&[
                ("pfcount none", "0"),
                ("pfadd h a b", "1"),
                ("pfadd h a", "0"),
                ("pfadd h", "0"),
                ("pfdebug decode h", "\"Z:12711 v:2,1 Z:3068 v:1,1 Z:603\""),
                ("get h", "\"HYLL\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x80q\\xa6\\x84K\\xfb\\x80BZ\""),
                ("pfcount h", "2"),
                ("pfadd e", "1"),
                ("get e", "\"HYLL\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x80\\x7f\\xff\""),
                ("pfadd g b c d", "1"),
                ("pfcount h g none e", "4"),
                ("expire h 100", "1"),
                ("pfmerge h g e none", "OK"),
                ("pfcount h", "4"),
                ("ttl h", "100"),
                ("pfdebug encoding h", "sparse"),
                ("pfdebug todense h", "1"),
                ("pfdebug todense h", "0"),
                ("pfdebug encoding h", "dense"),
                ("pfdebug decode h", "-ERR HLL encoding is not sparse"),
                ("strlen h", "12304"),
                ("pfadd h a b c d", "0"),
                ("pfadd h x", "1"),
                ("pfcount h", "5"),
                ("pfmerge n h", "OK"),
                ("pfcount n", "5"),
                ("pfdebug encoding n", "dense"),
                ("pfmerge m", "OK"),
                ("pfcount m", "0"),
                ("object encoding e", "\"raw\""),
                ("pfselftest", "OK"),
            ]);
        });
    }

    #[test]
    fn a_count_writes_nothing() {
        let mut db = Db::new();
        db.check(&[("pfadd h a", "1")]);
        db.events();
        let before = db.line("get h");
        db.check(&[("pfcount h", "1")]);
        assert_eq!((db.dirty, db.line("get h")), (0, before));
        assert!(db.events().is_empty());
    }

    #[test]
    fn long_sparse_strings_become_dense() {
        let mut db = Db::new();
        for i in 0..3_000 {
            db.run(&["PFADD", "h", &i.to_string()]);
        }
        db.check(&[("pfdebug encoding h", "dense")]);
        let count: i64 = db.line("pfcount h").parse().unwrap();
        assert!((2_900..3_100).contains(&count), "{count}");
    }

    /// Lengths and FNV-1a digests of strings that Redis 7.0, Redis 8 and Valkey 9 made of the same elements.
    #[test]
    fn strings_are_those_of_redis() {
        let mut db = Db::new();
        let digest = |db: &Db, key: &str| {
            let view = keyspace::View::whole(&db.keyspace, 0, db.now_ms);
            let bytes = view.string(key.as_bytes()).unwrap().unwrap().to_vec();
            let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            (bytes.len(), bytes.iter().fold(0xcbf2_9ce4_8422_2325, fold))
        };
        let known = [
            (10, (48, 0x9d80_bd34_6ef0_7c36)),
            (200, (507, 0x02b0_dacc_41d4_dc15)),
            (1000, (1923, 0x6331_df2d_5fdc_be26)),
            (1500, (2766, 0x5984_7b7c_e607_4cc2)),
            (6000, (12304, 0xa000_f8a4_77bd_31ec)),
        ];
        let mut added = 0;
        for (elements, expect) in known {
            while added < elements {
                db.run(&["PFADD", "h", &added.to_string()]);
                added += 1;
            }
            assert_eq!(digest(&db, "h"), expect, "{elements} elements");
            for j in 0..(elements - 1) / 3 {
                db.run(&["PFADD", "g", &format!("x{j}")]);
            }
            if elements == 1000 {
                db.check(&[("pfmerge d h g", "OK"), ("pfcount d", "1334")]);
                assert_eq!(digest(&db, "d"), (2471, 0x457f_e332_d768_33ca));
            }
        }
        db.check(&[("pfcount h", "5984")]);
    }

    #[test]
    fn hostile_strings_are_refused() {
        let mut db = Db::new();
        let wrong_type = "-WRONGTYPE Operation against a key holding the wrong kind of value";
        db.check(&[
            ("rpush l x", "1"),
            ("pfadd l x", wrong_type),
            ("pfcount l", wrong_type),
            ("pfmerge l", wrong_type),
        ]);
        for foreign in [
            "",
            "HYLL",
            "text that is long enough",
            "HYLL\\x02\\x00\\x00\\x00________",
            "HYLL\\x00\\x00\\x00\\x00________",
        ] {
            db.line(&format!("set s \"{foreign}\""));
            for line in
                ["pfadd s a", "pfcount s", "pfcount s none", "pfmerge s", "pfmerge d s", "pfdebug getreg s"]
            {
                assert_eq!(db.line(line), FOREIGN, "{line} of {foreign}");
            }
        }
        let huge = "\\x00".repeat(40_000);
        for body in
            ["", "\\x7f", "\\x7f\\xfe", "\\x7f\\xff\\x00", "\\x7f\\xff\\x7f\\xff", "\\x80\\x7f\\xff", &huge]
        {
            db.line(&format!(
                "set s \"HYLL\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x80{body}\""
            ));
            for line in [
                "pfadd s a",
                "pfcount s",
                "pfcount s none",
                "pfmerge s",
                "pfmerge d s",
                "pfdebug getreg s",
                "pfdebug decode s",
            ] {
                assert_eq!(db.line(line), BROKEN_TEXT, "{line} of {}", body.len());
            }
        }
        db.check(&[("exists d", "0"), ("pfdebug encoding none", "-ERR The specified key does not exist")]);
        let full = "\\xff".repeat(12_288);
        db.line(&format!("set s \"HYLL\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x80{full}\""));
        db.check(&[("pfadd s a", "0"), ("pfcount s", "-9223372036854775808")]);
    }
}
