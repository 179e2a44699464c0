//! The transport over io_uring: the calls of a turn go to the kernel in one system call, which also waits.
//!
//! Each connection has one multishot receive that takes buffers from the ring as bytes come; idle connections
//! hold no buffer. Replies are sent by the call that waits for the next requests. Lasting connections get a
//! place in the ring's file table, so that the kernel counts no references. Listeners are only polled: the
//! loop accepts in slices, where the kernel would take a whole storm at once.
//!
//! One fast sender could fill every receive buffer and delay the others. A connection that holds
//! [`LEASES_MAX`] filled buffers loses its multishot receive. The loop then reads it directly, one piece per
//! turn, until [`CALM`] reads in a row were small. An empty socket does not end this, because a pause would
//! let several such senders take all buffers again.
//!
//! A crowd that sends at once takes all buffers. A connection that finds none joins a line (`crowd`). The
//! loop reads from [`CALLED`] sockets of the line at a time, whether or not buffers are free again. If all of
//! them asked anew in each turn, a turn would take too long.
//!
//! - U1: a slot is free when it was removed and every request in flight for it has had its last completion.
//! - U2: a connection's descriptor stays open until the entries that name it have been submitted.
//! - U3: at the end of `wait` the result of every earlier send is known, because a later send must not
//!   overtake an unsent rest. So completions that overflowed are fetched in the same `wait`, and a receive
//!   that found no buffer begins again in the next.
//! - U4: the loop reads a socket itself only while no receive is in place and all that the last one brought
//!   is consumed. So bytes stay in order, however late the loop comes to an event.
//! - U5: a connection has at most one [`Event::Readable`] under way.

use crate::ring::{Completion, File, Ring};
use crate::socket::Socket;
use crate::transport::{Event, Pool, Received, SEND_MAX, Sent, Transport};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

/// Connections closed in one call; the kernel takes some 15 µs for each.
const CLOSES: usize = 4;
/// Sends after which a connection gets a place in the ring's table. A connection that asks once and leaves is
/// not worth the two system calls.
const SENDS: u8 = 2;

/// Kinds of tokens: the upper half names the request, the lower half is the slot or listener number.
const RECEIVE: u64 = 1 << 32;
const WRITABLE: u64 = 2 << 32;
const GONE: u64 = 3 << 32;
const LISTENER: u64 = 4 << 32;
const MAILBOX: u64 = 5 << 32;
const READABLE: u64 = 6 << 32;
const SLOT: u64 = (1 << 32) - 1;

/// Poll results of a connection that is over in both directions.
const ENDS: u32 = (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) as u32;

/// Filled buffers of one connection, not read by the loop, that end its receive. Completions already on their
/// way may add some 48 more.
const LEASES_MAX: usize = 16;
/// Connections of the crowd that are read from at a time. The bytes of others wait for these reads.
const CALLED: usize = 16;
/// Filled buffers from which on a connection that finds no further one counts as a flooder, not as part of
/// the crowd.
const GREEDY: usize = 4;
/// Bytes read at once from a connection that sends faster than they are read.
const READ: usize = 64 * 1024;
/// `CALM` reads in a row of at most `LITTLE` bytes, and a flooder is received from as others are.
const CALM: u8 = 16;
const LITTLE: usize = 4096;

pub(crate) struct Uring {
    ring: Ring,
    /// Bytes that the loop reads itself.
    scratch: Vec<u8>,
    mailbox: RawFd,
    listeners: Vec<RawFd>,
    lines: Vec<Line>,
    /// Removed connections, with their descriptors that are still open (U2).
    leaving: Vec<(usize, Option<Socket>)>,
    /// Connections whose receives are due (U3).
    due: Vec<usize>,
    /// Connections that found no buffer, in order.
    crowd: VecDeque<usize>,
    /// Connections of the crowd that the loop was told to read and has not come to.
    called: usize,
}

