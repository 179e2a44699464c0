//! A closed-loop load generator: many connections, one thread, epoll, as little parsing as possible.
//!
//! Each connection sends `pipeline` commands in one write, and the next ones when all replies are in.
//! Connections may be bound into groups. A group sends again when all its members are done, like a caller
//! that waits for several answers. The generator is cheap on purpose: on a small machine one that needs as
//! much CPU as the server measures itself.

use crate::endpoint::{Endpoint, Link};
use crate::sys::{Epoll, Interest};
use dial::{FrameCount, Patience};
use std::io;
use std::time::{Duration, Instant};

/// Silence after which a server is given up, if nothing else is said.
const SILENCE: Duration = Duration::from_secs(180);

struct Conn {
    link: Box<dyn Link>,
    out: Vec<u8>,
    written: usize,
    wants_write: bool,
    awaited: u64,
    scanner: FrameCount,
}

/// Connections ready to be loaded; may be run several times.
pub struct Load {
    epoll: Epoll,
    conns: Vec<Conn>,
    group: usize,
    buffer: Vec<u8>,
    silence: Duration,
}

/// The results of a run.
pub struct Outcome {
    pub replies: u64,
    pub elapsed: Duration,
}

impl Load {
    /// Opens `conns` connections in groups of `group`.
    pub fn connect(to: impl AsRef<Endpoint>, conns: usize, group: usize) -> io::Result<Load> {
        let to = to.as_ref();
        let load = Load::open(conns, group, || to.link())?;
        Ok(Load { silence: to.silence, ..load })
    }

    /// The same with connections that `one` opens.
    pub fn open(
        conns: usize,
        group: usize,
        mut one: impl FnMut() -> io::Result<Box<dyn Link>>,
    ) -> io::Result<Load> {
        assert!(group > 0 && conns.is_multiple_of(group));
        let epoll = Epoll::new()?;
        let mut opened = Vec::with_capacity(conns);
        for token in 0..conns {
            let link = one()?;
            epoll.add(&link.fd(), token, Interest::Read)?;
            opened.push(Conn {
                link,
                out: Vec::new(),
                written: 0,
                wants_write: false,
                awaited: 0,
                scanner: FrameCount::default(),
            });
        }
        Ok(Load { epoll, conns: opened, group, buffer: vec![0; 256 << 10], silence: SILENCE })
    }

    /// Runs until `next` has no more commands or `until` has passed, then waits for the outstanding replies.
    /// `next` appends one command and returns whether it did. Errors: the connection's; an error reply of the
    /// server, with its text; silence.
    pub fn run(
        &mut self,
        pipeline: usize,
        until: Option<Instant>,
        next: &mut dyn FnMut(&mut Vec<u8>) -> bool,
    ) -> io::Result<Outcome> {
        let Load { epoll, conns, group, buffer, silence } = self;
        let start = Instant::now();
        let mut replies = 0;
        let mut busy = vec![0usize; conns.len() / *group];
        let mut more = true;
        let mut ready = Vec::new();
        for token in 0..conns.len() {
            if send_batch(epoll, conns, token, pipeline, &mut more, next)? {
                busy[token / *group] += 1;
            }
        }
        let mut patience = Patience::running(*silence);
        while busy.iter().any(|&n| n > 0) {
            let stopped = || io::Error::new(io::ErrorKind::TimedOut, "the server stopped answering");
            let left = patience.left().ok_or_else(stopped)?;
            epoll.wait(left.min(Duration::from_secs(1)), &mut ready)?;
            more = more && until.is_none_or(|until| Instant::now() < until);
            let (before, mut bytes) = (replies, 0);
            for &(token, writable) in &ready {
                let conn = &mut conns[token];
                if writable {
                    flush(epoll, conn, token)?;
                }
                let (complete, came) = receive(conn, buffer)?;
                bytes += came;
                replies += complete;
                conn.awaited = conn.awaited.checked_sub(complete).ok_or(io::ErrorKind::InvalidData)?;
                if complete == 0 || conn.awaited > 0 {
                    continue;
                }
                let members = token / *group;
                busy[members] -= 1;
                if busy[members] == 0 && more {
                    for member in members * *group..(members + 1) * *group {
                        busy[members] +=
                            usize::from(send_batch(epoll, conns, member, pipeline, &mut more, next)?);
                    }
                }
            }
            match replies > before {
                true => patience = Patience::running(*silence),
                false => patience.came(bytes),
            }
        }
        let elapsed = start.elapsed();
        for conn in conns {
            let (errors, text) = conn.scanner.errors();
            if errors > 0 {
                return Err(io::Error::other(format!("{errors} error replies, the first: {text}")));
            }
        }
        Ok(Outcome { replies, elapsed })
    }
}

fn send_batch(
    epoll: &Epoll,
    conns: &mut [Conn],
    token: usize,
    pipeline: usize,
    more: &mut bool,
    next: &mut dyn FnMut(&mut Vec<u8>) -> bool,
) -> io::Result<bool> {
    let conn = &mut conns[token];
    conn.out.clear();
    conn.written = 0;
    while *more && conn.awaited < pipeline as u64 {
        if next(&mut conn.out) {
            conn.awaited += 1;
        } else {
            *more = false;
        }
    }
    flush(epoll, conn, token)?;
    Ok(conn.awaited > 0)
}

fn flush(epoll: &Epoll, conn: &mut Conn, token: usize) -> io::Result<()> {
    while conn.written < conn.out.len() {
        match conn.link.send(&conn.out[conn.written..])? {
            0 => break,
            n => conn.written += n,
        }
    }
    let sent = conn.link.flush()?;
    let wants_write = !sent || conn.written < conn.out.len();
    await_room(epoll, conn, token, wants_write)
}

fn await_room(epoll: &Epoll, conn: &mut Conn, token: usize, wants_write: bool) -> io::Result<()> {
    if wants_write != conn.wants_write {
        conn.wants_write = wants_write;
        let interest = if wants_write { Interest::ReadWrite } else { Interest::Read };
        epoll.modify(&conn.link.fd(), token, interest)?;
    }
    Ok(())
}

/// Returns the replies that were completed, and the bytes that came.
fn receive(conn: &mut Conn, buffer: &mut [u8]) -> io::Result<(u64, usize)> {
    let (mut complete, mut came) = (0, 0);
    conn.link.receive(buffer, &mut |bytes| {
        complete += conn.scanner.feed(bytes);
        came += bytes.len();
    })?;
    Ok((complete, came))
}
