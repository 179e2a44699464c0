//! How many keys of each type have which size, by powers of two: INFO keysizes.

use keyspace::{Keyspace, View};
use std::fmt::Write as _;
use value::ValueRef;

/// The types that are counted, in the order of their lines.
const TYPES: [&str; 5] = ["strings_sizes", "lists_items", "sets_items", "zsets_items", "hashes_items"];
/// Keys that one view holds.
const BATCH: usize = 64;

/// The count of sizes from 2^n on, below 2^(n+1), for each n.
type Sizes = [u64; 64];

/// Name and text of each line: a database and a type that has keys. Bytes of strings, elements of the
/// others. Empty strings, streams and bitmaps are left out. Under writes the counts show no one moment.
/// O(keys); not for a loop.
pub fn lines(keyspace: &Keyspace, now_ms: u64) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for db in 0..keyspace.databases() {
        for (name, sizes) in TYPES.iter().zip(counted(keyspace, db, now_ms)) {
            let text = text(&sizes);
            if !text.is_empty() {
                all.push((format!("db{db}_distrib_{name}"), text));
            }
        }
    }
    all
}

fn counted(keyspace: &Keyspace, db: usize, now_ms: u64) -> [Sizes; TYPES.len()] {
    let mut counts = [[0; 64]; TYPES.len()];
    let mut cursor = 0;
    loop {
        let mut keys: Vec<Box<[u8]>> = Vec::new();
        cursor = keyspace.scan(db, cursor, BATCH, now_ms, &mut |key, _| keys.push(key.into()));
        for key in keys {
            // At time 0 nothing has expired, so looking changes nothing.
            let view = View::locked_one(keyspace, &key, db, 0);
            if let Some((at, size)) = view.value(&key).and_then(size).filter(|(_, size)| *size > 0) {
                counts[at][size.ilog2() as usize] += 1;
            }
            view.finish();
        }
        if cursor == 0 {
            return counts;
        }
    }
}

/// The place of a value's type in [`TYPES`], and its size. O(1)
fn size(value: ValueRef<'_>) -> Option<(usize, u64)> {
    Some(match value {
        ValueRef::Str(text) => (0, text.len() as u64),
        ValueRef::List(list) => (1, list.len() as u64),
        ValueRef::Set(set) => (2, set.len() as u64),
        ValueRef::ZSet(zset) => (3, zset.len() as u64),
        ValueRef::Hash(hash) => (4, hash.len() as u64),
        ValueRef::Stream(_) | ValueRef::Roaring(_) | ValueRef::Roaring64(_) => return None,
    })
}

/// `1=5,2=3,1K=1`
fn text(sizes: &Sizes) -> String {
    let mut text = String::new();
    for (n, count) in sizes.iter().enumerate().filter(|(_, count)| **count > 0) {
        let unit = ["", "K", "M", "G", "T", "P", "E"][n / 10];
        let comma = if text.is_empty() { "" } else { "," };
        let _ = write!(text, "{comma}{}{unit}={count}", 1 << (n % 10));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_counted_by_powers_of_two() {
        let keyspace = Keyspace::new(4);
        let put = |db, key: &str, bytes: usize| {
            let mut view = View::locked_one(&keyspace, key.as_bytes(), db, 1);
            view.put_string(key.as_bytes(), &vec![b'x'; bytes], None);
            view.finish();
        };
        for (at, bytes) in [0, 1, 2, 3, 4, 7, 1023, 1024, 3_000_000].into_iter().enumerate() {
            put(0, &format!("k{at}"), bytes);
        }
        put(3, "k", 1);
        let mut view = View::locked_one(&keyspace, b"s", 0, 1);
        (0..5).for_each(|n| _ = view.set_or_new(b"s").unwrap().insert(n.to_string().as_bytes()));
        view.finish();
        let lines = lines(&keyspace, 1);
        let lines: Vec<(&str, &str)> = lines.iter().map(|(name, text)| (&name[..], &text[..])).collect();
        assert_eq!(
            lines,
            [
                ("db0_distrib_strings_sizes", "1=1,2=2,4=2,512=1,1K=1,2M=1"),
                ("db0_distrib_sets_items", "4=1"),
                ("db3_distrib_strings_sizes", "1=1"),
            ]
        );
    }
}
