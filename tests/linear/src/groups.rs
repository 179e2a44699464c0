//! Clients that run random operations on small groups of keys, and record the results.
//!
//! ```text
//!  client 0 ──┐  one connection per group; a group is a database, so FLUSHDB, KEYS and DBSIZE are of one group
//!  client 1 ──┼──▶ server
//!  client n ──┘         histories, by group ──▶ checker
//! ```
//!
//! A client may also send an operation and hang up. Such an operation has no return, and may have happened or
//! not.

use crate::check::{self, Entry, Verdict};
use crate::model::{BALLAST, Combine, Dull, FILL, How, INTS, Key, LISTS, Op, Piece, Ret, SETS, State};
use crate::wire;
use dial::{Conn, Frame, put_request};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use support::rng::Rng;

/// The work of the clients of one run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub clients: usize,
    pub groups: usize,
    /// Most operations recorded per group.
    pub most: usize,
    pub dull: Dull,
    /// Only GET, SET, GETSET and INCR, for servers without other commands.
    pub only_registers: bool,
    pub long: bool,
    pub expiry: bool,
    pub flush_db: bool,
    pub flush_all: bool,
    pub swap_db: bool,
    /// Use KEYS.
    pub whole: bool,
    /// Use DBSIZE beside writes of many keys. Only on request, because it is a sum of counters that may show
    /// such a write half done.
    pub dbsize: bool,
    pub scripts: bool,
    pub blocking: bool,
    pub hang_up: bool,
    /// The lead goes from server to server, and clients follow it (`leaders`).
    pub follows: bool,
    /// Points at which the server is slowed, with the most microseconds (`DEBUG POINT`).
    pub slow: Vec<(&'static str, usize)>,
}

/// The random numbers of one seed, for one purpose. Neighbouring seeds are far apart.
pub fn stream(seed: u64, stream: u64) -> Rng {
    Rng::new(seed.wrapping_mul(0xA076_1D64_78BD_642F), stream)
}

impl Plan {
    /// The plan of a seed.
    pub fn of(seed: u64) -> Plan {
        let mut rng = stream(seed, 1);
        let expiry = rng.percent(30);
        Plan {
            seed,
            clients: rng.between(3, 7),
            groups: rng.between(1, 3),
            most: 4000,
            dull: Dull { fill_keys: *rng.pick(&[50, 700, 3000]), ballast: *rng.pick(&[150, 2500, 12_000]) },
            only_registers: false,
            long: rng.percent(80),
            expiry,
            flush_db: rng.percent(50),
            flush_all: rng.percent(15),
            swap_db: !expiry && rng.percent(25),
            // DBSIZE counts keys that have expired and are not yet removed.
            whole: !expiry && rng.percent(60),
            dbsize: false,
            scripts: rng.percent(75),
            blocking: rng.percent(60),
            hang_up: rng.percent(30),
            follows: false,
            slow: slow(&mut rng),
        }
    }

    /// A plan for servers whose lead moves. It has no scripts, as one that happens to write nothing runs on a
    /// replica, too; and none of what ends with a connection, as connections end.
    /// Long writes are left out: FAILOVER is given up if one has placed half of its changes (docs/replication.md).
    pub fn of_leaders(seed: u64) -> Plan {
        Plan {
            most: 20_000,
            long: false,
            expiry: false,
            flush_all: false,
            swap_db: false,
            scripts: false,
            blocking: false,
            follows: true,
            slow: Vec::new(),
            ..Plan::of(seed)
        }
    }

    /// A plan with registers alone.
    #[cfg(test)]
    pub fn registers(seed: u64) -> Plan {
        let dull = Dull { fill_keys: 1, ballast: 1 };
        Plan {
            clients: 4,
            groups: 1,
            dull,
            only_registers: true,
            long: false,
            expiry: false,
            flush_db: false,
            flush_all: false,
            swap_db: false,
            whole: false,
            dbsize: false,
            scripts: false,
            blocking: false,
            hang_up: false,
            slow: Vec::new(),
            ..Plan::of(seed)
        }
    }
}

