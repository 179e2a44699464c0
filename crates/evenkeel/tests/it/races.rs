//! Races of writers of a database, its feed, and readers, over many seeds. Several seeds run side by side in
//! front of one server, each with rows and a source of its own.
//!
//! ```text
//! lane 1: seed 1 ─► rows, source r1 ─► a writer, two readers ─► quiet: compare rows ─► remove ─► seed 5 …
//! lane 2: seed 2 …                                   weather: delays loads, installs and removals, ever anew
//! ```
//!
//! The writer changes rows in every way its database knows, drops cached items, pauses the source and cuts
//! its feed. Readers ask by GET, HGET, HGETALL, MGET, EXISTS and HTTP.
//!
//! EVENKEEL_TEST_RACES is the number of seeds, EVENKEEL_TEST_SEED the first. A seed fixes what is done, not
//! how the threads meet.

use crate::http::Http;
use crate::sources::{figure_of, random};
use crate::support::*;
use serde_json::Value;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Ids are 1 to ROWS.
pub const ROWS: u64 = 12;
/// Steps of a writer in a seed.
const STEPS: usize = 100;
const READERS: usize = 2;
/// Reads that are remembered for the message of a failure.
const REMEMBERED: usize = 400;
/// Lines of the server's log in that message.
const LINES: usize = 80;

/// The result of reading a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    Version(u64),
    /// The row exists.
    There,
    Nothing,
}

impl Found {
    fn of(version: Option<u64>) -> Found {
        version.map_or(Found::Nothing, Found::Version)
    }

    /// Whether a row of this version, or no row, reads as this.
    pub fn fits(self, version: Option<u64>) -> bool {
        self == Found::of(version) || self == Found::There && version.is_some()
    }
}

/// The rows of one seed in their database, written beside the server. Each has a version that grows.
pub trait Rows: Send {
    /// The words after name and pattern in EVENKEEL SOURCE ADD. A row holds nothing but its version.
    fn source(&self) -> String;
    /// The column of the version.
    fn column(&self) -> &'static str;
    /// Changes a row, and perhaps others along with it.
    fn change(&mut self, id: u64, random: &mut u64);
    fn change_all(&mut self, random: &mut u64);
    /// Actions that only this kind of database knows; called at each step.
    fn trouble(&mut self, _shop: &mut Shop, _random: &mut u64) {}
    /// Ends all trouble; returns the final versions of the rows, None where there is no row.
    fn settle(&mut self) -> Vec<Option<u64>>;
    fn judge(&self) -> Arc<dyn Judge>;
    /// The longest pause between two steps: a seed should take much longer than a load.
    fn pause_us(&self) -> u64 {
        2000
    }
}

/// Knows what a reader may find.
pub trait Judge: Send + Sync {
    /// The state known of a row before it is read.
    fn before(&self, id: u64) -> u64;
    /// Whether a read may find this if `before` was known when it began.
    fn accepts(&self, id: u64, before: u64, found: Found) -> bool;
    /// The state known of a row, for the message of a failure.
    fn describe(&self, id: u64) -> String;
    /// Whether a read may fail.
    fn allows_errors(&self) -> bool {
        false
    }
}

/// A server and one of its sources, as a seed's writer sees them.
pub struct Shop {
    pub client: Client,
    pub name: String,
    /// Rows that were dropped by their ids; they count as changes.
    pub given_up: u64,
    paused: bool,
}

impl Shop {
    pub fn figure(&mut self, name: &str) -> u64 {
        figure_of(&mut self.client, &self.name, name).parse().unwrap()
    }

    fn order(&mut self, what: &str, id: &str) {
        let line = format!("EVENKEEL SOURCE {what} {}{id}", self.name);
        self.client.expect(&line, "+OK");
    }

    fn pause(&mut self, paused: bool) {
        if self.paused != paused {
            self.paused = paused;
            self.order(if paused { "PAUSE" } else { "RESUME" }, "");
        }
    }
}

/// Totals of all seeds.
#[derive(Default)]
struct Sums {
    reads: AtomicU64,
    figures: [AtomicU64; FIGURES.len()],
}

const FIGURES: [&str; 6] = ["changes", "invalidated", "loads", "refused-fills", "feed-opened", "flushes"];

