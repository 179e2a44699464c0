// What is told, and up to where it is settled: `sequence.rs`, `record.rs`, `tell/slots.rs` and `persist`'s
// `rings.rs` as they are. Played: the steps of a view, and the looks of the order thread.

use super::Keyspace;
use super::record::{Fate, Record};
use super::rings::{self, LEN, Pool};
use super::sequence::{Lsn, Sequence, Snapshot};
use super::tell::{Something, Voice};
use loom::thread;
use std::sync::{Arc, Mutex};

struct World {
    keyspace: Arc<Keyspace>,
    record: Arc<Record>,
    told: Mutex<Vec<Lsn>>,
}

impl World {
    fn new() -> Arc<World> {
        let record = Record::new(1, Some(Arc::new(Something)));
        let world = World { keyspace: Arc::default(), record, told: Mutex::default() };
        world.sequence().set_listens(true);
        Arc::new(world)
    }

    fn sequence(&self) -> &Sequence {
        &self.keyspace.sequence
    }

    fn spawn(self: &Arc<World>, f: impl FnOnce(&World) + 'static) -> thread::JoinHandle<()> {
        let (world, voice) = (self.clone(), self.sequence().tell.voice());
        thread::spawn(move || {
            voice.sit_down();
            f(&world);
        })
    }

    /// Tells something at an LSN.
    fn tell(&self, lsn: Lsn) {
        self.told.lock().unwrap().push(lsn);
        self.sequence().tell.put(lsn);
    }

    /// Looks, and looks again at the end: what is settled by a look must be there, in order with what comes
    /// later.
    fn looks(&self, others: Vec<thread::JoinHandle<()>>) {
        let tell = &self.sequence().tell;
        let settled = || tell.slots.settled(|| self.sequence().last());
        let (p, there) = (settled(), tell.take());
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(settled(), self.sequence().last(), "all slots are left");
        let mut all: Vec<Lsn> = there.iter().copied().chain(tell.take()).collect();
        let mut told = self.told.lock().unwrap().clone();
        if let Fate::Committed(n) = self.record.fate(self.sequence()) {
            told.push(n);
        }
        let missing = told.iter().find(|lsn| **lsn <= p && !there.contains(lsn));
        assert!(missing.is_none(), "{missing:?} is missing though {p} is settled");
        (all.sort(), told.sort());
        assert_eq!(all, told, "each comes once");
    }
}

/// As a view does it, which has its locks.
fn write(world: &World) {
    let lsn = world.sequence().enter_and_draw();
    world.tell(lsn);
    world.sequence().tell.leave();
}

pub(crate) fn what_is_settled_was_told() {
    let world = World::new();
    let others = vec![world.spawn(write), world.spawn(|w| _ = w.sequence().draw_told(|lsn| w.tell(lsn)))];
    world.looks(others);
}

pub(crate) fn a_record_decided_within_a_write() {
    let world = World::new();
    let writer = world.spawn(|w| {
        let lsn = w.sequence().enter_and_draw();
        w.record.end(w.sequence());
        w.tell(lsn);
        w.sequence().tell.leave();
    });
    let committer = world.spawn(|w| _ = w.record.decide(w.sequence()));
    world.looks(vec![writer, committer]);
}

pub(crate) fn a_mark_beside_a_snapshot() {
    let world = World::new();
    let marker = world.spawn(|w| {
        drop(Snapshot::open(&w.keyspace));
        w.sequence().draw_told(|lsn| w.tell(lsn));
    });
    world.looks(vec![marker, world.spawn(write)]);
}

pub(crate) fn a_ring_keeps_all_in_order() {
    let pool = Arc::new(Pool::new(1));
    let (mut putter, mut taker) = rings::ring::<u64>(&pool);
    let from = pool.clone();
    let other = thread::spawn(move || {
        putter.put(&from, 1, 3, b"one");
        putter.put_large(&from, 2, 0, 2);
        putter.put(&from, 3, 9, b"the third");
        putter.put(&from, 4, 0, b"");
    });
    let mut taken = Vec::new();
    let mut take = |taker: &mut rings::Taker<u64>| {
        let mut large = 0;
        let from = taken.len();
        taker.take(&pool, &mut |lsn, info, body| {
            let mut bytes = Vec::new();
            rings::copy(body, (info & LEN) as usize, &mut bytes);
            taken.push((lsn, bytes));
        });
        for (lsn, bytes) in &mut taken[from..] {
            if *lsn == 2 {
                assert_eq!(taker.larges().next(), Some(2), "what is large comes first");
            }
        }
    };
    take(&mut taker);
    other.join().unwrap();
    take(&mut taker);
    let texts: Vec<(u64, &[u8])> = taken.iter().map(|(lsn, bytes)| (*lsn, &bytes[..])).collect();
    assert_eq!(texts, [(1, &b"one"[..]), (2, b""), (3, b"the third"), (4, b"")]);
    assert!(taker.is_closed());
}
