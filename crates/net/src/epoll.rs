//! The transport that runs everywhere: epoll says which sockets are ready, and calls are made at once.
//!
//! Connections are level-triggered, so that a loop may leave bytes for its next turn. Listeners and the
//! mailbox are edge-triggered (T3). That a peer sends no more is reported until the loop has heard it.

use crate::socket::Socket;
use crate::transport::{Event, Pool, Received, SEND_MAX, Sent, Transport};
use rustix::event::{Timespec, epoll};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

/// Bytes read at once.
const READ: usize = 16 * 1024;
const EVENTS: usize = 256;
const MAILBOX: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 256;

pub(crate) struct Epoll {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    scratch: Vec<u8>,
    /// By slot: what epoll was asked to wait for.
    interest: Vec<Interest>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Interest {
    input: bool,
    output: bool,
    /// The loop knows that the peer sends no more.
    half: bool,
    /// The socket is in the epoll set.
    told: bool,
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, self.input);
        flags.set(epoll::EventFlags::OUT, self.output);
        flags.set(epoll::EventFlags::RDHUP, !self.half);
        flags
    }
}

impl Epoll {
    pub(crate) fn new(mailbox: BorrowedFd<'_>, listeners: &[BorrowedFd<'_>]) -> io::Result<Epoll> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, mailbox, epoll::EventData::new_u64(MAILBOX), edges)?;
        for (i, fd) in listeners.iter().enumerate() {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(LISTENER + i as u64), edges)?;
        }
        Ok(Epoll {
            epoll,
            events: Vec::with_capacity(EVENTS),
            scratch: Vec::with_capacity(READ),
            interest: Vec::new(),
        })
    }

    fn set(&mut self, slot: usize, socket: &Socket, wanted: Interest) -> io::Result<()> {
        if std::mem::replace(&mut self.interest[slot], wanted) != wanted {
            self.tell(slot, socket)?;
        }
        Ok(())
    }

    fn tell(&mut self, slot: usize, socket: &Socket) -> io::Result<()> {
        let (data, flags) = (epoll::EventData::new_u64(slot as u64), self.interest[slot].flags());
        match std::mem::replace(&mut self.interest[slot].told, true) {
            true => epoll::modify(&self.epoll, socket, data, flags)?,
            false => epoll::add(&self.epoll, socket, data, flags)?,
        }
        Ok(())
    }
}

impl Transport for Epoll {
    fn add(&mut self, slot: usize, _: &Socket) -> io::Result<()> {
        if self.interest.len() <= slot {
            self.interest.resize(slot + 1, Interest::default());
        }
        self.interest[slot] = Interest::default();
        Ok(())
    }

    fn set_input(&mut self, slot: usize, socket: &Socket, wanted: bool) -> io::Result<()> {
        self.set(slot, socket, Interest { input: wanted, ..self.interest[slot] })
    }

    fn heard_half(&mut self, slot: usize, socket: &Socket) -> io::Result<()> {
        self.set(slot, socket, Interest { half: true, ..self.interest[slot] })
    }

    /// Takes the socket out of the set. A ready socket that is not served would be reported by every wait.
    fn put_off(&mut self, slot: usize, socket: &Socket) {
        if std::mem::take(&mut self.interest[slot].told) {
            let _ = epoll::delete(&self.epoll, socket);
        }
    }

