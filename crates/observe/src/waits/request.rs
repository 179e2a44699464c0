//! The phases of one request, and the records made when work away from the loop is done.

use super::{Culprit, HISTORY, SLOW_NS, STALL_NS, What};
use crate::calls::Finished;
use crate::client::ClientInfo;
use crate::stats::Phase;
use crate::{Observe, TurnLog};
use command::Command;
use std::sync::Arc;
use stdx::clock::thread_cpu_ns;

/// A wait in a queue.
#[derive(Clone, Copy, Debug)]
pub struct Queued {
    pub since_ns: u64,
    /// The place in the queue.
    pub ticket: u64,
    /// The work in front, if known.
    pub behind: Option<Ahead>,
}

impl Queued {
    pub fn new(since_ns: u64, behind: Option<Ahead>) -> Queued {
        Queued { since_ns, ticket: 0, behind }
    }

    /// Ends the wait: its nanoseconds, and the work it was behind.
    pub fn over(self) -> (u64, Option<Ahead>) {
        (stdx::clock::mono_ns().saturating_sub(self.since_ns), self.behind)
    }
}

/// Where the time of a request went. A phase that did not happen is 0.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The time of the answer, in milliseconds since 1970.
    pub unix_ms: u64,
    pub command: &'static str,
    /// Wait for the event loop: an upper bound.
    pub loop_ns: u64,
    /// Wait for a lock.
    pub lock_ns: u64,
    /// Wait for another client's protected commit, or in a line for the same keys.
    pub guard_ns: u64,
    /// Wait until less memory that the client removed was waiting to be freed.
    pub reclaim_ns: u64,
    /// Wait until fewer of the client's own messages were under way.
    pub messages_ns: u64,
    /// Wait for the database of a source.
    pub source_ns: u64,
    /// Wait for the end of CLIENT PAUSE.
    pub pause_ns: u64,
    /// Wait for a replica, as WAIT wants it, or for the end of FAILOVER.
    pub replica_ns: u64,
    /// Wait until the client read its replies.
    pub socket_ns: u64,
    /// Wait of the reply until what it tells of was durable.
    pub log_ns: u64,
    /// Wait for a key, a time or an answer.
    pub parked_ns: u64,
    /// Wait for a worker or a script's thread.
    pub queued_ns: u64,
    /// Wait for a snapshot; their number is limited.
    pub snapshot_ns: u64,
    /// Run time on the event loop.
    pub inline_ns: u64,
    /// Run time on a thread, all attempts together.
    pub thread_ns: u64,
    /// The part of the run time in which the system ran something else.
    pub os_ns: u64,
    /// Reading keys and committing, in slices of the loop.
    pub commit_ns: u64,
    /// Attempts in vain: another writer had changed the keys they read.
    pub lost: u32,
    /// The work the request waited longest for.
    pub behind: Option<Arc<Culprit>>,
}

impl Request {
    /// A request that ran on its loop for `inline_ns`, without waits.
    pub fn ran(command: &'static str, unix_ms: u64, inline_ns: u64) -> Request {
        Request { command, unix_ms, inline_ns, ..Request::default() }
    }

    /// How long the command was held before it ran. Waits for the loop, a lock, a key or a snapshot do not
    /// count.
    pub fn held_ns(&self) -> u64 {
        self.guard_ns + self.reclaim_ns + self.messages_ns + self.source_ns + self.pause_ns + self.queued_ns
    }

    /// The phases that happened: names and microseconds.
    pub fn phases(&self) -> Vec<(&'static str, u64)> {
        let all = [
            ("waited-for-loop", self.loop_ns),
            ("waited-for-lock", self.lock_ns),
            ("waited-for-commit", self.guard_ns),
            ("waited-for-reclaim", self.reclaim_ns),
            ("waited-for-messages", self.messages_ns),
            ("waited-for-source", self.source_ns),
            ("waited-for-pause", self.pause_ns),
            ("waited-for-replica", self.replica_ns),
            ("waited-for-socket", self.socket_ns),
            ("waited-for-log", self.log_ns),
            ("parked", self.parked_ns),
            ("waited-for-thread", self.queued_ns),
            ("waited-for-snapshot", self.snapshot_ns),
            ("ran-on-loop", self.inline_ns),
            ("ran-on-thread", self.thread_ns),
            ("descheduled", self.os_ns),
            ("committing", self.commit_ns),
        ];
        all.into_iter().filter(|(_, ns)| *ns > 0).map(|(name, ns)| (name, ns / 1000)).collect()
    }