/// Slow points. Half of all seeds widen the gaps in which races happen. Most spread the clients over all
/// event loops, which an idle server would not do.
fn slow(rng: &mut Rng) -> Vec<(&'static str, usize)> {
    let most = [
        ("job-start", 5000),
        ("job-end", 5000),
        ("script-start", 5000),
        ("script-step", 100),
        ("script-end", 5000),
        ("reclaim", 3000),
        ("commit-place", 3000),
        ("commit-fold", 3000),
        ("register", 3000),
        ("sweep", 3000),
        ("publish", 300),
        ("stream", 300),
        ("serve", 200),
        ("apart", 200),
        ("leave", 200),
        ("move", 1),
    ];
    let any = rng.percent(50);
    let mut slow = Vec::new();
    if rng.percent(75) {
        slow.push(("accept", 1));
    }
    for (point, us) in most {
        if any && rng.percent(40) {
            slow.push((point, rng.between(us / 10 + 1, us)));
        }
    }
    slow
}

pub type Record = Entry<Op, Ret>;

/// Shared by all clients of a run.
pub struct Shared<'a> {
    pub plan: &'a Plan,
    /// The server; more than one, if the lead moves between them.
    pub addrs: &'a [SocketAddr],
    pub start: Instant,
    pub stop: &'a AtomicBool,
    pub connections: &'a AtomicU32,
    /// Operations so far, per group.
    pub counts: &'a [AtomicUsize],
}

struct Client<'a> {
    shared: &'a Shared<'a>,
    id: usize,
    rng: Rng,
    conns: HashMap<usize, (u32, Conn)>,
    log: Vec<(usize, Record)>,
    /// The next value to write. No two clients write the same one.
    next: i64,
    /// The last number seen in a key, for compare and set.
    last: HashMap<(usize, Key), i64>,
    hung_up: usize,
    /// The server that leads, as far as it knows.
    at: usize,
}

/// Whether a reply says that nothing was done, since another server leads.
pub fn is_refused(frames: &[Frame]) -> bool {
    let refusals = ["READONLY", "REDIRECT", "EXECABORT"];
    frames.last().is_some_and(|last| refusals.iter().any(|refusal| last.is_error_with(refusal)))
}

/// Runs one client until its time is up. Returns the operations by group, in order.
pub fn client(shared: &Shared<'_>, id: usize) -> Result<Vec<(usize, Record)>, String> {
    let rng = stream(shared.plan.seed, 100 + id as u64);
    let mut client = Client {
        shared,
        id,
        rng,
        conns: HashMap::new(),
        log: Vec::new(),
        next: (id as i64 + 1) * 1_000_000,
        last: HashMap::new(),
        hung_up: 0,
        at: 0,
    };
    while !shared.stop.load(Ordering::Relaxed) {
        let group = client.rng.below(shared.plan.groups);
        if shared.counts[group].fetch_add(1, Ordering::Relaxed) >= shared.plan.most {
            break;
        }
        client.turn(group).inspect_err(|_| shared.stop.store(true, Ordering::Relaxed))?;
        if client.rng.percent(10) {
            std::thread::sleep(Duration::from_micros(client.rng.below(1500) as u64));
        }
    }
    Ok(client.log)
}

