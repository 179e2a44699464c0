//! Snapshots: the work that may hold one, for how long, and the end of a holder that keeps its own for too
//! long.
//!
//! ```text
//! open ──none free, or others wait already──► queue (`snapshots/places.rs`) ──a snapshot is closed──► Letter::Snapshot
//! tend (first loop, ten times a second) ──others wait, time is over──► asked to give way
//!                                       ──too old, too large──► revoked: an error, or the client is cut
//! ```
//!
//! - P1: `snapshots/places.rs` decides which work gets a place, and which gives one up. Only loops take its
//!   lock.
//! - P2: work that waited is told for how long, and which work had the oldest snapshot then, also when the
//!   client of that one has gone.
//! - P3: replies that stream hold values, not a snapshot. Values that live for them alone are counted with
//!   those kept for snapshots. Clients are cut off when these are too many or too old.
//! - P4: a value lives for streamed replies alone if they are all of its owners.

mod places;

use crate::piece::{Letter, Post};
use keyspace::{Ended, Keyspace, Limits, Snapshot};
use observe::waits::{Ahead, Queued};
use parking_lot::{Mutex, MutexGuard};
pub use places::PLACES;
pub use places::{Asker, Class, Known, StopSign, shortened};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

/// See the module.
pub struct Snapshots {
    keyspace: Arc<Keyspace>,
    post: Post,
    places: Mutex<places::Table>,
    /// The loop of a work that waits, plus one; 0 if none does. A demoted thread reads it, and takes no lock
    /// that a loop may want.
    some_loop: AtomicUsize,
    /// The values that replies being streamed keep alive, per loop, as of its last look.
    streams: Mutex<Vec<Vec<Streamed>>>,
    streamed: AtomicU64,
    pub revoked_old: AtomicU64,
    pub revoked_large: AtomicU64,
    pub cut_old: AtomicU64,
    pub cut_large: AtomicU64,
}

/// How the places are used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub jobs: usize,
    pub scripts: usize,
    pub walks: usize,
    pub jobs_waiting: usize,
    pub scripts_waiting: usize,
    pub walks_waiting: usize,
    /// Number of times that work was asked to give way.
    pub gave_way: u64,
}

impl Snapshots {
    /// The snapshots of a keyspace. `post` tells a loop that its turn has come.
    pub fn new(keyspace: Arc<Keyspace>, post: Post) -> Snapshots {
        Snapshots {
            keyspace,
            post,
            places: Mutex::default(),
            some_loop: AtomicUsize::new(0),
            streams: Mutex::default(),
            streamed: AtomicU64::new(0),
            revoked_old: AtomicU64::new(0),
            revoked_large: AtomicU64::new(0),
            cut_old: AtomicU64::new(0),
            cut_large: AtomicU64::new(0),
        }
    }

    /// A snapshot for a client's long work, if it is its turn. Else the work queues up and is told by
    /// [`Letter::Snapshot`]. `queued` is its ticket if it waits already.
    pub fn open(&self, loop_id: usize, asker: Asker, queued: &mut Option<Queued>) -> Option<Snapshot> {
        let began_ns = stdx::clock::mono_ns();
        let mut places = self.swept();
        let turn = match queued {
            Some(queued) => places.next().is_some_and(|(ticket, _)| ticket == queued.ticket),
            None => places.admits(asker.class),
        };
        let snapshot = if turn { Snapshot::open(&self.keyspace) } else { None };
        match (&snapshot, &queued) {
            (Some(snapshot), _) => {
                if let Some(queued) = queued {
                    places.leave(queued.ticket, true);
                }
                places.hold(asker, snapshot.lsn(), began_ns);
            }
            (None, None) => {
                let ticket = places.enqueue(loop_id, &asker);
                let behind = places.oldest(began_ns);
                *queued = Some(Queued { since_ns: began_ns, ticket, behind });
                places.press(began_ns);
            }
            (None, Some(_)) => {}
        }
        self.note_waiting(&places);
        snapshot
    }

