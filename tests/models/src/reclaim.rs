//! A model of `stdx::reclaim`, whose statics and thread-locals a model checker cannot take as they are. It
//! has the batches of two threads, one that flushes and one that ends, the queue behind its lock, and the
//! reclaimer. R2: garbage is counted before it can be freed, so the figure is never below zero and is 0 in
//! the end.

use crate::check;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Mutex, mpsc};
use loom::thread;
use std::sync::Arc;

type Item = u32;

struct Queue {
    sender: Mutex<mpsc::Sender<Vec<Item>>>,
    pending: AtomicU64,
    /// The mistake: `pending` is counted after the batch has gone.
    late: bool,
}

/// As `Batch`: items that its thread has not flushed go when the thread ends.
struct Batch(Vec<Item>, Arc<Queue>);

impl Batch {
    fn defer(&mut self, item: Item) {
        if !self.1.late {
            self.1.pending.fetch_add(1, Ordering::Relaxed);
        }
        self.0.push(item);
    }

    fn flush(&mut self) {
        let batch = std::mem::take(&mut self.0);
        if batch.is_empty() {
            return;
        }
        let items = batch.len() as u64;
        self.1.sender.lock().unwrap().send(batch).unwrap();
        if self.1.late {
            self.1.pending.fetch_add(items, Ordering::Relaxed);
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.flush();
    }
}

fn model(late: bool) {
    let (sender, receiver) = mpsc::channel();
    let queue = Arc::new(Queue { sender: Mutex::new(sender), pending: AtomicU64::new(0), late });
    let producers = [(1..=2, true), (3..=3, false)].map(|(items, flushes)| {
        let mut batch = Batch(Vec::new(), queue.clone());
        thread::spawn(move || {
            items.for_each(|item| batch.defer(item));
            if flushes {
                batch.flush();
            }
        })
    });
    let mut freed = Vec::new();
    while freed.len() < 3 {
        for item in receiver.recv().unwrap() {
            freed.push(item);
            let before = queue.pending.fetch_sub(1, Ordering::Relaxed);
            assert!((1..=3).contains(&before), "freed before it was counted");
        }
    }
    producers.into_iter().for_each(|producer| producer.join().unwrap());
    freed.sort_unstable();
    assert_eq!(freed, [1, 2, 3], "each once");
    assert_eq!(queue.pending.load(Ordering::Relaxed), 0);
}

#[test]
fn what_waits_is_counted_until_it_is_freed() {
    check(|| model(false));
}

#[test]
#[should_panic(expected = "freed before")]
fn counting_late_is_caught() {
    check(|| model(true));
}
