//! Hit ratios: traces of real requests, replayed through a live server that holds a part of their keys.
//!
//! ```text
//! trace ─► for each request:  STRLEN key ── 0? ──► SET key value     values of one size; `maxmemory` so that 0.5, 2, 10 % fit
//!   └───► in the bench itself: exact LRU, and the optimum (Belady: whoever is needed last goes)
//! ```
//!
//! What a server holds at its limit depends on what else it keeps in memory, so the limit is found by measuring: a fill with as
//! many keys as are to fit, then more keys, and the limit moved until the number of keys held is right. What was held in the
//! replay itself is printed too. STRLEN counts as GET does, without sending the value. The requests go one after the other
//! over one connection: their order is what matters.
//!
//! A trace is a file of the directory: text with one number a line, or big-endian words of 4 or 8 bytes; `.gz` and `.xz` are
//! unpacked by the programs of these names.

use crate::client::Client;
use crate::report::{Section, Table, absent};
use crate::server::{Server, Target};
use crate::wire::{self, Value};
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;

pub struct Options {
    pub traces: PathBuf,
    /// Only traces whose names hold one of these.
    pub names: Vec<String>,
    /// Parts of the unique keys, in per mille.
    pub permille: Vec<u64>,
    /// Requests of a trace at most.
    pub requests: usize,
}

/// Traces with requests of different sizes are for other measurements.
const LEFT_OUT: &str = "adaptsize";

/// The requests of a trace, keys numbered from 0.
struct Trace {
    name: String,
    keys: Vec<u32>,
    unique: usize,
}

pub fn run(targets: &[Target], options: &Options) -> Result<Section, String> {
    let contestants = contestants(targets);
    let mut section = Section::new("Hit ratios");
    section.note(format!("Up to {} requests of each trace, values of one size", options.requests));
    let mut head = vec!["trace", "keys that fit", "optimum", "LRU"];
    head.extend(contestants.iter().map(|(name, ..)| name.as_str()));
    let mut table = Table::new(&head);
    let mut sums = vec![0.0; 2 + contestants.len()];
    let mut rows = 0.0;
    for path in traces(options)? {
        let trace = Trace::read(&path, options.requests)?;
        for permille in &options.permille {
            let capacity = (trace.unique * *permille as usize / 1000).max(1);
            let mut cells = vec![trace.name.clone(), capacity.to_string()];
            let share = |hits: usize| 100.0 * hits as f64 / trace.keys.len() as f64;
            let mut ratios = vec![share(optimum(&trace, capacity)), share(lru(&trace, capacity))];
            cells.extend(ratios.iter().map(|ratio| format!("{ratio:.1}")));
            for (name, target, policy) in &contestants {
                match replay(target, policy, &trace, capacity) {
                    Ok((hits, held)) => {
                        ratios.push(share(hits));
                        cells.push(format!("{:.1} ({held:.0})", share(hits)));
                    }
                    Err(error) => {
                        section.note(format!("{name}, {}, {capacity} keys: {error}", trace.name));
                        ratios.push(f64::NAN);
                        cells.push(absent());
                    }
                }
            }
            eprintln!("{}", cells.join("  "));
            sums.iter_mut().zip(&ratios).for_each(|(sum, ratio)| *sum += ratio);
            rows += 1.0;
            table.row(cells);
        }
    }
    let mut mean = vec!["mean".to_string(), String::new()];
    mean.extend(sums.iter().map(|sum| format!("{:.1}", sum / f64::max(rows, 1.0))));
    table.row(mean);
    section.table("Hits in percent of all requests (in brackets the keys held at the end)", table);
    Ok(section)
}

/// Servers and policies side by side.
fn contestants(targets: &[Target]) -> Vec<(String, Target, &'static str)> {
    let mut all = Vec::new();
    for target in targets {
        let policies: &[&str] =
            if target.label == "Evenkeel" { &["allkeys-lru"] } else { &["allkeys-lru", "allkeys-lfu"] };
        for policy in policies {
            all.push((format!("{} {}", target.label, &policy[8..]), target.clone(), *policy));
        }
    }
    all
}