    /// A snapshot, if there is a place and no work waits.
    pub(crate) fn try_open(&self, asker: Asker) -> Option<Snapshot> {
        let began_ns = stdx::clock::mono_ns();
        let mut places = self.swept();
        let snapshot = if places.admits(asker.class) { Snapshot::open(&self.keyspace) } else { None }?;
        places.hold(asker, snapshot.lsn(), began_ns);
        Some(snapshot)
    }

    /// The places, without those whose snapshots are closed.
    fn swept(&self) -> MutexGuard<'_, places::Table> {
        let mut places = self.places.lock();
        places.sweep(&self.keyspace.snapshot_lsns());
        places
    }

    fn note_waiting(&self, places: &places::Table) {
        self.some_loop.store(places.some_loop().map_or(0, |id| id + 1), SeqCst);
    }

    /// The ticket of the next work to get a place, if it is of this loop. Another loop is told.
    pub(crate) fn next_of(&self, loop_id: usize) -> Option<u64> {
        if self.some_loop.load(SeqCst) == 0 {
            return None;
        }
        let (ticket, its_loop) = self.swept().next()?;
        if its_loop == loop_id {
            return Some(ticket);
        }
        (self.post)(its_loop, Letter::Snapshot);
        None
    }

    /// Takes a waiting work out.
    pub fn leave(&self, ticket: u64) {
        let mut places = self.places.lock();
        places.leave(ticket, false);
        self.note_waiting(&places);
    }

    /// The loop of a work that waits, if one does.
    fn some_loop(&self) -> Option<usize> {
        self.some_loop.load(SeqCst).checked_sub(1)
    }

    /// A client that holds a place, or held one lately.
    pub fn whose(&self, client: u64) -> Option<Known> {
        self.places.lock().whose(client)
    }

    /// Stops the long work of a client that was killed or has gone.
    pub fn stop(&self, client: u64) {
        self.places.lock().stop(client);
    }

    /// Number of works that wait for a place.
    pub fn waiting(&self) -> usize {
        self.places.lock().all_waiting()
    }

    /// The usage of the places. O(places).
    pub fn usage(&self) -> Usage {
        let places = self.swept();
        let [jobs, scripts, walks] = [Class::Job, Class::Script, Class::Walk].map(|class| places.held(class));
        let [jobs_waiting, scripts_waiting, walks_waiting] =
            [Class::Job, Class::Script, Class::Walk].map(|class| places.waiting(class));
        Usage { jobs, scripts, walks, jobs_waiting, scripts_waiting, walks_waiting, gave_way: places.asked }
    }

    /// Notes the values that a loop's streamed replies keep alive.
    pub fn note_streams(&self, loop_id: usize, found: Vec<Streamed>) {
        let mut streams = self.streams.lock();
        if streams.len() <= loop_id {
            streams.resize_with(loop_id + 1, Vec::new);
        }
        let old = std::mem::replace(&mut streams[loop_id], found);
        drop(streams);
        drop(old);
    }

    /// An upper bound of the bytes that live only for replies being streamed.
    pub fn streamed(&self) -> u64 {
        self.streamed.load(Relaxed)
    }

    /// The values that only streamed replies keep alive: all their owners are such replies (P4).
    fn only_streamed(&self, now_ms: u64) -> Vec<Streamed> {
        let streams = self.streams.lock();
        let old = streams
            .iter()
            .flatten()
            .filter(|one| one.held.bytes >= LARGE && now_ms.saturating_sub(one.since_ms) >= SETTLED_MS);
        let mut all: Vec<Streamed> = old.copied().collect();
        drop(streams);
        let mut readers: HashMap<usize, usize> = HashMap::new();
        all.iter().for_each(|one| *readers.entry(one.held.root).or_default() += 1);
        all.retain(|one| readers[&one.held.root] >= one.held.owners);
        all
    }
}

/// A value that a streamed reply keeps alive.
#[derive(Clone, Copy, Debug)]
pub struct Streamed {
    pub client: u64,
    pub loop_id: usize,
    /// The begin of the reply, by the wall clock.
    pub since_ms: u64,
    pub held: command::Held,
}

