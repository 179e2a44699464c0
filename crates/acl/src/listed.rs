//! Texts in the order in which they came, each once: O(log n) to find, to add and to remove one.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// Texts with a value each. See the module.
#[derive(Clone, Debug)]
pub(crate) struct Listed<V> {
    places: BTreeMap<Arc<[u8]>, u64>,
    in_order: BTreeMap<u64, (Arc<[u8]>, V)>,
    last: u64,
    bytes: usize,
}

impl<V> Default for Listed<V> {
    fn default() -> Listed<V> {
        Listed { places: BTreeMap::new(), in_order: BTreeMap::new(), last: 0, bytes: 0 }
    }
}

/// Lists are equal if they have the same texts and values in the same order.
impl<V: PartialEq> PartialEq for Listed<V> {
    fn eq(&self, other: &Listed<V>) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<V: Eq> Eq for Listed<V> {}

impl<V> Listed<V> {
    pub fn len(&self) -> usize {
        self.in_order.len()
    }

    /// Bytes of all texts. O(1)
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &V)> {
        self.in_order.values().map(|(text, value)| (&**text, value))
    }

    /// The texts from a place on, with their places. O(log n)
    pub fn iter_from(&self, place: u64) -> impl Iterator<Item = (u64, &[u8], &V)> {
        self.in_order.range(place..).map(|(place, (text, value))| (*place, &**text, value))
    }

    pub fn contains(&self, text: &[u8]) -> bool {
        self.places.contains_key(text)
    }

    pub fn get_mut(&mut self, text: &[u8]) -> Option<&mut V> {
        let place = self.places.get(text)?;
        self.in_order.get_mut(place).map(|(_, value)| value)
    }

    /// Adds a text at the end, unless it is there.
    pub fn add(&mut self, text: &[u8], value: V) {
        if self.contains(text) {
            return;
        }
        let text: Arc<[u8]> = text.into();
        self.last += 1;
        self.bytes += text.len();
        self.places.insert(text.clone(), self.last);
        self.in_order.insert(self.last, (text, value));
    }

    /// Removes a text; false if it is not there.
    pub fn remove(&mut self, text: &[u8]) -> bool {
        let Some(place) = self.places.remove(text) else { return false };
        self.in_order.remove(&place);
        self.bytes -= text.len();
        true
    }

    /// Removes all texts that begin so. O(log n) each.
    pub fn remove_beginning(&mut self, start: &[u8]) {
        loop {
            let mut from = self.places.range::<[u8], _>((Bound::Included(start), Bound::Unbounded));
            let next = from.next().map(|(text, _)| text.clone()).filter(|text| text.starts_with(start));
            let Some(text) = next else { return };
            self.remove(&text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(list: &Listed<u32>) -> String {
        let one = |(text, value): (&[u8], &u32)| format!("{}={value}", String::from_utf8_lossy(text));
        list.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn texts_stay_in_order_and_are_there_once() {
        let mut list = Listed::default();
        for (text, value) in [("get|a", 1), ("set", 2), ("get|b", 3), ("set", 4), ("getex", 5)] {
            list.add(text.as_bytes(), value);
        }
        assert_eq!(
            (shown(&list).as_str(), list.len(), list.bytes()),
            ("get|a=1 set=2 get|b=3 getex=5", 4, 18)
        );
        *list.get_mut(b"set").unwrap() = 6;
        list.remove_beginning(b"get|");
        assert_eq!((shown(&list).as_str(), list.bytes()), ("set=6 getex=5", 8));
        assert!(!list.remove(b"get|a") && list.remove(b"set") && !list.contains(b"set"));
        list.add(b"set", 6);
        // Another way to the same list.
        let mut other = Listed::default();
        other.add(b"getex", 5);
        other.add(b"set", 6);
        assert_eq!(list, other);
        other.add(b"x", 1);
        assert_ne!(list, other);
    }
}
