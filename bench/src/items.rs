//! "Get item by id" in front of a real PostgreSQL, beside a Go service that does it by hand and GET of Redis.
//!
//! ```text
//! 50 connections ─HTTP─► Evenkeel (source) ─┐
//!                ─HTTP─► gin + Ristretto ───┼─► PostgreSQL: `items` of 1 KB, `big` of 6.6 KB
//!                ─RESP─► Evenkeel (source) ─┘
//!                ─RESP─► Redis, holding all rows as strings
//! ```
//!
//! Cases: one hot item; all items by Zipf's law with room for some; every item once, into an empty cache. The
//! servers take turns round by round. The generator, and PostgreSQL where it is asked, share the cores with
//! the server. So the figure to compare is the server's CPU time per request, with the database's beside it.
//! Further figures: the memory of 30k items of 6.6 KB, and how long after a COMMIT the old row is still read.

mod database;
pub mod instances;
mod service;
mod traffic;
mod zipf;

use crate::client::Client;
use crate::endpoint::Endpoint;
use crate::fill;
use crate::random::Scattered;
use crate::report::{Section, Table, absent, bytes, count, median, time};
use crate::server::{self, Server, Target};
use crate::wire;
use database::{Database, Session};
use dial::Frame;
use hdrhistogram::Histogram;
use service::Service;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};
use traffic::{Protocol, Reader, Traffic};
use zipf::Zipf;

pub struct Options {
    pub rows: u64,
    pub big_rows: u64,
    /// Number of items that fit in the Zipf case.
    pub cached: u64,
    pub conns: usize,
    pub rounds: usize,
    pub seconds: f64,
    pub commits: u64,
    /// Words of case names; only these cases are run. All, if empty.
    pub cases: Vec<String>,
    /// Further words for the source of the Zipf cases, such as `gather 200us`.
    pub source: String,
}

const ROW_BYTES: u64 = 1024;
const BIG_ROW_BYTES: u64 = 6758;
const EXPONENT: f64 = 0.99;
/// JSON bytes of a row besides its body, about.
const AROUND_BODY: u64 = 56;
const RSS_GOAL: u64 = 220 << 20;
/// Time for allocators to give back unused memory.
const REST: Duration = Duration::from_secs(15);
const LAG_GOAL: u64 = 5_000_000;
const HOT: u64 = 42;

/// Requests per second in an open loop.
const RATES: [u32; 2] = [40_000, 80_000];

/// The distribution of the requested ids.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ids {
    Hot,
    Zipf,
    /// By Zipf's law, so many per second in an open loop.
    ZipfAt(u32),
    Cold,
}

/// The goals for Evenkeel.
#[derive(Clone, Copy, Default)]
struct Goals {
    per_second: Option<f64>,
    p99_ns: Option<u64>,
    cpu_us: Option<f64>,
}

/// A server with one way to ask it.
struct Subject {
    label: String,
    protocol: Protocol,
    port: u16,
    pid: u32,
    /// The text in front of an id.
    prefix: String,
    /// Empties its cache.
    empty: Box<dyn Fn() -> io::Result<()>>,
    /// Number of rows loaded from the database so far.
    loads: Box<dyn Fn() -> io::Result<u64>>,
}

/// The figures of a subject in one case.
struct Cell {
    per_second: Vec<f64>,
    cpu_us: Vec<f64>,
    database_cpu_us: Vec<f64>,
    requests: u64,
    loads: u64,
    latency: Histogram<u64>,
}

/// Everything that runs.
struct Stage<'a> {
    options: &'a Options,
    database: Database,
    evenkeel: &'a Target,
    redis: Option<&'a Target>,
    go: Result<PathBuf, String>,
    zipf: Zipf,
    section: Section,
}

