//! The lists of connections that a loop keeps: each connection is in a list at most once.
//!
//! ```text
//! add(list, slot) ── marked already: nothing ──► the end of the list
//! pop(list) ◄── the first that is marked; the mark goes
//! ```
//!
//! - LI1: a connection's mark of a list says whether its slot is in the list. [`Listed`] alone sets and clears
//!   marks.
//! - LI2: a connection that is closed, or moves to another loop, loses its marks, and its slots stay in the
//!   lists. A slot whose connection is not marked is left out when its turn comes.
//!
//! Cost: O(1) for each call; a slot that is left out was added once.

use std::collections::VecDeque;

/// A list of a loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum List {
    /// Connections with more to do than a quantum had time for.
    Continued,
    /// Connections to write this turn.
    Dirty,
    /// Connections whose replies wait until their effects are durable.
    Gated,
    /// Connections in the middle of a large request, with more of it to be read.
    Bulky,
    /// Connections with messages to send.
    Notified,
    /// Connections whose replies are being streamed.
    Streaming,
    /// Connections with long requests that hold work memory or wait for it.
    Hauling,
    /// Connections of replicas. They stay in it.
    Fed,
    /// Connections over their soft limit. They are cut off when their time is up, even if nothing else
    /// happens.
    Limited,
}

/// Count of lists.
const LISTS: usize = List::Limited as usize + 1;

/// The lists that a connection is in.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Marks(u16);

impl Marks {
    #[inline]
    pub(crate) fn has(self, list: List) -> bool {
        self.0 & 1 << list as u8 != 0
    }

    /// Sets a mark. False: it was set.
    #[inline]
    fn set(&mut self, list: List) -> bool {
        let is_new = !self.has(list);
        self.0 |= 1 << list as u8;
        is_new
    }

    #[inline]
    fn take(&mut self, list: List) -> bool {
        let was_set = self.has(list);
        self.0 &= !(1 << list as u8);
        was_set
    }
}

/// A connection, as its lists know it.
pub(crate) trait Marked {
    fn marks(&mut self) -> &mut Marks;
}

/// The lists of a loop. See the module.
#[derive(Default)]
pub(crate) struct Listed {
    slots: [VecDeque<usize>; LISTS],
}

impl Listed {
    /// Adds a connection behind the others. False: it is there already.
    #[inline]
    pub(crate) fn add(&mut self, list: List, slot: usize, conn: &mut impl Marked) -> bool {
        let is_new = conn.marks().set(list);
        if is_new {
            self.slots[list as usize].push_back(slot);
        }
        is_new
    }

    /// Takes the first connection out. None: the list is empty.
    #[inline]
    pub(crate) fn pop<C: Marked>(&mut self, list: List, conns: &mut [Option<Box<C>>]) -> Option<usize> {
        let slots = &mut self.slots[list as usize];
        while let Some(slot) = slots.pop_front() {
            if conns[slot].as_mut().is_some_and(|conn| conn.marks().take(list)) {
                return Some(slot);
            }
        }
        None
    }

    /// The first connection, which stays in the list. None: the list is empty.
    pub(crate) fn first<C: Marked>(&mut self, list: List, conns: &mut [Option<Box<C>>]) -> Option<usize> {
        let slots = &mut self.slots[list as usize];
        while let Some(slot) = slots.front().copied() {
            if conns[slot].as_mut().is_some_and(|conn| conn.marks().has(list)) {
                return Some(slot);
            }
            slots.pop_front();
        }
        None
    }

    /// Count of slots, with those that will be left out.
    #[inline]
    pub(crate) fn len(&self, list: List) -> usize {
        self.slots[list as usize].len()
    }

    #[inline]
    pub(crate) fn any(&self, list: List) -> bool {
        !self.slots[list as usize].is_empty()
    }

    /// All slots, with those that will be left out. O(slots)
    pub(crate) fn iter(&self, list: List) -> impl Iterator<Item = usize> {
        self.slots[list as usize].iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[derive(Default)]
    struct Conn(Marks);

    impl Marked for Conn {
        fn marks(&mut self) -> &mut Marks {
            &mut self.0
        }
    }

    /// Random calls, against a set.
    #[test]
    fn a_connection_is_in_a_list_once_and_a_closed_one_in_none() {
        const SLOTS: u64 = 5;
        let (mut listed, mut model, mut seed) = (Listed::default(), BTreeSet::new(), 1u64);
        let mut conns: Vec<Option<Box<Conn>>> = (0..SLOTS).map(|_| Some(Box::default())).collect();
        for _ in 0..20_000 {
            seed = stdx::hash::hash_u64(seed);
            let (slot, list) = ((seed >> 8) as usize % conns.len(), List::Dirty);
            match seed % 8 {
                0..=2 => {
                    if let Some(conn) = &mut conns[slot] {
                        assert_eq!(listed.add(list, slot, &mut **conn), model.insert(slot));
                        listed.add(List::Limited, slot, &mut **conn);
                    }
                }
                3 | 4 => {
                    let first = listed.first(list, &mut conns);
                    assert_eq!(listed.pop(list, &mut conns), first);
                    assert!(first.map_or(model.is_empty(), |slot| model.remove(&slot)));
                }
                5 => _ = conns[slot].get_or_insert_default(),
                _ => {
                    conns[slot] = None;
                    model.remove(&slot);
                }
            }
            assert!(model.iter().all(|slot| listed.iter(list).any(|at| at == *slot)));
        }
        while listed.pop(List::Limited, &mut conns).is_some() {}
        assert!(!listed.any(List::Limited) && listed.len(List::Limited) == 0);
        assert!(conns.iter().flatten().all(|conn| !conn.0.has(List::Limited)));
    }

    /// First come, first served, and a list knows nothing of another.
    #[test]
    fn a_list_keeps_the_order_in_which_connections_came() {
        let (mut listed, mut conns) = (Listed::default(), vec![]);
        conns.resize_with(4, || Some(Box::<Conn>::default()));
        for slot in [2, 0, 3, 0, 2] {
            conns[slot].as_mut().map(|conn| listed.add(List::Bulky, slot, &mut **conn));
        }
        assert_eq!(listed.pop(List::Gated, &mut conns), None);
        let order = std::iter::from_fn(|| listed.pop(List::Bulky, &mut conns));
        assert_eq!(order.collect::<Vec<_>>(), [2, 0, 3]);
    }
}
