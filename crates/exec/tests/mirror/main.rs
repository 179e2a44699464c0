//! The mirror: what a server tells of its writes is executed by another one, and both hold the same.
//!
//! ```text
//! random load ─► server ─► told words, in the order of their LSNs ─► Replay ─► mirror
//!                  └───────────────── equal, times included ────────────────────┘
//! ```
//!
//! EVENKEEL_MIRROR=ROUNDS runs so many rounds, EVENKEEL_SEED=N another load. A failure names its round, which
//! `EVENKEEL_MIRROR_ROUND=N` runs alone.

mod load;
mod peers;
mod portable;
mod world;

use apply::contents;
use evenkeel_differential::step::{Action, Step};
use exec::{Replay, Server};
use keyspace::To;
use load::Move;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use world::{Told, World};

/// Rounds of a short run.
const ROUNDS: u64 = 18;
/// Steps of a round.
const STEPS: usize = 300;

/// A server that follows another one.
struct Mirror {
    server: Arc<Server>,
    replay: Replay,
    /// Words told since the last comparison.
    heard: Vec<Told>,
}

impl Mirror {
    fn new() -> Mirror {
        let server = Server::start(Arc::default(), 1).expect("it starts");
        // An expired key stays until it is told that it is gone.
        server.keyspace.set_active_expire(false);
        Mirror { replay: Replay::new(&server), server, heard: Vec::new() }
    }

    /// Executes what was told since the last time, a group for each LSN.
    fn follow(&mut self, told: &world::Stenographer) -> Result<(), String> {
        self.heard = told.take();
        for told in &self.heard {
            let is_message = told.words[0].ends_with(b"PUBLISH");
            assert_eq!(told.to, if is_message { To::Replicas } else { To::All }, "{}", told.text());
        }
        for group in self.heard.chunk_by(|a, b| a.lsn == b.lsn) {
            let alone = group.len() == 1;
            let mut apply = |words: &[&[u8]]| {
                let said = || group.iter().map(Told::text).collect::<Vec<_>>().join("\n");
                self.replay.apply(words).map_err(|error| format!("{error}, in the group\n{}", said()))
            };
            if !alone {
                apply(&[b"MULTI"])?;
            }
            for told in group {
                if let Some(db) = told.db {
                    apply(&[b"SELECT", db.to_string().as_bytes()])?;
                }
                apply(&told.words.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
            }
            if !alone {
                apply(&[b"EXEC"])?;
            }
        }
        Ok(())
    }
}

fn libraries(server: &Server) -> Vec<(String, Vec<u8>)> {
    let libraries = server.scripts.code.libraries();
    libraries.code.iter().map(|(name, code)| (name.clone(), code.text.to_vec())).collect()
}

fn compare(world: &mut World, mirror: &mut Mirror) -> Result<(), String> {
    world.settle();
    let now_ms = world.now_ms();
    mirror.follow(&world.told)?;
    let (ours, theirs) =
        (contents::of(&world.server.keyspace, now_ms), contents::of(&mirror.server.keyspace, now_ms));
    if let Some(((_, key), difference)) = contents::difference(&ours, &theirs) {
        let about = |told: &&Told| {
            let flush = told.words[0].to_ascii_uppercase();
            told.words.contains(&key) || flush.starts_with(b"FLUSH") || flush.starts_with(b"SWAP")
        };
        let heard: Vec<String> = mirror.heard.iter().filter(about).map(Told::text).collect();
        return Err(format!("{difference}\ntold of it:\n{}", heard.join("\n")));
    }
    let (ours, theirs) = (libraries(&world.server), libraries(&mirror.server));
    if ours != theirs {
        return Err(format!("libraries\n  ours   {ours:?}\n  theirs {theirs:?}"));
    }
    Ok(())
}

fn step(world: &mut World, step: &Step) {
    let client = step.client;
    match &step.action {
        Action::Command(args) => {
            world.call(client, args);
            world.finish(client);
        }
        Action::Collect(args) if args.is_empty() => {}
        Action::Collect(args) => {
            world.call(client, args);
            world.finish(client);
        }
        Action::Start(args) => _ = world.call(client, args),
        Action::Finish => _ = world.finish(client),
        Action::SleepMs(ms) => world.pass(*ms),
        Action::Reconnect => world.reconnect(client),
        Action::Cross { from, args } => {
            let dump = world.call(client, &[b"DUMP".to_vec(), from.clone()]).unwrap_or_default();
            let Ok(Some((resp::Frame::Bulk(payload), _))) = resp::read_frame(&dump) else { return };
            let mut args = args.clone();
            args.insert(3, payload.to_vec());
            world.call(client, &args);
        }
        Action::Scan { .. } | Action::Raw(_) | Action::Dump => {}
    }
}

/// One round, from empty servers on.
fn round(world: &mut World, mirror: &mut Mirror, seed: u64, round: u64, steps: usize) -> Result<(), String> {
    for client in 0..load::CLIENTS {
        world.reconnect(client);
    }
    for line in ["FLUSHALL", "FUNCTION FLUSH"] {
        world.call(0, &line.split(' ').map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>());
    }
    let moves = load::round(seed, round, steps);
    let mut since = 0;
    for (i, next) in moves.iter().enumerate() {
        match next {
            Move::Step(one) => step(world, one),
            Move::Start(client, words) => world.start(*client, words),
            Move::Call(client, words) => _ = world.call(*client, words),
            Move::Pass(ms) => world.pass(*ms),
            Move::Sweep => world.sweep(),
            Move::Evict(policy, keys) => world.evict(*policy, *keys),
            Move::Compare => {
                if let Err(error) = compare(world, mirror) {
                    let last: Vec<String> = moves[since..=i].iter().map(Move::text).collect();
                    return Err(format!("round {round} of seed {seed}:\n{}\n{error}", last.join("\n")));
                }
                since = i;
            }
        }
    }
    Ok(())
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn a_mirror_holds_the_same() {
    let (mut world, mut mirror) = (World::new(load::CLIENTS), Mirror::new());
    let seed = number("EVENKEEL_SEED").unwrap_or(1);
    let rounds = match number("EVENKEEL_MIRROR_ROUND") {
        Some(only) => only..only + 1,
        None => 0..number("EVENKEEL_MIRROR").unwrap_or(ROUNDS),
    };
    let runs_all = rounds.clone().count() as u64 >= ROUNDS;
    let mut failures = Vec::new();
    for number in rounds {
        if let Err(failure) = round(&mut world, &mut mirror, seed, number, STEPS) {
            eprintln!("{failure}\n");
            failures.push(number);
            (world, mirror) = (World::new(load::CLIENTS), Mirror::new());
        }
    }
    assert!(failures.is_empty(), "rounds that differ: {failures:?}");
    if runs_all {
        let stats = &world.server.keyspace.stats;
        let counts = [&stats.expired_keys, &stats.expired_fields, &stats.evicted_keys];
        let counts = counts.map(|count| count.load(Ordering::Relaxed));
        assert!(counts.iter().all(|count| *count > 0) && world.told.lists() > 0, "{counts:?}");
    }
    world.server.keyspace.check_invariants();
    mirror.server.keyspace.check_invariants();
}