/// Runs the measurement. Errors: no PostgreSQL, no Evenkeel. Any other failure is a note of the report.
pub fn run(targets: &[Target], peers: Option<&str>, options: &Options) -> Result<Section, String> {
    let find = |label: &str| targets.iter().find(|target| target.label == label);
    let evenkeel = find("Evenkeel").ok_or("Evenkeel is missing")?;
    let database = Database::start()?;
    fill_database(&database, options).map_err(|e| format!("filling PostgreSQL: {e}"))?;
    let mut stage = Stage {
        options,
        database,
        evenkeel,
        redis: find("Redis"),
        go: service::program(peers),
        zipf: Zipf::new(options.rows, EXPONENT, 7),
        section: Section::new("Get item by id"),
    };
    stage.requests()?;
    stage.memory();
    stage.remarks();
    Ok(stage.section)
}

fn fill_database(database: &Database, options: &Options) -> io::Result<()> {
    let mut session = database.session()?;
    fill_table(&mut session, "items", options.rows, ROW_BYTES)?;
    fill_table(&mut session, "big", options.big_rows, BIG_ROW_BYTES)?;
    // The Go service's notifications of changes.
    session.run(
        "CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         PERFORM pg_notify(TG_TABLE_NAME || '_changed', OLD.id::text); RETURN NULL; END $$",
    )?;
    session
        .run("CREATE TRIGGER tell AFTER UPDATE OR DELETE ON items FOR EACH ROW EXECUTE FUNCTION tell()")?;
    session.run("CHECKPOINT").map(|_| ())
}

/// Makes a table of so many rows, each of so many bytes as JSON.
fn fill_table(session: &mut Session, table: &str, rows: u64, size: u64) -> io::Result<()> {
    let body = size - AROUND_BODY;
    let parts = body / 32 + 1;
    session.run(&format!(
        "CREATE TABLE {table} (id bigint PRIMARY KEY, version bigint NOT NULL, name text NOT NULL, body text NOT NULL)"
    ))?;
    // Digests, as repeated text would be compressed.
    session.run(&format!(
        "INSERT INTO {table} SELECT n, 0, 'item ' || n, \
         (SELECT left(string_agg(md5(n || '.' || part), ''), {body}) FROM generate_series(1, {parts}) part) \
         FROM generate_series(0, {rows} - 1) n"
    ))?;
    session.run(&format!("VACUUM ANALYZE {table}")).map(|_| ())
}

