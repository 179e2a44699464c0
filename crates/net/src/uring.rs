//! The transport over io_uring: what a turn wants goes to the kernel in one call, which also waits.
//!
//! Each connection has one receive that stays in place and takes buffers from the ring as bytes come, so idle
//! connections hold none; replies are sent by the call that waits for the next requests. Connections are places in
//! the ring's table, so the kernel counts no references to their files. Listeners are only polled: accepting is left to
//! the loop, in slices, where the kernel would take a whole storm at once.
//!
//! - U1: a slot is free when it was removed and every request in flight for it has had its last completion.
//! - U2: a connection's descriptor stays open until the entries that name it have been submitted.

use crate::ring::{Completion, File, Ring};
use crate::socket::Socket;
use crate::transport::{Event, Pool, Received, SEND_MAX, Sent, Transport};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

/// What a token is about: the upper half; the slot or number is the lower.
const RECEIVE: u64 = 1 << 32;
const WRITABLE: u64 = 2 << 32;
const GONE: u64 = 3 << 32;
const LISTENER: u64 = 4 << 32;
const MAILBOX: u64 = 5 << 32;
const SLOT: u64 = (1 << 32) - 1;

pub(crate) struct Uring {
    ring: Ring,
    mailbox: RawFd,
    listeners: Vec<RawFd>,
    lines: Vec<Line>,
    /// Removed connections whose descriptors are still open (U2).
    leaving: Vec<(usize, Socket)>,
}

/// A connection as the ring sees it.
struct Line {
    file: File,
    open: bool,
    /// Its descriptor is closed (U2).
    closed: bool,
    /// Bytes are wanted.
    wanted: bool,
    receive: Receive,
    /// Somebody waits for room in the socket.
    writable: bool,
    /// Somebody waits for its end: while nothing is received nothing else would tell.
    gone: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Receive {
    Off,
    On,
    /// Cancelled, its last completion not seen yet.
    Ending,
}

impl Line {
    fn is_quiet(&self) -> bool {
        self.receive == Receive::Off && !self.writable && !self.gone
    }
}

impl Uring {
    /// Errors: see [`Ring::new`]. `direct`: for how many connections the ring's table has places.
    pub(crate) fn new(
        mailbox: BorrowedFd<'_>,
        listeners: &[BorrowedFd<'_>],
        direct: u32,
    ) -> io::Result<Uring> {
        let mut uring = Uring {
            ring: Ring::new(direct)?,
            mailbox: mailbox.as_raw_fd(),
            listeners: listeners.iter().map(|fd| fd.as_raw_fd()).collect(),
            lines: Vec::new(),
            leaving: Vec::new(),
        };
        uring.watch(MAILBOX);
        (0..listeners.len()).for_each(|i| uring.watch(LISTENER | i as u64));
        Ok(uring)
    }

    /// Waits for what never ends: mail and new connections.
    fn watch(&mut self, token: u64) {
        let fd = match token {
            MAILBOX => self.mailbox,
            _ => self.listeners[(token & SLOT) as usize],
        };
        self.ring.poll(token, File::Plain(fd), libc::POLLIN as u32, true);
    }

    fn begin_receiving(&mut self, slot: usize) {
        let line = &mut self.lines[slot];
        line.receive = Receive::On;
        self.ring.receive(RECEIVE | slot as u64, line.file);
    }

    fn complete(&mut self, done: Completion, events: &mut Vec<Event>) {
        let at = (done.token & SLOT) as usize;
        match done.token & !SLOT {
            MAILBOX | LISTENER => {
                events.push(if done.token == MAILBOX { Event::Mail } else { Event::Listener(at) });
                if !done.more {
                    self.watch(done.token);
                }
            }
            RECEIVE => self.received(at, done, events),
            kind => {
                let line = &mut self.lines[at];
                *(if kind == WRITABLE { &mut line.writable } else { &mut line.gone }) = false;
                if line.open && done.result != Err(Errno::CANCELED) {
                    events.push(if kind == WRITABLE { Event::Writable(at) } else { Event::Broken(at) });
                }
                self.free_if_quiet(at, events);
            }
        }
    }

    fn received(&mut self, slot: usize, done: Completion, events: &mut Vec<Event>) {
        let open = self.lines[slot].open;
        match done.lease {
            Some(lease) if open && done.result.is_ok_and(|n| n > 0) => {
                events.push(Event::Arrived(slot, lease));
            }
            Some(lease) => self.ring.give_back(lease),
            None => {}
        }
        if done.more {
            return;
        }
        let line = &mut self.lines[slot];
        line.receive = Receive::Off;
        let again = match done.result {
            Ok(0) => {
                events.extend(open.then_some(Event::Ended(slot)));
                false
            }
            // It ended because there was no buffer, or no place for a completion, or because it was cancelled.
            Ok(_) | Err(Errno::NOBUFS | Errno::CANCELED | Errno::INTR | Errno::AGAIN) => true,
            Err(_) => {
                events.extend(open.then_some(Event::Broken(slot)));
                false
            }
        };
        if open && again && line.wanted {
            self.begin_receiving(slot);
        }
        self.free_if_quiet(slot, events);
    }

    fn free_if_quiet(&mut self, slot: usize, events: &mut Vec<Event>) {
        let line = &self.lines[slot];
        if !line.open && line.closed && line.is_quiet() {
            events.push(Event::Free(slot));
        }
    }

    /// Closes the descriptors of what was removed before the last call to the kernel (U2).
    fn close_removed(&mut self, removed: usize, events: &mut Vec<Event>) {
        for (slot, socket) in self.leaving.drain(..removed).collect::<Vec<_>>() {
            self.ring.forget(self.lines[slot].file);
            drop(socket);
            self.lines[slot].closed = true;
            self.free_if_quiet(slot, events);
        }
    }

    /// Takes back the buffers of sends.
    fn settle(&mut self, events: &mut Vec<Event>, pool: &mut Pool) {
        let Uring { ring, lines, .. } = self;
        let mut blocked = Vec::new();
        ring.ended(|ended| {
            let slot = (ended.token & SLOT) as usize;
            if !lines[slot].open {
                return pool.put(ended.bytes);
            }
            let (asked, went) = match ended.result {
                Ok(went) => (ended.to - ended.from, went),
                Err(Errno::AGAIN | Errno::INTR) => (ended.to - ended.from, 0),
                Err(_) => return events.push(Event::Broken(slot)),
            };
            let from = ended.from + went;
            if from == ended.bytes.len() {
                return pool.put(ended.bytes);
            }
            if went < asked {
                blocked.push(slot);
            }
            events.push(Event::Unsent { slot, bytes: ended.bytes, from, blocked: went < asked });
        });
        for slot in blocked {
            let line = &mut self.lines[slot];
            if !line.writable {
                line.writable = true;
                self.ring.poll(WRITABLE | slot as u64, line.file, libc::POLLOUT as u32, false);
            }
        }
    }
}

impl Transport for Uring {
    fn add(&mut self, slot: usize, socket: &Socket) -> io::Result<()> {
        let line = Line {
            file: self.ring.know(slot, socket.raw()),
            open: true,
            closed: false,
            wanted: true,
            receive: Receive::Off,
            writable: false,
            gone: false,
        };
        match self.lines.get_mut(slot) {
            Some(old) => {
                assert!(!old.open && old.is_quiet(), "T1: a slot in use is not given away");
                *old = line;
            }
            None => {
                assert_eq!(slot, self.lines.len(), "slots are given out without gaps");
                self.lines.push(line);
            }
        }
        self.begin_receiving(slot);
        Ok(())
    }

