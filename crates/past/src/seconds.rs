//! A second of the history: differences of counters, the second's waits, slow requests, and what happened to
//! the server.
//!
//! A second in which nobody comes is a gap; the figure `ms` says how long the one after it was.

use crate::facts::Facts;
use crate::parties;
use config::{Directive, Live};
use history::heavy::Counter;
use history::{Figure, Heavy, History, Mark, Names, OCTAVES, Record, Row, Rule, Second, Shape, Waited};
use observe::commandlog::Entry;
use observe::info::{self, Snapshot};
use observe::waits::{STALL_NS, WHATS, Wait};
use observe::{ClientInfo, Observe};
use parking_lot::Mutex;
use std::sync::Arc;

/// Records of one second.
const RECORDS: usize = 64;
/// Heavy clients of one second.
const HEAVY: usize = 16;

const CAUSES: [&str; WHATS.len()] = {
    let mut names = [""; WHATS.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = WHATS[at].1;
        at += 1;
    }
    names
};

/// Figures of a second: the name, and how seconds become one. New ones are added at the end.
const FIGURES: [Figure; 27] = [
    ("ms", Rule::Sum),
    ("ops", Rule::Sum),
    ("input_bytes", Rule::Sum),
    ("output_bytes", Rule::Sum),
    ("connections", Rule::Sum),
    ("refused", Rule::Sum),
    ("hits", Rule::Sum),
    ("misses", Rule::Sum),
    ("expired", Rule::Sum),
    ("evicted", Rule::Sum),
    ("errors", Rule::Sum),
    ("cpu_us", Rule::Sum),
    ("clients", Rule::Last),
    ("blocked", Rule::Last),
    ("keys", Rule::Last),
    ("memory", Rule::Last),
    ("memory_resident", Rule::Last),
    ("memory_clients", Rule::Last),
    ("memory_work", Rule::Last),
    ("memory_reclaim", Rule::Last),
    ("memory_overhead", Rule::Last),
    ("memory_history", Rule::Last),
    ("log_pending_bytes", Rule::Max),
    ("replicas", Rule::Last),
    ("replica_lag_ms", Rule::Max),
    ("replica_lag_bytes", Rule::Max),
    ("sources_down", Rule::Max),
];

/// The history's columns.
pub(crate) const NAMES: Names = Names {
    causes: &CAUSES,
    is_for_others: |cause| WHATS.get(cause).is_some_and(|(what, _)| what.is_for_others()),
    figures: &FIGURES,
};

/// The counters among the figures: those from `ops` to `cpu_us`.
const COUNTERS: usize = 11;

/// The state of the last second, with which the next is compared.
#[derive(Default)]
pub(crate) struct Collector {
    last: Option<Last>,
    /// Directives changed since the last second.
    changed: Arc<Mutex<Vec<&'static str>>>,
    pub facts: Facts,
    told: Told,
}

struct Last {
    mono_ns: u64,
    unix_s: u64,
    counters: [u64; COUNTERS],
    octaves: [u64; OCTAVES],
    busy_ns: Vec<u64>,
    state: State,
}

/// The numbers of the last wait and of the last slow request that are records.
#[derive(Default)]
struct Told {
    wait: u64,
    slow: Option<u64>,
}

/// The state whose changes are marked.
#[derive(Clone, PartialEq, Eq)]
struct State {
    saves: u64,
    save_failed: bool,
    rewrites: u64,
    follows: Option<(String, u16)>,
    replicas: Vec<(u64, String)>,
}