/// A connection as the ring sees it.
struct Line {
    file: File,
    /// Sends so far, up to [`SENDS`].
    sends: u8,
    open: bool,
    /// Its descriptor is closed (U2).
    closed: bool,
    /// Input is wanted.
    wanted: bool,
    receive: Receive,
    /// Filled buffers of it that the loop has.
    leases: usize,
    /// The peer sends faster than the loop reads, so the loop reads the socket itself (U4).
    floods: bool,
    /// Small reads in a row that are still missing before it is received from as others are; 0: it is.
    bulk: u8,
    /// A poll for input is in place.
    polled: bool,
    /// The loop has read, and there may be more.
    again: bool,
    /// The loop was told to read and has not come to it (U5).
    told: bool,
    /// As `told`, as part of the crowd.
    called: bool,
    /// A poll for room in the socket is in place.
    writable: bool,
    /// A poll for the peer's end is in place: while nothing is received, nothing else would report it.
    gone: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Receive {
    Off,
    /// To be begun by the next `wait`.
    Due,
    On,
    /// Cancelled, its last completion not seen yet.
    Ending,
}

impl Line {
    /// Notes that the loop has read `n` bytes into `room`.
    fn was_read(&mut self, n: usize, room: usize) {
        self.floods = n >= room;
        let much = self.floods || self.bulk > 0 && n > LITTLE;
        self.bulk = if much { CALM } else { self.bulk.saturating_sub(1) };
    }

    fn is_quiet(&self) -> bool {
        matches!(self.receive, Receive::Off | Receive::Due) && !self.writable && !self.gone && !self.polled
    }
}

impl Uring {
    /// Makes the transport. `direct`: places in the ring's file table. Errors: see [`Ring::new`].
    pub(crate) fn new(
        mailbox: BorrowedFd<'_>,
        listeners: &[BorrowedFd<'_>],
        direct: u32,
    ) -> io::Result<Uring> {
        let mut uring = Uring {
            ring: Ring::new(direct)?,
            scratch: Vec::new(),
            mailbox: mailbox.as_raw_fd(),
            listeners: listeners.iter().map(|fd| fd.as_raw_fd()).collect(),
            lines: Vec::new(),
            leaving: Vec::new(),
            due: Vec::new(),
            crowd: VecDeque::new(),
            called: 0,
        };
        uring.watch(MAILBOX);
        (0..listeners.len()).for_each(|i| uring.watch(LISTENER | i as u64));
        Ok(uring)
    }

    /// Starts a poll that never ends: for mail or for new connections.
    fn watch(&mut self, token: u64) {
        let fd = match token {
            MAILBOX => self.mailbox,
            _ => self.listeners[(token & SLOT) as usize],
        };
        self.ring.poll(token, File::Plain(fd), libc::POLLIN as u32, true);
    }

    fn begin_receiving(&mut self, slot: usize) {
        let line = &mut self.lines[slot];
        if line.bulk == 0 {
            line.receive = Receive::On;
            return self.ring.receive(RECEIVE | slot as u64, line.file);
        }
        line.receive = Receive::Off;
        if !std::mem::replace(&mut line.polled, true) {
            self.ring.poll(READABLE | slot as u64, line.file, libc::POLLIN as u32, false);
        }
    }

    /// Tells the loop to read the socket, once (U5).
    fn tell(&mut self, slot: usize, events: &mut Vec<Event>) {
        if !std::mem::replace(&mut self.lines[slot].told, true) {
            events.push(Event::Readable(slot));
        }
    }

    /// Whether a receive is still due; it is no longer.
    fn take_due(&mut self, slot: usize) -> bool {
        let line = &mut self.lines[slot];
        let is_due = line.open && line.receive == Receive::Due;
        if is_due {
            line.receive = Receive::Off;
        }
        is_due
    }

    /// Starts to watch for errors and the end of both directions. Needed while nothing is received.
    fn watch_end(&mut self, slot: usize) {
        let line = &mut self.lines[slot];
        if !line.gone {
            line.gone = true;
            self.ring.poll(GONE | slot as u64, line.file, 0, false);
        }
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
            READABLE => {
                let line = &mut self.lines[at];
                line.polled = false;
                match done.result {
                    _ if !line.open || !line.wanted => {}
                    // The poll was cancelled because input was unwanted; now it is wanted again.
                    Err(Errno::CANCELED) => self.begin_receiving(at),
                    Err(_) => events.push(Event::Broken(at)),
                    Ok(_) => {
                        line.floods = true;
                        self.tell(at, events);
                    }
                }
                self.free_if_quiet(at, events);
            }
            kind => {
                let line = &mut self.lines[at];
                *(if kind == WRITABLE { &mut line.writable } else { &mut line.gone }) = false;
                // A peer that sends no more, which io_uring reports unasked, may have sent much before, and
                // may still read.
                let half = kind == GONE && done.result.is_ok_and(|events| events & ENDS == 0);
                if kind == GONE && line.open && !line.wanted && done.result == Err(Errno::CANCELED) {
                    // The poll was cancelled because input was wanted; now it is not.
                    self.watch_end(at);
                } else if line.open && done.result != Err(Errno::CANCELED) {
                    events.push(match kind {
                        WRITABLE => Event::Writable(at),
                        _ if half => Event::Half(at),
                        _ => Event::Broken(at),
                    });
                }
                self.free_if_quiet(at, events);
            }
        }
    }

