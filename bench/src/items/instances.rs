//! Five instances in front of one database: how many hits do separate caches cost?
//!
//! ```text
//!             ┌─► Evenkeel 1 (budget C) ─┐                         one more run: all streams ─► one Evenkeel (budget C)
//! 5 streams ──┼─► …                      ├─► PostgreSQL ◄── writer
//!             └─► Evenkeel 5 (budget C) ─┘       └─ every change to all of them
//! ```
//!
//! A day is a number of requests at an even pace over some seconds, and the time to live is two of these
//! days. The first day fills the caches, the second is measured. Of a stream's requests 80 % go to the first
//! fifth of the ids, 20 % to the others, evenly. One request in a hundred is a change of any row. All is
//! seeded.
//!
//! The best static cache holds the C most popular items all day, loads nothing and gets no changes.

use super::database::Database;
use super::traffic::{Protocol, Traffic};
use super::{ROW_BYTES, fill_table, loaded_size, start_evenkeel, stat, verdict};
use crate::random::{Random, mix};
use crate::report::{Section, Table, bytes, count};
use crate::server::{Server, Target};
use std::io;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

pub struct Options {
    pub rows: u64,
    /// Number of items that fit in each instance.
    pub cached: u64,
    /// Reads of a day, by all streams.
    pub requests: u64,
    pub day_s: u64,
    pub instances: u64,
}

const WRITES_PERCENT: u64 = 1;
const CONNS: usize = 10;
/// Time between two looks of a stream at the clock.
const TICK: Duration = Duration::from_millis(10);
/// Points that a hit ratio may be below its reference.
const GOAL: f64 = 2.0;

/// The results of a setup in the measured day. A hit is a read that did not wait for the database.
struct Day {
    hit_ratio: f64,
    loads: u64,
    refreshed: u64,
    items: u64,
    invalidated: u64,
    evicted: u64,
    elapsed: Duration,
}

/// Runs the measurement. Errors: no PostgreSQL, no Evenkeel, a connection that breaks.
pub fn run(targets: &[Target], options: &Options) -> Result<Section, String> {
    let evenkeel = targets.iter().find(|target| target.label == "Evenkeel").ok_or("Evenkeel is missing")?;
    let database = Database::start()?;
    let filled = database.session().and_then(|mut session| {
        fill_table(&mut session, "items", options.rows, ROW_BYTES)?;
        session.run("CHECKPOINT")
    });
    filled.map_err(|e| format!("filling PostgreSQL: {e}"))?;
    let per_item = size_of_item(evenkeel, &database)?;
    let budget = per_item * options.cached;

    let best = best_static(options);
    let mut section = Section::new("Several instances in front of one database");
    let mut table = Table::new(&[
        "instances",
        "hit ratio",
        "best static cache",
        "loads",
        "of them refreshed",
        "evicted",
        "invalidated",
        "items in each",
        "the day took",
        "goals",
    ]);
    let mut one = None;
    for instances in [1, options.instances] {
        let day = setup(evenkeel, &database, options, budget, instances)?;
        let mut goals = format!("≥ best − {GOAL}: {}", verdict(day.hit_ratio >= best - GOAL));
        if let Some(one) = one {
            goals.push_str(&format!(", ≥ one − {GOAL}: {}", verdict(day.hit_ratio >= one - GOAL)));
        }
        one = Some(day.hit_ratio);
        table.row(vec![
            instances.to_string(),
            format!("{:.2} %", day.hit_ratio),
            format!("{best:.2} %"),
            day.loads.to_string(),
            day.refreshed.to_string(),
            day.evicted.to_string(),
            day.invalidated.to_string(),
            (day.items / instances).to_string(),
            format!("{:.1} s", day.elapsed.as_secs_f64()),
            goals,
        ]);
    }
    section.table(
        format!(
            "{} rows of 1 KB, room for {} in each ({}); a day: {} reads and {} changes in {} s; time to live two days",
            count(options.rows),
            count(options.cached),
            bytes(budget),
            count(options.requests),
            count(options.requests * WRITES_PERCENT / (100 - WRITES_PERCENT)),
            options.day_s
        ),
        table,
    );
    section.note(format!(
        "{} seeded streams, over RESP: 80 % of the reads go evenly to the first fifth of the rows, 20 % to the others; one \
         request in a hundred is a change, of any row alike. The day before the measured one fills the caches",
        options.instances
    ));
    Ok(section)
}

/// Bytes of an item as a budget counts them.
fn size_of_item(evenkeel: &Target, database: &Database) -> Result<u64, String> {
    let (server, _) = start_evenkeel(evenkeel, database, "items", "items", &[])?;
    loaded_size(&server, "items", "item:", 1000).map_err(|e| e.to_string())
}

/// The share of reads, in percent, that go to so many most popular items.
fn best_static(options: &Options) -> f64 {
    let hot = (options.rows / 5) as f64;
    let cached = options.cached.min(options.rows) as f64;
    80.0 * (cached / hot).min(1.0) + 20.0 * (cached - hot).max(0.0) / (options.rows as f64 - hot)
}

