//! The one stream of a keyspace: it begins with its first outlet, and ends with its last.

use super::Order;
use crate::stream::Outlet;
use keyspace::{Keyspace, Lsn, Mark};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;

/// See the module.
pub struct Shared {
    keyspace: Arc<Keyspace>,
    /// The order that runs, and the count of its outlets.
    running: Mutex<Option<(Arc<Order>, usize)>>,
}

/// An outlet's place in the stream. It stays until [`Listening::end`].
pub struct Listening {
    shared: Arc<Shared>,
    order: Arc<Order>,
    number: u64,
}

impl Shared {
    /// The stream of a keyspace, of which nobody hears yet.
    pub fn new(keyspace: &Arc<Keyspace>) -> Arc<Shared> {
        Arc::new(Shared { keyspace: keyspace.clone(), running: Mutex::default() })
    }

    /// The newest LSN of the keyspace. O(1)
    pub fn last_lsn(&self) -> Lsn {
        self.keyspace.last_lsn()
    }

    /// Marks a place in the stream. None: nobody listens.
    pub fn mark_now(&self, mark: Mark) -> Option<Lsn> {
        self.keyspace.mark_now(mark)
    }

    /// Waits until the outlets were given all that was told so far. At once if there are none.
    pub fn settle(&self) {
        let order = self.running.lock().as_ref().map(|(order, _)| order.clone());
        // No outlet has this number.
        order.into_iter().for_each(|order| order.remove(u64::MAX));
    }

    /// Has an outlet hear of all that is told from now on. `make` gets the order. It waits for the thread, and,
    /// with the first outlet, takes all shard locks for some 20 µs.
    ///
    /// # Errors
    /// No thread can be made.
    pub fn add(self: &Arc<Self>, make: impl FnOnce(&Arc<Order>) -> Box<dyn Outlet>) -> io::Result<Listening> {
        let mut running = self.running.lock();
        let is_first = running.is_none();
        let (order, count) = match running.take() {
            Some(running) => running,
            None => (Order::start(&self.keyspace, Vec::new())?, 0),
        };
        let number = order.add(make(&order));
        if is_first {
            self.keyspace.listen(order.clone());
        }
        *running = Some((order.clone(), count + 1));
        Ok(Listening { shared: self.clone(), order, number })
    }
}

impl Listening {
    pub fn order(&self) -> &Arc<Order> {
        &self.order
    }

    /// Gives the outlet all that was told, and drops it. Waits for the thread.
    pub fn end(self) {
        let mut running = self.shared.running.lock();
        match running.take() {
            Some((order, count)) if count > 1 => {
                order.remove(self.number);
                *running = Some((order, count - 1));
            }
            Some((order, _)) => order.stop(),
            None => {}
        }
    }
}
