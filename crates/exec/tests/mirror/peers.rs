//! Redis 8 and Valkey 9 start from what a server told of random writes, days after it was told: what expired in
//! between is gone, and all else is the same.
//!
//! ```text
//! random load, days ago ─► told words ─► a log ─► Redis 8, Valkey 9
//!    └──────────────── equal, times included ──────────┘
//! ```
//!
//! Without them a Redis 7.0 reads the log, of the rows it knows. `make mirror` runs fifty seeds,
//! EVENKEEL_MIRROR_SEEDS=N others, EVENKEEL_MIRROR_SEED=N only one.

use crate::load::{self, CLIENTS, Move};
use crate::portable::{Call, calls, program, row_of, seen, unproduced};
use crate::world::{Told, World, quote};
use crate::{libraries, number, step};
use apply::contents::{self, Contents, Value};
use command::facts;
use keyspace::To;
use rdb::{Dialect, HashPayload, ListPayload};
use std::path::PathBuf;
use support::rng::Rng;
use support::server::Server;
use support::wire::{Conn, encode};

/// Seeds of a short run.
const SEEDS: u64 = 2;
/// Calls of rows, of a seed.
const CALLS: usize = 20_000;
/// Rounds of the mirror's load, and steps of each.
const ROUNDS: u64 = 3;
const STEPS: usize = 200;

const DAY_MS: u64 = 86_400_000;
/// How long before the log is read the load begins, and how long before that it ends at the latest.
const AGO_MS: u64 = 10 * DAY_MS;
const LAST_MS: u64 = 60_000;

/// A server that reads the log.
struct Peer {
    name: &'static str,
    program: PathBuf,
    /// It knows all rows and times of fields. Else it is a Redis 7.0.
    is_new: bool,
}

fn there(name: &'static str, is_new: bool) -> Option<Peer> {
    let program = program(name);
    let asked = std::process::Command::new(&program).arg("--version").output();
    asked.ok().map(|_| Peer { name, program, is_new })
}

fn peers() -> Vec<Peer> {
    let new: Vec<Peer> =
        ["redis8-server", "valkey-server"].into_iter().filter_map(|n| there(n, true)).collect();
    if new.len() < 2 {
        eprintln!("of Redis 8 and Valkey 9 there are {} (make peers builds them)", new.len());
    }
    match new.is_empty() {
        true => there("redis-server", false).into_iter().collect(),
        false => new,
    }
}

/// A payload that only one of the two takes, or neither.
fn payload(rng: &mut Rng, now_ms: u64) -> Vec<u8> {
    let dialect = if rng.percent(50) { Dialect::Redis } else { Dialect::Valkey };
    let sealed = match rng.below(3) {
        0 => ["a", "5"].into_iter().collect::<ListPayload>().finish(),
        _ => {
            let mut hash = HashPayload::new();
            hash.insert(b"f", b"1");
            for field in [&b"f1"[..], b"f2", b"f3"] {
                let ms = *rng.pick(&[1_000, DAY_MS, 20 * DAY_MS, 30 * DAY_MS]);
                hash.insert_expiring(field, b"7", now_ms + ms);
            }
            return hash.finish(dialect).expect("not empty");
        }
    };
    let mut sealed = sealed.expect("not empty");
    sealed.truncate(sealed.len() - 10);
    rdb::seal(&mut sealed, *rng.pick(&[8, 11, 12, 13, 15, 80, 81]));
    sealed
}

fn restore(rng: &mut Rng, now_ms: u64) -> Vec<Vec<u8>> {
    let key = |rng: &mut Rng| format!("h{}", rng.below(5)).into_bytes();
    let ttl = *rng.pick(&["0", "0", "5000", "3000000000"]);
    let one = [key(rng), ttl.into(), payload(rng, now_ms)];
    match rng.below(3) {
        0 => [&[b"MRESTORE".to_vec(), b"1".to_vec()][..], &one, &[b"REPLACE".to_vec()]].concat(),
        1 => [&[b"RESTORE".to_vec()][..], &one].concat(),
        _ => [&[b"RESTORE".to_vec()][..], &one, &[b"REPLACE".to_vec()]].concat(),
    }
}

