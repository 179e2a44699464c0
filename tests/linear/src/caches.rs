//! Client-side caches: clients that track keep copies, and forget them when a message says so.
//!
//! ```text
//! GET k ─▶ reply ─▶ copy ─▶ read without a request ─▶ … ─▶ invalidate k ─▶ forget ─▶ GET k
//!             writers: SET, MSET, GETSET, RENAME, MULTI, EVAL; each key has one writer, whose numbers grow
//! ```
//!
//! A cache is a client that acts on the bytes of one RESP3 connection in their order: the reply of a GET makes
//! a copy, and a message that names the key, or all keys, ends it. The copy of a key is never asked for again
//! while it is there. For every read from the server or from a copy:
//!
//! - CC1: a reply of the server is no older than the last write of the key that was answered before the GET was
//!   sent, and no newer than the last one sent. (That is linearizability of one register with one writer.)
//! - CC2: the version read after a message is greater than the version of the copy that the message ended. So
//!   the message was about a write that came after the read of the copy, and was there to be read. With BCAST,
//!   where messages come without reads, and after a message about all keys, it is no less.
//! - CC3: when all writers are answered, each copy is the last version, or is ended by a message, without a
//!   GET. A message that stood in front of the reply of an older read, or was lost, would leave a copy old for
//!   ever.
//!
//! A copy may be older than an answered write until its message has come: nothing is claimed about how soon.

use crate::invariants::{Part, Stage, multi, tell};
use crate::wire::PATIENCE;
use dial::{Conn, Frame, put_request};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use support::rng::Rng;

const CACHES_DB: usize = 14;
/// Keys of one writer.
const KEYS: usize = 6;

/// The newest version of a key that was sent, and that was answered.
#[derive(Default)]
struct Version {
    sent: AtomicI64,
    done: AtomicI64,
}

struct Shared {
    /// The versions of all writers, one writer after the other.
    versions: Vec<Version>,
    writers: AtomicUsize,
}

/// The copies of one client.
#[derive(Default)]
struct Copies {
    /// Copies, by key.
    now: HashMap<usize, i64>,
    /// Versions of copies that a message ended, and whether the same may be read again.
    ended: HashMap<usize, (i64, bool)>,
    /// Messages come without reads.
    broadcast: bool,
}

impl Copies {
    /// A reply of the server.
    fn reply(&mut self, key: usize, version: i64) -> Result<(), String> {
        if let Some((before, may_stay)) = self.ended.get(&key) {
            // CC2
            if version < *before || version == *before && !may_stay {
                return Err(format!(
                    "key {key}: version {version} was read after a message ended a copy of {before}"
                ));
            }
        }
        self.now.insert(key, version);
        Ok(())
    }

    /// A message: the keys that it names, or `None` for all.
    fn message(&mut self, keys: Option<Vec<usize>>) {
        // If a database was emptied, perhaps another, the same version may be there still.
        let may_stay = keys.is_none() || self.broadcast;
        for key in keys.unwrap_or_else(|| self.now.keys().copied().collect()) {
            if let Some(version) = self.now.remove(&key) {
                self.ended.insert(key, (version, may_stay));
            }
        }
    }
}