    fn set_input(&mut self, slot: usize, _: &Socket, wanted: bool) -> io::Result<()> {
        let line = &mut self.lines[slot];
        line.wanted = wanted;
        match (wanted, line.receive) {
            (true, _) if line.gone => {
                let off = line.receive == Receive::Off;
                self.ring.cancel(GONE | slot as u64);
                if off {
                    self.begin_receiving(slot);
                }
            }
            (true, Receive::Off) => self.begin_receiving(slot),
            (false, Receive::On) => {
                line.receive = Receive::Ending;
                self.ring.cancel(RECEIVE | slot as u64);
                if !line.gone {
                    line.gone = true;
                    // Errors and the end of both directions are told without being asked for.
                    self.ring.poll(GONE | slot as u64, line.file, 0, false);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn receive<'a>(
        &'a mut self,
        event: &Event,
        _: &mut Socket,
        _: Option<(&mut Vec<u8>, usize)>,
    ) -> io::Result<Received<'a>> {
        match event {
            Event::Arrived(_, lease) => Ok(Received::Bytes(self.ring.bytes(lease))),
            _ => Ok(Received::Nothing),
        }
    }

    fn done(&mut self, event: Event) {
        if let Event::Arrived(_, lease) = event {
            self.ring.give_back(lease);
        }
    }

    fn send(&mut self, slot: usize, _: &mut Socket, bytes: Vec<u8>, from: usize) -> io::Result<Sent> {
        let to = bytes.len().min(from + SEND_MAX);
        self.ring.send(slot as u64, self.lines[slot].file, bytes, from, to);
        Ok(Sent::Queued)
    }

    fn remove(&mut self, slot: usize, socket: Socket) -> bool {
        let line = &mut self.lines[slot];
        line.open = false;
        let waits = [(RECEIVE, line.receive == Receive::On), (WRITABLE, line.writable), (GONE, line.gone)];
        for (kind, _) in waits.iter().filter(|(_, on)| *on) {
            self.ring.cancel(kind | slot as u64);
        }
        self.leaving.push((slot, socket));
        false
    }

    fn wait(&mut self, timeout: Duration, events: &mut Vec<Event>, pool: &mut Pool) {
        // What leaves is not to be kept waiting for the next event.
        let leaving = self.leaving.len();
        self.ring.enter(if leaving > 0 { Duration::ZERO } else { timeout });
        if !self.ring.has_queued() {
            self.close_removed(leaving, events);
        }
        while let Some(done) = self.ring.next() {
            self.complete(done, events);
        }
        self.settle(events, pool);
    }
}
