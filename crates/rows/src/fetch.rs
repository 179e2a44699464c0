//! MGET, EXISTS and EVENKEEL ITEMS of several keys, some of them rows of sources. Every key is looked at in
//! its own place. Missing rows are loaded together, and only they are looked at again.
//!
//! - F1: a present key is looked at once. So the reply is not of one moment, as the rows of a cache are not
//!   either.
//! - F2: at most [`SLICE`] keys are looked at in a stretch, and the reply is written as the socket drains.
//!
//! Cost: O(keys), a short lock each; memory O(values shorter than a chunk).

use super::lent::Lent;
use super::wait::{self, Asker, Known, Stop, Tally};
use super::{Entry, Pending, Rows, note};
use command::values::Open;
use command::{Command, Error, Held, Stream, write_item, write_string};
use keyspace::{Changes, Owned, View};
use resp::{Args, Reply};
use std::sync::Arc;
use std::vec;
use value::{StrRef, ValueRef};

/// Keys looked at in a stretch.
const SLICE: usize = 256;
/// Largest number of keys of one command.
const KEYS_MAX: usize = 10_000;

/// The keys of a command, as far as they are known.
#[derive(Default)]
pub struct Fetch {
    /// The known keys by their place. `None`: not known yet.
    slots: Vec<Option<Slot>>,
    /// The first key that was not looked at since the last load.
    next: usize,
    /// About the bytes of the values found so far.
    bytes: usize,
    /// The first key that was not counted. A client that waits for a row asked for it once.
    uncounted: usize,
    /// Number of keys of each source whose item is answered after its time.
    stale: Vec<(Arc<Entry>, u64)>,
    /// Keys whose rows have to be loaded.
    missing: Vec<usize>,
    /// The reason why they cannot be loaded. Missing keys are looked at once more, for an item past its time
    /// is better than an error.
    failed: Option<Error>,
    /// Number of them when it last waited.
    waited: usize,
}

enum Slot {
    Nil,
    /// The key is there; for MGET with its value.
    There(Option<Owned>),
}

/// The next step of a command of several keys.
pub enum Fetched {
    /// The reply is written.
    Done,
    /// The beginning of the reply is written.
    Stream(Box<dyn Stream>),
    /// It is run again at that time (milliseconds since 1970), or when rows come.
    Held(u64),
}

/// Runs the command, or goes on with it.
pub fn run(
    rows: &Rows,
    asker: Asker,
    pending: &mut Pending,
    (command, args): (&Command, Args<'_>),
    out: &mut Reply,
    told: &mut Vec<Changes>,
) -> Result<Fetched, Error> {
    let what = What::of(command);
    if args.len() > KEYS_MAX {
        let text = format!("ERR at most {KEYS_MAX} keys can be named together with keys of sources");
        return Err(text.into());
    }
    let mut fetch = pending.fetch.take().unwrap_or_default();
    let keys = args.from(what.first_key());
    fetch.slots.resize_with(keys.len(), || None);
    let mut looking = Looking { rows, asker, pending, keys, values: what != What::Count, told };
    match fetch.advance(&mut looking) {
        Some(Stop::Held(until_ms)) => {
            pending.fetch = Some(fetch);
            Ok(Fetched::Held(until_ms))
        }
        Some(Stop::Refused(error)) => Err(error),
        None => Ok(fetch.reply(what, asker.now_ms, out)),
    }
}

/// The keys that a slice of a command looks at, with the tools for that.
struct Looking<'a> {
    rows: &'a Rows,
    asker: Asker,
    pending: &'a mut Pending,
    keys: Args<'a>,
    /// The answer has values.
    values: bool,
    told: &'a mut Vec<Changes>,
}

/// The kind of reply.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// The number of keys that are there.
    Count,
    Values,
    /// Values with their remaining time.
    Items,
}

impl What {
    fn of(command: &Command) -> What {
        match command.name {
            "exists" => What::Count,
            "mget" => What::Values,
            _ => What::Items,
        }
    }

    fn first_key(self) -> usize {
        if self == What::Items { 2 } else { 1 }
    }
}

/// The first key of a command that is run this way when it names several keys, some of them of sources.
pub fn first_key(command: &Command) -> Option<usize> {
    command.is(command::facts::FETCHES).then(|| What::of(command).first_key())
}

impl Fetch {
    /// Looks at some keys. `None`: all are known.
    fn advance(&mut self, looking: &mut Looking<'_>) -> Option<Stop> {
        let end = (self.next + SLICE).min(self.slots.len());
        for i in self.next..end {
            if self.slots[i].is_none() {
                self.look(looking, i);
            }
        }
        self.next = end;
        self.uncounted = self.uncounted.max(end);
        if end < self.slots.len() {
            // It goes on in the next turn of its loop.
            return Some(Stop::Held(looking.asker.now_ms));
        }
        self.next = 0;
        let missing = std::mem::take(&mut self.missing);
        if let Some(error) = self.failed.take() {
            if missing.is_empty() {
                self.stale.iter().for_each(|(entry, items)| wait::count_stale(entry, *items));
                return None;
            }
            let wanted = wanted(looking.rows, looking.keys, &missing);
            wait::count_errors(&wanted.iter().map(|(entry, key)| (&**entry, *key)).collect::<Vec<_>>());
            return Some(Stop::Refused(error));
        }
        self.load(looking, missing)
    }

