//! One connection: bytes in, commands run, bytes out. It speaks RESP, or HTTP (`http.rs`); all but how bytes become commands
//! and replies bytes is the same for both.
//!
//! ```text
//!            ┌──────────── Running ◄────────────┐
//!   command  │ goes to a worker or waits        │ its reply comes by mail, or its time is up
//!            └──────► Parked (deadline) ────────┘
//!              Held: CLIENT PAUSE; the command stays in the buffer and is run again
//! ```
//!
//! - C1: `input[start..]` are the bytes not consumed yet; a command's bytes stay until it has run. Bytes that just came
//!   are run where they lie, and only what is left of them is copied to `input`.
//! - C2: `unsent`, then `out`, are the bytes to be written; a stream's bytes follow them, and no command is run before a
//!   stream has ended (replies come in order).
//! - C3: an idle connection holds no buffers: `input` is freed or small, `out`'s went back to the pool.

mod http;

pub(crate) use http::refusal;

use crate::gates::Gates;
use crate::input::Input;
use crate::socket::Socket;
use crate::transport::{Event, Pool, Received, Sent, Transport};
use crate::{OUT_HIGH, QUANTUM_NS};
use exec::clients::Buffered;
use exec::memory::Incoming;
use exec::pubsub::{Encoded, Shared};
use exec::session::{ReplyMode, flag};
use exec::stats::Counter;
use exec::{Flow, Local, Server, Session, Stream};
use http::{Desk, Http};
use keyspace::Lsn;
use resp::{Batch, Limits, OwnedArgs, Parser, Reply, Span, Stop};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stdx::budget::Holding;
use stdx::panics;
use stdx::points::{self, Point};
use stdx::queue::Queue;

/// Commands parsed at once, at most: those that a quantum has no time for are parsed again.
const BATCH: u8 = 32;
/// Commands in a batch from which on looking at their keys together pays.
const PREFETCH_FROM: usize = 4;
/// An argument of which more than this is missing is received straight into the connection's own buffer.
const BULK: usize = 16 * 1024;
/// Bytes received at once into the connection's own buffer: into a large argument, or behind so many.
const READ_BULK: usize = 64 * 1024;
/// The same where as many times that are copied: 64 KB took 0.3 ms.
const READ_MOVING: usize = 8 * 1024;
/// Bytes a stream writes at once.
const STREAM_PART: usize = 16 * 1024;
/// Whoever was served for so long goes behind the others with its next request.
const HEAVY_NS: u64 = QUANTUM_NS / 2;
/// Bytes in `out` from which on messages wait as shared bytes.
const MESSAGES_MAX: usize = 32 * 1024;
/// Input buffers larger than this are given back when they are empty.
const KEEP: usize = 1024;
/// Bytes of a request from which on its memory is counted.
const HAUL: usize = 1 << 20;
/// A long request waits for memory no longer, and holds it no longer without a byte coming while others wait.
const HAUL_PATIENCE_NS: u64 = 5_000_000_000;
/// Unread input of a client that is waiting, above which no more is read: so much is parsed at a stretch.
const PARKED_INPUT: usize = 128 * 1024;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Running,
    /// Waits for mail; at most until then (milliseconds since 1970).
    Parked(Option<u64>),
    Held(u64),
}

/// What is to be done with a connection after it was served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Nothing until its socket says something.
    Wait,
    /// It has more to do: it goes to the end of the queue.
    Continue,
    Close,
}

/// What became of what a connection had to say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flushed {
    All,
    /// It goes out with the next wait; whether all of it will is known then.
    Queued,
    /// There is more to send at once.
    Part,
    /// There is more to send when the socket has room.
    Blocked,
    /// There is more to send when more effects are durable.
    Gated,
}

/// How bytes become commands, and replies bytes.
enum Speech {
    Resp(Parser),
    Http(Box<Http>),
}

/// What a loop serves its connections with.
pub(crate) struct Tools {
    batch: Batch,
    desk: Desk,
}

impl Default for Tools {
    fn default() -> Tools {
        Tools { batch: Batch::with_large(exec::job::MANY_BYTES), desk: Desk::default() }
    }
}

/// What a slice is in the midst of, should it panic, and how long `out` was when that began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Doing {
    /// What became of the reply under way is not known.
    Other,
    /// The protocol: no reply is under way.
    Parsing(usize),
    /// The command, or request, at `start`.
    Command(usize),
    /// A command of many bytes, which was taken out of the input before.
    Held(usize),
}

/// A command of many bytes in the input.
struct Large {
    base: usize,
    end: usize,
    words: Vec<Span>,
}

