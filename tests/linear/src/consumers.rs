//! A consumer group on one stream: producers, consumers that read `>` and acknowledge, and one that claims.
//!
//! ```text
//! XADD ─▶ stream ─▶ XREADGROUP > ─▶ a ledger of all deliveries ─▶ XACK ─▶ nothing pending at the end
//!                        └─ pending for long ─▶ XAUTOCLAIM ──────▶ XACK
//! ```
//!
//! - CG1: each entry is delivered by `>` to one consumer, once; with the value that its XADD brought.
//! - CG2: one consumer's deliveries by `>` have ascending IDs.
//! - CG3: each entry is acknowledged once, whoever holds it: the XACKs of all clients sum up to the entries.
//! - CG4: in the end every entry that was added was delivered, none is pending, and none is left over.
//!
//! An entry is removed only when it is acknowledged (XDEL), which no reply of `>` may show.

use crate::invariants::{Part, Stage, tell};
use crate::streams::{Id, entries, id};
use dial::{Conn, Frame};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use support::rng::Rng;

const CONSUMERS_DB: usize = 13;
const GROUP: &str = "XGROUP CREATE jobs g 0 MKSTREAM";

/// What was added, delivered and acknowledged.
#[derive(Default)]
struct Ledger {
    added: HashMap<Id, i64>,
    delivered: HashMap<Id, i64>,
    acknowledged: usize,
}

impl Ledger {
    /// Notes deliveries to one consumer, of which `latest` is the last so far.
    fn deliver(&mut self, all: &[(Id, i64)], latest: &mut Id) -> Result<(), String> {
        for (id, value) in all {
            if *id <= *latest {
                return Err(format!("{id:?} came to a consumer after {latest:?}")); // CG2
            }
            *latest = *id;
            if self.delivered.insert(*id, *value).is_some() {
                return Err(format!("{id:?} was delivered twice")); // CG1
            }
        }
        Ok(())
    }

    /// Judges the whole when nobody is under way.
    fn close(&self) -> Result<(), String> {
        if self.added != self.delivered {
            let lost = self.added.iter().find(|(id, value)| self.delivered.get(id) != Some(value));
            return Err(format!("{} added, {} delivered; {lost:?}", self.added.len(), self.delivered.len())); // CG1, CG4
        }
        if self.acknowledged != self.added.len() {
            return Err(format!("{} added, {} acknowledged", self.added.len(), self.acknowledged)); // CG3
        }
        Ok(())
    }
}

#[derive(Default)]
struct Shared {
    ledger: Mutex<Ledger>,
    producers: AtomicUsize,
    /// Producers and consumers that are not done.
    clients: AtomicUsize,
}

impl Shared {
    fn ledger(&self) -> Result<MutexGuard<'_, Ledger>, String> {
        self.ledger.lock().map_err(|e| e.to_string())
    }
}

