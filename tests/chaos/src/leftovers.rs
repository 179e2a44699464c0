//! The resources that a server must release once its clients are gone: places, waiters, channels, snapshots,
//! descriptors, memory.
//!
//! Everything is read from INFO and `/proc`, repeatedly, until it is right or a time has passed. An end takes
//! a moment, and no fixed sleep knows how long.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use support::server::Server;
use support::wire::{Conn, Frame};

/// Fields of INFO that are 0 without clients at work.
const NOTHING: &[&str] = &[
    "blocked_clients",
    "pubsub_clients",
    "watching_clients",
    "clients_in_timeout_table",
    "total_watched_keys",
    "total_blocking_keys",
    "pubsub_channels",
    "pubsub_patterns",
    "pubsubshard_channels",
    "worker_jobs_waiting",
    "worker_jobs_running",
    "scripts_waiting",
    "scripts_running",
    "turns_taken",
    "turns_waiting",
    "snapshots_open",
    "snapshots_waiting",
    "writes_in_line",
    "writes_paused",
    "snapshot_retained_bytes",
    "stream_retained_bytes",
    "lscan_lists_kept",
    "reclaim_pending_bytes",
    "messages_under_way",
    "used_memory_work",
    "number_of_cached_scripts",
    "number_of_functions",
    "number_of_libraries",
];

/// The state of a server.
#[derive(Clone, Debug)]
pub struct State {
    pub info: BTreeMap<String, String>,
    pub descriptors: usize,
    pub resident: u64,
}

impl State {
    pub fn of(server: &Server, control: &mut Conn) -> Result<State, String> {
        let reply = control.call(&["INFO", "everything"]);
        let Some(text) = reply.text() else { return Err(format!("INFO was answered {reply}")) };
        let text = String::from_utf8_lossy(text);
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        let info = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Ok(State { info, descriptors: descriptors(server), resident: server.resident_bytes() })
    }

    pub fn number(&self, name: &str) -> Option<u64> {
        self.info.get(name)?.parse().ok()
    }

    /// Whether there are keys, scripts or functions, or a pause.
    fn has_data(&self) -> bool {
        let is_database = |name: &String| name.strip_prefix("db").is_some_and(|nr| nr.parse::<u32>().is_ok());
        let counts =
            ["number_of_cached_scripts", "number_of_functions", "number_of_libraries", "writes_paused"];
        self.info.keys().any(is_database) || counts.into_iter().any(|name| self.number(name) != Some(0))
    }
}

/// The growth of memory allowed at the end: in use, and in RAM.
#[derive(Clone, Copy)]
pub struct Slack {
    pub used_bytes: u64,
    pub resident_bytes: u64,
}

/// Empties the server and waits until it is as `before`, for `patience` at most. Returns the leftovers, in
/// words; empty: all is well.
pub fn look(
    server: &Server,
    control: &mut Conn,
    before: &State,
    slack: Slack,
    patience: Duration,
) -> (State, Vec<String>) {
    let (began, mut is_full) = (Instant::now(), true);
    loop {
        // Complete requests of gone clients are still run, and write. A server without data is left alone: what
        // FLUSHALL drops is freed a moment later, on a busy machine not before the next look.
        let mut found = if is_full { empty(control) } else { Vec::new() };
        let state = match State::of(server, control) {
            Ok(state) => state,
            Err(why) => return (before.clone(), vec![why]),
        };
        is_full = state.has_data();
        found.extend(compare(before, &state, slack));
        if found.is_empty() || began.elapsed() > patience {
            return (state, found);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Removes the data that clients may leave behind. Returns refusals, in words.
fn empty(control: &mut Conn) -> Vec<String> {
    let mut refused = Vec::new();
    for line in [
        &["CLIENT", "UNPAUSE"][..],
        &["FLUSHALL"],
        &["FUNCTION", "FLUSH"],
        &["SCRIPT", "FLUSH"],
        &["MEMORY", "PURGE"],
        // The snapshots of LSCAN STABLE stay for an hour, by their own limit.
        &["CONFIG", "SET", "lscan-max-age", "1"],
    ] {
        let reply = control.call(line);
        if !matches!(reply, Frame::Simple(_)) {
            refused.push(format!("{} was answered {reply}", line.join(" ")));
        }
    }
    refused
}

fn compare(before: &State, state: &State, slack: Slack) -> Vec<String> {
    let mut found = Vec::new();
    for name in NOTHING {
        match state.info.get(*name).map(String::as_str) {
            Some("0") => {}
            Some(value) => found.push(format!("{name} is {value}")),
            None => found.push(format!("INFO has no {name}")),
        }
    }
    let mut more = |name: &str, before: u64, now: u64, slack: u64| {
        if now > before + slack {
            found.push(format!("{name} is {now}, it was {before}"));
        }
    };
    let number = |state: &State, name: &str| state.number(name).unwrap_or(0);
    let both = |name: &str| (number(before, name), number(state, name));
    let (was, is) = both("connected_clients");
    more("connected_clients", was, is, 0);
    let (was, is) = both("used_memory");
    more("used_memory", was, is, slack.used_bytes);
    more("resident memory", before.resident, state.resident, slack.resident_bytes);
    more("open descriptors", before.descriptors as u64, state.descriptors as u64, 0);
    if found.iter().any(|line| line.contains("memory is")) {
        let parts = PARTS.iter().map(|name| format!("{name} {}", number(state, name)));
        found.push(format!("its parts: {}", parts.collect::<Vec<_>>().join(", ")));
    }
    if let Some((name, value)) = state.info.iter().find(|(name, _)| is_database(name)) {
        found.push(format!("keys after FLUSHALL: {name}:{value}"));
    }
    found
}

/// Parts of memory in use, to name the part that is left.
const PARTS: &[&str] = &[
    "used_memory_overhead",
    "used_memory_lua",
    "used_memory_vm_functions",
    "used_memory_scripts",
    "mem_clients_normal",
    "allocator_active",
    "allocator_resident",
];

/// Descriptors, without those that come when first needed and stay: of the demonstration's database, the
/// kernel's records of context switches, and the lock of the folder, which a setting asks for.
fn descriptors(server: &Server) -> usize {
    let stays = |name: &String| {
        name.contains("perf_event") || name.contains("products.db") || name.contains("evenkeel.lock")
    };
    server.descriptors().iter().filter(|name| !stays(name)).count()
}

/// Whether a name is `db0` and so on.
fn is_database(name: &str) -> bool {
    name.strip_prefix("db").is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
}
