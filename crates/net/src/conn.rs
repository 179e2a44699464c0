//! One connection: bytes in, commands run, bytes out. It speaks RESP or HTTP (`http.rs`). The two differ only
//! in how bytes become commands and how replies become bytes. TLS (`secure.rs`) is between both and the socket.
//!
//! ```text
//!            ┌──────────── Running ◄────────────┐
//!   command  │ goes to a worker or waits        │ its reply comes by mail, or its time is up
//!            └──────► Parked (deadline) ────────┘
//!              Held: CLIENT PAUSE; the command stays in the buffer and is run again
//! ```
//!
//! - C1: `input[start..]` are the bytes not consumed yet; a command's bytes stay until it has run. Bytes just
//!   received run where they lie; only the rest is copied to `input`.
//! - C2: `unsent`, then `out`, are the bytes to write; a stream's bytes follow them. No command runs before a
//!   stream has ended, so replies come in order.
//! - C3: an idle connection holds no buffers: `input` is freed or small, and `out`'s buffer is back in the
//!   pool.

mod api;
mod calls;
mod came;
mod ends;
mod follow;
mod haul;
mod hosts;
mod http;
pub(crate) mod link;
mod output;
mod secure;

pub(crate) use http::refusal;

use crate::gates::Gates;
use crate::input::Input;
use crate::listed::{List, Marked, Marks};
use crate::prefetch::prefetch;
use crate::socket::Socket;
use crate::transport::{Event, Pool, Received, Sent, Transport};
use crate::{OUT_HIGH, QUANTUM_NS};
use came::Came;
use exec::clients::Buffered;
use exec::memory::Incoming;
use exec::parts::ReplyMode;
use exec::pubsub::{Encoded, Shared};
use exec::session::flag;
use exec::stats::Counter;
use exec::{Flow, Local, Server, Session, Stream, Words};
use http::{Desk, Http};
use keyspace::Lsn;
use output::Streaming;
use resp::{Args, Batch, Filled, Limits, OwnedArgs, Parser, Reply, Span, Stop};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stdx::budget::Holding;
use stdx::panics;
use stdx::points::{self, Point};
use stdx::queue::Queue;

/// Most commands parsed at once. Commands that the quantum has no time for are parsed again later.
const BATCH: u8 = 32;
/// Smallest batch whose keys are prefetched together; below it the prefetch does not pay.
const PREFETCH_FROM: usize = 4;
/// Missing bytes of an argument above which it is received straight into the connection's own buffer.
const BULK: usize = 16 * 1024;
/// Most bytes received at once into the connection's own buffer: into a large argument, or behind this many
/// unread bytes.
const READ_BULK: usize = 64 * 1024;
/// The same limit while the buffer moves to a larger one, which copies several bytes for each received one.
const READ_MOVING: usize = 8 * 1024;
/// Bytes a stream writes at once.
const STREAM_PART: usize = 16 * 1024;
/// A connection that ran for this long queues its next request behind those of others.
const HEAVY_NS: u64 = QUANTUM_NS / 2;
/// Bytes in `out` above which messages are queued as shared bytes instead of copied.
const MESSAGES_MAX: usize = 32 * 1024;
/// Capacity above which an empty input buffer is freed.
const KEEP: usize = 1024;
/// Request size above which its memory is counted.
const HAUL: usize = 1 << 20;
/// Longest wait of a long request for memory. While others wait, it is also the longest a request may hold
/// memory without receiving a byte.
const HAUL_PATIENCE_NS: u64 = 5_000_000_000;
/// Unread input of a waiting client above which no more is read. It bounds what is parsed in one go
/// afterwards.
const PARKED_INPUT: usize = 128 * 1024;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Running,
    /// Waits for mail, or for the deadline if there is one (milliseconds since 1970).
    Parked(Option<u64>),
    Held(u64),
}

/// The next step of the loop with a connection it has served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Nothing, until an event of its socket comes.
    Wait,
    /// The connection has more to do: it goes to the end of the queue.
    Continue,
    Close,
}

/// Result of [`Conn::flush`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flushed {
    All,
    /// The bytes go out with the next wait. Whether all of them did is known then.
    Queued,
    /// More can be sent at once.
    Part,
    /// More can be sent when the socket has room.
    Blocked,
    /// There is more to send once more effects are durable.
    Gated,
}

/// How bytes become commands, and replies bytes.
enum Speech {
    Resp(Parser),
    Http(Box<Http>),
}

/// Scratch state that a loop shares among its connections.
pub(crate) struct Tools {
    batch: Batch,
    desk: Desk,
}

