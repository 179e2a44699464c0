//! EVENKEEL PREFIXES: the latest count of keys by the beginnings of their names, and how it grew.
//!
//! - PX1: one count runs at a time. The sums of the [`LARGEST`] prefixes of [`EARLIER`] counts before it are
//!   kept, some 200 bytes each.
//! - PX2: a user is shown only prefixes and keys whose names are all within what it may read.

use command::Error;
use command::options::is;
use command::prefixes::{Counted, Large, Prefix};
use parking_lot::Mutex;
use resp::{Args, Reply};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts kept besides the latest.
const EARLIER: usize = 6;
/// Prefixes kept of an earlier count.
const LARGEST: usize = 1000;

/// Prefixes that are shown by default.
const SHOWN: usize = 100;

/// Reads the words behind PREFIXES: how many prefixes are to be shown. None: a count is to begin. Errors: it is
/// no number; syntax.
pub fn asked(args: Args<'_>) -> Result<Option<usize>, Error> {
    let count = |word| stdx::num::parse_i64(word).and_then(|n| usize::try_from(n).ok());
    match (args.first(), args.get(1)) {
        (None, _) => Ok(Some(SHOWN)),
        (Some(word), None) if is(word, "run") => Ok(None),
        (Some(word), None) if is(word, "get") => Ok(Some(SHOWN)),
        (Some(word), Some(most)) if is(word, "get") && args.len() == 2 => {
            count(most).map(Some).ok_or(Error::new("ERR count must be a number of 0 or more"))
        }
        _ => Err(Error::Syntax),
    }
}

/// Whether the names of all keys of a database that a pattern fits may be shown.
type MayList<'a> = &'a dyn Fn(usize, &[u8]) -> bool;

/// The counts of one server.
#[derive(Default)]
pub struct Prefixes(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    running: Option<Arc<AtomicU64>>,
    latest: Option<Arc<Counted>>,
    earlier: VecDeque<Arc<Earlier>>,
}

/// The part of an earlier count that is kept.
struct Earlier {
    unix_ms: u64,
    bytes: HashMap<(usize, Box<[u8]>), u64>,
}

impl Earlier {
    fn of(counted: &Counted) -> Earlier {
        let largest = counted.prefixes.iter().take(LARGEST);
        let bytes = largest.map(|one| ((one.db, one.name.clone()), one.sum.bytes)).collect();
        Earlier { unix_ms: counted.unix_ms, bytes }
    }
}

/// A count that runs. Dropped, it has ended.
struct Running {
    state: Arc<Mutex<State>>,
    seen: Arc<AtomicU64>,
}

impl Running {
    /// Keeps what was counted; what was the latest becomes an earlier one. O(prefixes)
    fn end(self, counted: Counted) {
        let mut state = self.state.lock();
        let before = state.latest.replace(Arc::new(counted));
        drop(state);
        let Some(before) = before else { return };
        let earlier = Arc::new(Earlier::of(&before));
        let mut state = self.state.lock();
        state.earlier.push_back(earlier);
        if state.earlier.len() > EARLIER {
            state.earlier.pop_front();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.state.lock().running = None;
    }
}

impl Prefixes {
    /// Begins a count on a thread of its own. `count` is given where to say how many keys it has seen. O(1).
    /// Errors: one is under way; there is no thread.
    pub fn run(&self, count: impl FnOnce(&dyn Fn(u64)) -> Counted + Send + 'static) -> Result<(), Error> {
        let running = self.begin()?;
        let run = move || {
            let seen = running.seen.clone();
            let counted = stdx::panics::contain(|| count(&|keys| seen.store(keys, Relaxed)));
            if let Ok(counted) = counted {
                running.end(counted);
            }
        };
        let started = std::thread::Builder::new().name("prefixes".into()).spawn(run);
        started.map(drop).map_err(|e| format!("ERR no thread could be started: {e}").into())
    }

    fn begin(&self) -> Result<Running, Error> {
        let mut state = self.0.lock();
        if state.running.is_some() {
            return Err(Error::new("ERR prefixes are being counted already"));
        }
        let seen = Arc::<AtomicU64>::default();
        state.running = Some(seen.clone());
        Ok(Running { state: self.0.clone(), seen })
    }

