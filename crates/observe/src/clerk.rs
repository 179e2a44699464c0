//! A thread for work that no loop should spend its time on. The errands are done one after another.
//!
//! - C1: the server has two. One does vital work: it starts the threads of snapshots, asks the allocator, reads
//!   `/proc`. The other makes clients' reports, which so keep up nothing but each other.

use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

type Errand = Box<dyn FnOnce() + Send>;

/// The clerk's thread. It starts with the first errand, and ends with the server.
pub struct Clerk {
    name: &'static str,
    errands: OnceLock<Option<Sender<Errand>>>,
}

impl Clerk {
    /// A clerk whose thread will have this name.
    pub fn named(name: &'static str) -> Clerk {
        Clerk { name, errands: OnceLock::new() }
    }

    /// Queues an errand, which runs after those sent before. False: the thread could not be started.
    pub fn send(&self, errand: impl FnOnce() + Send + 'static) -> bool {
        match self.errands.get_or_init(|| start(self.name)) {
            Some(errands) => errands.send(Box::new(errand)).is_ok(),
            None => false,
        }
    }
}

fn start(name: &str) -> Option<Sender<Errand>> {
    let (send, errands) = channel::<Errand>();
    let work = move || {
        stdx::threads::yielding();
        // A panic ends one errand, not the thread. The sender makes sure that an answer comes all the same,
        // and the next sample replaces figures that were written in part.
        errands.iter().for_each(|errand| _ = stdx::panics::contain(errand));
    };
    std::thread::Builder::new().name(name.into()).spawn(work).ok().map(|_| send)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errands_are_done_in_order() {
        let clerk = Clerk::named("test");
        let (send, done) = channel();
        for n in 0..100 {
            let send = send.clone();
            assert!(clerk.send(move || send.send(n).unwrap()));
        }
        assert!((0..100).all(|n| done.recv() == Ok(n)));
    }
}
