//! Finds out what a slow request waited for, and whose work that was.
//!
//! ```text
//! loop 0: Turn ──long pieces of work──► Culprit ◄── Wait: client, cause, time ──┐     EVENKEEL WAITS,
//! loop 1: Turn ─────────────────────────────────────────────────────────────────┼─► Waits ─► WHY, SLOWLOG
//!    └── Pulse ◄──samples── watchdog ──every turn over 1 ms: has it a culprit?──┘
//!                             └── neighbours: the threads that had the processor, if the system took it
//! ```
//!
//! A loop keeps the longest pieces of work of its current turn that took a quantum or more, each with its
//! client ([`turn::Turn`]). A client that is served late in such a turn, or at the begin of the next, waited
//! behind them: that makes a [`Wait`]. The loop cannot know when the client's bytes came. It counts from the
//! begin of the turn in which they came, so the time given is an upper bound.
//!
//! - H1: a request that did not wait pays two stores and two comparisons; a turn pays one reading of the
//!   clock. All else happens only when something was slow.
//! - H2: everything is bounded: [`RECENT`] waits and stalls per loop, [`CULPRITS_MAX`] culprits in the sums,
//!   [`HISTORY`] requests per client. [`PER_TURN`] waits of one turn are kept one by one; all are counted.
//! - H3: a culprit keeps a client's record; the client may be long gone.
//! - H4: "the operating system" and "unknown" are counted like any other cause, so that their share can be
//!   seen.
//!
//! Cost: noting a wait takes some 100 ns under locks that loops hold for that long only.

pub mod disk;
pub mod neighbours;
pub mod report;
pub mod request;
pub mod turn;
pub mod watchdog;

pub use neighbours::Neighbour;
pub use request::{Ahead, Away, Queued, Request, Spent, ended, waits_on};
pub use turn::{HeldUp, Lacking, Part, Pulse, Turn};
pub use turn::{doer, while_taking_over, works_for};

use crate::client::ClientInfo;
use command::places;
use history::pairs::{Pairs, Total};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// The length from which a piece of work is kept: a loop's quantum.
pub const BIG_NS: u64 = 100_000;
/// The length from which a wait for a loop is noted, and a request is slow.
pub const SLOW_NS: u64 = 250_000;
/// The length from which a turn is a stall.
pub const STALL_NS: u64 = 1_000_000;
/// Waits and stalls kept per loop.
const RECENT: usize = 256;
/// Culprits with sums of their own; further ones share a sum per cause.
const CULPRITS_MAX: usize = 512;
/// Slow requests kept per client.
pub const HISTORY: usize = 4;
/// Waits of one turn that are kept one by one.
const PER_TURN: u32 = 64;

/// The cause of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum What {
    /// The event loop was busy with the culprit.
    Loop,
    /// The event loop had many short requests of many clients.
    Crowd,
    /// The culprit held a lock.
    Lock,
    /// A long commit of the culprit needed the same keys, and was protected or came first.
    Commit,
    /// The culprit wrote keys that the request had read but not committed, so that much work was in vain.
    Race,
    /// All workers, or all threads for scripts, were busy.
    Thread,
    /// The client had removed more than may wait to be freed. Or it wrote above `maxmemory`, and other keys
    /// had to be evicted first.
    Reclaim,
    /// The client had published more than may be under way.
    Messages,
    /// The client did not read its replies.
    Socket,
    /// The database of a source had to answer first.
    Source,
    /// Too much waited to be written to the append-only log, or what the reply tells was not durable yet.
    Log,
    /// CLIENT PAUSE held the command.
    Pause,
    /// A replica did not have the client's writes yet (WAIT, WAITAOF), or did not lead yet (FAILOVER).
    Replica,
    /// The operating system ran something else on the processor.
    Os,
    Unknown,
}