pub(crate) struct Conn {
    pub(crate) socket: Socket,
    pub(crate) session: Session,
    speech: Speech,
    input: Input,
    start: usize,
    out: Reply,
    /// Where bytes of `out` wait for what they tell of.
    gates: Gates,
    /// In the loop's list of connections that have such bytes.
    pub(crate) gated: bool,
    /// What did not fit into the socket, and from where on it is to be sent.
    unsent: Option<(Vec<u8>, usize)>,
    /// The socket is full: the transport tells when it is not.
    blocked: bool,
    blocked_ns: Option<u64>,
    stream: Option<Box<dyn Stream>>,
    doing: Doing,
    /// When the loop first saw that stream, by the wall clock; 0: not yet.
    pub(crate) stream_since_ms: u64,
    /// In the loop's list of connections with a stream.
    pub(crate) streaming: bool,
    /// In the loop's list of connections over their soft limit.
    pub(crate) limited: bool,
    /// A command of many bytes was found in the input: where it begins and ends, and its words.
    large: Option<Large>,
    /// A command of many bytes that is to be run (again).
    held: Option<Arc<OwnedArgs>>,
    /// Messages that came while a reply was streaming, and long ones: they go behind it, piece by piece.
    behind: Queue<Shared>,
    /// Bytes of `behind` that are not written yet, and how many of its first piece are.
    behind_bytes: usize,
    behind_from: usize,
    /// Bytes of messages written since it was flushed last.
    pub(crate) told: usize,
    /// Its last quantum was used up, or nearly: its next request goes behind those of others.
    pub(crate) heavy: bool,
    /// On the porch: it has not asked for anything yet, or not on this loop.
    pub(crate) outside: bool,
    /// The loop it is to go to as soon as nothing of it is under way here, and the window in which that was decided.
    pub(crate) moving: Option<(usize, u64)>,
    /// The window in which it was served last, and the first one in which it may be sent to another loop.
    pub(crate) served: u64,
    pub(crate) settled: u64,
    /// In the list of connections that have messages to be sent.
    pub(crate) notified: bool,
    /// Its socket is in the list of those that have something to be received.
    pub(crate) ready: bool,
    /// So it is, and stands with those that send long words.
    pub(crate) bulky: bool,
    /// Buffers of its bytes among what others asked, and what of it waits behind that, in order.
    pub(crate) among: u32,
    pub(crate) arrears: u32,
    /// It is about to be closed.
    pub(crate) doomed: bool,
    /// The loop's submission with which its last send goes out: there is one send per connection in each.
    pub(crate) sent_with: u64,
    pub(crate) state: State,
    /// The peer will send no more than what is still to be received.
    pub(crate) half: bool,
    /// The peer will send no more; what came is still run.
    eof: bool,
    /// The peer will send no more, and what came is run.
    ended: bool,
    /// The peer is gone: what it sent whole is still run, and nothing is answered.
    orphaned: bool,
    /// The deadline the loop's timers know of.
    pub(crate) timer_ms: Option<u64>,
    /// In the queue of connections to be continued.
    pub(crate) queued: bool,
    /// In the list of connections to be written this turn.
    pub(crate) dirty: bool,
    /// Whether the transport receives for it.
    pub(crate) listening: bool,
    /// More input is needed before anything can be run, and at least so much.
    need: usize,
    /// Commands it parses at once: about as many as a quantum has time for.
    stride: u8,
    /// Bytes that have to be there before there is anything to be run.
    enough: usize,
    /// What a long request holds of the memory of work, and since when one waits for that (monotonic clock).
    transit: Holding,
    thirsty_ns: Option<u64>,
    /// In the loop's list of connections with long requests, and what it had sent of one, and when, at the last look.
    pub(crate) hauling: bool,
    hauled: (u64, u64),
    /// Since when the soft output limit is exceeded, in milliseconds since 1970.
    soft_since: Option<u64>,
}

impl Conn {
    pub(crate) fn new(socket: Socket, session: Session, server: &Server) -> Conn {
        let mut parser = Parser::new(limits(server));
        parser.set_authenticated(session.is_let_in(server));
        Conn {
            socket,
            session,
            speech: Speech::Resp(parser),
            input: Input::default(),
            start: 0,
            out: Reply::new(false),
            gates: Gates::default(),
            gated: false,
            unsent: None,
            blocked: false,
            blocked_ns: None,
            stream: None,
            doing: Doing::Other,
            stream_since_ms: 0,
            streaming: false,
            limited: false,
            large: None,
            held: None,
            behind: Queue::default(),
            behind_bytes: 0,
            behind_from: 0,
            told: 0,
            heavy: false,
            outside: true,
            moving: None,
            served: 0,
            settled: 0,
            notified: false,
            ready: false,
            bulky: false,
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
            queued: false,
            dirty: false,
            listening: false,
            need: 1,
            stride: BATCH,
            enough: 1,
            transit: Holding::default(),
            thirsty_ns: None,
            hauling: false,
            hauled: (0, 0),
            soft_since: None,
        }
    }

    pub(crate) fn pending_out(&self) -> usize {
        self.written() + self.behind_bytes
    }

    /// Bytes that wait for the socket alone.
    pub(crate) fn written(&self) -> usize {
        self.out.len() + self.unsent.as_ref().map_or(0, |(bytes, from)| bytes.len() - from)
    }

    /// Adds what its buffers hold, as INFO shows it.
    pub(crate) fn weigh(&self, buffered: &mut Buffered) {
        let free = self.input.capacity() - self.input.len();
        buffered.add(self.unread() as u64, self.pending_out() as u64, free as u64);
    }

