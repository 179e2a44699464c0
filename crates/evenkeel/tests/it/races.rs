//! Races of writers of a database, its feed, and readers, over many seeds: several side by side in front of one server, each with
//! rows and a source of its own.
//!
//! ```text
//! lane 1: seed 1 ─► rows, source r1 ─► a writer, two readers ─► quiet: every row is compared ─► source removed ─► seed 5 …
//! lane 2: seed 2 …                                              weather: loads, installs and removals are delayed, ever anew
//! ```
//!
//! EVENKEEL_TEST_RACES seeds from EVENKEEL_TEST_SEED on. A seed fixes what is done, not how the threads meet.

use crate::sources::{figure_of, random};
use crate::support::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Ids are 1 to ROWS.
pub const ROWS: u64 = 12;
/// What a writer does in a seed.
const STEPS: usize = 100;
const READERS: usize = 2;

/// The rows of one seed in their database, which are written beside the server. Each has a version that grows.
pub trait Rows: Send {
    /// What follows name and pattern in EVENKEEL SOURCE ADD. A row's JSON holds nothing but its version.
    fn source(&self) -> String;
    fn change(&mut self, id: u64);
    fn change_all(&mut self);
    /// What only this kind of database does; called at each step.
    fn trouble(&mut self, _shop: &mut Shop, _random: &mut u64) {}
    /// Ends all trouble: the versions rows have in the end, None where there is no row.
    fn settle(&mut self) -> Vec<Option<u64>>;
    fn judge(&self) -> Arc<dyn Judge>;
    /// The longest pause between two steps: a seed should take much longer than a load.
    fn pause_us(&self) -> u64 {
        2000
    }
}

/// Who knows what a reader may find.
pub trait Judge: Send + Sync {
    /// What is known of a row before it is asked for.
    fn before(&self, id: u64) -> u64;
    /// Whether who knew `before` may find this.
    fn accepts(&self, id: u64, before: u64, found: Option<u64>) -> bool;
    /// What is known of a row, for the message of a failure.
    fn describe(&self, _id: u64) -> String {
        String::new()
    }
    /// Whether a read may fail.
    fn allows_errors(&self) -> bool {
        false
    }
}

/// Rows are always there, and no read is older than one that had ended before.
#[derive(Default)]
pub struct Newest([AtomicU64; ROWS as usize]);

impl Judge for Newest {
    fn before(&self, id: u64) -> u64 {
        self.0[id as usize - 1].load(Ordering::SeqCst)
    }

    fn accepts(&self, id: u64, before: u64, found: Option<u64>) -> bool {
        let newest = found.map(|version| self.0[id as usize - 1].fetch_max(version, Ordering::SeqCst));
        newest.is_some() && found >= Some(before)
    }
}

/// A server and one of its sources, as a seed's writer sees them.
pub struct Shop {
    pub client: Client,
    pub name: String,
}

impl Shop {
    pub fn figure(&mut self, name: &str) -> u64 {
        figure_of(&mut self.client, &self.name, name).parse().unwrap()
    }
}

/// What happened in all seeds together.
#[derive(Default)]
struct Sums {
    reads: AtomicU64,
    figures: [AtomicU64; FIGURES.len()],
}

const FIGURES: [&str; 6] = ["changes", "invalidated", "loads", "refused-fills", "feed-opened", "flushes"];

/// Runs the seeds: `make` makes the rows of one in a lane, and may choose by its random numbers.
pub fn run<R: Rows>(usual: u64, lanes: usize, make: impl Fn(usize, u64, &mut u64) -> R + Sync) {
    let number = |name: &str, usual: u64| std::env::var(name).map_or(usual, |text| text.parse().unwrap());
    let first = number("EVENKEEL_TEST_SEED", 1);
    let end = first + number("EVENKEEL_TEST_RACES", usual);
    let server = Server::start();
    let (next, stop, sums) = (AtomicU64::new(first), AtomicBool::new(false), Sums::default());
    let began = Instant::now();
    let lane = |lane: usize| {
        let failed = Stop(&stop);
        let seeds = std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::SeqCst)));
        for seed in seeds.take_while(|seed| *seed < end && !stop.load(Ordering::SeqCst)) {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let rows = make(lane, seed, &mut state);
            race(&server, rows, seed, &mut state, &sums);
        }
        std::mem::forget(failed);
    };
    std::thread::scope(|scope| {
        let weather = scope.spawn(|| weather(server.client(), &stop, first));
        let lane = &lane;
        let lanes: Vec<_> = (0..lanes).map(|nr| scope.spawn(move || lane(nr))).collect();
        let ended: Vec<_> = lanes.into_iter().map(|lane| lane.join()).collect();
        stop.store(true, Ordering::SeqCst);
        let _ = weather.join();
        ended.into_iter().for_each(|lane| lane.unwrap_or_else(|e| std::panic::resume_unwind(e)));
    });
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let figures = FIGURES.iter().zip(&sums.figures).map(|(name, sum)| format!(", {} {name}", load(sum)));
    let (seeds, reads) = (end - first, load(&sums.reads));
    println!("{seeds} seeds in {:.0?}: {reads} reads{}", began.elapsed(), figures.collect::<String>());
    assert!(reads >= seeds, "readers hardly read");
}

