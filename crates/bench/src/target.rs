//! A server under test: whether keys may be written there, and their removal.

use crate::client::Client;
use crate::endpoint::Endpoint;
use crate::own::Own;
use crate::sys;
use crate::wire;
use dial::Frame;
use loader::{Conn, Stop, number};
use std::io;
use std::time::{Duration, Instant};

/// The names of connections, which a server that tells who made whom wait repeats.
pub const ATTACKER: &str = "evenkeel-bench-attacker";
pub const BYSTANDER: &str = "evenkeel-bench-bystander";
/// The longest that keys are removed.
const REMOVAL_MAX: Duration = Duration::from_secs(600);
/// Replies of SCAN in a row that may lead nowhere.
const STUCK_MAX: u32 = 1000;
/// Keys asked of SCAN at a time.
const SCANNED: &str = "1000";

pub struct Target {
    /// The program's name: Evenkeel, Valkey, Redis, Dragonfly.
    pub name: String,
    pub version: String,
    pub endpoint: Endpoint,
    /// It was started for this run.
    pub own: bool,
    /// It tells who made whom wait.
    pub tells_waits: bool,
    _process: Option<Own>,
}

/// The claims of a run on a server.
#[derive(Clone, Copy)]
pub struct Plan {
    /// Most bytes that the keys of a story take.
    pub bytes: u64,
    /// Keys of others are no reason to refuse.
    pub yes: bool,
}

impl Target {
    /// Starts a server, and connects. Errors: it did not start; there is too little memory.
    pub fn start(plan: Plan, stop: &Stop) -> Result<Target, String> {
        let process = Own::start()?;
        let target = Target::open(process.endpoint.clone(), plan, stop)?;
        Ok(Target { own: true, _process: Some(process), ..target })
    }

    /// Connects, and looks whether keys may be written there. Errors: they may not, in a sentence.
    pub fn open(endpoint: Endpoint, plan: Plan, stop: &Stop) -> Result<Target, String> {
        let place = endpoint.server.place.clone();
        let server = endpoint.address().map_err(|e| format!("{place}: {e}"))?;
        let db = endpoint.server.db.unwrap_or(0);
        let mut conn = Conn::open(&reach::Address { server, db }, stop)?;
        let (name, version) = identity(&mut conn)?;
        check_role(&mut conn, &place)?;
        check_keys(&mut conn, &place, plan.yes)?;
        check_memory(&mut conn, &place, plan.bytes)?;
        let probe = endpoint.key("probe");
        conn.call(&[b"SET", &probe, b"x"])?;
        conn.call(&[b"DEL", &probe])?;
        let tells_waits = name == "Evenkeel";
        Ok(Target { name, version, endpoint, own: false, tells_waits, _process: None })
    }

    /// A connection of the client that does the long work. Errors: the connection's.
    pub fn attacker(&self) -> io::Result<Client> {
        Client::connect(self.endpoint.named(ATTACKER))
    }

    /// A number of INFO. Errors: the connection's; it is not there.
    pub fn figure(&self, client: &mut Client, section: &str, name: &str) -> io::Result<u64> {
        let text = client.call(&[b"INFO", section.as_bytes()])?.lossy();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let found = line.and_then(|value| value.trim().parse().ok());
        found.ok_or_else(|| {
            io::Error::new(io::ErrorKind::Unsupported, format!("INFO {section} tells no {name}"))
        })
    }

    /// Removes all keys of the benchmark, and returns their number. O(keys of the database). Errors: the
    /// connection's; it takes more than ten minutes.
    pub fn clean(&self) -> io::Result<u64> {
        let mut client = Client::connect(&self.endpoint)?;
        let prefix = self.endpoint.prefix.as_bytes();
        let pattern = [prefix, b"*"].concat();
        let (mut cursor, mut removed, mut stuck) = (b"0".to_vec(), 0, 0);
        let deadline = Instant::now() + REMOVAL_MAX;
        loop {
            let reply = client.call(&[b"SCAN", &cursor, b"MATCH", &pattern, b"COUNT", SCANNED.as_bytes()])?;
            let (next, keys) = scanned(reply, prefix)?;
            if !keys.is_empty() {
                let words: Vec<&[u8]> =
                    [&b"UNLINK"[..]].into_iter().chain(keys.iter().map(Vec::as_slice)).collect();
                client.call(&words)?;
                removed += keys.len() as u64;
            }
            if next == b"0" {
                return Ok(removed);
            }
            // Each call goes on, in every server.
            stuck = if next == cursor && keys.is_empty() { stuck + 1 } else { 0 };
            if Instant::now() > deadline || stuck > STUCK_MAX {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "SCAN finds no end"));
            }
            cursor = next;
        }
    }

    /// Waits until memory stays as it is, at most for some seconds. Returns used_memory.
    pub fn settled_memory(&self, client: &mut Client) -> io::Result<u64> {
        let mut last = self.figure(client, "memory", "used_memory")?;
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(250));
            let now = self.figure(client, "memory", "used_memory")?;
            if now.abs_diff(last) <= last / 1000 {
                return Ok(now);
            }
            last = now;
        }
        Ok(last)
    }

    /// Sends commands for all of `numbers`, pipelined over a few connections, until a signal comes.
    pub fn send_each(
        &self,
        stop: &Stop,
        numbers: impl Iterator<Item = u64>,
        write: impl FnMut(&mut Vec<u8>, u64),
    ) -> io::Result<()> {
        crate::fill::each(&self.endpoint, numbers.take_while(|_| !stop.is_asked()), write)?;
        stop.check().map_err(io::Error::other)
    }

    /// Writes `n` strings of 40 bytes: keys `k:0` and so on, behind the prefix.
    pub fn strings(&self, stop: &Stop, n: u64) -> io::Result<()> {
        let mut key = Vec::new();
        self.send_each(stop, 0..n, |out, i| {
            self.numbered(&mut key, i);
            wire::command(out, &[b"SET", &key, &crate::random::value40(i)]);
        })
    }

    /// The key of a string.
    pub fn numbered(&self, key: &mut Vec<u8>, i: u64) {
        key.clear();
        key.extend_from_slice(self.endpoint.prefix.as_bytes());
        key.extend_from_slice(b"k:");
        wire::decimal(key, i);
    }
}

