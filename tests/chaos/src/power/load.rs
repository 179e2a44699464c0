//! Clients of a recorded server, and what must be there after an outage at some moment.
//!
//! - L1: a client does its units one after another. A unit appends its number to a list, sets a number and one
//!   of four texts, all at once: by MULTI, by a script, or by a function. So what is there shows how many units
//!   are, and whether one is there in part.
//! - L2: a unit that was acknowledged while replies waited for the log is there. So is one before an answered
//!   WAITAOF, and one that was acknowledged before a SAVE began which succeeded.
//! - L3: the log is in one order: a unit that was acknowledged before another was sent is there if the other
//!   is.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, SystemTime};
use support::rng::Rng;
use support::wire::{Conn, Frame};

pub const CLIENTS: usize = 3;
/// Units of a client, at most.
const UNITS: usize = 60;
const TEXTS: usize = 4;
const SCRIPT: &str = "redis.call('RPUSH', KEYS[1], ARGV[1]) redis.call('SET', KEYS[2], ARGV[1]) redis.call('SET', KEYS[3], ARGV[2])";
const LIBRARY: &str = "#!lua name=units\nredis.register_function('unit', function(KEYS, ARGV) \
    redis.call('RPUSH', KEYS[1], ARGV[1]) redis.call('SET', KEYS[2], ARGV[1]) redis.call('SET', KEYS[3], ARGV[2]) end)";

/// Microseconds of the wall clock.
pub fn now_us() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// A unit that was sent; its number is its place in the list, from 1.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unit {
    pub sent_us: u64,
    /// 0: it was not answered.
    pub acked_us: u64,
    /// An answered WAITAOF behind it. 0: there was none.
    pub synced_us: u64,
}

/// A span of time.
#[derive(Clone, Copy)]
pub struct Span {
    pub from_us: u64,
    pub until_us: u64,
}

/// What was done to the server meanwhile.
#[derive(Default)]
pub struct History {
    /// Each client's units.
    pub units: Vec<Vec<Unit>>,
    /// From here on replies wait for the log. None: they never do.
    pub gated_us: Option<u64>,
    /// When the log was asked for by CONFIG SET. None: it was there from the start.
    pub asked_us: Option<u64>,
    /// Since then the log has its base, and all that was acknowledged before it was asked for.
    pub based_us: Option<u64>,
    /// SAVEs that succeeded.
    pub saves: Vec<Span>,
    /// Refusals and other answers that nothing explains.
    pub faults: Vec<String>,
}

/// How a recorded server is used.
#[derive(Clone, Copy)]
pub struct Course {
    pub is_always: bool,
    /// The log is asked for while clients write.
    pub turns_on: bool,
    pub seed: u64,
}

/// Has clients write, and rewrites, saves and settings beside them.
pub fn play(course: Course, open: impl Fn() -> Result<Conn, String> + Sync) -> Result<History, String> {
    let stop = AtomicBool::new(false);
    open()?.call(&["FUNCTION", "LOAD", LIBRARY]);
    let mut history = History::default();
    let writers = |nr: usize| {
        let (open, stop) = (&open, &stop);
        move || open().map(|conn| write(nr, course, conn, stop))
    };
    let played = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|nr| scope.spawn(writers(nr))).collect();
        let steered = open().and_then(|conn| steer(course, conn, &mut history));
        stop.store(true, SeqCst);
        let units =
            clients.into_iter().map(|client| client.join().map_err(|_| "a client panicked".to_owned())?);
        steered.and(units.collect::<Result<Vec<_>, String>>())
    })?;
    for (units, faults) in played {
        history.units.push(units);
        history.faults.extend(faults);
    }
    Ok(history)
}

