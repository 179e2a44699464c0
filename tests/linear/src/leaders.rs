//! One seed over a failover: three servers, the lead of which goes to and fro between two, and clients that
//! follow it.
//!
//! ```text
//!  clients ──▶ who leads: A ⇄ B (FAILOVER, again and again) ──▶ C follows A
//!  tellers ──▶ who leads             auditors ──▶ A, B and C, whoever leads
//! ```
//!
//! - F1: a client asks for the primary's data alone (CLIENT CAPA redirect), so what it hears is ordered
//!   with all the rest. A refusal means that nothing was done; a connection that ends, that it may have
//!   been.
//! - F2: an auditor takes any server's answer. That may be old, but it is a moment of the primary's
//!   history: the accounts always have the same sum.

use crate::groups::{self, Judged, Plan, Record, Shared, is_refused, stream};
use crate::invariants::{TRANSFER, words};
use crate::run::Outcome;
use crate::wire;
use dial::{Conn, Error, Frame};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use support::server::Server;

/// The database of the accounts.
const BANK_DB: usize = 9;
const ACCOUNTS: usize = 20;
const EACH: i64 = 1000;
/// Failovers of a run, at least.
const MOVES: usize = 3;
/// How long a step may take before the run has failed.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(2);

/// Starts the servers and runs a seed on them.
pub fn seed(binary: &Path, plan: &Plan, time: Duration) -> Outcome {
    let mut outcome = Outcome::default();
    let servers: Result<Vec<Server>, _> = (0..3).map(|_| Server::start(binary)).collect();
    match servers.map_err(|e| e.to_string()) {
        Ok(mut servers) => {
            let addrs: Vec<SocketAddr> = servers.iter().map(|server| server.addr).collect();
            match prepare(&addrs) {
                Ok(()) => run(&addrs, plan, time, &mut outcome),
                Err(why) => outcome.failures.push(why),
            }
            outcome.failures.extend(servers.iter_mut().filter_map(Server::ended));
            if !outcome.failures.is_empty() {
                let logs = servers.iter().map(|server| format!("{}:\n{}", server.addr, server.log_tail()));
                outcome.failures.extend(logs);
            }
        }
        Err(why) => outcome.failures.push(format!("the servers: {why}")),
    }
    outcome
}

/// Opens the accounts; B follows A, and C does.
fn prepare(addrs: &[SocketAddr]) -> Result<(), String> {
    let mut conn = wire::open_db(addrs[0], BANK_DB).map_err(|e| e.to_string())?;
    let mut open = words("MSET");
    (0..ACCOUNTS).for_each(|n| open.extend([format!("acct:{n}"), EACH.to_string()]));
    conn.call(&open).map_err(|e| e.to_string())?;
    for addr in &addrs[1..] {
        ask(*addr, &format!("REPLICAOF 127.0.0.1 {}", addrs[0].port()))?;
    }
    for addr in &addrs[1..] {
        until("a replica is linked", || Ok(info(*addr)?.contains("master_link_status:up")))?;
    }
    Ok(())
}

fn run(addrs: &[SocketAddr], plan: &Plan, time: Duration, outcome: &mut Outcome) {
    let (stop, connections) = (AtomicBool::new(false), AtomicU32::new(0));
    let counts: Vec<AtomicUsize> = (0..plan.groups).map(|_| AtomicUsize::new(0)).collect();
    let (counts, stop) = (&counts[..], &stop);
    let start = Instant::now();
    let shared = Shared { plan, addrs: &addrs[..2], start, stop, connections: &connections, counts };
    let mut histories: Vec<Vec<Record>> = vec![Vec::new(); plan.groups];
    std::thread::scope(|scope| {
        let shared = &shared;
        let clients: Vec<_> =
            (0..plan.clients).map(|id| scope.spawn(move || groups::client(shared, id))).collect();
        let mut parts = vec![scope.spawn(move || teller(shared))];
        parts.extend(addrs.iter().map(|addr| scope.spawn(move || auditor(*addr, stop))));
        let moved = move_about(&addrs[..2], plan.seed, time);
        stop.store(true, Ordering::Relaxed);
        outcome.failures.extend(moved.err());
        for (id, client) in clients.into_iter().enumerate() {
            match client.join() {
                Ok(Ok(log)) => log.into_iter().for_each(|(group, record)| histories[group].push(record)),
                Ok(Err(e)) => outcome.failures.push(format!("client {id}: {e}")),
                Err(_) => outcome.failures.push(format!("client {id} panicked")),
            }
        }
        for part in parts {
            match part.join() {
                Ok(Ok(n)) => outcome.invariants += n,
                Ok(Err(e)) => outcome.failures.push(e),
                Err(_) => outcome.failures.push("a part panicked".to_owned()),
            }
        }
    });
    if !outcome.failures.is_empty() {
        return;
    }
    for (group, history) in histories.into_iter().enumerate() {
        match groups::judge(plan, group, history) {
            Judged::Fine(n) => outcome.operations += n,
            Judged::Undecided => outcome.undecided += 1,
            Judged::Wrong(why) => outcome.failures.push(why),
        }
    }
}