    /// Writes the latest count, at most `most` prefixes, and how large they were before. O(prefixes)
    /// `sees_all`: the names of all keys may be shown; `may_list`: those of a database's keys that a pattern
    /// fits.
    pub fn write(&self, most: usize, sees_all: bool, may_list: MayList<'_>, out: &mut Reply) {
        let state = self.0.lock();
        let running = state.running.as_ref().map(|seen| seen.load(Relaxed));
        let (latest, earlier) = (state.latest.clone(), state.earlier.clone());
        drop(state);
        out.map(9);
        out.bulk(b"running");
        match running {
            Some(seen) => out.int(seen as i64),
            None => out.null(),
        }
        let counted = latest.unwrap_or_default();
        out.bulk(b"time_ms");
        match counted.unix_ms {
            0 => out.null(),
            ms => out.int(ms as i64),
        }
        int(out, "took_ms", counted.took_ms);
        int(out, "whole", counted.is_whole.into());
        int(out, "keys", if sees_all { counted.all.keys } else { 0 });
        int(out, "bytes", if sees_all { counted.all.bytes } else { 0 });
        out.bulk(b"earlier_ms");
        out.array(earlier.len());
        earlier.iter().for_each(|one| out.int(one.unix_ms as i64));
        let seen = |one: &&Prefix| {
            sees_all || !one.name.is_empty() && may_list(one.db, &[&one.name[..], b"*"].concat())
        };
        let shown: Vec<&Prefix> = counted.prefixes.iter().filter(seen).take(most).collect();
        out.bulk(b"prefixes");
        out.array(shown.len());
        shown.iter().for_each(|one| write_prefix(one, &earlier, out));
        out.bulk(b"largest");
        out.map(counted.largest.len());
        for (kind, keys) in &counted.largest {
            out.bulk(kind.name().as_bytes());
            let seen = |one: &&Large| sees_all || may_list(one.db, &one.key);
            let keys: Vec<&Large> = keys.iter().filter(seen).take(most).collect();
            out.array(keys.len());
            keys.iter().for_each(|one| write_large(one, out));
        }
    }
}

fn write_prefix(one: &Prefix, earlier: &VecDeque<Arc<Earlier>>, out: &mut Reply) {
    out.map(8);
    out.bulk(b"prefix");
    out.bulk(&one.name);
    int(out, "db", one.db as u64);
    int(out, "keys", one.sum.keys);
    int(out, "bytes", one.sum.bytes);
    int(out, "missing_bytes", one.missing_bytes);
    int(out, "expiring", one.sum.expiring);
    int(out, "used", one.sum.used);
    out.bulk(b"earlier_bytes");
    out.array(earlier.len());
    let place = (one.db, one.name.clone());
    for count in earlier {
        match count.bytes.get(&place) {
            Some(bytes) => out.int(*bytes as i64),
            None => out.null(),
        }
    }
}

fn write_large(one: &Large, out: &mut Reply) {
    out.map(4);
    out.bulk(b"key");
    out.bulk(&one.key);
    int(out, "db", one.db as u64);
    int(out, "bytes", one.bytes);
    int(out, "items", one.items);
}

fn int(out: &mut Reply, name: &str, n: u64) {
    out.bulk(name.as_bytes());
    out.int(n as i64);
}

#[cfg(test)]
mod tests {
    use super::*;
    use command::prefixes::{Kind, Sum};

    fn counted(unix_ms: u64, bytes: u64) -> Counted {
        let prefix = |name: &str, bytes| Prefix {
            db: 0,
            name: name.as_bytes().into(),
            sum: Sum { keys: 2, bytes, ..Sum::default() },
            missing_bytes: 0,
        };
        let large = Large { bytes: 9, items: 1, db: 0, key: b"other:x".as_slice().into() };
        Counted {
            unix_ms,
            is_whole: true,
            prefixes: vec![prefix("app:", bytes), prefix("", 7), prefix("other:", 5)],
            largest: vec![(Kind::Str, vec![large])],
            ..Counted::default()
        }
    }

    fn shown(prefixes: &Prefixes, most: usize, begin: &'static str) -> String {
        let mut out = Reply::new(true);
        let may_list = |db, pattern: &[u8]| db == 0 && pattern.starts_with(begin.as_bytes());
        prefixes.write(most, begin.is_empty(), &may_list, &mut out);
        String::from_utf8(out.into_bytes()).unwrap().replace("\r\n", " ")
    }

    #[test]
    fn one_count_runs_at_a_time_and_earlier_ones_are_kept() {
        let prefixes = Prefixes::default();
        assert!(shown(&prefixes, 9, "").contains("running _ $7 time_ms _"));
        for n in 1..=9 {
            let running = prefixes.begin().unwrap();
            running.seen.store(5, Relaxed);
            assert!(prefixes.begin().is_err() && shown(&prefixes, 9, "").contains("running :5"));
            running.end(counted(n, 100 * n));
        }
        let all = shown(&prefixes, 9, "");
        assert!(all.contains("earlier_ms *6 :3 :4 :5 :6 :7 :8 "), "{all}");
        assert!(all.contains("earlier_bytes *6 :300 :400 :500 :600 :700 :800 "), "{all}");
        assert!(all.contains("bytes :900 ") && all.contains("other:x"), "{all}");
        assert!(shown(&prefixes, 1, "").contains("prefixes *1 "));
    }

    #[test]
    fn a_count_that_broke_off_lets_another_begin() {
        let prefixes = Prefixes::default();
        drop(prefixes.begin().unwrap());
        prefixes.begin().unwrap().end(counted(1, 1));
    }

    #[test]
    fn a_user_sees_what_it_may_read() {
        let prefixes = Prefixes::default();
        prefixes.begin().unwrap().end(counted(1, 900));
        let app = shown(&prefixes, 9, "app:");
        assert!(app.contains("prefixes *1 ") && app.contains("app:"), "{app}");
        assert!(!app.contains("other:") && app.contains("string *0 "), "{app}");
    }
}
