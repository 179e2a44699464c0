//! `chaos fuzz`: clients that send everything that the grammar of COMMAND DOCS can make, and much that it
//! cannot. Judges run beside them.
//!
//! ```text
//!   round: a server ─┬─ players: Rng(seed, round, nr) ─► episodes ─► replies, which must be RESP, and as many as asked for
//!                    ├─ bystander: SET, GET, PING, each answered, each right
//!                    ├─ settings: CONFIG SET of every directive, and back
//!                    ├─ nurse: ends endless scripts, unblocks and, at last, closes players that wait
//!                    └─ watch: alive? memory? contained panics?
//!   at its end: nothing is left (leftovers.rs)
//! ```
//!
//! - F1: the bytes of a player follow from seed, round and number alone; the time they are sent does not.
//! - F2: a fault ends its round. The last episodes of each player are printed, and sent again to new servers,
//!   to find the cause.

use crate::Options;
use crate::episode::{End, Episode, furnish, show};
use crate::grammar::Table;
use crate::leftovers::{self, Slack, State};
use crate::line::{Came, Line};
use crate::words::{self, NUMBERS, Word};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use support::rng::Rng;
use support::server::Server;
use support::wire::{Conn, Frame, encode};

/// Waits after which the nurse unblocks a player, and then closes it.
const WAITS_LONG: Duration = Duration::from_secs(1);
const WAITS_TOO_LONG: Duration = Duration::from_secs(15);
/// Episodes remembered for each player.
const REMEMBERED: usize = 5;
/// The bystander's database, which other clients select only by chance.
const BYSTANDER_DB: &str = "13";

/// A fault of the server.
#[derive(Clone, Debug)]
pub struct Fault {
    /// One line. Faults with the same title count as the same.
    pub title: String,
    pub detail: String,
}

/// Faults by title, with the number of times each was found.
pub type Found = BTreeMap<String, (usize, Fault)>;

/// The result of a round, or of all rounds.
#[derive(Default, Debug)]
pub struct Tally {
    pub episodes: usize,
    pub requests: usize,
    pub replies: usize,
    pub asked: usize,
    pub longest_us: u64,
    pub peak_bytes: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Tally) {
        self.episodes += other.episodes;
        self.requests += other.requests;
        self.replies += other.replies;
        self.asked += other.asked;
        self.longest_us = self.longest_us.max(other.longest_us);
        self.peak_bytes = self.peak_bytes.max(other.peak_bytes);
    }
}

/// The last episodes of one player.
#[derive(Default)]
struct Diary {
    last: VecDeque<(u64, Episode)>,
    client_id: AtomicU64,
    /// Milliseconds of the round at which its wait began, plus one. 0: it does not wait.
    waits: AtomicU64,
}

struct Stage<'a> {
    options: &'a Options,
    addr: SocketAddr,
    http: SocketAddr,
    table: &'a Table,
    seed: u64,
    began: Instant,
    stop: AtomicBool,
    diaries: Vec<Mutex<Diary>>,
    faults: Mutex<Vec<Fault>>,
    episodes: AtomicUsize,
    requests: AtomicUsize,
    replies: AtomicUsize,
    asked: AtomicUsize,
    longest_us: AtomicU64,
}

impl Stage<'_> {
    fn on(&self) -> bool {
        !self.stop.load(Relaxed)
    }

    fn fault(&self, title: impl Into<String>, detail: impl Into<String>) {
        let mut faults = self.faults.lock().unwrap_or_else(|e| e.into_inner());
        faults.push(Fault { title: title.into(), detail: detail.into() });
        self.stop.store(true, Relaxed);
    }

    fn diary(&self, nr: usize) -> std::sync::MutexGuard<'_, Diary> {
        self.diaries[nr].lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// The arguments of a server under test.
