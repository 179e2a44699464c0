//! A loop's current turn: its long pieces of work, and the clients that are served late because of them.
//!
//! ```text
//! begin ─► client, EVAL 12 ms, client (late) … ─► mail ─► writing ─► end ─► wait ─► begin ─► client (late) …
//! ```
//!
//! - T1: the time of a turn has no gaps: a command's time begins where the one before ended. The time between
//!   them (receiving, parsing) counts for the client that is served next.
//! - T2: the time in which the thread did not run is wall time less CPU time, since the last reading of both.
//!   The CPU clock is read when a piece took long, and at the begin of a turn if [`CPU_BASE_NS`] have passed.
//! - T3: the pulse has one writer, the loop; the watchdog may see a word of it a moment late.

use super::{Ahead, BIG_NS, Culprit, Request, SLOW_NS, STALL_NS, Stall, Wait, What, command_name};
use crate::client::ClientInfo;
use crate::clients::Clients;
use crate::stats::Phase;
use crate::{Holder, Observe, TurnLog};
use std::cell::Cell;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use stdx::clock::thread_cpu_ns;

/// A wait for the log that is worth noting.
const LOG_NS: u64 = 20_000_000;

/// The age up to which a reading of the CPU clock serves for the next turn (T2).
const CPU_BASE_NS: u64 = 500_000;
/// Long pieces kept per turn.
const PIECES: usize = 4;
/// The number from which a command's place stands for a part of a turn.
const PARTS: u64 = 0xff00;

/// A part of a loop's turn other than running commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    Begin,
    Accept,
    Mail,
    /// A job or a script comes back: its commit, or its run under all locks.
    Commit,
    /// Connections that have had their quantum go on.
    Continue,
    /// Slices of long work.
    Works,
    /// Announced messages are published.
    Publish,
    /// Messages are written to their subscribers.
    Messages,
    Write,
    Housekeeping,
    Sweep,
    Evict,
    /// The loop yields its core to other threads.
    Offer,
    /// Connections move to another loop.
    Move,
    /// Replies in the transport's queue are submitted before work that may take long.
    Submit,
    /// A full copy of the primary takes the place of the data.
    TakeOver,
}

const PART_NAMES: [&str; 16] = [
    "begin of a turn",
    "accepting",
    "mail",
    "commit",
    "going on",
    "slices of long work",
    "publishing",
    "sending messages",
    "writing",
    "housekeeping",
    "removal of expired keys",
    "eviction",
    "offering its core",
    "moving connections",
    "submitting replies",
    "exchange for the primary's full copy",
];

/// The begin of a part: its time, and the sum of all long pieces before it.
#[derive(Clone, Copy, Debug)]
pub struct Mark(u64, u64);

impl Part {
    pub fn name(self) -> &'static str {
        PART_NAMES[self as usize]
    }

    fn number(self) -> u64 {
        PARTS + self as u64
    }
}

/// Packs a client's id and a command's place in the table into one word.
pub fn encode(client: u64, number: usize) -> u64 {
    client << 16 | number as u64
}

/// The client's id and the name of the command or part in a word of [`encode`].
pub fn decode(doing: u64) -> (u64, &'static str) {
    let number = doing & 0xffff;
    let name = match number.checked_sub(PARTS) {
        Some(part) => PART_NAMES.get(part as usize).copied().unwrap_or("unknown"),
        None => command_name(number as usize),
    };
    (doing >> 16, name)
}

/// Marks this thread's work as the long work of a client, from now on.
pub fn works_for(client: u64) {
    stdx::doing::set(client << 16 | Part::Works.number());
}

/// Runs what everybody waits for while a full copy of the primary takes the place of the data.
pub fn while_taking_over<T>(step: impl FnOnce() -> T) -> T {
    stdx::doing::within(Part::TakeOver.number(), step)
}

/// The client and the command in a word of `stdx::doing`; for a part of a turn, the client's last command.
/// None: the word is 0.
pub fn doer(observe: &Observe, doing: u64) -> Option<(u64, &'static str)> {
    if doing == 0 {
        return None;
    }
    let (client, what) = decode(doing);
    let is_part = doing & 0xffff >= PARTS;
    let command = observe.clients.get(client).filter(|_| is_part).map(|client| client.command());
    Some((client, command.unwrap_or(what)))
}

