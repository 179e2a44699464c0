//! One event loop. The crate's head shows the order of a turn. The modules:
//!
//! - `accept` opens and closes connections; `housekeeping` works by the clock.
//! - `letters` opens what other threads send.
//! - `limits` cuts off clients that do not read; `messages` serves subscribers.
//! - `secure` opens and closes TLS.
//! - `moving` sends connections to another loop; `order` decides what waits behind others' requests.

mod accept;
mod evicting;
mod housekeeping;
mod letters;
mod limits;
mod messages;
mod moving;
mod order;
mod secure;

use crate::arrivals::Arrivals;
use crate::conn::{Conn, Flushed, Next, State, Tools};
use crate::doors::Doors;
use crate::listed::{List, Listed};
use crate::load::Load;
use crate::timers::Timers;
use crate::transport::{Event, Pool, Received, Transport};
use exec::clients::Buffered;
use exec::mail::Mail;
use exec::pubsub::FanOut;
use exec::snapshots::Streamed;
use exec::waits::Part;
use exec::{Local, Server};
use keyspace::Sweep;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;
use stdx::points::{self, Point};
use stdx::queue::Queue;

/// Fresh requests are served for this long, or this many of them, before replies are sent and new events
/// fetched.
const FRESH_NS: u64 = 200_000;
const FRESH: usize = 64;
/// Time per turn for all that is not fresh, apart from steps that cannot be cut; each kind of long work has half
/// of it.
const SLICES_NS: u64 = 100_000;
const SLICE_NS: u64 = 50_000;
/// Connections visited in one slice when all have to be.
const LOOKS: usize = 256;
/// Housekeeping interval, in milliseconds.
const CRON_MS: u64 = 100;
/// Number of the listeners among what a transport watches; the other number is the arrivals'.
const DOORS: usize = 0;
/// Interval between two measurements of all connections' buffers, if one slice is not enough for them.
const WEIGHING_MS: u64 = 1000;

/// Time without a sleep of its own after which a loop sleeps for [`REST`], so that waiting demoted work gets
/// its core.
const SPELL_NS: u64 = 900_000;
/// Time on its core after which a loop yields to other threads, above all other loops. A thread that wakes on
/// a busy core would otherwise wait for the next tick of the scheduler.
const KEEP_NS: u64 = 100_000;
/// A wait of at least this length counts as a sleep.
const SLEPT_NS: u64 = 20_000;
/// A short sleep; the kernel adds up to 50 µs of its own.
const REST: Duration = Duration::from_micros(50);