/// Least size of a value that is looked at.
const LARGE: usize = 64 * 1024;
/// Age from which on a streamed reply is looked at. Loops look ten times a second, each at its own time.
const SETTLED_MS: u64 = 1000;

impl Snapshots {
    /// Frees what is not read any more, and revokes the snapshots of clients that keep too much, or for too
    /// long. Called by one loop, now and then. Cost: O(shards), and O(n) for n replies that are being
    /// streamed.
    pub fn tend(&self, limits: Limits, mono_ms: u64, now_ms: u64) -> Vec<u64> {
        let kept = self.tend_streams(limits, now_ms);
        let revoked = self.keyspace.limit_snapshots(mono_ms, limits, kept);
        let (mut places, mut ended) = (self.places.lock(), Vec::new());
        for one in &revoked {
            let counter = if one.why == Ended::TooOld { &self.revoked_old } else { &self.revoked_large };
            counter.fetch_add(1, Relaxed);
            let holder = places.holder_of(one.lsn);
            let (client, command) = holder.unwrap_or((0, "a short command"));
            log::warn!(
                "client {client} loses the snapshot of its {command}: {} exceeded ({} ms, {} bytes kept for snapshots)",
                name(one.why),
                one.age_ms,
                one.bytes
            );
            ended.extend(holder.map(|(client, _)| client));
        }
        places.sweep(&self.keyspace.snapshot_lsns());
        places.stop_useless();
        places.press(stdx::clock::mono_ns());
        drop(places);
        // A place of which no loop was told.
        self.closed();
        ended
    }

    /// Cuts off clients that read too slowly a value that lives only for them (P3). Returns the bytes of such
    /// values.
    fn tend_streams(&self, limits: Limits, now_ms: u64) -> u64 {
        let only = self.only_streamed(now_ms);
        let mut roots: HashMap<usize, u64> = HashMap::new();
        roots.extend(only.iter().map(|one| (one.held.root, one.held.bytes as u64)));
        let bytes: u64 = roots.values().sum();
        self.streamed.store(bytes, Relaxed);
        let age_ms = |one: &&Streamed| now_ms.saturating_sub(one.since_ms);
        if limits.age_ms > 0 {
            let old = only.iter().filter(|one| age_ms(one) > limits.age_ms);
            old.for_each(|one| self.cut(one, Ended::TooOld, now_ms));
        }
        let retained = self.keyspace.retained().0;
        if limits.bytes > 0
            && bytes + retained > limits.bytes
            && bytes > retained
            && let Some(one) = only.iter().max_by_key(|one| one.held.bytes)
        {
            self.cut(one, Ended::TooLarge, now_ms);
        }
        bytes
    }

    /// Cuts off one client (P3).
    fn cut(&self, one: &Streamed, why: Ended, now_ms: u64) {
        let counter = if why == Ended::TooOld { &self.cut_old } else { &self.cut_large };
        counter.fetch_add(1, Relaxed);
        log::warn!(
            "client {} closed: {} exceeded by a reply that keeps {} removed bytes alive, for {} ms now",
            one.client,
            name(why),
            one.held.bytes,
            now_ms.saturating_sub(one.since_ms)
        );
        (self.post)(one.loop_id, Letter::Kill(one.client));
    }

    /// Makes the loop of a work that waits for a place look for the next one. May be called by any thread.
    pub fn closed(&self) {
        if let Some(loop_id) = self.some_loop() {
            (self.post)(loop_id, Letter::Snapshot);
        }
    }
}

/// The directive that was exceeded.
pub fn name(why: Ended) -> &'static str {
    match why {
        Ended::TooOld => "snapshot-max-age",
        Ended::TooLarge => "snapshot-max-retained",
        Ended::Flushed => "flushed",
    }
}

/// The error for a client whose snapshot was revoked; None if it was not.
pub fn refusal(snapshot: &Snapshot) -> Option<String> {
    match snapshot.ended()? {
        Ended::Flushed => None,
        why => Some(format!(
            "ERR {} exceeded: the command lost its snapshot before it ended, and nothing of it was done",
            name(why)
        )),
    }
}
