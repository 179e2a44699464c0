//! Keys and memory by the beginnings of names: EVENKEEL PREFIXES.
//!
//! ```text
//! app:user:17:cart    app:  app:user:        a part that looks like an id ends it, and so do three parts
//! 17:cart  plain      (none)
//! ```
//!
//! - EP1: memory is bounded. [`PREFIXES_MAX`] prefixes of at most [`NAME_MAX`] bytes have a sum. When there are
//!   more, those with the fewest bytes go, and a prefix that is new afterwards may lack as many bytes as the
//!   largest of those that went ([`Prefix::missing_bytes`]). So a prefix with more than that is never missed.
//! - EP2: time is bounded ([`TIME_MAX`]), and the thread rests as long as it works. Then it says how many keys
//!   it has seen.
//! - EP3: nobody is held up: one shard is locked, for some keys to be listed, or for one key.
//!
//! Cost: some 2 us a key, half of them asleep.

use crate::generic::object::usage_bytes;
use keyspace::{Keyspace, View};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::{Duration, Instant};
use value::ValueRef;

pub use value::Kind;

/// Prefixes that have a sum, and how many of them are given.
const PREFIXES_MAX: usize = 10_000;
/// Longest prefix, in bytes.
const NAME_MAX: usize = 128;
/// Parts of a name that make prefixes.
const PARTS: usize = 3;
/// Longer parts look like ids, in bytes.
const PART_MAX: usize = 32;
/// The largest keys that are listed of each type, and the longest name of one, in bytes.
const LARGEST: usize = 100;
const KEY_MAX: usize = 1024;
/// Keys that are listed under one lock, and those after which the thread rests.
const BATCH: usize = 64;
const WORK: usize = 1024;
/// Most time of a count.
const TIME_MAX: Duration = Duration::from_secs(600);
/// Seconds since the last use of a key that was used lately.
const LATELY_S: u64 = 64;
const KINDS: [Kind; 8] =
    [Kind::Str, Kind::List, Kind::Hash, Kind::Set, Kind::ZSet, Kind::Stream, Kind::Roaring, Kind::Roaring64];

/// Sums of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    pub keys: u64,
    /// As MEMORY USAGE counts them.
    pub bytes: u64,
    /// Keys that expire, and the time left of all of them.
    pub expiring: u64,
    pub left_ms: u64,
    /// Keys that were used in the last minute.
    pub used: u64,
}

impl Sum {
    fn add(&mut self, other: Sum) {
        self.keys += other.keys;
        self.bytes += other.bytes;
        self.expiring += other.expiring;
        self.left_ms = self.left_ms.saturating_add(other.left_ms);
        self.used += other.used;
    }
}

/// The keys whose names begin so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix {
    pub db: usize,
    /// Empty: the keys that have no prefix.
    pub name: Box<[u8]>,
    pub sum: Sum,
    /// At most as many bytes more belong to it (EP1).
    pub missing_bytes: u64,
}

/// A large key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Large {
    pub bytes: u64,
    /// Elements; bytes of a string.
    pub items: u64,
    pub db: usize,
    pub key: Box<[u8]>,
}

/// A count.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    pub unix_ms: u64,
    pub took_ms: u64,
    pub all: Sum,
    /// False: the time was over before all keys were seen.
    pub is_whole: bool,
    /// The one with the most bytes first.
    pub prefixes: Vec<Prefix>,
    /// The largest keys of each type, the largest first.
    pub largest: Vec<(Kind, Vec<Large>)>,
}