/// The clients of the scene. Makes the group for them.
pub fn parts(stage: &Stage, rng: &mut Rng) -> Result<Vec<(&'static str, Part)>, String> {
    tell(&mut stage.conn(CONSUMERS_DB)?, GROUP)?;
    let (producers, consumers) = (rng.between(1, 3), rng.between(1, 4));
    let shared = Arc::new(Shared {
        producers: AtomicUsize::new(producers),
        clients: AtomicUsize::new(producers + consumers),
        ..Shared::default()
    });
    let mut parts: Vec<(&'static str, Part)> = Vec::new();
    for i in 0..producers as u64 {
        let shared = shared.clone();
        parts.push(("jobs producer", Box::new(move |stage| producer(stage, i, &shared))));
    }
    for i in 0..consumers as u64 {
        let shared = shared.clone();
        parts.push(("jobs consumer", Box::new(move |stage| consumer(stage, i, &shared))));
    }
    Ok(parts)
}

fn producer(stage: &Stage, i: u64, shared: &Shared) -> Result<usize, String> {
    let (mut conn, mut rng, mut n) = (stage.conn(CONSUMERS_DB)?, stage.rng(80 + i), 0);
    while stage.on() {
        let mut lines = Vec::new();
        for _ in 0..rng.between(1, 4) {
            n += 1;
            lines.push(format!("XADD jobs * n {}", (i as i64 + 1) * 1_000_000 + n));
        }
        let words = |line: &String| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let requests: Vec<Vec<String>> = lines.iter().map(words).collect();
        let replies = match rng.percent(30) {
            true => crate::invariants::multi(&mut conn, &requests)?.ok_or("EXEC gave nil")?,
            false => conn.pipeline(&requests).map_err(|e| format!("XADD: {e}"))?,
        };
        let mut ledger = shared.ledger()?;
        for (request, reply) in requests.iter().zip(&replies) {
            let id = id(reply).ok_or_else(|| format!("XADD was answered {reply:?}"))?;
            ledger.added.insert(id, request[4].parse().map_err(|_| "a number")?);
        }
        drop(ledger);
        std::thread::sleep(std::time::Duration::from_micros(rng.below(2000) as u64));
    }
    shared.producers.fetch_sub(1, Ordering::SeqCst);
    leave(&mut conn, shared)?;
    Ok(n as usize)
}

fn consumer(stage: &Stage, i: u64, shared: &Shared) -> Result<usize, String> {
    let (mut conn, mut rng, mut done) = (stage.conn(CONSUMERS_DB)?, stage.rng(90 + i), 0);
    let (mut latest, mut held) = ((0, 0), Vec::new());
    loop {
        let last = shared.producers.load(Ordering::SeqCst) == 0;
        let block = if rng.percent(50) { " BLOCK 5" } else { "" };
        let line = format!("XREADGROUP GROUP g c{i} COUNT {}{block} STREAMS jobs >", rng.between(1, 20));
        let all = match tell(&mut conn, &line)? {
            Frame::Array(streams) => match streams.first() {
                Some(Frame::Array(named)) => named.get(1).and_then(entries).ok_or("no entries")?,
                _ => Vec::new(),
            },
            _ => Vec::new(),
        };
        shared.ledger()?.deliver(&all, &mut latest)?;
        done += all.len();
        held.extend(all.iter().map(|entry| entry.0));
        if rng.percent(10) {
            // Others' entries come to be held here too; they may be acknowledged by either.
            let claimed = tell(&mut conn, &format!("XAUTOCLAIM jobs g c{i} 1 0 COUNT 10"))?;
            let claimed = claimed.into_array().and_then(|parts| entries(parts.get(1)?)).ok_or("no claim")?;
            held.extend(claimed.into_iter().map(|entry| entry.0));
        }
        if !rng.percent(30) || all.is_empty() {
            acknowledge(&mut conn, &mut rng, std::mem::take(&mut held), shared)?;
        }
        if last && all.is_empty() {
            break;
        }
    }
    leave(&mut conn, shared)?;
    Ok(done)
}

/// Acknowledges entries, and removes some of those.
fn acknowledge(conn: &mut Conn, rng: &mut Rng, ids: Vec<Id>, shared: &Shared) -> Result<(), String> {
    if ids.is_empty() {
        return Ok(());
    }
    let text: String = ids.iter().map(|id| format!(" {}-{}", id.0, id.1)).collect();
    let reply = tell(conn, &format!("XACK jobs g{text}"))?;
    let Some(n) = reply.number() else { return Err(format!("XACK was answered {reply:?}")) };
    shared.ledger()?.acknowledged += n as usize;
    if rng.percent(30) {
        tell(conn, &format!("XDEL jobs{text}"))?;
    }
    Ok(())
}

/// The last to leave judges the whole.
fn leave(conn: &mut Conn, shared: &Shared) -> Result<(), String> {
    if shared.clients.fetch_sub(1, Ordering::SeqCst) != 1 {
        return Ok(());
    }
    shared.ledger()?.close()?;
    let pending = tell(conn, "XPENDING jobs g")?.into_array().and_then(|parts| parts.first()?.number());
    if pending != Some(0) {
        return Err(format!("{pending:?} entries are pending after all were acknowledged")); // CG4
    }
    match tell(conn, "XREADGROUP GROUP g late STREAMS jobs >")? {
        Frame::NullArray => Ok(()),
        more => Err(format!("entries were left over: {more:?}")), // CG4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_finds_what_no_group_does() {
        let mut ledger = Ledger { added: [((1, 0), 7), ((2, 0), 8)].into(), ..Ledger::default() };
        let (mut a, mut b) = ((0, 0), (0, 0));
        assert_eq!(ledger.deliver(&[((1, 0), 7)], &mut a), Ok(()));
        assert!(ledger.close().is_err(), "an entry is not delivered yet");
        assert!(ledger.deliver(&[((1, 0), 7)], &mut a).is_err(), "again to the same");
        assert!(ledger.deliver(&[((1, 0), 7)], &mut b).is_err(), "again to another");
        assert_eq!(ledger.deliver(&[((2, 0), 8)], &mut b), Ok(()));
        assert!(ledger.close().is_err(), "nothing is acknowledged yet");
        ledger.acknowledged = 3;
        assert!(ledger.close().is_err(), "an entry was acknowledged twice");
        ledger.acknowledged = 2;
        assert_eq!(ledger.close(), Ok(()));
        ledger.delivered.insert((2, 0), 9);
        assert!(ledger.close().is_err(), "another value");
        ledger.delivered.insert((3, 0), 9);
        assert!(ledger.close().is_err(), "an entry that nobody added");
    }
}
