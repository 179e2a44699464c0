//! What happened to one key in a script or transaction, for keyspace notifications: a loop may make millions of events.
//!
//! Cost: 4 bytes an event, O(kinds of events) each.

use crate::view::Class;

/// Events above which their list is freed elsewhere: it is the loop that published them which lets go of it.
const LARGE: usize = 16 * 1024;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Happening {
    pub class: Class,
    pub name: &'static str,
    /// The number that the database had for who did it.
    pub db: usize,
}

/// Events of a key, in their order.
#[derive(Debug, Default)]
pub struct Happened {
    kinds: Vec<Happening>,
    /// Each by its kind.
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

/// Many events of a key, to be published in slices.
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