impl Stage<'_> {
    /// Measures everything with rows of 1 KB.
    fn requests(&mut self) -> Result<(), String> {
        let (evenkeel, http) = start_evenkeel(self.evenkeel, &self.database, "items", "items", &[])?;
        let ours = |protocol| self_subject(&evenkeel, http, protocol, "items", "item");
        let go = self.start_go("items", self.options.cached);
        let redis = self.start_redis("items");
        let mut over_http = vec![ours(Protocol::Http)];
        over_http.extend(go.as_ref().map(go_subject));
        let mut over_resp = vec![ours(Protocol::Resp)];
        over_resp.extend(redis.as_ref().map(redis_subject));
        for subject in over_http.iter().chain(&over_resp) {
            check(subject, self.options.rows).map_err(|e| format!("{}: {e}", subject.label))?;
        }

        let mut table = Table::new(&[
            "case",
            "server",
            "requests/s",
            "p50",
            "p95",
            "p99",
            "CPU µs/request",
            "database CPU µs",
            "hit ratio",
            "goals",
        ]);
        let hot = Goals { per_second: Some(1e5), cpu_us: Some(10.0), ..Goals::default() };
        self.case(&mut table, "one hot item", &over_http, Ids::Hot, hot);
        self.case(&mut table, "one hot item", &over_resp, Ids::Hot, Goals::default());
        let cold = || Goals { per_second: Some(2e4), ..Goals::default() };
        self.case(&mut table, "cold, each id once", &over_http, Ids::Cold, cold());
        self.case(&mut table, "cold, each id once", &over_resp[..1], Ids::Cold, cold());
        self.freshness(&over_http, &over_resp[..1]);
        // Where some rows are loaded, the slowest hundredth are loads. The case without loads shows the wait
        // of the others.
        let kept = Goals { per_second: Some(8e4), p99_ns: Some(1_000_000), ..Goals::default() };
        let name = format!("Zipf {EXPONENT}, room for all");
        self.case(&mut table, &name, &over_http[..1], Ids::Zipf, kept);
        for rate in RATES {
            let name = format!("{name}, at {}/s", count(rate.into()));
            self.case(&mut table, &name, &over_http[..1], Ids::ZipfAt(rate), Goals::default());
        }

        let item = loaded_size(&evenkeel, "items", "item:", 1000).map_err(|e| e.to_string())?;
        let budget = item * self.options.cached;
        let add = format!(
            "EVENKEEL SOURCE ADD some some:{{id}} {} table items path /some budget {budget} {}",
            self.database.url(),
            self.options.source
        );
        let added = evenkeel.client().and_then(|mut client| client.words(add.trim_end()));
        added.map_err(|e| format!("{add}: {e}"))?;
        let ours = |protocol| self_subject(&evenkeel, http, protocol, "some", "some");
        over_http[0] = ours(Protocol::Http);
        over_resp[0] = ours(Protocol::Resp);
        let name = format!("Zipf {EXPONENT}, room for {}", count(self.options.cached));
        let goals = Goals { per_second: Some(8e4), p99_ns: Some(1_000_000), ..Goals::default() };
        self.case(&mut table, &name, &over_http, Ids::Zipf, goals);
        self.case(&mut table, &name, &over_resp, Ids::Zipf, Goals::default());
        // The waits at less than full load. A rate of 1 % less than asked for counts as the same.
        let goals = |rate: u32| Goals { per_second: Some(0.99 * f64::from(rate)), ..goals };
        for rate in RATES {
            let name = format!("{name}, at {}/s", count(rate.into()));
            self.case(&mut table, &name, &over_http[..1], Ids::ZipfAt(rate), goals(rate));
        }
        let cached = stat(evenkeel.port, "some", "items").unwrap_or(0);
        self.section.note(format!(
            "Zipf: Evenkeel's budget was {} ({} a row, as it counts them), it held {cached} items at the end; Redis holds \
             all rows; the {} most popular items are {:.1} % of the requests",
            bytes(budget),
            bytes(budget / self.options.cached),
            count(self.options.cached),
            100.0 * self.zipf.best(self.options.cached)
        ));
        self.section.tables.insert(
            0,
            (
                format!(
                    "{} rows of 1 KB, {} connections; rounds: {} of {} s",
                    count(self.options.rows),
                    self.options.conns,
                    self.options.rounds,
                    self.options.seconds
                ),
                table,
            ),
        );
        Ok(())
    }

    fn start_go(&mut self, table: &str, items: u64) -> Option<Service> {
        let program = self.go.clone();
        let started = program
            .and_then(|path| Service::start(&path, &self.database.url(), table, items, &self.evenkeel.cpus));
        self.noted(started)
    }

    /// Starts a Redis that holds all rows of a table.
    fn start_redis(&mut self, table: &str) -> Option<Server> {
        let started = Server::start(self.redis?).and_then(|server| {
            copy(&self.database, table, &server).map_err(|e| format!("filling Redis: {e}"))?;
            Ok(server)
        });
        self.noted(started)
    }

    /// Returns the result. An error becomes a note, once.
    fn noted<T>(&mut self, result: Result<T, String>) -> Option<T> {
        result.map_err(|error| (!self.section.notes.contains(&error)).then(|| self.section.note(error))).ok()
    }

    /// Measures a case and appends its rows.
    fn case(&mut self, table: &mut Table, name: &str, subjects: &[Subject], ids: Ids, mut goals: Goals) {
        let chosen = &self.options.cases;
        if !chosen.is_empty() && !chosen.iter().any(|word| name.contains(word.as_str())) {
            return;
        }
        let mut cells: Vec<Cell> = Vec::new();
        for round in 0..self.options.rounds {
            for (i, subject) in subjects.iter().enumerate() {
                let cell = match cells.get_mut(i) {
                    Some(cell) => cell,
                    None => {
                        cells.push(Cell::new());
                        &mut cells[i]
                    }
                };
                let (database, zipf) = (&self.database, &mut self.zipf);
                if let Err(error) = cell.round(subject, ids, self.options, database, zipf, round == 0) {
                    self.section.note(format!(
                        "{name}, {} over {}: {error}",
                        subject.label,
                        subject.protocol.name()
                    ));
                }
            }
        }
        // With Zipf's law Redis holds all rows, so a server that loads some is not compared with it.
        let redis = subjects.iter().position(|subject| subject.label == "Redis" && ids == Ids::Hot);
        if let Some(redis) = redis {
            goals.cpu_us = Some(median(&mut cells[redis].cpu_us.clone()));
        }
        for (i, (subject, cell)) in subjects.iter().zip(&cells).enumerate() {
            let mut row = vec![format!("{}, {name}", subject.protocol.name()), subject.label.clone()];
            row.extend(cell.columns());
            row.push(if i == 0 { cell.judged(&goals, redis.is_some()) } else { String::new() });
            table.row(row);
        }
    }

    /// Measures the time from COMMIT to the first fresh read: idle, and beside requests by Zipf's law.
    fn freshness(&mut self, over_http: &[Subject], over_resp: &[Subject]) {
        let mut table = Table::new(&["COMMIT to fresh read", "beside", "p50", "p95", "p99", "max", "goal"]);
        for (busy, subject) in [false, true]
            .into_iter()
            .flat_map(|busy| over_http.iter().chain(over_resp).map(move |subject| (busy, subject)))
        {
            let name = format!("{}, {}", subject.label, subject.protocol.name());
            let seen = match busy {
                true => beside(subject, self.options.conns, self.zipf.clone(), || self.lag(subject)),
                false => self.lag(subject),
            };
            match seen {
                Ok(seen) => {
                    let at = |q| time(seen.value_at_quantile(q) as f64);
                    let what =
                        if busy { format!("{} connections", self.options.conns) } else { "nothing".into() };
                    let judged = match subject.label == "Evenkeel" && !busy {
                        true => format!("p99 ≤ 5 ms: {}", verdict(seen.value_at_quantile(0.99) <= LAG_GOAL)),
                        false => String::new(),
                    };
                    table.row(vec![name, what, at(0.5), at(0.95), at(0.99), time(seen.max() as f64), judged]);
                }
                Err(error) => self.section.note(format!("freshness, {name}: {error}")),
            }
        }
        let commits = self.options.commits;
        self.section.table(
            format!(
                "{commits} changes of cached items, one at a time: from the answer to UPDATE (which commits) until a \
                 reader that asks without a pause gets the new row"
            ),
            table,
        );
    }

    fn lag(&self, subject: &Subject) -> io::Result<Histogram<u64>> {
        lag(self.database.session()?, subject, self.options)
    }

    /// Measures the memory of items of 6.6 KB.
    fn memory(&mut self) {
        let rows = self.options.big_rows;
        let mut table =
            Table::new(&["server", "resident before", "resident with them", "of it payload", "goal"]);
        let payload = bytes(rows * BIG_ROW_BYTES);
        let mut add = |label: &str, (before, after): (u64, u64)| {
            let judged = match label {
                "Evenkeel" => format!("≤ {}: {}", bytes(RSS_GOAL), verdict(after <= RSS_GOAL)),
                _ => String::new(),
            };
            table.row(vec![label.to_string(), bytes(before), bytes(after), payload.clone(), judged]);
        };
        let ours =
            start_evenkeel(self.evenkeel, &self.database, "bigs", "big", &[]).and_then(|(server, http)| {
                let subject = self_subject(&server, http, Protocol::Http, "bigs", "big");
                grown(&subject, rows).map_err(|e| e.to_string())
            });
        self.noted(ours).into_iter().for_each(|seen| add("Evenkeel", seen));
        if let Some(go) = self.start_go("big", rows) {
            let subject = go_subject(&go);
            let measured = grown(&subject, rows);
            self.noted(measured.map_err(|e| e.to_string())).into_iter().for_each(|seen| add(GO, seen));
        }
        if let Some(redis) = self.start_redis("big") {
            sleep(REST);
            let empty = self.redis.and_then(|target| Server::start(target).ok());
            add("Redis", (empty.map_or(0, |server| server.rss()), redis.rss()));
        }
        let caption =
            format!("{} items of 6.6 KB, read twice over HTTP; Redis was given them as strings", count(rows));
        self.section.table(caption, table);
    }

    fn remarks(&mut self) {
        self.section.note(format!(
            "{}; the load generator (one thread) and PostgreSQL share the cores with the server, so requests/s and \
             latency are those of all together. CPU per request is the main figure: the server's on-CPU time, and that \
             of all PostgreSQL processes, per request",
            self.database.version()
        ));
        self.section.note(
            "Closed loop: each connection sends the next request when it has its answer. Medians of the rounds; quantiles \
             of all rounds together. Hit ratio: requests that loaded no row; where it is below 99 %, p99 is the time of a \
             load",
        );
        self.section.note(
            "Go is gin and Ristretto with the rows' JSON cached, NOTIFY by trigger, a day's time to live, 4 connections \
             (bench/peers/items-go); Evenkeel follows logical replication, 4 connections",
        );
    }
}

