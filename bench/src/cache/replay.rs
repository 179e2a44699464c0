//! A trace replayed through a live server with room for a number of keys.
//!
//! Each request is one `SET key value NX`. Its reply says whether the key existed, which counts as a use, and
//! it adds a missing key. So requests can be pipelined over one connection and are still served in order.
//! They act like GETs, each followed by a SET of a missing key. Every request carries the value, whose size
//! is chosen so that it can be sent in time.
//!
//! The keys that a server holds at its limit depend on its other memory, so the limit is found by measuring.
//! The server is filled with as many keys as should fit, then with more. The limit is moved until the number
//! of keys held is right. The target is the middle between two numbers of keys, so that a few bytes change
//! nothing. Other memory changes with time, so the replay keeps moving the limit, for all servers by the same
//! rule. The number of keys held is reported beside the hits.

use super::trace::Trace;
use crate::client::Client;
use crate::server::{Server, Target};
use crate::wire;
use dial::Frame;

/// Bytes of all values together, and bytes sent.
const HELD_BYTES: usize = 64 << 20;
const SENT_BYTES: usize = 4 << 30;
/// Least and most bytes of a value: larger ones are served in other ways than small ones.
const VALUE_BYTES: std::ops::RangeInclusive<usize> = 1 << 10..=64 << 10;
/// Bytes of requests sent before their replies are read, as they take memory too.
const BATCH_BYTES: usize = 32 << 10;
/// Number of times that a replay checks the number of keys.
const LOOKS: usize = 512;
const NX: &[u8] = b"$2\r\nNX\r\n";

/// The result of a replay.
#[derive(Debug, Default, Clone, Copy)]
pub struct Outcome {
    pub hits: usize,
    /// SETs that the server refused for want of memory. They are misses, and the item is not kept.
    pub refused: usize,
    /// Keys in the second half of the replay.
    pub held: f64,
}

/// The way of asking.
#[derive(Clone, Copy)]
pub struct Way {
    /// Most requests sent before their replies are read.
    pub pipeline: usize,
    /// Bytes of a value; 0: as suits the trace.
    pub value: usize,
}

/// Replays a trace through its own server.
pub fn replay(
    target: &Target,
    policy: &str,
    trace: &Trace,
    capacity: usize,
    way: Way,
) -> Result<Outcome, String> {
    let server = Server::start(target)?;
    let client = server.client().map_err(|e| e.to_string())?;
    let size = if way.value > 0 { way.value } else { value_bytes(capacity, trace.keys.len()) };
    let mut cache = Cache::new(client, size, way.pipeline);
    cache.words(&format!("CONFIG SET maxmemory-policy {policy}"))?;
    cache.calibrate(capacity)?;
    // The replay begins with an empty cache, as old keys would never be asked for again.
    cache.words("FLUSHALL")?;
    cache.replay(trace, capacity)
}

/// The greatest possible size, so that other memory has little weight.
fn value_bytes(capacity: usize, requests: usize) -> usize {
    (HELD_BYTES / capacity).min(SENT_BYTES / requests.max(1)).clamp(*VALUE_BYTES.start(), *VALUE_BYTES.end())
}

/// A server with a limit, and the value that all keys get.
struct Cache {
    client: Client,
    /// The words of a request behind its key.
    tail: Vec<u8>,
    batch: usize,
    limit: f64,
    /// Bytes of a key.
    each: f64,
    /// Number of missing keys, smoothed.
    off: f64,
    buffer: Vec<u8>,
    tally: Outcome,
}

impl Cache {
    fn new(client: Client, size: usize, pipeline: usize) -> Cache {
        let mut tail = Vec::with_capacity(size + 64);
        wire::put_word(&mut tail, &vec![b'v'; size]);
        tail.extend_from_slice(NX);
        let batch = (BATCH_BYTES / size).clamp(1, pipeline.max(1));
        let each = size as f64;
        Cache {
            client,
            tail,
            batch,
            limit: 0.0,
            each,
            off: 0.0,
            buffer: Vec::new(),
            tally: Outcome::default(),
        }
    }

