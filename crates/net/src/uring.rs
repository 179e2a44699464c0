//! The transport over io_uring: what a turn wants goes to the kernel in one call, which also waits.
//!
//! Each connection has one receive that stays in place and takes buffers from the ring as bytes come, so idle
//! connections hold none; replies are sent by the call that waits for the next requests. Connections that stay become places
//! in the ring's table, so the kernel counts no references to their files. Listeners are only polled: accepting is left to
//! the loop, in slices, where the kernel would take a whole storm at once.
//!
//! Whoever sends faster than the loop reads would have all buffers filled, and others' bytes would wait for his to be read: a
//! pipeline or a request of 50 MB held up everybody for 60–90 ms. Of a connection that has [`LEASES_MAX`] filled buffers nothing
//! is received in this way: the loop reads from it itself, a piece at a time, others in between, until it has sent little
//! [`CALM`] times in a row. Not until its socket is empty: ten that send so had all buffers again with every pause.
//!
//! A crowd that sends at once takes all buffers, and whoever finds none is told so. If all of them asked anew in each turn, with
//! 8,000 connections a turn would take 10 ms and serve a hundred. They form a line instead, of which the loop reads from so many
//! sockets at a time that those who still have a receive in place do not wait long behind them. It does so whether or not there are
//! buffers again: who asked for one again had to wait until ten large requests had given theirs back, 6 ms, and they took them anew.
//!
//! - U1: a slot is free when it was removed and every request in flight for it has had its last completion.
//! - U2: a connection's descriptor stays open until the entries that name it have been submitted.
//! - U3: at the end of `wait` every send queued before it is over, and the loop knows what became of it: a further one of
//!   the same connection must not overtake what is left of it. So completions that did not fit are fetched in the same
//!   `wait`, and a receive that found no buffer is not begun again before the next one.
//! - U4: the loop reads from a socket itself only while no receive is in place and it has looked at all that came by the last:
//!   bytes stay in order, however late it comes to an event.
//! - U5: of a connection at most one [`Event::Readable`] is under way.

use crate::ring::{Completion, File, Ring};
use crate::socket::Socket;
use crate::transport::{Event, Pool, Received, SEND_MAX, Sent, Transport};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

/// Connections closed in one call: each takes the kernel some 15 µs.
const CLOSES: usize = 4;
/// Sends after which a connection gets a place in the ring's table: who asks once and leaves is not worth two system calls.
const SENDS: u8 = 2;

/// What a token is about: the upper half; the slot or number is the lower.
const RECEIVE: u64 = 1 << 32;
const WRITABLE: u64 = 2 << 32;
const GONE: u64 = 3 << 32;
const LISTENER: u64 = 4 << 32;
const MAILBOX: u64 = 5 << 32;
const READABLE: u64 = 6 << 32;
const SLOT: u64 = (1 << 32) - 1;

/// What a poll says of a connection that is over in both directions.
const ENDS: u32 = (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) as u32;

/// Filled buffers of one connection that the loop has not read: 128 KB. With the next completions it may become some 64.
const LEASES_MAX: usize = 16;
/// Of those who found no buffer so many are read from at a time: these are what others' bytes wait for, up to 0.1 ms each.
const CALLED: usize = 16;
/// Filled buffers with which one who finds no further one is not of the crowd, but who has taken them.
const GREEDY: usize = 4;
/// Bytes read at once from a connection that sends faster than they are read: some 20 µs.
const READ: usize = 64 * 1024;
/// So many reads in a row of at most so many bytes, and a connection is received from as others are.
const CALM: u8 = 16;
const LITTLE: usize = 4096;

pub(crate) struct Uring {
    ring: Ring,
    /// What the loop reads itself.
    scratch: Vec<u8>,
    mailbox: RawFd,
    listeners: Vec<RawFd>,
    lines: Vec<Line>,
    /// Removed connections, and their descriptors that are still open (U2).
    leaving: Vec<(usize, Option<Socket>)>,
    /// Receives that are due (U3).
    due: Vec<usize>,
    /// Those that found no buffer, the first of them first.
    crowd: VecDeque<usize>,
    /// Of these, how many the loop has been told to read from, and has not come to.
    called: usize,
}