/// The part of a loop's state that the watchdog reads (T3).
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Pulse {
    /// The begin of the turn; 0 while the loop waits for events.
    turn_ns: AtomicU64,
    doing: AtomicU64,
    doing_ns: AtomicU64,
    thread: AtomicI32,
}

impl Pulse {
    #[inline]
    pub fn serve(&self, doing: u64, since_ns: u64) {
        self.doing.store(doing, Relaxed);
        self.doing_ns.store(since_ns, Relaxed);
    }

    pub fn doing(&self) -> (u64, u64) {
        (self.doing.load(Relaxed), self.doing_ns.load(Relaxed))
    }

    #[cfg(test)]
    pub fn begin_for_test(&self, turn_ns: u64) {
        self.turn_ns.store(turn_ns, Relaxed);
    }

    pub fn turn_ns(&self) -> u64 {
        self.turn_ns.load(Relaxed)
    }

    pub fn thread(&self) -> i32 {
        self.thread.load(Relaxed)
    }
}

/// The clients that had a quantum in a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Served {
    #[default]
    Nobody,
    One(u64),
    Many,
}

/// The state of a loop's current turn.
#[derive(Debug, Default)]
pub struct Turn {
    served: Served,
    /// The time of parts of this turn that were no client's quantum.
    parts_ns: u64,
    began_ns: u64,
    ended_ns: u64,
    /// The reading of the clock from which the next client served may be late.
    alarm_ns: u64,
    pub commands: u32,
    /// The longest pieces of this turn.
    pieces: Vec<Arc<Culprit>>,
    /// The slow turn before, if there was one: its begin and its culprit.
    before: Option<(u64, Arc<Culprit>)>,
    /// The number of the last event that had come by the end of that turn, once it is known.
    late_until: Option<u64>,
    /// The time of all long pieces, ever.
    noted_ns: u64,
    /// Waits noted since the last slow turn was dealt with.
    kept: u32,
    /// The last readings of the monotonic clock and of the thread's CPU clock.
    base: (u64, u64),
    /// How long the loop waited for events since then.
    slept_ns: u64,
    /// [`stdx::locks::waited_ns`] at that time.
    locks_ns: u64,
    /// The wait of the client that is being served, if it is late.
    pub late: Option<Late>,
}

/// The wait of a client that is served late.
#[derive(Clone, Debug)]
pub struct Late {
    pub ns: u64,
    pub culprit: Arc<Culprit>,
    /// True if the first of the client's commands is in the slow log.
    pub logged: Cell<bool>,
    /// True if one of the client's commands was slow itself, and is kept with this wait.
    pub remembered: Cell<bool>,
}

impl Late {
    fn new(ns: u64, culprit: Arc<Culprit>) -> Late {
        Late { ns, culprit, logged: Cell::new(false), remembered: Cell::new(false) }
    }
}

/// The waits of a command before it could run. Times are of the monotonic clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeldUp {
    /// A wait without another client's work in the way: its cause, and its begin.
    pub by_itself: Option<(What, u64)>,
    /// The client whose protected commit was in the way, and the begin of the wait.
    pub by_commit: Option<(u64, u64)>,
    /// The replica that was waited for, and the begin of the wait.
    pub by_replica: Option<(Lacking, u64)>,
    /// The begin of the wait for rows of a source.
    pub loading_since_ns: Option<u64>,
}

/// The replica that a client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lacking {
    /// By its client id.
    Replica(u64),
    /// There are not as many as WAIT wants.
    Nobody,
    /// A replica is to lead.
    Successor,
}

/// The part of a piece of work that was spent waiting, and the word of `stdx::doing` of the lock's holder.
struct Lost {
    os_ns: u64,
    locked_ns: u64,
    holder: u64,
}

impl Turn {
    /// How much of the last `ns` the thread did not run, and how much it waited for locks (T2).
    fn lost(&mut self, now_ns: u64, ns: u64) -> Lost {
        let cpu = thread_cpu_ns();
        let busy = now_ns.saturating_sub(self.base.0).saturating_sub(self.slept_ns);
        let idle = busy.saturating_sub(cpu.saturating_sub(self.base.1));
        let locks = stdx::locks::waited_ns();
        let locked_ns = (locks - self.locks_ns).min(ns);
        let holder = stdx::locks::take_longest().holder;
        (self.base, self.slept_ns, self.locks_ns) = ((now_ns, cpu), 0, locks);
        Lost { os_ns: idle.saturating_sub(locked_ns).min(ns), locked_ns, holder }
    }

