//! All that a server holds, and where two differ.

use super::bank::pipeline;
use super::load::words;
use super::node::Node;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use support::wire::{Conn, Frame};

/// Databases that are walked.
const DBS: usize = 16;
/// Requests in one go.
const BATCH: usize = 200;
/// Fields of a stream's description that another server may count otherwise, or that no stream carries.
const UNTOLD: [&[u8]; 8] = [
    b"seen-time",
    b"active-time",
    b"radix-tree-keys",
    b"radix-tree-nodes",
    b"idmp-duration",
    b"idmp-maxsize",
    b"pids-tracked",
    b"iids-tracked",
];
/// Redis counts these otherwise where it cannot know them.
const VAGUE: [&[u8]; 4] = [b"entries-read", b"lag", b"iids-added", b"iids-duplicates"];

/// The words about a key.
#[derive(PartialEq, Eq, Clone)]
struct Held {
    kind: String,
    hash: u64,
    /// The value's beginning, in words.
    begins: String,
    expires_ms: i64,
}

impl Held {
    /// Some words, from shortly before a place on.
    fn shown(&self, from: usize) -> String {
        let Held { kind, hash, begins, expires_ms } = self;
        let some: String = begins.chars().skip(from.saturating_sub(60)).take(300).collect();
        format!("{kind} .. {some} (hash {hash:x}, expires {expires_ms})")
    }
}

/// Where two values part.
fn parting(pair: &[Option<Held>; 2]) -> usize {
    let [Some(a), Some(b)] = pair else { return 0 };
    a.begins.chars().zip(b.begins.chars()).take_while(|(a, b)| a == b).count()
}

type Contents = BTreeMap<(usize, Vec<u8>), Held>;

pub fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

/// Where some servers differ from the first, a few places; and how many keys were compared. Differences of
/// one moment are looked at again: a key may expire between two looks.
pub fn differences(nodes: &[&Node]) -> Result<(usize, Vec<String>), String> {
    // Fields of hashes have times in newer makes, and are compared without them where older ones take part.
    let is_mixed = nodes.iter().any(|node| !node.is_ours);
    let first = contents(nodes[0], is_mixed)?;
    let mut found = Vec::new();
    for node in &nodes[1..] {
        let other = contents(node, is_mixed)?;
        let differs = |key: &&(usize, Vec<u8>)| first.get(*key) != other.get(*key);
        let keys: std::collections::BTreeSet<_> = first.keys().chain(other.keys()).filter(differs).collect();
        let mut differing = 0;
        for (db, key) in keys {
            let pair = [one(nodes[0], *db, key, is_mixed)?, one(node, *db, key, is_mixed)?];
            if agree(&pair) {
                continue;
            }
            differing += 1;
            if differing <= 8 {
                let from = parting(&pair);
                let shown =
                    |held: &Option<Held>| held.as_ref().map_or("nothing".into(), |held| held.shown(from));
                found.push(format!(
                    "db {db} key {}: node {} has {}, node {} has {}",
                    support::wire::quote(key),
                    nodes[0].nr,
                    shown(&pair[0]),
                    node.nr,
                    shown(&pair[1])
                ));
            }
        }
        if differing > 8 {
            found.push(format!("and {} more keys of node {}", differing - 8, node.nr));
        }
        let libraries = [functions(nodes[0])?, functions(node)?];
        if libraries[0] != libraries[1] {
            found.push(format!("functions: {:?} and {:?} (node {})", libraries[0], libraries[1], node.nr));
        }
    }
    Ok((first.len(), found))
}

/// Equal, or one is about to expire, or has done so just now.
fn agree(pair: &[Option<Held>; 2]) -> bool {
    let goes = |held: &Held| held.expires_ms > 0 && held.expires_ms <= now_ms() + 50;
    match pair {
        [Some(a), Some(b)] => a == b || (goes(a) && goes(b)),
        [Some(a), None] | [None, Some(a)] => goes(a),
        [None, None] => true,
    }
}

/// The keys of each database by their count, with those that have expired and are still there.
pub fn sizes(node: &Node) -> Result<Vec<i64>, String> {
    let mut conn = node.conn()?;
    let mut sizes = Vec::new();
    for db in 0..DBS {
        let replies = pipeline(&mut conn, &[words(&format!("SELECT {db}")), words("DBSIZE")])?;
        match &replies[1] {
            Frame::Int(n) => sizes.push(*n),
            other => return Err(format!("node {}: DBSIZE was answered {other}", node.nr)),
        }
    }
    Ok(sizes)
}

