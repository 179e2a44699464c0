//! The server as the thread of the sources sees it, and its letters to the loops.

use super::Rows;
use super::dropping::Dropping;
use super::entry::{Entry, RowPlace};
use super::fill::{Fill, Item};
use super::lent::Arrival;
use super::removals::Removals;
use keyspace::Changes;
use source::hub::{Asked, Cache, Loaded};
use source::{Change, Failure};
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// A letter of the thread of the sources to a loop.
pub enum Letter {
    /// Rows to be installed.
    Fill(Box<Fill>),
    /// Items to be removed.
    Drop(Box<Dropping>),
    /// All of a source is to be removed.
    Flush(RowPlace),
    /// These clients may go on.
    Arrived(Vec<u64>, Arrival),
}

/// The outcome of a slice of work on rows.
#[derive(Default)]
pub struct News {
    /// The caller tells these first,
    pub told: Vec<Changes>,
    /// and delivers these then, to the loops named.
    pub letters: Vec<(usize, Letter)>,
    /// Something was kept, so the allocator has to be asked soon.
    pub grows: bool,
}

/// The server around the rows, as they need it.
pub trait House: Send + Sync {
    /// Puts a letter into a loop's mailbox.
    fn post(&self, loop_id: usize, letter: Letter);
    /// Limits the bytes that the source of that number may keep. 0: it has ended.
    fn limit(&self, number: usize, bytes: u64);
    /// Sets the sources from now on.
    fn show(&self, sources: &[Arc<Entry>]);
}

/// The server as the thread of one source sees it.
pub(super) struct Front {
    pub rows: Weak<Rows>,
    pub place: RowPlace,
    pub queue: Arc<Removals>,
    pub pattern: source::Pattern,
    /// The loop that removes changed items. It is one, so that this happens in order.
    pub home: usize,
}

impl Cache for Front {
    fn loaded(&self, loaded: Loaded) {
        let Some(rows) = self.rows.upgrade() else { return };
        match loaded.failure {
            Some(failure) => self.failed(&rows, &failure, loaded.asked),
            None => self.arrived(&rows, loaded),
        }
    }

    fn changed(&self, changes: &[Change], refresh: bool) -> bool {
        let Some(rows) = self.rows.upgrade() else { return true };
        let keys = changes.iter().map(|change| self.pattern.key(&change.id)).collect();
        let oldest = changes.iter().filter_map(|change| change.committed_ms).min();
        let dropping = Dropping::put(&self.queue, self.place, keys, oldest, refresh);
        let Some(dropping) = dropping else { return false };
        rows.house.post(self.home, Letter::Drop(Box::new(dropping)));
        true
    }

    fn lost(&self) {
        if let Some(rows) = self.rows.upgrade()
            && self.queue.give_up()
        {
            rows.house.post(self.home, Letter::Flush(self.place));
        }
    }
}

impl Front {
    /// Each row goes to the loop of the first client that waits for it.
    fn arrived(&self, rows: &Rows, loaded: Loaded) {
        let mut by_loop: Vec<Vec<Item>> = (0..rows.loops).map(|_| Vec::new()).collect();
        for asked in loaded.asked {
            let to = asked.tickets.first().map_or(self.home, |ticket| ticket.loop_id);
            let key = self.pattern.key(&asked.id);
            by_loop[to].push(Item::new(key, asked));
        }
        for (to, items) in by_loop.into_iter().enumerate().filter(|(_, items)| !items.is_empty()) {
            let fill = Fill::new(self.place, loaded.began, items);
            rows.house.post(to, Letter::Fill(Box::new(fill)));
        }
    }

    fn failed(&self, rows: &Rows, failure: &Failure, asked: Vec<Asked>) {
        let name = rows.at(self.place).map(|entry| entry.spec().name.clone()).unwrap_or_default();
        let text: Arc<str> = error_text(&name, failure).into();
        let mut by_loop: HashMap<usize, Vec<u64>> = HashMap::new();
        for ticket in asked.iter().flat_map(|asked| &asked.tickets) {
            by_loop.entry(ticket.loop_id).or_default().push(ticket.client);
        }
        for (to, clients) in by_loop {
            rows.house.post(to, Letter::Arrived(clients, Arrival::Failed(text.clone())));
        }
    }
}

fn error_text(name: &str, failure: &Failure) -> String {
    let word = if *failure == Failure::Slow { "SOURCESLOW" } else { "SOURCEDOWN" };
    // An error is one line.
    format!("{word} source '{name}': {failure}").replace(['\r', '\n'], " ")
}
