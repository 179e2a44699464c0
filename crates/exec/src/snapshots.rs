//! Who may hold a snapshot, for how long, and what becomes of those who held theirs for too long.
//!
//! ```text
//! open ──none free, or others wait already──► queue (`snapshots/places.rs`) ──a snapshot is closed──► Mail::Snapshot
//! tend (first loop, ten times a second) ──others wait, time is over──► asked to give way
//!                                       ──too old, too large──► revoked: an error, or the client is cut
//! ```
//!
//! - P1: who gets a place, and who gives one up, `snapshots/places.rs` says. Only loops take its lock.
//! - P2: whoever waited is told for how long, and who had the oldest snapshot then, also when that one's client has gone.
//! - P3: replies that stream hold no snapshot but values; what of those lives for them alone is counted with what is kept
//!   for snapshots, and their clients are cut off when it is too much or for too long.
//! - P4: a value lives for streamed replies alone if as many of them hold it as it has owners.

mod places;

use crate::Server;
use crate::mail::Mail;
use crate::waits::{Ahead, Queued};
use keyspace::{Ended, Limits, Snapshot};
use parking_lot::Mutex;
pub use places::PLACES;
pub(crate) use places::{Asker, Class, Known, StopSign, shortened};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

/// See the module.
#[derive(Default)]
pub struct Snapshots {
    places: Mutex<places::Table>,
    /// The loop of somebody who waits, plus one; 0: nobody does. A demoted thread asks, and takes no lock a loop may want.
    some_loop: AtomicUsize,
    /// Per loop: what replies that are being streamed keep alive, as of its last look.
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
    /// How often work was asked to give way.
    pub gave_way: u64,
}