impl Client<'_> {
    fn now_ns(&self) -> u64 {
        self.shared.start.elapsed().as_nanos() as u64
    }

    fn turn(&mut self, group: usize) -> Result<(), String> {
        let plain = self.shared.plan.only_registers || self.shared.plan.follows;
        if !plain && self.rng.percent(6) {
            return self.watched(group);
        }
        let op = self.draw(group);
        let vanish = self.shared.plan.hang_up
            && self.hung_up < 3
            && self.rng.percent(1)
            && !matches!(op, Op::BLPop(..) | Op::FlushAll);
        if vanish { self.leave(group, op) } else { self.perform(group, op).map(|_| ()) }
    }

    /// WATCH, perhaps a look, EXEC.
    fn watched(&mut self, group: usize) -> Result<(), String> {
        let serial = self.conn(group).map_err(|e| e.to_string())?.0;
        let key = self.any_key();
        self.perform(group, Op::Watch(serial, key))?;
        if self.rng.percent(50) {
            let op = self.simple(group);
            self.perform(group, op)?;
        }
        if self.rng.percent(10) {
            return self.perform(group, Op::Unwatch(serial)).map(|_| ());
        }
        let ops = (0..self.rng.between(1, 3)).map(|_| self.simple(group)).collect();
        self.perform(group, Op::Exec(serial, ops)).map(|_| ())
    }

    fn conn(&mut self, group: usize) -> io::Result<&mut (u32, Conn)> {
        let shared = self.shared;
        match self.conns.entry(group) {
            std::collections::hash_map::Entry::Occupied(held) => Ok(held.into_mut()),
            std::collections::hash_map::Entry::Vacant(free) => {
                let serial = shared.connections.fetch_add(1, Ordering::Relaxed);
                let mut conn = wire::open_db(shared.addrs[self.at], group)?;
                if shared.plan.follows && !conn.call(&["CLIENT", "CAPA", "redirect"])?.is_ok() {
                    return Err(io::Error::other("CLIENT CAPA is refused"));
                }
                Ok(free.insert((serial, conn)))
            }
        }
    }

    fn perform(&mut self, group: usize, op: Op) -> Result<(), String> {
        let requests = self.shared.plan.dull.requests(&op);
        let failed = |e: io::Error| format!("{op:?}: {e}");
        let (invoke_ns, frames) = loop {
            self.conn(group).map_err(failed)?;
            let invoke_ns = self.now_ns();
            match self.conn(group).and_then(|(_, conn)| Ok(conn.pipeline(&requests)?)) {
                Ok(frames) if self.shared.plan.follows && is_refused(&frames) => self.follow(),
                Ok(frames) => break (invoke_ns, frames),
                Err(error) if self.shared.plan.follows && error.kind() != io::ErrorKind::TimedOut => {
                    self.follow();
                    self.unknown(group, op, invoke_ns);
                    return Ok(());
                }
                Err(error) => return Err(failed(error)),
            }
        };
        let return_ns = self.now_ns();
        // Nothing was done, so it is no part of the history.
        let Some(ret) = self.shared.plan.dull.result(&op, frames)? else { return Ok(()) };
        match (&op, &ret) {
            (Op::Get(key), Ret::Int(n)) => {
                self.last.insert((group, *key), *n);
            }
            (Op::Set(key, n) | Op::GetSet(key, n), _) => {
                self.last.insert((group, *key), *n);
            }
            _ => {}
        }
        let groups = if op == Op::FlushAll { 0..self.shared.plan.groups } else { group..group + 1 };
        for group in groups {
            let (op, ret) = (op.clone(), Some(ret.clone()));
            self.log.push((group, Entry { client: self.id, op, ret, invoke_ns, return_ns }));
        }
        Ok(())
    }

    /// Sends an operation and hangs up.
    fn leave(&mut self, group: usize, op: Op) -> Result<(), String> {
        let mut out = Vec::new();
        self.shared.plan.dull.requests(&op).iter().for_each(|request| put_request(&mut out, request));
        let failed = |e: io::Error| format!("{op:?}: {e}");
        self.conn(group).map_err(failed)?;
        let invoke_ns = self.now_ns();
        let Some((_, mut conn)) = self.conns.remove(&group) else { return Ok(()) };
        conn.send(&out).map_err(|e| failed(e.into()))?;
        drop(conn);
        self.hung_up += 1;
        self.unknown(group, op, invoke_ns);
        Ok(())
    }

    /// Notes an operation that may have been done or not. A read then leaves no trace.
    fn unknown(&mut self, group: usize, op: Op, invoke_ns: u64) {
        if !op.is_read() {
            let entry = Entry { client: self.id, op, ret: None, invoke_ns, return_ns: u64::MAX };
            self.log.push((group, entry));
        }
    }

    /// Asks the other server from now on.
    fn follow(&mut self) {
        self.at = (self.at + 1) % self.shared.addrs.len();
        self.conns.clear();
        std::thread::sleep(Duration::from_millis(1));
    }

    // ----- choosing operations -----------------------------------------------------------------------------

    fn fresh(&mut self) -> i64 {
        self.next += 1;
        self.next
    }

    fn one_of(&mut self, keys: std::ops::Range<Key>) -> Key {
        keys.start + self.rng.below(keys.len()) as Key
    }

    fn any_key(&mut self) -> Key {
        match self.rng.below(4) {
            0 | 1 => self.one_of(INTS),
            2 => self.one_of(SETS),
            _ => self.one_of(LISTS),
        }
    }

    /// Two different keys of one type.
    fn pair(&mut self, keys: std::ops::Range<Key>) -> (Key, Key) {
        let a = self.one_of(keys.clone());
        let b = self.one_of(keys.clone());
        if a == b { (a, keys.start + (a + 1 - keys.start) % keys.len() as Key) } else { (a, b) }
    }

    fn members(&mut self) -> u64 {
        let ballast = self.shared.plan.long && self.rng.percent(15);
        1 << self.rng.below(6) | 1 << self.rng.below(6) | if ballast { BALLAST } else { 0 }
    }

    fn piece(&mut self) -> Piece {
        if self.shared.plan.long && self.rng.percent(8) {
            return Piece::Run(0, self.shared.plan.dull.ballast as u32);
        }
        Piece::Live(self.fresh() as u32)
    }

    fn spin(&mut self) -> u32 {
        let long = [2_000, 20_000, 100_000, 400_000];
        if self.rng.percent(50) { self.rng.below(50) as u32 } else { *self.rng.pick(&long) }
    }

    fn draw(&mut self, group: usize) -> Op {
        let plan = self.shared.plan;
        if plan.only_registers {
            return self.register(group);
        }
        let kind = self.rng.below(100);
        match kind {
            0..8 if plan.scripts => match self.rng.below(4) {
                0 => Op::Bump(self.one_of(INTS), self.spin()),
                1 => self.cas(group),
                _ => Op::Atomic(How::Script(self.spin()), self.sequence(group, true)),
            },
            8..14 => Op::Atomic(How::Multi, self.sequence(group, false)),
            14..24 if plan.long => self.long(),
            24..28 if plan.blocking => {
                let keys = if self.rng.percent(50) { vec![self.one_of(LISTS)] } else { LISTS.collect() };
                Op::BLPop(keys, self.rng.between(1, 40) as u32)
            }
            28..32 if plan.expiry => match self.rng.below(4) {
                0 => Op::SetPx(self.one_of(INTS), self.fresh(), self.rng.between(1, 40) as u32),
                1 => Op::Persist(self.any_key()),
                _ => Op::Expire(self.any_key(), self.rng.between(1, 40) as u32),
            },
            32..35 if plan.whole && plan.dbsize && self.rng.percent(50) => Op::DbSize,
            32..35 if plan.whole => Op::Keys,
            36 if plan.swap_db && self.rng.percent(50) => Op::SwapDb(group),
            35 if plan.flush_db && self.rng.percent(50) => Op::FlushDb,
            35 if plan.flush_all && self.rng.percent(20) => Op::FlushAll,
            _ => self.simple(group),
        }
    }

    fn cas(&mut self, group: usize) -> Op {
        let key = self.one_of(INTS);
        let old = self.last.get(&(group, key)).copied().unwrap_or(0);
        Op::Cas(key, old, self.fresh())
    }

    fn sequence(&mut self, group: usize, in_script: bool) -> Vec<Op> {
        let n = self.rng.between(1, 4);
        let mut ops = Vec::new();
        while ops.len() < n {
            let op =
                if self.shared.plan.long && self.rng.percent(15) { self.long() } else { self.simple(group) };
            // An error would end the script, and thousands of words do not fit on Lua's stack.
            let unfit = match &op {
                Op::Rename(..) => true,
                Op::MGet(keys) | Op::Del(keys) => keys.contains(&FILL),
                Op::MSet(pairs) => pairs.iter().any(|(key, _)| *key == FILL),
                Op::FillByScript(_) => true,
                Op::SAdd(_, members) | Op::SRem(_, members) => members & BALLAST != 0,
                Op::RPush(_, Piece::Run(..)) | Op::LPush(_, Piece::Run(..)) => true,
                _ => false,
            };
            if !(in_script && unfit) {
                ops.push(op);
            }
        }
        ops
    }

    /// An operation that takes long if values are large.
    fn long(&mut self) -> Op {
        let how = *self.rng.pick(&[Combine::Union, Combine::Union, Combine::Diff, Combine::Inter]);
        let (a, b) = self.pair(SETS);
        let third = self.one_of(SETS);
        let (from, to) = self.pair(LISTS);
        match self.rng.below(14) {
            13 if !self.shared.plan.follows => Op::FillByScript(self.fresh()),
            0 => Op::SMembers(a),
            1 => Op::Combined(how, vec![a, b]),
            2 | 3 => Op::Store(how, third, vec![a, b]),
            4 => Op::LRange(from),
            5 | 6 => Op::SortStore(from, to),
            7 => Op::LPopMany(from, self.rng.between(1, self.shared.plan.dull.ballast)),
            8 => Op::MSet(vec![(FILL, self.fresh()), (self.one_of(INTS), self.fresh())]),
            9 => Op::MGet(vec![FILL, self.one_of(INTS)]),
            10 => Op::MGet(vec![self.one_of(INTS), FILL]),
            11 => Op::Del(vec![FILL]),
            _ => Op::SAdd(a, BALLAST | 1),
        }
    }

    fn register(&mut self, _: usize) -> Op {
        let key = self.one_of(INTS);
        match self.rng.below(4) {
            0 => Op::Set(key, self.fresh()),
            1 => Op::GetSet(key, self.fresh()),
            2 => Op::Incr(key, 1),
            _ => Op::Get(key),
        }
    }

    fn simple(&mut self, group: usize) -> Op {
        match self.rng.below(10) {
            0..3 => self.simple_int(group),
            3..6 => self.simple_set(),
            6..9 => self.simple_list(),
            _ => {
                let keys = [INTS, SETS, LISTS][self.rng.below(3)].clone();
                let (a, b) = self.pair(keys);
                match self.rng.below(5) {
                    0 => Op::Copy(a, b),
                    1 => Op::Rename(a, b),
                    2 => Op::Del(vec![a, self.any_key()]),
                    3 => Op::Del(vec![a]),
                    _ => Op::Exists(a),
                }
            }
        }
    }

    fn simple_int(&mut self, group: usize) -> Op {
        let (key, other) = self.pair(INTS);
        if self.shared.plan.long && self.rng.percent(25) {
            let fill_keys = self.shared.plan.dull.fill_keys;
            return Op::Peek((0..self.rng.between(1, 3)).map(|_| self.rng.below(fill_keys) as u32).collect());
        }
        match self.rng.below(10) {
            0 => Op::SetNx(key, self.fresh()),
            1 => Op::GetDel(key),
            2 => Op::MSet(vec![(key, self.fresh()), (other, self.fresh())]),
            3 => Op::MGet(vec![key, other]),
            4 => Op::Incr(key, -3),
            _ => self.register(group),
        }
    }

    fn simple_set(&mut self) -> Op {
        let (key, other) = self.pair(SETS);
        match self.rng.below(8) {
            0 | 1 => Op::SAdd(key, self.members()),
            2 => Op::SRem(key, self.members()),
            3 => Op::SMembers(key),
            4 => Op::SCard(key),
            5 => Op::SIsMember(key, self.rng.below(6) as u32),
            6 => Op::SMove(key, other, self.rng.below(6) as u32),
            _ => Op::Combined(Combine::Inter, vec![key, other]),
        }
    }

    fn simple_list(&mut self) -> Op {
        let (key, other) = self.pair(LISTS);
        match self.rng.below(10) {
            0..2 => Op::RPush(key, self.piece()),
            2 => Op::LPush(key, self.piece()),
            3..5 => Op::LPop(key),
            5 => Op::RPop(key),
            6 => Op::LRange(key),
            7 => Op::LLen(key),
            8 => Op::LMove(key, other),
            // Without it lists would only grow.
            _ => Op::LPopMany(key, 1 + self.rng.below(self.shared.plan.dull.ballast + 10)),
        }
    }
}