    /// The phases as a sentence.
    pub fn sentence(&self) -> String {
        let mut parts: Vec<String> = self
            .phases()
            .into_iter()
            .map(|(name, us)| match name {
                "waited-for-loop" => format!("waited up to {us} us for its event loop"),
                "waited-for-lock" => format!("waited {us} us for a lock"),
                "waited-for-commit" => format!("waited {us} us for a long commit of its keys"),
                "waited-for-messages" => format!("waited {us} us for messages of its own to be delivered"),
                "waited-for-reclaim" => format!("waited {us} us for memory it had given back to be freed"),
                "waited-for-source" => format!("waited {us} us for the database of a source"),
                "waited-for-pause" => format!("waited {us} us for the end of CLIENT PAUSE"),
                "waited-for-replica" => format!("waited {us} us for a replica"),
                "waited-for-socket" => format!("waited {us} us until its client took what it was sent"),
                "waited-for-log" => format!("waited {us} us for the disk of the append-only log"),
                "parked" => format!("was parked for {us} us"),
                "waited-for-thread" => format!("waited {us} us for a thread"),
                "waited-for-snapshot" => format!("waited {us} us for a snapshot"),
                "ran-on-loop" => format!("{us} us on its event loop"),
                "ran-on-thread" => format!("{us} us on a thread of its own"),
                "descheduled" => format!("{us} us of that the system ran something else"),
                _ => format!("{us} us for reading keys and committing, in slices"),
            })
            .collect();
        if self.lost > 0 {
            parts.push(format!("{} attempts lost to writers of the same keys", self.lost));
        }
        if let Some(culprit) = &self.behind {
            parts.push(format!("behind {}", culprit.sentence()));
        }
        parts.join("; ")
    }
}

impl ClientInfo {
    /// Keeps a slow request, and drops the oldest beyond [`HISTORY`].
    pub fn remember(&self, request: Request) {
        let mut history = self.history.lock();
        if history.len() == HISTORY {
            history.pop_front();
        }
        history.push_back(request);
    }
}

/// Work in front of a wait: its client's id, its command, and for how many ns it ran or has run.
pub type Ahead = (u64, &'static str, u64);

/// Where a job or a script spent its time away from its loop.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    /// The time it was put into the queue of the threads.
    pub queued_at_ns: u64,
    pub queued_ns: u64,
    /// The current wait for a snapshot; the next field is the time of all waits before.
    pub waits: Option<Queued>,
    pub snapshot_ns: u64,
    /// The current wait in a line; then the time of all waits before, and the work in front of them.
    pub line: Option<Queued>,
    pub line_ns: u64,
    pub line_behind: Option<Ahead>,
    pub thread_ns: u64,
    pub os_ns: u64,
    pub lost: u32,
    /// The time CLIENT PAUSE held it.
    pub pause_ns: u64,
    /// The writer it last lost to, and how long the attempts in vain took.
    pub lost_to: Option<Ahead>,
    /// True if it has probably published messages.
    pub published: bool,
    /// The work a thread or a snapshot was busy with, if there was a wait for one.
    pub behind: Option<Ahead>,
}

impl Spent {
    /// Ends the wait in a line, if there is one.
    pub fn got_place(&mut self) {
        if let Some(queued) = self.line.take() {
            let (ns, behind) = queued.over();
            self.line_ns += ns;
            self.line_behind = behind.or(self.line_behind);
        }
    }

    /// Ends the wait for a snapshot, if there is one.
    pub fn got_snapshot(&mut self) {
        if let Some(queued) = self.waits.take() {
            let (ns, behind) = queued.over();
            self.snapshot_ns += ns;
            self.behind = behind.or(self.behind);
        }
    }
}

/// A thread's clock for its work. It remembers the last work, to name it to the next one that waited.
#[derive(Default)]
pub struct Bench {
    last: Option<Ahead>,
    began_ns: u64,
    cpu_ns: u64,
    waited_ns: u64,
}

impl Bench {
    /// Begins a piece of work, and ends its wait in the queue.
    pub fn begin(&mut self, spent: &mut Spent) {
        self.began_ns = stdx::clock::mono_ns();
        self.cpu_ns = thread_cpu_ns();
        let queued = self.began_ns.saturating_sub(spent.queued_at_ns);
        spent.queued_ns += queued;
        // The longer of the two waits, for a thread or a snapshot, names its culprit.
        if queued >= STALL_NS && (spent.behind.is_none() || queued >= spent.snapshot_ns) {
            spent.behind = self.last.or(spent.behind);
        }
    }

    /// Adds time for which the thread waited for its loop, which does not count as lost to the system.
    pub fn waited(&mut self, ns: u64) {
        self.waited_ns += ns;
    }

    /// CPU time the thread has spent on the current work.
    pub fn cpu_ns(&self) -> u64 {
        thread_cpu_ns() - self.cpu_ns
    }