pub(crate) struct EventLoop {
    server: Arc<Server>,
    local: Local,
    doors: Doors,
    /// A client could not be accepted because no descriptor was left.
    starved: bool,
    /// Connections that have not asked for anything yet. `calling`: some may have now; `callers`: those known
    /// to; `first_words`: the buffer for their bytes.
    arrivals: Arrivals,
    calling: bool,
    callers: VecDeque<usize>,
    first_words: Vec<u8>,
    /// Scratch for received records, and for what they say.
    sealed: Vec<u8>,
    opened: Vec<u8>,
    conns: Vec<Option<Box<Conn>>>,
    free: Vec<usize>,
    by_id: HashMap<u64, usize>,
    /// Connections that speak HTTP.
    https: usize,
    /// Events of the transport that are not served yet, in order.
    events: VecDeque<Event>,
    /// Scratch list that the transport fills.
    arrived: Vec<Event>,
    /// Events taken off the queue so far.
    taken: u64,
    /// Endings that come after others' requests, and the value of `taken` from which each is due: see
    /// [`EventLoop::sort_in`].
    endings: VecDeque<(u64, Event)>,
    /// Events of connections that have bytes enough to be served, and the value of `taken` from which each is
    /// due: see [`EventLoop::sort_bytes`].
    arrears: VecDeque<(u64, Event)>,
    /// The kind of long work that comes first in the next turn.
    next_slice: usize,
    lists: Listed,
    /// Calls to the transport so far that took all that was queued. `unsubmitted`: a send was queued that
    /// goes out with the next call.
    submissions: u64,
    unsubmitted: bool,
    /// Messages on their way to subscribers.
    publishing: Queue<FanOut>,
    /// Scratch list of the subscribers that a message is written for next; empty between two slices.
    audience: Vec<u64>,
    /// Bytes of messages that are written and not sent.
    told: usize,
    /// Slots to visit next for commands that CLIENT PAUSE held, and for idle clients.
    releasing: Option<usize>,
    idling: Option<usize>,
    weighing: Weighing,
    /// Streamed replies that the round under way has still to visit, and what it has found.
    streams_left: Option<usize>,
    streams: Vec<Streamed>,
    /// Connections whose last bytes are on the way; they are checked again when those are out.
    leaving: Vec<usize>,
    /// Connections to the primary: one, and perhaps one that is ending.
    links: Vec<u64>,
    closing: VecDeque<usize>,
    mail: Queue<Mail>,
    letters: Vec<Mail>,
    /// Replies that became ready in a slice of long work.
    done: Vec<exec::piece::Delivery>,
    tools: Tools,
    pool: Pool,
    timers: Timers,
    sweep: Sweep,
    sweeping: bool,
    next_cron_ms: u64,
    load: Load,
    moves: moving::Moves,
    cpu_ns: u64,
    window_started_ns: u64,
    spell: Spell,
    /// When it last slept or offered its core to others (monotonic clock).
    kept_since_ns: u64,
    stopping: bool,
}

/// A measurement of all connections' buffers: the slot to visit next, the sum and the heaviest clients so far,
/// and when the next such round is due.
#[derive(Default)]
struct Weighing {
    at: Option<usize>,
    sum: Buffered,
    heaviest: evicting::Heaviest,
    due_ms: u64,
}

/// The monotonic clock, and the loop's processor time, when it last left its core to others.
#[derive(Default)]
struct Spell {
    began_ns: u64,
    cpu_ns: u64,
}

impl EventLoop {
    pub(crate) fn new(id: usize, server: Arc<Server>, doors: Doors, load: Load, new: Arrivals) -> EventLoop {
        let local = Local::new(id, &server);
        EventLoop {
            next_cron_ms: 0,
            window_started_ns: local.log.clock_ns,
            server,
            local,
            doors,
            starved: false,
            arrivals: new,
            calling: false,
            callers: VecDeque::new(),
            first_words: Vec::new(),
            sealed: Vec::new(),
            opened: Vec::new(),
            conns: Vec::new(),
            free: Vec::new(),
            by_id: HashMap::new(),
            https: 0,
            events: VecDeque::new(),
            arrived: Vec::with_capacity(256),
            taken: 0,
            endings: VecDeque::new(),
            arrears: VecDeque::new(),
            next_slice: 0,
            lists: Listed::default(),
            submissions: 1,
            unsubmitted: false,
            publishing: Queue::default(),
            audience: Vec::new(),
            told: 0,
            releasing: None,
            idling: None,
            weighing: Weighing::default(),
            streams_left: None,
            streams: Vec::new(),
            leaving: Vec::new(),
            links: Vec::new(),
            closing: VecDeque::new(),
            mail: Queue::default(),
            letters: Vec::new(),
            done: Vec::new(),
            tools: Tools::default(),
            pool: Pool::default(),
            timers: Timers::default(),
            sweep: Sweep::default(),
            sweeping: false,
            load,
            moves: moving::Moves::default(),
            cpu_ns: 0,
            spell: Spell::default(),
            kept_since_ns: 0,
            stopping: false,
        }
    }