    fn received(&mut self, slot: usize, done: Completion, events: &mut Vec<Event>) {
        let line = &mut self.lines[slot];
        let open = line.open;
        match done.lease {
            Some(lease) if open && done.result.is_ok_and(|n| n > 0) => {
                line.leases += 1;
                events.push(Event::Arrived(slot, lease));
            }
            Some(lease) => self.ring.give_back(lease),
            None => {}
        }
        if done.more {
            if line.leases >= LEASES_MAX && line.receive == Receive::On {
                (line.floods, line.bulk, line.receive) = (true, CALM, Receive::Ending);
                self.ring.cancel(RECEIVE | slot as u64);
            }
            return;
        }
        line.receive = Receive::Off;
        let again = match done.result {
            Ok(0) => {
                events.extend(open.then_some(Event::Ended(slot)));
                false
            }
            // The receive ended for want of a buffer or of room for a completion, or was cancelled.
            Ok(_) | Err(Errno::NOBUFS | Errno::CANCELED | Errno::INTR | Errno::AGAIN) => true,
            Err(_) => {
                events.extend(open.then_some(Event::Broken(slot)));
                false
            }
        };
        if done.result == Err(Errno::NOBUFS) && line.leases >= GREEDY {
            (line.floods, line.bulk) = (true, CALM);
        }
        // After the end nothing is left to read.
        if !again {
            (line.floods, line.bulk) = (false, 0);
        }
        if open && again && line.wanted {
            if line.floods {
                self.tell(slot, events);
            } else {
                line.receive = Receive::Due;
                match done.result {
                    Err(Errno::NOBUFS) => self.crowd.push_back(slot),
                    _ => self.due.push(slot),
                }
            }
        }
        self.free_if_quiet(slot, events);
    }

