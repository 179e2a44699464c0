//! A thread for work that no loop should spend its time on. The tasks are done one after another.
//!
//! - C1: the server has two. One does vital work: it starts the threads of snapshots, asks the allocator, reads
//!   `/proc`. The other makes clients' reports, which so keep up nothing but each other.

use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

type Task = Box<dyn FnOnce() + Send>;

/// The background thread. It starts with the first task, and ends with the server.
pub struct Background {
    name: &'static str,
    tasks: OnceLock<Option<Sender<Task>>>,
}

impl Background {
    /// A background thread that will have this name.
    pub fn named(name: &'static str) -> Background {
        Background { name, tasks: OnceLock::new() }
    }

    /// Queues a task, which runs after those sent before. False: the thread could not be started.
    pub fn send(&self, task: impl FnOnce() + Send + 'static) -> bool {
        match self.tasks.get_or_init(|| start(self.name)) {
            Some(tasks) => tasks.send(Box::new(task)).is_ok(),
            None => false,
        }
    }
}

fn start(name: &str) -> Option<Sender<Task>> {
    let (send, tasks) = channel::<Task>();
    let work = move || {
        stdx::threads::yielding();
        // A panic ends one task, not the thread. The sender makes sure that an answer comes all the same,
        // and the next sample replaces figures that were written in part.
        tasks.iter().for_each(|task| _ = stdx::panics::contain(task));
    };
    std::thread::Builder::new().name(name.into()).spawn(work).ok().map(|_| send)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_done_in_order() {
        let background = Background::named("test");
        let (send, done) = channel();
        for n in 0..100 {
            let send = send.clone();
            assert!(background.send(move || send.send(n).unwrap()));
        }
        assert!((0..100).all(|n| done.recv() == Ok(n)));
    }
}
