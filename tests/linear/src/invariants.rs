//! Scenes too large for the checker, each with one claim that must hold in every reply.
//!
//! - **Bank**: money moves between accounts (string keys, or fields of one hash) by WATCH and EXEC, by MULTI,
//!   by short and long scripts. *The sum of all accounts is the same in every MGET, EXEC, HGETALL and
//!   script.*
//! - **Stamps**: one client writes one number into thousands of keys with one MSET, again and again, and
//!   another touches them. *No MGET shows two numbers. None is older than one acknowledged before it was
//!   sent, or not sent yet.*
//! - **Queue**: items are pushed, moved and popped. *Each is popped once, and those of one producer to one
//!   consumer in order.*
//!
//! - **Jobs** ([`crate::consumers`]), **copies** ([`crate::caches`]), and **streams** ([`crate::streams`]),
//!   which have a small model of their own.
//!
//! Each scene has its own database and runs beside the others and beside [`crate::groups`].

use crate::wire;
use dial::{Conn, Frame};
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use support::rng::Rng;

const BANK_DB: usize = 8;
const STAMPS_DB: usize = 9;
const QUEUE_DB: usize = 10;
const NOISE_DB: usize = 11;

/// The context of every client of a scene.
#[derive(Clone)]
pub struct Stage {
    pub addr: SocketAddr,
    pub seed: u64,
    pub stop: Arc<AtomicBool>,
}

impl Stage {
    pub fn on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    pub fn conn(&self, db: usize) -> Result<Conn, String> {
        wire::open_db(self.addr, db).map_err(|e| e.to_string())
    }

    pub fn rng(&self, stream: u64) -> Rng {
        crate::groups::stream(self.seed, stream)
    }
}

/// A client's life: the number of checked replies, or the fault.
pub type Part = Box<dyn FnOnce(&Stage) -> Result<usize, String> + Send>;

/// The clients that a seed asks for, with their scene's name. Fills the keyspace for them.
pub fn cast(stage: &Stage) -> Result<Vec<(&'static str, Part)>, String> {
    let mut rng = stage.rng(2);
    let mut parts = Vec::new();
    if rng.percent(60) {
        parts.extend(bank(stage, &mut rng)?);
    }
    if rng.percent(50) {
        parts.extend(stamps(&mut rng));
    }
    if rng.percent(50) {
        parts.extend(queue(&mut rng));
    }
    if rng.percent(50) {
        parts.push(("noise", Box::new(noise)));
    }
    if rng.percent(50) {
        parts.extend(crate::streams::parts(&mut rng));
    }
    if rng.percent(50) {
        parts.extend(crate::consumers::parts(stage, &mut rng)?);
    }
    if rng.percent(50) {
        parts.extend(crate::caches::parts(stage, &mut rng)?);
    }
    Ok(parts)
}

pub fn say(conn: &mut Conn, words: &[String]) -> Result<Frame, String> {
    match conn.call(words) {
        // Nothing was done; the next turn tries something else.
        Ok(frame) if frame.is_error_with("too many snapshots") => Ok(Frame::Null),
        Ok(error @ Frame::Error(_)) => Err(format!("{} was answered {}", words[0], error.lossy())),
        Ok(frame) => Ok(frame),
        Err(e) => Err(format!("{}: {e}", words[0])),
    }
}

pub fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

pub fn tell(conn: &mut Conn, line: &str) -> Result<Frame, String> {
    say(conn, &words(line))
}

/// Sends MULTI, lines and EXEC in one go. Returns the replies, or `None` if EXEC gave nil.
pub fn multi(conn: &mut Conn, lines: &[Vec<String>]) -> Result<Option<Vec<Frame>>, String> {
    let requests = [&[words("MULTI")][..], lines, &[words("EXEC")]].concat();
    let frames = conn.pipeline(&requests).map_err(|e| format!("EXEC: {e}"))?;
    match frames.into_iter().last() {
        Some(Frame::Array(items)) => Ok(Some(items)),
        Some(Frame::NullArray) => Ok(None),
        other => Err(format!("EXEC was answered {other:?}")),
    }
}