/// Moves the clock on, but not into the present.
fn pass(world: &mut World, ms: u64) {
    if world.now_ms() + ms < stdx::clock::wall_ms() - LAST_MS {
        world.pass(ms);
    }
}

/// Calls rows at random. `newest`: the version of Redis whose rows are called.
fn walk(world: &mut World, rng: &mut Rng, newest: u16) {
    let calls = calls();
    let known = |name: &&'static str| {
        row_of(name).is_some_and(|row| (1..=newest).contains(&row.portable_from()) && !row.is(facts::FLUSHES))
    };
    let rows: Vec<&[Call]> =
        calls.iter().filter(|(name, _)| known(name)).map(|(_, calls)| &calls[..]).collect();
    for _ in 0..CALLS {
        let words = match rng.below(40) {
            0..=3 => {
                pass(world, *rng.pick(&[1, 50, 1_000, 60_000, DAY_MS / 24]));
                continue;
            }
            4 if newest > 700 => restore(rng, world.now_ms()),
            5 if rng.percent(10) => {
                world.sweep();
                continue;
            }
            _ => {
                let calls = *rng.pick(&rows);
                rng.pick(calls).draw(rng)
            }
        };
        world.call(0, &words);
        world.finish(0);
    }
}

fn round(world: &mut World, seed: u64, number: u64) {
    for one in load::round(seed, number, STEPS) {
        match one {
            Move::Step(one) => step(world, &one),
            Move::Start(client, words) => world.start(client, &words),
            Move::Call(client, words) => _ = world.call(client, &words),
            Move::Pass(ms) => pass(world, ms),
            Move::Sweep => world.sweep(),
            Move::Evict(policy, keys) => world.evict(policy, keys),
            Move::Compare => {}
        }
    }
    (0..CLIENTS).for_each(|client| world.reconnect(client));
}

/// Whether only Evenkeel, or a server with a module, can execute it: it makes a compressed bitmap.
fn is_own(told: &Told) -> bool {
    let name = told.words[0].to_ascii_uppercase();
    let makes = name.starts_with(b"R.") || name.starts_with(b"R64.");
    let restores = name == b"RESTORE" && told.words[3].first() == Some(&7);
    makes || restores
}

/// The log that tells it.
fn log_of(told: &[Told]) -> Vec<u8> {
    let mut log = Vec::new();
    let mut put = |words: &[Vec<u8>]| encode(words, &mut log);
    let mut db = None;
    for group in told.chunk_by(|a, b| a.lsn == b.lsn) {
        let logged: Vec<&Told> = group.iter().filter(|told| told.to == To::All && !is_own(told)).collect();
        if logged.len() > 1 {
            put(&[b"MULTI".to_vec()]);
        }
        for told in &logged {
            if told.db.is_some() && told.db != db {
                db = told.db;
                put(&[b"SELECT".to_vec(), db.unwrap_or(0).to_string().into_bytes()]);
            }
            put(&told.words);
        }
        if logged.len() > 1 {
            put(&[b"EXEC".to_vec()]);
        }
    }
    log
}

/// Without compressed bitmaps, and without what had expired at a time.
fn lasting(contents: Contents, at_ms: u64) -> Contents {
    let mut lasting = Contents::new();
    for (key, (mut value, expire_ms)) in contents {
        if let Value::Hash(fields) = &mut value {
            fields.retain(|_, (_, at)| *at > at_ms);
        }
        let is_gone = expire_ms.is_some_and(|at| at <= at_ms)
            || matches!(&value, Value::Hash(fields) if fields.is_empty())
            || matches!(value, Value::Bitmap(_));
        if !is_gone {
            lasting.insert(key, (value, expire_ms));
        }
    }
    lasting
}