/// Notes which directives CONFIG SET changes.
pub(crate) struct Changes(Arc<Mutex<Vec<&'static str>>>);

impl config::Observer for Changes {
    fn changed(&self, directive: &Directive, _: &Live) {
        let mut changed = self.0.lock();
        if changed.len() < 16 {
            changed.push(directive.name);
        }
    }
}

impl Collector {
    /// An observer that notes changes of the configuration for the next second.
    pub fn changes(&self) -> Changes {
        Changes(self.changed.clone())
    }

    /// Whether a new second has begun since the last call of [`Collector::second`].
    pub fn wants(&self, now_ms: u64) -> bool {
        self.last.as_ref().is_none_or(|last| last.unix_s != now_ms / 1000)
    }

    /// The second since the last call. None: it is the first, with nothing to compare.
    pub fn second(
        &mut self,
        observe: &Observe,
        history: &History,
        now_ms: u64,
        s: &Snapshot,
        sources: Vec<String>,
    ) -> Option<Second> {
        let down = sources.len();
        self.facts = Facts::of(s, sources);
        let registry = &observe.stats.registry;
        let now = Last {
            mono_ns: stdx::clock::mono_ns(),
            unix_s: now_ms / 1000,
            counters: counters(s),
            octaves: registry.octaves(),
            busy_ns: registry.busy_ns(),
            state: State::of(s),
        };
        let waits = observe.waits.take_second();
        let heavy = std::mem::take(&mut *observe.heavy.lock()).take();
        let Some(last) = self.last.replace(now) else {
            let text = format!("evenkeel {} started", info::EVENKEEL_VERSION);
            history.mark_later(Mark::new(now_ms, "start", &text));
            return None;
        };
        let now = self.last.as_ref()?;
        let changed = std::mem::take(&mut *self.changed.lock());
        let mut row = Row::new(Shape::new(&NAMES, observe.waits.pulses.len()));
        now.fill(&last, &mut row);
        gauges(s, history.bytes(), down, &mut row);
        for (cause, sum) in waits.by_what.iter().enumerate() {
            row.set_waited(
                cause,
                Waited { times: sum.waits, us: sum.ns / 1000, longest_us: sum.max_ns / 1000 },
            );
        }
        let others = waits.pairs.others;
        let mut flows = parties::edges(waits.pairs.into_sums());
        flows.others = (others.waits, others.ns / 1000, others.max_ns / 1000);
        let mut marks = now.state.marks(&last.state, s, now_ms);
        marks.extend(changed.into_iter().map(|name| changed_mark(&observe.config, name, now_ms)));
        Some(Second {
            unix_s: now.unix_s,
            row,
            flows,
            heavy: heaviest(heavy),
            records: records(observe, &mut self.told),
            marks,
        })
    }
}

impl Last {
    /// Fills in what was counted since the last second. A counter that was reset counts from 0.
    fn fill(&self, last: &Last, row: &mut Row) {
        let since = |now: u64, then: u64| now.checked_sub(then).unwrap_or(now);
        let ns = self.mono_ns.saturating_sub(last.mono_ns).max(1);
        row.set_figure(0, ns / 1_000_000);
        for (at, (now, then)) in self.counters.iter().zip(last.counters).enumerate() {
            row.set_figure(1 + at, since(*now, then));
        }
        for (cell, (now, then)) in row.heat_mut().iter_mut().zip(self.octaves.iter().zip(last.octaves)) {
            *cell = since(*now, then);
        }
        let before = last.busy_ns.iter().chain(std::iter::repeat(&0));
        for (cell, (now, then)) in row.busy_mut().iter_mut().zip(self.busy_ns.iter().zip(before)) {
            *cell = (since(*now, *then).saturating_mul(1000) / ns).min(1000);
        }
    }
}

fn counters(s: &Snapshot) -> [u64; COUNTERS] {
    let stats = &s.stats;
    [
        stats.commands,
        stats.input_bytes,
        stats.output_bytes,
        stats.connections,
        stats.rejected_connections,
        stats.keyspace_hits,
        stats.keyspace_misses,
        stats.expired_keys,
        stats.evicted_keys,
        stats.error_replies,
        ((s.cpu.user_s + s.cpu.system_s) * 1e6) as u64,
    ]
}

fn gauges(s: &Snapshot, history_bytes: usize, sources: usize, row: &mut Row) {
    let replicas = &s.replication.replicas;
    let worst = |of: fn(&info::Replica) -> u64| replicas.iter().map(of).max().unwrap_or(0);
    let figures = [
        s.clients.connected,
        s.clients.blocked,
        s.databases.iter().map(|db| db.keys).sum(),
        s.memory.used,
        s.memory.resident,
        s.memory.clients,
        s.memory.work,
        s.memory.reclaim_pending,
        s.memory.overhead,
        history_bytes as u64,
        s.persistence.aof.buffer_bytes,
        replicas.len() as u64,
        worst(|replica| replica.lag_ms),
        worst(|replica| replica.lag_bytes),
        sources as u64,
    ];
    figures.iter().enumerate().for_each(|(at, figure)| row.set_figure(1 + COUNTERS + at, *figure));
}

/// The clients with the most time of a second.
fn heaviest(mut counted: Vec<Counter<ClientInfo>>) -> Vec<Heavy> {
    counted.sort_by_key(|one| std::cmp::Reverse(one.ns));
    counted.truncate(HEAVY);
    let heavy = |one: Counter<ClientInfo>| Heavy {
        client: parties::of_client(&one.what, one.command, &one.words),
        us: one.ns / 1000,
        error_us: one.error_ns / 1000,
        pieces: one.pieces,
    };
    counted.into_iter().map(heavy).collect()
}

/// The waits of a millisecond or more and the slow requests since the last second, the longest.
fn records(observe: &Observe, last: &mut Told) -> Vec<Record> {
    let mut waits = observe.waits.recent(usize::MAX, |wait| wait.id > last.wait && wait.ns >= STALL_NS);
    last.wait = waits.first().map_or(last.wait, |newest| newest.id);
    waits.sort_by_key(|wait| std::cmp::Reverse(wait.ns));
    waits.truncate(RECORDS);
    let mut slow = observe.stats.logs.slow.newest(RECORDS);
    slow.retain(|entry| last.slow.is_none_or(|last| entry.id > last));
    last.slow = slow.first().map_or(last.slow, |newest| Some(newest.id));
    waits.iter().map(of_wait).chain(slow.iter().map(|entry| of_slow(entry))).collect()
}

fn of_wait(wait: &Wait) -> Record {
    // The client's own record of the request has its phases.
    let requests = wait.client.history.lock();
    let is_its = |behind: &Option<_>| match (behind, &wait.culprit) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        _ => false,
    };
    let its = requests
        .iter()
        .rev()
        .find(|one| one.command == wait.command && (one.unix_ms == wait.unix_ms || is_its(&one.behind)));
    let phases = its.map(|request| request.phases()).unwrap_or_default();
    drop(requests);
    Record {
        id: 0,
        time_ms: wait.unix_ms,
        waiter: parties::of_client(&wait.client, wait.command, &[]),
        cause: Some(wait.what as u8),
        us: wait.ns / 1000,
        behind: Some(parties::of_culprit(wait.what, wait.culprit.as_deref())),
        phases: phases.into_iter().map(|(name, us)| (name.into(), us)).collect(),
        frames: Vec::new(),
    }
}