pub const WHATS: [(What, &str); 15] = [
    (What::Loop, "loop"),
    (What::Crowd, "crowd"),
    (What::Lock, "lock"),
    (What::Commit, "commit"),
    (What::Race, "race"),
    (What::Thread, "thread"),
    (What::Reclaim, "reclaim"),
    (What::Messages, "messages"),
    (What::Socket, "socket"),
    (What::Source, "source"),
    (What::Log, "log"),
    (What::Pause, "pause"),
    (What::Replica, "replica"),
    (What::Os, "os"),
    (What::Unknown, "unknown"),
];

impl What {
    pub fn name(self) -> &'static str {
        WHATS[self as usize].1
    }

    /// Whether such a wait is for the work of others. A client that removes too much, publishes too much or
    /// does not read waits for itself.
    pub fn is_for_others(self) -> bool {
        !matches!(self, What::Reclaim | What::Messages | What::Socket)
    }
}

/// The work that a client waited for.
#[derive(Debug)]
pub struct Culprit {
    pub what: What,
    /// The client the work was for. None: the server's own housekeeping, or a client that is no longer known.
    pub client: Option<Arc<ClientInfo>>,
    /// The command, or the part of the loop's turn.
    pub command: &'static str,
    /// The command's words, shortened; empty if they are not known.
    pub words: Vec<Vec<u8>>,
    /// How long the work took.
    pub ns: u64,
    /// The part of that in which the thread did not run, since the system ran something else.
    pub os_ns: u64,
    /// The threads that ran instead, longest first. The watchdog adds them to a stall, if it is allowed to
    /// look.
    pub ran: OnceLock<Box<[Neighbour]>>,
}

impl Culprit {
    /// Creates a culprit whose words and lost time are not known.
    pub fn of((what, ns): (What, u64), client: Option<Arc<ClientInfo>>, command: &'static str) -> Culprit {
        Culprit { what, client, command, words: Vec::new(), ns, os_ns: 0, ran: OnceLock::new() }
    }

    /// The threads that ran instead of a loop; empty if that is not known.
    pub fn neighbours(&self) -> &[Neighbour] {
        self.ran.get().map_or(&[], |ran| ran)
    }

    pub fn client_id(&self) -> u64 {
        self.client.as_ref().map_or(0, |client| client.id)
    }

    pub fn name(&self) -> Vec<u8> {
        self.client.as_ref().map_or_else(Vec::new, |client| client.text.lock().name.clone())
    }

    pub fn address(&self) -> &str {
        self.client.as_ref().map_or("", |client| &client.address)
    }

    /// The culprit in words: `client 7 (10.0.0.9:4711, name "batch"), EVAL, 12034 us`.
    pub fn sentence(&self) -> String {
        let command = self.command.to_uppercase();
        let us = self.ns / 1000;
        match (&self.client, self.what) {
            (Some(client), _) => {
                let name = client.text.lock().name.clone();
                let named = if name.is_empty() {
                    String::new()
                } else {
                    format!(", name \"{}\"", name.escape_ascii())
                };
                let what = match self.what {
                    What::Race => "which wrote what it had read".to_owned(),
                    What::Replica => format!("the replica that lacked its writes for {us} us"),
                    _ => format!("{us} us"),
                };
                format!("client {} ({}{named}), {command}, {what}", client.id, client.address)
            }
            (None, What::Crowd) => format!("many short requests, {us} us together"),
            (None, What::Os) if self.command == What::Os.name() => {
                format!("what else the machine ran, {us} us")
            }
            (None, What::Os) => format!("what else the machine ran, {us} us, found while {}", self.command),
            (None, What::Unknown) => format!("unknown, {us} us"),
            (None, What::Log) => format!("the disk of the append-only log, {}, {us} us", self.command),
            (None, What::Replica) => format!("{}, {us} us", self.command),
            (None, What::Race) => format!("the server's own {command}, which wrote what it had read"),
            (None, _) => format!("the server's own {command}, {us} us"),
        }
    }
}