/// One id of the generator.
fn draw(random: &mut Random, rows: u64) -> u64 {
    let hot = rows / 5;
    if random.below(100) < 80 { random.below(hot) } else { hot + random.below(rows - hot) }
}

/// Starts so many instances, runs two days with them, and returns the results of the second.
fn setup(
    evenkeel: &Target,
    database: &Database,
    options: &Options,
    budget: u64,
    instances: u64,
) -> Result<Day, String> {
    let (budget, ttl) = (budget.to_string(), format!("{}s", 2 * options.day_s));
    let more = ["budget", &budget, "ttl", &ttl];
    let servers: Vec<Server> = (0..instances)
        .map(|_| start_evenkeel(evenkeel, database, "items", "items", &more).map(|(server, _)| server))
        .collect::<Result<_, _>>()?;
    let ports: Vec<u16> = servers.iter().map(|server| server.port).collect();
    live(&ports, database, options, 0).map_err(|e| e.to_string())?;
    let names = ["misses", "loaded-rows", "refreshed", "invalidated", "evicted"];
    let sums = || {
        let sum = |name| ports.iter().map(|&port| stat(port, "items", name)).sum::<io::Result<u64>>();
        names.iter().map(|name| sum(name)).collect::<io::Result<Vec<u64>>>()
    };
    let day = || {
        let before = sums()?;
        let start = Instant::now();
        live(&ports, database, options, 1)?;
        let elapsed = start.elapsed();
        let items = ports.iter().map(|&port| stat(port, "items", "items")).sum::<io::Result<u64>>()?;
        let seen: Vec<u64> = sums()?.iter().zip(before).map(|(after, before)| after - before).collect();
        let hit_ratio = 100.0 * (1.0 - seen[0] as f64 / reads(options) as f64);
        let [_, loads, refreshed, invalidated, evicted] = seen[..] else { unreachable!("as many as names") };
        Ok(Day { hit_ratio, loads, refreshed, invalidated, evicted, items, elapsed })
    };
    day().map_err(|e: io::Error| e.to_string())
}

/// Actual reads of a day: each stream has the same number.
fn reads(options: &Options) -> u64 {
    options.requests / options.instances * options.instances
}

/// Runs a day: all streams and the writer, each in a thread.
fn live(ports: &[u16], database: &Database, options: &Options, day: u64) -> io::Result<()> {
    thread::scope(|scope| {
        let streams: Vec<_> = (0..options.instances)
            .map(|nr| {
                let port = ports[nr as usize % ports.len()];
                scope.spawn(move || stream(port, options, mix(nr << 8 | day)))
            })
            .collect();
        let writer = scope.spawn(|| write(database, options, mix(1 << 16 | day)));
        for thread in streams.into_iter().chain([writer]) {
            thread.join().map_err(|_| io::Error::other("a stream ended badly"))??;
        }
        Ok(())
    })
}

/// One stream of reads.
fn stream(port: u16, options: &Options, seed: u64) -> io::Result<()> {
    let mut traffic = Traffic::connect(port, CONNS, Protocol::Resp, "item:")?;
    let mut random = Random(seed);
    paced(options.requests / options.instances, options.day_s, |n| {
        let mut left = n;
        let next = || {
            left = left.checked_sub(1)?;
            Some(draw(&mut random, options.rows))
        };
        traffic.run(None, next).map(|_| ())
    })
}

/// The changes of a day.
fn write(database: &Database, options: &Options, seed: u64) -> io::Result<()> {
    let mut session = database.session()?;
    let mut random = Random(seed);
    paced(options.requests * WRITES_PERCENT / (100 - WRITES_PERCENT), options.day_s, |n| {
        (0..n).try_for_each(|_| {
            let id = random.below(options.rows);
            session.run(&format!("UPDATE items SET version = version + 1 WHERE id = {id}")).map(|_| ())
        })
    })
}

/// Calls `act` for parts of `total`, at an even pace over the seconds; without pauses where it cannot keep
/// up.
fn paced(total: u64, seconds: u64, mut act: impl FnMut(u64) -> io::Result<()>) -> io::Result<()> {
    let (start, whole) = (Instant::now(), Duration::from_secs(seconds));
    let mut done = 0;
    while done < total {
        let part = (start.elapsed().as_secs_f64() / whole.as_secs_f64()).min(1.0);
        let due = (total as f64 * part) as u64;
        if due > done {
            act(due - done)?;
            done = due;
        } else {
            sleep(TICK);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_static_cache_is_what_the_generator_says() {
        let mut options = Options { rows: 1000, cached: 250, requests: 0, day_s: 1, instances: 5 };
        let mut random = Random(1);
        let inside = (0..200_000).filter(|_| draw(&mut random, 1000) < 250).count();
        assert!((best_static(&options) - inside as f64 / 2000.0).abs() < 0.5);
        (options.cached, options.rows) = (1000, 1000);
        assert_eq!(best_static(&options), 100.0);
        options.cached = 100;
        assert_eq!(best_static(&options), 40.0);
    }

    #[test]
    fn a_pace_gives_everything_once() {
        let mut given = 0;
        paced(1001, 0, |n| {
            given += n;
            Ok(())
        })
        .unwrap();
        assert_eq!(given, 1001);
    }
}