fn functions(node: &Node) -> Result<Vec<String>, String> {
    let reply = node.conn()?.call(&["FUNCTION", "LIST", "WITHCODE"]);
    let mut all: Vec<String> = reply.items().unwrap_or_default().iter().map(flat).collect();
    all.sort();
    Ok(all)
}

fn flat(frame: &Frame) -> String {
    let mut leaves = Vec::new();
    frame.leaves(&mut leaves);
    let mut all: Vec<String> = leaves.iter().map(|leaf| leaf.to_string()).collect();
    all.sort();
    all.join(" ")
}

fn contents(node: &Node, is_mixed: bool) -> Result<Contents, String> {
    let mut conn = node.conn()?;
    let mut all = BTreeMap::new();
    for db in 0..DBS {
        pipeline(&mut conn, &[words(&format!("SELECT {db}"))])?;
        let keys = walk(&mut conn).map_err(|why| format!("node {}: {why}", node.nr))?;
        for some in keys.chunks(BATCH) {
            let held = look(&mut conn, some, is_mixed)?;
            all.extend(some.iter().zip(held).filter_map(|(key, held)| Some(((db, key.clone()), held?))));
        }
    }
    Ok(all)
}

fn one(node: &Node, db: usize, key: &[u8], is_mixed: bool) -> Result<Option<Held>, String> {
    let mut conn = node.conn()?;
    pipeline(&mut conn, &[words(&format!("SELECT {db}"))])?;
    Ok(look(&mut conn, &[key.to_vec()], is_mixed)?.pop().flatten())
}

fn walk(conn: &mut Conn) -> Result<Vec<Vec<u8>>, String> {
    let mut keys = std::collections::BTreeSet::new();
    let mut cursor = "0".to_owned();
    loop {
        let reply = conn.call(&["SCAN", &cursor, "COUNT", "1000"]);
        let Some([next, Frame::Array(some)]) = reply.items() else {
            return Err(format!("SCAN was answered {reply}"));
        };
        keys.extend(some.iter().filter_map(Frame::text).map(<[u8]>::to_vec));
        cursor = String::from_utf8_lossy(next.text().unwrap_or(b"0")).into_owned();
        if cursor == "0" {
            return Ok(keys.into_iter().collect());
        }
    }
}

/// Looks at some keys of the selected database. Those that are not there are `None`.
fn look(conn: &mut Conn, keys: &[Vec<u8>], is_mixed: bool) -> Result<Vec<Option<Held>>, String> {
    let with = |head: &str, key: &Vec<u8>, tail: &str| {
        let mut request = words(head);
        request.push(key.clone());
        request.extend(words(tail));
        request
    };
    let kinds: Vec<_> = keys.iter().map(|key| with("TYPE", key, "")).collect();
    let kinds = pipeline(conn, &kinds)?;
    let mut requests = Vec::new();
    for (key, kind) in keys.iter().zip(&kinds) {
        let value = match kind.text().unwrap_or_default() {
            b"string" => with("GET", key, ""),
            b"list" => with("LRANGE", key, "0 -1"),
            b"hash" => with("HGETALL", key, ""),
            b"set" => with("SMEMBERS", key, ""),
            b"zset" => with("ZRANGE", key, "0 -1 WITHSCORES"),
            b"stream" => with("XINFO STREAM", key, "FULL COUNT 0"),
            _ => with("DUMP", key, ""),
        };
        requests.extend([value, with("PEXPIRETIME", key, "")]);
    }
    let replies = pipeline(conn, &requests)?;
    let mut held = Vec::new();
    for ((key, kind), pair) in keys.iter().zip(&kinds).zip(replies.chunks_exact(2)) {
        let kind = String::from_utf8_lossy(kind.text().unwrap_or_default()).into_owned();
        let Frame::Int(expires_ms) = pair[1] else {
            return Err(format!("PEXPIRETIME was answered {}", pair[1]));
        };
        if kind == "none" || pair[0].is_null() || expires_ms == -2 {
            held.push(None);
            continue;
        }
        let mut text = told(&kind, &pair[0], is_mixed);
        if kind == "hash" && !is_mixed {
            text = fields(conn, key, &pair[0])?;
            if text.is_empty() {
                held.push(None);
                continue;
            }
        }
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let begins = String::from_utf8_lossy(&text[..text.len().min(20_000)]).into_owned();
        held.push(Some(Held { kind, hash: hasher.finish(), begins, expires_ms }));
    }
    Ok(held)
}

