//! A thread for work that no loop should spend its time on: reports that read `/proc` and add up counters.
//!
//! The errands are done one after another. A loop parks the client that asked; the answer comes by mail.

use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

type Errand = Box<dyn FnOnce() + Send>;

/// The clerk's thread. It starts with the first errand, and ends with the server.
#[derive(Default)]
pub struct Clerk {
    errands: OnceLock<Option<Sender<Errand>>>,
}

impl Clerk {
    /// Queues an errand, which runs after those sent before. False: the thread could not be started.
    pub fn send(&self, errand: impl FnOnce() + Send + 'static) -> bool {
        match self.errands.get_or_init(start) {
            Some(errands) => errands.send(Box::new(errand)).is_ok(),
            None => false,
        }
    }
}

fn start() -> Option<Sender<Errand>> {
    let (send, errands) = channel::<Errand>();
    let work = move || {
        stdx::threads::yielding();
        // A panic ends one errand, not the thread. The sender makes sure that an answer comes all the same,
        // and the next sample replaces figures that were written in part.
        errands.iter().for_each(|errand| _ = stdx::panics::contain(errand));
    };
    std::thread::Builder::new().name("clerk".into()).spawn(work).ok().map(|_| send)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errands_are_done_in_order() {
        let clerk = Clerk::default();
        let (send, done) = channel();
        for n in 0..100 {
            let send = send.clone();
            assert!(clerk.send(move || send.send(n).unwrap()));
        }
        assert!((0..100).all(|n| done.recv() == Ok(n)));
    }
}