impl Default for Tools {
    fn default() -> Tools {
        Tools { batch: Batch::with_large(exec::job::MANY_BYTES), desk: Desk::default() }
    }
}

/// The step a slice is at, for recovery from a panic, and the length of `out` when that began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Doing {
    /// Something that may have left a reply half written.
    Other,
    /// Parsing: no reply has begun.
    Parsing(usize),
    /// Running the command or request at `start`.
    Command(usize),
    /// Running a command of many bytes that was already taken out of the input.
    Held(usize),
}

/// Location of a command of many bytes in the input.
struct Large {
    base: usize,
    end: usize,
    words: Vec<Span>,
}

pub(crate) struct Conn {
    pub(crate) socket: Socket,
    pub(crate) session: Session,
    /// The loop's lists that it is in.
    pub(crate) marks: Marks,
    /// None: without TLS.
    tls: Option<Box<secure::Secure>>,
    speech: Speech,
    input: Input,
    start: usize,
    came: Came,
    out: Reply,
    /// Marks in `out`: bytes up to one wait until their effects are durable.
    gates: Gates,
    /// Since when its replies wait for the log (monotonic clock).
    pub(crate) gated_since_ns: Option<u64>,
    /// Bytes the socket did not take, and the offset of the first unsent one.
    unsent: Option<(Vec<u8>, usize)>,
    /// The socket is full; the transport reports when it has room.
    blocked: bool,
    blocked_ns: Option<u64>,
    stream: Option<Streaming>,
    /// The stream goes on reading the keyspace ([`exec::Stream::reads_on`]), or did so in this slice.
    reads_on: bool,
    doing: Doing,
    /// The replica's feed has nothing to write, until there is more ([`Conn::feed`]).
    feed_waits: bool,
    /// A command of many bytes that was found in the input and is to be taken out of it.
    large: Option<Large>,
    /// A command of many bytes that is to be run, perhaps again.
    held: Option<Arc<OwnedArgs>>,
    /// Messages that came while a reply was streaming, and long messages. They follow the reply, piece by
    /// piece.
    behind: Queue<Shared>,
    /// Unwritten bytes of `behind`; the next field is how many bytes of its first piece are written.
    behind_bytes: usize,
    behind_from: usize,
    /// The LSN that has to be durable before they leave; 0: none.
    behind_gate: Lsn,
    /// Bytes of messages written since the last flush.
    pub(crate) told: usize,
    /// The last quantum was used up, or nearly: the next request goes behind those of others.
    pub(crate) heavy: bool,
    /// Among the arrivals: the client has not asked for anything yet, or not on this loop.
    pub(crate) outside: bool,
    /// The loop it moves to once nothing of it is under way here, and the window in which that was decided.
    pub(crate) moving: Option<(usize, u64)>,
    /// The window in which it was served last; the next field is the first window in which it may move to
    /// another loop.
    pub(crate) served: u64,
    pub(crate) settled: u64,
    /// Its socket is in the loop's list of sockets to receive from.
    pub(crate) ready: bool,
    /// Buffers of its bytes among what others asked; `arrears` are those that wait behind that, in order.
    pub(crate) among: u32,
    pub(crate) arrears: u32,
    /// The connection is about to be closed.
    pub(crate) doomed: bool,
    /// Number of the loop's submission that carries its last send. Each submission carries one send per
    /// connection.
    pub(crate) sent_with: u64,
    pub(crate) state: State,
    /// The peer sends no more than what is still to be received.
    pub(crate) half: bool,
    /// The peer sends no more; received commands still run.
    eof: bool,
    /// The peer sends no more, and all it sent has run.
    ended: bool,
    /// The peer is gone. Commands it sent whole still run; nothing is answered.
    orphaned: bool,
    /// The deadline that the loop's timers know of.
    pub(crate) timer_ms: Option<u64>,
    /// The transport receives for it.
    pub(crate) listening: bool,
    /// Fewest bytes that must still come before anything can run.
    need: usize,
    /// Commands to parse at once: about as many as a quantum has time for.
    stride: u8,
    /// Unread bytes that must be there before anything can run.
    enough: usize,
    /// Work memory held for a long request; `thirsty_ns` is when its wait for that memory began (monotonic
    /// clock).
    transit: Holding,
    thirsty_ns: Option<u64>,
    /// The bytes received and the time at the last progress of a long request.
    hauled: (u64, u64),
    /// When the soft output limit was first exceeded, in milliseconds since 1970.
    soft_since: Option<u64>,
}