/// The libraries of a server, by name.
fn libraries_of(conn: &mut Conn) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    let listed = conn.call(&["FUNCTION", "LIST", "WITHCODE"]);
    for library in listed.items().unwrap_or_default() {
        let items = library.items().unwrap_or_default();
        let of = |name: &[u8]| {
            let at = items.iter().step_by(2).position(|item| item.text() == Some(name));
            items[at.expect("it is told") * 2 + 1].text().unwrap_or_default().to_vec()
        };
        all.push((String::from_utf8_lossy(&of(b"library_name")).into_owned(), of(b"library_code")));
    }
    all.sort();
    all
}

/// Has a peer start from a log, and compares. Errors: they differ, or a command of the log failed.
fn read_by(peer: &Peer, world: &World, told: &[Told]) -> Result<(), String> {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().join("appendonlydir");
    std::fs::create_dir(&folder).expect("room");
    std::fs::write(folder.join("appendonly.aof.1.incr.aof"), log_of(told)).expect("room");
    let manifest = "file appendonly.aof.1.incr.aof seq 1 type i\n";
    std::fs::write(folder.join("appendonly.aof.manifest"), manifest).expect("room");
    let dir = dir.path().to_str().expect("a name in UTF-8");
    let args = ["--dir", dir, "--appendonly", "yes", "--appendfsync", "no"].map(str::to_owned);
    let server = Server::start_with(&peer.program, &args).map_err(|error| error.to_string())?;
    let log = server.log();
    let failed: Vec<&str> = log.lines().filter(|line| line.contains("CRITICAL")).take(3).collect();
    if !failed.is_empty() {
        return Err(failed.join("\n"));
    }
    let mut conn = Conn::open(server.addr).expect("a connection");
    let theirs = seen(&mut conn, peer.is_new);
    let now_ms = stdx::clock::wall_ms();
    let ours = lasting(unproduced(contents::of(&world.server.keyspace, now_ms)), now_ms);
    let theirs = lasting(theirs, now_ms);
    if let Some(((_, key), difference)) = contents::difference(&ours, &theirs) {
        let about = told.iter().filter(|told| told.words.contains(&key));
        let about: Vec<String> = about.map(Told::text).collect();
        let last = about[about.len().saturating_sub(15)..].join("\n");
        return Err(format!("{difference}\nlast told of {}:\n{last}", quote(&[key])));
    }
    let (mut ours, theirs) = (libraries(&world.server), libraries_of(&mut conn));
    ours.sort();
    if ours != theirs {
        return Err(format!("libraries\n  ours   {ours:?}\n  theirs {theirs:?}"));
    }
    Ok(())
}

#[test]
fn peers_read_the_log() {
    let peers = peers();
    let Some(first) = peers.first() else { return eprintln!("no server: none reads the log") };
    let seeds = match number("EVENKEEL_MIRROR_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..number("EVENKEEL_MIRROR_SEEDS").unwrap_or(SEEDS) + 1,
    };
    let mut failures = Vec::new();
    for seed in seeds {
        let mut world = World::new(CLIENTS);
        world.set_now_ms(stdx::clock::wall_ms() - AGO_MS);
        let mut rng = Rng::new(seed, 11);
        if first.is_new {
            (0..ROUNDS).for_each(|number| round(&mut world, seed, seed * ROUNDS + number));
        }
        walk(&mut world, &mut rng, if first.is_new { u16::MAX - 1 } else { 700 });
        world.settle();
        let told = world.told.take();
        for peer in &peers {
            if let Err(failure) = read_by(peer, &world, &told) {
                eprintln!("{}, seed {seed}: {failure}\n", peer.name);
                failures.push((peer.name, seed));
            }
        }
    }
    assert!(failures.is_empty(), "seeds that differ: {failures:?}");
}
