//! Replicas that follow badly: one that never says how far it is, one that reads 10 KB a second, one that goes in
//! the middle of a copy.

use super::bank::rest;
use super::stage::{NOBODY, Stage};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::rng::Rng;

/// How often one has come. A step that counts full copies asks whether one was theirs.
#[derive(Default)]
pub struct Leeches {
    pub came: AtomicU64,
}

/// Comes, follows badly for some seconds, and goes, again and again.
pub fn leech(stage: &Stage, leeches: &Leeches, rng: &mut Rng) {
    while stage.is_on() {
        rest(rng, 6000);
        let leader = stage.leader();
        let to = if leader == NOBODY || rng.percent(40) { rng.below(stage.ports.len()) } else { leader };
        let addr = SocketAddr::from(([127, 0, 0, 1], stage.ports[to]));
        let Ok(mut stream) = dial::tcp(addr, Duration::from_secs(5)) else { continue };
        let hello: &[&str] = match rng.below(3) {
            0 => &["REPLCONF listening-port 1", "REPLCONF capa eof capa psync2 capa evenkeel", "PSYNC ? -1"],
            1 => &["REPLCONF listening-port 1", "REPLCONF capa psync2", "PSYNC ? -1"],
            _ => &["SYNC"],
        };
        for (nr, line) in hello.iter().enumerate() {
            // Replies to earlier lines must have gone before.
            std::thread::sleep(Duration::from_millis(if nr == 0 { 0 } else { 30 }));
            // Its last line asks for a copy.
            leeches.came.fetch_add(1, SeqCst);
            let _ = stream.write_all(format!("{line}\r\n").as_bytes());
        }
        let _ = stream.set_read_timeout(Some(Duration::from_millis(100)));
        let (kind, began) = (rng.below(3), Instant::now());
        let lasts = Duration::from_millis(rng.next() % 9000);
        let mut left = rng.below(3 << 20);
        let mut bytes = [0; 64 << 10];
        while began.elapsed() < lasts && stage.is_on() {
            let most = if kind == 1 { 1024 } else { bytes.len() };
            match stream.read(&mut bytes[..most]) {
                Ok(0) => break,
                Ok(n) if kind == 1 => std::thread::sleep(Duration::from_micros(n as u64 * 100)),
                Ok(n) if kind == 2 => {
                    left = left.saturating_sub(n);
                    if left == 0 {
                        break;
                    }
                }
                Ok(_) => {}
                Err(e)
                    if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
                Err(_) => break,
            }
        }
    }
}
