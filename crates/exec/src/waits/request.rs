//! One request's phases, and what is noted when work that went elsewhere is done.

use super::{Culprit, HISTORY, SLOW_NS, STALL_NS, What};
use crate::calls::Finished;
use crate::session::ClientInfo;
use crate::snapshots::Queued;
use crate::stats::Phase;
use crate::{Local, Server, Session};
use command::Command;
use std::sync::Arc;
use stdx::clock::thread_cpu_ns;

/// Where the time of a request went. What did not happen is 0.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// When it was answered.
    pub unix_ms: u64,
    pub command: &'static str,
    /// Waited for its event loop, at most.
    pub loop_ns: u64,
    /// Waited for a lock.
    pub lock_ns: u64,
    /// Waited because others' long commits were protected, or in a line.
    pub guard_ns: u64,
    /// Waited until less of what it had removed waited to be freed.
    pub reclaim_ns: u64,
    /// Waited until fewer of its own messages were under way.
    pub messages_ns: u64,
    /// Waited for the database of a source.
    pub source_ns: u64,
    /// Waited for the end of CLIENT PAUSE.
    pub pause_ns: u64,
    /// Waited until its client took what it had been sent.
    pub socket_ns: u64,
    /// Waited for a key, a time or an answer.
    pub parked_ns: u64,
    /// Waited for a worker or a script's thread.
    pub queued_ns: u64,
    /// Waited for one of the snapshots there may be at once.
    pub snapshot_ns: u64,
    /// Ran on its event loop.
    pub inline_ns: u64,
    /// Ran on a thread, all attempts together.
    pub thread_ns: u64,
    /// Of all this, the system ran something else.
    pub os_ns: u64,
    /// Was read for, or committed, in slices of the loop.
    pub commit_ns: u64,
    /// Attempts in vain: others had changed what they read.
    pub lost: u32,
    /// For whom it waited longest.
    pub behind: Option<Arc<Culprit>>,
}

impl Request {
    /// One that ran for so long on its loop.
    pub(crate) fn ran(command: &'static str, unix_ms: u64, inline_ns: u64) -> Request {
        Request { command, unix_ms, inline_ns, ..Request::default() }
    }

    /// How long it was held before it ran: not for its loop, a key or a thread.
    pub(crate) fn held_ns(&self) -> u64 {
        self.guard_ns + self.reclaim_ns + self.messages_ns + self.source_ns + self.pause_ns + self.queued_ns
    }