impl Marked for Conn {
    #[inline]
    fn marks(&mut self) -> &mut Marks {
        &mut self.marks
    }
}

impl Conn {
    pub(crate) fn new(socket: Socket, session: Session, server: &Server) -> Conn {
        let mut parser = Parser::new(limits(server, session.link.is_some()));
        parser.set_authenticated(session.login.is_let_in(&server.acl));
        Conn {
            socket,
            session,
            marks: Marks::default(),
            tls: None,
            speech: Speech::Resp(parser),
            input: Input::default(),
            start: 0,
            came: Came::default(),
            out: Reply::new(false),
            gates: Gates::default(),
            gated_since_ns: None,
            unsent: None,
            blocked: false,
            blocked_ns: None,
            stream: None,
            reads_on: false,
            doing: Doing::Other,
            feed_waits: false,
            large: None,
            held: None,
            behind: Queue::default(),
            behind_bytes: 0,
            behind_from: 0,
            behind_gate: 0,
            told: 0,
            heavy: false,
            outside: true,
            moving: None,
            served: 0,
            settled: 0,
            ready: false,
            among: 0,
            arrears: 0,
            doomed: false,
            sent_with: 0,
            state: State::Running,
            half: false,
            eof: false,
            orphaned: false,
            ended: false,
            timer_ms: None,
            listening: false,
            need: 1,
            stride: BATCH,
            enough: 1,
            transit: Holding::default(),
            thirsty_ns: None,
            hauled: (0, 0),
            soft_since: None,
        }
    }

    pub(crate) fn pending_out(&self) -> usize {
        self.written() + self.behind_bytes
    }

    /// Bytes that wait only for the socket.
    pub(crate) fn written(&self) -> usize {
        let unsealed = self.tls.as_ref().map_or(0, |secure| secure.rest());
        self.out.len() + self.unsent.as_ref().map_or(0, |(bytes, from)| bytes.len() - from) + unsealed
    }

    /// Adds what it takes, as INFO shows that. Returns its memory in bytes. O(1)
    pub(crate) fn weigh(&self, buffered: &mut Buffered) -> u64 {
        let free = self.input.capacity() - self.input.len();
        let other = free as u64 + self.session.info.other_bytes();
        let sealed = self.tls.as_ref().map_or(0, |secure| secure.waiting());
        buffered.add((self.unread() + sealed) as u64, self.bytes_to_send() as u64, other)
    }

    fn unread(&self) -> usize {
        self.input.len() - self.start
    }

    /// Whether it may move to another loop: nothing is under way here except what [`Conn::pack`] resets.
    pub(crate) fn may_leave(&self) -> bool {
        let marked = [List::Continued, List::Dirty, List::Notified].iter().any(|list| self.marks.has(*list));
        let listed = marked || self.ready || self.listening;
        let ends = self.eof || self.doomed || self.orphaned || self.session.speech.closing;
        let speaks = self.is_replying()
            || self.pending_out() > 0
            || self.blocked
            || self.told > 0
            || self.owes_records();
        let session = &self.session;
        let alone = session.subs.is_empty() && !session.speech.muted && session.rows.loading.is_none();
        let idle = self.state == State::Running && session.away.is_none() && !self.has_work();
        let alone = alone && session.feed.is_none() && !self.is_link();
        !(listed || ends || speaks) && alone && idle && self.large.is_none() && self.held.is_none()
    }

    /// Whether no request of its client waits for this server: neither in the socket, nor received, nor for its
    /// reply. Cost: a system call if nothing was received.
    pub(crate) fn asks_nothing(&self) -> bool {
        let coming = self.is_queued()
            || self.ready
            || self.marks.has(List::Bulky)
            || self.among > 0
            || self.arrears > 0;
        let waits = coming || self.has_work() || self.gated_since_ns.is_some();
        self.session.speech.closing || !waits && !self.socket.has_unread()
    }

    /// Whether it is in the queue of connections to continue.
    #[inline]
    pub(crate) fn is_queued(&self) -> bool {
        self.marks.has(List::Continued)
    }

