//! Clients that do everything at the wrong moment: the server loses nothing, leaks nothing, and mixes up no
//! clients' bytes.
//!
//! EVENKEEL_STRESS_SECONDS sets how long each back end is under fire (default: 1).

use crate::support::{Server, encode, encode_line, foreign};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const ATTACKERS: u64 = 6;

/// A small generator: the same clients do the same in each run, though not at the same time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Requests of which each names its client, and the replies they must get.
fn conversation(dice: &mut Dice, name: &str, count: u64) -> (Vec<u8>, Vec<u8>) {
    let (mut requests, mut replies) = (Vec::new(), Vec::new());
    for n in 0..count {
        let mut text = format!("{name}:{n}:").into_bytes();
        let size = [10, 100, 3_000, 40_000][dice.below(4) as usize];
        text.resize(text.len() + dice.below(size) as usize, b'a' + (n % 26) as u8);
        requests.extend(encode(&[b"ECHO", &text]));
        replies.extend(format!("${}\r\n", text.len()).into_bytes());
        replies.extend(text);
        replies.extend(b"\r\n");
    }
    (requests, replies)
}

/// Sends in pieces while another thread reads slowly. The bytes that come must be a prefix of the expected
/// ones; true if all came.
fn converse(mut stream: TcpStream, dice: &mut Dice, name: &str) -> bool {
    let count = 1 + dice.below(60);
    let (requests, replies) = conversation(dice, name, count);
    let mut reader = stream.try_clone().expect("a second handle");
    let (slow, half) = (dice.below(3) == 0, dice.below(2) == 0);
    let reading = std::thread::spawn(move || {
        reader.set_read_timeout(Some(crate::support::PATIENCE)).expect("a time limit");
        let (mut at, mut chunk) = (0, vec![0; 10_000]);
        while at < replies.len() {
            match reader.read(&mut chunk) {
                Ok(0) => break,
                Ok(n) => {
                    let due = &replies[at..(at + n).min(replies.len())];
                    assert!(due == &chunk[..n], "bytes that are not due, from {at} on");
                    at += n;
                    if slow {
                        std::thread::sleep(Duration::from_micros(200));
                    }
                }
                Err(e) => {
                    assert!(!matches!(e.kind(), ErrorKind::WouldBlock), "no reply, though nobody closed");
                    break;
                }
            }
        }
        at == replies.len()
    });
    let mut rest = &requests[..];
    while !rest.is_empty() {
        let piece = (1 + dice.below(20_000) as usize).min(rest.len());
        if stream.write_all(&rest[..piece]).is_err() {
            break;
        }
        rest = &rest[piece..];
    }
    if half {
        let _ = stream.shutdown(Shutdown::Write);
    }
    reading.join().expect("what came was due")
}