/// The clients of the scene.
pub fn parts(stage: &Stage, rng: &mut Rng) -> Result<Vec<(&'static str, Part)>, String> {
    let (writers, caches) = (rng.between(1, 3), rng.between(1, 4));
    let versions = (0..writers * KEYS).map(|_| Version::default()).collect();
    let shared = Arc::new(Shared { versions, writers: AtomicUsize::new(writers) });
    let mut all = "MSET".to_owned();
    (0..writers * KEYS).for_each(|key| all += &format!(" c:{key} 0"));
    tell(&mut stage.conn(CACHES_DB)?, &all)?;
    let mut parts: Vec<(&'static str, Part)> = Vec::new();
    for i in 0..writers {
        let shared = shared.clone();
        parts.push(("caches writer", Box::new(move |stage| writer(stage, i, &shared))));
    }
    for i in 0..caches {
        let shared = shared.clone();
        let broadcast = rng.percent(25);
        parts.push(("cache", Box::new(move |stage| cache(stage, i, broadcast, &shared))));
    }
    Ok(parts)
}

fn writer(stage: &Stage, i: usize, shared: &Shared) -> Result<usize, String> {
    let (mut conn, mut rng, mut n) = (stage.conn(CACHES_DB)?, stage.rng(110 + i as u64), 0);
    while stage.on() {
        n += 1;
        let first = i * KEYS + rng.below(KEYS);
        let several = rng.percent(30);
        let keys: Vec<usize> = if several { (i * KEYS..(i + 1) * KEYS).collect() } else { vec![first] };
        keys.iter().for_each(|key| shared.versions[*key].sent.store(n, Ordering::SeqCst));
        write(&mut conn, &mut rng, &keys, n)?;
        keys.iter().for_each(|key| shared.versions[*key].done.store(n, Ordering::SeqCst));
        if rng.percent(50) {
            std::thread::sleep(Duration::from_micros(rng.below(1500) as u64));
        }
    }
    shared.writers.fetch_sub(1, Ordering::SeqCst);
    Ok(n as usize)
}

/// Writes a version into one key, or into several at once.
fn write(conn: &mut Conn, rng: &mut Rng, keys: &[usize], n: i64) -> Result<(), String> {
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let [key] = keys[..] else {
        match rng.below(3) {
            0 => {
                let lines: Vec<_> = keys.iter().map(|key| words(&format!("SET c:{key} {n}"))).collect();
                multi(conn, &lines)?;
            }
            way => {
                let pairs: String = keys.iter().map(|key| format!(" c:{key} {n}")).collect();
                // A write of very many keys is committed elsewhere.
                let more = if way == 1 { 0 } else { 3000 };
                let more: String = (0..more).map(|key| format!(" other:{key} {n}")).collect();
                tell(conn, &format!("MSET{more}{pairs}"))?;
            }
        }
        return Ok(());
    };
    match rng.below(5) {
        0 => tell(conn, &format!("GETSET c:{key} {n}"))?,
        1 => {
            tell(conn, &format!("SET new:{key} {n}"))?;
            tell(conn, &format!("RENAME new:{key} c:{key}"))?
        }
        2 => {
            let script = "for i = 1, ARGV[2] do end return redis.call('SET', KEYS[1], ARGV[1])";
            let spin = if rng.percent(80) { 0 } else { 200_000 };
            let request = ["EVAL", script, "1", &format!("c:{key}"), &n.to_string(), &spin.to_string()];
            crate::invariants::say(conn, &request.map(str::to_owned))?
        }
        _ => tell(conn, &format!("SET c:{key} {n}"))?,
    };
    Ok(())
}

fn cache(stage: &Stage, i: usize, broadcast: bool, shared: &Shared) -> Result<usize, String> {
    let (mut conn, mut rng, mut reads) = (stage.conn(CACHES_DB)?, stage.rng(120 + i as u64), 0);
    conn.call(&["HELLO", "3"]).map_err(|e| e.to_string())?;
    tell(&mut conn, if broadcast { "CLIENT TRACKING ON BCAST PREFIX c:" } else { "CLIENT TRACKING ON" })?;
    let mut copies = Copies { broadcast, ..Copies::default() };
    while stage.on() {
        let key = rng.below(shared.versions.len());
        read(&mut conn, &mut copies, key, shared)?;
        reads += 1;
        // Without a request nothing new is heard.
        if rng.percent(20) {
            ask(&mut conn, &mut copies, &["PING".to_owned()])?;
        }
    }
    let deadline = Instant::now() + PATIENCE;
    while shared.writers.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    settle(&mut conn, &mut copies, shared, deadline)?;
    Ok(reads)
}

/// Reads a key from its copy, or from the server.
fn read(conn: &mut Conn, copies: &mut Copies, key: usize, shared: &Shared) -> Result<(), String> {
    if copies.now.contains_key(&key) {
        return Ok(());
    }
    let version = &shared.versions[key];
    let oldest = version.done.load(Ordering::SeqCst);
    let reply = ask(conn, copies, &["GET".to_owned(), format!("c:{key}")])?;
    let newest = version.sent.load(Ordering::SeqCst);
    let Some(n) = reply.number() else { return Err(format!("key {key} was {reply:?}")) };
    if n < oldest || n > newest {
        return Err(format!("key {key}: version {n} was read, of {oldest} to {newest}")); // CC1
    }
    copies.reply(key, n)
}

/// Sends a request; acts on the messages in front of its reply.
fn ask(conn: &mut Conn, copies: &mut Copies, request: &[String]) -> Result<Frame, String> {
    let mut out = Vec::new();
    put_request(&mut out, request);
    conn.send(&out).map_err(|e| e.to_string())?;
    loop {
        match conn.reply().map_err(|e| format!("{}: {e}", request[0]))? {
            Frame::Push(parts) => copies.message(named(&parts)?),
            error @ Frame::Error(_) => return Err(format!("{} was answered {}", request[0], error.lossy())),
            reply => return Ok(reply),
        }
    }
}

/// The keys that a message names; `None` for all.
fn named(parts: &[Frame]) -> Result<Option<Vec<usize>>, String> {
    match parts {
        [Frame::Bulk(kind), Frame::Null] if kind == b"invalidate" => Ok(None),
        [Frame::Bulk(kind), Frame::Array(keys)] if kind == b"invalidate" => {
            let number = |key: &Frame| match key {
                Frame::Bulk(name) => std::str::from_utf8(name).ok()?.strip_prefix("c:")?.parse().ok(),
                _ => None,
            };
            let keys: Option<Vec<usize>> = keys.iter().map(number).collect();
            keys.map(Some).ok_or_else(|| format!("a message about keys that were not read: {parts:?}"))
        }
        _ => Err(format!("an unknown message: {parts:?}")),
    }
}

/// Waits until no copy is old (CC3).
fn settle(conn: &mut Conn, copies: &mut Copies, shared: &Shared, deadline: Instant) -> Result<(), String> {
    loop {
        let old = |(key, copy): (&usize, &i64)| *copy < shared.versions[*key].done.load(Ordering::SeqCst);
        if !copies.now.iter().any(old) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("copies stayed old: {:?}", copies.now));
        }
        ask(conn, copies, &["PING".to_owned()])?;
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_find_messages_that_came_too_early() {
        let mut copies = Copies::default();
        assert_eq!(copies.reply(1, 5), Ok(()));
        copies.message(Some(vec![1, 2]));
        assert!(copies.now.is_empty());
        assert!(copies.reply(1, 4).is_err(), "an older version");
        assert!(copies.reply(1, 5).is_err(), "the message was about no newer version");
        assert_eq!(copies.reply(1, 6), Ok(()));
        assert_eq!(copies.reply(2, 1), Ok(()), "there was no copy to end");
        copies.message(None);
        assert!(copies.now.is_empty() && copies.reply(2, 0).is_err());
        assert_eq!(copies.reply(2, 1), Ok(()), "another database was emptied");
        copies.message(Some(vec![2]));
        assert!(copies.reply(2, 1).is_err());
        assert!(copies.reply(1, 5).is_err());
        let mut copies = Copies { broadcast: true, ..copies };
        assert_eq!(copies.reply(3, 4), Ok(()));
        copies.message(Some(vec![3]));
        assert!(copies.reply(3, 3).is_err());
        assert_eq!(copies.reply(3, 4), Ok(()));
    }

    #[test]
    fn messages_are_read() {
        let bulk = |text: &str| Frame::Bulk(text.as_bytes().to_vec());
        let keys = Frame::Array(vec![bulk("c:3"), bulk("c:4")]);
        assert_eq!(named(&[bulk("invalidate"), keys]), Ok(Some(vec![3, 4])));
        assert_eq!(named(&[bulk("invalidate"), Frame::Null]), Ok(None));
        assert!(named(&[bulk("invalidate"), Frame::Array(vec![bulk("other:1")])]).is_err());
        assert!(named(&[bulk("pubsub"), Frame::Null]).is_err());
    }
}