/// A group's verdict: the number of checked operations, or the contradiction.
pub enum Judged {
    Fine(usize),
    Undecided,
    Wrong(String),
}

/// Checks the history of one group.
pub fn judge(plan: &Plan, group: usize, mut history: Vec<Record>) -> Judged {
    history.sort_by_key(|entry| entry.invoke_ns);
    match check::check(&plan.dull, State::default(), &history) {
        Verdict::Linearizable => Judged::Fine(history.len()),
        Verdict::TooHard => Judged::Undecided,
        Verdict::Broken(_) => Judged::Wrong(explain(plan, group, history)),
    }
}

/// Removes every read that the contradiction does not need, and describes the rest.
fn explain(plan: &Plan, group: usize, mut history: Vec<Record>) -> String {
    let broken = |history: &[Record]| match check::check(&plan.dull, State::default(), history) {
        Verdict::Broken(broken) => Some(broken),
        _ => None,
    };
    let Some(mut found) = broken(&history) else { return String::new() };
    let culprit = history[found.at].clone();
    let end = if culprit.return_ns == u64::MAX { culprit.invoke_ns } else { culprit.return_ns };
    history.retain(|entry| entry.invoke_ns <= end);
    let began = Instant::now();
    for i in (0..history.len()).rev() {
        let old = history[i].invoke_ns < found.quiet_ns;
        if old || !history[i].op.is_read() || began.elapsed() > Duration::from_secs(20) {
            continue;
        }
        let mut fewer = history.clone();
        fewer.remove(i);
        if let Some(still) = broken(&fewer) {
            (history, found) = (fewer, still);
        }
    }
    let mut out = format!("group {group}: no order of these operations explains the replies\n");
    let _ = writeln!(out, "possible states before, at {} µs:", found.quiet_ns / 1000);
    for state in found.quiet_states.iter().take(5) {
        let _ = writeln!(out, "  {state:?}");
    }
    for (i, entry) in history.iter().enumerate() {
        if entry.ret.is_some() && entry.return_ns <= found.quiet_ns {
            continue;
        }
        let mark = if i == found.at { "?" } else { " " };
        let (from, to) = (entry.invoke_ns as f64 / 1e3, entry.return_ns as f64 / 1e3);
        let _ = match &entry.ret {
            Some(ret) => writeln!(
                out,
                "{mark} {from:>10.1} {to:>10.1} client {}  {:?} -> {ret:?}",
                entry.client, entry.op
            ),
            None => writeln!(out, "{mark} {from:>10.1}  (no reply) client {}  {:?}", entry.client, entry.op),
        };
    }
    out
}