    /// Whether it waits for something that is delivered to this loop.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.state != State::Running || self.doomed
    }

    /// Prepares it to move to another loop, where it starts among the arrivals like a new connection. `settled`:
    /// see the field.
    pub(crate) fn pack(&mut self, settled: u64) {
        (self.outside, self.moving, self.settled) = (true, None, settled);
        (self.sent_with, self.served, self.timer_ms) = (0, 0, None);
        self.marks = Marks::default();
    }

    /// Whether more input is welcome.
    pub(crate) fn wants_input(&self) -> bool {
        if self.eof || self.outside || self.moving.is_some() || self.thirsty_ns.is_some() {
            return false;
        }
        if self.session.speech.closing {
            return true;
        }
        if self.has_sealed() {
            return false;
        }
        let blocked = self.state != State::Running || self.is_replying() || self.written() >= OUT_HIGH;
        // An incomplete command always gets more input, however much of it is here.
        let busy = self.is_queued() && self.unread() >= self.enough;
        !((blocked || busy) && self.unread() >= PARKED_INPUT)
    }

    /// The end of the last wait that its client asked for, which is no latency of what it sent behind.
    fn resumed_ns(&self) -> u64 {
        self.session.info.resumed_ns.load(Ordering::Relaxed)
    }

    /// Counts `n` received bytes. Closes the connection if they exceed `client-query-buffer-limit`.
    pub(crate) fn came(&mut self, n: usize, server: &Server, local: &Local) -> Next {
        if self.session.speech.closing {
            return Next::Wait;
        }
        add(&self.session.info.net_in, n as u64);
        local.log.recorder.add(Counter::NetInputBytes, n as u64);
        local.log.recorder.add(Counter::ReadsProcessed, 1);
        if let Some(link) = &mut self.session.link {
            link.note_came(n, local.log.now_ms);
            return Next::Continue;
        }
        if self.unread() + n > server.config.live.query_buffer_bytes.size() {
            local.log.recorder.add(Counter::QueryBufferDisconnections, 1);
            log::warn!("client {} exceeded client-query-buffer-limit", self.session.id);
            return Next::Close;
        }
        let waits = self.state != State::Running || self.has_work();
        self.came.came(n, local.log.receives_since_ns(), waits);
        Next::Continue
    }

    /// Receives what `event` announces. In a large argument, or behind much unread input, the bytes go
    /// straight into the connection's own buffer; otherwise they stay in the transport's.
    pub(crate) fn receive<'a, T: Transport>(
        &mut self,
        io: &'a mut T,
        event: &Event,
    ) -> std::io::Result<Received<'a>> {
        let argument = self.expects_much();
        let straight =
            matches!(event, Event::Readable(_) | Event::Last(_)) && (argument || self.unread() >= READ_BULK);
        if self.session.speech.closing || !straight {
            return io.receive(event, &mut self.socket, None);
        }
        self.compact();
        let room = if self.input.moves_with(READ_BULK) { READ_MOVING } else { READ_BULK };
        let room = if argument { self.need.min(room) } else { room };
        let expected = self.expected();
        io.receive(event, &mut self.socket, Some((self.input.room(room, expected), room)))
    }

    /// Whether a long argument is incomplete.
    pub(crate) fn expects_much(&self) -> bool {
        self.need > BULK
    }

    /// Whether much unread input is here: a long request, or many requests.
    pub(crate) fn holds_much(&self) -> bool {
        self.unread() > BULK
    }

    /// Whether the next bytes continue a long request or follow requests that had their quantum. Other
    /// clients' requests need not wait for such bytes.
    pub(crate) fn has_bulk_to_come(&self) -> bool {
        self.expects_much() || self.holds_much() || self.is_queued()
    }

    /// Keeps bytes that cannot run now.
    pub(crate) fn keep(&mut self, bytes: &[u8]) {
        if bytes.is_empty() || self.session.speech.closing {
            return;
        }
        self.compact();
        let expected = self.expected();
        self.input.append(bytes, expected);
    }

    /// Bytes that `input` will hold when the incomplete command is whole; 0 or less than that if unknown.
    fn expected(&self) -> usize {
        match &self.speech {
            _ if self.need > BULK => self.input.len() + self.need,
            Speech::Resp(parser) => self.start + parser.expected_bytes(),
            Speech::Http(_) => 0,
        }
    }

    /// Drops the consumed bytes if they are more than half of `input`, so that little is moved.
    fn compact(&mut self) {
        if self.start > 0 && (self.start == self.input.len() || self.start > self.input.len() / 2) {
            self.input.drop_front(self.start);
            self.start = 0;
        }
    }

    /// Runs commands and streams until the quantum ends, the input ends, or the client has to wait. `fresh`
    /// are bytes just received; the unused rest of them is kept.
    pub(crate) fn advance(
        &mut self,
        server: &Arc<Server>,
        local: &mut Local,
        tools: &mut Tools,
        pool: &mut Pool,
        fresh: &[u8],
    ) -> Next {
        if self.out.capacity() == 0 {
            self.out.swap(&mut pool.get());
        }
        let (started, mark) = (local.log.clock_ns, self.out.len());
        local.log.came_ns = self.came.first_of(self.unread() + fresh.len()).max(self.resumed_ns());
        let next = if self.unread() == 0 && !fresh.is_empty() {
            self.start = 0;
            let next = self.slice(server, local, tools, fresh);
            let end = self.large.as_ref().map_or(self.start, |large| large.end);
            self.start = 0;
            self.input.clear();
            if let Some(large) = self.large.take() {
                self.hold(fresh[..end].to_vec(), large);
            }
            self.keep(&fresh[end.min(fresh.len())..]);
            next
        } else {
            self.keep(fresh);
            let mut input = std::mem::take(&mut self.input);
            let next = self.slice(server, local, tools, input.bytes());
            if let Some(large) = self.large.take() {
                self.hold(input.take_to(large.end), large);
                self.start = 0;
            }
            self.input = input;
            next
        };
        local.log.came_ns = 0;
        self.heavy = local.log.clock_ns.saturating_sub(started) >= HEAVY_NS;
        self.after(local);
        let closes = self.is_link() && self.note_applied(server, local.log.now_ms);
        if self.hauls() {
            self.haul(server, local);
        }
        self.raise_gate(server, mark);
        if self.orphaned {
            self.out.clear();
            self.gates.forget();
        }
        if self.out.is_empty() {
            pool.put(self.out.take());
        }
        // A client that is gone does not wait for anything.
        if closes || self.orphaned && self.is_blocked() { Next::Close } else { next }
    }

    /// Has the bytes behind a place wait for what they tell of.
    #[inline]
    fn raise_gate(&mut self, server: &Server, mark: usize) {
        if self.reads_on {
            server.gate_of_all(&mut self.session);
            self.reads_on = self.stream.is_some();
        }
        if self.session.gate.lsn > server.durable() {
            self.gates.close(mark, self.session.gate.lsn);
        }
    }

    /// Runs a slice. A panic that has changed nothing ends only its command, or its connection.
    fn slice(&mut self, server: &Arc<Server>, local: &mut Local, tools: &mut Tools, input: &[u8]) -> Next {
        match panics::contain(|| self.run_slice(server, local, tools, input)) {
            Ok(next) => next,
            Err(_) => self.recover(server, local, tools, input),
        }
    }

    /// Recovers from a panic: answers the command with an error and skips it. Closes the connection if it is
    /// unknown what was read or written.
    #[cold]
    fn recover(&mut self, server: &Arc<Server>, local: &mut Local, tools: &mut Tools, input: &[u8]) -> Next {
        let doing = std::mem::replace(&mut self.doing, Doing::Other);
        (self.stream, self.state) = (None, State::Running);
        let mark = match doing {
            Doing::Command(mark) | Doing::Held(mark) | Doing::Parsing(mark) if mark <= self.out.len() => mark,
            _ => return self.give_up(input),
        };
        self.out.truncate(mark);
        if self.is_http() {
            let parsed = doing != Doing::Parsing(mark);
            return self.recover_request(server, local, tools, input, parsed);
        }
        exec::call::recover(server, local, &mut self.session, &mut self.out);
        let passed = match doing {
            Doing::Command(_) => panics::contain(|| self.pass_command(server, input)) == Ok(true),
            doing => matches!(doing, Doing::Held(_)),
        };
        if passed { Next::Continue } else { self.give_up(input) }
    }

    /// Skips the command at `start`; false if there is none.
    fn pass_command(&mut self, server: &Server, input: &[u8]) -> bool {
        self.restart_parser(server);
        let Speech::Resp(parser) = &mut self.speech else { return false };
        let mut batch = Batch::with_large(exec::job::MANY_BYTES);
        batch.fill(parser, &input[self.start..], 1);
        if batch.is_empty() {
            return false;
        }
        self.start += batch.end(0);
        self.restart_parser(server);
        true
    }

    /// Closes the connection once `out` is sent.
    fn give_up(&mut self, input: &[u8]) -> Next {
        log::error!(
            "client {} is closed after a panic: the state of its input and output is unknown",
            self.session.id
        );
        self.drop_open();
        self.held = None;
        self.session.speech.closing = true;
        self.start = input.len();
        Next::Wait
    }

    fn run_slice(
        &mut self,
        server: &Arc<Server>,
        local: &mut Local,
        tools: &mut Tools,
        input: &[u8],
    ) -> Next {
        let started = local.log.clock_ns;
        loop {
            if self.has_messages() && !self.session.speech.closing {
                if local.log.clock_ns.saturating_sub(started) >= QUANTUM_NS {
                    return Next::Continue;
                }
                self.write_behind();
                local.log.lap();
                continue;
            }
            if self.state != State::Running {
                return Next::Wait;
            }
            if self.session.speech.closing {
                return Next::Wait;
            }
            if self.session.info.killed.load(Ordering::Relaxed) {
                return Next::Close;
            }
            if local.log.clock_ns.saturating_sub(started) >= QUANTUM_NS || self.large.is_some() {
                return Next::Continue;
            }
            if self.written() >= OUT_HIGH {
                return Next::Wait;
            }
            if self.is_hungry() || self.is_replying() {
                if let Some(next) = self.write_on(server, local, tools) {
                    return next;
                }
                local.log.lap();
                continue;
            }
            if self.held.is_some() {
                self.run_held(server, local);
                local.log.lap();
                continue;
            }
            let ran = match self.speech {
                Speech::Resp(_) => {
                    self.run_batch(server, local, &mut tools.batch, input, started + QUANTUM_NS)
                }
                Speech::Http(_) => self.run_request(server, local, &mut tools.desk, input),
            };
            if !ran {
                self.ended = self.eof;
                return if self.eof { Next::Close } else { Next::Wait };
            }
        }
    }

    /// Whether a reply is being written piece by piece.
    fn is_replying(&self) -> bool {
        self.stream.is_some() || self.is_translating() || self.is_calling()
    }

    /// Writes the next piece for a replica, or of a reply. `Some`: the slice ends.
    fn write_on(&mut self, server: &Arc<Server>, local: &mut Local, tools: &mut Tools) -> Option<Next> {
        if self.is_hungry() {
            return self.write_feed(server, local);
        }
        if self.stream.is_some() && points::stays(Point::Stream, self.session.id) {
            return Some(Next::Continue);
        }
        if self.is_calling() {
            self.doing = Doing::Other;
            self.step_calls(server, local, tools);
        } else {
            self.reply_on(server, local, tools);
        }
        None
    }

    /// Writes the next piece of a reply.
    fn reply_on(&mut self, server: &Server, local: &Local, tools: &mut Tools) {
        self.doing = Doing::Other;
        panics::begin();
        if self.is_http() {
            return self.translate(server, local, &mut tools.desk);
        }
        if let Some(stream) = &mut self.stream
            && !stream.reply.fill(&mut self.out, STREAM_PART)
        {
            self.stream = None;
        }
    }

    /// Parses a batch of commands and runs them until the quantum ends or one has to wait; false if none can
    /// run now. The keys of a large batch are prefetched together.
    fn run_batch(
        &mut self,
        server: &Arc<Server>,
        local: &mut Local,
        batch: &mut Batch,
        input: &[u8],
        until_ns: u64,
    ) -> bool {
        let from = self.start;
        let Some(filled) = self.parse_batch(server, batch, &input[from..]) else { return false };
        let hashes = (batch.len() >= PREFETCH_FROM && self.session.multi.is_none())
            .then(|| prefetch(&server.keyspace, self.session.db, batch, &input[from..]));
        for i in 0..batch.len() {
            let authenticated = self.session.login.authenticated;
            if self.is_link() {
                let before = if i == 0 { 0 } else { batch.end(i - 1) };
                self.note_before(input.len() - from - before);
            }
            if let Some((base, words)) = batch.take_large(i) {
                if self.is_link() {
                    self.carry(&server.keyspace, &input[self.start..from + batch.end(i)]);
                }
                self.large = Some(Large { base: from + base, end: from + batch.end(i), words });
                self.restart_parser(server);
                return true;
            }
            if self.session.speech.reply_mode != ReplyMode::On && batch.follows_nothing(i) {
                self.session.speech.got_nothing();
            }
            let key_hash = hashes.as_ref().and_then(|hashes| hashes.of(i));
            let words = Words { args: batch.args(i, &input[from..]), kept: None, key_hash };
            let (mark, follows) = (self.out.len(), self.session.feed.is_some());
            if self.is_link() {
                self.carry(&server.keyspace, &input[self.start..from + batch.end(i)]);
            }
            self.doing = Doing::Command(mark);
            let flow = exec::execute(server, local, &mut self.session, words, &mut self.out);
            if follows && (self.out.len() > mark || !matches!(flow, Flow::Done)) {
                self.answered_replica(batch.args(i, &input[from..]), mark);
            }
            self.after_command(server, &flow);
            if self.is_link() {
                self.carried(&server.keyspace, &flow, true);
            }
            if self.session.login.authenticated != authenticated
                && let Speech::Resp(parser) = &mut self.speech
            {
                parser.set_authenticated(self.session.login.is_let_in(&server.acl));
            }
            self.start = from + batch.end(i);
            match flow {
                Flow::Done => {}
                Flow::Stream(stream) => self.stream = Some(Streaming::new(stream)),
                Flow::Parked(timeout_ms) => {
                    self.state = State::Parked(timeout_ms.map(|ms| local.log.now_ms + ms))
                }
                Flow::Held(until) => {
                    self.state = State::Held(until);
                    self.ask_for_rows(
                        server,
                        local,
                        (i + 1..batch.len()).map(|i| batch.args(i, &input[from..])),
                    );
                    // The command stays in the buffer and is run again.
                    self.start = from + if i == 0 { 0 } else { batch.end(i - 1) };
                    self.restart_parser(server);
                    return true;
                }
                Flow::Close => self.session.speech.closing = true,
            }
            if self.must_pause(local, until_ns) && (i + 1 < batch.len() || filled.stop != Stop::Full) {
                if local.log.clock_ns >= until_ns {
                    self.stride = (i + 1) as u8;
                }
                self.restart_parser(server);
                return true;
            }
        }
        if from + filled.used > self.start {
            self.session.speech.got_nothing();
            if self.is_link() {
                self.carry_rest(&server.keyspace, &input[self.start..from + filled.used]);
                self.carried(&server.keyspace, &Flow::Done, true);
            }
        }
        self.start = from + filled.used;
        if batch.len() > 1 {
            // Commands that are only queued or refused do not read the clock.
            local.log.lap();
        }
        self.end_batch(filled.stop, input)
    }

    /// Parses the next commands. None: the connection does not speak RESP.
    #[inline(always)]
    fn parse_batch(&mut self, server: &Server, batch: &mut Batch, input: &[u8]) -> Option<Filled> {
        let is_link = self.is_link();
        let Speech::Resp(parser) = &mut self.speech else { return None };
        // The limits may have changed since the last batch.
        parser.set_limits(limits(server, is_link));
        panics::begin();
        self.doing = Doing::Parsing(self.out.len());
        // Limits after AUTH are unknown until AUTH has run, so it is parsed alone.
        let max = match self.session.login.authenticated {
            true => self.stride.into(),
            false => {
                parser.set_authenticated(self.session.login.is_let_in(&server.acl));
                1
            }
        };
        Some(batch.fill(parser, input, max))
    }

    /// Whether the commands behind the one that ran have to wait.
    #[inline(always)]
    fn must_pause(&self, local: &Local, until_ns: u64) -> bool {
        self.stream.is_some()
            || self.state != State::Running
            || self.session.speech.closing
            || local.log.clock_ns >= until_ns
            || self.written() >= OUT_HIGH
            || self.is_hungry()
    }

    /// Requests the rows of commands behind one that waits for its own, so that they are loaded together.
    #[cold]
    fn ask_for_rows<'a>(&self, server: &Server, local: &Local, behind: impl Iterator<Item = Args<'a>>) {
        if self.session.rows.loading.is_some() {
            behind.for_each(|args| exec::fetching::ask_ahead(server, local, &self.session, args));
        }
    }

    /// Messages of tracking come right behind the reply.
    #[inline]
    fn after_command(&mut self, server: &Server, flow: &Flow) {
        if let Flow::Stream(stream) = flow {
            self.reads_on = stream.reads_on();
        }
        if self.session.tracking.is_some() {
            let answered = matches!(flow, Flow::Done) && self.takes_messages();
            exec::tracking::after_command(server, &mut self.session, answered, &mut self.out);
        }
    }

    /// Takes note of why a batch ended. False: no further command can run now.
    #[inline(always)]
    fn end_batch(&mut self, stop: Stop, input: &[u8]) -> bool {
        match stop {
            Stop::Full => {
                (self.need, self.enough) = (1, 1);
                self.stride = BATCH.min(2 * self.stride);
                true
            }
            Stop::More { need } => {
                self.doing = Doing::Parsing(self.out.len());
                if self.start < input.len() {
                    points::trip(Point::Parse);
                }
                self.need = need;
                self.enough = input.len() - self.start + need;
                false
            }
            Stop::Error(error) => {
                if self.session.speech.reply_mode == ReplyMode::On {
                    error.write(&mut self.out);
                }
                log::info!("protocol error from client {}: {}", self.session.id, error.reason());
                self.session.speech.closing = true;
                self.start = input.len();
                true
            }
        }
    }

    /// Makes the buffer of a large command the command's own, so that a user of it need not copy. The command
    /// keeps its work memory for as long as it lives.
    fn hold(&mut self, bytes: Vec<u8>, large: Large) {
        let words = OwnedArgs::from_parts(bytes, large.base, large.words);
        self.held = Some(Arc::new(words.held_by(self.transit.take())));
    }

    /// Runs a command of many bytes, perhaps not for the first time.
    fn run_held(&mut self, server: &Arc<Server>, local: &mut Local) {
        let Some(kept) = self.held.take() else { return };
        self.doing = Doing::Held(self.out.len());
        let words = Words { args: kept.args(), kept: Some(&kept), key_hash: None };
        let flow = exec::execute(server, local, &mut self.session, words, &mut self.out);
        self.after_command(server, &flow);
        if self.is_link() {
            self.carried(&server.keyspace, &flow, false);
        }
        match flow {
            Flow::Done => {}
            Flow::Stream(stream) => self.stream = Some(Streaming::new(stream)),
            Flow::Parked(timeout_ms) => {
                self.state = State::Parked(timeout_ms.map(|ms| local.log.now_ms + ms));
            }
            Flow::Held(until) => {
                self.state = State::Held(until);
                self.held = Some(kept.clone());
            }
            Flow::Close => self.session.speech.closing = true,
        }
        exec::job::discard(kept);
    }

    /// Resets the parser to begin again at `start`, where the commands that did not run are.
    fn restart_parser(&mut self, server: &Server) {
        let mut parser = Parser::new(limits(server, self.is_link()));
        parser.set_authenticated(self.session.login.is_let_in(&server.acl));
        self.speech = Speech::Resp(parser);
        self.need = 1;
        self.enough = 1;
    }

    /// Tidies up after a slice: frees empty buffers and publishes the sizes.
    fn after(&mut self, local: &Local) {
        if self.start == self.input.len() {
            self.start = 0;
            self.input.clear();
            if self.input.capacity() > KEEP {
                self.input.release();
            }
        }
        let info = &self.session.info;
        info.last_ms.store(local.log.now_ms, Ordering::Relaxed);
        info.query_bytes.store(self.unread() as u64, Ordering::Relaxed);
        info.query_free.store((self.input.capacity() - self.input.len()) as u64, Ordering::Relaxed);
        info.reply_bytes.store(self.pending_out() as u64, Ordering::Relaxed);
    }

    /// The deadline of a parked client, if it has one.
    pub(crate) fn waits_until(&self) -> Option<u64> {
        if let State::Parked(until) = self.state { until } else { None }
    }

    /// The time of the current wait's end or of its next look, if the timers do not know it yet. `Some(None)`:
    /// there is none any more.
    pub(crate) fn new_deadline(&mut self) -> Option<Option<u64>> {
        let deadline = match self.state {
            State::Parked(at) => at.into_iter().chain(self.session.look.map(|look| look.at_ms)).min(),
            State::Held(at) => Some(at),
            State::Running => None,
        };
        let changed = self.timer_ms != deadline;
        self.timer_ms = deadline;
        changed.then_some(deadline)
    }

    /// The timers do not know the client any more.
    pub(crate) fn forget_timer(&mut self) {
        self.timer_ms = None;
    }

    /// Ends the wait without a reply; a held command is run again.
    pub(crate) fn release(&mut self) {
        self.session.set_flag(flag::BLOCKED, false);
        // The next hold may have the same deadline.
        self.timer_ms = None;
        self.state = State::Running;
    }
}

fn limits(server: &Server, is_link: bool) -> Limits {
    if is_link {
        return Limits { words_max: i32::MAX as usize, bulk_bytes_max: usize::MAX >> 1 };
    }
    Limits { bulk_bytes_max: server.config.live.proto_max_bulk_bytes.size(), ..Limits::default() }
}

/// Counts an HTTP response.
fn add_response(local: &Local, status: u16) {
    let counter = match status / 100 {
        2 => Counter::Http2xx,
        3 => Counter::Http3xx,
        4 => Counter::Http4xx,
        _ => Counter::Http5xx,
    };
    local.log.recorder.add(counter, 1);
}

/// Adds to a figure that only this connection's loop writes, so that no locked instruction is needed.
fn add(figure: &AtomicU64, n: u64) {
    figure.store(figure.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}