    fn remember(&mut self, culprit: Arc<Culprit>) {
        if self.pieces.len() < PIECES {
            return self.pieces.push(culprit);
        }
        if let Some(shortest) = self.pieces.iter_mut().min_by_key(|piece| piece.ns)
            && shortest.ns < culprit.ns
        {
            *shortest = culprit;
        }
    }

    /// The begin of this turn, or of the slow one before.
    #[inline]
    pub(crate) fn since_ns(&self) -> u64 {
        self.before.as_ref().map_or(self.began_ns, |(began_ns, _)| *began_ns)
    }

    /// Whether the client being served is among the first few that are late.
    pub fn is_among_first(&self) -> bool {
        self.kept < 8
    }

    /// The culprit of a long turn: the longest piece, the system, or the clients of many short requests.
    fn culprit(&mut self, clients: &Clients, now_ns: u64, ns: u64) -> Arc<Culprit> {
        let longest = self.pieces.iter().max_by_key(|piece| piece.ns);
        let sum: u64 = self.pieces.iter().map(|piece| piece.ns).sum();
        if let Some(longest) = longest
            && (longest.ns * 4 >= ns || sum * 2 >= ns)
        {
            return longest.clone();
        }
        let os_ns = self.lost(now_ns, ns).os_ns;
        let (what, client) = match self.served {
            _ if os_ns * 2 >= ns => (What::Os, None),
            Served::Many => (What::Crowd, None),
            Served::One(client) if self.parts_ns * 2 < ns => (What::Loop, clients.get(client)),
            Served::One(_) | Served::Nobody => (What::Unknown, None),
        };
        let command = client.as_ref().map_or(what.name(), |client| client.command());
        Arc::new(Culprit { what, client, command, words: Vec::new(), ns, os_ns, ran: OnceLock::new() })
    }
}

impl TurnLog {
    /// Begins a turn. The clock must have been read just before.
    #[inline]
    pub fn begin_turn(&mut self) {
        let now = self.clock_ns;
        let pulse = &self.waits.pulses[self.id];
        pulse.serve(Part::Begin.number(), now);
        pulse.turn_ns.store(now, Relaxed);
        let turn = &mut self.turn;
        let slept = now.saturating_sub(turn.ended_ns);
        turn.slept_ns += slept;
        turn.began_ns = now;
        turn.alarm_ns = now + SLOW_NS;
        if turn.before.is_some() {
            // The loop did not sleep: a client served now was there, or came while the turn before went on.
            turn.alarm_ns = 0;
        }
        if now.saturating_sub(turn.base.0) > CPU_BASE_NS {
            if turn.base.0 == 0 {
                let thread = rustix::thread::gettid().as_raw_nonzero().get();
                pulse.thread.store(thread, Relaxed);
            }
            (turn.base, turn.slept_ns, turn.locks_ns) = ((now, thread_cpu_ns()), 0, stdx::locks::waited_ns());
            stdx::locks::take_longest();
        }
    }

    /// Ends the turn: reads the clock. The loop waits for events next; `taken` is the number of events taken
    /// so far.
    #[inline]
    pub fn end_turn(&mut self, observe: &Observe, taken: u64) {
        let now = self.lap();
        self.waits.pulses[self.id].turn_ns.store(0, Relaxed);
        let ns = now - self.turn.began_ns;
        self.turn.ended_ns = now;
        if ns >= SLOW_NS || self.turn.before.is_some() {
            self.slow_turn(observe, ns, taken);
        }
        (self.turn.commands, self.turn.served, self.turn.parts_ns) = (0, Served::Nobody, 0);
    }

    /// Sets the number of the last event that is there at the begin of a turn.
    #[inline]
    pub fn expect_late(&mut self, last: u64) {
        if self.turn.before.is_some() && self.turn.late_until.is_none() {
            self.turn.late_until = Some(last);
        }
    }

