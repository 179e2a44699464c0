//! DUMP and RESTORE: a value as bytes that any Redis understands, and back. MIGRATE, which `exec` performs, uses both.
//!
//! Both cost what the value is large: what takes longer than a quantum runs on a worker, which hands over a finished
//! payload, or a finished value to be committed in O(1).

use super::object::{FREQ_NEW, FREQ_STEP};
use crate::options::{int, is};
use crate::serial::{self, Decoded};
use crate::table::*;
use crate::{Cx, Error, Stream};
use keyspace::{Class, View};
use resp::{Args, Reply};

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
        .doc("generic", "2.6.0", TRIP, "Makes a key of a value in serialized form."),
    Command::new("migrate", -6, Run::Exec, WRITE | MOVABLEKEYS, acl::KEYSPACE | acl::DANGEROUS)
        .keys(&[KeySpec::one(3, MOVED), MOVED_TOO])
        .tips(&["nondeterministic_output"])
        .effect(Effect::Noted)
        .doc("generic", "2.6.0", "A DUMP and DEL here, a RESTORE there.", "Moves keys to another server."),
];

const MOVED: Use = Use(&["RW", "access", "delete"]);
const MOVED_TOO: KeySpec = KeySpec {
    begin: Begin::Keyword("KEYS", -2),
    ..KeySpec::range(0, -1, 1, Use(&["RW", "access", "delete", "incomplete"]))
};

/// Payloads of more bytes are streamed.
const STREAM_BYTES: usize = 64 * 1024;

fn dump_cost(view: &View<'_>, args: Args<'_>) -> usize {
    view.value(args.at(1)).map_or(0, serial::write_cost)
}

/// `DUMP key`
fn dump(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let owned = cx.view.owned(key);
    let now_ms = cx.view.now_ms();
    let payload = match &owned {
        Some(owned) => serial::encode(&owned.value, now_ms, &mut |steps| cx.budget.charge(steps))?,
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
}

impl Drop for Payload {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        stdx::reclaim::defer(bytes.capacity(), move || drop(bytes));
    }
}

fn restore_cost(_: &View<'_>, args: Args<'_>) -> usize {
    args.get(3).map_or(0, serial::read_cost)
}

#[derive(Default)]
struct Options {
    replace: bool,
    absttl: bool,
    idle_s: Option<u64>,
    freq: Option<i64>,
}

impl Options {
    fn parse(args: Args<'_>) -> Result<Options, Error> {
        let (mut options, mut i) = (Options::default(), 0);
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
}

/// `RESTORE key ttl serialized-value [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]`. FREQ is what OBJECT FREQ
/// tells, as near as it can. A time that has passed makes no key.
///
/// Errors: the key is there already; a negative time; a payload of another make, or a broken one.
fn restore(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let options = Options::parse(args.from(4))?;
    if !options.replace && cx.view.exists(key) {
        return Err(Error::new("BUSYKEY Target key name already exists."));
    }
    let ttl = int(args.at(2))?;
    if ttl < 0 {
        return Err(Error::new("ERR Invalid TTL value, must be >= 0"));
    }
    let now_ms = cx.view.now_ms();
    let decoded = serial::decode(args.at(3), now_ms, &mut |steps| cx.budget.charge(steps))?;
    // A sum that overflows has passed, as in Redis.
    let at = if options.absttl { ttl } else { ttl.checked_add(now_ms as i64).unwrap_or(0) };
    let expire_ms = (ttl > 0).then_some(at as u64);
    let replaced = options.replace && cx.view.remove(key);
    match decoded {
        Decoded::Value(value) if expire_ms.is_none_or(|at| at > now_ms || cx.caller.in_replay) => {
            cx.view.put(key, value, expire_ms);
            if let Some(idle_s) = options.idle_s {
                cx.view.set_idle(key, idle_s);
            }
            if let Some(freq) = options.freq.filter(|_| cx.view.tells_freq()) {
                cx.view.set_freq(key, ((freq - FREQ_NEW).max(0) as f64 / FREQ_STEP as f64).round() as u8);
            }
            cx.view.changed(key, Class::Generic, "restore");
            if let (Some(at), false) = (expire_ms, options.absttl) {
                note(cx, args, at);
            }
        }
        _ => {
            if replaced {
                cx.view.changed(key, Class::Generic, "del");
                cx.effect(&[b"DEL", key]);
            }
        }
    }
    cx.out.ok();
    Ok(())
}

/// Whoever follows has other clocks: it is told the time itself.
fn note(cx: &mut Cx<'_, '_>, args: Args<'_>, at_ms: u64) {
    let at = at_ms.to_string();
    let mut words: Vec<&[u8]> = args.iter().collect();
    words[2] = at.as_bytes();
    words.push(b"ABSTTL");
    cx.effect(&words);
}

#[cfg(test)]
mod tests;