/// Counts all keys. Under writes it shows no one moment. `seen` is told how many keys were seen, now and then.
/// O(keys); not for a loop.
pub fn count(keyspace: &Keyspace, now_ms: impl Fn() -> u64, seen: impl Fn(u64)) -> Counted {
    let (began, unix_ms) = (Instant::now(), now_ms());
    let mut count = Count::new(PREFIXES_MAX);
    let mut is_whole = true;
    for db in 0..keyspace.databases() {
        let mut cursor = 0;
        while is_whole {
            let mut keys: Vec<Box<[u8]>> = Vec::with_capacity(BATCH);
            let now_ms = now_ms();
            cursor = keyspace.scan(db, cursor, BATCH, now_ms, &mut |key, _| keys.push(key.into()));
            keys.iter().for_each(|key| count.look_at(keyspace, db, key, now_ms));
            seen(count.all.keys);
            if cursor == 0 {
                break;
            }
            if count.rests_after(keys.len()) {
                std::thread::sleep(count.worked.elapsed().min(Duration::from_millis(20)));
                count.worked = Instant::now();
                is_whole = began.elapsed() < TIME_MAX;
            }
        }
    }
    let took_ms = began.elapsed().as_millis() as u64;
    Counted { unix_ms, took_ms, is_whole, ..count.ended() }
}

/// The prefixes of a name, the shortest first.
fn prefixes(key: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ends = key.iter().enumerate().filter(|(_, byte)| matches!(byte, b':' | b'/')).map(|(at, _)| at);
    let mut from = 0;
    ends.take(PARTS).map_while(move |at| {
        let part = &key[std::mem::replace(&mut from, at + 1)..at];
        (at < NAME_MAX && !is_id(part)).then_some(&key[..=at])
    })
}

/// Whether a part of a name looks like one of very many: a number, hexadecimal digits, a date, or long.
fn is_id(part: &[u8]) -> bool {
    let part = part.strip_prefix(b"{").and_then(|part| part.strip_suffix(b"}")).unwrap_or(part);
    let of_ids = |byte: &u8| byte.is_ascii_hexdigit() || matches!(byte, b'-' | b'.' | b'_');
    part.len() > PART_MAX || part.iter().all(of_ids) && part.iter().any(u8::is_ascii_digit)
}

/// Sums by name, and what each may lack (EP1).
type Sums = HashMap<Box<[u8]>, (Sum, u64)>;

/// A count under way.
struct Count {
    max: usize,
    /// By database.
    sums: HashMap<usize, Sums>,
    held: usize,
    /// The largest that was dropped, in bytes (EP1).
    dropped_bytes: u64,
    all: Sum,
    largest: [BinaryHeap<Reverse<Large>>; KINDS.len()],
    since_rest: usize,
    worked: Instant,
}

impl Count {
    fn new(max: usize) -> Count {
        Count {
            max,
            sums: HashMap::new(),
            held: 0,
            dropped_bytes: 0,
            all: Sum::default(),
            largest: Default::default(),
            since_rest: 0,
            worked: Instant::now(),
        }
    }

    /// Whether it is time to rest, after so many more keys.
    fn rests_after(&mut self, keys: usize) -> bool {
        self.since_rest += keys;
        let is_time = self.since_rest >= WORK;
        if is_time {
            self.since_rest = 0;
        }
        is_time
    }

    /// Adds a key, if it is still there. One lock, O(1).
    fn look_at(&mut self, keyspace: &Keyspace, db: usize, key: &[u8], now_ms: u64) {
        let mut view = View::locked_one(keyspace, key, db, now_ms);
        // Nothing expires while it is looked at, and no look counts as a use.
        view.set_expired_live();
        view.set_quiet(true);
        let found = view.value(key).map(|value| (value.kind(), items(value)));
        let bytes = usage_bytes(&view, key).unwrap_or(0);
        let (expire_ms, idle_s) = (view.expire_ms(key).flatten(), view.idle_s(key));
        view.finish();
        let Some((kind, items)) = found else { return };
        let sum = Sum {
            keys: 1,
            bytes,
            expiring: expire_ms.is_some().into(),
            left_ms: expire_ms.map_or(0, |at| at.saturating_sub(now_ms)),
            used: idle_s.is_some_and(|idle_s| idle_s < LATELY_S).into(),
        };
        self.add(db, key, sum);
        self.note_size(kind, Large { bytes, items, db, key: key.into() });
    }

    fn add(&mut self, db: usize, key: &[u8], sum: Sum) {
        self.all.add(sum);
        let mut has_none = true;
        for name in prefixes(key) {
            has_none = false;
            self.add_to(db, name, sum);
        }
        if has_none {
            self.add_to(db, b"", sum);
        }
    }