    #[cold]
    fn slow_turn(&mut self, observe: &Observe, ns: u64, taken: u64) {
        let turn = &mut self.turn;
        if turn.late_until.is_none_or(|last| taken >= last) {
            // All clients that came while that turn went on have been served.
            (turn.before, turn.kept) = (None, 0);
        }
        if ns >= STALL_NS || ns >= SLOW_NS && !turn.pieces.is_empty() {
            let culprit = turn.culprit(&observe.clients, self.clock_ns, ns);
            (turn.before, turn.late_until) = (Some((turn.began_ns, culprit.clone())), None);
            if ns >= STALL_NS {
                let (unix_ms, loop_id, began_ns) = (self.now_ms, self.id, turn.began_ns);
                let stall = Stall {
                    unix_ms,
                    loop_id,
                    began_ns,
                    ns,
                    commands: turn.commands,
                    culprit,
                    stack: Arc::default(),
                };
                observe.waits.add_stall(stall);
                let threshold_ms = observe.config.live.latency_threshold_ms.get();
                observe.stats.events.add("loop-stall", self.now_ms / 1000, ns / 1_000_000, threshold_ms);
            }
        }
        turn.pieces.clear();
    }

    /// Whether the turn before was slow. The loop must then not wait for events: those there came meanwhile.
    #[inline]
    pub fn follows_slow_turn(&self) -> bool {
        self.turn.before.is_some()
    }

    /// Notes that a command begins to run.
    #[inline]
    pub fn begin_command(&mut self, client: u64, number: usize) {
        self.turn.commands += 1;
        let doing = encode(client, number);
        stdx::doing::set(doing);
        self.waits.pulses[self.id].serve(doing, self.clock_ns);
    }

    /// Begins a part of the turn that is not a command.
    #[inline]
    pub fn enter(&self, part: Part, client: u64) -> Mark {
        let doing = client << 16 | part.number();
        stdx::doing::set(doing);
        self.waits.pulses[self.id].serve(doing, self.clock_ns);
        Mark(self.clock_ns, self.turn.noted_ns)
    }

    /// Ends a part of the turn: reads the clock. Long pieces within the part were noted on their own, and its
    /// time is the rest; in [`Part::Continue`] they also stand for the rest. Work done for a client counts as
    /// its quantum.
    #[inline]
    pub fn leave(&mut self, observe: &Observe, part: Part, client: u64, mark: Mark) -> u64 {
        let now = self.lap();
        let noted_ns = self.turn.noted_ns - mark.1;
        let own_ns = (now - mark.0).saturating_sub(noted_ns);
        if client != 0 {
            self.begin_quantum(client);
        } else if part != Part::Continue {
            self.turn.parts_ns += own_ns;
        }
        if own_ns >= BIG_NS && (part != Part::Continue || noted_ns == 0) {
            self.piece(observe, observe.clients.get(client), part.name(), Vec::new(), own_ns);
        }
        now
    }

    /// Notes a piece of work of [`BIG_NS`] or longer that just ended. Returns its culprit (the holder of a
    /// lock, if half of the time was a wait for it), and the time it waited for locks.
    #[cold]
    pub fn piece(
        &mut self,
        observe: &Observe,
        client: Option<Arc<ClientInfo>>,
        command: &'static str,
        words: Vec<Vec<u8>>,
        ns: u64,
    ) -> (Arc<Culprit>, u64) {
        let now = self.clock_ns;
        self.turn.noted_ns += ns;
        let Lost { os_ns, locked_ns, holder } = self.turn.lost(now, ns);
        let what = if os_ns * 4 >= ns * 3 { What::Os } else { What::Loop };
        if let Some(client) = &client {
            observe.worked(client, command, &words, ns.saturating_sub(os_ns + locked_ns));
        }
        let own = Arc::new(Culprit { what, client, command, words, ns, os_ns, ran: OnceLock::new() });
        if locked_ns * 2 < ns {
            observe.waits.add_piece(self.id, now - ns, now, own.clone());
            self.turn.remember(own.clone());
            return (own, locked_ns);
        }
        // A client served after this piece waits for the holder of the lock, too.
        let held = match doer(observe, holder) {
            None => Culprit {
                what: What::Unknown,
                client: None,
                command: "unknown",
                words: Vec::new(),
                ns,
                os_ns,
                ran: OnceLock::new(),
            },
            Some((holder, command)) => {
                let (ns, words) = observe.waits.piece_of(holder, now - ns, now).unwrap_or((ns, Vec::new()));
                let client = observe.clients.get(holder);
                Culprit { what: What::Lock, client, command, words, ns, os_ns, ran: OnceLock::new() }
            }
        };
        let held = Arc::new(held);
        self.turn.remember(held.clone());
        if let Some(client) = &own.client {
            self.recorder.phase(Phase::Lock, locked_ns);
            let wait = Wait {
                id: 0,
                unix_ms: self.now_ms,
                client: client.clone(),
                command,
                what: held.what,
                ns: locked_ns,
                culprit: Some(held.clone()),
            };
            self.note(observe, wait);
        }
        (held, locked_ns)
    }