/// The files of the directory, in the order of their names.
fn traces(options: &Options) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(&options.traces).map_err(|e| {
        format!(
            "{}: {e}; name a directory of traces by --traces or EVENKEEL_TRACES",
            options.traces.display()
        )
    })?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let wanted =
            options.names.is_empty() || options.names.iter().any(|part| name.contains(part.as_str()));
        name.contains(".trace") && !name.contains(LEFT_OUT) && wanted
    });
    paths.sort();
    Ok(paths)
}

impl Trace {
    fn read(path: &Path, requests: usize) -> Result<Trace, String> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let unpack = match path.extension().and_then(|extension| extension.to_str()) {
            Some("xz") => Some("xz"),
            Some("gz") => Some("gzip"),
            _ => None,
        };
        let bytes = match unpack {
            None => std::fs::read(path).map_err(|e| e.to_string()),
            Some(program) => Command::new(program)
                .arg("-dc")
                .arg(path)
                .output()
                .map(|output| output.stdout)
                .map_err(|e| format!("{program}: {e}")),
        };
        let bytes = bytes.map_err(|e| format!("{name}: {e}"))?;
        let numbers: Vec<u64> = if bytes.iter().take(4096).all(|byte| byte.is_ascii() && *byte != 0) {
            String::from_utf8_lossy(&bytes).lines().filter_map(|line| line.trim().parse().ok()).collect()
        } else {
            // Words whose upper half is always zero are of 8 bytes.
            let wide =
                bytes.len().is_multiple_of(8) && bytes.chunks(8).take(1000).all(|word| word[..3] == [0; 3]);
            bytes.chunks_exact(if wide { 8 } else { 4 }).map(number).collect()
        };
        let mut known = HashMap::new();
        let keys: Vec<u32> = numbers
            .into_iter()
            .take(requests)
            .map(|n| {
                let next = known.len() as u32;
                *known.entry(n).or_insert(next)
            })
            .collect();
        let name = name.split('.').next().unwrap_or_default().to_string();
        Ok(Trace { name, unique: known.len(), keys })
    }
}

fn number(word: &[u8]) -> u64 {
    word.iter().fold(0, |n, byte| n << 8 | u64::from(*byte))
}

/// Hits of exact LRU.
fn lru(trace: &Trace, capacity: usize) -> usize {
    let mut last = vec![None; trace.unique];
    let (mut order, mut hits) = (BTreeSet::new(), 0);
    for (now, key) in trace.keys.iter().enumerate() {
        if let Some(before) = last[*key as usize].replace(now) {
            order.remove(&(before, *key));
            hits += 1;
        }
        order.insert((now, *key));
        if order.len() > capacity
            && let Some((_, oldest)) = order.pop_first()
        {
            last[oldest as usize] = None;
        }
    }
    hits
}

/// Hits of whoever knows the future, and must keep what was just asked for or give it away at once.
fn optimum(trace: &Trace, capacity: usize) -> usize {
    let mut next = vec![usize::MAX; trace.keys.len()];
    let mut seen = vec![usize::MAX; trace.unique];
    for (now, key) in trace.keys.iter().enumerate().rev() {
        next[now] = std::mem::replace(&mut seen[*key as usize], now);
    }
    let mut needed = vec![None; trace.unique];
    let (mut order, mut hits) = (BTreeSet::new(), 0);
    for (now, key) in trace.keys.iter().enumerate() {
        if let Some(when) = needed[*key as usize].replace(next[now]) {
            order.remove(&(when, *key));
            hits += 1;
        }
        order.insert((next[now], *key));
        if order.len() > capacity
            && let Some((_, last)) = order.pop_last()
        {
            needed[last as usize] = None;
        }
    }
    hits
}

/// A server with a limit, and the value all keys get.
struct Cache {
    client: Client,
    value: Vec<u8>,
    buffer: Vec<u8>,
    limit: u64,
}

impl Cache {
    fn set(&mut self, key: &str) -> Result<(), String> {
        self.buffer.clear();
        wire::command(&mut self.buffer, &[b"SET", key.as_bytes(), &self.value]);
        self.client.send(&self.buffer).map(|_| ()).map_err(|e| e.to_string())
    }