/// Runs the seeds. `make` makes the rows of a seed in a lane, and may choose by its random numbers.
pub fn run<R: Rows>(usual: u64, lanes: usize, make: impl Fn(usize, u64, &mut u64) -> R + Sync) {
    let number = |name: &str, usual: u64| std::env::var(name).map_or(usual, |text| text.parse().unwrap());
    let first = number("EVENKEEL_TEST_SEED", 1);
    let end = first + number("EVENKEEL_TEST_RACES", usual);
    let (server, http) =
        Server::start_http(&["--loglevel", "debug", "--logfile", "{dir}/log", "--http-timeout", "0"]);
    let (next, stop, sums) = (AtomicU64::new(first), AtomicBool::new(false), Sums::default());
    let began = Instant::now();
    let lane = |lane: usize| {
        let failed = Stop(&stop);
        let seeds = std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::SeqCst)));
        for seed in seeds.take_while(|seed| *seed < end && !stop.load(Ordering::SeqCst)) {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let rows = make(lane, seed, &mut state);
            race((&server, http), rows, seed, &mut state, &sums);
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

/// Delays, for a while each, whatever can be delayed.
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

/// Runs one seed: readers and a writer. When all is quiet, compares the cached rows with the database.
fn race<R: Rows>(
    (server, http): (&Server, SocketAddr),
    mut rows: R,
    seed: u64,
    state: &mut u64,
    sums: &Sums,
) {
    let _seed = Named(seed);
    let name = format!("r{seed}");
    let mut shop = Shop { client: server.client(), name: name.clone(), given_up: 0, paused: false };
    let is_hash = random(state, 3) == 0;
    let form = if is_hash { "hash" } else { "json" };
    // Known absence, too, must end by the news of a row.
    let absent = if random(state, 3) == 0 { "1s" } else { "1h" };
    shop.order(
        "ADD",
        &format!(" {name}:{{id}} {} as {form} negative-ttl {absent} path /{name}", rows.source()),
    );
    let (column, judge) = (rows.column(), rows.judge());
    let reads = Reads::default();
    let reader = || Reader {
        reads: &reads,
        client: server.client(),
        http: Http::to(http),
        name: name.clone(),
        column,
        is_hash,
        judge: judge.clone(),
        log: server.dir.path().join("log"),
    };
    let mut last = reader();
    // The feed has to be open before anything is read.
    while shop.figure("loaded-rows") == 0 {
        last.ask(Way::Row, &[1]);
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..READERS {
            let (reader, state) = (reader(), random(state, u64::MAX >> 33));
            let stop = &stop;
            scope.spawn(move || {
                let _seed = Named(seed);
                let count = reader.read(stop, state);
                sums.reads.fetch_add(count, Ordering::Relaxed);
            });
        }
        let _stops = Stop(&stop);
        write(&mut rows, &mut shop, &stop, state);
    });
    shop.pause(false);
    let expected: Vec<Found> = rows.settle().into_iter().map(Found::of).collect();
    for way in [Way::Row, Way::Http] {
        last.await_rows(way, &expected);
    }
    for (figure, sum) in FIGURES.iter().zip(&sums.figures) {
        sum.fetch_add(shop.figure(figure), Ordering::Relaxed);
    }
    shop.order("REMOVE", "");
}

/// Names its seed when its thread fails.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in seed {0}: EVENKEEL_TEST_SEED={0} EVENKEEL_TEST_RACES=1 repeats it", self.0);
        }
    }
}

/// Tells others to stop, also when its thread fails.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Changes rows one after the other, now and then all of them, and drops cached items.
fn write<R: Rows>(rows: &mut R, shop: &mut Shop, stop: &AtomicBool, state: &mut u64) {
    for _ in 0..STEPS {
        let id = 1 + random(state, ROWS);
        match random(state, 40) {
            0 => rows.change_all(state),
            1 => shop.order("FLUSH", ""),
            2 => {
                shop.order("FLUSH", &format!(" {id}"));
                shop.given_up += 1;
            }
            3 => std::thread::sleep(Duration::from_millis(random(state, 20))),
            4 => shop.pause(true),
            _ => rows.change(id, state),
        }
        if random(state, 4) == 0 {
            shop.pause(false);
        }
        rows.trouble(shop, state);
        std::thread::sleep(Duration::from_micros(random(state, rows.pause_us())));
        if stop.load(Ordering::SeqCst) {
            return;
        }
    }
}