    /// Asks for keys in order, and adds missing ones.
    fn ask(&mut self, keys: impl Iterator<Item = String>) -> Result<(), String> {
        let mut keys = keys.peekable();
        while keys.peek().is_some() {
            self.buffer.clear();
            let mut sent = 0;
            for key in keys.by_ref().take(self.batch) {
                wire::put_count(&mut self.buffer, 4);
                wire::put_word(&mut self.buffer, b"SET");
                wire::put_word(&mut self.buffer, key.as_bytes());
                self.buffer.extend_from_slice(&self.tail);
                sent += 1;
            }
            self.client.write(&self.buffer).map_err(|e| e.to_string())?;
            for _ in 0..sent {
                let reply = self.client.read().map_err(|e| e.to_string())?;
                self.tally.count(reply)?;
            }
        }
        Ok(())
    }

    fn words(&mut self, line: &str) -> Result<Frame, String> {
        self.client.words(line).map_err(|e| format!("{line}: {e}"))
    }

    fn used(&mut self) -> Result<f64, String> {
        let text = self.words("INFO memory")?.lossy();
        let line = text.lines().find_map(|line| line.strip_prefix("used_memory:"));
        line.and_then(|n| n.trim().parse().ok()).ok_or("INFO shows no used_memory".to_string())
    }

    /// Makes room for so many more keys.
    fn move_limit(&mut self, keys: f64) -> Result<(), String> {
        self.limit = (self.limit + keys * self.each).max(1.0);
        self.words(&format!("CONFIG SET maxmemory {}", self.limit as u64)).map(|_| ())
    }

    fn held(&mut self) -> Result<u64, String> {
        self.client.size().map_err(|e| e.to_string())
    }

    /// Finds the limit at which so many keys are held.
    fn calibrate(&mut self, capacity: usize) -> Result<(), String> {
        const ROUNDS: usize = 6;
        const LOOKS: usize = 16;
        let empty = self.used()?;
        self.ask((0..capacity).map(|n| format!("fill:{n}")))?;
        let full = self.used()?;
        self.each = ((full - empty) / capacity as f64).max(self.each);
        self.limit = full;
        let (mut off, mut fresh) = (-0.5, 0..);
        let many = capacity.div_ceil(8).max(8);
        for _ in 0..ROUNDS {
            self.move_limit(off)?;
            // The first ones only bring the server to the new limit.
            self.ask(fresh.by_ref().take(many + capacity).map(|n: u64| format!("more:{n}")))?;
            let mut sum = 0;
            for _ in 0..LOOKS {
                self.ask(fresh.by_ref().take(many).map(|n| format!("more:{n}")))?;
                sum += self.held()?;
            }
            off = capacity as f64 - sum as f64 / LOOKS as f64;
            if off.abs() < 0.005 * capacity as f64 + 0.1 {
                break;
            }
        }
        Ok(())
    }

    fn replay(&mut self, trace: &Trace, capacity: usize) -> Result<Outcome, String> {
        self.tally = Outcome::default();
        let (mut held, mut looks, mut known, mut asked) = (0, 0, 0, 0);
        for part in trace.keys.chunks((trace.keys.len() / LOOKS).max(32)) {
            self.ask(part.iter().map(u32::to_string))?;
            asked += part.len();
            // Keys are numbered in the order of their first request.
            known = part.iter().fold(known, |known, key| known.max(*key as usize + 1));
            let now = self.held()?;
            if asked > trace.keys.len() / 2 {
                held += now;
                looks += 1;
            }
            if known > 2 * capacity {
                self.steer(capacity as f64 - now as f64, capacity)?;
            }
        }
        Ok(Outcome { held: held as f64 / f64::from(looks.max(1)), ..self.tally })
    }

    /// Moves the limit by a part of the missing keys, if they are missing for a while: slowly enough not to
    /// swing.
    fn steer(&mut self, off: f64, capacity: usize) -> Result<(), String> {
        self.off += (off - self.off) / 4.0;
        if self.off.abs() > 0.005 * capacity as f64 + 0.25 {
            self.move_limit(self.off / 8.0)?;
        }
        Ok(())
    }
}

impl Outcome {
    fn count(&mut self, reply: Frame) -> Result<(), String> {
        match reply {
            Frame::Null => self.hits += 1,
            Frame::Simple(_) => {}
            Frame::Error(text) if text.starts_with(b"OOM") => self.refused += 1,
            other => return Err(format!("SET NX answered {other:?}")),
        }
        Ok(())
    }
}
