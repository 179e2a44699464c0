//! Removals of large data: a huge value in each way it can go, all keys, many keys that expire together.

use super::{Attack, Attacker, GIB, LONG, PLAIN, SHORT, Stage, Strike, Style, reads};
use crate::bystander;
use crate::fill;
use crate::random::{key40, value40};
use crate::wire;
use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Elements of a huge value.
const HUGE: u64 = 5_000_000;
const MANY: u64 = 10_000_000;
const EXPIRING: u64 = 1_000_000;
/// Time from EXPIRE of a huge value to its expiry.
const LIFE_MS: u64 = 100;
/// Most time between the writing of keys and their expiry.
const LEAD: Duration = Duration::from_secs(12);
/// Time to wait for the removal of all expired keys.
const GONE_LIMIT: Duration = Duration::from_secs(60);

pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "del",
        what: "DEL of a set of {}",
        strike: |_, k| once(move |attacker| attacker.words(&format!("DEL doomed:{k}"))),
        ..DOOMED
    },
    Attack {
        name: "unlink",
        what: "UNLINK of a set of {}",
        strike: |_, k| once(move |attacker| attacker.words(&format!("UNLINK doomed:{k}"))),
        ..DOOMED
    },
    Attack {
        name: "overwrite",
        what: "SET over a set of {}",
        strike: |_, k| once(move |attacker| attacker.words(&format!("SET doomed:{k} small"))),
        ..DOOMED
    },
    Attack {
        name: "rename-over",
        what: "RENAME over a set of {}",
        strike: |_, k| once(move |attacker| attacker.words(&format!("RENAME small:{k} doomed:{k}"))),
        ..DOOMED
    },
    Attack {
        name: "expire",
        what: "expiry of a set of {}",
        style: Style::Once(LONG),
        strike: |_, k| once(move |attacker| attacker.words(&format!("PEXPIRE doomed:{k} {LIFE_MS}"))),
        ..DOOMED
    },
    Attack {
        name: "flushall-sync",
        what: "FLUSHALL SYNC of {} keys",
        strike: |_, _| once(|attacker| attacker.words("FLUSHALL SYNC")),
        ..FLUSHED
    },
    Attack {
        name: "flushall-async",
        what: "FLUSHALL ASYNC of {} keys",
        strike: |_, _| once(|attacker| attacker.words("FLUSHALL ASYNC")),
        ..FLUSHED
    },
    Attack {
        name: "flushdb-sync",
        what: "FLUSHDB SYNC of {} keys",
        strike: |_, _| once(|attacker| attacker.words("FLUSHDB SYNC")),
        ..FLUSHED
    },
    Attack {
        name: "flushdb-async",
        what: "FLUSHDB ASYNC of {} keys",
        strike: |_, _| once(|attacker| attacker.words("FLUSHDB ASYNC")),
        ..FLUSHED
    },
    Attack {
        name: "expire-together",
        what: "{} keys expire in the same second",
        size: EXPIRING,
        style: Style::Once(SHORT),
        memory: (GIB, 0),
        strike: expire_together,
        ..PLAIN
    },
];

const DOOMED: Attack = Attack {
    size: HUGE,
    style: Style::Once(LONG),
    memory: (2 * GIB, GIB / 3),
    refill: |stage| {
        let mut client = stage.server.client()?;
        for k in 0..stage.attackers {
            // A key from the last round may have another type.
            client.words(&format!("DEL doomed:{k}"))?;
            reads::set(stage, format!("doomed:{k}").as_bytes(), stage.own_share(HUGE), 0)?;
            client.words(&format!("SET small:{k} one"))?;
        }
        Ok(())
    },
    ..PLAIN
};

const FLUSHED: Attack = Attack {
    size: MANY,
    style: Style::Once(LONG),
    memory: (3 * GIB, 0),
    refill: |stage| {
        bystander::prepare(stage.server)?;
        fill::mset(stage.server, stage.scaled(MANY)).map(|_| ())
    },
    ..PLAIN
};

fn once(strike: impl FnMut(&mut Attacker) -> io::Result<Duration> + Send + 'static) -> io::Result<Strike> {
    Ok(Box::new(strike))
}

/// The first attacker writes keys that all expire within one second, and waits until the last is gone. Its
/// time runs from the end of that second. The others do nothing.
fn expire_together(stage: &Stage, k: usize) -> io::Result<Strike> {
    if k > 0 {
        return once(|_| Ok(Duration::ZERO));
    }
    let n = stage.scaled(EXPIRING);
    let (opens, opens_ms) = moment(LEAD.mul_f64(stage.scale.clamp(0.1, 1.0)));
    fill::each(stage.server, 0..n, |out, i| {
        let mut at = Vec::new();
        wire::decimal(&mut at, opens_ms + i % 1000);
        wire::command(out, &[b"SET", &key40(i), &value40(i), b"PXAT", &at]);
    })?;
    if Instant::now() > opens {
        return Err(io::Error::other("writing the keys took longer than they were to live"));
    }
    let mut client = stage.server.client()?;
    once(move |_| {
        sleep(opens.saturating_duration_since(Instant::now()));
        let closes = opens + Duration::from_secs(1);
        while client.size()? > bystander::KEYS {
            if closes.elapsed() > GONE_LIMIT {
                return Err(io::Error::other("expired keys are still there after 60 s"));
            }
            sleep(Duration::from_millis(20));
        }
        Ok(closes.elapsed())
    })
}

/// The moment `from_now`, on both clocks.
pub fn moment(from_now: Duration) -> (Instant, u64) {
    let wall = (SystemTime::now() + from_now).duration_since(UNIX_EPOCH).map_or(0, |t| t.as_millis() as u64);
    (Instant::now() + from_now, wall)
}
