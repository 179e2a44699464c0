//! What an event loop needs of the kernel, in words that fit readiness (epoll) and completion (io_uring) alike.
//!
//! ```text
//! loop ──add, receive from, send, remove──► Transport ──► Epoll   says when a socket is ready; calls are made at once
//!      ◄──────────── events ──────────────               Uring   calls are queued; events bring what they did
//! ```
//!
//! - T1: a slot given to `remove` or `part` is not used again before [`Event::Free`] came for it (or `remove` said it is free).
//! - T2: bytes given to `send` belong to the transport until they come back ([`Sent`], [`Event::Unsent`]) or are gone.
//! - T3: [`Event::Listener`] and [`Event::Mail`] come when something new arrives, not as long as something is there.
//! - T4: nothing but `wait` sleeps.

use crate::ring::Lease;
use crate::socket::Socket;
use std::io;
use std::time::Duration;

/// Bytes sent at once: copying more would take longer than a quantum.
pub(crate) const SEND_MAX: usize = 256 * 1024;
/// Buffers kept for replies, and the largest that is kept.
const POOL: usize = 128;
const POOLED_BYTES_MAX: usize = 32 * 1024;

pub(crate) enum Event {
    /// The mailbox has mail.
    Mail,
    /// Somebody connects to the listener with this number.
    Listener(usize),
    /// There is something to `receive`.
    Readable(usize),
    /// The same, and the peer will send nothing after it.
    Last(usize),
    /// Bytes came: they are `receive`d and then given back with `done`.
    Arrived(usize, Lease),
    /// The peer will send no more.
    Ended(usize),
    /// The peer will send no more than what is still to be received, of which nothing is wanted now.
    Half(usize),
    /// What could not be sent can be sent now.
    Writable(usize),
    /// What was queued did not go out whole: it is to be sent again from `from` on, after `Writable` if `blocked`.
    Unsent { slot: usize, bytes: Vec<u8>, from: usize, blocked: bool },
    /// The connection is of no use any more.
    Broken(usize),
    /// A removed slot may be used again (T1).
    Free(usize),
}

impl Event {
    /// The connection it tells of, unless it is gone.
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

/// What became of bytes given to `send`.
pub(crate) enum Sent {
    /// They went out; the buffer can be used again.
    Done(Vec<u8>),
    /// They will go out with the next `wait`, which has something to say only if they do not.
    Queued,
    /// They went out up to here; the rest may be tried again, after [`Event::Writable`] if `blocked`.
    Short { bytes: Vec<u8>, from: usize, blocked: bool },
}

/// What `receive` got.
pub(crate) enum Received<'a> {
    Bytes(&'a [u8]),
    /// So many bytes were appended to the buffer that was lent.
    Appended(usize),
    /// Nothing for now.
    Nothing,
    /// The peer will send no more.
    Ended,
}

pub(crate) trait Transport {
    /// Registers a connection. Nothing is received from it before [`Transport::set_input`] asks for it.
    fn add(&mut self, slot: usize, socket: &Socket) -> io::Result<()>;

    /// Whether to receive from a connection. What is on its way already still comes.
    fn set_input(&mut self, slot: usize, socket: &Socket, wanted: bool) -> io::Result<()>;

    /// [`Event::Half`] of this connection has been heard and need not come again.
    fn heard_half(&mut self, _slot: usize, _socket: &Socket) -> io::Result<()> {
        Ok(())
    }

    /// What was told of the end of this connection will be served later, and need not come again before.
    fn put_off(&mut self, _slot: usize, _socket: &Socket) {}

    /// What came with [`Event::Readable`], [`Event::Last`] or [`Event::Arrived`]. `direct`: a buffer that is to get at most so many bytes
    /// more; a transport may use it to save a copy.
    fn receive<'a>(
        &'a mut self,
        event: &Event,
        socket: &mut Socket,
        direct: Option<(&mut Vec<u8>, usize)>,
    ) -> io::Result<Received<'a>>;

    /// Takes back what [`Event::Arrived`] lent. Returns what is to be served again, behind the others.
    fn done(&mut self, event: Event) -> Option<Event>;

    /// Sends `bytes[from..]`, or its first [`SEND_MAX`] bytes. Must not be called while a rest is blocked.
    fn send(&mut self, slot: usize, socket: &mut Socket, bytes: Vec<u8>, from: usize) -> io::Result<Sent>;

    /// Closes a connection; true if its slot is free at once.
    fn remove(&mut self, slot: usize, socket: Socket) -> bool;

    /// Whether nothing is under way of a connection of which no input is wanted: it may `part`.
    fn is_still(&self, slot: usize) -> bool;

    /// Gives up a connection that [`Transport::is_still`] without closing it; true if its slot is free at once.
    fn part(&mut self, slot: usize, socket: &Socket) -> bool;

    /// Does what is queued, sleeps until something happens or the time is up, and appends what happened. Buffers that
    /// are not needed any more go to the pool.
    fn wait(&mut self, timeout: Duration, events: &mut Vec<Event>, pool: &mut Pool);
}

/// Buffers for replies: idle connections hold none, and the one used last is in the cache.
#[derive(Default)]
pub(crate) struct Pool(Vec<Vec<u8>>);

/// Buffers above this are freed by the reclaimer.
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
            // Giving back much memory takes a while.
            exec::job::discard(buffer);
        }
    }
}