fn of_slow(entry: &Entry) -> Record {
    let name = match entry.client_name.is_empty() {
        true => entry.client_address.rsplit_once(':').map_or("", |(host, _)| host).into(),
        false => entry.client_name.clone(),
    };
    let waiter = history::Party {
        kind: history::Kind::Client,
        name,
        client: entry.client,
        address: entry.client_address.clone().into_bytes(),
        user: Vec::new(),
        command: entry.args.first().map(|word| word.to_ascii_lowercase()).unwrap_or_default(),
        words: entry.args.clone(),
    };
    Record {
        id: 0,
        time_ms: entry.unix_s * 1000,
        waiter,
        cause: None,
        us: entry.amount,
        behind: entry.culprit.as_ref().map(|culprit| parties::of_culprit(culprit.what, Some(culprit))),
        phases: entry.phases.iter().map(|(name, us)| ((*name).into(), *us)).collect(),
        frames: Vec::new(),
    }
}

impl State {
    fn of(s: &Snapshot) -> State {
        let replicas = s.replication.replicas.iter();
        State {
            saves: s.persistence.saves,
            save_failed: s.persistence.last_failed,
            rewrites: s.persistence.aof.rewrites,
            follows: s.following.as_ref().map(|following| (following.host.clone(), following.port)),
            replicas: replicas.map(|one| (one.client, format!("{}:{}", one.address, one.port))).collect(),
        }
    }

    /// The changes since the state before.
    fn marks(&self, before: &State, s: &Snapshot, now_ms: u64) -> Vec<Mark> {
        let mut marks = Vec::new();
        let mut mark = |kind: &str, text: String| marks.push(Mark::new(now_ms, kind, &text));
        if self.saves > before.saves {
            mark("save", format!("snapshot saved in {} s", s.persistence.last_s.unwrap_or(0)));
        }
        if self.save_failed && !before.save_failed {
            mark("save-failed", "a snapshot failed".into());
        }
        if self.rewrites > before.rewrites {
            mark("rewrite", "log rewritten".into());
        }
        if self.follows != before.follows {
            match &self.follows {
                Some((host, port)) => mark("role", format!("follows {host}:{port}")),
                None => mark("role", "leads".into()),
            }
        }
        for (_, address) in self.replicas.iter().filter(|one| !before.replicas.contains(one)) {
            mark("replica", format!("replica {address} joined"));
        }
        for (_, address) in before.replicas.iter().filter(|one| !self.replicas.contains(one)) {
            mark("replica", format!("replica {address} left"));
        }
        marks
    }
}