    /// Notes a wait of this turn (H2).
    fn note(&mut self, observe: &Observe, wait: Wait) {
        self.turn.kept += 1;
        observe.waits.add(self.id, wait, self.turn.kept <= super::PER_TURN);
    }

    /// Notes that a client is about to have a quantum.
    #[inline]
    pub fn begin_quantum(&mut self, client: u64) {
        self.turn.served = match self.turn.served {
            Served::Nobody => Served::One(client),
            Served::One(same) if same == client => return,
            _ => Served::Many,
        };
    }

    /// Checks whether a client whose bytes are there is served late.
    #[inline]
    pub fn begin_serving(&mut self, observe: &Observe, client: u64) {
        if self.clock_ns >= self.turn.alarm_ns {
            self.find_late(observe, client);
        }
    }

    #[cold]
    fn find_late(&mut self, observe: &Observe, client: u64) {
        let turn = &mut self.turn;
        let before = turn.before.as_ref().map(|(_, culprit)| culprit);
        let longest = turn.pieces.iter().chain(before).filter(|piece| piece.client_id() != client);
        let longest = longest.max_by_key(|piece| piece.ns).cloned();
        let since = turn.since_ns();
        let ns = self.clock_ns.saturating_sub(since);
        turn.late = match longest {
            Some(culprit) if ns >= SLOW_NS => Some(Late::new(ns, culprit)),
            Some(_) => None,
            // Many short requests: one wait per turn is noted.
            None if ns < STALL_NS || turn.kept > 0 || before.is_some() || !turn.pieces.is_empty() => None,
            None => {
                let culprit = turn.culprit(&observe.clients, self.clock_ns, ns);
                Some(Late::new(ns, culprit))
            }
        };
    }

    /// Notes the wait of the client that has been served, if it was late.
    #[inline]
    pub fn end_serving(&mut self, observe: &Observe, client: &Arc<ClientInfo>) {
        if self.turn.late.is_some() {
            self.note_late(observe, client);
        }
    }

    #[cold]
    fn note_late(&mut self, observe: &Observe, client: &Arc<ClientInfo>) {
        let Some(Late { ns, culprit, remembered, .. }) = self.turn.late.take() else { return };
        self.recorder.phase(Phase::Loop, ns);
        let (command, unix_ms) = (client.command(), self.now_ms);
        if self.turn.kept < super::PER_TURN && !remembered.get() {
            client.remember(Request {
                unix_ms,
                command,
                loop_ns: ns,
                inline_ns: client.last_ns.load(Relaxed),
                behind: Some(culprit.clone()),
                ..Request::default()
            });
        }
        let (client, what) = (client.clone(), culprit.what);
        self.note(observe, Wait { id: 0, unix_ms, client, command, what, ns, culprit: Some(culprit) });
    }

