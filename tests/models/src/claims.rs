// A blocked client and its writers: `claim.rs` as it is. Played: a key of some elements behind its lock, the
// use of it by `Park::park`, `Park::serve` and `Park::leave`, and `hold`.

use super::claim::Claim;
use super::sync::Mutex;
use loom::thread;
use std::sync::Arc;

struct World {
    claim: Claim,
    elements: Mutex<u32>,
    /// How often the client was served, or left.
    ended: Mutex<u32>,
}

impl World {
    fn new() -> Arc<World> {
        Arc::new(World { claim: Claim::new(), elements: Mutex::new(0), ended: Mutex::new(0) })
    }

    fn attempt(&self) -> bool {
        let mut elements = self.elements.lock();
        let served = *elements > 0;
        *elements -= u32::from(served);
        served
    }

    fn hold(&self) {
        let mut served = self.attempt();
        while !served && !self.claim.give_back() {
            served = self.attempt();
        }
        *self.ended.lock() += u32::from(served);
    }

    /// The client is registered, and looks once more.
    fn park(&self) {
        if self.claim.take() {
            self.hold();
        }
    }

    fn push(&self) {
        *self.elements.lock() += 1;
        if self.claim.take_or_note() {
            self.hold();
        }
    }

    /// The client's time is up.
    fn leave(&self) {
        if self.claim.take() {
            *self.ended.lock() += 1;
        }
    }

    fn spawn(self: &Arc<World>, f: fn(&World)) -> thread::JoinHandle<()> {
        let world = self.clone();
        thread::spawn(move || f(&world))
    }
}

pub(crate) fn nothing_lies_there_for_who_waits() {
    let world = World::new();
    let writer = world.spawn(World::push);
    world.park();
    writer.join().unwrap();
    assert_eq!((*world.ended.lock(), *world.elements.lock()), (1, 0));
}

pub(crate) fn served_once() {
    let world = World::new();
    let others = [world.spawn(World::push), world.spawn(World::push), world.spawn(World::leave)];
    world.park();
    others.into_iter().for_each(|other| other.join().unwrap());
    let (ended, elements) = (*world.ended.lock(), *world.elements.lock());
    assert_eq!(ended, 1, "served or gone, once");
    assert!(elements == 1 || elements == 2);
}