/// A hash with the times of its fields, without those that have passed or are about to.
fn fields(conn: &mut Conn, key: &[u8], all: &Frame) -> Result<Vec<u8>, String> {
    let mut pairs: Vec<(Vec<u8>, Vec<u8>)> = match all {
        Frame::Array(items) => items
            .chunks_exact(2)
            .map(|pair| {
                (pair[0].text().unwrap_or_default().to_vec(), pair[1].text().unwrap_or_default().to_vec())
            })
            .collect(),
        _ => Vec::new(),
    };
    pairs.sort();
    let mut request = words("HPEXPIRETIME");
    request.push(key.to_vec());
    request.extend(words(&format!("FIELDS {}", pairs.len())));
    request.extend(pairs.iter().map(|(field, _)| field.clone()));
    let times = pipeline(conn, &[request])?;
    let times = times[0].items().map(<[Frame]>::to_vec).unwrap_or_default();
    let soon = now_ms() + 50;
    let mut text = Vec::new();
    for (nr, (field, value)) in pairs.iter().enumerate() {
        let expires = match times.get(nr) {
            Some(Frame::Int(ms)) => *ms,
            _ => -1,
        };
        if expires > 0 && expires <= soon || expires == -2 {
            continue;
        }
        text.extend_from_slice(
            format!("{}={}", support::wire::quote_all(field), support::wire::quote_all(value)).as_bytes(),
        );
        text.extend_from_slice(format!("@{expires} ").as_bytes());
    }
    Ok(text)
}

/// A value in words that do not depend on how it is held.
fn told(kind: &str, value: &Frame, is_mixed: bool) -> Vec<u8> {
    let mut leaves = Vec::new();
    match kind {
        "stream" => described(value, is_mixed, &mut leaves),
        _ => value.leaves(&mut leaves),
    }
    let mut parts: Vec<Vec<u8>> = leaves
        .iter()
        .map(|leaf| leaf.text().map_or_else(|| leaf.to_string().into_bytes(), <[u8]>::to_vec))
        .collect();
    match kind {
        "set" => parts.sort(),
        "hash" => {
            let mut pairs: Vec<_> = parts.chunks_exact(2).map(|pair| pair.join(&b'=')).collect();
            pairs.sort();
            parts = pairs;
        }
        // Makes write the same number with other digits.
        "zset" if is_mixed => {
            for score in parts.iter_mut().skip(1).step_by(2) {
                if let Some(number) =
                    std::str::from_utf8(score).ok().and_then(|text| text.parse::<f64>().ok())
                {
                    *score = number.to_string().into_bytes();
                }
            }
        }
        _ => {}
    }
    parts.join(&b' ')
}

/// A consumer to which nothing was given. Redis 7.0 tells its replicas of none whose first XREADGROUP reads its own
/// history.
fn is_idle_consumer(frame: &Frame) -> bool {
    let items = frame.items().unwrap_or_default();
    let value = |name: &[u8]| {
        let at = items.iter().step_by(2).position(|item| item.text() == Some(name))?;
        items.get(2 * at + 1)
    };
    value(b"name").is_some()
        && value(b"seen-time").is_some()
        && matches!(value(b"pel-count"), Some(Frame::Int(0)))
}

/// The leaves of a stream's description, without what no stream carries.
fn described<'f>(frame: &'f Frame, is_mixed: bool, out: &mut Vec<&'f Frame>) {
    let Some(items) = frame.items() else {
        out.push(frame);
        return;
    };
    let mut at = 0;
    while at < items.len() {
        let name = items[at].text().unwrap_or_default();
        if UNTOLD.contains(&name) || (is_mixed && VAGUE.contains(&name)) {
            at += 2;
            continue;
        }
        if !(is_mixed && is_idle_consumer(&items[at])) {
            described(&items[at], is_mixed, out);
        }
        at += 1;
    }
}

/// Asks until something is so, or time is over.
pub fn within(patience: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let began = std::time::Instant::now();
    while !is_so() {
        if began.elapsed() > patience {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}