const GO: &str = "Go";

/// Starts an Evenkeel with one source in front of a table. Returns it with its HTTP port. `more`: further
/// options of the source.
fn start_evenkeel(
    evenkeel: &Target,
    database: &Database,
    name: &str,
    table: &str,
    more: &[&str],
) -> Result<(Server, u16), String> {
    let http = server::free_port().map_err(|e| e.to_string())?;
    let pattern = format!("{}:{{id}}", name.trim_end_matches('s'));
    let (port, path, url) = (http.to_string(), format!("/{name}"), database.url());
    let source = [
        "--enable-protected-configs",
        "local",
        "--http-port",
        &port,
        "--source",
        name,
        &pattern,
        &url,
        "table",
        table,
        "path",
        &path,
    ];
    let server = Server::start(&evenkeel.with(&source).with(more))?;
    let deadline = Instant::now() + Duration::from_secs(20);
    while !feed_is_open(server.port, name) {
        if Instant::now() > deadline {
            return Err(format!("the feed of source {name} does not open"));
        }
        sleep(Duration::from_millis(20));
    }
    Ok((server, http))
}

/// Loads some items and returns the size of one cached item, as a budget counts it.
fn loaded_size(server: &Server, source: &str, prefix: &str, items: u64) -> io::Result<u64> {
    let mut ids = 0..items;
    Traffic::connect(server.port, 10, Protocol::Resp, prefix)?.run(None, || ids.next())?;
    Ok(stat(server.port, source, "bytes")? / stat(server.port, source, "items")?.max(1))
}

fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "missed" }
}

fn self_subject(server: &Server, http: u16, protocol: Protocol, source: &'static str, key: &str) -> Subject {
    let resp = server.port;
    Subject {
        label: server.label.clone(),
        protocol,
        port: if protocol == Protocol::Http { http } else { resp },
        pid: server.pid(),
        prefix: if protocol == Protocol::Http { format!("/{source}/") } else { format!("{key}:") },
        empty: Box::new(move || {
            Client::connect(Endpoint::local(resp))?
                .words(&format!("EVENKEEL SOURCE FLUSH {source}"))
                .map(|_| ())
        }),
        loads: Box::new(move || stat(resp, source, "loaded-rows")),
    }
}

fn go_subject(service: &Service) -> Subject {
    let port = service.port;
    let number = |text: String| text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into());
    Subject {
        label: GO.to_string(),
        protocol: Protocol::Http,
        port,
        pid: service.pid(),
        prefix: "/items/".to_string(),
        empty: Box::new(move || service::page(port, "/flush").map(|_| ())),
        loads: Box::new(move || service::page(port, "/loads").and_then(number)),
    }
}

fn redis_subject(server: &Server) -> Subject {
    Subject {
        label: server.label.clone(),
        protocol: Protocol::Resp,
        port: server.port,
        pid: server.pid(),
        prefix: "item:".to_string(),
        empty: Box::new(|| Ok(())),
        loads: Box::new(|| Ok(0)),
    }
}

/// A figure of a source.
fn stat(port: u16, source: &str, name: &str) -> io::Result<u64> {
    match stats(port, source)?.windows(2).find(|pair| pair[0].lossy() == name) {
        Some([_, Frame::Int(n)]) => Ok(*n as u64),
        _ => Err(io::Error::other(format!("EVENKEEL SOURCE STATS {source} has no number '{name}'"))),
    }
}