    /// Ends the piece of work.
    pub fn end(&mut self, spent: &mut Spent, client: u64, command: &'static str) {
        let ns = stdx::clock::mono_ns() - self.began_ns;
        spent.thread_ns += ns;
        let waited_ns = std::mem::take(&mut self.waited_ns);
        spent.os_ns += ns.saturating_sub(self.cpu_ns()).saturating_sub(waited_ns);
        self.last = Some((client, command, ns));
    }
}

/// A request whose reply comes by mail. It is counted and logged when it is over.
pub struct Away {
    pub command: &'static Command,
    /// The words as the log shows them.
    pub words: Vec<Vec<u8>>,
    pub began_ns: u64,
    /// The begin of the turn in which the request came; 0: it is not counted.
    pub came_ns: u64,
    pub inline_ns: u64,
    /// The wait for a key before `began_ns`.
    pub parked_ns: u64,
    /// Its keys and the bytes of its request, if HOTKEYS wants to know.
    pub hot: Option<(Vec<Vec<u8>>, usize)>,
    /// True for a job or a script; false for a wait for a key, a time or an answer.
    pub is_job: bool,
}

impl Away {
    /// Ends the wait for a key: a job now serves the request.
    pub fn goes_to_job(&mut self, now_ns: u64) {
        self.parked_ns += now_ns.saturating_sub(self.began_ns + self.inline_ns);
        // The job's time begins here.
        self.began_ns = now_ns.saturating_sub(self.inline_ns);
        self.is_job = true;
    }
}

/// Records the job of a blocked request that found nothing to take. The request waits on, and is counted when
/// it is over.
pub fn waits_on(
    observe: &Observe,
    log: &mut TurnLog,
    info: &Arc<ClientInfo>,
    mut away: Box<Away>,
    spent: Spent,
) -> Box<Away> {
    let now = log.lap();
    for (phase, ns) in [(Phase::Queued, spent.queued_ns), (Phase::Thread, spent.thread_ns)] {
        log.recorder.phase(phase, ns);
    }
    let waits = [(What::Thread, spent.queued_ns + spent.snapshot_ns, spent.behind), NO_WAIT, NO_WAIT];
    note_waits(observe, log, info, away.command.name, waits);
    away.inline_ns += spent.thread_ns;
    away.began_ns = now.saturating_sub(away.inline_ns);
    away.is_job = false;
    away
}

const NO_WAIT: (What, u64, Option<Ahead>) = (What::Commit, 0, None);

/// Counts and logs a request whose reply has come by mail. `spent` is there if it was a job or a script.
pub fn ended(
    observe: &Observe,
    log: &mut TurnLog,
    info: &Arc<ClientInfo>,
    away: Away,
    spent: Option<Box<Spent>>,
    failed: Option<&[u8]>,
) {
    let now = log.lap();
    let total_ns = now.saturating_sub(away.began_ns);
    let is_job = spent.is_some() && away.is_job;
    let mut spent = *spent.unwrap_or_default();
    spent.pause_ns += info.paused_ns.swap(0, std::sync::atomic::Ordering::Relaxed);
    if spent.pause_ns >= STALL_NS {
        log.note_nobody(observe, info, (What::Pause, spent.pause_ns));
    }
    let mut request = Request {
        unix_ms: log.now_ms,
        command: away.command.name,
        inline_ns: away.inline_ns,
        parked_ns: away.parked_ns,
        queued_ns: spent.queued_ns,
        snapshot_ns: spent.snapshot_ns,
        guard_ns: spent.line_ns,
        pause_ns: spent.pause_ns,
        thread_ns: spent.thread_ns,
        os_ns: spent.os_ns,
        lost: spent.lost,
        ..Request::default()
    };
    let rest_ns = total_ns.saturating_sub(away.inline_ns + accounted_ns(&spent));
    // A command that waits for keys waits as its client asked, so the wait does not make it slow.
    let blocks = away.command.has(command::table::BLOCKING);
    if !is_job {
        request.parked_ns += rest_ns;
        log.recorder.phase(Phase::Parked, rest_ns);
        if spent.pause_ns > 0 {
            log.recorder.phase(Phase::Pause, spent.pause_ns);
        }
        let ns = if blocks { away.inline_ns } else { total_ns };
        // A client that waits as it asked for is no measure, nor is that wait for what it sent behind.
        log.replied_after(away.came_ns, if blocks { rest_ns + away.parked_ns } else { 0 });
        if blocks {
            info.resumed_ns.store(now, std::sync::atomic::Ordering::Relaxed);
        }
        info.last_ns.store(ns, std::sync::atomic::Ordering::Relaxed);
        let (command, words) = (away.command, away.words);
        let finished =
            Finished { command, ns, slow_ns: ns, words, failed, request: &request, on_loop: blocks };
        observe.stats.finished(log, &observe.config.live, info, finished);
        if total_ns >= SLOW_NS {
            info.remember(request);
        }
        return;
    }
    request.commit_ns = rest_ns;
    log.replied_after(away.came_ns, away.parked_ns);
    if away.parked_ns > 0 {
        info.resumed_ns.store(now, std::sync::atomic::Ordering::Relaxed);
    }
    observe.worked(info, away.command.name, &away.words, spent.thread_ns.saturating_sub(spent.os_ns));
    record_phases(log, &spent, rest_ns);
    let thread_ns = spent.thread_ns;
    let waits = [
        (What::Thread, spent.queued_ns + spent.snapshot_ns, spent.behind),
        (What::Commit, spent.line_ns, spent.line_behind),
        (What::Race, spent.lost_to.map_or(0, |(_, _, ns)| ns), spent.lost_to),
    ];
    request.behind = note_waits(observe, log, info, away.command.name, waits);
    // Work without a thread is done in slices of the loop; its run time is that from the first slice to the
    // last.
    let ns = if thread_ns == 0 { total_ns } else { away.inline_ns + thread_ns };
    info.last_ns.store(ns, std::sync::atomic::Ordering::Relaxed);
    let slow_ns = if blocks { ns } else { total_ns };
    let (command, words) = (away.command, away.words);
    let finished = Finished { command, ns, slow_ns, words, failed, request: &request, on_loop: false };
    observe.stats.finished(log, &observe.config.live, info, finished);
    info.remember(request);
}