/// A client: its units one after another (L1).
fn write(nr: usize, course: Course, mut conn: Conn, stop: &AtomicBool) -> (Vec<Unit>, Vec<String>) {
    let mut rng = Rng::named(course.seed, "units", nr as u64);
    let (mut units, mut faults) = (Vec::new(), Vec::new());
    while units.len() < UNITS && !stop.load(SeqCst) {
        let number = units.len() + 1;
        let keys = [format!("list:{nr}"), format!("last:{nr}"), format!("text:{nr}:{}", number % TEXTS)];
        let args = [number.to_string(), text(number, &mut rng)];
        let mut unit = Unit { sent_us: now_us(), ..Unit::default() };
        let reply = send(&mut conn, rng.below(3), &keys, &args);
        match reply {
            Frame::Error(_) | Frame::Gone(_) => {
                faults.push(format!("unit {number} of client {nr} was answered {reply}"))
            }
            _ => unit.acked_us = now_us(),
        }
        if rng.percent(25)
            && matches!(conn.call(&["WAITAOF", "1", "0", "100"]).items(), Some([Frame::Int(1), _]))
        {
            unit.synced_us = now_us();
        }
        units.push(unit);
    }
    (units, faults)
}

fn send(conn: &mut Conn, way: usize, keys: &[String; 3], args: &[String; 2]) -> Frame {
    let [list, last, text] = keys;
    match way {
        0 => {
            conn.call(&["MULTI"]);
            conn.call(&["RPUSH", list, &args[0]]);
            conn.call(&["SET", last, &args[0]]);
            conn.call(&["SET", text, &args[1]]);
            conn.call(&["EXEC"])
        }
        1 => conn.call(&["EVAL", SCRIPT, "3", list, last, text, &args[0], &args[1]]),
        _ => conn.call(&["FCALL", "unit", "3", list, last, text, &args[0], &args[1]]),
    }
}

fn text(number: usize, rng: &mut Rng) -> String {
    let len = if rng.percent(10) { rng.between(10_000, 60_000) } else { rng.below(900) };
    format!("{number} {}", "x".repeat(len))
}

/// Rewrites, saves, and the setting of the log.
fn steer(course: Course, mut conn: Conn, history: &mut History) -> Result<(), String> {
    let mut rng = Rng::named(course.seed, "steer", 0);
    if course.is_always && !course.turns_on {
        history.gated_us = Some(0);
    }
    let turns_on_at = rng.below(4);
    for turn in 0..8 {
        std::thread::sleep(Duration::from_millis(rng.below(80) as u64));
        if course.turns_on && turn == turns_on_at {
            turn_on(course, &mut conn, history)?;
        }
        let from_us = now_us();
        match rng.below(4) {
            0 => drop(conn.call(&["BGREWRITEAOF"])),
            1 => drop(conn.call(&["BGSAVE"])),
            2 if conn.call(&["SAVE"]) == Frame::Simple(b"OK".to_vec()) => {
                history.saves.push(Span { from_us, until_us: now_us() });
            }
            _ => {}
        }
    }
    Ok(())
}

fn turn_on(course: Course, conn: &mut Conn, history: &mut History) -> Result<(), String> {
    history.asked_us = Some(now_us());
    let reply = conn.call(&["CONFIG", "SET", "appendonly", "yes"]);
    if reply != Frame::Simple(b"OK".to_vec()) {
        return Err(format!("CONFIG SET appendonly yes was answered {reply}"));
    }
    let synced = conn.call(&["WAITAOF", "1", "0", "0"]);
    if !matches!(synced.items(), Some([Frame::Int(1), _])) {
        return Err(format!("WAITAOF behind CONFIG SET appendonly yes was answered {synced}"));
    }
    history.based_us = Some(now_us());
    history.gated_us = course.is_always.then_some(now_us());
    Ok(())
}

/// What a server has: each client's number of units. Errors: a unit is there in part.
pub fn read(conn: &mut Conn) -> Result<Vec<usize>, String> {
    let mut found = Vec::new();
    for nr in 0..CLIENTS {
        let list = conn.call(&["LRANGE", &format!("list:{nr}"), "0", "-1"]);
        let items = list.items().ok_or_else(|| format!("LRANGE was answered {list}"))?;
        for (at, item) in items.iter().enumerate() {
            if item.text() != Some((at + 1).to_string().as_bytes()) {
                return Err(format!("element {at} of client {nr} is {item}"));
            }
        }
        let units = items.len();
        let last = conn.call(&["GET", &format!("last:{nr}")]);
        if last.text().unwrap_or(b"0") != units.to_string().as_bytes() {
            return Err(format!("client {nr} has {units} units, and the last is {last}"));
        }
        for slot in 0..TEXTS {
            let wanted = (1..=units).rev().find(|number| number % TEXTS == slot);
            let text = conn.call(&["GET", &format!("text:{nr}:{slot}")]);
            let begins = text.text().map(|text| text.split(|byte| *byte == b' ').next().unwrap_or_default());
            if begins != wanted.map(|number| number.to_string()).as_deref().map(str::as_bytes) {
                return Err(format!("client {nr} has {units} units, and text {slot} is that of {begins:?}"));
            }
        }
        found.push(units);
    }
    Ok(found)
}