/// One visit of a client that misbehaves; it may be killed meanwhile.
fn misbehave(server: std::net::SocketAddr, dice: &mut Dice, name: &str) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_nodelay(true)?;
    match dice.below(10) {
        0 => {}
        1 => stream.write_all(b"*3\r\n$3\r\nSET\r\n$5\r\nhal")?,
        2 => {
            stream.write_all(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$300000\r\n")?;
            stream.write_all(&vec![b'x'; dice.below(300_000) as usize])?;
        }
        // Closed with unread replies: the kernel answers the server's bytes with a reset.
        3 => {
            stream.write_all(&encode_line("GET large").repeat(1 + dice.below(30) as usize))?;
            stream.read_exact(&mut [0; 1])?;
        }
        4 => {
            stream.write_all(&encode_line("BLPOP nosuch 0"))?;
            stream.write_all(&encode_line("PING").repeat(3))?;
            if dice.below(2) == 0 {
                stream.shutdown(Shutdown::Write)?;
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        5 => stream.write_all(&encode_line("SUBSCRIBE news"))?,
        6 => {
            let noise: Vec<u8> = (0..dice.below(5_000)).map(|_| dice.below(256) as u8).collect();
            stream.write_all(&noise)?;
        }
        7 => {
            stream.write_all(&encode_line("PUBLISH news hear").repeat(50))?;
            stream.shutdown(Shutdown::Both)?;
        }
        _ => return Ok(converse(stream, dice, name)),
    }
    Ok(false)
}

fn attacker(
    server: std::net::SocketAddr,
    id: u64,
    over: &Arc<AtomicBool>,
    whole: &Arc<AtomicU64>,
) -> JoinHandle<()> {
    let (over, whole) = (over.clone(), whole.clone());
    std::thread::spawn(move || {
        let mut dice = Dice(0x9E37_79B9_7F4A_7C15 ^ (id + 1));
        let mut visits = 0;
        while !over.load(Ordering::Relaxed) {
            visits += 1;
            // A killed client sees errors.
            let heard = misbehave(server, &mut dice, &format!("{id}/{visits}")).unwrap_or(false);
            whole.fetch_add(heard.into(), Ordering::Relaxed);
        }
    })
}

fn descriptors(server: &Server) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", server.pid())).expect("its descriptors").count()
}

fn survives(backend: &str) {
    if foreign() {
        return;
    }
    // The watch for neighbours has descriptors open for a while.
    let quiet = ["--watch-neighbours", "no"];
    let mut server =
        Server::start_with(&[&["--io-backend", backend, "--maxclients", "500"], &quiet[..]].concat());
    let mut watcher = server.client();
    watcher.request(&[b"SET", b"large", &vec![b'v'; 200_000]]);
    watcher.expect_reply("+OK");
    let before = descriptors(&server);
    let (over, whole) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let attackers: Vec<_> = (0..ATTACKERS).map(|id| attacker(server.addr, id, &over, &whole)).collect();
    let seconds = std::env::var("EVENKEEL_STRESS_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut dice = Dice(7);
    while Instant::now() < until {
        std::thread::sleep(Duration::from_millis(dice.below(30)));
        let killed = match dice.below(3) {
            0 => watcher.call("CLIENT KILL TYPE normal SKIPME yes"),
            1 => watcher.call("CLIENT KILL TYPE pubsub"),
            _ => watcher.call("CLIENT LIST"),
        };
        assert!(killed.starts_with([':', '"']), "{killed}");
    }
    let patient = Instant::now() + crate::support::PATIENCE;
    while whole.load(Ordering::Relaxed) == 0 && Instant::now() < patient {
        std::thread::sleep(Duration::from_millis(5));
    }
    over.store(true, Ordering::Relaxed);
    for attacker in attackers {
        attacker.join().expect("no attacker saw what it should not");
    }
    assert!(whole.load(Ordering::Relaxed) > 0, "some conversations came to their end");
    let settled = Instant::now() + crate::support::PATIENCE;
    while !watcher.call("INFO clients").contains("connected_clients:1\\r\\n") || descriptors(&server) > before
    {
        let left = watcher.call("CLIENT LIST");
        assert!(
            Instant::now() < settled,
            "{} descriptors, there were {before}; {left}",
            descriptors(&server)
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    // All receive buffers are still there: a client that fills them is served.
    for n in 1..=5 {
        let stream = TcpStream::connect(server.addr).expect("a connection");
        assert!(converse(stream, &mut Dice(n), "after"));
    }
    assert!(server.is_running() && !server.output().contains("panicked"), "{}", server.output());
}

#[test]
fn hostile_clients_leak_nothing_over_epoll() {
    survives("epoll");
}

#[test]
fn hostile_clients_leak_nothing_over_io_uring() {
    survives("io_uring");
}

/// Some clients send all and then close their sending side. They get all replies, also while they are not
/// read from.
#[test]
fn who_says_that_it_was_all_gets_all_replies() {
    if foreign() {
        return;
    }
    for backend in ["io_uring", "epoll"] {
        let server = Server::start_with(&["--io-backend", backend]);
        for n in 1..=60 {
            let stream = TcpStream::connect(server.addr).expect("a connection");
            assert!(converse(stream, &mut Dice(n), "whole"), "{backend}, conversation {n}");
        }
    }
}