    fn load(&mut self, looking: &mut Looking<'_>, missing: Vec<usize>) -> Option<Stop> {
        if missing.len() < self.waited
            && let Some(loading) = &mut looking.pending.loading
        {
            loading.progressed();
        }
        self.waited = missing.len();
        let wanted = wanted(looking.rows, looking.keys, &missing);
        let wanted: Vec<(&Entry, &[u8])> = wanted.iter().map(|(entry, key)| (&**entry, *key)).collect();
        if wanted.is_empty() {
            looking.pending.end_loading();
            return None;
        }
        match wait::wait(looking.asker, looking.pending, &wanted)? {
            Stop::Held(until_ms) => Some(Stop::Held(until_ms)),
            Stop::Refused(error) => {
                self.failed = Some(error);
                self.advance(looking)
            }
        }
    }

    /// Looks at one key. If its row was lent and is not there, the lent value is taken.
    fn look(&mut self, looking: &mut Looking<'_>, i: usize) {
        let (rows, now_ms, values) = (looking.rows, looking.asker.now_ms, looking.values);
        let key = looking.keys.at(i);
        let lent = looking.pending.loading.as_ref().and_then(|loading| loading.lent(key));
        let stale = self.failed.is_some();
        let entry = rows.of(key);
        let db = entry.as_ref().map_or(0, |entry| entry.db);
        let mut view = View::locked_one(&rows.keyspace, key, db, now_ms);
        if view.has_intents() {
            view.settle(&[(db, key)], false);
        }
        let state = match &entry {
            Some(entry) => wait::known(entry, &mut view, key),
            None if view.exists(key) => Known::Item,
            None => Known::Absent,
        };
        let accepted = entry.as_ref().is_none_or(|entry| wait::accepts(entry, key));
        if let Some(entry) = entry.as_ref().filter(|_| i >= self.uncounted) {
            let mut tally = Tally::default();
            tally.add(entry, key, state, now_ms);
            tally.count(entry);
        }
        let missing = matches!(state, Known::Stale | Known::Nothing);
        let lent = lent.zip(entry.clone()).filter(|_| missing);
        if let Some(entry) = entry.filter(|_| stale && state == Known::Stale && lent.is_none()) {
            match self.stale.iter_mut().find(|(known, _)| known.db == entry.db) {
                Some((_, items)) => *items += 1,
                None => self.stale.push((entry, 1)),
            }
        }
        let borrowed = lent.map(|(lent, entry)| borrowed(&lent, &mut view, &entry, key, values));
        let slot = match state {
            _ if borrowed.is_some() => borrowed,
            Known::Item => Some(Slot::There(values.then(|| view.owned(key)).flatten())),
            Known::Stale if stale => Some(Slot::There(values.then(|| view.owned(key)).flatten())),
            Known::Absent => Some(Slot::Nil),
            Known::Stale | Known::Nothing if accepted => None,
            Known::Stale | Known::Nothing => Some(Slot::Nil),
        };
        match &slot {
            Some(Slot::There(Some(owned))) => self.bytes += owned.value.mem_bytes(),
            Some(_) => {}
            None => self.missing.push(i),
        }
        self.slots[i] = slot;
        note(looking.told, view.finish());
    }

    fn reply(self, what: What, now_ms: u64, out: &mut Reply) -> Fetched {
        if what == What::Count {
            let there = self.slots.iter().filter(|slot| matches!(slot, Some(Slot::There(_)))).count();
            out.int(there as i64);
            return Fetched::Done;
        }
        out.array(self.slots.len());
        let items_ms = (what == What::Items).then_some(now_ms);
        let (slots, bytes) = (self.slots.into_iter(), self.bytes);
        let mut answer = Answer { slots, bytes, open: Open::default(), items_ms };
        match answer.fill(out, FIRST) {
            true => Fetched::Stream(Box::new(answer)),
            false => Fetched::Done,
        }
    }
}

/// The row that was lent for a key, in the form of an answer. It is not kept.
fn borrowed(lent: &Lent, view: &mut View<'_>, entry: &Entry, key: &[u8], values: bool) -> Slot {
    lent.show(view, entry);
    let slot = match view.exists(key) {
        true => Slot::There(values.then(|| view.owned(key)).flatten()),
        false => Slot::Nil,
    };
    entry.shelf().take_back(view, key);
    slot
}

/// Bytes of a reply that are written at once.
const FIRST: usize = 16 * 1024;

/// The first of these keys and their sources. They are asked for some at a time, as each costs a fraction of
/// a microsecond.
fn wanted<'a>(rows: &Rows, keys: Args<'a>, which: &[usize]) -> Vec<(Arc<Entry>, &'a [u8])> {
    let some = which.iter().take(SLICE).map(|i| keys.at(*i));
    some.filter_map(|key| Some((rows.of(key)?, key))).collect()
}

/// The rest of a reply.
struct Answer {
    slots: vec::IntoIter<Option<Slot>>,
    /// About the bytes of all values.
    bytes: usize,
    open: Open,
    /// The moment for which items are answered, if they are.
    items_ms: Option<u64>,
}

impl Stream for Answer {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let (slots, items_ms) = (&mut self.slots, self.items_ms);
        self.open.fill(out, room, |out| {
            let Some(Slot::There(Some(owned))) = slots.next()? else {
                out.null();
                return Some(None);
            };
            let value = owned.value.as_ref();
            Some(match (items_ms, value) {
                (Some(now_ms), _) => write_item(out, &owned.value, owned.expire_ms.into(), now_ms),
                (None, ValueRef::Str(StrRef::Flat(bytes))) => {
                    out.bulk(bytes);
                    None
                }
                (None, ValueRef::Str(long)) => write_string(out, long),
                (None, _) => {
                    out.null();
                    None
                }
            })
        })
    }

    fn holds(&self, held: &mut dyn FnMut(Held)) {
        held(Held::own(self, self.bytes));
    }
}