fn stats(port: u16, source: &str) -> io::Result<Vec<Frame>> {
    match Client::connect(Endpoint::local(port))?.words(&format!("EVENKEEL SOURCE STATS {source}"))? {
        Frame::Array(values) => Ok(values),
        other => Err(io::Error::other(format!("EVENKEEL SOURCE STATS {source} answered {other:?}"))),
    }
}

fn feed_is_open(port: u16, source: &str) -> bool {
    let told = stats(port, source).unwrap_or_default();
    told.windows(2).any(|pair| pair[0].lossy() == "feed" && pair[1].lossy() == "open")
}

/// Reads some items and checks that they are the requested ones.
fn check(subject: &Subject, rows: u64) -> io::Result<()> {
    let mut reader = Reader::connect(subject.port, subject.protocol, &subject.prefix)?;
    for id in Scattered::new(rows).take(100) {
        let answer = reader.read(id)?;
        let whole = answer.len() as u64 > ROW_BYTES - AROUND_BODY;
        if traffic::field(answer, "id") != Some(id) || !whole {
            return Err(io::Error::other(format!("item {id} is {}", String::from_utf8_lossy(answer))));
        }
    }
    Ok(())
}

/// Copies all rows of a table into a server, as JSON strings.
fn copy(database: &Database, table: &str, server: &Server) -> io::Result<()> {
    const PART: u64 = 5000;
    let mut session = database.session()?;
    for from in (0..).step_by(PART as usize) {
        let to = from + PART;
        let rows = session.run(&format!(
            "SELECT id, row_to_json({table}) FROM {table} WHERE id >= {from} AND id < {to} ORDER BY id"
        ))?;
        if rows.is_empty() {
            return Ok(());
        }
        fill::each(server, 0..rows.len() as u64, |out, i| {
            let [id, json] = &rows[i as usize][..] else { return };
            wire::command(out, &[b"SET", format!("item:{id}").as_bytes(), json.as_bytes()]);
        })?;
    }
    Ok(())
}

/// Resident bytes before and after every item was read twice.
fn grown(subject: &Subject, rows: u64) -> io::Result<(u64, u64)> {
    let before = server::rss(subject.pid);
    let mut traffic = Traffic::connect(subject.port, 50, subject.protocol, &subject.prefix)?;
    for _ in 0..2 {
        let mut ids = Scattered::new(rows);
        traffic.run(None, || ids.next())?;
    }
    sleep(REST);
    Ok((before, server::rss(subject.pid)))
}

/// Does something while connections ask a subject without a pause.
fn beside<T>(
    subject: &Subject,
    conns: usize,
    mut zipf: Zipf,
    act: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    let mut traffic = Traffic::connect(subject.port, conns, subject.protocol, &subject.prefix)?;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let next = || (!over.load(Ordering::Relaxed)).then(|| zipf.next());
        let asking = scope.spawn(|| traffic.run(None, next));
        let done = act();
        over.store(true, Ordering::Relaxed);
        asking.join().map_err(|_| io::Error::other("the requests beside it ended badly"))??;
        done
    })
}

/// Changes cached items one by one and reads each until it is new.
fn lag(mut session: Session, subject: &Subject, options: &Options) -> io::Result<Histogram<u64>> {
    const LIMIT: Duration = Duration::from_secs(30);
    let mut reader = Reader::connect(subject.port, subject.protocol, &subject.prefix)?;
    let mut seen = traffic::histogram()?;
    for (nr, id) in Scattered::new(options.rows).take(options.commits as usize + 10).enumerate() {
        let old = traffic::field(reader.read(id)?, "version");
        let new = old.map(|version| version + 1);
        session.run(&format!("UPDATE items SET version = version + 1 WHERE id = {id}"))?;
        let committed = Instant::now();
        while traffic::field(reader.read(id)?, "version") != new {
            if committed.elapsed() > LIMIT {
                return Err(io::Error::other(format!("item {id} is still old after {LIMIT:?}")));
            }
        }
        // The first ones warm everything up.
        if nr >= 10 {
            seen.saturating_record(committed.elapsed().as_nanos() as u64);
        }
    }
    Ok(seen)
}

