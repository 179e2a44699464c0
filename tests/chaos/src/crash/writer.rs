//! Clients that write, and note what they sent and what was acknowledged; and one that reads.
//!
//! - C3: a unit is one command, a transaction or a script. It is sent with its bytes, and acknowledged with its
//!   last reply.
//! - C4: a promise is a matter of the era. It holds for a unit whose whole way fell into one era ([`Era`]).

use super::model::{ACCOUNT, Key, Op, Until};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use support::rng::Rng;
use support::wire::{Conn, Frame, encode};

/// Writers of a round. Each has two databases of its own beside database 0.
pub const WRITERS: usize = 5;
const ACCOUNTS: usize = 12;
/// Silence that counts as a fault.
const PATIENCE: Duration = Duration::from_secs(600);
/// A time far away.
const FAR_MS: i64 = 4_000_000_000_000;

/// The server's promise at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Promise {
    /// The log is not written, or has no base.
    Nothing,
    /// A unit that was acknowledged some time ago is there.
    InTime,
    /// A unit that was acknowledged is there.
    Always,
}

/// The context of all clients of a round.
pub struct Stage {
    pub addr: SocketAddr,
    pub began: Instant,
    pub stop: AtomicBool,
    tick: AtomicU64,
    era: AtomicU64,
    /// The highest counter that was read of each writer under [`Promise::Always`], and by which command.
    pub seen: Mutex<[(u64, &'static str); WRITERS]>,
}

/// A stretch of time with one promise.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Era(u64);

impl Era {
    fn promise(self) -> Promise {
        match self.0 % 4 {
            2 => Promise::Always,
            1 => Promise::InTime,
            _ => Promise::Nothing,
        }
    }
}

impl Stage {
    pub fn new(addr: SocketAddr, promise: Promise) -> Stage {
        let stage = Stage {
            addr,
            began: Instant::now(),
            stop: AtomicBool::new(false),
            tick: AtomicU64::new(1),
            era: AtomicU64::new(0),
            seen: Mutex::default(),
        };
        stage.begin(promise);
        stage
    }

    /// A new era begins.
    pub fn begin(&self, promise: Promise) {
        let before = self.era.load(SeqCst);
        self.era.store(before / 4 * 4 + 4 + promise as u64, SeqCst);
    }

    pub fn promise(&self) -> Promise {
        self.era().promise()
    }

    fn era(&self) -> Era {
        Era(self.era.load(SeqCst))
    }

    fn tick(&self) -> u64 {
        self.tick.fetch_add(1, SeqCst)
    }

    pub fn ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn on(&self) -> bool {
        !self.stop.load(SeqCst)
    }

    fn conn(&self) -> Result<Conn, String> {
        let mut conn = Conn::open(self.addr).map_err(|e| format!("a connection: {e}"))?;
        conn.set_patience(PATIENCE);
        Ok(conn)
    }
}

/// How a unit is sent.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    Plain,
    Multi,
    Script,
}

/// See C3.
#[derive(Clone, Debug)]
pub struct Unit {
    pub ops: Vec<Op>,
    pub way: Way,
    pub sent: u64,
    /// The tick and the time in milliseconds.
    pub acked: Option<(u64, u64)>,
    /// The promise that holds for it, once it is acknowledged.
    pub promise: Promise,
}

const RUN: &str = "local i = 1 while i <= #ARGV do local n = tonumber(ARGV[i]) \
    redis.call(unpack(ARGV, i + 1, i + n)) i = i + n + 1 end return 1";

fn words(line: &str) -> Vec<Vec<u8>> {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

impl Unit {
    fn new(ops: Vec<Op>, way: Way) -> Unit {
        Unit { ops, way, sent: 0, acked: None, promise: Promise::Nothing }
    }

    /// Appends its requests, and gives their number. `db`: the selected database.
    fn encode(&self, db: &mut usize, out: &mut Vec<u8>) -> usize {
        let mut n = 0;
        let mut put = |words: Vec<Vec<u8>>| {
            encode(&words, out);
            n += 1;
        };
        let mut select = |op: &Op, put: &mut dyn FnMut(Vec<Vec<u8>>)| {
            if let Some(wanted) = op.db().filter(|wanted| wanted != db) {
                put(words(&format!("SELECT {wanted}")));
                *db = wanted;
            }
        };
        match self.way {
            Way::Plain => {
                self.ops.iter().for_each(|op| {
                    select(op, &mut put);
                    put(op.words());
                });
            }
            Way::Multi => {
                put(words("MULTI"));
                self.ops.iter().for_each(|op| {
                    select(op, &mut put);
                    put(op.words());
                });
                put(words("EXEC"));
            }
            Way::Script => {
                self.ops.iter().take(1).for_each(|op| select(op, &mut put));
                put(self.script());
            }
        }
        n
    }

    fn script(&self) -> Vec<Vec<u8>> {
        let keys: Vec<&Key> = self.ops.iter().flat_map(Op::keys).collect();
        let mut call = vec![b"EVAL".to_vec(), RUN.into(), keys.len().to_string().into_bytes()];
        call.extend(keys.iter().map(|key| key.1.clone()));
        for op in &self.ops {
            let words = op.words();
            call.push(words.len().to_string().into_bytes());
            call.extend(words);
        }
        call
    }
}

/// The requests of one writer, from a seed.
pub struct Author {
    pub nr: usize,
    rng: Rng,
    units: u64,
    round: u64,
    /// Whether it loads libraries.
    loads: bool,
}

impl Author {
    pub fn new(seed: u64, round: u64, nr: usize, loads: bool) -> Author {
        Author { nr, rng: Rng::new(seed, round * 64 + nr as u64), units: 0, round, loads }
    }

    fn db(&mut self) -> usize {
        let [own, other] = dbs(self.nr);
        *self.rng.pick(&[0, 0, 0, own, own, other])
    }

    fn key(&mut self, db: usize, kind: &str) -> Key {
        (db, format!("c{}:{kind}:{}", self.nr, self.rng.below(8)).into_bytes())
    }

    fn value(&mut self) -> Vec<u8> {
        let len = *self.rng.pick(&[0, 3, 10, 10, 40, 40, 300, 2000]);
        let text = format!("{}.{} ", self.round, self.units);
        text.bytes().chain(std::iter::repeat_n(b'v', len)).collect()
    }

    fn some(&mut self, what: &str) -> Vec<u8> {
        format!("{what}{}", self.rng.below(40)).into_bytes()
    }

    /// A command on a text.
    fn on_text(&mut self, db: usize) -> Op {
        let key = self.key(db, "t");
        match self.rng.below(10) {
            0 => Op::Append(key, self.some("+")),
            1 => Op::Expire(key, FAR_MS + self.rng.below(1000) as i64 * 3_600_000),
            2 => Op::Persist(key),
            3 => Op::Delete(vec![key, self.key(db, "l"), self.key(db, "h")]),
            4 => {
                let s = 1_000_000 + self.rng.below(1000) as i64 * 3600;
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Op::Set(key, self.value(), Until::In(s, now.as_millis() as i64 + s * 1000))
            }
            5 => Op::Set(key, self.value(), Until::At(FAR_MS + self.rng.below(1000) as i64 * 3_600_000)),
            6 => Op::SetAll(vec![(key, self.value()), (self.key(db, "t"), self.value())]),
            7 => {
                let to = (db, format!("c{}:copy", self.nr).into_bytes());
                Op::Copy(key, to)
            }
            _ => Op::Set(key, self.value(), Until::Never),
        }
    }

    /// A command of any kind that a script may use too.
    fn op(&mut self, db: usize) -> Op {
        match self.rng.below(16) {
            0 | 1 => Op::Add(self.key(db, "n"), self.rng.integer(-9, 9)),
            2 | 3 => {
                let items = (0..self.rng.between(1, 4)).map(|_| self.value()).collect();
                Op::Push(self.key(db, "l"), items)
            }
            4 => Op::Pop(self.key(db, "l"), self.rng.between(1, 3)),
            5 => Op::KeepLast(self.key(db, "l"), 10),
            6 => Op::MoveItem(self.key(db, "l"), self.key(db, "l")),
            7 => {
                let fields = (0..self.rng.between(1, 4)).map(|_| (self.some("f"), self.value())).collect();
                Op::SetFields(self.key(db, "h"), fields)
            }
            8 => Op::DeleteField(self.key(db, "h"), self.some("f")),
            9 => {
                let members = (0..self.rng.between(1, 5)).map(|_| self.some("m")).collect();
                Op::AddMembers(self.key(db, "s"), members)
            }
            10 => Op::RemoveMember(self.key(db, "s"), self.some("m")),
            11 if self.rng.percent(20) => Op::PopAll(self.key(db, "s")),
            11 => Op::Union(self.key(db, "s"), self.key(db, "s"), self.key(db, "s")),
            12 => Op::Score(self.key(db, "z"), self.some("m"), self.rng.integer(-9, 9)),
            _ => self.on_text(db),
        }
    }

    /// Money from one account to another, and a mark that says so.
    fn transfer(&mut self) -> Vec<Op> {
        let from = self.rng.below(ACCOUNTS);
        let to = (from + self.rng.between(1, ACCOUNTS - 1)) % ACCOUNTS;
        let account = |nr: usize| (0, [ACCOUNT, nr.to_string().as_bytes()].concat());
        let n = self.rng.integer(1, 100);
        let mark = format!("{}.{}", self.round, self.units).into_bytes();
        let last = (0, format!("c{}:last", self.nr).into_bytes());
        vec![Op::Add(account(from), -n), Op::Set(last, mark, Until::Never), Op::Add(account(to), n)]
    }

    /// Many keys, all with one value.
    fn bulk(&mut self, n: usize) -> Vec<(Key, Vec<u8>)> {
        let (db, value) = (self.db(), format!("{}.{}", self.round, self.units).into_bytes());
        (0..n).map(|i| ((db, format!("c{}:b:{i}", self.nr).into_bytes()), value.clone())).collect()
    }

    fn whole(&mut self) -> Op {
        let [own, other] = dbs(self.nr);
        match self.rng.below(3) {
            0 => Op::Flush(own),
            2 if !self.loads => Op::Flush(own),
            1 => Op::Swap(own, other),
            _ => self.library(),
        }
    }

    fn library(&self) -> Op {
        let name = format!("lib{}", self.nr);
        let version = format!("{}.{}", self.round, self.units);
        let code = format!(
            "#!lua name={name}\nredis.register_function('{name}', function() return '{version}' end)"
        );
        Op::Library(name.into_bytes(), code.into_bytes())
    }

    pub fn unit(&mut self) -> Unit {
        self.units += 1;
        let db = self.db();
        let few = self.rng.between(2, 8);
        match self.rng.below(100) {
            0..10 => Unit::new(vec![Op::Add((0, tick(self.nr)), 1)], Way::Plain),
            10..16 => {
                let mut ops: Vec<Op> = (0..few).map(|_| self.op(db)).collect();
                let (fresh, to) = ((db, format!("c{}:fresh", self.nr).into_bytes()), self.key(db, "t"));
                ops.extend([Op::Set(fresh.clone(), self.value(), Until::Never), Op::Rename(fresh, to)]);
                Unit::new(ops, Way::Multi)
            }
            16..22 => {
                let ops = (0..few).map(|_| {
                    let db = self.db();
                    self.op(db)
                });
                let mut ops: Vec<Op> = ops.collect();
                if self.loads && self.rng.percent(25) {
                    ops.insert(self.rng.below(few + 1), self.library());
                }
                Unit::new(ops, Way::Multi)
            }
            22..30 => Unit::new((0..few).map(|_| self.op(db)).collect(), Way::Script),
            30..39 => Unit::new(self.transfer(), Way::Multi),
            39..48 => Unit::new(self.transfer(), Way::Script),
            48 => Unit::new(vec![self.whole()], Way::Plain),
            49 => self.large(),
            _ => Unit::new(vec![self.op(db)], Way::Plain),
        }
    }

    /// Units that are long work for the server.
    fn large(&mut self) -> Unit {
        let n = self.rng.between(50, 400);
        let set = |(key, value)| Op::Set(key, value, Until::Never);
        match self.rng.below(6) {
            0 => Unit::new(vec![Op::SetAll(self.bulk(5 * n))], Way::Plain),
            1 => Unit::new(self.bulk(n).into_iter().map(set).collect(), Way::Multi),
            2 => {
                let ops = self.bulk(n).into_iter().map(set).chain(self.transfer());
                Unit::new(ops.collect(), Way::Multi)
            }
            3 => {
                // A script is of one database.
                let mut ops = self.transfer();
                ops.extend(self.bulk(n).into_iter().map(|((_, name), value)| set(((0, name), value))));
                Unit::new(ops, Way::Script)
            }
            4 => {
                let key = self.key(0, "t");
                Unit::new(vec![Op::Set(key, vec![b'l'; 500 * n], Until::Never)], Way::Plain)
            }
            _ => {
                let keys = self.bulk(5 * n).into_iter().map(|(key, _)| key).collect();
                Unit::new(vec![Op::Delete(keys)], Way::Plain)
            }
        }
    }
}

/// The databases of a writer, beside database 0.
pub fn dbs(nr: usize) -> [usize; 2] {
    [1 + 2 * nr, 2 + 2 * nr]
}

/// The name of a writer's counter, which only grows.
pub fn tick(nr: usize) -> Vec<u8> {
    format!("c{nr}:tick").into_bytes()
}

/// Writes until the server is gone. Gives what was sent, and a fault.
pub fn write(stage: &Stage, mut author: Author) -> (Vec<Unit>, Option<String>) {
    let mut units = Vec::new();
    let fault = stage.conn().and_then(|mut conn| write_on(stage, &mut conn, &mut author, &mut units)).err();
    (units, fault.filter(|_| stage.on()))
}

fn write_on(
    stage: &Stage,
    conn: &mut Conn,
    author: &mut Author,
    units: &mut Vec<Unit>,
) -> Result<(), String> {
    let mut db = 0;
    while stage.on() {
        let n = match author.rng.below(20) {
            0 => 60,
            1..6 => author.rng.between(2, 16),
            _ => 1,
        };
        let (mut bytes, mut batch) = (Vec::new(), Vec::new());
        let (sent, era) = (stage.tick(), stage.era());
        for _ in 0..n {
            let unit = Unit { sent, ..author.unit() };
            let requests = unit.encode(&mut db, &mut bytes);
            batch.push((requests, unit));
        }
        let first = units.len();
        units.extend(batch.iter().map(|(_, unit)| unit.clone()));
        conn.send(&bytes);
        for (nr, (requests, _)) in batch.iter().enumerate() {
            if !is_answered(conn, *requests)? {
                return Ok(());
            }
            let promise = if stage.era() == era { era.promise() } else { Promise::Nothing };
            let unit = &mut units[first + nr];
            (unit.acked, unit.promise) = (Some((stage.tick(), stage.ms())), promise);
        }
        if author.rng.percent(3) && era.promise() == Promise::InTime {
            wait_for_log(stage, conn, era, units);
        }
    }
    Ok(())
}

/// Reads the replies of a unit. False: the server is gone. Errors: an error, as none is expected; silence.
fn is_answered(conn: &mut Conn, requests: usize) -> Result<bool, String> {
    for _ in 0..requests {
        match conn.read() {
            Frame::Gone("no reply") => return Err(format!("no reply for {} s", PATIENCE.as_secs())),
            Frame::Gone(_) => return Ok(false),
            reply @ Frame::Error(_) => return Err(format!("a write was answered {reply}")),
            Frame::Array(items) if items.iter().any(Frame::is_error) => {
                return Err(format!("an EXEC was answered {}", Frame::Array(items)));
            }
            _ => {}
        }
    }
    Ok(true)
}

/// WAITAOF: everything before it is promised then.
fn wait_for_log(stage: &Stage, conn: &mut Conn, era: Era, units: &mut [Unit]) {
    let reply = conn.call(&["WAITAOF", "1", "0", "5000"]);
    let is_synced = matches!(reply.items(), Some([Frame::Int(1), _]));
    if is_synced && stage.era() == era {
        units.iter_mut().filter(|unit| unit.acked.is_some()).for_each(|unit| unit.promise = Promise::Always);
    }
}

/// Reads the counters: what was read under `always` is there later.
pub fn read(stage: &Stage, mut rng: Rng) -> Option<String> {
    let mut conn = stage.conn().ok()?;
    while stage.on() {
        let nr = rng.below(WRITERS);
        let key = tick(nr);
        let era = stage.era();
        let way = *rng.pick(&["GET", "EVAL", "MGET"]);
        let reply = match way {
            "GET" => conn.call_bytes(&[b"GET".to_vec(), key]),
            "EVAL" => conn.call_bytes(&[
                b"EVAL".to_vec(),
                b"return redis.call('GET', KEYS[1])".to_vec(),
                b"1".to_vec(),
                key,
            ]),
            _ => match conn.call_bytes(&[b"MGET".to_vec(), b"c:none".to_vec(), key]) {
                Frame::Array(mut items) if items.len() == 2 => items.remove(1),
                other => other,
            },
        };
        match &reply {
            Frame::Gone("no reply") => {
                return Some("a read was not answered".to_owned()).filter(|_| stage.on());
            }
            Frame::Gone(_) => return None,
            Frame::Bulk(text) if era == stage.era() && era.promise() == Promise::Always => {
                let seen = std::str::from_utf8(text).ok().and_then(|n| n.parse().ok()).unwrap_or(0);
                let held = &mut stage.seen.lock().unwrap_or_else(PoisonError::into_inner)[nr];
                *held = (*held).max((seen, way));
            }
            Frame::Error(_) => return Some(format!("a read was answered {reply}")),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_writes_the_same() {
        let units = |seed| {
            let mut author = Author::new(seed, 3, 1, true);
            let (mut db, mut bytes) = (0, Vec::new());
            // Expiries from now follow the clock; the first of them is far behind these.
            (0..3).for_each(|_| {
                author.unit().encode(&mut db, &mut bytes);
            });
            bytes
        };
        assert_eq!(units(1), units(1));
        assert_ne!(units(1), units(2));
    }
}
