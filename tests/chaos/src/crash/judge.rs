//! The data after a crash, held against what was sent and what was promised.
//!
//! - J1: the keys of a client are those of the first j of its units, for some j. `j` is at least what was
//!   promised.
//! - J2: the accounts are what the first units of all clients make them, so each transfer is whole.
//! - J3: the log is in one order. A unit that was acknowledged before another was sent is there if the other
//!   is.
//! - J4: what belongs to nobody is not there.

use super::model::{ACCOUNT, Entry, Key, LIBRARIES, Model, State, Value, same};
use super::writer::{Promise, Unit, WRITERS, dbs, tick};
use std::collections::{BTreeMap, BTreeSet};
use support::wire::{Conn, Frame, encode, quote};

/// A round that is to be judged.
#[derive(Clone)]
pub struct Past {
    /// The round in a few words.
    pub title: String,
    pub units: Vec<Vec<Unit>>,
    /// Counters that readers saw, and by which command.
    pub seen: [(u64, &'static str); WRITERS],
    pub killed_ms: u64,
    /// A unit that was acknowledged before this time is there, if the log was written.
    pub safe_ms: u64,
    /// The server ended in order: all that was acknowledged while the log was written is there.
    pub is_whole: bool,
    /// The log may have no base, so nothing is promised.
    pub is_void: bool,
}

/// The figures of a judgement.
#[derive(Default)]
pub struct Verdict {
    pub acked: usize,
    pub promised: usize,
    /// Acknowledged, not promised, and not there.
    pub lost: usize,
    /// The age at the kill of the oldest of them.
    pub lost_ms: u64,
}

/// Reads everything.
pub fn read_state(conn: &mut Conn) -> Result<State, String> {
    let mut state = State::new();
    for db in 0..16 {
        expect(conn.call(&["SELECT", &db.to_string()]))?;
        let names = match conn.call(&["KEYS", "*"]) {
            Frame::Array(items) => items,
            other => return Err(format!("KEYS was answered {other}")),
        };
        let names: Vec<Vec<u8>> = names.iter().filter_map(Frame::text).map(<[u8]>::to_vec).collect();
        for some in names.chunks(500) {
            read_keys(conn, db, some, &mut state)?;
        }
    }
    for library in conn.call(&["FUNCTION", "LIST", "WITHCODE"]).items().unwrap_or_default() {
        let facts = library.items().unwrap_or_default();
        let fact = |name: &[u8]| facts.iter().skip_while(|it| it.text() != Some(name)).nth(1)?.text();
        if let (Some(name), Some(code)) = (fact(b"library_name"), fact(b"library_code")) {
            state.insert((LIBRARIES, name.to_vec()), Entry { value: Value::Text(code.to_vec()), expires: 0 });
        }
    }
    Ok(state)
}

fn expect(reply: Frame) -> Result<Frame, String> {
    match reply {
        Frame::Error(_) | Frame::Gone(_) => Err(format!("reading what is there was answered {reply}")),
        _ => Ok(reply),
    }
}

fn ask_all(conn: &mut Conn, calls: &[Vec<&[u8]>]) -> Result<Vec<Frame>, String> {
    let mut bytes = Vec::new();
    for call in calls {
        encode(&call.iter().map(|word| word.to_vec()).collect::<Vec<_>>(), &mut bytes);
    }
    conn.send(&bytes);
    calls.iter().map(|_| expect(conn.read())).collect()
}

fn read_keys(conn: &mut Conn, db: usize, names: &[Vec<u8>], state: &mut State) -> Result<(), String> {
    let facts: Vec<Vec<&[u8]>> =
        names.iter().flat_map(|name| [vec![&b"TYPE"[..], name], vec![&b"PEXPIRETIME"[..], name]]).collect();
    let facts = ask_all(conn, &facts)?;
    let calls: Vec<Vec<&[u8]>> = names
        .iter()
        .zip(facts.chunks(2))
        .map(|(name, facts)| match facts[0].text().unwrap_or_default() {
            b"string" => vec![&b"GET"[..], name],
            b"list" => vec![&b"LRANGE"[..], name, b"0", b"-1"],
            b"hash" => vec![&b"HGETALL"[..], name],
            b"set" => vec![&b"SMEMBERS"[..], name],
            _ => vec![&b"ZRANGE"[..], name, b"0", b"-1", b"WITHSCORES"],
        })
        .collect();
    let values = ask_all(conn, &calls)?;
    for ((name, facts), value) in names.iter().zip(facts.chunks(2)).zip(values) {
        let kind = facts[0].text().unwrap_or_default();
        let expires = match facts[1] {
            Frame::Int(ms) if ms > 0 => ms,
            _ => 0,
        };
        let value = value_of(kind, &value).ok_or_else(|| format!("{} was answered {value}", quote(name)))?;
        state.insert((db, name.clone()), Entry { value, expires });
    }
    Ok(())
}

fn value_of(kind: &[u8], reply: &Frame) -> Option<Value> {
    let texts = || {
        reply
            .items()
            .map(|items| items.iter().filter_map(Frame::text).map(<[u8]>::to_vec).collect::<Vec<_>>())
    };
    let pairs = || {
        texts().map(|texts| {
            texts.chunks_exact(2).map(|two| (two[0].clone(), two[1].clone())).collect::<Vec<_>>()
        })
    };
    let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse().ok();
    Some(match kind {
        b"string" => Value::Text(reply.text()?.to_vec()),
        b"list" => Value::List(texts()?),
        b"hash" => Value::Hash(pairs()?.into_iter().collect()),
        b"set" => Value::Set(texts()?.into_iter().collect()),
        b"zset" => {
            let scores = pairs()?.into_iter().map(|(member, score)| Some((member, number(&score)?)));
            Value::Scores(scores.collect::<Option<_>>()?)
        }
        _ => return None,
    })
}

/// The writer that a key belongs to.
fn owner(key: &Key) -> Option<usize> {
    let at_start = |prefix: String| key.1.starts_with(prefix.as_bytes());
    (0..WRITERS).find(|nr| match key.0 {
        LIBRARIES => key.1 == format!("lib{nr}").as_bytes(),
        0 => at_start(format!("c{nr}:")),
        db => dbs(*nr).contains(&db) && at_start(format!("c{nr}:")),
    })
}

fn is_account(key: &Key) -> bool {
    key.0 == 0 && key.1.starts_with(ACCOUNT)
}

fn balance(state: &State, key: &Key) -> Option<i64> {
    match state.get(key).map(|entry| &entry.value) {
        None => Some(0),
        Some(Value::Text(text)) => std::str::from_utf8(text).ok()?.parse().ok(),
        Some(_) => None,
    }
}

/// The numbers of units after which a writer's keys are as they are.
struct Fit {
    least: usize,
    most: usize,
    moved: BTreeMap<Key, i64>,
}

/// Finds the prefixes of a writer's units that explain its keys (J1). Cost: O(keys and changes).
fn fit(nr: usize, before: &State, units: &[Unit], now: &State) -> Result<Fit, String> {
    let of = |state: &State| {
        state.iter().filter(|(key, _)| owner(key) == Some(nr)).map(|(k, e)| (k.clone(), e.clone())).collect()
    };
    let (now, mut model): (State, _) = (of(now), Model { keys: of(before), moved: BTreeMap::new() });
    let differs = |model: &Model, key: &Key| !same(model.keys.get(key), now.get(key));
    let mut wrong: BTreeSet<Key> =
        model.keys.keys().chain(now.keys()).filter(|key| differs(&model, key)).cloned().collect();
    let mut found: Option<Fit> = None;
    let (mut nearest, mut touched) = ((wrong.len(), 0, wrong.clone()), Vec::new());
    for j in 0..=units.len() {
        if j > 0 {
            touched.clear();
            units[j - 1].ops.iter().for_each(|op| model.apply(op, &mut touched));
            for key in &touched {
                if differs(&model, key) {
                    wrong.insert(key.clone());
                } else {
                    wrong.remove(key);
                }
            }
        }
        if wrong.is_empty() {
            let least = found.as_ref().map_or(j, |fit| fit.least);
            found = Some(Fit { least, most: j, moved: model.moved.clone() });
        } else if wrong.len() < nearest.0 {
            nearest = (wrong.len(), j, wrong.clone());
        }
    }
    found.ok_or_else(|| no_fit(nr, before, units, &now, nearest.1, &nearest.2))
}

fn no_fit(nr: usize, before: &State, units: &[Unit], now: &State, j: usize, wrong: &BTreeSet<Key>) -> String {
    let mut model = Model { keys: before.clone(), moved: BTreeMap::new() };
    units[..j].iter().for_each(|unit| unit.ops.iter().for_each(|op| model.apply(op, &mut Vec::new())));
    let acked = units.iter().filter(|unit| unit.acked.is_some()).count();
    let mut text = format!(
        "writer {nr}: its keys are those of no first part of its {} units ({acked} acknowledged). After {j} units {} keys differ:",
        units.len(),
        wrong.len()
    );
    let brief = |entry: Option<&Entry>| {
        entry.map_or("nothing".into(), |e| format!("{}, expires {}", e.value.brief(), e.expires))
    };
    for key in wrong.iter().take(5) {
        let (db, name) = (if key.0 == LIBRARIES { -1 } else { key.0 as i64 }, quote(&key.1));
        text += &format!(
            "\n    {db} {name}: {}, and it should be {}",
            brief(now.get(key)),
            brief(model.keys.get(key))
        );
    }
    for (at, unit) in units.iter().enumerate().skip(j.saturating_sub(2)).take(4) {
        let ops: Vec<String> = unit.ops.iter().take(4).map(|op| said(&op.words())).collect();
        text +=
            &format!("\n    unit {at} ({:?}, acknowledged {:?}): {}", unit.way, unit.acked, ops.join("; "));
    }
    text
}

fn said(words: &[Vec<u8>]) -> String {
    words.iter().take(6).map(|word| quote(word)).collect::<Vec<_>>().join(" ")
}

/// Judges what is there. Errors: what is wrong with it.
pub fn judge(before: &State, past: &Past, now: &State) -> Result<Verdict, String> {
    if let Some(key) = now.keys().find(|key| owner(key).is_none() && !is_account(key)) {
        return Err(format!("key {} of database {} is nobody's", quote(&key.1), key.0));
    }
    let fits: Vec<Fit> =
        (0..WRITERS).map(|nr| fit(nr, before, &past.units[nr], now)).collect::<Result<_, _>>()?;
    accounts(before, &fits, now)?;
    in_order(past, &fits)?;
    promises(past, &fits, now)
}

/// J2.
fn accounts(before: &State, fits: &[Fit], now: &State) -> Result<(), String> {
    let moved = fits.iter().flat_map(|fit| fit.moved.keys());
    let keys: BTreeSet<&Key> =
        before.keys().chain(now.keys()).filter(|key| is_account(key)).chain(moved).collect();
    for key in keys {
        let moved: i64 = fits.iter().filter_map(|fit| fit.moved.get(key)).sum();
        let (was, is) = (balance(before, key), balance(now, key));
        if is != was.map(|was| was + moved) {
            let sum: i64 = now.keys().filter(|key| is_account(key)).filter_map(|key| balance(now, key)).sum();
            return Err(format!(
                "account {} was {was:?}, got {moved} by what is there, and is {is:?}; the sum of all is {sum}",
                quote(&key.1)
            ));
        }
    }
    Ok(())
}

/// J3.
fn in_order(past: &Past, fits: &[Fit]) -> Result<(), String> {
    let last = |nr: usize| fits[nr].least.checked_sub(1).map_or(0, |at| past.units[nr][at].sent);
    let Some(latest) = (0..WRITERS).max_by_key(|nr| last(*nr)) else { return Ok(()) };
    for (nr, fit) in fits.iter().enumerate() {
        let missing = past.units[nr].get(fit.most);
        if let Some((unit, (acked, _))) = missing.and_then(|unit| Some((unit, unit.acked?)))
            && acked < last(latest)
        {
            return Err(format!(
                "writer {nr}: unit {} ({}) was acknowledged and is not there, though writer {latest} sent unit {} later, which is",
                fit.most,
                said(&unit.ops[0].words()),
                fits[latest].least - 1
            ));
        }
    }
    Ok(())
}

/// The second half of J1, and what was read.
fn promises(past: &Past, fits: &[Fit], now: &State) -> Result<Verdict, String> {
    let mut verdict = Verdict::default();
    for (nr, fit) in fits.iter().enumerate() {
        for (at, unit) in past.units[nr].iter().enumerate() {
            let Some((_, acked_ms)) = unit.acked else { continue };
            let is_promised = match unit.promise {
                _ if past.is_void => false,
                Promise::Nothing => false,
                Promise::InTime => past.is_whole || acked_ms < past.safe_ms,
                Promise::Always => true,
            };
            verdict.acked += 1;
            verdict.promised += usize::from(is_promised);
            if at < fit.most {
                continue;
            }
            if is_promised {
                return Err(format!(
                    "writer {nr}: {} of {} units are there; unit {at} ({:?}: {}) was acknowledged after {acked_ms} ms and promised ({:?}; safe up to {} ms, ended in order: {})",
                    fit.most,
                    past.units[nr].len(),
                    unit.way,
                    said(&unit.ops[0].words()),
                    unit.promise,
                    past.safe_ms,
                    past.is_whole
                ));
            }
            verdict.lost += 1;
            verdict.lost_ms = verdict.lost_ms.max(past.killed_ms.saturating_sub(acked_ms));
        }
        let ((seen, way), counter) = (past.seen[nr], balance(now, &(0, tick(nr))).unwrap_or(0));
        if counter < seen as i64 && !past.is_void {
            return Err(format!(
                "{way} read the counter of writer {nr} as {seen} under always, and it is {counter}"
            ));
        }
    }
    Ok(verdict)
}

/// The first differences of two states, in words.
pub fn differences(a: &State, b: &State) -> Vec<String> {
    let keys: BTreeSet<&Key> = a.keys().chain(b.keys()).collect();
    let brief = |entry: Option<&Entry>| {
        entry.map_or("nothing".into(), |e| format!("{}, expires {}", e.value.brief(), e.expires))
    };
    let differing = keys.into_iter().filter(|key| !same(a.get(key), b.get(key)));
    differing
        .take(5)
        .map(|key| format!("{} of {}: {} and {}", quote(&key.1), key.0, brief(a.get(key)), brief(b.get(key))))
        .collect()
}