    /// Descriptors that a transport watches besides connections: the mailbox, the listeners, and the arrivals.
    pub(crate) fn watched(&self) -> (BorrowedFd<'_>, [BorrowedFd<'_>; 2]) {
        (self.server.mailbox(self.local.log.id).as_fd(), [self.doors.as_fd(), self.arrivals.as_fd()])
    }

    /// Most connections allowed.
    pub(crate) fn clients_max(&self) -> usize {
        self.server.config.live.maxclients.size()
    }

    pub(crate) fn run<T: Transport>(&mut self, io: &mut T) {
        // From now on this thread keeps what it drops until the end of a turn.
        stdx::reclaim::flush();
        while !self.stopping {
            let timeout = self.timeout();
            let ended_ns = self.local.log.clock_ns;
            self.wait(io, timeout);
            self.local.log.tick();
            if !timeout.is_zero() && self.local.log.clock_ns.saturating_sub(ended_ns) >= SLEPT_NS {
                self.kept_since_ns = self.local.log.clock_ns;
            }
            self.local.log.expect_late(self.taken + self.events.len() as u64);
            self.look_at_leaving();
            self.serve_fresh(io);
            self.write_all(io);
            if !self.links.is_empty() {
                self.serve_link();
            }
            if self.has_slices() {
                self.do_slices(io);
                self.write_all(io);
            }
            self.hear_endings(io);
            self.close_some(io);
            self.move_some(io);
            self.keep_house();
            self.hand_over(io);
            // The time others use of the core belongs to this turn, so that clients that come meanwhile are
            // told why they waited.
            self.offer_core(io);
            self.local.log.end_turn(&self.server.observe, self.taken);
        }
        self.say_goodbye(io);
    }

    /// Connections whose last bytes were queued are looked at again.
    fn look_at_leaving(&mut self) {
        for slot in std::mem::take(&mut self.leaving) {
            self.mark_dirty(slot);
        }
    }

    /// Lets the transport work and takes its events. Bookkeeping is done at once; costly events are queued.
    fn wait<T: Transport>(&mut self, io: &mut T, timeout: Duration) {
        keyspace::debug_assert_no_slot();
        let mut arrived = std::mem::take(&mut self.arrived);
        // A send that has not begun must not be followed by the end of its connection.
        if io.wait(timeout, &mut arrived, &mut self.pool) {
            self.submissions += 1;
            self.unsubmitted = false;
        }
        for event in arrived.drain(..) {
            match event {
                Event::Unsent { .. } | Event::Writable(_) | Event::Mail | Event::Listener(_) => {
                    self.serve(io, event)
                }
                // The event is reported again and again until the loop reads.
                Event::Readable(slot) | Event::Last(slot) => {
                    let Some(conn) = self.conns[slot].as_mut() else { continue };
                    match std::mem::replace(&mut conn.ready, true) {
                        true => {}
                        false if conn.arrears > 0 => self.stand_behind(slot, event),
                        false if conn.has_bulk_to_come() => self.read_later(slot),
                        false => self.sort_in(io, event),
                    }
                }
                Event::Arrived(slot, _) => self.sort_bytes(slot, event),
                event => self.sort_in(io, event),
            }
        }
        self.arrived = arrived;
    }

    /// Sends the replies that only stand in the transport's queue, because what follows may take long or give
    /// the core away.
    #[inline(never)] // So that `wait` stays part of `run`, which pipelines need.
    fn submit<T: Transport>(&mut self, io: &mut T) {
        if std::mem::take(&mut self.unsubmitted) {
            let mark = self.local.log.enter(Part::Submit, 0);
            self.wait(io, Duration::ZERO);
            self.local.log.leave(&self.server.observe, Part::Submit, 0, mark);
        }
    }

    /// Gives the reclaimer what is to be freed. That wakes the reclaimer, perhaps on this core.
    fn hand_over<T: Transport>(&mut self, io: &mut T) {
        if stdx::reclaim::is_due() {
            self.submit(io);
            points::hold_up(Point::Leave);
            stdx::reclaim::flush();
        }
    }

    /// Serves fresh requests in the order they came.
    fn serve_fresh<T: Transport>(&mut self, io: &mut T) {
        let until = self.local.log.clock_ns + FRESH_NS;
        for _ in 0..FRESH {
            let Some(event) = self.events.pop_front() else { break };
            self.taken += 1;
            if let Event::Arrived(slot, _) = event
                && let Some(conn) = self.conns[slot].as_mut()
            {
                conn.among = conn.among.saturating_sub(1);
            }
            let before = self.local.log.clock_ns;
            self.serve(io, event);
            // A command that ran has read the clock after it.
            let now = if self.local.log.clock_ns == before {
                self.local.log.lap()
            } else {
                self.local.log.clock_ns
            };
            if now >= until {
                break;
            }
        }
    }

    // ----- slices of long work ------------------------------------------------------------------------------------------

    fn has_slices(&self) -> bool {
        self.doors.is_accepting()
            || self.calling
            || !self.mail.is_empty()
            || self.server.mailbox(self.local.log.id).is_rung()
            || self.lists.any(List::Continued)
            || self.lists.any(List::Bulky)
            || !self.arrears.is_empty()
            || self.local.works.any()
            || !self.local.arrived.is_empty()
            || !self.publishing.is_empty()
            || self.lists.any(List::Notified)
            || self.sweeping
            || self.server.memory.owes()
            || self.releasing.is_some()
            || self.idling.is_some()
            || self.weighing.at.is_some()
    }

    /// Does a slice of all that is not fresh. The replies to fresh requests are sent first.
    fn do_slices<T: Transport>(&mut self, io: &mut T) {
        self.submit(io);
        let until = self.local.log.lap() + SLICES_NS;
        const SLICES: [Part; 8] = [
            Part::Accept,
            // Mail feeds the works and the continued connections that follow.
            Part::Mail,
            Part::Works,
            Part::Continue,
            Part::Publish,
            Part::Messages,
            Part::Housekeeping,
            Part::Sweep,
        ];
        const KINDS: usize = SLICES.len();
        for _ in 0..KINDS {
            let kind = self.next_slice;
            self.next_slice = (kind + 1) % KINDS;
            let part = SLICES[kind];
            let mark = self.local.log.enter(part, 0);
            match kind {
                0 => {
                    self.greet_some(io);
                    self.accept(io);
                }
                1 => self.read_mail(io),
                2 => self.do_works(),
                3 => {
                    self.continue_some();
                    self.serve_arrears(io);
                    self.read_bulky(io);
                }
                4 => self.publish_some(),
                5 => self.send_messages(io),
                6 => self.look_around(),
                _ => self.sweep_some(),
            }
            if self.local.log.leave(&self.server.observe, part, 0, mark) >= until {
                return;
            }
        }
    }

    /// Milliseconds of a clock that is never set.
    fn mono_ms(&self) -> u64 {
        self.local.log.clock_ns / 1_000_000
    }

    /// How long the loop may sleep: not at all while there is something to do.
    fn timeout(&self) -> Duration {
        let busy = !self.events.is_empty()
            || self.lists.any(List::Dirty)
            || !self.leaving.is_empty()
            || !self.closing.is_empty()
            || !self.endings.is_empty()
            || self.moves.soon
            || self.local.log.follows_slow_turn()
            || self.has_slices();
        if busy {
            return Duration::ZERO;
        }
        let timer = self.timers.next_ms().map_or(CRON_MS, |at| at.saturating_sub(self.local.log.now_ms));
        Duration::from_millis(self.next_cron_ms.saturating_sub(self.mono_ms()).min(timer).min(CRON_MS))
    }

    fn serve<T: Transport>(&mut self, io: &mut T, event: Event) {
        match event {
            // The mailbox is checked every turn.
            Event::Mail => {}
            Event::Listener(DOORS) => self.doors.look(),
            Event::Listener(_) => self.calling = true,
            Event::Readable(slot) | Event::Last(slot) | Event::Arrived(slot, _) => {
                if let Some(conn) = self.conns[slot].as_mut() {
                    conn.ready = false;
                }
                self.receive(io, slot, &event);
                if let Some(event) = io.done(event) {
                    match self.conns[slot].as_mut() {
                        Some(conn) if conn.arrears > 0 => self.stand_behind(slot, event),
                        Some(conn) if conn.has_bulk_to_come() => self.read_later(slot),
                        _ => self.events.push_back(event),
                    }
                }
            }
            Event::Ended(slot) => self.end(slot),
            Event::Half(slot) => {
                let Some(conn) = self.conns[slot].as_mut() else { return };
                conn.half = true;
                let (waits, speaks) = (conn.is_blocked(), conn.pending_out() > 0);
                if waits && !speaks || io.heard_half(slot, &conn.socket).is_err() {
                    self.lose(slot);
                } else if waits {
                    // The connection's last bytes are not out yet; it is closed when they are.
                    self.mark_dirty(slot);
                }
            }
            Event::Writable(slot) => {
                if let Some(conn) = self.conns[slot].as_mut() {
                    if let Some(since_ns) = conn.unblock() {
                        self.local.log.end_blocked(&self.server.observe, &conn.session.info, since_ns);
                    }
                    self.mark_dirty(slot);
                }
            }
            Event::Unsent { slot, bytes, from, blocked } => {
                if let Some(conn) = self.conns[slot].as_mut() {
                    conn.put_back(bytes, from, blocked, self.local.log.clock_ns);
                    self.mark_dirty(slot);
                }
            }
            Event::Broken(slot) => self.lose(slot),
            // All queued events before it are about the slot's former connection and are served.
            Event::Free(slot) => self.free.push(slot),
        }
    }

    fn receive<T: Transport>(&mut self, io: &mut T, slot: usize, event: &Event) {
        let Some(conn) = self.conns.get_mut(slot).and_then(Option::as_mut) else { return };
        if conn.doomed {
            return;
        }
        if conn.is_secure() {
            return self.receive_sealed(io, slot, event);
        }
        let received = conn.receive(io, event);
        match received {
            Ok(Received::Bytes(bytes)) => self.came(slot, bytes.len(), bytes),
            Ok(Received::Appended(n)) => self.came(slot, n, &[]),
            Ok(Received::Nothing) => return,
            Ok(Received::Ended) => return self.end(slot),
            Err(_) => return self.lose(slot),
        }
        if self.conns[slot].as_ref().is_some_and(|conn| conn.listening && !conn.wants_input()) {
            self.listen(io, slot);
        }
    }

    /// Serves `n` bytes that came from a connection: those in `fresh`, or else already in its buffer.
    fn came(&mut self, slot: usize, n: usize, fresh: &[u8]) {
        let Some(conn) = self.conns[slot].as_mut() else { return };
        match conn.came(n, &self.server, &self.local) {
            Next::Close => self.doom(slot),
            Next::Wait => {}
            // A connection in the queue has had its quantum: it waits for its turn. So does one that used up
            // its last quantum.
            Next::Continue if conn.is_queued() => conn.keep(fresh),
            Next::Continue if conn.heavy => {
                conn.keep(fresh);
                self.queue(slot);
            }
            Next::Continue => {
                self.local.log.begin_serving(&self.server.observe, conn.session.id);
                self.advance(slot, fresh);
                if let Some(conn) = self.conns[slot].as_ref() {
                    self.local.log.end_serving(&self.server.observe, &conn.session.info);
                }
            }
        }
    }

    /// Notes that the peer sends no more.
    fn end(&mut self, slot: usize) {
        let Some(conn) = self.conns[slot].as_mut() else { return };
        if conn.puts_off_end() {
            return;
        }
        match conn.end() {
            // The connection's last bytes are not out yet.
            Next::Close if conn.sent_with == self.submissions => self.leaving.push(slot),
            Next::Close if conn.waits_in_vain() && conn.pending_out() > 0 => self.mark_dirty(slot),
            Next::Close => self.doom(slot),
            Next::Wait => self.mark_dirty(slot),
            Next::Continue if conn.is_queued() => {}
            Next::Continue => self.advance(slot, &[]),
        }
    }

    /// Serves a connection for one quantum.
    fn advance(&mut self, slot: usize, fresh: &[u8]) {
        let Some(conn) = self.conns[slot].as_mut().filter(|conn| !conn.doomed) else { return };
        self.local.log.begin_quantum(conn.session.id);
        let next = conn.advance(&self.server, &mut self.local, &mut self.tools, &mut self.pool, fresh);
        match conn.new_deadline() {
            None => {}
            Some(Some(at)) => self.timers.set(conn.session.id, at),
            Some(None) => self.timers.forget(conn.session.id),
        }
        if conn.streams_since_ms(self.local.log.now_ms).is_some() {
            self.lists.add(List::Streaming, slot, &mut **conn);
        }
        if conn.hauls() {
            self.lists.add(List::Hauling, slot, &mut **conn);
        }
        if conn.session.feed.is_some() {
            self.lists.add(List::Fed, slot, &mut **conn);
        }
        if conn.session.was_held() && !matches!(conn.state, State::Held(_)) {
            // The held command was refused, or goes elsewhere.
            let mut request = exec::waits::Request::default();
            exec::waited::end_waits(&self.server, &mut self.local, &mut conn.session, &mut request);
        }
        if conn.pending_out() > 0 || next == Next::Wait {
            self.mark_dirty(slot);
        }
        match next {
            Next::Close if self.conns[slot].as_ref().is_some_and(|c| c.pending_out() > 0) => {}
            Next::Close => self.doom(slot),
            Next::Continue => self.queue(slot),
            // A client that is gone might wait for ever, and take what a living one should get.
            Next::Wait
                if self.conns[slot].as_ref().is_some_and(|c| c.waits_in_vain() && c.pending_out() == 0) =>
            {
                self.lose(slot)
            }
            Next::Wait => {}
        }
        self.note_served(slot);
    }

    fn queue(&mut self, slot: usize) {
        if let Some(conn) = self.conns[slot].as_mut() {
            self.lists.add(List::Continued, slot, &mut **conn);
        }
    }

    /// Serves connections that have more to do, one quantum each, until one slice's time has passed.
    fn continue_some(&mut self) {
        let until = self.local.log.lap() + SLICE_NS;
        for _ in 0..self.lists.len(List::Continued) {
            // It stays in the list meanwhile: opened records are kept for its turn, which is now.
            let Some(slot) = self.lists.first(List::Continued, &mut self.conns) else { return };
            if self.conns[slot].as_ref().is_some_and(|conn| conn.has_sealed() && !conn.doomed) {
                self.open_waiting(slot);
            }
            self.lists.pop(List::Continued, &mut self.conns);
            self.advance(slot, &[]);
            if self.conns[slot].as_ref().is_some_and(|conn| conn.has_sealed() && !conn.doomed) {
                self.queue(slot);
            }
            if self.local.log.lap() >= until {
                return;
            }
        }
    }

    /// Lets further bytes of a connection be read as long work, not among the requests of others.
    fn read_later(&mut self, slot: usize) {
        if let Some(conn) = self.conns[slot].as_mut() {
            self.lists.add(List::Bulky, slot, &mut **conn);
        }
    }

    /// Reads pieces of long requests for one slice's time.
    fn read_bulky<T: Transport>(&mut self, io: &mut T) {
        let until = self.local.log.lap() + SLICE_NS;
        for _ in 0..self.lists.len(List::Bulky) {
            let Some(slot) = self.lists.pop(List::Bulky, &mut self.conns) else { return };
            self.serve(io, Event::Readable(slot));
            if self.local.log.lap() >= until {
                return;
            }
        }
    }

    fn mark_dirty(&mut self, slot: usize) {
        if let Some(conn) = self.conns[slot].as_mut() {
            self.lists.add(List::Dirty, slot, &mut **conn);
        }
    }

    /// Writes every connection that was served and has output, once.
    fn write_all<T: Transport>(&mut self, io: &mut T) {
        let mut again = Vec::new();
        let mark = self.lists.any(List::Dirty).then(|| self.local.log.enter(Part::Write, 0));
        for _ in 0..self.lists.len(List::Dirty) {
            let Some(slot) = self.lists.pop(List::Dirty, &mut self.conns) else { break };
            if self.write_one(io, slot) {
                again.push(slot);
            }
        }
        if let Some(mark) = mark {
            self.local.log.leave(&self.server.observe, Part::Write, 0, mark);
        }
        again.into_iter().for_each(|slot| self.mark_dirty(slot));
    }

    /// Writes one connection; true if it has more to write at once.
    fn write_one<T: Transport>(&mut self, io: &mut T, slot: usize) -> bool {
        let Some(conn) = self.conns[slot].as_mut() else { return false };
        if conn.doomed {
            return false;
        }
        if conn.sent_with == self.submissions {
            return true;
        }
        if conn.session.tells_keys && self.server.withholds() {
            self.doom(slot);
            return false;
        }
        let Some(conn) = self.conns[slot].as_mut() else { return false };
        self.told -= conn.told;
        let durable = self.server.durable();
        let flushed = match conn.flush(io, slot, (&self.local, durable), &mut self.pool) {
            Ok(flushed) => flushed,
            Err(_) => {
                self.lose(slot);
                return false;
            }
        };
        if flushed == Flushed::Gated {
            conn.gated_since_ns.get_or_insert(self.local.log.clock_ns);
        } else if let Some(since_ns) = conn.gated_since_ns.take() {
            self.local.log.waited_for_log(&self.server.observe, &conn.session.info, since_ns);
        }
        if flushed == Flushed::Queued {
            self.unsubmitted = true;
            conn.sent_with = self.submissions;
        }
        conn.session.tells_keys &= conn.owes_bytes();
        if flushed == Flushed::All && conn.is_finished() {
            self.part(slot);
            return false;
        }
        if flushed == Flushed::All && conn.waits_in_vain() {
            self.lose(slot);
            return false;
        }
        if matches!(flushed, Flushed::Blocked | Flushed::Gated) && self.exceeds_output_limit(slot) {
            return false;
        }
        let again = self.goes_on(slot, flushed);
        let Some(conn) = self.conns[slot].as_mut() else { return false };
        let work = conn.has_work();
        if conn.listening != conn.wants_input() {
            self.listen(io, slot);
        }
        if work {
            self.queue(slot);
        }
        again
    }

    /// Notes what a connection whose output is not all sent waits for; true if it has more to write at once.
    #[inline]
    fn goes_on(&mut self, slot: usize, flushed: Flushed) -> bool {
        let Some(conn) = self.conns[slot].as_mut() else { return false };
        match flushed {
            Flushed::Queued if conn.is_finished() || conn.waits_in_vain() => {
                self.leaving.push(slot);
                false
            }
            Flushed::Queued => conn.written() > 0,
            Flushed::Part => true,
            Flushed::Gated => {
                if self.lists.add(List::Gated, slot, &mut **conn) {
                    self.server.durability.ring();
                }
                false
            }
            _ => false,
        }
    }

    /// Ends a connection whose output is all sent: closes it, or keeps it for a moment so that its peer can
    /// read.
    fn part(&mut self, slot: usize) {
        let Some(conn) = self.conns[slot].as_mut() else { return };
        let (stays, new) = conn.linger(self.local.log.now_ms);
        if let Some(until) = new {
            self.timers.set(conn.session.id, until);
        }
        if !stays {
            self.doom(slot);
        }
    }

    /// Tells the transport whether more input is welcome.
    fn listen<T: Transport>(&mut self, io: &mut T, slot: usize) {
        let Some(conn) = self.conns[slot].as_mut() else { return };
        conn.listening = conn.wants_input();
        if io.set_input(slot, &conn.socket, conn.listening).is_err() {
            self.doom(slot);
        }
    }

    /// Resumes clients for which rows of sources arrived.
    fn wake_arrived(&mut self) {
        let rest = self.local.arrived.len().saturating_sub(LOOKS);
        for (client, arrival) in self.local.arrived.split_off(rest) {
            let Some(&slot) = self.by_id.get(&client) else { continue };
            let Some(conn) = self.conns[slot].as_mut() else { continue };
            if let Some(loading) = conn.session.rows.loading.as_mut()
                && matches!(conn.state, State::Held(_))
            {
                loading.arrived(arrival);
                conn.release();
                self.queue(slot);
            }
        }
    }

    /// Does a slice of the long work that this loop takes part in.
    fn do_works(&mut self) {
        if !self.local.arrived.is_empty() {
            self.wake_arrived();
        }
        if !self.local.works.any() {
            return;
        }
        let mut done = std::mem::take(&mut self.done);
        exec::drive::advance(&self.server, &mut self.local, &mut done);
        self.deliver_all(done);
        if !self.local.arrived.is_empty() {
            self.wake_arrived();
        }
    }

    /// Offers the core to other threads when the loop has had it for long.
    fn offer_core<T: Transport>(&mut self, io: &mut T) {
        let now = self.local.log.clock_ns;
        // The turn's clock may be a little behind the system's, which a spell begins with.
        let lasted_ns = now.saturating_sub(self.spell.began_ns);
        let work = self.server.work.turns.demand() != 0 && lasted_ns >= SPELL_NS;
        if !work && now.saturating_sub(self.kept_since_ns) < KEEP_NS {
            return;
        }
        // Replies are sent before the offer only if demoted work waits. Otherwise the answered clients would
        // take the core in the midst of a pipeline.
        if work {
            self.submit(io);
        }
        let mark = self.local.log.enter(Part::Offer, 0);
        if work {
            self.leave_core(now);
        } else {
            self.kept_since_ns = now;
            std::thread::yield_now();
        }
        self.local.log.leave(&self.server.observe, Part::Offer, 0, mark);
    }

    /// Sleeps for a moment so that demoted work gets the core. It does so if the loop ran for nine tenths of
    /// a spell and the loops leave no core idle. Work that competes with a loop that never sleeps would get
    /// almost nothing. Cost: a few system calls per spell.
    #[cold]
    fn leave_core(&mut self, now_ns: u64) {
        let cpu_ns = thread_cpu_ns();
        let (elapsed, busy) = (now_ns.saturating_sub(self.spell.began_ns), cpu_ns - self.spell.cpu_ns);
        // A spell that began long ago says nothing about the present.
        if elapsed < 4 * SPELL_NS && busy * 10 >= elapsed * 9 && self.load.is_full() {
            std::thread::sleep(REST);
        }
        self.spell = Spell { began_ns: stdx::clock::mono_ns(), cpu_ns };
    }

    /// Sends what can be sent before the process ends.
    fn say_goodbye<T: Transport>(&mut self, io: &mut T) {
        for slot in 0..self.conns.len() {
            let Some(conn) = self.conns[slot].as_mut() else { continue };
            let durable = self.server.durable();
            // With TLS, the peer is told that this is the end, also one that waits for something.
            conn.session.speech.closing |= conn.is_secure();
            if let Ok(Flushed::All) = conn.flush(io, slot, (&self.local, durable), &mut self.pool) {
                conn.say_last(io, slot);
            }
        }
        io.wait(Duration::ZERO, &mut Vec::new(), &mut self.pool);
    }
}

/// Processor time of the calling thread, including time in the kernel. Cost: a system call.
fn thread_cpu_ns() -> u64 {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    spent.tv_sec as u64 * 1_000_000_000 + spent.tv_nsec as u64
}