/// One wait of a client.
#[derive(Clone, Debug)]
pub struct Wait {
    /// Numbered over all loops, from 1.
    pub id: u64,
    pub unix_ms: u64,
    pub client: Arc<ClientInfo>,
    /// The command that waited.
    pub command: &'static str,
    pub what: What,
    pub ns: u64,
    pub culprit: Option<Arc<Culprit>>,
}

/// A turn of a loop that took [`STALL_NS`] or longer.
#[derive(Clone, Debug)]
pub struct Stall {
    pub unix_ms: u64,
    pub loop_id: usize,
    /// The begin of the turn, by the monotonic clock.
    pub began_ns: u64,
    pub ns: u64,
    pub commands: u32,
    pub culprit: Arc<Culprit>,
    /// The functions under way when the watchdog asked, innermost first. They are addresses for
    /// `machine::stacks::name`.
    pub stack: Arc<[u64]>,
}

/// The sum of the waits for one culprit, or of one cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    pub waits: u64,
    pub ns: u64,
    pub max_ns: u64,
}

impl Sum {
    fn add(&mut self, ns: u64) {
        self.waits += 1;
        self.ns += ns;
        self.max_ns = self.max_ns.max(ns);
    }
}

/// The waits of a second: by cause, and between which two clients.
#[derive(Debug, Default)]
pub struct Second {
    pub by_what: [Total; WHATS.len()],
    pub pairs: Pairs<Wait>,
}

impl Second {
    /// Adds a wait; one of a client for itself by its cause alone. O(1)
    fn add(&mut self, wait: &Wait) {
        self.by_what[wait.what as usize].add(wait.ns);
        let by_itself = wait.culprit.as_ref().is_some_and(|culprit| culprit.client_id() == wait.client.id);
        if !wait.what.is_for_others() || by_itself {
            return;
        }
        let culprit = match &wait.culprit {
            // The programs that took the processor differ from turn to turn.
            Some(culprit) if wait.what == What::Os => Arc::as_ptr(culprit).addr() as u64,
            Some(culprit) if culprit.client.is_none() => culprit.command.as_ptr().addr() as u64,
            Some(culprit) => culprit.client_id(),
            None => 0,
        };
        self.pairs.add((wait.what as u8, culprit, wait.client.id), wait.ns, || wait.clone());
    }
}

#[derive(Debug, Default)]
struct Log {
    waits: VecDeque<Wait>,
    stalls: VecDeque<Stall>,
    /// Long pieces of work, each with its begin and end.
    pieces: VecDeque<(u64, u64, Arc<Culprit>)>,
}

