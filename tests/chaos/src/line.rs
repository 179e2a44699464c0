//! A connection that reads while it writes, as a server does not read from a client that does not read its
//! replies.

use crate::scan::{Reply, Scan};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Limit of an attempt to connect.
const CONNECT: Duration = Duration::from_secs(60);

pub struct Line {
    stream: TcpStream,
    scan: Scan,
    out: Vec<u8>,
    sent: usize,
    closed: bool,
}

/// A result of reading from a connection.
#[derive(Debug)]
pub enum Came {
    Reply(Reply),
    /// Nothing came in the time given.
    Nothing,
    /// The other side has closed, perhaps in the middle of a reply. A cut reply does not count.
    Closed,
    /// The bytes are not RESP.
    Malformed(String),
}

impl Line {
    pub fn open(addr: SocketAddr) -> io::Result<Line> {
        let stream = dial::tcp(addr, CONNECT)?;
        stream.set_nonblocking(true)?;
        Ok(Line { stream, scan: Scan::default(), out: Vec::new(), sent: 0, closed: false })
    }

    /// Queues bytes, to be sent as the socket takes them.
    pub fn put(&mut self, bytes: &[u8]) {
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        }
        self.out.extend_from_slice(bytes);
    }

    /// Gives the next reply while queued bytes are being sent.
    pub fn take(&mut self, patience: Duration) -> Came {
        let deadline = Instant::now() + patience;
        loop {
            match self.scan.next() {
                Ok(Some(reply)) => return Came::Reply(reply),
                Ok(None) if self.closed => return Came::Closed,
                Ok(None) => {}
                Err(why) => return Came::Malformed(why),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Came::Nothing;
            }
            self.turn(left, true);
        }
    }

    /// Sends queued bytes without reading, for a limited time. True: all is sent.
    pub fn push(&mut self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while self.sent < self.out.len() && !self.closed {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.turn(left, false);
        }
        true
    }

    /// Reads raw bytes, for protocols other than RESP. False once the other side has closed.
    pub fn raw(&mut self, patience: Duration, into: &mut Vec<u8>) -> bool {
        self.turn(patience, false);
        let mut chunk = [0; 64 * 1024];
        match self.stream.read(&mut chunk) {
            Ok(0) => false,
            Ok(n) => {
                into.extend_from_slice(&chunk[..n]);
                true
            }
            Err(e) => matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }

    pub fn end_sending(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    fn turn(&mut self, patience: Duration, reads: bool) {
        let writes = self.sent < self.out.len();
        let mut wanted = PollFlags::IN;
        if writes {
            wanted |= PollFlags::OUT;
        }
        if !reads && writes {
            wanted = PollFlags::OUT;
        }
        let wait =
            Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: i64::from(patience.subsec_nanos()) };
        let mut fds = [PollFd::new(&self.stream, wanted)];
        let told = match poll(&mut fds, Some(&wait)) {
            Ok(n) if n > 0 => fds[0].revents(),
            _ => return,
        };
        if told.intersects(PollFlags::OUT | PollFlags::ERR | PollFlags::HUP) && writes {
            self.write();
        }
        if reads && told.intersects(PollFlags::IN | PollFlags::ERR | PollFlags::HUP) {
            self.read();
        }
    }

    fn write(&mut self) {
        let end = self.out.len().min(self.sent + 256 * 1024);
        match self.stream.write(&self.out[self.sent..end]) {
            Ok(n) => self.sent += n,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            // The other side has closed. Its earlier bytes can still be read.
            Err(_) => self.sent = self.out.len(),
        }
    }

    fn read(&mut self) {
        let mut chunk = [0; 256 * 1024];
        match self.stream.read(&mut chunk) {
            Ok(0) => self.closed = true,
            Ok(n) => self.scan.feed(&chunk[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.closed = true,
        }
    }
}