// ----- bank ------------------------------------------------------------------------------------------------

const EACH: i64 = 1000;

pub const TRANSFER: &str = "\
local n = tonumber(ARGV[1])
local a, b = tonumber(redis.call('GET', KEYS[1])), tonumber(redis.call('GET', KEYS[2]))
for i = 1, tonumber(ARGV[2]) do end
redis.call('SET', KEYS[1], a - n)
redis.call('SET', KEYS[2], b + n)
return 1";

const SUM: &str = "\
local sum = 0
for i = 0, tonumber(ARGV[1]) - 1 do sum = sum + tonumber(redis.call('GET', 'acct:' .. i)) end
return sum";

/// Moves money from every second account to the next.
const PAYDAY: &str = "\
for i = 0, tonumber(ARGV[1]) - 2, 2 do
  redis.call('DECR', 'acct:' .. i)
  redis.call('INCR', 'acct:' .. i + 1)
end
return 1";

fn bank(stage: &Stage, rng: &mut Rng) -> Result<Vec<(&'static str, Part)>, String> {
    let accounts = *rng.pick(&[5usize, 40, 1500]);
    let mut conn = stage.conn(BANK_DB)?;
    let mut open = words("MSET");
    let mut fields = words("HSET bank");
    for i in 0..accounts {
        open.extend([format!("acct:{i}"), EACH.to_string()]);
        fields.extend([format!("acct:{i}"), EACH.to_string()]);
    }
    say(&mut conn, &open)?;
    say(&mut conn, &fields)?;
    let mut parts: Vec<(&'static str, Part)> = Vec::new();
    for i in 0..rng.between(1, 3) as u64 {
        parts.push(("bank teller", Box::new(move |stage| teller(stage, 10 + i, accounts))));
    }
    for i in 0..rng.between(1, 2) as u64 {
        parts.push(("bank auditor", Box::new(move |stage| auditor(stage, 20 + i, accounts))));
    }
    Ok(parts)
}

fn teller(stage: &Stage, stream: u64, accounts: usize) -> Result<usize, String> {
    let (mut conn, mut rng, mut done) = (stage.conn(BANK_DB)?, stage.rng(stream), 0);
    while stage.on() {
        let a = rng.below(accounts);
        let b = (a + 1 + rng.below(accounts - 1)) % accounts;
        let n = rng.between(1, 20) as i64;
        let (from, to) = (format!("acct:{a}"), format!("acct:{b}"));
        match rng.below(6) {
            5 => {
                say(&mut conn, &["EVAL".into(), PAYDAY.into(), "0".into(), accounts.to_string()])?;
            }
            0 => {
                let lines = [words(&format!("DECRBY {from} {n}")), words(&format!("INCRBY {to} {n}"))];
                multi(&mut conn, &lines)?;
            }
            1 => {
                tell(&mut conn, &format!("WATCH {from} {to}"))?;
                let held =
                    say(&mut conn, &words(&format!("MGET {from} {to}")))?.into_array().unwrap_or_default();
                let held: Vec<i64> = held.iter().filter_map(Frame::number).collect();
                let [x, y] = held[..] else { return Err(format!("an account is gone: {held:?}")) };
                let lines = [words(&format!("SET {from} {}", x - n)), words(&format!("SET {to} {}", y + n))];
                multi(&mut conn, &lines)?;
            }
            2 => {
                let lines =
                    [words(&format!("HINCRBY bank {from} -{n}")), words(&format!("HINCRBY bank {to} {n}"))];
                multi(&mut conn, &lines)?;
            }
            way => {
                let spin = if way == 3 { 0 } else { rng.below(100_000) };
                let text = if spin > 0 { format!("-- long\n{TRANSFER}") } else { TRANSFER.to_owned() };
                let (n, spin) = (n.to_string(), spin.to_string());
                say(&mut conn, &["EVAL".into(), text, "2".into(), from, to, n, spin])?;
            }
        }
        done += 1;
    }
    Ok(done)
}

fn auditor(stage: &Stage, stream: u64, accounts: usize) -> Result<usize, String> {
    let (mut conn, mut rng, mut done) = (stage.conn(BANK_DB)?, stage.rng(stream), 0);
    let mut all = words("MGET");
    all.extend((0..accounts).map(|i| format!("acct:{i}")));
    let total = EACH * accounts as i64;
    while stage.on() {
        let (how, sum) = match rng.below(4) {
            0 => ("MGET", added(&say(&mut conn, &all)?, 1, 0)),
            1 => {
                // Two halves, one transaction.
                let (low, high) = all[1..].split_at(accounts / 2);
                let line = |keys: &[String]| [&words("MGET")[..], keys].concat();
                let lines = [line(high), line(low)];
                let halves = multi(&mut conn, &lines)?.unwrap_or_default();
                let sums: Option<Vec<i64>> = halves.iter().map(|half| added(half, 1, 0)).collect();
                ("EXEC", sums.map(|sums| sums.iter().sum()))
            }
            2 => ("HGETALL", added(&tell(&mut conn, "HGETALL bank")?, 2, 1)),
            _ => {
                let line = ["EVAL".into(), SUM.into(), "0".into(), accounts.to_string()];
                ("EVAL", say(&mut conn, &line)?.number())
            }
        };
        if let Some(sum) = sum.filter(|sum| *sum != total) {
            return Err(format!("{how} saw {sum} in {accounts} accounts instead of {total}"));
        }
        done += 1;
    }
    Ok(done)
}

/// The sum of every `step`th element from `first` on. `None` if the frame is no array.
fn added(frame: &Frame, step: usize, first: usize) -> Option<i64> {
    match frame {
        Frame::Array(items) => {
            Some(items.iter().skip(first).step_by(step).map(|item| item.number().unwrap_or(0)).sum())
        }
        _ => None,
    }
}

// ----- stamps ----------------------------------------------------------------------------------------------

/// Numbers sent and numbers acknowledged.
#[derive(Default)]
struct Stamps {
    sent: AtomicI64,
    done: AtomicI64,
}

fn stamps(rng: &mut Rng) -> Vec<(&'static str, Part)> {
    let keys = *rng.pick(&[20usize, 2000, 10_000, 50_000]);
    let shared = Arc::new(Stamps::default());
    let writer = shared.clone();
    let mut parts: Vec<(&'static str, Part)> =
        vec![("stamps writer", Box::new(move |stage| stamper(stage, keys, &writer)))];
    if rng.percent(50) {
        parts.push(("stamps meddler", Box::new(move |stage| meddler(stage, keys))));
    }
    for i in 0..rng.between(1, 2) as u64 {
        let shared = shared.clone();
        parts.push(("stamps reader", Box::new(move |stage| stamp_reader(stage, 30 + i, keys, &shared))));
    }
    parts
}

fn stamper(stage: &Stage, keys: usize, shared: &Stamps) -> Result<usize, String> {
    let (mut conn, mut n) = (stage.conn(STAMPS_DB)?, 0);
    while stage.on() {
        n += 1;
        let mut line = words("MSET");
        (0..keys).for_each(|i| line.extend([format!("stamp:{i}"), n.to_string()]));
        shared.sent.store(n, Ordering::SeqCst);
        if say(&mut conn, &line)?.is_ok() {
            shared.done.store(n, Ordering::SeqCst);
        }
    }
    Ok(n as usize)
}

/// Changes keys without changing their values, so that the long write has to start over.
fn meddler(stage: &Stage, keys: usize) -> Result<usize, String> {
    let (mut conn, mut rng, mut done) = (stage.conn(STAMPS_DB)?, stage.rng(39), 0);
    while stage.on() {
        let key = rng.below(keys);
        tell(&mut conn, &format!("EXPIRE stamp:{key} 100000"))?;
        tell(&mut conn, &format!("PERSIST stamp:{key}"))?;
        std::thread::sleep(std::time::Duration::from_micros(rng.below(3000) as u64));
        done += 1;
    }
    Ok(done)
}

fn stamp_reader(stage: &Stage, stream: u64, keys: usize, shared: &Stamps) -> Result<usize, String> {
    let (mut conn, mut rng, mut done) = (stage.conn(STAMPS_DB)?, stage.rng(stream), 0);
    let mut latest = 0;
    while stage.on() {
        // All keys, a few from everywhere, or one.
        let step = *rng.pick(&[1, keys / 7 + 1, keys]);
        let mut line = words("MGET");
        line.extend((rng.below(step)..keys).step_by(step).map(|i| format!("stamp:{i}")));
        let oldest = shared.done.load(Ordering::SeqCst).max(latest);
        let Some(items) = say(&mut conn, &line)?.into_array() else { continue };
        let newest = shared.sent.load(Ordering::SeqCst);
        let seen: HashSet<i64> = items.iter().map(|item| item.number().unwrap_or(0)).collect();
        if seen.len() != 1 || items.len() != line.len() - 1 {
            return Err(format!("one MGET of {keys} keys saw the stamps {seen:?} at once"));
        }
        if let Some(wrong) = seen.iter().find(|n| !(oldest..=newest).contains(n)) {
            return Err(format!("MGET saw stamp {wrong}; {oldest} was seen before, {newest} sent so far"));
        }
        latest = seen.into_iter().next().unwrap_or(latest);
        done += 1;
    }
    Ok(done)
}

// ----- queue -----------------------------------------------------------------------------------------------

#[derive(Default)]
struct Queue {
    producers: AtomicUsize,
    pushed: AtomicUsize,
    popped: Mutex<HashMap<String, usize>>,
}

fn queue(rng: &mut Rng) -> Vec<(&'static str, Part)> {
    let shared = Arc::new(Queue::default());
    let mut parts: Vec<(&'static str, Part)> = Vec::new();
    let producers = rng.between(1, 3);
    shared.producers.store(producers, Ordering::SeqCst);
    for i in 0..producers as u64 {
        let shared = shared.clone();
        parts.push(("queue producer", Box::new(move |stage| producer(stage, 40 + i, &shared))));
    }
    for i in 0..rng.between(1, 3) as u64 {
        let shared = shared.clone();
        parts.push(("queue consumer", Box::new(move |stage| consumer(stage, 50 + i, &shared))));
    }
    parts
}

fn producer(stage: &Stage, stream: u64, shared: &Queue) -> Result<usize, String> {
    let (mut conn, mut rng, mut sent) = (stage.conn(QUEUE_DB)?, stage.rng(stream), 0);
    let result = loop {
        if !stage.on() {
            break Ok(sent);
        }
        let n = if rng.percent(5) { 500 } else { rng.between(1, 3) };
        let items: Vec<String> = (sent..sent + n).map(|i| format!("{stream}:{i}")).collect();
        let push = [&words("RPUSH queue")[..], &items].concat();
        let told = match rng.below(4) {
            0 => multi(&mut conn, &[push]).map(|_| ()),
            1 => {
                let text = "redis.call('RPUSH', KEYS[1], unpack(ARGV))";
                let line = [&["EVAL".into(), text.into(), "1".into(), "queue".into()][..], &items].concat();
                say(&mut conn, &line).map(|_| ())
            }
            _ => say(&mut conn, &push).map(|_| ()),
        };
        if let Err(e) = told {
            break Err(e);
        }
        sent += n;
        shared.pushed.fetch_add(n, Ordering::SeqCst);
        // Consumers should wait at times.
        if rng.percent(30) {
            std::thread::sleep(std::time::Duration::from_millis(rng.below(8) as u64));
        }
    };
    shared.producers.fetch_sub(1, Ordering::SeqCst);
    result
}

fn consumer(stage: &Stage, stream: u64, shared: &Queue) -> Result<usize, String> {
    let (mut conn, mut rng, mut done) = (stage.conn(QUEUE_DB)?, stage.rng(stream), 0);
    let mut latest: HashMap<String, usize> = HashMap::new();
    let mine = format!("taken:{stream}");
    loop {
        let last = shared.producers.load(Ordering::SeqCst) == 0;
        let items = match rng.below(5) {
            0 => texts(tell(&mut conn, "LPOP queue")?),
            1 => texts(tell(&mut conn, "LPOP queue 3")?),
            2 => {
                tell(&mut conn, &format!("LMOVE queue {mine} LEFT RIGHT"))?;
                texts(tell(&mut conn, &format!("LPOP {mine}"))?)
            }
            3 => {
                let moved = texts(tell(&mut conn, &format!("BLMOVE queue {mine} LEFT RIGHT 0.05"))?);
                let taken = texts(tell(&mut conn, &format!("LPOP {mine}"))?);
                if moved != taken {
                    return Err(format!("BLMOVE answered {moved:?} and left {taken:?}"));
                }
                taken
            }
            _ => {
                let pair = texts(tell(&mut conn, "BLPOP queue 0.05")?);
                pair.into_iter().skip(1).collect()
            }
        };
        if items.is_empty() && last {
            return finished(shared, &mut conn, done);
        }
        let mut popped = shared.popped.lock().map_err(|e| e.to_string())?;
        for item in items {
            done += 1;
            let number = item.split_once(':').and_then(|(from, n)| Some((from.to_owned(), n.parse().ok()?)));
            let Some((from, n)) = number else { return Err(format!("an unknown item: {item}")) };
            match latest.insert(from, n) {
                Some(before) if before >= n => {
                    return Err(format!("item {item} came after number {before} of its producer"));
                }
                _ => {}
            }
            if popped.insert(item.clone(), done).is_some() {
                return Err(format!("item {item} was popped twice"));
            }
        }
    }
}

/// When the queue is empty and no producer is left, everything pushed was popped. Another consumer may still
/// hold the last.
fn finished(shared: &Queue, conn: &mut Conn, done: usize) -> Result<usize, String> {
    for _ in 0..12_000 {
        let popped = shared.popped.lock().map_err(|e| e.to_string())?.len();
        let pushed = shared.pushed.load(Ordering::SeqCst);
        if popped == pushed {
            return Ok(done);
        }
        if popped > pushed {
            return Err(format!("{popped} items were popped, {pushed} were pushed"));
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let left = tell(conn, "LLEN queue")?;
    Err(format!(
        "items were lost: {} pushed, {} popped, {left:?} left",
        shared.pushed.load(Ordering::SeqCst),
        shared.popped.lock().map_err(|e| e.to_string())?.len()
    ))
}

fn texts(frame: Frame) -> Vec<String> {
    match frame {
        Frame::Bulk(text) => vec![String::from_utf8_lossy(&text).into_owned()],
        Frame::Array(items) => items.into_iter().flat_map(texts).collect(),
        _ => Vec::new(),
    }
}

// ----- noise -----------------------------------------------------------------------------------------------

/// Long commands of all kinds on their own keys. The only check is that they are answered.
fn noise(stage: &Stage) -> Result<usize, String> {
    let (mut conn, mut rng, mut done) = (stage.conn(NOISE_DB)?, stage.rng(60), 0);
    for key in ["a", "b"] {
        let mut line = vec!["SADD".to_owned(), key.to_owned()];
        line.extend((0..20_000).map(|_| rng.below(60_000).to_string()));
        say(&mut conn, &line)?;
    }
    let lines = [
        "SDIFF a b",
        "SUNIONSTORE c a b",
        "SINTERSTORE d a b",
        "DEL c",
        "UNLINK d",
        "SORT a LIMIT 0 10",
        "ZUNIONSTORE z 2 a b",
        "ZDIFFSTORE y 2 z a",
        "COPY a e REPLACE",
        "KEYS *",
        "SMEMBERS c",
        "DBSIZE",
        "INFO",
        "CLIENT LIST",
        "FLUSHDB",
        "SADD a 1 2 3",
    ];
    while stage.on() {
        let mut line = *rng.pick(&lines);
        if line == "FLUSHDB" && !rng.percent(10) {
            line = "DBSIZE";
        }
        tell(&mut conn, line)?;
        done += 1;
        std::thread::sleep(std::time::Duration::from_millis(rng.below(4) as u64));
    }
    Ok(done)
}