    fn unread(&self) -> usize {
        self.input.len() - self.start
    }

    /// Whether nothing of it is under way on its loop, or known there alone, but for what [`Conn::pack`] takes along.
    pub(crate) fn may_leave(&self) -> bool {
        let listed = self.queued || self.dirty || self.ready || self.notified || self.listening;
        let ends = self.eof || self.doomed || self.orphaned || self.session.closing;
        let speaks = self.is_replying() || self.pending_out() > 0 || self.blocked || self.told > 0;
        let session = &self.session;
        let alone = session.subs.is_empty() && !session.hushed && session.loading.is_none();
        let idle = self.state == State::Running && session.away.is_none() && !self.has_work();
        !(listed || ends || speaks) && alone && idle && self.large.is_none() && self.held.is_none()
    }

    /// Whether it waits for something that comes to this loop.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.state != State::Running || self.doomed
    }

    /// It goes to another loop, which waits for its next words as for those of a newcomer. `settled`: see there.
    pub(crate) fn pack(&mut self, settled: u64) {
        (self.outside, self.moving, self.settled) = (true, None, settled);
        (self.sent_with, self.served, self.timer_ms) = (0, 0, None);
        (self.streaming, self.limited, self.hauling) = (false, false, false);
    }

    /// Whether more input is welcome.
    pub(crate) fn wants_input(&self) -> bool {
        if self.eof || self.outside || self.moving.is_some() || self.thirsty_ns.is_some() {
            return false;
        }
        if self.session.closing {
            return true;
        }
        let blocked = self.state != State::Running || self.is_replying() || self.written() >= OUT_HIGH;
        // Of a command that is not complete more is welcome, however much of it is here.
        let busy = self.queued && self.unread() >= self.enough;
        !((blocked || busy) && self.unread() >= PARKED_INPUT)
    }

    /// Notes that so many bytes came; they are kept, or run at once.
    pub(crate) fn came(&mut self, n: usize, server: &Server, local: &Local) -> Next {
        if self.session.closing {
            return Next::Wait;
        }
        add(&self.session.info.net_in, n as u64);
        local.recorder.add(Counter::NetInputBytes, n as u64);
        local.recorder.add(Counter::ReadsProcessed, 1);
        if self.unread() + n > server.config.live.query_buffer_bytes.size() {
            local.recorder.add(Counter::QueryBufferDisconnections, 1);
            log::warn!("client {} exceeded client-query-buffer-limit", self.session.id);
            return Next::Close;
        }
        Next::Continue
    }

    /// Receives into the connection's own buffer if that is where the bytes are to be in any case: behind the rest of something
    /// large. Else where the transport has its bytes.
    pub(crate) fn receive<'a, T: Transport>(
        &mut self,
        io: &'a mut T,
        event: &Event,
    ) -> std::io::Result<Received<'a>> {
        let argument = self.expects_much();
        let straight =
            matches!(event, Event::Readable(_) | Event::Last(_)) && (argument || self.unread() >= READ_BULK);
        if self.session.closing || !straight {
            return io.receive(event, &mut self.socket, None);
        }
        self.compact();
        let room = if self.input.moves_with(READ_BULK) { READ_MOVING } else { READ_BULK };
        let room = if argument { self.need.min(room) } else { room };
        let expected = self.expected();
        io.receive(event, &mut self.socket, Some((self.input.room(room, expected), room)))
    }

    /// True in the middle of a long word.
    pub(crate) fn expects_much(&self) -> bool {
        self.need > BULK
    }

    /// True in the midst of a long request, or behind others that are to be run.
    pub(crate) fn holds_much(&self) -> bool {
        self.unread() > BULK
    }

    /// Whether what comes next is the rest of a long request, which is none yet, or stands behind requests that had their quantum:
    /// those of others need not wait for it.
    pub(crate) fn has_bulk_to_come(&self) -> bool {
        self.expects_much() || self.holds_much() || self.queued
    }

    /// The peer will send no more.
    pub(crate) fn end(&mut self) -> Next {
        self.eof = true;
        let idle = self.unread() == 0 && !self.is_replying() && self.held.is_none();
        if self.state == State::Running && (self.session.closing || idle) {
            // Replies may be on their way still, or come back from the transport: it is closed when all are out.
            self.ended = true;
            return Next::Wait;
        }
        if self.is_http() {
            // It may have said all it wanted to, and wait for the answers.
            return if self.state == State::Running { Next::Continue } else { Next::Wait };
        }
        // What was fully received is run; reads of a client that is gone are not.
        self.session.cancel.store(true, Ordering::Relaxed);
        if self.state == State::Running {
            return Next::Continue;
        }
        if self.orphan() { Next::Wait } else { Next::Close }
    }

    /// The peer is gone for good. True if it had sent more than what is running now: the connection stays until that is run.
    pub(crate) fn orphan(&mut self) -> bool {
        if self.orphaned {
            return true;
        }
        if self.is_http() {
            return false;
        }
        let acts = self.stream.as_ref().is_some_and(|stream| stream.has_effects());
        let rest = self.unread() > 0 || self.held.is_some() || acts;
        if !rest || self.is_blocked() || self.session.closing {
            return false;
        }
        (self.eof, self.orphaned) = (true, true);
        self.session.reply_mode = ReplyMode::Off;
        self.session.cancel.store(true, Ordering::Relaxed);
        if !acts {
            self.stream = None;
        }
        exec::job::discard((self.out.take(), self.unsent.take(), std::mem::take(&mut self.behind)));
        self.gates.forget();
        (self.behind_bytes, self.behind_from, self.blocked) = (0, 0, false);
        true
    }

    /// Whether its peer is gone, and what it sent is still run.
    pub(crate) fn is_orphaned(&self) -> bool {
        self.orphaned
    }

    /// Whether it waits for what others do, or for a time; what runs elsewhere ends by itself.
    pub(crate) fn is_blocked(&self) -> bool {
        let flags = self.session.info.flags.load(Ordering::Relaxed);
        matches!(self.state, State::Parked(_)) && flags & flag::BLOCKED != 0
    }

    /// Whether it waits for what others do, although its peer will send no more.
    pub(crate) fn waits_in_vain(&self) -> bool {
        (self.half || self.eof) && self.is_blocked()
    }

    /// Keeps bytes that cannot be run now.
    pub(crate) fn keep(&mut self, bytes: &[u8]) {
        if bytes.is_empty() || self.session.closing {
            return;
        }
        self.compact();
        let expected = self.expected();
        self.input.append(bytes, expected);
    }

    /// How many bytes `input` may have when what is half there is complete, if that is known.
    fn expected(&self) -> usize {
        match &self.speech {
            _ if self.need > BULK => self.input.len() + self.need,
            Speech::Resp(parser) => self.start + parser.expected_bytes(),
            Speech::Http(_) => 0,
        }
    }

    /// Moves what is unread to the front, if that is little.
    fn compact(&mut self) {
        if self.start > 0 && (self.start == self.input.len() || self.start > self.input.len() / 2) {
            self.input.drop_front(self.start);
            self.start = 0;
        }
    }

    /// Runs commands and streams until the quantum ends, the input does, or the client has to wait. `fresh` are bytes
    /// that just came; what is not run of them is kept.
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
        let (started, mark) = (local.clock_ns, self.out.len());
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
        self.heavy = local.clock_ns.saturating_sub(started) >= HEAVY_NS;
        self.after(local);
        if self.hauls() {
            self.haul(server, local);
        }
        if self.session.gate > server.durable() {
            self.gates.close(mark, self.session.gate);
        }
        if self.orphaned {
            self.out.clear();
            self.gates.forget();
        }
        if self.out.is_empty() {
            pool.put(self.out.take());
        }
        // Nobody is there to wait for anything.
        if self.orphaned && self.is_blocked() { Next::Close } else { next }
    }

    /// A slice, in which a panic that has changed nothing ends no more than its command, or its connection.
    fn slice(&mut self, server: &Arc<Server>, local: &mut Local, tools: &mut Tools, input: &[u8]) -> Next {
        match panics::contain(|| self.run_slice(server, local, tools, input)) {
            Ok(next) => next,
            Err(_) => self.recover(server, local, tools, input),
        }
    }

    /// After a panic: its command is answered with an error and left behind. Where nobody knows what was read, or written, the
    /// connection is closed.
    #[cold]
    fn recover(&mut self, server: &Arc<Server>, local: &mut Local, tools: &mut Tools, input: &[u8]) -> Next {
        let doing = std::mem::replace(&mut self.doing, Doing::Other);
        (self.stream, self.stream_since_ms, self.state) = (None, 0, State::Running);
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

    /// Leaves the command at `start` behind; false if there is none.
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

    /// Closes the connection when what stands in `out` is sent.
    fn give_up(&mut self, input: &[u8]) -> Next {
        log::error!(
            "client {} is closed after a panic: what it sent, or was sent, is not known",
            self.session.id
        );
        self.drop_open();
        self.held = None;
        self.session.closing = true;
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
        let started = local.clock_ns;
        loop {
            if self.has_messages() && !self.session.closing {
                if local.clock_ns.saturating_sub(started) >= QUANTUM_NS {
                    return Next::Continue;
                }
                self.write_behind();
                local.lap();
                continue;
            }
            if self.state != State::Running {
                return Next::Wait;
            }
            if self.session.closing {
                return Next::Wait;
            }
            if self.session.info.killed.load(Ordering::Relaxed) {
                return Next::Close;
            }
            if local.clock_ns.saturating_sub(started) >= QUANTUM_NS || self.large.is_some() {
                return Next::Continue;
            }
            if self.written() >= OUT_HIGH {
                return Next::Wait;
            }
            if self.is_replying() {
                if self.stream.is_some() && points::stays(Point::Stream, self.session.id) {
                    return Next::Continue;
                }
                self.reply_on(server, local, tools);
                local.lap();
                continue;
            }
            if self.held.is_some() {
                self.run_held(server, local);
                local.lap();
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
        self.stream.is_some() || self.is_translating()
    }

    /// Writes the next piece of a reply.
    fn reply_on(&mut self, server: &Server, local: &Local, tools: &mut Tools) {
        self.doing = Doing::Other;
        panics::begin();
        if self.is_http() {
            return self.translate(server, local, &mut tools.desk);
        }
        if let Some(stream) = &mut self.stream
            && !stream.fill(&mut self.out, STREAM_PART)
        {
            (self.stream, self.stream_since_ms) = (None, 0);
        }
    }

    /// Parses a batch of commands and runs them until the quantum ends or one has to wait; false if there is none to run
    /// now. The keys of a batch are fetched into the cache together.
    fn run_batch(
        &mut self,
        server: &Arc<Server>,
        local: &mut Local,
        batch: &mut Batch,
        input: &[u8],
        until_ns: u64,
    ) -> bool {
        let Speech::Resp(parser) = &mut self.speech else { return false };
        let from = self.start;
        // They may have been changed since the last batch.
        parser.set_limits(limits(server));
        panics::begin();
        self.doing = Doing::Parsing(self.out.len());
        // What is allowed after AUTH is not known before it ran.
        let max = match self.session.authenticated {
            true => self.stride.into(),
            false => {
                parser.set_authenticated(self.session.is_let_in(server));
                1
            }
        };
        let filled = batch.fill(parser, &input[from..], max);
        let hashes = (batch.len() >= PREFETCH_FROM && self.session.multi.is_none())
            .then(|| exec::prefetch(server, &self.session, batch, &input[from..]));
        for i in 0..batch.len() {
            let authenticated = self.session.authenticated;
            if let Some((base, words)) = batch.take_large(i) {
                self.large = Some(Large { base: from + base, end: from + batch.end(i), words });
                self.restart_parser(server);
                return true;
            }
            if self.session.reply_mode != ReplyMode::On && batch.follows_nothing(i) {
                self.session.got_nothing();
            }
            let args = batch.args(i, &input[from..]);
            local.key_hash = hashes.as_ref().and_then(|hashes| hashes.of(i));
            self.doing = Doing::Command(self.out.len());
            let flow = exec::execute(server, local, &mut self.session, args, &mut self.out);
            if self.session.authenticated != authenticated
                && let Speech::Resp(parser) = &mut self.speech
            {
                parser.set_authenticated(self.session.is_let_in(server));
            }
            self.start = from + batch.end(i);
            match flow {
                Flow::Done => {}
                Flow::Stream(stream) => self.stream = Some(stream),
                Flow::Parked(timeout_ms) => {
                    self.state = State::Parked(timeout_ms.map(|ms| local.now_ms + ms))
                }
                Flow::Held(until) => {
                    self.state = State::Held(until);
                    if self.session.loading.is_some() {
                        let rest = (i + 1..batch.len()).map(|i| batch.args(i, &input[from..]));
                        rest.for_each(|args| exec::sources::ask_ahead(server, local, &self.session, args));
                    }
                    // The command stays in the buffer and is run again.
                    self.start = from + if i == 0 { 0 } else { batch.end(i - 1) };
                    self.restart_parser(server);
                    return true;
                }
                Flow::Close => self.session.closing = true,
            }
            let pause = self.stream.is_some()
                || self.state != State::Running
                || self.session.closing
                || local.clock_ns >= until_ns
                || self.written() >= OUT_HIGH;
            if pause && (i + 1 < batch.len() || filled.stop != Stop::Full) {
                if local.clock_ns >= until_ns {
                    self.stride = (i + 1) as u8;
                }
                self.restart_parser(server);
                return true;
            }
        }
        if from + filled.used > self.start {
            self.session.got_nothing();
        }
        self.start = from + filled.used;
        if batch.len() > 1 {
            // What is only queued, or refused, does not read the clock.
            local.lap();
        }
        match filled.stop {
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
                if self.session.reply_mode == ReplyMode::On {
                    error.write(&mut self.out);
                }
                log::info!("protocol error from client {}: {}", self.session.id, error.reason());
                self.session.closing = true;
                self.start = input.len();
                true
            }
        }
    }

    /// Makes the buffer with a command of many bytes the command's own, so that whoever keeps it need not copy. What it holds of the
    /// memory of work it holds as long as it is kept.
    fn hold(&mut self, bytes: Vec<u8>, large: Large) {
        let words = OwnedArgs::from_parts(bytes, large.base, large.words);
        self.held = Some(Arc::new(words.held_by(self.transit.take())));
    }

    /// Whether its request is so long that its memory is counted, or was.
    fn hauls(&self) -> bool {
        self.input.capacity() > HAUL
            || self.need > HAUL
            || self.transit.held() > 0
            || self.thirsty_ns.is_some()
    }

    /// Holds memory for a long request, of which so much is known as came; without it no more is read. A request that cannot have
    /// it is refused, and its client as well, for what would come is the rest of it.
    #[cold]
    fn haul(&mut self, server: &Server, local: &Local) {
        let coming = if self.need > BULK { self.input.len() + self.need } else { 0 };
        let bytes = match self.input.capacity().max(coming) {
            bytes if bytes > HAUL && !self.session.closing => bytes as u64,
            _ => {
                self.transit.take();
                return self.set_thirsty(server, None);
            }
        };
        let memory = &server.memory;
        match memory.hold_request(&server.keyspace, &mut self.transit, bytes) {
            Incoming::Held => self.set_thirsty(server, None),
            Incoming::Waits => {
                let since_ns = self.thirsty_ns.unwrap_or(local.clock_ns);
                self.set_thirsty(server, Some(since_ns));
            }
            Incoming::Never => self.refuse(server, bytes),
        }
    }

    fn set_thirsty(&mut self, server: &Server, since_ns: Option<u64>) {
        match (self.thirsty_ns.is_some(), since_ns.is_some()) {
            (false, true) => _ = server.memory.thirsty.fetch_add(1, Ordering::Relaxed),
            (true, false) => _ = server.memory.thirsty.fetch_sub(1, Ordering::Relaxed),
            _ => {}
        }
        self.thirsty_ns = since_ns;
    }

    /// Refuses a request for want of memory. It is not there as a whole, so the connection ends with it.
    fn refuse(&mut self, server: &Server, bytes: u64) {
        let max = server.config.live.maxmemory_bytes.size() as u64;
        let why = match bytes > max {
            true => format!("OOM a request of {bytes} bytes is larger than 'maxmemory'"),
            false => format!("OOM no memory for a request of {bytes} bytes, see 'work-max-memory'"),
        };
        log::info!("client {} closed: {why}", self.session.id);
        if self.session.reply_mode == ReplyMode::On && !self.is_http() {
            self.out.error(&why);
        }
        self.session.closing = true;
        self.start = 0;
        self.input.clear();
        self.input.release();
        self.need = 1;
        self.transit.take();
        self.set_thirsty(server, None);
    }

    /// Looks at a long request again: whether there is memory for it now, and whether it comes at all while others wait for what it
    /// holds. False: it is not one any more.
    pub(crate) fn look_at_haul(&mut self, server: &Server, local: &Local) -> bool {
        let patience = |since_ns: u64| local.clock_ns.saturating_sub(since_ns) >= HAUL_PATIENCE_NS;
        let came = self.session.info.net_in.load(Ordering::Relaxed);
        if self.hauled.0 != came || self.hauled.1 == 0 {
            self.hauled = (came, local.clock_ns);
        }
        let idle = self.thirsty_ns.is_none() && patience(self.hauled.1);
        let in_vain = self.thirsty_ns.is_some_and(patience);
        let waited_for = server.memory.thirsty.load(Ordering::Relaxed) > 0;
        if in_vain || idle && waited_for && self.transit.held() > 0 {
            self.refuse(server, self.input.capacity().max(self.input.len() + self.need) as u64);
        } else {
            self.haul(server, local);
        }
        self.hauling = self.hauls();
        if !self.hauling {
            self.hauled = (0, 0);
        }
        self.hauling
    }

    /// Its request is so long that it is to be looked at now and then, and is not yet.
    pub(crate) fn begins_to_haul(&mut self) -> bool {
        self.hauls() && !std::mem::replace(&mut self.hauling, true)
    }

    /// Runs a command of many bytes, perhaps not for the first time.
    fn run_held(&mut self, server: &Arc<Server>, local: &mut Local) {
        let Some(kept) = self.held.take() else { return };
        local.incoming = Some(kept.clone());
        local.key_hash = None;
        self.doing = Doing::Held(self.out.len());
        let flow = exec::execute(server, local, &mut self.session, kept.args(), &mut self.out);
        local.incoming = None;
        match flow {
            Flow::Done => {}
            Flow::Stream(stream) => self.stream = Some(stream),
            Flow::Parked(timeout_ms) => {
                self.state = State::Parked(timeout_ms.map(|ms| local.now_ms + ms));
            }
            Flow::Held(until) => {
                self.state = State::Held(until);
                self.held = Some(kept.clone());
            }
            Flow::Close => self.session.closing = true,
        }
        exec::job::discard(kept);
    }

    /// Forgets what the parser knows of commands that were not run: it begins again at `start`.
    fn restart_parser(&mut self, server: &Server) {
        let mut parser = Parser::new(limits(server));
        parser.set_authenticated(self.session.is_let_in(server));
        self.speech = Speech::Resp(parser);
        self.need = 1;
        self.enough = 1;
    }

    /// Bookkeeping after a slice: buffers that are empty shrink, others see the sizes.
    fn after(&mut self, local: &Local) {
        if self.start == self.input.len() {
            self.start = 0;
            self.input.clear();
            if self.input.capacity() > KEEP {
                self.input.release();
            }
        }
        let info = &self.session.info;
        info.last_ms.store(local.now_ms, Ordering::Relaxed);
        info.query_bytes.store(self.unread() as u64, Ordering::Relaxed);
        info.query_free.store((self.input.capacity() - self.input.len()) as u64, Ordering::Relaxed);
        info.reply_bytes.store(self.pending_out() as u64, Ordering::Relaxed);
    }

    /// Ends the wait with a reply that came by mail, and leaves when effects up to `gate` are durable.
    pub(crate) fn resume(&mut self, bytes: Vec<u8>, stream: Option<Box<dyn Stream>>, gate: Lsn) {
        if gate > 0 {
            self.session.gate = self.session.gate.max(gate);
            self.gates.close(self.out.len(), gate);
        }
        self.session.set_flag(flag::BLOCKED, false);
        self.state = State::Running;
        self.session.hushed = false;
        // HELLO may have come with it.
        self.out.set_resp3(self.session.resp3);
        if self.session.mutes_reply() {
            return self.session.take_told(&mut self.out);
        }
        self.stream = stream;
        if self.is_http() {
            return self.replied(bytes);
        }
        if self.out.is_empty() && bytes.len() > KEEP {
            // Large replies are handed over, not copied.
            self.out = Reply::with_buffer(bytes, self.session.resp3);
        } else {
            self.out.encoded(&bytes);
        }
    }

    /// When the time of a parked client is up, if it has one.
    pub(crate) fn waits_until(&self) -> Option<u64> {
        if let State::Parked(until) = self.state { until } else { None }
    }

    /// The deadline of the current wait, if there is one, where the timers do not know that yet.
    pub(crate) fn new_deadline(&mut self) -> Option<Option<u64>> {
        let deadline = match self.state {
            State::Parked(at) => at,
            State::Held(at) => Some(at),
            State::Running => None,
        };
        let changed = self.timer_ms != deadline;
        self.timer_ms = deadline;
        changed.then_some(deadline)
    }

    /// Ends the wait without a reply: what was held is run again.
    pub(crate) fn release(&mut self) {
        self.session.set_flag(flag::BLOCKED, false);
        // It may be held until the same time again.
        self.timer_ms = None;
        self.state = State::Running;
    }

    /// Appends a message that is no reply. It goes between replies, never inside one: while a stream runs it waits. True
    /// if the connection has to be continued for it.
    pub(crate) fn push(&mut self, message: &Encoded, pool: &mut Pool) -> bool {
        match message {
            Encoded::Short(bytes) if self.takes_messages() => {
                if self.out.capacity() == 0 {
                    self.out.swap(&mut pool.get());
                }
                self.out.encoded(bytes);
                self.told += bytes.len();
                return false;
            }
            Encoded::Short(bytes) => self.behind.push_back(Shared::Own(bytes.clone())),
            Encoded::Long(parts) => self.behind.extend(parts.iter().cloned()),
        }
        self.behind_bytes += message.len();
        true
    }

    /// Whether a short message is copied to `out`: its buffer must not grow by leaps.
    fn takes_messages(&self) -> bool {
        !self.session.hushed
            && self.stream.is_none()
            && self.behind.is_empty()
            && self.out.len() < MESSAGES_MAX
    }

    /// Whether messages that had to wait can be written: also while its command waits for something.
    fn has_messages(&self) -> bool {
        !self.behind.is_empty() && !self.session.hushed && self.stream.is_none() && self.written() < OUT_HIGH
    }

    /// Writes some of the messages that had to wait.
    fn write_behind(&mut self) {
        let until = self.out.len() + STREAM_PART;
        while let Some(piece) = self.behind.front() {
            let room = until.saturating_sub(self.out.len());
            if room == 0 {
                return;
            }
            let rest = &piece[self.behind_from..];
            let part = rest.len().min(room);
            self.out.encoded(&rest[..part]);
            self.behind_bytes -= part;
            self.behind_from += part;
            if self.behind_from == piece.len() {
                self.behind_from = 0;
                if let Some(piece) = self.behind.pop_front()
                    && piece.len() >= exec::job::MANY_BYTES
                {
                    exec::job::discard(piece);
                }
            }
        }
        self.behind = Queue::default();
    }

    /// Gives its socket away; what is large of the rest is freed elsewhere.
    pub(crate) fn dismiss(mut self, server: &Server) -> Socket {
        self.set_thirsty(server, None);
        self.drop_open();
        let unsent = self.unsent.take().map_or(Vec::new(), |(bytes, _)| bytes);
        let end = self.input.len();
        for buffer in [self.input.take_to(end), self.out.take(), unsent] {
            if buffer.capacity() >= exec::job::MANY_BYTES {
                exec::job::discard(buffer);
            }
        }
        if self.behind_bytes >= exec::job::MANY_BYTES {
            exec::job::discard(self.behind);
        }
        if let Some(held) = self.held.take() {
            exec::job::discard(held);
        }
        self.socket
    }

    /// Takes back what the transport could not send.
    pub(crate) fn put_back(&mut self, bytes: Vec<u8>, from: usize, blocked: bool, now_ns: u64) {
        debug_assert!(self.unsent.is_none(), "one send at a time");
        let rest = (bytes.len() - from) as u64;
        add(&self.session.info.net_out, rest.wrapping_neg());
        self.unsent = Some((bytes, from));
        self.blocked = blocked;
        if blocked {
            self.blocked_ns.get_or_insert(now_ns);
        }
    }

    /// The socket has room again. Tells since when it had none (monotonic clock).
    pub(crate) fn unblock(&mut self) -> Option<u64> {
        self.blocked = false;
        self.blocked_ns.take()
    }

    /// Takes those of the bytes to be sent that may leave; None: none may.
    #[cold]
    fn take_free(&mut self, durable: Lsn) -> Option<Vec<u8>> {
        let free = self.gates.free(self.out.len(), durable);
        if free == 0 {
            return None;
        }
        self.gates.left(free);
        let mut bytes = self.out.take();
        if free < bytes.len() {
            self.out.encoded(&bytes.split_off(free));
        }
        Some(bytes)
    }

    /// Sends what waits, as far as it tells of nothing behind `durable`.
    pub(crate) fn flush<T: Transport>(
        &mut self,
        io: &mut T,
        slot: usize,
        (local, durable): (&Local, Lsn),
        pool: &mut Pool,
    ) -> std::io::Result<Flushed> {
        self.told = 0;
        if self.blocked {
            self.session.info.reply_bytes.store(self.pending_out() as u64, Ordering::Relaxed);
            return Ok(Flushed::Blocked);
        }
        let (bytes, from) = match self.unsent.take() {
            Some(unsent) => unsent,
            None if self.out.is_empty() => return Ok(Flushed::All),
            None if !self.gates.are_open() => match self.take_free(durable) {
                Some(bytes) => (bytes, 0),
                None => return Ok(Flushed::Gated),
            },
            None => (self.out.take(), 0),
        };
        if let Some(http) = self.as_http() {
            http.progress_ms = local.now_ms;
        }
        let asked = (bytes.len() - from) as u64;
        local.recorder.add(Counter::WritesProcessed, 1);
        let info = &self.session.info;
        info.reply_bytes.store(self.pending_out() as u64, Ordering::Relaxed);
        add(&info.net_out, asked);
        local.recorder.add(Counter::NetOutputBytes, asked);
        match io.send(slot, &mut self.socket, bytes, from)? {
            Sent::Done(buffer) => {
                pool.put(buffer);
                Ok(if self.out.is_empty() { Flushed::All } else { Flushed::Part })
            }
            Sent::Queued => Ok(Flushed::Queued),
            Sent::Short { bytes, from, blocked } => {
                let rest = (bytes.len() - from) as u64;
                local.recorder.add(Counter::NetOutputBytes, rest.wrapping_neg());
                self.put_back(bytes, from, blocked, local.clock_ns);
                self.session.info.reply_bytes.store(self.pending_out() as u64, Ordering::Relaxed);
                Ok(if blocked { Flushed::Blocked } else { Flushed::Part })
            }
        }
    }

    /// Whether its reply is being streamed.
    pub(crate) fn streams(&self) -> bool {
        self.stream.is_some()
    }

    /// What its streamed reply keeps alive.
    pub(crate) fn held(&self, held: &mut dyn FnMut(exec::Held)) {
        if let Some(stream) = &self.stream {
            stream.holds(held);
        }
    }

    /// Whether more waits for it than the soft limit allows for long.
    pub(crate) fn is_over_soft_limit(&self) -> bool {
        self.soft_since.is_some()
    }

    /// Bytes that stand in memory to be sent to the client, in its buffer or behind it.
    pub(crate) fn bytes_to_send(&self) -> usize {
        self.pending_out() + self.stream.as_ref().map_or(0, |stream| stream.unsent_bytes())
    }

    /// Whether the client is to be cut off because it does not read.
    pub(crate) fn exceeds_output_limit(&mut self, server: &Server, now_ms: u64) -> bool {
        let class = if self.session.subs.is_empty() { 0 } else { 2 };
        let limit = &server.config.live.output_limits[class];
        let pending = self.bytes_to_send();
        let (hard, soft) = (limit.hard_bytes.size(), limit.soft_bytes.size());
        if hard > 0 && pending > hard {
            return true;
        }
        if soft == 0 || pending <= soft {
            self.soft_since = None;
            return false;
        }
        let since = *self.soft_since.get_or_insert(now_ms);
        now_ms.saturating_sub(since) >= limit.soft_s.get() as u64 * 1000
    }

    /// Whether something can be run without more input.
    pub(crate) fn has_work(&self) -> bool {
        self.has_messages()
            || self.state == State::Running
                && self.written() < OUT_HIGH
                && (self.is_replying()
                    || self.held.is_some()
                    || self.unread() > 0 && (self.unread() >= self.enough || self.eof))
    }

    pub(crate) fn is_finished(&self) -> bool {
        (self.session.closing || self.ended)
            && self.pending_out() == 0
            && !self.is_replying()
            && self.state == State::Running
    }
}

fn limits(server: &Server) -> Limits {
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
    local.recorder.add(counter, 1);
}

/// Adds to a figure only this connection's loop writes: no locked instruction is needed.
fn add(figure: &AtomicU64, n: u64) {
    figure.store(figure.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}