impl Snapshots {
    /// A snapshot for a client's long work, if it is its turn; else it queues up and is told by [`Mail::Snapshot`].
    /// `queued`: it waits already.
    pub(crate) fn open(
        &self,
        server: &Server,
        loop_id: usize,
        asker: Asker,
        queued: &mut Option<Queued>,
    ) -> Option<Snapshot> {
        let began_ns = stdx::clock::mono_ns();
        let info = server.clients.get(asker.client);
        let mut places = self.places.lock();
        places.sweep(&server.keyspace.snapshot_lsns());
        let turn = match queued {
            Some(queued) => places.next().is_some_and(|(ticket, _)| ticket == queued.ticket),
            None => places.admits(asker.class),
        };
        let snapshot = if turn { Snapshot::open(&server.keyspace) } else { None };
        match (&snapshot, &queued) {
            (Some(snapshot), _) => {
                if let Some(queued) = queued {
                    places.leave(queued.ticket, true);
                }
                places.hold(asker, info, snapshot.lsn(), began_ns);
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

    /// A snapshot if there is a place and nobody waits.
    pub(crate) fn try_open(&self, server: &Server, asker: Asker) -> Option<Snapshot> {
        let began_ns = stdx::clock::mono_ns();
        let info = server.clients.get(asker.client);
        let mut places = self.places.lock();
        places.sweep(&server.keyspace.snapshot_lsns());
        let snapshot = if places.admits(asker.class) { Snapshot::open(&server.keyspace) } else { None }?;
        places.hold(asker, info, snapshot.lsn(), began_ns);
        Some(snapshot)
    }

    fn note_waiting(&self, places: &places::Table) {
        self.some_loop.store(places.some_loop().map_or(0, |id| id + 1), SeqCst);
    }

    /// The ticket of who gets the next place, if that is of this loop; else another loop is told.
    pub(crate) fn next_of(&self, server: &Server, loop_id: usize) -> Option<u64> {
        if self.some_loop.load(SeqCst) == 0 {
            return None;
        }
        let mut places = self.places.lock();
        places.sweep(&server.keyspace.snapshot_lsns());
        let (ticket, its_loop) = places.next()?;
        drop(places);
        if its_loop == loop_id {
            return Some(ticket);
        }
        server.send(its_loop, Mail::Snapshot);
        None
    }

    /// One that waited is over.
    pub(crate) fn leave(&self, ticket: u64) {
        let mut places = self.places.lock();
        places.leave(ticket, false);
        self.note_waiting(&places);
    }

    /// The loop of somebody who waits, if anybody does.
    fn some_loop(&self) -> Option<usize> {
        self.some_loop.load(SeqCst).checked_sub(1)
    }

    /// A client that holds a place, or held one lately.
    pub(crate) fn whose(&self, client: u64) -> Option<Known> {
        self.places.lock().whose(client)
    }

    /// Stops the long work of a client: it was killed, or has gone.
    pub(crate) fn stop(&self, client: u64) {
        self.places.lock().stop(client);
    }

    /// How many wait for a place.
    pub fn waiting(&self) -> usize {
        self.places.lock().all_waiting()
    }

    /// How the places are used. O(places).
    pub fn usage(&self, server: &Server) -> Usage {
        let mut places = self.places.lock();
        places.sweep(&server.keyspace.snapshot_lsns());
        let [jobs, scripts, walks] = [Class::Job, Class::Script, Class::Walk].map(|class| places.held(class));
        let [jobs_waiting, scripts_waiting, walks_waiting] =
            [Class::Job, Class::Script, Class::Walk].map(|class| places.waiting(class));
        Usage { jobs, scripts, walks, jobs_waiting, scripts_waiting, walks_waiting, gave_way: places.asked }
    }

    /// Takes what a loop's streamed replies keep alive.
    pub fn note_streams(&self, loop_id: usize, found: Vec<Streamed>) {
        let mut streams = self.streams.lock();
        if streams.len() <= loop_id {
            streams.resize_with(loop_id + 1, Vec::new);
        }
        let old = std::mem::replace(&mut streams[loop_id], found);
        drop(streams);
        drop(old);
    }

    /// Bytes that live only for replies that are being streamed, at most.
    pub fn streamed(&self) -> u64 {
        self.streamed.load(Relaxed)
    }

    /// What lives only for streamed replies: whose owners all are such (P4).
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

/// What a streamed reply keeps alive.
#[derive(Clone, Copy, Debug)]
pub struct Streamed {
    pub client: u64,
    pub loop_id: usize,
    /// By the wall clock.
    pub since_ms: u64,
    pub held: command::Held,
}

/// What is smaller is not worth a look.
const LARGE: usize = 64 * 1024;
/// A reply that is streamed for less long is not looked at: loops look ten times a second, each at its own time.
const SETTLED_MS: u64 = 1000;

/// A limit in bytes; 0 stands for a share of `maxmemory`, or of the machine's memory.
fn share(server: &Server, bytes: usize, parts: u64) -> u64 {
    match (bytes as u64, server.config.live.maxmemory_bytes.size() as u64) {
        (0, 0) => server.memory_bytes / parts,
        (0, max) => max / parts,
        (bytes, _) => bytes,
    }
}

/// The limits of the configuration.
fn limits(server: &Server) -> Limits {
    let live = &server.config.live;
    let bytes = share(server, live.snapshot_retained_bytes.size(), 4);
    Limits { age_ms: live.snapshot_age_s.size() as u64 * 1000, bytes }
}

/// Frees what nobody reads any more, and ends those who keep too much of it, or for too long. Called by one loop, now and
/// then. Cost: O(shards), and O(n) for n replies that are being streamed.
pub fn tend(server: &Server, mono_ms: u64, now_ms: u64) {
    let limits = limits(server);
    stdx::reclaim::set_limit(share(server, server.config.live.reclaim_pending_bytes.size(), 8));
    let kept = tend_streams(server, limits, now_ms);
    let snapshots = &server.snapshots;
    let revoked = server.keyspace.limit_snapshots(mono_ms, limits, kept);
    let mut places = snapshots.places.lock();
    for one in &revoked {
        let counter =
            if one.why == Ended::TooOld { &snapshots.revoked_old } else { &snapshots.revoked_large };
        counter.fetch_add(1, Relaxed);
        let holder = places.holder_of(one.lsn);
        let (client, command) = holder.unwrap_or((0, "a short command"));
        log::warn!(
            "client {client} loses the snapshot of its {command}: {} exceeded ({} ms, {} bytes kept for snapshots)",
            name(one.why),
            one.age_ms,
            one.bytes
        );
        if let Some((client, _)) = holder {
            server.scripts.stop(client);
        }
    }
    places.sweep(&server.keyspace.snapshot_lsns());
    places.stop_useless();
    places.press(stdx::clock::mono_ns());
    drop(places);
    // A place that nobody was told of.
    closed(server);
}

/// Cuts off who reads something too slowly that lives only for that (P3). Gives the bytes that do.
fn tend_streams(server: &Server, limits: Limits, now_ms: u64) -> u64 {
    let snapshots = &server.snapshots;
    let only = snapshots.only_streamed(now_ms);
    let mut roots: HashMap<usize, u64> = HashMap::new();
    roots.extend(only.iter().map(|one| (one.held.root, one.held.bytes as u64)));
    let bytes: u64 = roots.values().sum();
    snapshots.streamed.store(bytes, Relaxed);
    let cut = |one: &Streamed, why, counter: &AtomicU64| {
        counter.fetch_add(1, Relaxed);
        let ms = now_ms.saturating_sub(one.since_ms);
        log::warn!(
            "client {} closed: {} exceeded by a reply that keeps {} removed bytes alive, for {ms} ms now",
            one.client,
            name(why),
            one.held.bytes
        );
        server.send(one.loop_id, Mail::Kill { client: one.client });
    };
    let age_ms = |one: &&Streamed| now_ms.saturating_sub(one.since_ms);
    if limits.age_ms > 0 {
        let old = only.iter().filter(|one| age_ms(one) > limits.age_ms);
        old.for_each(|one| cut(one, Ended::TooOld, &snapshots.cut_old));
    }
    if limits.bytes > 0
        && bytes + server.keyspace.retained().0 > limits.bytes
        && bytes > server.keyspace.retained().0
        && let Some(one) = only.iter().max_by_key(|one| one.held.bytes)
    {
        cut(one, Ended::TooLarge, &snapshots.cut_large);
    }
    bytes
}

/// The directive that was exceeded.
pub fn name(why: Ended) -> &'static str {
    match why {
        Ended::TooOld => "snapshot-max-age",
        Ended::TooLarge => "snapshot-max-retained",
        Ended::Flushed => "flushed",
    }
}

/// What a client is told whose snapshot was revoked; None if it was not.
pub(crate) fn refusal(snapshot: &Snapshot) -> Option<String> {
    match snapshot.ended()? {
        Ended::Flushed => None,
        why => Some(format!(
            "ERR {} exceeded: the command had not ended when what it read from was given up, and nothing of it was done",
            name(why)
        )),
    }
}

/// Has the loop of somebody who waits for a place look for the next. May be called by any thread.
pub(crate) fn closed(server: &Server) {
    if let Some(loop_id) = server.snapshots.some_loop() {
        server.send(loop_id, Mail::Snapshot);
    }
}