    fn has(&mut self, key: &str) -> Result<bool, String> {
        self.buffer.clear();
        wire::command(&mut self.buffer, &[b"STRLEN", key.as_bytes()]);
        match self.client.send(&self.buffer).map_err(|e| e.to_string())? {
            Value::Int(n) => Ok(n > 0),
            other => Err(format!("STRLEN answered {other:?}")),
        }
    }

    fn words(&mut self, line: &str) -> Result<Value, String> {
        self.client.words(line).map_err(|e| format!("{line}: {e}"))
    }

    fn used(&mut self) -> Result<u64, String> {
        let text = self.words("INFO memory")?.text();
        let line = text.lines().find_map(|line| line.strip_prefix("used_memory:"));
        line.and_then(|n| n.trim().parse().ok()).ok_or("INFO shows no used_memory".to_string())
    }

    fn limit(&mut self, bytes: u64) -> Result<(), String> {
        self.limit = bytes;
        self.words(&format!("CONFIG SET maxmemory {bytes}")).map(|_| ())
    }

    fn held(&mut self) -> Result<u64, String> {
        self.client.size().map_err(|e| e.to_string())
    }

    /// Finds the limit at which so many keys are held.
    fn calibrate(&mut self, capacity: usize) -> Result<(), String> {
        (0..capacity).try_for_each(|i| self.set(&format!("fill:{i}")))?;
        let full = self.used()?;
        self.limit(full)?;
        let mut more = 0;
        for _ in 0..6 {
            let (mut sum, rounds) = (0, 8);
            for _ in 0..rounds {
                for _ in 0..capacity.div_ceil(4).max(16) {
                    more += 1;
                    self.set(&format!("more:{more}"))?;
                }
                sum += self.held()?;
            }
            let off = capacity as f64 - sum as f64 / f64::from(rounds);
            if off.abs() < 0.01 * capacity as f64 + 0.3 {
                break;
            }
            let moved = self.limit as f64 + off * (self.value.len() as f64 + 64.0);
            self.limit(moved.max(1.0) as u64)?;
        }
        Ok(())
    }
}

/// Hits of a server, and the keys it held at the end.
fn replay(target: &Target, policy: &str, trace: &Trace, capacity: usize) -> Result<(usize, f64), String> {
    let server = Server::start(target)?;
    // Large enough that what else is in memory weighs little.
    let size = ((64 << 20) / capacity).clamp(2 << 10, 256 << 10);
    let client = server.client().map_err(|e| e.to_string())?;
    let mut cache = Cache { client, value: vec![b'v'; size], buffer: Vec::new(), limit: 0 };
    cache.words(&format!("CONFIG SET maxmemory-policy {policy}"))?;
    cache.calibrate(capacity)?;
    // The replay begins with an empty cache: keys that nobody asks for again would stand in its way.
    cache.words("FLUSHALL")?;
    let (mut hits, mut held, mut looks) = (0, 0, 0);
    for (i, key) in trace.keys.iter().enumerate() {
        let key = format!("k:{key}");
        if cache.has(&key)? {
            hits += 1;
        } else {
            cache.set(&key)?;
        }
        if i >= trace.keys.len() / 2 && i.is_multiple_of((trace.keys.len() / 64).max(1)) {
            held += cache.held()?;
            looks += 1;
        }
    }
    Ok((hits, held as f64 / f64::from(looks.max(1))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(keys: &[u32]) -> Trace {
        let unique = keys.iter().max().map_or(0, |key| *key as usize + 1);
        Trace { name: String::new(), keys: keys.to_vec(), unique }
    }

    #[test]
    fn hits_of_lru_and_of_the_optimum_are_those_counted_by_hand() {
        // Three keys in a circle, room for two: LRU has none; the optimum keeps two of them and lets the third pass.
        let circle = trace(&[0, 1, 2, 0, 1, 2, 0, 1, 2]);
        assert_eq!((lru(&circle, 2), optimum(&circle, 2)), (0, 4));
        assert_eq!((lru(&circle, 3), optimum(&circle, 3)), (6, 6));
        let local = trace(&[0, 0, 1, 1, 0, 2, 2, 2]);
        assert_eq!((lru(&local, 1), optimum(&local, 1)), (4, 4));
    }
}