/// Ways to read rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// GET, or HGET where rows are hashes.
    Row,
    /// MGET, or HGETALL where rows are hashes.
    Whole,
    Exists,
    /// As Row, within a transaction.
    Exec,
    /// As Row, by a script.
    Script,
    Http,
    /// Several over HTTP.
    List,
}

/// A read of a row: its way, its time, what was known before it, and its result.
struct Read {
    way: Way,
    id: u64,
    began: Instant,
    ended: Instant,
    found: Found,
    before: u64,
}

/// The last reads of a seed, in the order in which they ended, for the message of a failure.
#[derive(Default)]
struct Reads(Mutex<VecDeque<Read>>);

impl Reads {
    fn note(&self, way: Way, id: u64, began: Instant, (found, before): (Found, u64)) {
        let mut reads = self.0.lock().unwrap();
        reads.push_back(Read { way, id, began, ended: Instant::now(), found, before });
        if reads.len() > REMEMBERED {
            reads.pop_front();
        }
    }

    /// The reads of a row, with their age.
    fn of(&self, row: u64) -> String {
        let (reads, now) = (self.0.lock().unwrap(), Instant::now());
        let line = |read: &Read| {
            let Read { way, found, before, .. } = read;
            let (began, ended) = (now - read.began, now - read.ended);
            format!("\n    {way:?} from {began:.1?} ago to {ended:.1?} ago: {found:?} after {before}")
        };
        reads.iter().filter(|read| read.id == row).map(line).collect()
    }
}

/// Reads rows in all ways.
struct Reader<'a> {
    reads: &'a Reads,
    client: Client,
    http: Http,
    name: String,
    column: &'static str,
    is_hash: bool,
    judge: Arc<dyn Judge>,
    /// The server's log.
    log: PathBuf,
}