    /// Notes the waits of a command that was held and has now run, and writes their times into `request`.
    #[cold]
    pub fn end_waits(
        &mut self,
        observe: &Observe,
        client: &Arc<ClientInfo>,
        held: HeldUp,
        request: &mut Request,
    ) {
        let now = self.lap().saturating_sub(request.inline_ns);
        if let Some((what, since_ns)) = held.by_itself {
            let ns = now.saturating_sub(since_ns);
            let (phase, place) = match what {
                What::Messages => (Phase::Messages, &mut request.messages_ns),
                What::Pause => (Phase::Pause, &mut request.pause_ns),
                What::Thread => (Phase::Queued, &mut request.queued_ns),
                What::Log => (Phase::Log, &mut request.log_ns),
                _ => (Phase::Reclaim, &mut request.reclaim_ns),
            };
            *place = ns;
            self.recorder.phase(phase, ns);
            if what == What::Log {
                request.behind = self.note_disk(observe, client, ns, since_ns);
            } else if matches!(what, What::Pause | What::Thread) {
                self.note_nobody(observe, client, (what, ns));
            } else {
                let culprit = Culprit::of((what, ns), Some(client.clone()), client.command());
                request.behind = Some(self.note_wait(observe, client, (what, ns), Arc::new(culprit)));
            }
        }
        if let Some(since_ns) = held.loading_since_ns {
            request.source_ns = now.saturating_sub(since_ns);
            self.recorder.phase(Phase::Source, request.source_ns);
            if request.source_ns >= STALL_NS {
                self.note_nobody(observe, client, (What::Source, request.source_ns));
            }
        }
        if let Some((lacking, since_ns)) = held.by_replica {
            let ns = now.saturating_sub(since_ns);
            request.replica_ns = ns;
            self.recorder.phase(Phase::Replica, ns);
            let (replica, command) = match lacking {
                Lacking::Replica(client) => (observe.clients.get(client), "a replica that has gone"),
                Lacking::Nobody => (None, "fewer replicas than WAIT names"),
                Lacking::Successor => (None, "FAILOVER, until a replica leads"),
            };
            let culprit = Culprit::of((What::Replica, ns), replica, command);
            request.behind = Some(self.note_wait(observe, client, (What::Replica, ns), Arc::new(culprit)));
        }
        if let Some((holder, since_ns)) = held.by_commit {
            let ns = now.saturating_sub(since_ns);
            request.guard_ns = ns;
            self.recorder.phase(Phase::Guard, ns);
            let holder = observe.clients.get(holder);
            let command = holder.as_ref().map_or("unknown", |holder| holder.command());
            let culprit = Culprit::of((What::Commit, ns), holder, command);
            request.behind = Some(self.note_wait(observe, client, (What::Commit, ns), Arc::new(culprit)));
        }
    }

    /// Notes that a client's replies have waited for the log until now, if that took long. A sync takes some
    /// milliseconds on many disks, and is no news.
    pub fn waited_for_log(&mut self, observe: &Observe, client: &Arc<ClientInfo>, since_ns: u64) {
        let ns = self.clock_ns.saturating_sub(since_ns);
        if ns >= LOG_NS {
            self.recorder.phase(Phase::Log, ns);
            let behind = self.note_disk(observe, client, ns, since_ns);
            let (command, unix_ms) = (client.command(), self.now_ms);
            let request = Request { command, unix_ms, log_ns: ns, behind, ..Request::default() };
            observe.stats.logged(self, &observe.config.live, client, &request);
            client.remember(request);
        }
    }

    /// Notes a wait for the log; returns the longest call to the disk in it.
    fn note_disk(
        &mut self,
        observe: &Observe,
        client: &Arc<ClientInfo>,
        ns: u64,
        since_ns: u64,
    ) -> Option<Arc<Culprit>> {
        let Some(call) = observe.waits.disk.longest_since(since_ns) else {
            self.note_nobody(observe, client, (What::Log, ns));
            return None;
        };
        let culprit = Culprit::of((What::Log, call.ns), None, call.name);
        Some(self.note_wait(observe, client, (What::Log, ns), Arc::new(culprit)))
    }

    /// Notes a wait that has no culprit.
    pub(super) fn note_nobody(
        &mut self,
        observe: &Observe,
        client: &Arc<ClientInfo>,
        (what, ns): (What, u64),
    ) {
        let (client, command, unix_ms) = (client.clone(), client.command(), self.now_ms);
        self.note(observe, Wait { id: 0, unix_ms, client, command, what, ns, culprit: None });
    }

    /// Notes a wait for a culprit's work.
    fn note_wait(
        &mut self,
        observe: &Observe,
        client: &Arc<ClientInfo>,
        (what, ns): (What, u64),
        culprit: Arc<Culprit>,
    ) -> Arc<Culprit> {
        let (client, command, unix_ms) = (client.clone(), client.command(), self.now_ms);
        self.note(
            observe,
            Wait { id: 0, unix_ms, client, command, what, ns, culprit: Some(culprit.clone()) },
        );
        culprit
    }

    /// Notes that a client's full socket has room again.
    pub fn end_blocked(&mut self, observe: &Observe, client: &Arc<ClientInfo>, since_ns: u64) {
        let ns = self.lap().saturating_sub(since_ns);
        self.recorder.phase(Phase::Socket, ns);
        if ns < STALL_NS {
            return;
        }
        let (command, unix_ms) = (client.command(), self.now_ms);
        client.remember(Request { unix_ms, command, socket_ns: ns, ..Request::default() });
        self.note_nobody(observe, client, (What::Socket, ns));
    }