type Sums = HashMap<(u64, &'static str, What), (Sum, Option<Arc<Culprit>>)>;

/// All waits and stalls of a server, shared by its threads.
#[derive(Debug)]
pub struct Waits {
    pub pulses: Box<[Pulse]>,
    logs: Box<[Mutex<Log>]>,
    sums: Mutex<Sums>,
    by_what: [Mutex<Sum>; WHATS.len()],
    /// The waits since the last call of [`Waits::take_second`].
    second: Mutex<Second>,
    last_id: AtomicU64,
    pub seen: watchdog::Seen,
    /// The last calls of the append-only log to its disk.
    pub disk: disk::DiskCalls,
}

impl Waits {
    pub fn new(loops: usize) -> Waits {
        Waits {
            pulses: (0..loops).map(|_| Pulse::default()).collect(),
            logs: (0..loops).map(|_| Mutex::default()).collect(),
            sums: Mutex::default(),
            by_what: std::array::from_fn(|_| Mutex::default()),
            second: Mutex::default(),
            last_id: AtomicU64::new(0),
            seen: watchdog::Seen::default(),
            disk: disk::DiskCalls::default(),
        }
    }

    /// Adds a wait to the sums. `keep`: also to the log of single waits (H2).
    pub fn add(&self, loop_id: usize, mut wait: Wait, keep: bool) {
        wait.id = self.last_id.fetch_add(1, Relaxed) + 1;
        self.by_what[wait.what as usize].lock().add(wait.ns);
        self.second.lock().add(&wait);
        self.sum_up(&wait);
        if keep {
            let mut log = self.logs[loop_id].lock();
            if log.waits.len() == RECENT {
                log.waits.pop_front();
            }
            log.waits.push_back(wait);
        }
    }

    fn sum_up(&self, wait: &Wait) {
        let key = match &wait.culprit {
            Some(culprit) => (culprit.client_id(), culprit.command, wait.what),
            None => (0, "", wait.what),
        };
        let mut sums = self.sums.lock();
        let full = sums.len() >= CULPRITS_MAX && !sums.contains_key(&key);
        let key = if full { (0, "others", wait.what) } else { key };
        let (sum, culprit) = sums.entry(key).or_default();
        sum.add(wait.ns);
        if !full {
            culprit.clone_from(&wait.culprit);
        }
    }

    pub fn add_stall(&self, stall: Stall) {
        let mut log = self.logs[stall.loop_id].lock();
        if log.stalls.len() == RECENT {
            log.stalls.pop_front();
        }
        log.stalls.push_back(stall);
    }

    pub fn add_piece(&self, loop_id: usize, began_ns: u64, ended_ns: u64, culprit: Arc<Culprit>) {
        let mut log = self.logs[loop_id].lock();
        if log.pieces.len() == 16 {
            log.pieces.pop_front();
        }
        log.pieces.push_back((began_ns, ended_ns, culprit));
    }

    /// The long piece of work that a client had on a loop in that time, if any: its length and its words.
    /// O(loops).
    pub fn piece_of(&self, client: u64, began_ns: u64, now_ns: u64) -> Option<(u64, Vec<Vec<u8>>)> {
        self.logs.iter().find_map(|log| {
            let log = log.lock();
            let mut latest = log.pieces.iter().rev();
            let overlaps = |began: u64, ended: u64| began < now_ns && ended > began_ns;
            let fits = latest.find(|(began, ended, by)| by.client_id() == client && overlaps(*began, *ended));
            fits.map(|(_, _, culprit)| (culprit.ns, culprit.words.clone()))
        })
    }

    /// The latest waits that fit, newest first. O(waits kept).
    pub fn recent(&self, count: usize, fits: impl Fn(&Wait) -> bool) -> Vec<Wait> {
        let mut found: Vec<Wait> = Vec::new();
        for log in &self.logs {
            found.extend(log.lock().waits.iter().rev().filter(|wait| fits(wait)).take(count).cloned());
        }
        found.sort_unstable_by_key(|wait| std::cmp::Reverse(wait.id));
        found.truncate(count);
        found
    }

    /// The latest stalls of all loops, newest first.
    pub fn stalls(&self, count: usize) -> Vec<Stall> {
        let mut found: Vec<Stall> = Vec::new();
        for log in &self.logs {
            found.extend(log.lock().stalls.iter().rev().take(count).cloned());
        }
        found.sort_unstable_by_key(|stall| std::cmp::Reverse(stall.began_ns));
        found.truncate(count);
        found
    }

    /// The stall of a loop that began then.
    pub fn stall(&self, loop_id: usize, began_ns: u64) -> Option<Stall> {
        self.logs[loop_id].lock().stalls.iter().rev().find(|stall| stall.began_ns == began_ns).cloned()
    }

    /// Takes the waits since the last call.
    pub fn take_second(&self) -> Second {
        std::mem::take(&mut *self.second.lock())
    }

    /// Adds the functions that were under way to a stall, if it is still kept.
    pub fn add_stack(&self, loop_id: usize, began_ns: u64, stack: Arc<[u64]>) {
        let mut log = self.logs[loop_id].lock();
        if let Some(stall) = log.stalls.iter_mut().rev().find(|stall| stall.began_ns == began_ns) {
            stall.stack = stack;
        }
    }

    /// The sums by cause.
    pub fn totals(&self) -> Vec<(What, Sum)> {
        WHATS.iter().map(|(what, _)| (*what, *self.by_what[*what as usize].lock())).collect()
    }

    /// The culprits that clients waited for longest, all waits added up. O(culprits · log culprits).
    pub fn culprits(&self, count: usize) -> Vec<(What, Sum, Option<Arc<Culprit>>)> {
        let sums = self.sums.lock();
        let mut all: Vec<_> =
            sums.iter().map(|((.., what), (sum, culprit))| (*what, *sum, culprit.clone())).collect();
        drop(sums);
        all.sort_unstable_by_key(|(_, sum, _)| std::cmp::Reverse(sum.ns));
        all.truncate(count);
        all
    }

    pub fn reset(&self) {
        for log in &self.logs {
            let old = std::mem::take(&mut *log.lock());
            drop(old);
        }
        self.sums.lock().clear();
        self.by_what.iter().for_each(|sum| *sum.lock() = Sum::default());
        self.seen.reset();
    }
}

/// The name of a command by its place in the command table.
pub fn command_name(number: usize) -> &'static str {
    places::all().get(number).map_or("unknown", |command| command.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn client(id: u64) -> Arc<ClientInfo> {
        Arc::new(ClientInfo::new(id, 0, format!("10.0.0.{id}:1"), String::new(), 3, false, 0))
    }

    fn culprit(id: u64, ns: u64) -> Arc<Culprit> {
        let (what, words) = (What::Loop, Vec::new());
        Arc::new(Culprit {
            what,
            client: Some(client(id)),
            command: "eval",
            words,
            ns,
            os_ns: 0,
            ran: OnceLock::new(),
        })
    }

    fn wait(id: u64, ns: u64, culprit: Option<Arc<Culprit>>) -> Wait {
        Wait { id: 0, unix_ms: 1, client: client(id), command: "get", what: What::Loop, ns, culprit }
    }

    #[test]
    fn every_cause_is_explained_in_the_documentation() {
        let text = include_str!("../../../../docs/whodunit.md");
        for (_, name) in WHATS {
            assert!(text.contains(&format!("\n| `{name}` |")), "{name}");
        }
    }

    #[test]
    fn every_phase_of_a_request_is_counted_and_told() {
        let ns = 1_000;
        let request = Request {
            loop_ns: ns,
            lock_ns: ns,
            guard_ns: ns,
            reclaim_ns: ns,
            messages_ns: ns,
            source_ns: ns,
            socket_ns: ns,
            pause_ns: ns,
            replica_ns: ns,
            log_ns: ns,
            parked_ns: ns,
            queued_ns: ns,
            snapshot_ns: ns,
            inline_ns: ns,
            thread_ns: ns,
            os_ns: ns,
            commit_ns: ns,
            ..Request::default()
        };
        let told: Vec<&str> = request.phases().iter().map(|(name, _)| *name).collect();
        // The time on the loop has no phase: commands have histograms of their own.
        let counted = crate::stats::PHASES.iter().map(|(_, name)| *name).chain(["ran-on-loop"]);
        let mut counted: Vec<&str> = counted.collect();
        let mut sorted = told.clone();
        counted.sort_unstable();
        sorted.sort_unstable();
        assert_eq!(sorted, counted);
        // Each phase has words of its own.
        let sentence = request.sentence();
        assert_eq!(sentence.matches("reading keys and committing").count(), 1, "{sentence}");
    }

    #[test]
    fn every_cause_has_a_name_and_its_place() {
        for (at, (what, name)) in WHATS.iter().enumerate() {
            assert_eq!((*what as usize, what.name()), (at, *name));
        }
    }

    #[test]
    fn waits_are_kept_newest_first_and_added_up_by_culprit() {
        let waits = Waits::new(2);
        for n in 0..300 {
            waits.add((n % 2) as usize, wait(n, n, Some(culprit(1000 + n % 3, 5))), true);
        }
        waits.add(0, wait(7, 1_000_000, None), false);
        let recent = waits.recent(3, |_| true);
        assert_eq!(recent.iter().map(|w| w.client.id).collect::<Vec<_>>(), [299, 298, 297]);
        assert_eq!(waits.recent(usize::MAX, |w| w.client.id == 5).len(), 1);
        let culprits = waits.culprits(10);
        assert_eq!((culprits.len(), culprits[0].1.ns), (4, 1_000_000));
        assert_eq!(culprits[1].1.waits, 100);
        assert_eq!(waits.totals()[0].1, Sum { waits: 301, ns: 1_044_850, max_ns: 1_000_000 });
        waits.reset();
        assert!(waits.recent(9, |_| true).is_empty() && waits.culprits(9).is_empty());
    }

    #[test]
    fn a_second_has_waits_by_cause_and_between_whom_unless_it_was_its_own_doing() {
        let waits = Waits::new(1);
        let add = |what, culprit, id, ns| {
            waits.add(0, Wait { what, culprit, ..wait(id, ns, None) }, false);
        };
        let of = |what, id| Some(Arc::new(Culprit::of((what, 5), Some(client(id)), "eval")));
        for ns in [10, 30, 20] {
            add(What::Loop, of(What::Loop, 7), 1, ns);
        }
        // Two absences from the processor are two culprits; their programs may differ.
        let absences = [of(What::Os, 7), of(What::Os, 7)];
        absences.iter().for_each(|culprit| add(What::Os, culprit.clone(), 1, 1));
        add(What::Source, None, 1, 9);
        add(What::Socket, None, 1, 8);
        add(What::Commit, of(What::Commit, 1), 1, 8);
        let second = waits.take_second();
        assert_eq!(second.by_what[What::Loop as usize], Total { waits: 3, ns: 60, max_ns: 30 });
        assert_eq!(second.by_what.iter().map(|sum| sum.waits).sum::<u64>(), 8);
        let mut sums: Vec<_> =
            second.pairs.into_sums().map(|(sum, wait)| (wait.what as usize, sum.ns, wait.ns)).collect();
        sums.sort_unstable();
        let [os, source] = [What::Os as usize, What::Source as usize];
        assert_eq!(sums, [(0, 60, 30), (source, 9, 9), (os, 1, 1), (os, 1, 1)]);
        assert_eq!(waits.take_second().pairs.into_sums().count(), 0);
    }

    #[test]
    fn sums_and_logs_are_bounded() {
        let waits = Waits::new(1);
        for n in 0..2000 {
            waits.add(0, wait(1, 1, Some(culprit(n, 1))), true);
        }
        assert_eq!(waits.recent(usize::MAX, |_| true).len(), RECENT);
        assert_eq!(waits.culprits(usize::MAX).len(), CULPRITS_MAX + 1);
    }

    #[test]
    fn the_words_of_whoever_had_a_lock_are_those_it_ran_meanwhile() {
        let waits = Waits::new(2);
        waits.add_piece(1, 1_000, 9_000, culprit(5, 8_000));
        let found = |client, began, now| waits.piece_of(client, began, now).map(|(ns, _)| ns);
        assert_eq!(found(5, 2_000, 9_500), Some(8_000));
        assert_eq!(found(6, 2_000, 9_500), None);
        assert_eq!(found(5, 9_000, 20_000), None);
    }

    #[test]
    fn a_culprit_is_told_in_a_sentence() {
        let culprit = culprit(7, 12_034_000);
        culprit.client.as_ref().unwrap().text.lock().name = b"batch".to_vec();
        assert_eq!(culprit.sentence(), "client 7 (10.0.0.7:1, name \"batch\"), EVAL, 12034 us");
        let os = |command| {
            let (what, words) = (What::Os, Vec::new());
            Culprit {
                what,
                client: None,
                command,
                words,
                ns: 2_000_000,
                os_ns: 2_000_000,
                ran: OnceLock::new(),
            }
            .sentence()
        };
        assert_eq!(os("os"), "what else the machine ran, 2000 us");
        assert_eq!(
            os("offering its core"),
            "what else the machine ran, 2000 us, found while offering its core"
        );
    }
}
