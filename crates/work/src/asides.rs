//! Threads of their own, for answers that wait for a disk or change code: so many at a time, first come, first
//! served.

use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};

/// Most threads that collect answers at a time.
const ASIDES_MAX: usize = 64;
/// Milliseconds after which a client that has not asked again counts as gone. A waiting one asks each
/// millisecond.
const ASKS_MS: u64 = 1000;

/// The threads that collect answers, and the clients that wait for one: first come, first served. So clients
/// that ask again and again keep nobody out. The waiting ones are kept by ticket: client, and time of its
/// last question.
#[derive(Default)]
struct Asides {
    running: usize,
    last_ticket: u64,
    waiting: BTreeMap<u64, (u64, u64)>,
    tickets: HashMap<u64, u64>,
}

static ASIDES: Mutex<Option<Asides>> = Mutex::new(None);

impl Asides {
    fn with<T>(f: impl FnOnce(&mut Asides) -> T) -> T {
        f(ASIDES.lock().get_or_insert_default())
    }

    /// Gives a client a thread if one is free; else it waits. Cost: O(threads + log n) for n waiting clients.
    fn take(&mut self, client: u64, now_ms: u64) -> bool {
        let ticket = *self.tickets.entry(client).or_insert_with(|| {
            self.last_ticket += 1;
            self.last_ticket
        });
        self.waiting.insert(ticket, (client, now_ms));
        while let Some(first) = self.waiting.first_entry()
            && now_ms.saturating_sub(first.get().1) > ASKS_MS
        {
            self.tickets.remove(&first.remove().0);
        }
        let room = ASIDES_MAX.saturating_sub(self.running);
        let may = self.waiting.keys().take(room).any(|next| *next == ticket);
        if may {
            self.waiting.remove(&ticket);
            self.tickets.remove(&client);
            self.running += 1;
        }
        may
    }
}

/// One of the threads, while it runs. Dropping it gives the place to the next.
pub struct Aside(());

impl Aside {
    /// Takes a place for a thread. None: the client is to ask again each millisecond. Cost: O(threads + log n)
    /// for n waiting clients.
    pub fn take(client: u64, now_ms: u64) -> Option<Aside> {
        Asides::with(|asides| asides.take(client, now_ms)).then(|| Aside(()))
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        Asides::with(|asides| asides.running -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_collect_answers_go_to_who_came_first() {
        let mut asides = Asides::default();
        assert!((0..ASIDES_MAX as u64).all(|client| asides.take(client, 0)));
        // Two clients wait. A third that asks when a thread comes free is behind them.
        assert!(!asides.take(100, 1) && !asides.take(101, 1));
        asides.running -= 1;
        assert!(!asides.take(0, 2) && !asides.take(101, 2) && asides.take(100, 2));
        // A client that has gone is skipped after a while.
        asides.running -= 1;
        assert!(!asides.take(0, 900) && !asides.take(0, 1000));
        assert!(asides.take(0, 3 + ASKS_MS));
        assert_eq!((asides.running, asides.waiting.len(), asides.tickets.len()), (ASIDES_MAX, 0, 0));
    }
}
