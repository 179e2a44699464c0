// The mailbox: `letterbox.rs` as it is. Played: the eventfd, and the loop that sleeps on it.

use super::letterbox::{Bell, Letterbox};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use std::sync::Arc;

/// An eventfd, watched for edges: a ring wakes one sleep, unless it is silenced before.
struct Eventfd {
    counter: Mutex<u64>,
    came: Condvar,
}

impl Eventfd {
    fn new() -> Eventfd {
        Eventfd { counter: Mutex::new(0), came: Condvar::new() }
    }

    fn sleep(&self) {
        let mut counter = self.counter.lock().unwrap();
        while *counter == 0 {
            counter = self.came.wait(counter).unwrap();
        }
        *counter = 0;
    }
}

impl Bell for Eventfd {
    fn ring(&self) {
        *self.counter.lock().unwrap() += 1;
        self.came.notify_one();
    }

    fn silence(&self) {
        *self.counter.lock().unwrap() = 0;
    }
}

type Mailbox = Arc<Letterbox<(u8, u8), Eventfd>>;

fn senders(mailbox: &Mailbox, letters: [u8; 2]) -> Vec<thread::JoinHandle<()>> {
    let start = |sender: u8| {
        let mailbox = mailbox.clone();
        thread::spawn(move || (0..letters[sender as usize]).for_each(|i| mailbox.send((sender, i))))
    };
    vec![start(0), start(1)]
}

/// A lost wake-up is a receiver that sleeps for ever; the checker reports a deadlock.
pub(crate) fn no_letter_is_left() {
    let mailbox: Mailbox = Arc::new(Letterbox::new(Eventfd::new()));
    let senders = senders(&mailbox, [2, 1]);
    let mut got = Vec::new();
    while got.len() < 3 {
        if !mailbox.is_rung() {
            mailbox.bell().sleep();
        }
        mailbox.drain(&mut got);
    }
    let first: Vec<u8> = got.iter().filter(|letter| letter.0 == 0).map(|letter| letter.1).collect();
    assert_eq!(first, [0, 1], "in order (M1)");
    senders.into_iter().for_each(|sender| sender.join().unwrap());
}

/// The condition for a loop that sleeps on the level of the bell: no ring is left once all letters are taken.
pub(crate) fn no_ring_stays() {
    let mailbox: Mailbox = Arc::new(Letterbox::new(Eventfd::new()));
    let senders = senders(&mailbox, [1, 0]);
    let mut got = Vec::new();
    while got.is_empty() {
        mailbox.drain(&mut got);
        thread::yield_now();
    }
    senders.into_iter().for_each(|sender| sender.join().unwrap());
    mailbox.drain(&mut got);
    assert!(*mailbox.bell().counter.lock().unwrap() == 0, "a late ring stays");
}
