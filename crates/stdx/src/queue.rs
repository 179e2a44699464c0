//! A queue that grows without moving its items. It may hold a hundred thousand letters, which a `VecDeque`
//! would copy.

use std::collections::VecDeque;

/// Items of a chunk.
const CHUNK: usize = 256;

/// A first-in, first-out queue in chunks. See the module.
#[derive(Debug)]
pub struct Queue<T> {
    /// No chunk is empty, unless it is the only one.
    chunks: VecDeque<VecDeque<T>>,
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue { chunks: VecDeque::new() }
    }
}

impl<T> Queue<T> {
    /// O(1)
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.chunks.front().is_none_or(VecDeque::is_empty)
    }

    /// O(1), O(n / [`CHUNK`]) now and then.
    pub fn push_back(&mut self, item: T) {
        match self.chunks.back_mut().filter(|chunk| chunk.len() < CHUNK) {
            Some(chunk) => chunk.push_back(item),
            None => self.chunks.push_back(VecDeque::from([item])),
        }
    }

    /// As `push_back`, at the other end.
    pub fn push_front(&mut self, item: T) {
        match self.chunks.front_mut().filter(|chunk| chunk.len() < CHUNK) {
            Some(chunk) => chunk.push_front(item),
            None => self.chunks.push_front(VecDeque::from([item])),
        }
    }

    /// O(1)
    #[inline]
    pub fn front(&self) -> Option<&T> {
        self.chunks.front()?.front()
    }

    /// O(1)
    pub fn pop_front(&mut self) -> Option<T> {
        let chunk = self.chunks.front_mut()?;
        let item = chunk.pop_front();
        if chunk.is_empty() && self.chunks.len() > 1 {
            self.chunks.pop_front();
        }
        item
    }
}

impl<T> Extend<T> for Queue<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        items.into_iter().for_each(|item| self.push_back(item));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_queue() {
        let (mut queue, mut model, mut dice) = (Queue::default(), VecDeque::new(), 7u64);
        for step in 0..20_000u64 {
            dice = crate::hash::hash_u64(dice);
            // It grows first, then it shrinks.
            match dice % 10 {
                n if n < if step < 10_000 { 6 } else { 3 } => {
                    queue.push_back(step);
                    model.push_back(step);
                }
                9 => {
                    queue.push_front(step);
                    model.push_front(step);
                }
                _ => assert_eq!(queue.pop_front(), model.pop_front()),
            }
            assert_eq!((queue.is_empty(), queue.front()), (model.is_empty(), model.front()));
        }
        queue.extend(0..1000);
        model.extend(0..1000);
        while let Some(item) = model.pop_front() {
            assert_eq!(queue.pop_front(), Some(item));
        }
        assert!(queue.pop_front().is_none() && queue.is_empty());
    }
}
