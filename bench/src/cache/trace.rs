//! A trace of requests, and its hits without a server: exact LRU, and the optimum.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::process::Command;

/// The requests of a trace, keys numbered from 0.
pub struct Trace {
    pub name: String,
    pub keys: Vec<u32>,
    /// Number of different keys.
    pub unique: usize,
}

impl Trace {
    /// Reads the first requests of a file: text with one number per line, or big-endian words of 4 or 8
    /// bytes. `.gz` and `.xz` files are unpacked by the programs of these names.
    pub fn read(path: &Path, requests: usize) -> Result<Trace, String> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let bytes = unpacked(path).map_err(|e| format!("{name}: {e}"))?;
        let mut known = HashMap::new();
        let keys: Vec<u32> = numbers(&bytes)
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

fn unpacked(path: &Path) -> Result<Vec<u8>, String> {
    let program = match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("gz") => "gzip",
        _ => return std::fs::read(path).map_err(|e| e.to_string()),
    };
    let output = Command::new(program).arg("-dc").arg(path).output();
    output.map(|output| output.stdout).map_err(|e| format!("{program}: {e}"))
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    if bytes.iter().take(4096).all(|byte| byte.is_ascii() && *byte != 0) {
        return String::from_utf8_lossy(bytes).lines().filter_map(|line| line.trim().parse().ok()).collect();
    }
    // Words whose upper part is always zero have 8 bytes.
    let wide = bytes.len().is_multiple_of(8) && bytes.chunks(8).take(1000).all(|word| word[..3] == [0; 3]);
    let number = |word: &[u8]| word.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
    bytes.chunks_exact(if wide { 8 } else { 4 }).map(number).collect()
}

/// Hits of exact LRU.
pub fn lru(trace: &Trace, capacity: usize) -> usize {
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

/// Hits of a cache that knows the future. It may drop a requested item at once.
pub fn optimum(trace: &Trace, capacity: usize) -> usize {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(keys: &[u32]) -> Trace {
        let unique = keys.iter().max().map_or(0, |key| *key as usize + 1);
        Trace { name: String::new(), keys: keys.to_vec(), unique }
    }

    #[test]
    fn hits_of_lru_and_of_the_optimum_are_those_counted_by_hand() {
        // Three keys in a circle, room for two: LRU has no hit; the optimum keeps two of them and lets the
        // third pass.
        let circle = trace(&[0, 1, 2, 0, 1, 2, 0, 1, 2]);
        assert_eq!((lru(&circle, 2), optimum(&circle, 2)), (0, 4));
        assert_eq!((lru(&circle, 3), optimum(&circle, 3)), (6, 6));
        let local = trace(&[0, 0, 1, 1, 0, 2, 2, 2]);
        assert_eq!((lru(&local, 1), optimum(&local, 1)), (4, 4));
    }

    #[test]
    fn words_and_lines_are_told_apart() {
        assert_eq!(numbers(b"7\n*\n\n8\n"), [7, 8]);
        assert_eq!(numbers(&[1, 0, 0, 7, 0, 0, 0, 8]), [1 << 24 | 7, 8]);
        assert_eq!(numbers(&[0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 1, 0, 0, 8]), [7, 1 << 24 | 8]);
    }
}
