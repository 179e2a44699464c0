//! Events of one key in a script or transaction, for keyspace notifications. A loop in a script may make
//! millions.
//!
//! Cost: 4 bytes per event; adding one is O(kinds of events).

use crate::view::Class;

/// The reclaimer frees a list with more events than this, so that the loop that published them does not.
const LARGE: usize = 16 * 1024;

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Happening {
    pub class: Class,
    pub name: &'static str,
    /// The number of the database when it happened.
    pub db: usize,
}

/// Events of a key, in order.
#[derive(Debug, Default)]
pub struct Happened {
    kinds: Vec<Happening>,
    /// The kind of each event.
    order: Vec<u32>,
}

impl Happened {
    pub(crate) fn push(&mut self, what: Happening) {
        let known = self.kinds.iter().position(|kind| *kind == what);
        let kind = known.unwrap_or_else(|| {
            self.kinds.push(what);
            self.kinds.len() - 1
        });
        self.order.push(kind as u32);
    }

    pub fn len(&self) -> usize {
        self.order.len()
    }

    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Bytes of the list.
    pub fn bytes(&self) -> usize {
        self.order.capacity() * size_of::<u32>()
    }

    pub fn get(&self, i: usize) -> Option<Happening> {
        Some(self.kinds[*self.order.get(i)? as usize])
    }
}

impl Drop for Happened {
    fn drop(&mut self) {
        if self.order.capacity() > LARGE {
            let (bytes, order) = (self.bytes(), std::mem::take(&mut self.order));
            stdx::reclaim::defer(bytes, || drop(order));
        }
    }
}

/// Many events of a key, published in slices.
#[derive(Debug)]
pub struct Run {
    pub key: Box<[u8]>,
    pub happened: Box<Happened>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_keep_their_order() {
        let kinds = ["rpop", "lpush", "del"];
        let what = |i: usize| Happening { class: Class::List, name: kinds[i * i % 3], db: i % 2 };
        let mut happened = Happened::default();
        (0..100).for_each(|i| happened.push(what(i)));
        assert_eq!((happened.len(), happened.kinds.len()), (100, 4));
        assert!((0..100).all(|i| happened.get(i) == Some(what(i))) && happened.get(100).is_none());
    }
}
