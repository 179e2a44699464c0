// Snapshots beside writers and pruning: `sequence.rs` and `preimages.rs` as they are. Played: two shards of
// one key each, the steps of `View::touch` under their locks, and `read_at`.

use super::Keyspace;
use super::preimages::PreImages;
use super::sequence::{Lsn, Snapshot};
use super::sync::Mutex;
use loom::thread;
use std::sync::Arc;

#[derive(Default)]
struct Shard {
    pre: PreImages,
    value: u64,
}

struct World {
    keyspace: Arc<Keyspace>,
    shards: [Mutex<Shard>; 2],
    written: Mutex<Vec<Lsn>>,
}

const KEY: &[u8] = b"key";

impl World {
    fn new() -> Arc<World> {
        let shards = [Mutex::new(Shard::default()), Mutex::new(Shard::default())];
        Arc::new(World { keyspace: Arc::default(), shards, written: Mutex::new(Vec::new()) })
    }

    /// Sets both keys to the LSN of the write (S1: it is drawn with both locks held).
    fn write(&self) {
        let mut guards = [self.shards[0].lock(), self.shards[1].lock()];
        let sequence = &self.keyspace.sequence;
        let lsn = sequence.draw();
        let keep = sequence.keeps().snapshots();
        for shard in &mut guards {
            let Shard { pre, value: now } = &mut **shard;
            if keep {
                let newest = sequence.newest();
                pre.keep(0, KEY, lsn, newest, || Some(*now), |_, _| (1, 1));
            } else if !pre.is_empty() {
                pre.clear();
            }
            *now = lsn;
        }
        self.written.lock().push(lsn);
    }

    fn read(&self, shard: usize, s: Lsn) -> u64 {
        let guard = self.shards[shard].lock();
        match guard.pre.at(0, KEY, s) {
            Some(before) => before.copied().unwrap(),
            None => guard.value,
        }
    }

    /// Opens a snapshot and reads both keys, each for itself: they must be of one moment.
    fn look(&self) -> (Lsn, u64) {
        let snapshot = Snapshot::open(&self.keyspace).unwrap();
        let seen = [self.read(0, snapshot.lsn()), self.read(1, snapshot.lsn())];
        assert_eq!(seen[0], seen[1], "a torn snapshot");
        (snapshot.lsn(), seen[0])
    }

    /// Checks, once all is written, that a snapshot saw everything written before it, and nothing later.
    fn judge(&self, (s, seen): (Lsn, u64)) {
        let written = self.written.lock();
        assert_eq!(seen, written.iter().copied().filter(|n| *n < s).max().unwrap_or(0));
    }
}

pub(crate) fn a_snapshot_is_one_moment() {
    let world = World::new();
    let writer = world.clone();
    let writer = thread::spawn(move || (0..2).for_each(|_| writer.write()));
    let looks = [world.look(), world.look()];
    writer.join().unwrap();
    looks.into_iter().for_each(|look| world.judge(look));
    world.judge(world.look());
}

pub(crate) fn two_snapshots_see_their_own_moments() {
    let world = World::new();
    let old = Snapshot::open(&world.keyspace).unwrap();
    let writer = world.clone();
    let writer = thread::spawn(move || (0..2).for_each(|_| writer.write()));
    let look = world.look();
    assert_eq!([world.read(0, old.lsn()), world.read(1, old.lsn())], [0, 0]);
    writer.join().unwrap();
    world.judge(look);
}

pub(crate) fn what_is_pruned_nobody_needs() {
    let world = World::new();
    let (writer, pruner) = (world.clone(), world.clone());
    let writer = thread::spawn(move || writer.write());
    let pruner = thread::spawn(move || {
        let mut shard = pruner.shards[0].lock();
        shard.pre.prune(pruner.keyspace.sequence.oldest());
    });
    let look = world.look();
    writer.join().unwrap();
    pruner.join().unwrap();
    world.judge(look);
    let mut shard = world.shards[1].lock();
    shard.pre.prune(world.keyspace.sequence.oldest());
    assert!(shard.pre.is_empty(), "unneeded preimages go");
}