/// Hands the lead to and fro until the time is over. Errors: a server refuses, or it takes too long.
fn move_about(addrs: &[SocketAddr], seed: u64, time: Duration) -> Result<(), String> {
    let (mut rng, start) = (stream(seed, 2), Instant::now());
    for n in 0.. {
        if n >= MOVES && start.elapsed() >= time {
            break;
        }
        std::thread::sleep(Duration::from_millis(rng.between(5, 120) as u64));
        let (from, to) = (addrs[n % 2], addrs[(n + 1) % 2]);
        let wish = format!("FAILOVER TO 127.0.0.1 {}", to.port());
        until("FAILOVER is taken", || Ok(ask(from, &wish)? == "OK"))?;
        until("the failover ends", || Ok(info(from)?.contains("master_failover_state:no-failover")))?;
        if !info(to)?.contains("role:master") {
            return Err(format!("FAILOVER {n} was given up"));
        }
        // A replica has to be linked for the next one.
        until("the old primary follows", || Ok(info(from)?.contains("master_link_status:up")))?;
    }
    Ok(())
}

/// Moves money at the server that leads.
fn teller(shared: &Shared<'_>) -> Result<usize, String> {
    let (mut rng, mut done, mut at) = (stream(shared.plan.seed, 3), 0, 0);
    let mut held: Option<Conn> = None;
    while !shared.stop.load(Ordering::Relaxed) {
        let (a, n) = (rng.below(ACCOUNTS), rng.between(1, 20).to_string());
        let b = (a + 1 + rng.below(ACCOUNTS - 1)) % ACCOUNTS;
        let (from, to) = (format!("acct:{a}"), format!("acct:{b}"));
        let requests = match rng.below(2) {
            0 => vec![
                words("MULTI"),
                words(&format!("DECRBY {from} {n}")),
                words(&format!("INCRBY {to} {n}")),
                words("EXEC"),
            ],
            _ => vec![vec!["EVAL".into(), TRANSFER.into(), "2".into(), from, to, n, "0".into()]],
        };
        let conn = match held.take() {
            Some(conn) => Ok(conn),
            None => wire::open_db(shared.addrs[at], BANK_DB),
        };
        let asked = conn.map_err(|e| e.to_string()).and_then(|mut conn| {
            let frames = conn.pipeline(&requests).map_err(|e| e.to_string())?;
            Ok((conn, frames))
        });
        match asked {
            Ok((conn, frames)) if !is_refused(&frames) => {
                if let Some(error) = frames.iter().find(|frame| frame.is_error()) {
                    return Err(format!("the teller: {error:?}"));
                }
                held = Some(conn);
                done += 1;
            }
            _ => {
                at = 1 - at;
                std::thread::sleep(LOOK);
            }
        }
    }
    Ok(done)
}

/// Sums all accounts, whoever leads (F2).
fn auditor(addr: SocketAddr, stop: &AtomicBool) -> Result<usize, String> {
    let mut read = words("MGET");
    (0..ACCOUNTS).for_each(|n| read.push(format!("acct:{n}")));
    let (first, second) =
        (read[..=ACCOUNTS / 2].to_vec(), [&words("MGET")[..], &read[ACCOUNTS / 2 + 1..]].concat());
    let script =
        "local sum = 0 for n = 0, ARGV[1] - 1 do sum = sum + redis.call('GET', 'acct:' .. n) end return sum";
    let by_script = vec![vec!["EVAL_RO".into(), script.into(), "0".into(), ACCOUNTS.to_string()]];
    let by_multi = vec![words("MULTI"), first, second, words("EXEC")];
    let (mut checked, mut conn) = (0, wire::open_db(addr, BANK_DB).map_err(|e| e.to_string())?);
    for requests in [by_multi, by_script].iter().cycle() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let mut frames = match conn.pipeline(requests) {
            Ok(frames) => frames,
            Err(Error::Late) => return Err(format!("{addr} does not answer")),
            Err(_) => {
                conn = wire::open_db(addr, BANK_DB).map_err(|e| e.to_string())?;
                continue;
            }
        };
        let sum = match frames.pop() {
            Some(Frame::Int(sum)) => sum,
            Some(Frame::Array(parts)) => {
                parts.iter().filter_map(Frame::elements).flatten().filter_map(Frame::number).sum()
            }
            other => return Err(format!("{addr}: no sum, but {other:?}")),
        };
        if sum != ACCOUNTS as i64 * EACH {
            return Err(format!("{addr}: the accounts hold {sum}, not {}", ACCOUNTS as i64 * EACH));
        }
        checked += 1;
    }
    Ok(checked)
}

fn ask(addr: SocketAddr, line: &str) -> Result<String, String> {
    let mut conn = wire::open(addr).map_err(|e| e.to_string())?;
    let frame = conn.call(&words(line)).map_err(|e| e.to_string())?;
    Ok(frame.lossy())
}

fn info(addr: SocketAddr) -> Result<String, String> {
    ask(addr, "INFO replication")
}

/// Waits until something holds. Errors: it never does.
fn until(what: &str, mut holds: impl FnMut() -> Result<bool, String>) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    while !holds()? {
        if Instant::now() >= deadline {
            return Err(format!("it never came: {what}"));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}