fn arguments(options: &Options, http_port: u16) -> Vec<String> {
    let words = [
        "--maxmemory",
        &options.maxmemory,
        "--maxmemory-policy",
        "allkeys-lru",
        "--demo",
        "yes",
        "--http-port",
        &http_port.to_string(),
        "--http-timeout",
        "10",
        // As many players may each use so much. With the data this is less than the cap.
        "--lua-memory-limit",
        "64mb",
    ];
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn free_port() -> u16 {
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    free.map_or(0, |addr| addr.port())
}

/// Starts a server with its limit of memory.
pub fn serve(options: &Options) -> Result<(Server, SocketAddr), String> {
    let http_port = free_port();
    let server =
        Server::start_with(&options.server, &arguments(options, http_port)).map_err(|e| e.to_string())?;
    if options.data_mb > 0 {
        server.limit_data(options.data_mb << 20).map_err(|e| format!("RLIMIT_DATA: {e}"))?;
    }
    Ok((server, SocketAddr::from(([127, 0, 0, 1], http_port))))
}

/// Runs rounds until the time is over or there are too many faults. Returns the faults by title, with their
/// numbers.
pub fn run(options: &Options) -> Result<(Tally, Found), String> {
    let deadline = Instant::now() + options.time;
    let mut found = Found::new();
    let mut sum = Tally::default();
    let mut nr = options.round;
    while Instant::now() < deadline && found.len() < options.faults {
        let time = options.round_time.min(deadline.saturating_duration_since(Instant::now()));
        let (tally, faults) = round(options, nr, time, &found)?;
        sum.add(&tally);
        println!(
            "fuzz: round {nr}: {} episodes, {} requests, {} replies; bystander {} answers, longest wait {:.1} ms; peak {} MB",
            tally.episodes,
            tally.requests,
            tally.replies,
            tally.asked,
            tally.longest_us as f64 / 1e3,
            tally.peak_bytes >> 20
        );
        for fault in faults {
            let known = found.entry(fault.title.clone()).or_insert((0, fault.clone()));
            known.0 += 1;
            let first = known.0 == 1;
            println!("FAULT{}: {}", if first { "" } else { " (again)" }, fault.title);
            if first {
                println!("  to repeat: --seed {} --round {nr} --seconds {}", options.seed, time.as_secs());
                fault.detail.lines().for_each(|line| println!("    {line}"));
            }
        }
        nr += 1;
    }
    Ok((sum, found))
}

fn round(options: &Options, nr: u64, time: Duration, known: &Found) -> Result<(Tally, Vec<Fault>), String> {
    let (mut server, http) = serve(options)?;
    let mut control = Conn::open(server.addr).map_err(|e| e.to_string())?;
    control.set_patience(options.hang);
    let table = Table::read(&mut control, &options.without)?;
    let seed = options.seed.wrapping_mul(1_000_003).wrapping_add(nr);
    for words in furnish(&mut Rng::new(seed, 1000)) {
        control.call_bytes(&words);
    }
    let before = State::of(&server, &mut control)?;
    let stage = Stage {
        options,
        addr: server.addr,
        http,
        table: &table,
        seed,
        began: Instant::now(),
        stop: AtomicBool::new(false),
        diaries: (0..options.connections).map(|_| Mutex::default()).collect(),
        faults: Mutex::default(),
        episodes: AtomicUsize::new(0),
        requests: AtomicUsize::new(0),
        replies: AtomicUsize::new(0),
        asked: AtomicUsize::new(0),
        longest_us: AtomicU64::new(0),
    };
    let mut peak_bytes = 0;
    std::thread::scope(|scope| {
        let stage = &stage;
        (0..options.connections).for_each(|nr| {
            scope.spawn(move || play(stage, nr));
        });
        scope.spawn(move || bystand(stage));
        scope.spawn(move || set(stage));
        scope.spawn(move || nurse(stage));
        while stage.on() && stage.began.elapsed() < time {
            std::thread::sleep(Duration::from_millis(10));
            let resident = server.resident_bytes();
            peak_bytes = peak_bytes.max(resident);
            if resident > options.cap_mb << 20 {
                stage.fault(
                    format!("more than {} MB resident", options.cap_mb),
                    format!("{} MB with --maxmemory {}", resident >> 20, options.maxmemory),
                );
                server.kill();
            } else if let Some(how) = server.ended() {
                stage.fault(format!("the server ended: {}", cause(&server.log(), &how)), how);
            }
        }
        stage.stop.store(true, Relaxed);
        if !stage.faults.lock().unwrap_or_else(|e| e.into_inner()).is_empty() {
            // A server that hangs is not asked.
            if server.is_alive() {
                note_panics(stage, &mut control, &server);
            }
            server.kill();
        }
    });
    let tally = Tally {
        episodes: stage.episodes.load(Relaxed),
        requests: stage.requests.load(Relaxed),
        replies: stage.replies.load(Relaxed),
        asked: stage.asked.load(Relaxed),
        longest_us: stage.longest_us.load(Relaxed),
        peak_bytes,
    };
    if let Some(how) = server.ended().filter(|_| stage.faults.lock().is_ok_and(|faults| faults.is_empty())) {
        stage.fault(format!("the server ended: {}", cause(&server.log(), &how)), how);
    }
    if stage.faults.lock().unwrap_or_else(|e| e.into_inner()).is_empty() {
        // The first connection was idle all the time, and `timeout` may have closed it.
        control = Conn::open(server.addr).map_err(|e| e.to_string())?;
        control.set_patience(options.hang);
        note_panics(&stage, &mut control, &server);
        let slack =
            Slack { used_bytes: options.slack_mb << 20, resident_bytes: 3 * (options.slack_mb << 20) };
        let (_, mut left) = leftovers::look(&server, &mut control, &before, slack, options.patience);
        if !left.is_empty() {
            let clients = control.call(&["CLIENT", "LIST"]);
            let clients = String::from_utf8_lossy(clients.text().unwrap_or_default()).into_owned();
            left.extend(clients.lines().map(|line| format!("client {line}")));
            let names: Vec<&str> = left.iter().filter_map(|line| Some(line.split_once(" is ")?.0)).collect();
            stage.fault(format!("left when all have gone: {}", names.join(", ")), left.join("\n"));
        }
    }
    let mut faults = stage.faults.into_inner().unwrap_or_else(|e| e.into_inner());
    let log = server.log();
    drop(server);
    // A judge's complaint about a server that ended is not another fault.
    let is_end =
        |fault: &Fault| ["the server ended", "more than"].iter().any(|start| fault.title.starts_with(start));
    if faults.iter().any(is_end) {
        faults.retain(is_end);
    }
    faults.dedup_by(|a, b| a.title == b.title);
    for fault in &mut faults {
        if known.contains_key(&fault.title) {
            continue;
        }
        fault.detail += &told(&stage.diaries, &log);
        if options.blames && is_quick(&fault.title) {
            fault.detail += &blame(options, &stage.diaries, &fault.title);
        }
    }
    Ok((tally, faults))
}

/// The place of a fault in our program, as far as its log says.
fn cause(log: &str, how: &str) -> String {
    let place = log.lines().rev().find_map(|line| line.split("panicked at ").nth(1));
    let place = place.map(|rest| rest.chars().take(160).collect::<String>());
    let refused =
        log.lines().rev().find_map(|line| Some(line.split_at(line.find(": Assertion")? + 2).1.to_owned()));
    let how = how.lines().next().unwrap_or("").trim_start_matches("the server ended ").to_owned();
    place.or(refused).unwrap_or(how)
}

fn note_panics(stage: &Stage<'_>, control: &mut Conn, server: &Server) {
    let reply = control.call(&["INFO", "stats"]);
    let text = reply.text().map(|text| String::from_utf8_lossy(text).into_owned()).unwrap_or_default();
    let count =
        text.lines().find_map(|line| line.strip_prefix("panics_contained:")?.trim().parse::<u64>().ok());
    if let Some(1..) = count.filter(|_| !stage.options.allows_panics) {
        stage.fault(
            format!("a panic was contained: {}", cause(&server.log(), "")),
            format!("{count:?} in all"),
        );
    }
}

// ----- players ---------------------------------------------------------------------------------------------

fn play(stage: &Stage<'_>, nr: usize) {
    let mut rng = Rng::new(stage.seed, nr as u64);
    let mut line = None;
    let mut number = 0;
    while stage.on() {
        let episode = Episode::draw(stage.table, &mut rng);
        if stage.options.not.iter().any(|not| contains(&episode.bytes, not)) {
            continue;
        }
        stage.episodes.fetch_add(1, Relaxed);
        stage.requests.fetch_add(episode.requests.len(), Relaxed);
        let (way, end, bytes) = (episode.way, episode.end, episode.bytes.clone());
        let count = episode.requests.len();
        {
            let mut diary = stage.diary(nr);
            if diary.last.len() == REMEMBERED {
                diary.last.pop_front();
            }
            diary.last.push_back((stage.began.elapsed().as_millis() as u64, episode));
        }
        number += 1;
        let result = match end {
            End::Http => ask_http(stage, &bytes),
            _ => perform(stage, nr, &mut line, end, &bytes, (count, number)),
        };
        if let Err(why) = result.filter_stopped(stage) {
            let kind = why.split(':').next().unwrap_or_default().to_owned();
            stage.fault(kind, format!("player {nr}, {way}: {why}"));
        }
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    !part.is_empty() && bytes.windows(part.len()).any(|window| window == part)
}

trait FilterStopped {
    fn filter_stopped(self, stage: &Stage<'_>) -> Self;
}

impl FilterStopped for Result<(), String> {
    /// Ignores results once a fault has ended the round.
    fn filter_stopped(self, stage: &Stage<'_>) -> Self {
        if stage.on() { self } else { Ok(()) }
    }
}

/// Opens a connection and registers it with the nurse. `None`: no connection is possible now.
fn enter(stage: &Stage<'_>, nr: usize) -> Option<Line> {
    let began = Instant::now();
    while stage.on() && began.elapsed() < stage.options.hang {
        if let Ok(mut line) = Line::open(stage.addr) {
            let mut bytes = Vec::new();
            encode(&[b"CLIENT".to_vec(), b"ID".to_vec()], &mut bytes);
            line.put(&bytes);
            if let Came::Reply(reply) = line.take(stage.options.hang)
                && let Ok(id) = String::from_utf8_lossy(&reply.text).parse()
            {
                stage.diary(nr).client_id.store(id, Relaxed);
                return Some(line);
            }
        }
        // The settings may allow no further client at the moment.
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}

fn perform(
    stage: &Stage<'_>,
    nr: usize,
    kept: &mut Option<Line>,
    end: End,
    bytes: &[u8],
    (count, number): (usize, usize),
) -> Result<(), String> {
    let Some(mut line) = kept.take().or_else(|| enter(stage, nr)) else {
        return Err("no connection: the server admits no client".into());
    };
    line.put(bytes);
    match end {
        End::Close => {
            line.push(Duration::from_millis(100));
            return Ok(());
        }
        End::Garbage => {
            line.push(Duration::from_secs(1));
            line.end_sending();
        }
        End::Reset | End::Counted | End::Http => {}
    }
    let token = format!("token-{nr}-{number}");
    if matches!(end, End::Reset | End::Counted) {
        let mut sync = Vec::new();
        if end == End::Reset {
            encode(&[b"RESET".to_vec()], &mut sync);
        }
        encode(&[b"ECHO".to_vec(), token.clone().into_bytes()], &mut sync);
        line.put(&sync);
    }
    stage.diary(nr).waits.store(stage.began.elapsed().as_millis() as u64 + 1, Relaxed);
    let result = answers(stage, &mut line, &token, end, count);
    stage.diary(nr).waits.store(0, Relaxed);
    if result? && end != End::Garbage {
        *kept = Some(line);
    }
    Ok(())
}

/// Reads until the token comes. False: the connection is closed.
fn answers(stage: &Stage<'_>, line: &mut Line, token: &str, end: End, count: usize) -> Result<bool, String> {
    let mut patience = Instant::now();
    let mut replies = 0;
    while stage.on() {
        match line.take(Duration::from_millis(100)) {
            Came::Reply(reply) if reply.mark == b'$' && reply.text == token.as_bytes() => {
                if end == End::Counted && replies != count {
                    return Err(format!("a wrong number of replies: {replies} to {count} requests"));
                }
                return Ok(true);
            }
            Came::Reply(reply) => {
                stage.replies.fetch_add(1, Relaxed);
                replies += usize::from(reply.mark != b'>');
                patience = Instant::now();
            }
            Came::Closed => return Ok(false),
            Came::Malformed(why) => return Err(format!("a malformed reply: {why}")),
            Came::Nothing if patience.elapsed() > stage.options.hang => {
                return Err(format!(
                    "no answer: for {:?}, and not closed by CLIENT KILL either",
                    stage.options.hang
                ));
            }
            Came::Nothing => {}
        }
    }
    Ok(false)
}

/// Sends to the port that speaks HTTP. The reply must look like HTTP answers.
fn ask_http(stage: &Stage<'_>, bytes: &[u8]) -> Result<(), String> {
    let Ok(mut line) = Line::open(stage.http) else { return Ok(()) };
    line.put(bytes);
    line.push(Duration::from_millis(500));
    line.end_sending();
    let began = Instant::now();
    let mut came = Vec::new();
    while stage.on() && line.raw(Duration::from_millis(50), &mut came) {
        if began.elapsed() > stage.options.hang {
            return Err("no end of an HTTP connection: neither answered nor closed".into());
        }
    }
    let head = came.windows(4).position(|four| four == b"\r\n\r\n");
    match (came.is_empty(), head) {
        (true, _) => Ok(()),
        (false, Some(end)) => {
            let head = String::from_utf8_lossy(&came[..end]).into_owned();
            let mut lines = head.split("\r\n");
            let status = lines.next().unwrap_or_default();
            let code = status.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse::<u16>().ok());
            let sound =
                code.is_some_and(|code| (100..600).contains(&code)) && lines.all(|line| line.contains(": "));
            if sound { Ok(()) } else { Err(format!("a malformed HTTP response: {head:?}")) }
        }
        (false, None) if !stage.on() => Ok(()),
        (false, None) => Err(format!("a malformed HTTP response: {:?}", String::from_utf8_lossy(&came))),
    }
}

// ----- judges ----------------------------------------------------------------------------------------------

/// Asks for little, and demands all of it.
fn bystand(stage: &Stage<'_>) {
    let opened = Conn::open(stage.addr);
    let Ok(mut conn) = opened else { return stage.fault("the bystander gets no connection", "") };
    conn.set_patience(stage.options.hang);
    conn.call(&["SELECT", BYSTANDER_DB]);
    let mut nr = 0u64;
    while stage.on() {
        nr += 1;
        let (key, value) = (format!("by:{}:{}", stage.seed, nr % 40), format!("value {nr}"));
        let mut ask = |words: &[&str]| {
            let began = Instant::now();
            let reply = conn.call(words);
            stage.longest_us.fetch_max(began.elapsed().as_micros() as u64, Relaxed);
            stage.asked.fetch_add(1, Relaxed);
            reply
        };
        let is_full =
            |reply: &Frame| reply.is_error() && reply.text().is_some_and(|text| text.starts_with(b"OOM"));
        let stored = ask(&["SET", &key, &value]);
        let got = ask(&["GET", &key]);
        let pong = ask(&["PING"]);
        let is_ok = |reply: &Frame, text: &[u8]| matches!(reply, Frame::Simple(said) if said == text);
        // Other clients may have emptied the server, or filled it.
        let right = got.is_null()
            || is_full(&stored)
            || matches!(&got, Frame::Bulk(text) if *text == value.as_bytes());
        let sound = (is_ok(&stored, b"OK") || is_full(&stored)) && right && is_ok(&pong, b"PONG");
        if !sound && stage.on() {
            // A server that ended and a server that does not answer are different faults.
            std::thread::sleep(Duration::from_millis(200));
            stage.fault(
                "the bystander was not answered as it should",
                format!("SET {key} {value:?}: {stored}; GET: {got}; PING: {pong}"),
            );
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Directives that would lock the judges out, or close them.
const NOT_SET: &[&str] = &[
    "requirepass",
    "client-output-buffer-limit",
    "maxmemory-clients",
    "min-replicas-to-write",
    "min-slaves-to-write",
    "dir",
    "logfile",
    "loglevel",
];

/// Directives that limit memory. Without them the cap means nothing.
const SMALL: &[&str] = &["lua-memory-limit", "work-max-memory"];

/// Sets every directive to another value, and back.
fn set(stage: &Stage<'_>) {
    let Ok(mut conn) = Conn::open(stage.addr) else { return };
    conn.set_patience(stage.options.hang);
    let mut rng = Rng::new(stage.seed, 2000);
    let all = conn.call(&["CONFIG", "GET", "*"]);
    let text =
        |frame: &Frame| frame.text().map(|t| String::from_utf8_lossy(t).into_owned()).unwrap_or_default();
    let all: Vec<(String, String)> = all
        .items()
        .unwrap_or_default()
        .chunks_exact(2)
        .map(|pair| (text(&pair[0]), text(&pair[1])))
        .collect();
    let all: Vec<_> = all.into_iter().filter(|(name, _)| !NOT_SET.contains(&name.as_str())).collect();
    while stage.on() && !all.is_empty() {
        let (name, value) = rng.pick(&all).clone();
        let other = match SMALL.contains(&name.as_str()) {
            true => rng.pick(&["0x", "1mb", "10mb", "64mb", "-1"]).as_bytes().to_vec(),
            false => setting(&value, &all, &mut rng),
        };
        let was_set = conn.call_bytes(&["CONFIG".into(), "SET".into(), name.clone().into(), other.clone()]);
        if matches!(was_set, Frame::Simple(_)) {
            std::thread::sleep(Duration::from_millis(rng.below(40) as u64));
            let restored = conn.call(&["CONFIG", "SET", &name, &value]);
            let reads = conn.call(&["CONFIG", "GET", &name]);
            let now = reads.items().and_then(|pair| pair.get(1)).map(text);
            if now.as_deref() != Some(&value) && stage.on() && !conn.is_gone() {
                stage.fault(
                    format!("CONFIG SET {name} does not come back"),
                    format!("{value:?}, set to {}: restored {restored}, reads {reads}", show(&[other])),
                );
            }
        } else if conn.is_gone() {
            // A setting may close this connection.
            match Conn::open(stage.addr) {
                Ok(fresh) => conn = fresh,
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
            conn.set_patience(stage.options.hang);
            conn.call(&["CONFIG", "SET", &name, &value]);
        }
        std::thread::sleep(Duration::from_millis(rng.below(10) as u64));
    }
}

fn setting(value: &str, all: &[(String, String)], rng: &mut Rng) -> Word {
    let is_number = value.parse::<i64>().is_ok();
    match (rng.below(10), value) {
        (0..=6, "yes") => b"no".to_vec(),
        (0..=6, "no") => b"yes".to_vec(),
        (0..=4, _) if is_number => rng.pick(NUMBERS).as_bytes().to_vec(),
        (5..=7, _) if is_number => rng.pick(&["1mb", "64mb", "100", "1000", "10", "5"]).as_bytes().to_vec(),
        (8, _) => words::hostile(rng),
        _ => {
            let others = [
                "allkeys-lfu",
                "volatile-ttl",
                "noeviction",
                "volatile-lru",
                "KEA",
                "debug",
                "auto",
                "always",
            ];
            match rng.below(3) {
                0 => rng.pick(all).1.clone().into_bytes(),
                _ => rng.pick(&others).as_bytes().to_vec(),
            }
        }
    }
}

/// Ends endless scripts and waits. The promise is that they can be ended.
fn nurse(stage: &Stage<'_>) {
    let Ok(mut conn) = Conn::open(stage.addr) else { return };
    conn.set_patience(stage.options.hang);
    while stage.on() {
        std::thread::sleep(Duration::from_millis(250));
        for words in [&["SCRIPT", "KILL"][..], &["FUNCTION", "KILL"], &["CLIENT", "UNPAUSE"]] {
            conn.call(words);
        }
        let now = stage.began.elapsed().as_millis() as u64;
        for nr in 0..stage.diaries.len() {
            let (id, since) = {
                let diary = stage.diary(nr);
                (diary.client_id.load(Relaxed).to_string(), diary.waits.load(Relaxed))
            };
            let waited = Duration::from_millis(if since == 0 { 0 } else { now.saturating_sub(since) });
            if waited > WAITS_TOO_LONG {
                conn.call(&["CLIENT", "KILL", "ID", &id]);
            } else if waited > WAITS_LONG {
                conn.call(&["CLIENT", "UNBLOCK", &id]);
            }
        }
        if conn.is_gone() && stage.on() {
            match Conn::open(stage.addr) {
                Ok(fresh) => conn = fresh,
                Err(_) => return,
            }
            conn.set_patience(stage.options.hang);
        }
    }
}

// ----- the cause -------------------------------------------------------------------------------------------

/// The last episodes of all players, newest last, and the server's log.
fn told(diaries: &[Mutex<Diary>], log: &str) -> String {
    let mut text = String::from("\nlast, by connection:\n");
    for (nr, diary) in diaries.iter().enumerate() {
        let diary = diary.lock().unwrap_or_else(|e| e.into_inner());
        for (at_ms, episode) in diary.last.iter().rev().take(2).rev() {
            text += &format!("  [{nr}] at {at_ms} ms, {}:\n", episode.way);
            let lines = episode.shown();
            let skipped = lines.len().saturating_sub(12);
            lines.iter().skip(skipped).for_each(|line| text += &format!("      {line}\n"));
        }
    }
    text += "the server's log:\n";
    let said: Vec<&str> = log.lines().filter(|line| is_told(line)).collect();
    said.iter().rev().take(8).rev().for_each(|line| text += &format!("  {line}\n"));
    text
}

/// Whether a line of the log may belong to a fault. Lines that such clients cause all the time do not.
pub fn is_told(line: &str) -> bool {
    let noise = ["protocol error", "speaks HTTP", "stalled for", "has been busy"];
    let marks = ["panicked", " warning ", " error "];
    marks.iter().any(|mark| line.contains(mark)) && !noise.iter().any(|mark| line.contains(mark))
}

/// Whether a fault of this kind shows at once when it is repeated.
fn is_quick(title: &str) -> bool {
    ["the server ended", "a panic", "more than", "a malformed", "a wrong number"]
        .iter()
        .any(|t| title.starts_with(t))
}

/// Sends the last episodes to new servers: an episode at a time, then a request at a time.
fn blame(options: &Options, diaries: &[Mutex<Diary>], title: &str) -> String {
    let mut text = String::new();
    let mut episodes = Vec::new();
    for diary in diaries {
        let mut diary = diary.lock().unwrap_or_else(|e| e.into_inner());
        episodes.extend(diary.last.drain(..));
    }
    episodes.sort_by_key(|(at_ms, _)| std::cmp::Reverse(*at_ms));
    for (at_ms, episode) in episodes {
        let Ok(Some(seen)) = again(options, &episode.bytes, episode.end) else { continue };
        text += &format!("sent alone, the bytes sent at {at_ms} ms cause it ({seen}):\n");
        let single = episode.requests.iter().find(|words| {
            let mut bytes = Vec::new();
            encode(words, &mut bytes);
            matches!(again(options, &bytes, End::Reset), Ok(Some(_)))
        });
        match single {
            Some(words) => text += &format!("  this alone: {}\n", show(words)),
            None => episode.shown().iter().for_each(|line| text += &format!("  {line}\n")),
        }
        return text;
    }
    text + &format!("nothing that was sent last does it alone ({title})\n")
}

/// Sends bytes to a new, furnished server. `Some`: it ended, panicked or took too much memory.
fn again(options: &Options, bytes: &[u8], end: End) -> Result<Option<String>, String> {
    let (mut server, http) = serve(options)?;
    let mut control = Conn::open(server.addr).map_err(|e| e.to_string())?;
    for words in furnish(&mut Rng::new(1, 1000)) {
        control.call_bytes(&words);
    }
    let addr = if end == End::Http { http } else { server.addr };
    let mut line = Line::open(addr).map_err(|e| e.to_string())?;
    line.put(bytes);
    let mut sync = Vec::new();
    encode(&[b"RESET".to_vec()], &mut sync);
    encode(&[b"ECHO".to_vec(), b"the end".to_vec()], &mut sync);
    if matches!(end, End::Counted | End::Reset) {
        line.put(&sync);
    }
    let began = Instant::now();
    let mut done = false;
    while began.elapsed() < Duration::from_secs(4) {
        match line.take(Duration::from_millis(10)) {
            Came::Reply(reply) => done |= reply.text == b"the end",
            Came::Malformed(why) if end != End::Http => return Ok(Some(format!("a malformed reply: {why}"))),
            Came::Closed | Came::Malformed(_) => {
                done = true;
                std::thread::sleep(Duration::from_millis(10));
            }
            Came::Nothing => {}
        }
        if server.resident_bytes() > options.cap_mb << 20 {
            return Ok(Some(format!("{} MB resident", server.resident_bytes() >> 20)));
        }
        if let Some(how) = server.ended() {
            return Ok(Some(cause(&server.log(), &how)));
        }
        if done && began.elapsed() > Duration::from_millis(150) {
            break;
        }
    }
    let log = server.log();
    Ok(log.contains("panicked at").then(|| cause(&log, "a panic")))
}
