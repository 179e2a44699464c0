//! The needs of an event loop from the kernel, in terms that fit both readiness (epoll) and completion
//! (io_uring).
//!
//! ```text
//! loop ── add, receive, send, remove ──► Transport ──► Epoll  reports ready sockets; calls are made at once
//!      ◄──────────── events ───────────                Uring  calls are queued; events bring their results
//! ```
//!
//! - T1: a slot given to `remove` or `part` is free when that call says so, or when [`Event::Free`] comes for
//!   it. It is not used again earlier.
//! - T2: bytes given to `send` belong to the transport until they come back ([`Sent`], [`Event::Unsent`]) or
//!   are gone.
//! - T3: [`Event::Listener`] and [`Event::Mail`] come when something new arrives, not as long as something is
//!   there.
//! - T4: nothing but `wait` sleeps.

use crate::ring::Lease;
use crate::socket::Socket;
use std::io;
use std::time::Duration;

/// Most bytes sent at once; copying more would take longer than a quantum.
pub(crate) const SEND_MAX: usize = 256 * 1024;
/// Most buffers kept for replies; `POOLED_BYTES_MAX` is the largest capacity kept.
const POOL: usize = 128;
const POOLED_BYTES_MAX: usize = 32 * 1024;

pub(crate) enum Event {
    /// The mailbox has mail.
    Mail,
    /// A client connects to the listener with this number.
    Listener(usize),
    /// Bytes are there to `receive`.
    Readable(usize),
    /// As `Readable`, and the peer sends nothing after them.
    Last(usize),
    /// Bytes came: `receive` reads them, then `done` gives them back.
    Arrived(usize, Lease),
    /// The peer sends no more.
    Ended(usize),
    /// The peer sends no more than what is still to be received, and no input is wanted now.
    Half(usize),
    /// Blocked bytes can be sent now.
    Writable(usize),
    /// A queued send did not go out whole. The rest, from `from` on, is to be sent again, after `Writable` if
    /// `blocked`.
    Unsent { slot: usize, bytes: Vec<u8>, from: usize, blocked: bool },
    /// The connection is of no use any more.
    Broken(usize),
    /// A removed slot may be used again (T1).
    Free(usize),
}

impl Event {
    /// The connection it is about; none for events that concern no open connection.
    pub(crate) fn slot(&self) -> Option<usize> {
        match self {
            Event::Mail | Event::Listener(_) | Event::Free(_) => None,
            Event::Readable(slot) | Event::Last(slot) | Event::Arrived(slot, _) => Some(*slot),
            Event::Ended(slot) | Event::Half(slot) | Event::Broken(slot) | Event::Writable(slot) => {
                Some(*slot)
            }
            Event::Unsent { slot, .. } => Some(*slot),
        }
    }
}

/// Result of `send`.
pub(crate) enum Sent {
    /// The bytes went out; the buffer can be used again.
    Done(Vec<u8>),
    /// The bytes go out with the next `wait`, which reports them only if they did not.
    Queued,
    /// Bytes before `from` went out. The rest may be tried again, after [`Event::Writable`] if `blocked`.
    Short { bytes: Vec<u8>, from: usize, blocked: bool },
}

/// Result of `receive`.
pub(crate) enum Received<'a> {
    Bytes(&'a [u8]),
    /// This many bytes were appended to the buffer that was lent.
    Appended(usize),
    /// Nothing for now.
    Nothing,
    /// The peer sends no more.
    Ended,
}

pub(crate) trait Transport {
    /// Registers a connection. Nothing is received from it before [`Transport::set_input`] asks for it.
    fn add(&mut self, slot: usize, socket: &Socket) -> io::Result<()>;

    /// Starts or stops receiving from a connection. Bytes already on their way still come.
    fn set_input(&mut self, slot: usize, socket: &Socket, wanted: bool) -> io::Result<()>;

    /// Notes that [`Event::Half`] of this connection was heard and need not come again.
    fn heard_half(&mut self, _slot: usize, _socket: &Socket) -> io::Result<()> {
        Ok(())
    }

    /// Notes that the reported end of this connection is served later, so that it need not be reported again
    /// until then.
    fn put_off(&mut self, _slot: usize, _socket: &Socket) {}

    /// Receives the bytes of [`Event::Readable`], [`Event::Last`] or [`Event::Arrived`]. `direct` is a buffer
    /// and the most bytes to append to it; a transport may use it to save a copy.
    fn receive<'a>(
        &'a mut self,
        event: &Event,
        socket: &mut Socket,
        direct: Option<(&mut Vec<u8>, usize)>,
    ) -> io::Result<Received<'a>>;

    /// Takes back the buffer that [`Event::Arrived`] lent. Returns an event to serve again, behind the
    /// others.
    fn done(&mut self, event: Event) -> Option<Event>;

    /// Sends `bytes[from..]`, or its first [`SEND_MAX`] bytes. Must not be called while the connection is
    /// blocked.
    fn send(&mut self, slot: usize, socket: &mut Socket, bytes: Vec<u8>, from: usize) -> io::Result<Sent>;

    /// Closes a connection; true if its slot is free at once.
    fn remove(&mut self, slot: usize, socket: Socket) -> bool;

    /// Whether nothing of this connection is under way, so that it may `part`. Valid only while no input is
    /// wanted.
    fn is_still(&self, slot: usize) -> bool;

    /// Gives up a connection that [`Transport::is_still`] without closing it; true if its slot is free at
    /// once.
    fn part(&mut self, slot: usize, socket: &Socket) -> bool;

    /// Does what is queued, sleeps until something happens or the timeout ends, and appends the events.
    /// Buffers that are not needed any more go to the pool.
    ///
    /// False if the system took not all of what was queued: some sends are yet to begin.
    fn wait(&mut self, timeout: Duration, events: &mut Vec<Event>, pool: &mut Pool) -> bool;
}

/// Buffers for replies. Idle connections hold none; the buffer used last, still in the cache, is handed out
/// first.
#[derive(Default)]
pub(crate) struct Pool(Vec<Vec<u8>>);

/// Capacity above which a buffer is freed by the reclaimer.
const LARGE: usize = 256 * 1024;

impl Pool {
    pub(crate) fn get(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_default()
    }

    pub(crate) fn put(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() > 0 && buffer.capacity() <= POOLED_BYTES_MAX && self.0.len() < POOL {
            buffer.clear();
            self.0.push(buffer);
        } else if buffer.capacity() > LARGE {
            // Freeing much memory takes a while.
            exec::job::discard(buffer);
        }
    }
}