    /// Notes a request's wait for a thread or in a line, or the time it lost in a race.
    pub fn waited_for_work(
        &mut self,
        observe: &Observe,
        client: &Arc<ClientInfo>,
        command: &'static str,
        (what, ns): (What, u64),
        behind: Ahead,
    ) -> Arc<Culprit> {
        let (holder, holds, holder_ns) = behind;
        // The holder of a place and its script are known even when the client has gone.
        let Holder { info, words } =
            if what == What::Thread { observe.whose(holder) } else { Holder::default() };
        let culprit = Culprit::of((what, holder_ns), observe.clients.get(holder).or(info), holds);
        let culprit = Arc::new(Culprit { words, ..culprit });
        let (client, unix_ms) = (client.clone(), self.now_ms);
        self.note(
            observe,
            Wait { id: 0, unix_ms, client, command, what, ns, culprit: Some(culprit.clone()) },
        );
        culprit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(ns: u64) -> Arc<Culprit> {
        let words = Vec::new();
        Arc::new(Culprit {
            what: What::Loop,
            client: None,
            command: "x",
            words,
            ns,
            os_ns: 0,
            ran: OnceLock::new(),
        })
    }

    #[test]
    fn a_word_says_who_is_served_with_what() {
        for (number, command) in command::places::all().iter().enumerate() {
            assert!((number as u64) < PARTS);
            assert_eq!(decode(encode(77, number)), (77, command.name));
        }
        assert_eq!(decode(5 << 16 | Part::Commit.number()), (5, "commit"));
        assert_eq!(PART_NAMES[Part::Housekeeping as usize], "housekeeping");
    }

    #[test]
    fn the_longest_pieces_are_remembered() {
        let mut turn = Turn::default();
        for ns in [300, 200, 500, 100, 400, 50, 250] {
            turn.remember(piece(ns));
        }
        let mut kept: Vec<u64> = turn.pieces.iter().map(|piece| piece.ns).collect();
        kept.sort_unstable();
        assert_eq!(kept, [250, 300, 400, 500]);
        assert_eq!(turn.culprit(&Clients::new(1), 0, 1000).ns, 500);
    }

    #[test]
    fn a_part_counts_for_its_client_or_without_the_long_pieces_in_it() {
        let observe = Observe::new(Arc::default(), 1);
        let mut local = TurnLog::new(0, &observe);
        local.lap();
        let mark = local.enter(Part::Commit, 7);
        local.leave(&observe, Part::Commit, 7, mark);
        assert_eq!((local.turn.served, local.turn.parts_ns), (Served::One(7), 0));
        local.turn.pieces.clear();
        let mark = local.enter(Part::Housekeeping, 0);
        local.turn.noted_ns += 2 * BIG_NS;
        while local.lap() - mark.0 < 4 * BIG_NS {}
        local.leave(&observe, Part::Housekeeping, 0, mark);
        let [piece] = &local.turn.pieces[..] else { panic!("{:?}", local.turn.pieces) };
        assert!(piece.command == "housekeeping" && piece.ns >= 2 * BIG_NS && local.turn.parts_ns == piece.ns);
    }

    #[test]
    fn many_short_requests_are_a_crowd_or_one_clients() {
        let clients = Clients::new(1);
        // No time has passed since the base, so the system took none.
        let mut turn = Turn { base: (0, thread_cpu_ns()), ..Turn::default() };
        assert_eq!(turn.culprit(&clients, 0, 2_000_000).what, What::Unknown);
        turn.served = Served::One(7);
        assert_eq!(turn.culprit(&clients, 0, 2_000_000).what, What::Loop);
        turn.parts_ns = 1_000_000;
        assert_eq!(turn.culprit(&clients, 0, 2_000_000).what, What::Unknown);
        turn.served = Served::Many;
        assert_eq!(turn.culprit(&clients, 0, 2_000_000).what, What::Crowd);
        turn.remember(piece(400_000));
        assert_eq!(turn.culprit(&clients, 0, 2_000_000).what, What::Crowd);
        assert_eq!(turn.culprit(&clients, 0, 1_600_000).what, What::Loop);
    }
}