/// Holds what is there against what was promised until a moment. `logged`: the start took the log, not the
/// snapshot.
pub fn judge(history: &History, cut_us: u64, logged: bool, found: &[usize]) -> Result<usize, String> {
    let save = history.saves.iter().rfind(|save| save.until_us < cut_us).map_or(0, |save| save.from_us);
    let is_based = |us: &u64| *us < cut_us;
    let mut promised = 0;
    for (nr, units) in history.units.iter().enumerate() {
        let is_promised = |unit: &Unit| {
            let acked = unit.acked_us > 0 && unit.acked_us < cut_us;
            let by_log = logged
                && (history.gated_us.is_some_and(|from| unit.sent_us >= from)
                    || history.based_us.as_ref().is_some_and(is_based)
                        && history.asked_us.is_some_and(|asked| unit.acked_us < asked));
            let by_sync = logged && unit.synced_us > 0 && unit.synced_us < cut_us;
            let by_save = !logged && unit.acked_us < save;
            acked && (by_log || by_sync || by_save)
        };
        let least = units.iter().rposition(is_promised).map_or(0, |at| at + 1);
        promised += least;
        let most = units.iter().filter(|unit| unit.sent_us < cut_us).count();
        if found[nr] < least || found[nr] > most {
            return Err(format!(
                "client {nr} has {} units: {least} are promised, {most} were sent",
                found[nr]
            ));
        }
        // L3
        let Some(last) = found[nr].checked_sub(1).map(|at| units[at]) else { continue };
        for (other, theirs) in history.units.iter().enumerate() {
            let before =
                theirs.iter().filter(|unit| unit.acked_us > 0 && unit.acked_us < last.sent_us).count();
            if found[other] < before {
                return Err(format!(
                    "unit {} of client {nr} is there, and unit {before} of client {other}, acknowledged before it was sent, is not",
                    found[nr]
                ));
            }
        }
    }
    Ok(promised)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(sent_us: u64, acked_us: u64) -> Unit {
        Unit { sent_us, acked_us, synced_us: 0 }
    }

    fn history(gated: bool) -> History {
        let mut units = vec![Vec::new(); CLIENTS];
        units[0] = vec![unit(10, 20), unit(30, 40), unit(50, 60)];
        units[1] = vec![unit(45, 70)];
        History { units, gated_us: gated.then_some(0), ..History::default() }
    }

    #[test]
    fn an_acknowledged_unit_is_missed() {
        let gated = history(true);
        assert_eq!(judge(&gated, 41, true, &[2, 0, 0]), Ok(2));
        assert!(judge(&gated, 41, true, &[1, 0, 0]).is_err());
        assert_eq!(judge(&gated, 40, true, &[1, 0, 0]), Ok(1));
        assert!(judge(&gated, 35, true, &[3, 0, 0]).is_err());
        // Nothing is promised of the log, but its order is.
        let open = history(false);
        assert_eq!(judge(&open, 100, true, &[0, 0, 0]), Ok(0));
        assert!(judge(&open, 100, true, &[1, 1, 0]).is_err());
        assert_eq!(judge(&open, 100, true, &[2, 1, 0]), Ok(0));
    }

    #[test]
    fn a_save_and_a_sync_promise_what_came_before_them() {
        let mut saved = history(false);
        saved.saves.push(Span { from_us: 42, until_us: 44 });
        assert!(judge(&saved, 50, false, &[1, 0, 0]).is_err());
        assert_eq!(judge(&saved, 50, false, &[2, 0, 0]), Ok(2));
        assert_eq!(judge(&saved, 43, false, &[0, 0, 0]), Ok(0));
        let mut synced = history(false);
        synced.units[0][1].synced_us = 45;
        assert!(judge(&synced, 50, true, &[1, 0, 0]).is_err());
        assert_eq!(judge(&synced, 45, true, &[1, 0, 0]), Ok(0));
    }
}