/// Delays what may be delayed, for a while each.
fn weather(mut client: Client, stop: &AtomicBool, seed: u64) {
    let mut state = seed;
    while !stop.load(Ordering::SeqCst) {
        for point in ["source-ask", "source-fill", "source-drop"] {
            let mode = match random(&mut state, 3) {
                0 => "OFF".to_owned(),
                _ => format!("DELAY {}", 1 + random(&mut state, 2000)),
            };
            client.expect(&format!("DEBUG POINT {point} {mode}"), "+OK");
        }
        std::thread::sleep(Duration::from_millis(5 + random(&mut state, 50)));
    }
}

/// Of one seed: readers and a writer, and when it is quiet, whether what is kept is what the database has.
fn race<R: Rows>(server: &Server, mut rows: R, seed: u64, state: &mut u64, sums: &Sums) {
    let mut shop = Shop { client: server.client(), name: format!("r{seed}") };
    let name = shop.name.clone();
    shop.client.expect(&format!("EVENKEEL SOURCE ADD {name} {name}:{{id}} {}", rows.source()), "+OK");
    // The feed has to be open before anything is read.
    while shop.figure("loaded-rows") == 0 {
        shop.client.call(&format!("GET {name}:1"));
    }
    let (judge, stop) = (rows.judge(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..READERS {
            let (client, state) = (server.client(), random(state, u64::MAX >> 33));
            let (name, judge, stop) = (&name, &*judge, &stop);
            scope.spawn(move || {
                let reads = read(client, name, judge, stop, state);
                sums.reads.fetch_add(reads, Ordering::Relaxed);
            });
        }
        let _stops = Stop(&stop);
        write(&mut rows, &mut shop, &stop, state);
    });
    for (at, expected) in rows.settle().into_iter().enumerate() {
        let (key, deadline) = (format!("GET {name}:{}", at + 1), Instant::now() + PATIENCE);
        loop {
            let reply = shop.client.call(&key);
            if versions(&reply) == Some(vec![expected]) {
                break;
            }
            assert!(Instant::now() < deadline, "{key} answers {reply}, never {expected:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    for (figure, sum) in FIGURES.iter().zip(&sums.figures) {
        sum.fetch_add(shop.figure(figure), Ordering::Relaxed);
    }
    shop.client.expect(&format!("EVENKEEL SOURCE REMOVE {name}"), "+OK");
}

/// Tells others to stop, also when its thread fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Changes rows one after the other, now and then all of them, and lets items be given up.
fn write<R: Rows>(rows: &mut R, shop: &mut Shop, stop: &AtomicBool, state: &mut u64) {
    for _ in 0..STEPS {
        let id = 1 + random(state, ROWS);
        let name = &shop.name;
        match random(state, 40) {
            0 => rows.change_all(),
            1 => shop.client.expect(&format!("EVENKEEL SOURCE FLUSH {name}"), "+OK"),
            2 => shop.client.expect(&format!("EVENKEEL SOURCE FLUSH {name} {id}"), "+OK"),
            3 => std::thread::sleep(Duration::from_millis(random(state, 20))),
            _ => rows.change(id),
        }
        rows.trouble(shop, state);
        std::thread::sleep(Duration::from_micros(random(state, rows.pause_us())));
        if stop.load(Ordering::SeqCst) {
            return;
        }
    }
}

/// Reads rows in both ways until it is to stop, or finds what may not be; how many.
fn read(mut client: Client, name: &str, judge: &dyn Judge, stop: &AtomicBool, mut state: u64) -> u64 {
    let _stops = Stop(stop);
    let mut reads = 0;
    while !stop.load(Ordering::SeqCst) {
        let count = if random(&mut state, 4) == 0 { 4 } else { 1 };
        let ids: Vec<u64> = (0..count).map(|_| 1 + random(&mut state, ROWS)).collect();
        let before: Vec<u64> = ids.iter().map(|id| judge.before(*id)).collect();
        let names: String = ids.iter().map(|id| format!(" {name}:{id}")).collect();
        let reply = client.call(&format!("{}{names}", if count == 1 { "GET" } else { "MGET" }));
        let Some(found) = versions(&reply) else {
            assert!(judge.allows_errors() && reply.starts_with("-SOURCE"), "{names}: {reply}");
            std::thread::sleep(Duration::from_millis(2));
            continue;
        };
        assert_eq!(found.len(), ids.len(), "{names}: {reply}");
        for ((id, before), found) in ids.iter().zip(before).zip(found) {
            let what = || format!("{name}:{id} is {found:?} after it was {before} {}", judge.describe(*id));
            assert!(judge.accepts(*id, before, found), "{}", what());
        }
        reads += 1;
        std::thread::sleep(Duration::from_micros(random(&mut state, 400)));
    }
    reads
}

/// The versions in the reply to GET or MGET; None if it is an error.
fn versions(reply: &str) -> Option<Vec<Option<u64>>> {
    if reply.starts_with('-') {
        return None;
    }
    let version = |row: &str| {
        let digits = row.split("\\\":").nth(1)?.split('}').next()?;
        Some(digits.parse().unwrap_or_else(|_| panic!("no version: {reply}")))
    };
    Some(reply.trim_matches(['[', ']']).split(", ").map(version).collect())
}