    fn add_to(&mut self, db: usize, name: &[u8], sum: Sum) {
        let sums = self.sums.entry(db).or_default();
        if let Some((known, _)) = sums.get_mut(name) {
            return known.add(sum);
        }
        sums.insert(name.into(), (sum, self.dropped_bytes));
        self.held += 1;
        if self.held > self.max {
            self.drop_half();
        }
    }

    /// Drops the half with the fewest bytes (EP1).
    fn drop_half(&mut self) {
        let of = |(sum, missing): &(Sum, u64)| sum.bytes + missing;
        let mut sizes: Vec<u64> = self.sums.values().flat_map(|sums| sums.values().map(of)).collect();
        let middle = sizes.len() / 2;
        let (_, median, _) = sizes.select_nth_unstable(middle);
        self.dropped_bytes = self.dropped_bytes.max(*median);
        let least = *median;
        self.sums.values_mut().for_each(|sums| sums.retain(|_, one| of(one) > least));
        self.held = self.sums.values().map(HashMap::len).sum();
    }

    fn note_size(&mut self, kind: Kind, large: Large) {
        let Some(heap) = KINDS.iter().position(|known| *known == kind).map(|at| &mut self.largest[at]) else {
            return;
        };
        let is_larger = heap.len() < LARGEST || heap.peek().is_some_and(|least| large > least.0);
        if is_larger && large.key.len() <= KEY_MAX {
            heap.push(Reverse(large));
            if heap.len() > LARGEST {
                heap.pop();
            }
        }
    }

    fn ended(self) -> Counted {
        let all = self.sums.into_iter().flat_map(|(db, sums)| sums.into_iter().map(move |one| (db, one)));
        let mut prefixes: Vec<Prefix> =
            all.map(|(db, (name, (sum, missing_bytes)))| Prefix { db, name, sum, missing_bytes }).collect();
        prefixes.sort_by(|a, b| (b.sum.bytes, a.db, &a.name).cmp(&(a.sum.bytes, b.db, &b.name)));
        let largest = KINDS.into_iter().zip(self.largest).filter(|(_, heap)| !heap.is_empty());
        let sorted = |heap: BinaryHeap<Reverse<Large>>| heap.into_sorted_vec().into_iter().map(|one| one.0);
        Counted {
            all: self.all,
            prefixes,
            largest: largest.map(|(kind, heap)| (kind, sorted(heap).collect())).collect(),
            ..Counted::default()
        }
    }
}