impl Cell {
    fn new() -> Cell {
        let latency = traffic::histogram().expect("the bounds are constants");
        let (per_second, cpu_us, database_cpu_us) = Default::default();
        Cell { per_second, cpu_us, database_cpu_us, requests: 0, loads: 0, latency }
    }

    fn round(
        &mut self,
        subject: &Subject,
        ids: Ids,
        options: &Options,
        database: &Database,
        zipf: &mut Zipf,
        first: bool,
    ) -> io::Result<()> {
        let mut traffic = Traffic::connect(subject.port, options.conns, subject.protocol, &subject.prefix)?;
        let warm_up = match ids {
            Ids::Cold => 0,
            Ids::Hot => 20_000,
            // Often enough to fill the cache and to learn the popular items.
            Ids::Zipf | Ids::ZipfAt(_) => 6 * options.rows,
        };
        if ids == Ids::Cold {
            (subject.empty)()?;
            sleep(Duration::from_millis(300));
        } else if first {
            let mut left = warm_up;
            traffic.run(None, || {
                left = left.checked_sub(1)?;
                Some(if ids == Ids::Hot { HOT } else { zipf.next() })
            })?;
        }
        let mut each = Scattered::new(options.rows);
        let until = (ids != Ids::Cold).then(|| Instant::now() + Duration::from_secs_f64(options.seconds));
        let (cpu, database_cpu, loads) = (server::cpu_ns(subject.pid), database.cpu_ns(), (subject.loads)()?);
        let seen = match (ids, until) {
            (Ids::ZipfAt(rate), Some(until)) => traffic.run_at(rate.into(), until, || zipf.next())?,
            _ => traffic.run(until, || match ids {
                Ids::Hot => Some(HOT),
                Ids::Zipf | Ids::ZipfAt(_) => Some(zipf.next()),
                Ids::Cold => each.next(),
            })?,
        };
        let n = seen.requests as f64;
        self.cpu_us.push((server::cpu_ns(subject.pid) - cpu) as f64 / 1e3 / n);
        self.database_cpu_us.push(database.cpu_ns().saturating_sub(database_cpu) as f64 / 1e3 / n);
        self.per_second.push(n / seen.elapsed.as_secs_f64());
        self.loads += (subject.loads)()? - loads;
        self.requests += seen.requests;
        self.latency.add(&seen.latency).map_err(io::Error::other)
    }

    /// Requests/s, three quantiles, two kinds of CPU time, hit ratio.
    fn columns(&self) -> Vec<String> {
        if self.requests == 0 {
            return vec![absent(); 7];
        }
        let at = |q| time(self.latency.value_at_quantile(q) as f64);
        vec![
            format!("{:.1}k", median(&mut self.per_second.clone()) / 1e3),
            at(0.5),
            at(0.95),
            at(0.99),
            format!("{:.2}", median(&mut self.cpu_us.clone())),
            format!("{:.2}", median(&mut self.database_cpu_us.clone())),
            format!("{:.1} %", 100.0 * (1.0 - self.loads.min(self.requests) as f64 / self.requests as f64)),
        ]
    }

    fn judged(&self, goals: &Goals, than_redis: bool) -> String {
        let mut parts = Vec::new();
        if let Some(goal) = goals.per_second {
            let met = median(&mut self.per_second.clone()) >= goal;
            parts.push(format!("≥ {}/s {}", count(goal as u64), verdict(met)));
        }
        if let Some(goal) = goals.p99_ns {
            let met = self.requests > 0 && self.latency.value_at_quantile(0.99) <= goal;
            parts.push(format!("p99 ≤ {} {}", time(goal as f64), verdict(met)));
        }
        if let Some(goal) = goals.cpu_us {
            let met = median(&mut self.cpu_us.clone()) <= goal;
            let than = if than_redis { "Redis's".to_string() } else { format!("{goal} µs") };
            parts.push(format!("CPU ≤ {than} {}", verdict(met)));
        }
        parts.join(", ")
    }
}