impl Reader<'_> {
    /// The actions of the server on a row, for the message of a failure: the last lines of its log.
    fn told(&self, id: u64) -> String {
        // Log lines are written a little after their events.
        std::thread::sleep(Duration::from_millis(200));
        let text = String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned();
        let (key, source) = (format!(" key {}:{id}: ", self.name), format!(" source {}: ", self.name));
        let (row, rows) = (format!("{source}row {id} "), format!("{source}row "));
        let tells = |line: &&str| {
            line.contains(&key) || line.contains(&row) || line.contains(&source) && !line.contains(&rows)
        };
        let lines: Vec<&str> = text.lines().filter(tells).collect();
        lines[lines.len().saturating_sub(LINES)..].iter().map(|line| format!("\n    {line}")).collect()
    }

    /// Reads until told to stop; returns how often. Fails on a result that may not be.
    fn read(mut self, stop: &AtomicBool, mut state: u64) -> u64 {
        let _stops = Stop(stop);
        let mut reads = 0;
        while !stop.load(Ordering::SeqCst) {
            let ways = [Way::Whole, Way::Exists, Way::Exec, Way::Script, Way::Http, Way::List];
            let way = ways.get(random(&mut state, 9) as usize).copied().unwrap_or(Way::Row);
            let many = way == Way::List || way == Way::Whole && !self.is_hash;
            let ids: Vec<u64> = (0..if many { 4 } else { 1 }).map(|_| 1 + random(&mut state, ROWS)).collect();
            let before: Vec<u64> = ids.iter().map(|id| self.judge.before(*id)).collect();
            let began = Instant::now();
            let Some(found) = self.ask(way, &ids) else {
                std::thread::sleep(Duration::from_millis(2));
                continue;
            };
            assert_eq!(found.len(), ids.len(), "{way:?}");
            for ((id, before), found) in ids.iter().zip(before).zip(found) {
                self.reads.note(way, *id, began, (found, before));
                assert!(
                    self.judge.accepts(*id, before, found),
                    "{way:?}: {}:{id} is {found:?} after {before} of {}, reads:{}\n  server:{}",
                    self.name,
                    self.judge.describe(*id),
                    self.reads.of(*id),
                    self.told(*id)
                );
            }
            reads += 1;
            std::thread::sleep(Duration::from_micros(random(&mut state, 400)));
        }
        reads
    }

    /// Reads rows; None if that fails in an allowed way.
    fn ask(&mut self, way: Way, ids: &[u64]) -> Option<Vec<Found>> {
        let (name, column) = (&self.name, self.column);
        let list: Vec<String> = ids.iter().map(u64::to_string).collect();
        let keys: Vec<String> = list.iter().map(|id| format!("{name}:{id}")).collect();
        let (one, all) = (&keys[0], keys.join(" "));
        let line = match (way, self.is_hash) {
            (Way::Row, false) => format!("GET {one}"),
            (Way::Row, true) => format!("HGET {one} {column}"),
            (Way::Whole, false) => format!("MGET {all}"),
            (Way::Whole, true) => format!("HGETALL {one}"),
            (Way::Exists, _) => format!("EXISTS {one}"),
            (Way::Exec, _) => {
                self.client.expect("MULTI", "+OK");
                let line = if self.is_hash { format!("HGET {one} {column}") } else { format!("GET {one}") };
                self.client.expect(&line, "+QUEUED");
                "EXEC".to_owned()
            }
            (Way::Script, false) => format!("EVAL \"return redis.call('GET', KEYS[1])\" 1 {one}"),
            (Way::Script, true) => {
                format!("EVAL \"return redis.call('HGET', KEYS[1], ARGV[1])\" 1 {one} {column}")
            }
            (Way::Http, _) => return self.fetch(&format!("/{name}/{}", ids[0])),
            (Way::List, _) => return self.fetch(&format!("/{name}?ids={}", list.join(","))),
        };
        let reply = self.client.call(&line);
        if reply.starts_with('-') {
            let may_be = self.may_fail(&reply);
            assert!(may_be && reply.starts_with("-SOURCE"), "{line}: {reply}");
            return None;
        }
        Some(match &*reply {
            ":0" | "[]" | "(nil)" | "[(nil)]" => vec![Found::Nothing],
            ":1" => vec![Found::There],
            _ if self.is_hash => vec![Found::Version(number(&reply))],
            _ => reply.trim_matches(['[', ']']).split(", ").map(in_reply).collect(),
        })
    }

    fn fetch(&mut self, target: &str) -> Option<Vec<Found>> {
        let response = self.http.get(target);
        match response.status {
            200 => {}
            404 => return Some(vec![Found::Nothing]),
            status => {
                let may_be = self.may_fail(response.text());
                assert!(may_be && status >= 500, "{target}: {status} {}", response.text());
                return None;
            }
        }
        let body: Value = serde_json::from_slice(&response.body).expect("JSON");
        let version = |row: &Value| match &row[self.column] {
            Value::Null => Found::Nothing,
            version => Found::Version(number(&version.to_string())),
        };
        Some(body.as_array().map_or_else(|| vec![version(&body)], |rows| rows.iter().map(version).collect()))
    }

    /// Whether an error is allowed.
    fn may_fail(&self, error: &str) -> bool {
        // On a busy machine a load may be overtaken by the writers each of eight times.
        let removed = error.contains("removed each time") || error.contains("removed before it was read");
        self.judge.allows_errors() || error.contains("paused") || removed
    }

    /// Reads until all rows are as expected.
    fn await_rows(&mut self, way: Way, expected: &[Found]) {
        let deadline = Instant::now() + PATIENCE;
        for (id, expected) in (1..).zip(expected) {
            loop {
                let found = self.ask(way, &[id]);
                if found == Some(vec![*expected]) {
                    break;
                }
                let late = Instant::now() > deadline;
                assert!(
                    !late,
                    "{way:?}: {}:{id} is {found:?}, never {expected:?}, server:{}",
                    self.name,
                    self.told(id)
                );
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

/// The only number in a text.
fn number(text: &str) -> u64 {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no version: {text}"))
}

/// One row in the reply to GET or MGET.
fn in_reply(row: &str) -> Found {
    if row == "(nil)" { Found::Nothing } else { Found::Version(number(row)) }
}