/// Elements of a value; bytes of a string. O(1)
fn items(value: ValueRef<'_>) -> u64 {
    match value {
        ValueRef::Str(text) => text.len() as u64,
        ValueRef::List(list) => list.len() as u64,
        ValueRef::Set(set) => set.len() as u64,
        ValueRef::ZSet(zset) => zset.len() as u64,
        ValueRef::Hash(hash) => hash.len() as u64,
        ValueRef::Stream(stream) => stream.len() as u64,
        ValueRef::Roaring(ints) | ValueRef::Roaring64(ints) => u64::try_from(ints.len()).unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(key: &str) -> Vec<&str> {
        prefixes(key.as_bytes()).map(|prefix| std::str::from_utf8(prefix).unwrap()).collect()
    }

    #[test]
    fn prefixes_end_before_ids() {
        assert_eq!(of("app:user:17:cart"), ["app:", "app:user:"]);
        assert_eq!(of("a:bx:cx:dx:e"), ["a:", "a:bx:", "a:bx:cx:"]);
        assert_eq!(of("session:9f86d081884c7d65:data"), ["session:"]);
        assert_eq!(of("stats/2026-11-28/hits"), ["stats/"]);
        assert_eq!(of("v2:{17}:x"), ["v2:"]);
        assert_eq!(of("face:cafe:x"), ["face:", "face:cafe:"]);
        assert_eq!(of(":x"), [":"]);
        for key in ["", "plain", "17:cart", "{17}:cart"] {
            assert!(of(key).is_empty(), "{key}");
        }
        assert!(of(&format!("{}:x", "p".repeat(33))).is_empty());
    }

    fn put(keyspace: &Keyspace, db: usize, key: &str, bytes: usize, expire_ms: Option<u64>) {
        let mut view = View::locked_one(keyspace, key.as_bytes(), db, 1_000_000);
        view.put_string(key.as_bytes(), &vec![b'x'; bytes], expire_ms);
        view.finish();
    }

    #[test]
    fn keys_bytes_and_lives_are_added_up() {
        let keyspace = Keyspace::new(4);
        (0..200).for_each(|n| put(&keyspace, 0, &format!("app:user:{n}"), 100, Some(1_060_000)));
        put(&keyspace, 0, "app:big", 50_000, None);
        put(&keyspace, 0, "plain", 1, None);
        put(&keyspace, 3, "app:user:1", 1, None);
        let mut view = View::locked_one(&keyspace, b"app:s", 0, 1_000_000);
        (0..5).for_each(|n| _ = view.set_or_new(b"app:s").unwrap().insert(n.to_string().as_bytes()));
        view.finish();
        // Two minutes later, one of them is used.
        let used = View::locked_one(&keyspace, b"app:big", 0, 1_020_000 + 120_000);
        assert!(used.value(b"app:big").is_some());
        used.finish();
        let counted = count(&keyspace, || 1_050_000, |_| {});
        let find = |db, name: &str| {
            let found = counted.prefixes.iter().find(|one| one.db == db && *one.name == *name.as_bytes());
            found.unwrap_or_else(|| panic!("{name}")).sum
        };
        assert!(counted.is_whole);
        assert_eq!((counted.all.keys, find(0, "app:").keys, find(0, "app:user:").keys), (204, 202, 200));
        assert_eq!((find(0, "").keys, find(3, "app:user:").keys), (1, 1));
        assert_eq!((find(0, "app:user:").expiring, find(0, "app:user:").left_ms), (200, 200 * 10_000));
        let bytes = find(0, "app:").bytes;
        assert!(bytes > 70_000 && bytes < 120_000 && bytes > find(0, "app:user:").bytes + 50_000, "{bytes}");
        assert_eq!(&*counted.prefixes[0].name, b"app:");
        let (kind, largest) = &counted.largest[0];
        assert_eq!(
            (*kind, largest.len(), &*largest[0].key, largest[0].items),
            (Kind::Str, 100, &b"app:big"[..], 50_000)
        );
        assert_eq!((counted.largest[1].0, counted.largest[1].1[0].items), (Kind::Set, 5));
        // A key that has expired and is still there is not listed. Looking removed nothing.
        assert_eq!(count(&keyspace, || 2_000_000, |_| {}).all.keys, 4);
        assert_eq!(keyspace.len(0), 203);
    }

    #[test]
    fn few_sums_find_the_large_ones_and_say_what_they_may_lack() {
        let mut count = Count::new(20);
        for round in 0..1000_u64 {
            for key in ["large:x", "middle:x"] {
                let bytes = if key.starts_with('l') { 1000 } else { 500 };
                count.add(0, key.as_bytes(), Sum { keys: 1, bytes, ..Sum::default() });
            }
            let mut name = format!("{round}").into_bytes();
            name.iter_mut().for_each(|digit| *digit += b'g' - b'0');
            count.add(
                0,
                &[b"other-", &name[..], b":x"].concat(),
                Sum { keys: 1, bytes: 10, ..Sum::default() },
            );
            assert!(count.held <= 20);
        }
        let counted = count.ended();
        assert_eq!((&*counted.prefixes[0].name, counted.prefixes[0].sum.bytes), (&b"large:"[..], 1_000_000));
        assert_eq!((&*counted.prefixes[1].name, counted.prefixes[1].sum.bytes), (&b"middle:"[..], 500_000));
        assert_eq!(counted.prefixes[0].missing_bytes, 0);
        assert!(counted.prefixes[2..].iter().all(|one| one.missing_bytes < 20_000));
        assert_eq!(counted.all.keys, 3000);
    }
}
