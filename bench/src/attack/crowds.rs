//! Many connections: subscribers, idle clients that are listed, arrivals all at once, and a client that stops
//! reading.

use super::{Attack, Attacker, GIB, Guard, LONG, PLAIN, Stage, Style, nothing};
use crate::fill;
use crate::sys::{self, Epoll, Interest};
use crate::wire;
use dial::{Conn, Frame, FrameCount};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

const CROWD: u64 = 10_000;
const ARRIVALS: u64 = 5_000;
/// Bytes of the unread reply.
const UNREAD: u64 = 1_000_000_000;
/// Bytes of one of its elements.
const ELEMENT: u64 = 1000;
const STALL: Duration = Duration::from_secs(5);
/// Pause between two arrivals.
const LULL: Duration = Duration::from_millis(500);
const ARRIVAL_LIMIT: Duration = Duration::from_secs(60);

pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "publish",
        what: "PUBLISH to {} subscribers",
        size: CROWD,
        setup: |stage| {
            let mut request = Vec::new();
            wire::command(&mut request, &[b"SUBSCRIBE", b"news"]);
            gather(stage, stage.scaled(CROWD), &request)
        },
        strike: |_, _| Ok(Box::new(|attacker| attacker.call(&[b"PUBLISH", b"news", &[b'n'; 100]]))),
        ..PLAIN
    },
    Attack {
        name: "client-list",
        what: "CLIENT LIST of {} connections",
        strike: |_, _| Ok(Box::new(|attacker| attacker.words("CLIENT LIST"))),
        ..CROWDED
    },
    Attack {
        name: "info",
        what: "INFO with {} connections",
        strike: |_, _| Ok(Box::new(|attacker| attacker.words("INFO everything"))),
        ..CROWDED
    },
    Attack {
        name: "stalled",
        what: "a stalled reader, bytes unread: {}",
        size: UNREAD,
        style: Style::Once(LONG),
        memory: (4 * GIB, GIB / 4),
        setup: |stage| {
            let n = stage.scaled(UNREAD) / ELEMENT;
            fill::collection(stage.server, b"RPUSH", b"l", n, 1, |out, _| {
                wire::put_word(out, &[b'x'; ELEMENT as usize])
            })?;
            nothing()
        },
        strike: |stage, _| {
            let mut own = Some(Attacker::connect(stage.server)?);
            let last = (stage.own_share(UNREAD) / ELEMENT).saturating_sub(1);
            Ok(Box::new(move |_| stall(last, own.take().ok_or(io::ErrorKind::NotConnected)?)))
        },
        ..PLAIN
    },
    Attack {
        name: "arrivals",
        what: "{} connections arrive at once",
        size: ARRIVALS,
        strike: |stage, _| {
            // All attackers together stay below the servers' limit of clients.
            let n = stage.scaled(ARRIVALS) / stage.attackers as u64;
            Ok(Box::new(move |attacker| {
                let port = attacker.stream.peer_addr()?.port();
                let took = arrive(port, n.max(1) as usize)?;
                sleep(LULL);
                Ok(took)
            }))
        },
        ..PLAIN
    },
];

const CROWDED: Attack = Attack {
    size: CROWD,
    setup: |stage| {
        let mut request = Vec::new();
        wire::command(&mut request, &[b"CLIENT", b"SETNAME", b"one-of-many"]);
        gather(stage, stage.scaled(CROWD), &request)
    },
    ..PLAIN
};

/// Opens `n` connections that stay; each sends `request` and gets its first reply.
pub(super) fn gather(stage: &Stage, n: u64, request: &[u8]) -> io::Result<Guard> {
    Ok(Box::new(Crowd::gather(stage, n, request)?))
}

/// Connections that stay, and a thread that discards their input.
struct Crowd {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Crowd {
    /// Opens `n` connections, sends `request` on each and waits for its reply.
    fn gather(stage: &Stage, n: u64, request: &[u8]) -> io::Result<Crowd> {
        let epoll = Epoll::new()?;
        let mut streams = Vec::new();
        for _ in 0..n {
            let mut stream = TcpStream::connect(("127.0.0.1", stage.server.port))?;
            stream.write_all(request)?;
            let mut conn = Conn::over(stream.try_clone()?, ARRIVAL_LIMIT)?;
            if let error @ Frame::Error(_) = conn.reply()? {
                return Err(io::Error::other(error.lossy()));
            }
            epoll.add(&stream, streams.len(), Interest::Read)?;
            streams.push(stream);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            sys::demote();
            let mut ready = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                if epoll.wait(Duration::from_millis(100), &mut ready).is_err() {
                    return;
                }
                for &(token, _) in &ready {
                    // A closed connection stays readable: closing it drops it from the set.
                    if matches!(sys::skip(&streams[token], 1 << 20), Ok(0)) {
                        let _ = epoll.remove(&streams[token]);
                    }
                }
            }
        });
        Ok(Crowd { stop, thread: Some(thread) })
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Asks for the list up to `last`, reads none of it, and leaves after a while. Returns the time of a first
/// byte.
fn stall(last: u64, mut own: Attacker) -> io::Result<Duration> {
    let start = Instant::now();
    own.stream.write_all(&crate::wire::line(&format!("LRANGE l 0 {last}")))?;
    let (readable, _) = sys::wait_ready(&own.stream, false, ARRIVAL_LIMIT)?;
    let first = start.elapsed();
    if !readable {
        return Err(io::Error::other("no reply began"));
    }
    sleep(STALL);
    Ok(first)
}

/// Opens `n` connections in one go, sends PING on each as soon as it is connected, and waits for all answers.
fn arrive(port: u16, n: usize) -> io::Result<Duration> {
    struct Arrival {
        stream: TcpStream,
        asked: bool,
        scanner: FrameCount,
    }
    let mut ping = Vec::new();
    wire::command(&mut ping, &[b"PING"]);
    let epoll = Epoll::new()?;
    let start = Instant::now();
    let mut arrivals = Vec::with_capacity(n);
    for token in 0..n {
        let stream = sys::begin_connect(port)?;
        epoll.add(&stream, token, Interest::ReadWrite)?;
        arrivals.push(Arrival { stream, asked: false, scanner: FrameCount::default() });
    }
    let (mut answered, mut ready, mut buffer) = (0, Vec::new(), [0; 4096]);
    while answered < n {
        epoll.wait(Duration::from_secs(1), &mut ready)?;
        if start.elapsed() > ARRIVAL_LIMIT {
            return Err(io::Error::other(format!("{answered} of {n} were answered within 60 s")));
        }
        for &(token, writable) in &ready {
            let arrival = &mut arrivals[token];
            if writable && !arrival.asked {
                arrival.stream.write_all(&ping)?;
                arrival.asked = true;
                epoll.modify(&arrival.stream, token, Interest::Read)?;
            }
            match arrival.stream.read(&mut buffer) {
                Ok(0) => return Err(io::Error::other(format!("connection {token} of {n} was closed"))),
                Ok(read) => answered += arrival.scanner.feed(&buffer[..read]) as usize,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            let (errors, text) = arrival.scanner.errors();
            if errors > 0 {
                return Err(io::Error::other(text));
            }
        }
    }
    Ok(start.elapsed())
}