/// The cursor and the own keys of a reply to SCAN. Errors: it is another reply.
fn scanned(reply: Frame, prefix: &[u8]) -> io::Result<(Vec<u8>, Vec<Vec<u8>>)> {
    let text = |frame: &Frame| frame.text().map(<[u8]>::to_vec);
    let parts = match reply {
        Frame::Array(parts) => parts,
        other => vec![other],
    };
    let [cursor, Frame::Array(keys)] = &parts[..] else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "SCAN was answered with something else"));
    };
    let cursor = text(cursor).ok_or(io::ErrorKind::InvalidData)?;
    // A server may answer anything; no other key is removed.
    Ok((cursor, keys.iter().filter_map(text).filter(|key| key.starts_with(prefix)).collect()))
}

/// The program's name and version.
fn identity(conn: &mut Conn) -> Result<(String, String), String> {
    let known = [
        ("evenkeel_version", "Evenkeel"),
        ("valkey_version", "Valkey"),
        ("dragonfly_version", "Dragonfly"),
        ("redis_version", "Redis"),
    ];
    for (field, name) in known {
        if let Some(version) = conn.info("server", field)? {
            return Ok((name.to_owned(), dial::shown(version.chars().take(40).collect::<String>())));
        }
    }
    Ok(("server".to_owned(), "unknown".to_owned()))
}

fn check_role(conn: &mut Conn, place: &str) -> Result<(), String> {
    if conn.info("cluster", "cluster_enabled")?.as_deref() == Some("1") {
        return Err(format!(
            "{place} is a node of a cluster, which a benchmark of one server says nothing about: name a server without cluster mode"
        ));
    }
    match conn.info("replication", "role")?.as_deref() {
        Some("slave" | "replica") => {
            Err(format!("{place} is a replica, which must not be written to: name its primary"))
        }
        _ => Ok(()),
    }
}

fn check_keys(conn: &mut Conn, place: &str, yes: bool) -> Result<(), String> {
    let text = conn.call(&[b"INFO", b"keyspace"])?.lossy();
    let keys = |line: &str| line.split_once(":keys=")?.1.split(',').next()?.trim().parse::<u64>().ok();
    let counted = text.lines().filter_map(keys).fold(0, u64::saturating_add);
    // A server whose INFO tells no databases still counts the keys of this one.
    let here = match conn.call(&[b"DBSIZE"])? {
        Frame::Int(n) => u64::try_from(n).unwrap_or(0),
        _ => return Err(format!("{place} answered DBSIZE with something else than a number")),
    };
    let keys = counted.max(here);
    if keys == 0 || yes {
        return Ok(());
    }
    Err(format!(
        "{place} holds {} keys: say --yes if it may be loaded with work and keys evenkeel-bench:* for a while (no other keys are \
         touched, and these are removed)",
        number(keys)
    ))
}

fn check_memory(conn: &mut Conn, place: &str, bytes: u64) -> Result<(), String> {
    let megabytes = |n: u64| number(n.div_ceil(1 << 20));
    let field = |conn: &mut Conn, name| {
        conn.info("memory", name).map(|text| text.and_then(|text| text.parse::<u64>().ok()))
    };
    let (used, limit) = (field(conn, "used_memory")?.unwrap_or(0), field(conn, "maxmemory")?.unwrap_or(0));
    if limit > 0 && used.saturating_add(bytes) > limit {
        return Err(format!(
            "{place} has too little memory: the stories need {} MB, maxmemory leaves {} MB: choose a smaller --keys",
            megabytes(bytes),
            megabytes(limit.saturating_sub(used))
        ));
    }
    let here = ["127.", "localhost", "[::1]", "/"].iter().any(|start| place.starts_with(start));
    let available = sys::memory_available();
    if here && bytes > available {
        return Err(format!(
            "this machine has too little memory: the stories need {} MB, {} MB are available: choose a smaller --keys",
            megabytes(bytes),
            megabytes(available)
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_others_in_an_answer_of_scan_are_left_alone() {
        let bulk = |text: &str| Frame::Bulk(text.as_bytes().to_vec());
        let keys = Frame::Array(vec![bulk("p:1"), bulk("user:1"), Frame::Int(3), bulk("p:2")]);
        let (cursor, own) = scanned(Frame::Array(vec![bulk("7"), keys]), b"p:").unwrap();
        assert_eq!((cursor, own), (b"7".to_vec(), vec![b"p:1".to_vec(), b"p:2".to_vec()]));
        for wrong in [Frame::Int(1), Frame::Array(vec![]), Frame::Array(vec![bulk("0"), bulk("x")])] {
            assert!(scanned(wrong, b"p:").is_err());
        }
    }
}