    /// Reads once from the socket of a flooding connection (U4).
    fn read<'a>(
        &'a mut self,
        slot: usize,
        socket: &mut Socket,
        direct: Option<(&mut Vec<u8>, usize)>,
    ) -> io::Result<Received<'a>> {
        let line = &mut self.lines[slot];
        if line.receive != Receive::Off || line.leases > 0 {
            return Ok(Received::Nothing);
        }
        let (read, room) = match direct {
            Some((buffer, room)) => (socket.read_into(buffer, room).map(Received::Appended), room),
            None => {
                self.scratch.clear();
                let read = socket.read_into(&mut self.scratch, READ);
                (read.map(|n| Received::Bytes(&self.scratch[..n])), READ)
            }
        };
        line.again = true;
        match read {
            Ok(Received::Appended(0) | Received::Bytes(&[])) => {
                (line.floods, line.again, line.bulk) = (false, false, 0);
                Ok(Received::Ended)
            }
            Ok(Received::Appended(n)) => {
                line.was_read(n, room);
                Ok(Received::Appended(n))
            }
            Ok(Received::Bytes(bytes)) => {
                line.was_read(bytes.len(), room);
                Ok(Received::Bytes(bytes))
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                line.floods = false;
                Ok(Received::Nothing)
            }
            read => read,
        }
    }

    fn free_if_quiet(&mut self, slot: usize, events: &mut Vec<Event>) {
        let line = &self.lines[slot];
        if !line.open && line.closed && line.is_quiet() {
            events.push(Event::Free(slot));
        }
    }

    /// Cancels all requests for a connection. Its socket, if given, is closed once that is submitted.
    fn leave(&mut self, slot: usize, socket: Option<Socket>) {
        let line = &mut self.lines[slot];
        line.open = false;
        self.called -= usize::from(std::mem::take(&mut line.called));
        let waits = [
            (RECEIVE, line.receive == Receive::On),
            (READABLE, line.polled),
            (WRITABLE, line.writable),
            (GONE, line.gone),
        ];
        for (kind, _) in waits.iter().filter(|(_, on)| *on) {
            self.ring.cancel(kind | slot as u64);
        }
        self.leaving.push((slot, socket));
    }

    /// Closes the descriptors of connections that were removed before the last call to the kernel (U2).
    fn close_removed(&mut self, removed: usize, events: &mut Vec<Event>) {
        for (slot, socket) in self.leaving.drain(..removed.min(CLOSES)).collect::<Vec<_>>() {
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
            file: File::Plain(socket.raw()),
            sends: 0,
            open: true,
            closed: false,
            wanted: false,
            receive: Receive::Off,
            leases: 0,
            floods: false,
            bulk: 0,
            polled: false,
            again: false,
            told: false,
            called: false,
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
        Ok(())
    }

    fn set_input(&mut self, slot: usize, _: &Socket, wanted: bool) -> io::Result<()> {
        let line = &mut self.lines[slot];
        line.wanted = wanted;
        let floods = line.receive == Receive::Off && std::mem::take(&mut line.floods);
        let read_here = floods || line.again || line.bulk > 0;
        if !wanted && line.polled {
            self.ring.cancel(READABLE | slot as u64);
        }
        match (wanted, line.receive) {
            (true, _) if line.gone => {
                let off = line.receive == Receive::Off;
                self.ring.cancel(GONE | slot as u64);
                if off {
                    self.begin_receiving(slot);
                }
            }
            (true, Receive::Off) => self.begin_receiving(slot),
            // The connection's bytes ended its receive, or the receive is ending: only this reports its end.
            (false, Receive::Off) if read_here => self.watch_end(slot),
            (false, Receive::Ending) => self.watch_end(slot),
            (false, Receive::On) => {
                line.receive = Receive::Ending;
                self.ring.cancel(RECEIVE | slot as u64);
                self.watch_end(slot);
            }
            (false, Receive::Due) => {
                line.receive = Receive::Off;
                self.watch_end(slot);
            }
            _ => {}
        }
        Ok(())
    }

    fn receive<'a>(
        &'a mut self,
        event: &Event,
        socket: &mut Socket,
        direct: Option<(&mut Vec<u8>, usize)>,
    ) -> io::Result<Received<'a>> {
        match event {
            Event::Arrived(_, lease) => Ok(Received::Bytes(self.ring.bytes(lease))),
            Event::Readable(slot) => self.read(*slot, socket, direct),
            _ => Ok(Received::Nothing),
        }
    }

    fn done(&mut self, event: Event) -> Option<Event> {
        match event {
            Event::Arrived(slot, lease) => {
                self.ring.give_back(lease);
                let line = &mut self.lines[slot];
                line.leases = line.leases.saturating_sub(1);
            }
            Event::Readable(slot) => {
                let line = &mut self.lines[slot];
                line.told = false;
                self.called -= usize::from(std::mem::take(&mut line.called));
                let again = std::mem::take(&mut line.again);
                // Bytes that came by the receive are consumed first.
                let early = line.leases > 0 && line.floods;
                if (again || early) && line.open && line.wanted && line.receive == Receive::Off {
                    if line.floods {
                        line.told = true;
                        return Some(event);
                    }
                    self.begin_receiving(slot);
                }
            }
            _ => {}
        }
        None
    }

    fn send(&mut self, slot: usize, socket: &mut Socket, bytes: Vec<u8>, from: usize) -> io::Result<Sent> {
        let (to, line) = (bytes.len().min(from + SEND_MAX), &mut self.lines[slot]);
        if line.sends < SENDS {
            line.sends += 1;
            if line.sends == SENDS {
                line.file = self.ring.know(slot, socket.raw());
            }
        }
        self.ring.send(slot as u64, line.file, bytes, from, to);
        Ok(Sent::Queued)
    }

    fn remove(&mut self, slot: usize, socket: Socket) -> bool {
        self.leave(slot, Some(socket));
        false
    }

    fn is_still(&self, slot: usize) -> bool {
        let line = &self.lines[slot];
        let receives = line.receive != Receive::Off || line.leases > 0 || line.told || line.again;
        !line.wanted && !receives && !line.polled && !line.writable
    }

    fn part(&mut self, slot: usize, _: &Socket) -> bool {
        self.leave(slot, None);
        false
    }

    fn wait(&mut self, timeout: Duration, events: &mut Vec<Event>, pool: &mut Pool) -> bool {
        for slot in std::mem::take(&mut self.due) {
            if self.take_due(slot) {
                self.begin_receiving(slot);
            }
        }
        while self.called < CALLED
            && let Some(slot) = self.crowd.pop_front()
        {
            if self.take_due(slot) {
                let line = &mut self.lines[slot];
                line.floods = true;
                self.called += usize::from(!std::mem::replace(&mut line.called, true));
                self.tell(slot, events);
            }
        }
        // Leaving connections and the crowd must not wait for the next event.
        let leaving = self.leaving.len();
        let hurry = leaving > 0 || !self.crowd.is_empty();
        self.ring.enter(if hurry { Duration::ZERO } else { timeout });
        let all_begun = !self.ring.has_queued();
        if all_begun {
            self.close_removed(leaving, events);
        }
        loop {
            while let Some(done) = self.ring.next() {
                self.complete(done, events);
            }
            if !self.ring.overflowed() {
                break;
            }
        }
        self.settle(events, pool);
        all_begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    /// A connection that sends faster than it is read leaves buffers for others.
    #[test]
    fn a_flood_leaves_buffers_for_others() {
        let (mailbox, _far) = UnixStream::pair().unwrap();
        let Ok(mut io) = Uring::new(mailbox.as_fd(), &[], 64) else { return };
        let (mut flooder, flooded) = UnixStream::pair().unwrap();
        let (mut quiet, heard) = UnixStream::pair().unwrap();
        let mut sockets = [Socket::unix(flooded).unwrap(), Socket::unix(heard).unwrap()];
        for (slot, socket) in sockets.iter().enumerate() {
            io.add(slot, socket).unwrap();
            io.set_input(slot, socket, true).unwrap();
        }
        const TOTAL: usize = 8 << 20;
        let byte = |i: usize| ((i / 5) ^ (i >> 13)) as u8;
        let writer = std::thread::spawn(move || {
            let bytes: Vec<u8> = (0..TOTAL).map(byte).collect();
            flooder.write_all(&bytes).unwrap();
        });
        let (mut events, mut pool, mut queue) =
            (Vec::new(), Pool::default(), std::collections::VecDeque::new());
        let (mut got, mut said, mut answered, mut most, mut flooded) = (0, 0, 0, 0, false);
        let mut ended = false;
        while got < TOTAL || !ended {
            if said == answered && got < TOTAL {
                quiet.write_all(b"a").unwrap();
                said += 1;
            }
            io.wait(Duration::from_millis(1), &mut events, &mut pool);
            queue.extend(events.drain(..));
            // Fewer events than come.
            for _ in 0..3 {
                let Some(event) = queue.pop_front() else { break };
                let slot = match &event {
                    Event::Arrived(slot, _) | Event::Readable(slot) => *slot,
                    Event::Ended(0) => {
                        ended = true;
                        continue;
                    }
                    _ => continue,
                };
                match io.receive(&event, &mut sockets[slot], None).unwrap() {
                    Received::Bytes(bytes) if slot == 0 => {
                        assert!(bytes.iter().zip(got..).all(|(had, i)| *had == byte(i)), "at {got}");
                        got += bytes.len();
                    }
                    Received::Bytes(bytes) => answered += bytes.len(),
                    Received::Ended => ended = true,
                    _ => {}
                }
                queue.extend(io.done(event));
            }
            most = most.max(io.lines[0].leases);
            flooded |= io.lines[0].floods;
        }
        writer.join().unwrap();
        assert!(flooded && most < 100, "{most} buffers");
        assert!(answered > 10 && said - answered <= 1, "{answered} of {said}");
        assert_eq!(io.lines[0].leases, 0);
        assert!(!io.lines[0].floods);
    }

    /// A crowd larger than the buffers sends at once. All its bytes come, few are read at a time, and a
    /// connection outside the crowd is served among the first.
    #[test]
    fn a_crowd_stands_in_line_for_buffers() {
        const CROWD: usize = 600;
        const BYTES: usize = 20_000;
        let (mailbox, _far) = UnixStream::pair().unwrap();
        let Ok(mut io) = Uring::new(mailbox.as_fd(), &[], 1024) else { return };
        let (mut far, mut near): (Vec<UnixStream>, Vec<Socket>) = (0..=CROWD)
            .map(|_| UnixStream::pair().unwrap())
            .map(|(far, near)| (far, Socket::unix(near).unwrap()))
            .unzip();
        for (slot, socket) in near.iter().enumerate() {
            io.add(slot, socket).unwrap();
            io.set_input(slot, socket, true).unwrap();
        }
        let (mut events, mut pool) = (Vec::new(), Pool::default());
        io.wait(Duration::ZERO, &mut events, &mut pool);
        far[..CROWD].iter_mut().for_each(|stream| stream.write_all(&[7; BYTES]).unwrap());
        let mut queue = VecDeque::new();
        let (mut got, mut said, mut heard, mut most) = (0, 0, 0, 0);
        while got < CROWD * BYTES {
            // Not in the moment in which all buffers are taken.
            if said == heard && got > CROWD * BYTES / 8 {
                far[CROWD].write_all(b"a").unwrap();
                said += 1;
            }
            let asking = io.crowd.len();
            io.wait(Duration::from_millis(1), &mut events, &mut pool);
            assert!(asking.saturating_sub(io.crowd.len()) <= CALLED);
            queue.extend(events.drain(..));
            most = most.max(io.crowd.len());
            for _ in 0..5 {
                let Some(event) = queue.pop_front() else { break };
                let (Event::Arrived(slot, _) | Event::Readable(slot)) = event else { continue };
                if let Received::Bytes(bytes) = io.receive(&event, &mut near[slot], None).unwrap() {
                    *(if slot == CROWD { &mut heard } else { &mut got }) += bytes.len();
                }
                queue.extend(io.done(event));
            }
        }
        assert!(most > CROWD / 2, "{most} in line");
        assert!(heard > 20 && said - heard <= 1, "{heard} of {said}");
        let leases: usize = io.lines.iter().map(|line| line.leases).sum();
        assert_eq!(leases, queue.iter().filter(|event| matches!(event, Event::Arrived(..))).count());
    }

    /// While large requests hold all buffers unread, a small request is still reported. A connection that has
    /// sent much takes no buffers with its next request.
    #[test]
    fn who_finds_no_buffer_needs_none() {
        const FLOODERS: usize = 10;
        let (mailbox, _far) = UnixStream::pair().unwrap();
        let Ok(mut io) = Uring::new(mailbox.as_fd(), &[], 64) else { return };
        let (mut far, mut near): (Vec<UnixStream>, Vec<Socket>) = (0..=FLOODERS)
            .map(|_| UnixStream::pair().unwrap())
            .map(|(far, near)| (far, Socket::unix(near).unwrap()))
            .unzip();
        for (slot, socket) in near.iter().enumerate() {
            io.add(slot, socket).unwrap();
            io.set_input(slot, socket, true).unwrap();
        }
        let (mut events, mut pool) = (Vec::new(), Pool::default());
        io.wait(Duration::ZERO, &mut events, &mut pool);
        far.iter().for_each(|stream| stream.set_nonblocking(true).unwrap());
        let flood = |far: &mut [UnixStream]| {
            far[..FLOODERS].iter_mut().for_each(|stream| while stream.write(&[7; 8192]).is_ok() {});
        };
        flood(&mut far);
        let asked = |event: &Event| matches!(event, Event::Readable(FLOODERS) | Event::Arrived(FLOODERS, _));
        let mut queue = Vec::new();
        for _ in 0..10 {
            io.wait(Duration::ZERO, &mut events, &mut pool);
            queue.append(&mut events);
        }
        assert_eq!(queue.iter().filter(|event| matches!(event, Event::Arrived(..))).count(), 128);
        far[FLOODERS].write_all(b"a").unwrap();
        for _ in 0..3 {
            io.wait(Duration::ZERO, &mut events, &mut pool);
            queue.append(&mut events);
        }
        let mine = queue.iter().position(asked).expect("it is told of");
        match io.receive(&queue[mine], &mut near[FLOODERS], None).unwrap() {
            Received::Bytes(bytes) => assert_eq!(bytes, b"a"),
            _ => panic!("nothing came"),
        }
        // All is read, and the flooders send again.
        let mut heard = |io: &mut Uring, mut queue: VecDeque<Event>| {
            let mut leases = 0;
            loop {
                io.wait(Duration::ZERO, &mut events, &mut pool);
                queue.extend(events.drain(..));
                let Some(event) = queue.pop_front() else { return leases };
                if let Event::Readable(slot) | Event::Arrived(slot, _) = event {
                    io.receive(&event, &mut near[slot], None).unwrap();
                    leases += usize::from(matches!(event, Event::Arrived(..)));
                }
                queue.extend(io.done(event));
            }
        };
        heard(&mut io, queue.into());
        assert!(io.lines[..FLOODERS].iter().filter(|line| line.bulk > 0).count() >= FLOODERS / 2);
        let polite = io.lines.iter().filter(|line| line.bulk == 0).count();
        flood(&mut far);
        assert!(heard(&mut io, VecDeque::new()) <= polite * 128);
        assert!(io.lines[..FLOODERS].iter().all(|line| line.bulk > 0));
        flood(&mut far);
        assert_eq!(heard(&mut io, VecDeque::new()), 0);
        // After enough small sends the flooders are received from as others are.
        for _ in 0..=CALM {
            far.iter_mut().for_each(|stream| stream.write_all(b"b").unwrap());
            heard(&mut io, VecDeque::new());
        }
        assert!(io.lines.iter().all(|line| line.bulk == 0));
        far.iter_mut().for_each(|stream| stream.write_all(b"c").unwrap());
        assert_eq!(heard(&mut io, VecDeque::new()), FLOODERS + 1);
        assert_eq!(io.called, 0);
    }

    /// Switching input off and on leaves no event behind that would read later bytes before earlier ones
    /// (U4).
    #[test]
    fn a_flood_stays_in_order_though_input_is_switched_off_and_on() {
        for seed in 1..=12u64 {
            flood_with_switches(seed);
        }
    }

    fn flood_with_switches(seed: u64) {
        const TOTAL: usize = 6 << 20;
        let byte = |i: usize| ((i / 5) ^ (i >> 13)) as u8;
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut dice = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let (mailbox, _far) = UnixStream::pair().unwrap();
        let Ok(mut io) = Uring::new(mailbox.as_fd(), &[], 64) else { return };
        let (mut flooder, flooded) = UnixStream::pair().unwrap();
        let mut socket = Socket::unix(flooded).unwrap();
        io.add(0, &socket).unwrap();
        io.set_input(0, &socket, true).unwrap();
        let writer = std::thread::spawn(move || {
            let bytes: Vec<u8> = (0..TOTAL).map(byte).collect();
            flooder.write_all(&bytes).unwrap();
        });
        let (mut events, mut pool, mut queue) =
            (Vec::new(), Pool::default(), std::collections::VecDeque::new());
        let (mut got, mut wanted, mut ended) = (0, true, false);
        while !ended || got < TOTAL {
            if dice(4) == 0 || !wanted {
                wanted = !wanted;
                io.set_input(0, &socket, wanted).unwrap();
            }
            io.wait(Duration::from_micros(100), &mut events, &mut pool);
            queue.extend(events.drain(..));
            let readables = queue.iter().filter(|event| matches!(event, Event::Readable(_))).count();
            assert!(readables <= 1, "U5");
            for _ in 0..dice(6) {
                let Some(event) = queue.pop_front() else { break };
                match io.receive(&event, &mut socket, None).unwrap() {
                    Received::Bytes(bytes) => {
                        let wrong = bytes.iter().zip(got..).position(|(had, i)| *had != byte(i));
                        assert_eq!(wrong, None, "seed {seed}, behind byte {got}");
                        got += bytes.len();
                    }
                    Received::Ended => ended = true,
                    _ => {}
                }
                ended |= matches!(event, Event::Ended(_));
                queue.extend(io.done(event));
            }
        }
        writer.join().unwrap();
        assert_eq!(got, TOTAL);
    }

    /// A short send is known in the same turn although completions overflow, so that the connection's next
    /// send does not overtake the rest.
    #[test]
    fn a_short_send_is_known_at_once_though_completions_overflow() {
        let (mailbox, _far) = UnixStream::pair().unwrap();
        let Ok(mut io) = Uring::new(mailbox.as_fd(), &[], 64) else { return };
        let mut sockets = Vec::new();
        for slot in 0..60 {
            let (near, far) = UnixStream::pair().unwrap();
            let far = Socket::unix(far).unwrap();
            io.add(slot, &far).unwrap();
            io.set_input(slot, &far, true).unwrap();
            sockets.push((near, far));
        }
        let (mut events, mut pool) = (Vec::new(), Pool::default());
        io.wait(Duration::ZERO, &mut events, &mut pool);
        for turn in 0..3 {
            sockets.iter_mut().for_each(|(near, _)| near.write_all(b"hello").unwrap());
            if turn == 1 {
                let far = &mut sockets[57].1;
                assert!(matches!(io.send(57, far, vec![0; SEND_MAX], 0), Ok(Sent::Queued)));
            }
            io.wait(Duration::ZERO, &mut events, &mut pool);
            let (mut arrived, mut unsent) = (0, 0);
            for event in events.drain(..) {
                match event {
                    Event::Arrived(_, lease) => {
                        assert_eq!(io.ring.bytes(&lease), b"hello");
                        arrived += 1;
                        io.ring.give_back(lease);
                    }
                    Event::Unsent { slot, from, blocked, .. } => {
                        assert!(slot == 57 && blocked && from < SEND_MAX);
                        unsent += 1;
                    }
                    _ => {}
                }
            }
            assert_eq!((arrived, unsent), (60, usize::from(turn == 1)));
        }
    }

    /// A connection with more to send is woken when a part went, not at the loop's next tick.
    #[test]
    fn who_has_more_to_send_is_woken_when_a_part_went() {
        let (mailbox, _far) = UnixStream::pair().unwrap();
        let Ok(mut io) = Uring::new(mailbox.as_fd(), &[], 64) else { return };
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = Socket::accept(&listener).unwrap();
        io.add(0, &far).unwrap();
        let (mut events, mut pool) = (Vec::new(), Pool::default());
        io.wait(Duration::ZERO, &mut events, &mut pool);
        let reader = std::thread::spawn(move || {
            let mut got = Vec::new();
            near.read_to_end(&mut got).unwrap();
            got.len()
        });
        const TOTAL: usize = 8 * SEND_MAX + 7;
        let (mut rest, mut waited) = (Some((vec![7; TOTAL], 0)), true);
        let began = std::time::Instant::now();
        while let Some((bytes, from)) = rest.take() {
            let last = from + SEND_MAX >= TOTAL;
            assert!(matches!(io.send(0, &mut far, bytes, from), Ok(Sent::Queued)));
            while waited {
                // Without a timeout in effect: only a sent part or room in the socket ends the wait.
                let timeout = if last { Duration::ZERO } else { Duration::from_secs(60) };
                io.wait(timeout, &mut events, &mut pool);
                for event in std::mem::take(&mut events) {
                    match event {
                        Event::Unsent { bytes, from, blocked, .. } => {
                            rest = Some((bytes, from));
                            waited = blocked;
                        }
                        Event::Writable(_) => waited = false,
                        _ => {}
                    }
                }
                waited &= !(last && rest.is_none());
            }
            waited = true;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "it slept though there was room");
        io.remove(0, far);
        io.wait(Duration::ZERO, &mut events, &mut pool);
        drop(io);
        assert_eq!(reader.join().unwrap(), TOTAL);
    }
}
