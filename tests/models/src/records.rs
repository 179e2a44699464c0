// The word of a long commit: `record.rs` and `sequence.rs` as they are. Played: two keys with placed intents,
// and the commands that meet them. Keys are `fate` seen at a position, as in `Intents::at`.

use super::Keyspace;
use super::record::{Fate, Record};
use super::sequence::{Lsn, Sequence, Snapshot};
use super::tell::Something;
use loom::thread;
use std::sync::Arc;

struct World {
    keyspace: Arc<Keyspace>,
    record: Arc<Record>,
}

impl World {
    fn new() -> Arc<World> {
        let record = Record::new(1, Some(Arc::new(Something)));
        let world = Arc::new(World { keyspace: Arc::default(), record });
        world.sequence().set_listens(true);
        world
    }

    fn sequence(&self) -> &Sequence {
        &self.keyspace.sequence
    }

    /// The LSNs at which it was told.
    fn told(&self) -> Vec<Lsn> {
        self.sequence().tell.0.lock().clone()
    }

    /// Whether a key is seen in the record's state.
    fn sees(&self, p: Lsn) -> bool {
        matches!(self.record.fate(self.sequence()), Fate::Committed(n) if n <= p)
    }

    fn spawn<T: 'static>(self: &Arc<World>, f: impl FnOnce(&World) -> T + 'static) -> thread::JoinHandle<T> {
        let world = self.clone();
        thread::spawn(move || f(&world))
    }
}

pub(crate) fn both_keys_or_none() {
    let world = World::new();
    let committer = world.spawn(|w| w.record.decide(w.sequence()));
    // A command that holds its locks, and takes its position with them held.
    let reader = world.spawn(|w| {
        let p = w.sequence().last();
        assert_eq!(w.sees(p), w.sees(p), "a torn command");
    });
    let snapshot = Snapshot::open(&world.keyspace).unwrap();
    assert_eq!(world.sees(snapshot.lsn()), world.sees(snapshot.lsn()), "a torn snapshot");
    reader.join().unwrap();
    assert!(committer.join().unwrap().is_some());
    assert!(world.sees(world.sequence().last()));
}

pub(crate) fn one_position_for_all() {
    let world = World::new();
    let committer = world.spawn(|w| w.record.decide(w.sequence()));
    let helper = world.spawn(|w| w.record.fate(w.sequence()));
    let met = world.record.fate(world.sequence());
    let n = committer.join().unwrap().expect("it is not aborted");
    for fate in [met, helper.join().unwrap()] {
        assert!(matches!(fate, Fate::Open) || fate == Fate::Committed(n));
    }
    assert_eq!(world.told(), [n], "told once, of the one position");
}

pub(crate) fn decided_or_aborted() {
    let world = World::new();
    let committer = world.spawn(|w| w.record.decide(w.sequence()));
    let writer = world.spawn(|w| w.record.end(w.sequence()));
    let reader = world.record.fate(world.sequence());
    let after = world.record.fate(world.sequence());
    assert!(reader == Fate::Open || reader == after, "a decision is final");
    let (decided, ended) = (committer.join().unwrap(), writer.join().unwrap());
    match decided {
        Some(n) => assert_eq!(ended, Fate::Committed(n)),
        None => assert_eq!(ended, Fate::Aborted),
    }
    assert_eq!(world.record.fate(world.sequence()), ended);
    assert_eq!(world.told().len(), usize::from(decided.is_some()));
}