    /// The phases there were, with their names, in microseconds.
    pub fn phases(&self) -> Vec<(&'static str, u64)> {
        let all = [
            ("waited-for-loop", self.loop_ns),
            ("waited-for-lock", self.lock_ns),
            ("waited-for-commit", self.guard_ns),
            ("waited-for-reclaim", self.reclaim_ns),
            ("waited-for-messages", self.messages_ns),
            ("waited-for-source", self.source_ns),
            ("waited-for-pause", self.pause_ns),
            ("waited-for-socket", self.socket_ns),
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

    /// The same as a sentence.
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
                "waited-for-socket" => format!("waited {us} us until its client took what it was sent"),
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
    /// Remembers a request that was slow.
    pub(crate) fn remember(&self, request: Request) {
        let mut history = self.history.lock();
        if history.len() == HISTORY {
            history.pop_front();
        }
        history.push_back(request);
    }
}

/// Work that somebody waits behind: its client's id, its command, and for how many ns it ran or has run.
pub type Ahead = (u64, &'static str, u64);

/// What a job or a script spent away from its loop.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    /// When it was put into the queue of the threads.
    pub queued_at_ns: u64,
    pub queued_ns: u64,
    /// Waits for a snapshot: the one now, and how long all before took.
    pub waits: Option<Queued>,
    pub snapshot_ns: u64,
    /// Waits in a line: now, how long that took, and behind whom.
    pub line: Option<Queued>,
    pub line_ns: u64,
    pub line_behind: Option<Ahead>,
    pub thread_ns: u64,
    pub os_ns: u64,
    pub lost: u32,
    /// Held by CLIENT PAUSE.
    pub pause_ns: u64,
    /// To whom it lost last, and how long the attempts in vain took.
    pub lost_to: Option<Ahead>,
    /// It has published messages, probably.
    pub published: bool,
    /// What a thread did before this, if there was a wait for one.
    pub behind: Option<Ahead>,
}

impl Spent {
    /// The wait in a line, if there was one, is over.
    pub(crate) fn got_place(&mut self) {
        if let Some(queued) = self.line.take() {
            let (ns, behind) = queued.over();
            self.line_ns += ns;
            self.line_behind = behind.or(self.line_behind);
        }
    }

    /// The wait for a snapshot, if there was one, is over.
    pub(crate) fn got_snapshot(&mut self) {
        if let Some(queued) = self.waits.take() {
            let (ns, behind) = queued.over();
            self.snapshot_ns += ns;
            self.behind = behind.or(self.behind);
        }
    }
}

/// What a thread did last, for whoever waits for it.
#[derive(Default)]
pub(crate) struct Bench {
    last: Option<Ahead>,
    began_ns: u64,
    cpu_ns: u64,
    waited_ns: u64,
}

impl Bench {
    /// The thread begins something.
    pub(crate) fn begin(&mut self, spent: &mut Spent) {
        self.began_ns = stdx::clock::mono_ns();
        self.cpu_ns = thread_cpu_ns();
        let queued = self.began_ns.saturating_sub(spent.queued_at_ns);
        spent.queued_ns += queued;
        // The longer wait names whom it was for.
        if queued >= STALL_NS && (spent.behind.is_none() || queued >= spent.snapshot_ns) {
            spent.behind = self.last.or(spent.behind);
        }
    }

    /// So much of it the thread waited for its loop, which is not the system's fault.
    pub(crate) fn waited(&mut self, ns: u64) {
        self.waited_ns += ns;
    }

    /// CPU time the thread has spent on it so far.
    pub(crate) fn cpu_ns(&self) -> u64 {
        thread_cpu_ns() - self.cpu_ns
    }

    /// The thread has done it.
    pub(crate) fn end(&mut self, spent: &mut Spent, client: u64, command: &'static str) {
        let ns = stdx::clock::mono_ns() - self.began_ns;
        spent.thread_ns += ns;
        let waited_ns = std::mem::take(&mut self.waited_ns);
        spent.os_ns += ns.saturating_sub(self.cpu_ns()).saturating_sub(waited_ns);
        self.last = Some((client, command, ns));
    }
}

/// A request whose reply comes by mail. It is counted, and stands in the logs, when it is over.
pub struct Away {
    pub command: &'static Command,
    /// As the log shows them.
    pub words: Vec<Vec<u8>>,
    pub began_ns: u64,
    pub inline_ns: u64,
    /// How long it waited for a key before `began_ns`.
    pub parked_ns: u64,
    /// A job, or a script.
    pub is_job: bool,
}

impl Away {
    /// What it waited for is there, and a job serves it.
    pub(crate) fn goes_to_job(&mut self, now_ns: u64) {
        self.parked_ns += now_ns.saturating_sub(self.began_ns + self.inline_ns);
        // The job's time begins here.
        self.began_ns = now_ns.saturating_sub(self.inline_ns);
        self.is_job = true;
    }
}

/// The job of a request that waits for keys found nothing: the request goes on waiting, and is counted when that is over.
pub(crate) fn waits_on(
    server: &Server,
    local: &mut Local,
    session: &mut Session,
    spent: Spent,
) -> Option<Box<Away>> {
    let mut away = session.away.take()?;
    let now = local.lap();
    for (phase, ns) in [(Phase::Queued, spent.queued_ns), (Phase::Thread, spent.thread_ns)] {
        local.recorder.phase(phase, ns);
    }
    let waits = [(What::Thread, spent.queued_ns + spent.snapshot_ns, spent.behind), NO_WAIT, NO_WAIT];
    note_waits(server, local, &session.info, away.command.name, waits);
    away.inline_ns += spent.thread_ns;
    away.began_ns = now.saturating_sub(away.inline_ns);
    away.is_job = false;
    Some(away)
}

const NO_WAIT: (What, u64, Option<Ahead>) = (What::Commit, 0, None);

/// The reply of a request that was elsewhere has come. `spent`: it was a job or a script.
pub fn ended(
    server: &Server,
    local: &mut Local,
    session: &mut Session,
    spent: Option<Box<Spent>>,
    failed: Option<&[u8]>,
) {
    let Some(away) = session.away.take() else { return };
    let now = local.lap();
    let total_ns = now.saturating_sub(away.began_ns);
    let is_job = spent.is_some() && away.is_job;
    let Spent {
        queued_ns,
        snapshot_ns,
        line_ns,
        line_behind,
        thread_ns,
        os_ns,
        lost,
        lost_to,
        behind,
        published,
        pause_ns,
        ..
    } = *spent.unwrap_or_default();
    let rest_ns =
        total_ns.saturating_sub(away.inline_ns + queued_ns + snapshot_ns + line_ns + thread_ns + pause_ns);
    let mut request = Request {
        unix_ms: local.now_ms,
        command: away.command.name,
        inline_ns: away.inline_ns,
        parked_ns: away.parked_ns,
        queued_ns,
        snapshot_ns,
        guard_ns: line_ns,
        pause_ns,
        thread_ns,
        os_ns,
        lost,
        ..Request::default()
    };
    let flooded = server.pubsub.flood.full();
    if flooded > 0 {
        // How many messages came of it is not looked at.
        let tells = crate::gates::tells(away.command) && server.config.live.notify.get() != 0;
        if published || tells || away.command.is(command::facts::PUBLISHES) {
            session.published.add(flooded, crate::flood::SHARE);
        }
    }
    // A command that waits for keys was asked to wait.
    let blocks = away.command.has(command::table::BLOCKING);
    if !is_job {
        request.parked_ns += rest_ns;
        local.recorder.phase(Phase::Parked, rest_ns);
        let ns = if blocks { away.inline_ns } else { total_ns };
        session.info.last_ns.store(ns, std::sync::atomic::Ordering::Relaxed);
        let (command, words) = (away.command, away.words);
        let finished =
            Finished { command, ns, slow_ns: ns, words, failed, request: &request, on_loop: blocks };
        server.stats.finished(local, &server.config.live, session, finished);
        if total_ns >= SLOW_NS {
            session.info.remember(request);
        }
        return;
    }
    if away.command.is_write() && stdx::reclaim::is_full() {
        // Long writes are done in slices, and who frees what in them is not looked at: most replace something large.
        session.littered = stdx::reclaim::fullness();
    }
    request.commit_ns = rest_ns;
    local.recorder.phase(Phase::Queued, queued_ns);
    local.recorder.phase(Phase::Thread, thread_ns);
    local.recorder.phase(Phase::Committing, rest_ns);
    for (phase, ns) in [
        (Phase::Guard, line_ns),
        (Phase::Snapshot, snapshot_ns),
        (Phase::Os, os_ns),
        (Phase::Pause, pause_ns),
    ] {
        if ns > 0 {
            local.recorder.phase(phase, ns);
        }
    }
    let waits = [
        (What::Thread, queued_ns + snapshot_ns, behind),
        (What::Commit, line_ns, line_behind),
        (What::Race, lost_to.map_or(0, |(_, _, ns)| ns), lost_to),
    ];
    if pause_ns >= STALL_NS {
        local.note_nobody(server, &session.info, (What::Pause, pause_ns));
    }
    request.behind = note_waits(server, local, &session.info, away.command.name, waits);
    // What needs no thread is done in slices of the loop: from the first to the last.
    let ns = if thread_ns == 0 { total_ns } else { away.inline_ns + thread_ns };
    session.info.last_ns.store(ns, std::sync::atomic::Ordering::Relaxed);
    let slow_ns = if blocks { ns } else { total_ns };
    let (command, words) = (away.command, away.words);
    let finished = Finished { command, ns, slow_ns, words, failed, request: &request, on_loop: false };
    server.stats.finished(local, &server.config.live, session, finished);
    session.info.remember(request);
}

/// Notes for whom a request waited, and for how long: for whom longest.
fn note_waits(
    server: &Server,
    local: &mut Local,
    info: &Arc<ClientInfo>,
    command: &'static str,
    mut waits: [(What, u64, Option<Ahead>); 3],
) -> Option<Arc<Culprit>> {
    waits.sort_unstable_by_key(|(_, ns, _)| *ns);
    let mut longest = None;
    for (what, ns, behind) in waits {
        // Behind its own work nobody waits for somebody else.
        let behind = behind.filter(|(client, ..)| *client != info.id && ns >= STALL_NS);
        if let Some(behind) = behind {
            longest = Some(local.waited_for_work(server, info, command, (what, ns), behind));
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
        // Long ago.
        while stdx::clock::mono_ns() < STALL_NS {
            std::thread::yield_now();
        }
        bench.begin(&mut second);
        assert_eq!(second.behind.map(|(client, command, _)| (client, command)), Some((7, "sort")));
        assert!(second.queued_ns >= STALL_NS);
    }
}