/// The mark of a changed directive, without a secret's value.
fn changed_mark(config: &config::Config, name: &'static str, now_ms: u64) -> Mark {
    let is_secret = config::may_be_secret(name.as_bytes());
    let value = config.get([name.as_bytes()]).into_iter().next().map(|(_, value)| value);
    let value = value.filter(|_| !is_secret).unwrap_or_default();
    Mark::new(now_ms, "config", format!("CONFIG SET {name} {}", value.escape_ascii()).trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Past;
    use observe::TurnLog;
    use observe::info::{Database, Replica};
    use observe::waits::{Culprit, What};

    fn past() -> (Arc<Observe>, Past) {
        let observe = Arc::new(Observe::new(Arc::default(), 1));
        (observe.clone(), Past::new(observe))
    }

    fn client(id: u64) -> Arc<ClientInfo> {
        Arc::new(ClientInfo::new(id, 0, format!("10.0.0.{id}:1"), String::new(), 3, false, 0))
    }

    fn snapshot(commands: u64) -> Snapshot {
        let mut s = Snapshot::default();
        s.stats.commands = commands;
        s.memory.used = 5000;
        s.databases =
            vec![Database { keys: 3, ..Database::default() }, Database { keys: 4, ..Database::default() }];
        s
    }

    fn of(row: &Row, name: &str) -> u64 {
        row.figure(FIGURES.iter().position(|(known, _)| *known == name).unwrap())
    }

    #[test]
    fn every_figure_has_its_place() {
        assert_eq!(FIGURES[COUNTERS].0, "cpu_us");
        let mut row = Row::new(Shape::new(&NAMES, 1));
        let mut s = snapshot(1);
        s.replication.replicas = vec![Replica { lag_ms: 9, ..Replica::default() }];
        gauges(&s, 77, 2, &mut row);
        assert_eq!((of(&row, "keys"), of(&row, "memory"), of(&row, "memory_history")), (7, 5000, 77));
        assert_eq!((of(&row, "replica_lag_ms"), of(&row, "sources_down")), (9, 2));
    }

    #[test]
    fn a_second_has_what_was_counted_and_who_waited_in_it() {
        let (observe, past) = past();
        let mut log = TurnLog::new(0, &observe);
        past.tick(5000, || (snapshot(100), Vec::new()));
        past.tick(5999, || panic!("the second goes on"));
        log.recorder.latency(3_000);
        log.recorder.turn(1_000_000);
        let culprit = Arc::new(Culprit::of((What::Loop, 9_000_000), Some(client(7)), "eval"));
        let wait = |ns| Wait {
            id: 0,
            unix_ms: 5500,
            client: client(1),
            command: "get",
            what: What::Loop,
            ns,
            culprit: Some(culprit.clone()),
        };
        observe.waits.add(0, wait(2_000_000), true);
        observe.waits.add(0, wait(300_000), true);
        observe.worked(&client(7), "eval", &[b"EVAL".to_vec()], 9_000_000);
        log.lap();
        past.tick(6000, || (snapshot(142), Vec::new()));
        let [second] = &past.history.latest(9)[..] else { panic!() };
        assert_eq!((of(&second.row, "ops"), second.row.heat()[2]), (42, 1));
        assert_eq!(second.row.waited(0), Waited { times: 2, us: 2300, longest_us: 2000 });
        assert_eq!(
            (second.flows.edges[0].waits, &second.flows.edges[0].culprit.name[..]),
            (2, &b"10.0.0.7"[..])
        );
        assert_eq!((second.records.len(), second.records[0].us), (1, 2000));
        assert_eq!((second.heavy[0].us, &second.heavy[0].client.command[..]), (9000, &b"eval"[..]));
        // Counters that were reset count from 0, and nothing is told twice.
        past.tick(7000, || (snapshot(8), Vec::new()));
        let latest = past.history.latest(1);
        assert_eq!(
            (of(&latest[0].row, "ops"), latest[0].records.len(), latest[0].flows.edges.len()),
            (8, 0, 0)
        );
    }

    #[test]
    fn what_happened_to_the_server_is_marked() {
        let (observe, past) = past();
        past.tick(5000, || (snapshot(0), Vec::new()));
        observe.config.set(&[b"maxmemory", b"123mb", b"requirepass", b"hidden"], true).unwrap();
        let mut s = snapshot(0);
        s.persistence.saves = 1;
        s.persistence.last_s = Some(3);
        s.following = Some(info::Following { host: "h".into(), port: 7, ..Default::default() });
        s.replication.replicas =
            vec![Replica { client: 5, address: "r".into(), port: 8, ..Replica::default() }];
        past.tick(6000, || (s, Vec::new()));
        past.tick(7000, || (snapshot(0), Vec::new()));
        let marks = past.history.table(0, 10_000, 10).marks;
        let texts: Vec<String> =
            marks.iter().map(|mark| String::from_utf8_lossy(&mark.text).into_owned()).collect();
        assert!(texts[0].contains("started"), "{texts:?}");
        let expected = ["snapshot saved in 3 s", "follows h:7", "replica r:8 joined"];
        assert_eq!(texts[1..4], expected);
        assert!(texts.contains(&"CONFIG SET maxmemory 128974848".to_owned()), "{texts:?}");
        assert!(texts.contains(&"CONFIG SET requirepass".to_owned()), "{texts:?}");
        assert!(texts.ends_with(&["leads".to_owned(), "replica r:8 left".to_owned()]), "{texts:?}");
    }
}
