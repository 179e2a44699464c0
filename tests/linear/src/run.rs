//! One seed: a server, its clients for a while, a verdict.

use crate::groups::{self, Judged, Plan, Record, Shared};
use crate::invariants::{self, Stage};
use crate::wire;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use support::server::Server;

/// The result of a seed.
#[derive(Default)]
pub struct Outcome {
    /// Operations explained by an order, and replies checked against an invariant.
    pub operations: usize,
    pub invariants: usize,
    pub undecided: usize,
    pub failures: Vec<String>,
}

/// Starts a server and runs a seed on it.
pub fn seed(binary: &Path, plan: &Plan, time: Duration) -> Outcome {
    let mut outcome = Outcome::default();
    let mut server = match Server::start(binary) {
        Ok(server) => server,
        Err(e) => {
            outcome.failures.push(format!("the server: {e}"));
            return outcome;
        }
    };
    if let Err(e) = slow_down(server.addr, plan) {
        outcome.failures.push(format!("DEBUG POINT: {e}"));
        return outcome;
    }
    against(server.addr, plan, time, !plan.flush_all, &mut outcome);
    outcome.failures.extend(server.ended());
    outcome
}

fn slow_down(addr: SocketAddr, plan: &Plan) -> std::io::Result<()> {
    let mut conn = wire::open(addr)?;
    for (point, us) in &plan.slow {
        let reply = conn.call(&["DEBUG", "POINT", point, "DELAY", &us.to_string()])?;
        if !reply.is_ok() {
            return Err(std::io::Error::other(format!("{reply:?}")));
        }
    }
    Ok(())
}

/// Runs a plan on any server.
pub fn against(addr: SocketAddr, plan: &Plan, time: Duration, scenes: bool, outcome: &mut Outcome) {
    let stop = Arc::new(AtomicBool::new(false));
    let stage = Stage { addr, seed: plan.seed, stop: stop.clone() };
    let parts = match if scenes { invariants::cast(&stage) } else { Ok(Vec::new()) } {
        Ok(parts) => parts,
        Err(e) => return outcome.failures.push(e),
    };
    let counts: Vec<AtomicUsize> = (0..plan.groups).map(|_| AtomicUsize::new(0)).collect();
    let connections = AtomicU32::new(0);
    let shared = Shared {
        plan,
        addrs: &[addr],
        start: Instant::now(),
        stop: &stop,
        connections: &connections,
        counts: &counts,
    };
    let mut histories: Vec<Vec<Record>> = vec![Vec::new(); plan.groups];
    std::thread::scope(|scope| {
        let shared = &shared;
        let clients: Vec<_> =
            (0..plan.clients).map(|id| scope.spawn(move || groups::client(shared, id))).collect();
        let stage = &stage;
        let parts: Vec<_> = parts
            .into_iter()
            .map(|(name, part)| {
                let played = move || part(stage).inspect_err(|_| stage.stop.store(true, Ordering::Relaxed));
                (name, scope.spawn(played))
            })
            .collect();
        let is_idle = || !counts.is_empty() && counts.iter().all(|count| count.load(Ordering::Relaxed) == 0);
        while (shared.start.elapsed() < time || is_idle()) && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        stop.store(true, Ordering::Relaxed);
        for (id, client) in clients.into_iter().enumerate() {
            match client.join() {
                Ok(Ok(log)) => log.into_iter().for_each(|(group, record)| histories[group].push(record)),
                Ok(Err(e)) => outcome.failures.push(format!("client {id}: {e}")),
                Err(_) => outcome.failures.push(format!("client {id} panicked")),
            }
        }
        for (name, part) in parts {
            match part.join() {
                Ok(Ok(n)) => outcome.invariants += n,
                Ok(Err(e)) => outcome.failures.push(format!("{name}: {e}")),
                Err(_) => outcome.failures.push(format!("{name} panicked")),
            }
        }
    });
    // A client that failed leaves a hole in the history.
    if !outcome.failures.iter().any(|failure| failure.starts_with("client")) {
        for (group, history) in histories.into_iter().enumerate() {
            match groups::judge(plan, group, history) {
                Judged::Fine(n) => outcome.operations += n,
                Judged::Undecided => outcome.undecided += 1,
                Judged::Wrong(why) => outcome.failures.push(why),
            }
        }
    }
}