/// A connection as the ring sees it.
struct Line {
    file: File,
    /// So far, up to [`SENDS`].
    sends: u8,
    open: bool,
    /// Its descriptor is closed (U2).
    closed: bool,
    /// Bytes are wanted.
    wanted: bool,
    receive: Receive,
    /// Its buffers that the loop has.
    leases: usize,
    /// It sends faster than the loop reads, which therefore reads itself (U4) ...
    floods: bool,
    /// ... and after this goes on to do so when told that something came, until it was little as often as this says.
    bulk: u8,
    /// Something that comes is told of.
    polled: bool,
    /// The loop has read, and there may be more.
    again: bool,
    /// The loop has been told to read, and has not come to it (U5).
    told: bool,
    /// As one of those who found no buffer.
    called: bool,
    /// Somebody waits for room in the socket.
    writable: bool,
    /// Somebody waits for its end: while nothing is received nothing else would tell.
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
    /// The loop has read `n` bytes of at most `room`.
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
    /// Errors: see [`Ring::new`]. `direct`: for how many connections the ring's table has places.
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
        if line.bulk == 0 {
            line.receive = Receive::On;
            return self.ring.receive(RECEIVE | slot as u64, line.file);
        }
        line.receive = Receive::Off;
        if !std::mem::replace(&mut line.polled, true) {
            self.ring.poll(READABLE | slot as u64, line.file, libc::POLLIN as u32, false);
        }
    }

    /// Has the loop read from the socket.
    fn tell(&mut self, slot: usize, events: &mut Vec<Event>) {
        if !std::mem::replace(&mut self.lines[slot].told, true) {
            events.push(Event::Readable(slot));
        }
    }

    /// Whether a receive of it is still due, and none any more.
    fn take_due(&mut self, slot: usize) -> bool {
        let line = &mut self.lines[slot];
        let is_due = line.open && line.receive == Receive::Due;
        if is_due {
            line.receive = Receive::Off;
        }
        is_due
    }

    /// Tells of errors and the end of both directions while nothing is received: they come without being asked for.
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
                    // It was cancelled because input was not welcome; meanwhile it is.
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
                // A peer that will send no more, which io_uring tells of unasked, may have sent much before, and reads on.
                let half = kind == GONE && done.result.is_ok_and(|events| events & ENDS == 0);
                if kind == GONE && line.open && !line.wanted && done.result == Err(Errno::CANCELED) {
                    // It was cancelled because input was welcome; meanwhile it is not.
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
            // It ended because there was no buffer, or no place for a completion, or because it was cancelled.
            Ok(_) | Err(Errno::NOBUFS | Errno::CANCELED | Errno::INTR | Errno::AGAIN) => true,
            Err(_) => {
                events.extend(open.then_some(Event::Broken(slot)));
                false
            }
        };
        if done.result == Err(Errno::NOBUFS) && line.leases >= GREEDY {
            (line.floods, line.bulk) = (true, CALM);
        }
        // At the end there is nothing left to be read.
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

    /// Reads from the socket of a connection that floods, until it is empty (U4).
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

    /// Ends what is in place for a connection, and closes it once that is submitted, if it is not another's from now on.
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

    /// Closes the descriptors of what was removed before the last call to the kernel (U2).
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
            // What it sent ends its receive, or has ended it: nothing else tells of its end.
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
                // What came before it is looked at first.
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

    fn wait(&mut self, timeout: Duration, events: &mut Vec<Event>, pool: &mut Pool) {
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
        // What leaves, or stands in line, is not to be kept waiting for the next event.
        let leaving = self.leaving.len();
        let hurry = leaving > 0 || !self.crowd.is_empty();
        self.ring.enter(if hurry { Duration::ZERO } else { timeout });
        if !self.ring.has_queued() {
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    /// One who sends faster than is read had all buffers filled, and nobody else's bytes came.
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
            // Fewer than come.
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

    /// A crowd sends at once, more than there are buffers: all of it comes, few ask anew at a time, and who did not ask when
    /// there were none is served among the first.
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

    /// Large requests have all buffers, and nobody comes to read them: who asks meanwhile is told of. Who has sent much once takes
    /// no buffers with the next.
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
        // All is read, and they send again.
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
        // Little, often enough, and they are received from like everybody.
        for _ in 0..=CALM {
            far.iter_mut().for_each(|stream| stream.write_all(b"b").unwrap());
            heard(&mut io, VecDeque::new());
        }
        assert!(io.lines.iter().all(|line| line.bulk == 0));
        far.iter_mut().for_each(|stream| stream.write_all(b"c").unwrap());
        assert_eq!(heard(&mut io, VecDeque::new()), FLOODERS + 1);
        assert_eq!(io.called, 0);
    }

    /// Input that is switched off and on left an event behind by which later bytes were read before earlier ones (U4).
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

    /// More completions at once than the queue holds: a short send among them was known a turn too late, and what the
    /// connection said next went out before its rest.
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

    /// The loop slept until its next tick, 100 ms, before each further part of a large reply.
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
                // For ever, but for a part that went or room in the socket.
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