    fn receive<'a>(
        &'a mut self,
        event: &Event,
        socket: &mut Socket,
        direct: Option<(&mut Vec<u8>, usize)>,
    ) -> io::Result<Received<'a>> {
        let lent = direct.is_some();
        let read = match direct {
            Some((buffer, room)) => socket.read_into(buffer, room).map(Received::Appended),
            None => {
                self.scratch.clear();
                socket.read_into(&mut self.scratch, READ).map(Received::Appended)
            }
        };
        let read = match read {
            Ok(Received::Appended(0)) => return Ok(Received::Ended),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Received::Nothing
            }
            read => read?,
        };
        if let Event::Last(slot) = event
            && !self.interest[*slot].told
        {
            self.tell(*slot, socket)?;
        }
        match read {
            Received::Appended(_) if !lent => Ok(Received::Bytes(&self.scratch)),
            read => Ok(read),
        }
    }

    fn done(&mut self, _: Event) -> Option<Event> {
        None
    }

    fn send(&mut self, slot: usize, socket: &mut Socket, bytes: Vec<u8>, from: usize) -> io::Result<Sent> {
        let to = bytes.len().min(from + SEND_MAX);
        let n = match socket.write(&bytes[from..to]) {
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => 0,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => 0,
            Err(e) => return Err(e),
        };
        let blocked = from + n < to;
        self.set(slot, socket, Interest { output: blocked, ..self.interest[slot] })?;
        if from + n == bytes.len() {
            return Ok(Sent::Done(bytes));
        }
        Ok(Sent::Short { bytes, from: from + n, blocked })
    }

    fn remove(&mut self, _: usize, socket: Socket) -> bool {
        // Closing the only descriptor of a socket takes it out of the set too; this makes it explicit.
        let _ = epoll::delete(&self.epoll, &socket);
        true
    }

    fn is_still(&self, slot: usize) -> bool {
        let Interest { input, output, .. } = self.interest[slot];
        !input && !output
    }

    fn part(&mut self, _: usize, socket: &Socket) -> bool {
        // The call can only fail for a socket that is not in the set.
        let _ = epoll::delete(&self.epoll, socket);
        true
    }

    fn wait(&mut self, timeout: Duration, events: &mut Vec<Event>, _: &mut Pool) -> bool {
        let timeout =
            Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
        self.events.clear();
        // The only error possible here is an interruption, which is an empty turn.
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), Some(&timeout));
        for event in &self.events {
            let (token, flags) = (event.data.u64(), event.flags);
            if token == MAILBOX {
                events.push(Event::Mail);
                continue;
            }
            if token >= LISTENER {
                events.push(Event::Listener((token - LISTENER) as usize));
                continue;
            }
            let slot = token as usize;
            let Interest { input, output, .. } = self.interest[slot];
            if output && flags.contains(epoll::EventFlags::OUT) {
                events.push(Event::Writable(slot));
            }
            if input
                && flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR)
            {
                let ends = flags.intersects(epoll::EventFlags::RDHUP | epoll::EventFlags::HUP);
                events.push(if ends { Event::Last(slot) } else { Event::Readable(slot) });
            } else if flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                events.push(Event::Broken(slot));
            } else if !input && flags.contains(epoll::EventFlags::RDHUP) {
                events.push(Event::Half(slot));
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    /// An ending that is put off is reported once, and again only when some of its bytes were taken.
    #[test]
    fn a_last_word_that_is_put_off_is_not_told_again_until_it_was_looked_at() {
        const BYTES: usize = READ + 100;
        let (mailbox, _far) = UnixStream::pair().unwrap();
        let mut io = Epoll::new(mailbox.as_fd(), &[]).unwrap();
        let (mut far, near) = UnixStream::pair().unwrap();
        let mut socket = Socket::unix(near).unwrap();
        io.add(0, &socket).unwrap();
        io.set_input(0, &socket, true).unwrap();
        let (mut events, mut pool) = (Vec::new(), Pool::default());
        far.write_all(&[7; BYTES]).unwrap();
        io.wait(Duration::ZERO, &mut events, &mut pool);
        assert!(matches!(events[..], [Event::Readable(0)]));
        drop(far);
        for left in [BYTES, BYTES - READ] {
            events.clear();
            io.wait(Duration::ZERO, &mut events, &mut pool);
            assert!(matches!(events[..], [Event::Last(0)]));
            io.put_off(0, &socket);
            events.clear();
            io.wait(Duration::ZERO, &mut events, &mut pool);
            assert!(events.is_empty());
            match io.receive(&Event::Last(0), &mut socket, None).unwrap() {
                Received::Bytes(bytes) => assert_eq!(bytes, vec![7; left.min(READ)]),
                _ => panic!("nothing came"),
            }
        }
        assert!(matches!(io.receive(&Event::Last(0), &mut socket, None).unwrap(), Received::Ended));
    }
}