/// The time of a job or script that its phases explain, in nanoseconds.
fn accounted_ns(spent: &Spent) -> u64 {
    spent.queued_ns + spent.snapshot_ns + spent.line_ns + spent.thread_ns + spent.pause_ns
}

/// Adds the phases of a job or script to the loop's counters.
fn record_phases(log: &mut TurnLog, spent: &Spent, commit_ns: u64) {
    log.recorder.phase(Phase::Queued, spent.queued_ns);
    log.recorder.phase(Phase::Thread, spent.thread_ns);
    log.recorder.phase(Phase::Committing, commit_ns);
    for (phase, ns) in [
        (Phase::Guard, spent.line_ns),
        (Phase::Snapshot, spent.snapshot_ns),
        (Phase::Os, spent.os_ns),
        (Phase::Pause, spent.pause_ns),
    ] {
        if ns > 0 {
            log.recorder.phase(phase, ns);
        }
    }
}

/// Notes each wait of a request that took [`STALL_NS`] or longer; returns the culprit of the longest.
fn note_waits(
    observe: &Observe,
    log: &mut TurnLog,
    info: &Arc<ClientInfo>,
    command: &'static str,
    mut waits: [(What, u64, Option<Ahead>); 3],
) -> Option<Arc<Culprit>> {
    waits.sort_unstable_by_key(|(_, ns, _)| *ns);
    let mut longest = None;
    for (what, ns, behind) in waits {
        // A client that waits behind its own work has no other culprit.
        let behind = behind.filter(|(client, ..)| *client != info.id && ns >= STALL_NS);
        if let Some(behind) = behind {
            longest = Some(log.waited_for_work(observe, info, command, (what, ns), behind));
        }
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_tells_where_its_time_went() {
        let request = Request {
            inline_ns: 12_000,
            thread_ns: 34_000_000,
            os_ns: 5_000_000,
            commit_ns: 800_000,
            lost: 2,
            ..Request::default()
        };
        assert_eq!(
            request.sentence(),
            "12 us on its event loop; 34000 us on a thread of its own; 5000 us of that the system ran something \
             else; 800 us for reading keys and committing, in slices; 2 attempts lost to writers of the same keys"
        );
        assert_eq!(request.phases()[0], ("ran-on-loop", 12));
    }

    #[test]
    fn a_client_keeps_its_latest_slow_requests() {
        let info = super::super::tests::client(1);
        for n in 0..9 {
            info.remember(Request { unix_ms: n, ..Request::default() });
        }
        let kept: Vec<u64> = info.history.lock().iter().map(|request| request.unix_ms).collect();
        assert_eq!(kept, [5, 6, 7, 8]);
    }

    #[test]
    fn who_waits_for_a_thread_is_told_what_it_did_before() {
        let mut bench = Bench::default();
        let mut first = Spent { queued_at_ns: stdx::clock::mono_ns(), ..Spent::default() };
        bench.begin(&mut first);
        bench.end(&mut first, 7, "sort");
        let mut second = Spent::default();
        // The second one was queued at the start of the clock, so long enough ago.
        while stdx::clock::mono_ns() < STALL_NS {
            std::thread::yield_now();
        }
        bench.begin(&mut second);
        assert_eq!(second.behind.map(|(client, command, _)| (client, command)), Some((7, "sort")));
        assert!(second.queued_ns >= STALL_NS);
    }
}
