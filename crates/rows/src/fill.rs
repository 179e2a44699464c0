//! Installs loaded rows: a piece of work that a loop does in slices.
//!
//! Cost: a short lock per row. The thread of the sources has built the value.

use super::entry::{Entry, RowPlace};
use super::front::{Letter, News};
use super::lent::{Arrival, Lent, Made};
use super::shelf::Found;
use super::{Rows, note};
use keyspace::{Times, View};
use source::hub::{Asked, Ticket};
use source::{Body, Id};
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::vec;
use value::{Hash, Str, Value};

/// Bytes from which on a string is made a value before it reaches a loop.
const LONG: usize = 2048;

/// Least time for which the absence of a row is known, so that the clients that waited for it find that.
const ABSENT_MIN_MS: u64 = 50;

/// A row, or its absence, to be installed under a key.
pub(super) struct Item {
    key: Id,
    id: Id,
    tickets: Vec<Ticket>,
    row: Option<Made>,
    /// The last change of the row.
    changed_ms: Option<NonZeroU64>,
}

impl Item {
    /// Makes an item. O(row); not on a loop.
    pub(super) fn new(key: Id, asked: Asked) -> Item {
        let changed_ms = asked.row.as_ref().and_then(|row| NonZeroU64::new(row.modified_ms?));
        let row = asked.row.map(|row| match row.body {
            Body::Json(text) if text.len() < LONG => Made::Text(text),
            Body::Json(text) => Made::Value(Value::Str(Str::from_vec(text))),
            // The clients that wait for it were told before.
            Body::Unreadable(_) => Made::Text(Vec::new()),
            Body::Fields(fields) => {
                let mut hash = Hash::default();
                for (field, value) in &fields {
                    hash.insert(field, value);
                }
                Made::Value(Value::Hash(hash))
            }
        });
        Item { key, id: asked.id, tickets: asked.tickets, row, changed_ms }
    }
}

/// Rows of one load, for one loop.
pub struct Fill {
    place: RowPlace,
    /// The beginning of the load (`source::Marks`).
    began: u64,
    items: vec::IntoIter<Item>,
}

impl Fill {
    pub(super) fn new(place: RowPlace, began: u64, items: Vec<Item>) -> Fill {
        Fill { place, began, items: items.into_iter() }
    }

    /// Installs some. True if there are more.
    pub fn advance(&mut self, rows: &Rows, now_ms: u64, count: usize, news: &mut News) -> bool {
        let entry = rows.at(self.place);
        for item in self.items.by_ref().take(count) {
            match &entry {
                Some(entry) => install(rows, entry, (self.began, now_ms), item, news),
                None => wake(rows, &item.tickets, Arrival::Gone, news),
            }
        }
        self.items.len() > 0
    }
}

/// Installs a row, or the knowledge that there is none (rows Z2).
fn install(rows: &Rows, entry: &Entry, (began, now_ms): (u64, u64), item: Item, news: &mut News) {
    let key = &*item.key;
    let mut view = View::locked_one(&rows.keyspace, key, entry.db, now_ms);
    if view.has_intents() {
        view.settle(&[(entry.db, key), (entry.absent_db(), key)], true);
    }
    // This is looked at under the lock, for a source is emptied after it was marked as ended (rows Z5).
    let ended = entry.source.is_removed();
    let marks = &entry.source.marks;
    let found = found(entry, key, item.row.as_ref(), item.changed_ms, view.now_ms());
    let allowed = !ended && entry.shelf().install(&mut view, marks, (&item.id, key), began, found);
    if allowed {
        // It may have replaced a row whose change was not told yet.
        view.tell_readers(key);
    }
    // This happens under the lock, so that lines come in the order of the changes. It takes about a
    // microsecond, and only with `loglevel debug`.
    log::trace!("{}", Told { key, row: &item.row, began, kept: allowed, now: entry.source.marks.now() });
    note(&mut news.told, view.finish());
    if allowed {
        news.grows = true;
        return wake(rows, &entry.source.settle(&item.id), Arrival::Loaded, news);
    }
    if ended {
        return wake(rows, &entry.source.settle(&item.id), Arrival::Gone, news);
    }
    entry.seen.refused.fetch_add(1, Ordering::Relaxed);
    let early = entry.source.hand_over(item.id);
    if !early.is_empty() {
        let Item { key, row, changed_ms, .. } = item;
        log::trace!("key {}: lent to {}, loaded from {began} on", key.escape_ascii(), clients(&early));
        let lent = Lent { place: entry.place(), began, key, row, changed_ms };
        wake(rows, &early, Arrival::Lent(Arc::new(lent)), news);
    }
}

fn found<'a>(
    entry: &Entry,
    key: &[u8],
    row: Option<&'a Made>,
    changed_ms: Option<NonZeroU64>,
    now_ms: u64,
) -> Found<'a> {
    let times = Times { expire_ms: Some(entry.expire_ms(key, now_ms)), changed_ms };
    let absent_ms = (entry.spec().negative_ttl.as_millis() as u64).max(ABSENT_MIN_MS);
    match row {
        Some(row) => Found::Row(row.payload(key), times),
        None => Found::Nothing { until_ms: now_ms + absent_ms },
    }
}

/// The line of the log for a row that was loaded.
struct Told<'a> {
    key: &'a [u8],
    row: &'a Option<Made>,
    began: u64,
    kept: bool,
    now: u64,
}

/// Bytes of a row in the log.
const TOLD: usize = 40;

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Told { key, row, began, kept, now } = self;
        let kept = if *kept { "kept" } else { "not kept" };
        write!(f, "key {}: {kept} at {now}, loaded from {began} on: ", key.escape_ascii())?;
        match row {
            None => f.write_str("there is none"),
            Some(Made::Text(text)) => write!(f, "{}", text[..text.len().min(TOLD)].escape_ascii()),
            Some(Made::Value(value)) => write!(f, "{} bytes", value.mem_bytes()),
        }
    }
}

fn clients(tickets: &[Ticket]) -> String {
    let names: Vec<String> = tickets.iter().map(|ticket| ticket.client.to_string()).collect();
    format!("clients {}", names.join(" "))
}

/// Lets the waiting clients go on.
fn wake(rows: &Rows, tickets: &[Ticket], arrival: Arrival, news: &mut News) {
    for loop_id in 0..rows.loops {
        let here = tickets.iter().filter(|ticket| ticket.loop_id == loop_id).map(|ticket| ticket.client);
        let clients: Vec<u64> = here.collect();
        if !clients.is_empty() {
            news.letters.push((loop_id, Letter::Arrived(clients, arrival.clone())));
        }
    }
}
