//! This node as part of a cluster: what it knows of the map, and how it has the map changed.
//!
//! ```text
//! thread `map`:      coordinator ─read, watch─► what was seen ─► topology ─► calls (`exec`)
//! thread `cluster`:  what was seen ─► lease, offers, role of this server ([`crate::standing`])
//! commands:          change ─► read, apply, compare and swap ─► topology at once
//! ```
//!
//! - ME1: a change counts when the coordinator has said so; an answer that did not come is asked for until it
//!   is known.
//! - ME2: a map never takes the place of a newer one.

use crate::change::Change;
use crate::coordinator::{Cas, Coordinator, Ended, Entry, Revision, Stop, boot_ns, cas_known};
use crate::lease::Fence;
use crate::map::{Map, Node};
use crate::show::Reader;
use crate::slots::SLOTS;
use crate::topology::{Owner, Topology};
use arc_swap::ArcSwap;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a change is tried for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time between two tries to reach the coordinator.
const AGAIN: Duration = Duration::from_millis(250);

/// Redis's words where nobody may answer.
const DOWN: &str = "CLUSTERDOWN The cluster is down";

/// The answerer of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    Here,
    /// It is looked at again in a moment.
    Wait,
    /// Somebody else, or nobody: the error, without its dash.
    Refused(String),
}

/// A replica, as the server that it follows knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Follower {
    pub host: String,
    pub port: u16,
    /// The offset that it has acknowledged.
    pub offset: u64,
    pub is_online: bool,
    pub lag_ms: u64,
}

/// The server around this node.
pub trait Host: Send + Sync {
    /// Follows a primary. It is said again and again; the same address changes nothing. O(1)
    fn follow(&self, host: &str, port: u16);
    /// Leads, as soon as that is possible. O(1)
    fn lead(&self);
    /// Whether it leads, and takes writes.
    fn leads(&self) -> bool;
    /// The place in the stream: the own one, or that of the primary as far as it was applied.
    fn offset(&self) -> u64;
    /// Whether its data are those of one moment: it has loaded them, and no copy is under way.
    fn is_whole(&self) -> bool;
    fn followers(&self) -> Vec<Follower>;
    /// Acknowledgements of replicas that writes ask for.
    fn acks(&self) -> u64;
    /// Holds writes, and waits for what is under way; then the offset at which the stream rests. None: that
    /// took too long, and writes go on.
    fn freeze(&self, limit: Duration) -> Option<u64>;
    /// Writes go on, or are refused by what the map says now.
    fn thaw(&self);
    /// This node left its cluster, and knows itself alone. `hard`: it gets another id. Its data go if it
    /// followed.
    fn left(&self, hard: bool);
    /// The map, or what this node may answer, is another: calls that wait are looked at again. O(loops)
    fn changed(&self);
}

/// The state of the coordinator, as far as it was seen.
#[derive(Default)]
pub(crate) struct Seen {
    pub entries: BTreeMap<String, Entry>,
    /// Whether it was read at all.
    pub is_known: bool,
    /// Something is to be looked at.
    pub is_new: bool,
}

/// See the module.
pub struct Member {
    pub(crate) coordinator: Arc<dyn Coordinator>,
    pub(crate) host: Box<dyn Host>,
    pub(crate) ttl: Duration,
    /// The name of this process, so that the next one with the same id is not taken for it.
    pub(crate) run: String,
    /// This node's facts, and the shard that it makes if it joins alone.
    pub(crate) me: Mutex<Node>,
    topology: ArcSwap<Topology>,
    pub(crate) fence: Fence,
    /// The map names this node as primary at the epoch of its lease, and its server leads (M1).
    pub(crate) serves: AtomicBool,
    /// The last lease was let go of in favour of another node, which had everything.
    pub(crate) is_orderly: AtomicBool,
    /// Another node is to lead: calls wait for a moment.
    pub(crate) hands_over: AtomicBool,
    /// Replicas that are about to be left out of those in sync: they count no more before that is decided.
    pub(crate) uncounted: Mutex<Vec<String>>,
    /// The thread `cluster` has ended.
    pub(crate) has_left: AtomicBool,
    changes: AtomicU64,
    changing: Mutex<()>,
    pub(crate) seen: Mutex<Seen>,
    pub(crate) news: Condvar,
    pub(crate) stop: Stop,
    /// Why nobody leads this shard, as far as this node knows.
    pub(crate) trouble: Mutex<String>,
    /// Whether reads are answered while this node may not answer (`cluster-allow-reads-when-down`).
    pub reads_when_down: AtomicBool,
    /// Whether every slot must have an owner (`cluster-require-full-coverage`).
    pub needs_all_slots: AtomicBool,
}

impl Member {
    /// A node with these facts. Nothing runs yet.
    pub fn new(
        coordinator: Arc<dyn Coordinator>,
        host: Box<dyn Host>,
        me: Node,
        run: String,
        ttl: Duration,
    ) -> Arc<Member> {
        Arc::new(Member {
            coordinator,
            host,
            ttl,
            run,
            topology: ArcSwap::from_pointee(Topology::alone(me.clone())),
            me: Mutex::new(me),
            fence: Fence::default(),
            serves: AtomicBool::new(false),
            is_orderly: AtomicBool::new(false),
            hands_over: AtomicBool::new(false),
            uncounted: Mutex::default(),
            has_left: AtomicBool::new(false),
            changes: AtomicU64::new(0),
            changing: Mutex::new(()),
            seen: Mutex::default(),
            news: Condvar::new(),
            stop: Stop::new(),
            trouble: Mutex::default(),
            reads_when_down: AtomicBool::new(false),
            needs_all_slots: AtomicBool::new(true),
        })
    }

    /// Makes this node known: its own lease, and where it is. It takes as long as the lease of an earlier
    /// process lasts. Errors: another process is this node; the coordinator cannot be reached.
    pub fn appear(&self) -> Result<(), String> {
        let me = self.me.lock().clone();
        crate::presence::begin(&self.coordinator, &me.id, self.ttl, &self.stop)?;
        let (key, until) = (format!("node/{}", me.id), Instant::now() + PATIENCE);
        let mut why = String::new();
        while Instant::now() < until {
            match self.coordinator.read(&key) {
                Ok((_, entries)) => {
                    let known = entries.iter().find(|entry| entry.key == key);
                    let revision = known.map_or(0, |entry| entry.revision);
                    let facts = me.registration(&self.run);
                    match cas_known(&*self.coordinator, &key, revision, Some(&facts), until) {
                        Cas::Done(_) => return Ok(()),
                        Cas::Conflict(_) => {}
                        Cas::Unknown(trouble) => why = trouble.to_string(),
                    }
                }
                Err(trouble) => {
                    why = trouble.to_string();
                    self.stop.wait(AGAIN);
                }
            }
        }
        Err(format!("the coordinator {} cannot be reached: {why}", self.describe()))
    }

    /// The map as this node sees it.
    #[inline]
    pub fn topology(&self) -> arc_swap::Guard<Arc<Topology>> {
        self.topology.load()
    }

    /// Whether this node may answer now as the primary of its shard. Cost: two loads and a look at the clock.
    #[inline]
    pub fn may_answer(&self) -> bool {
        self.serves.load(Ordering::Acquire) && !self.fence.has_passed(boot_ns())
    }

    /// Whether this node answers for its shard, as long as its lease is renewed.
    #[inline]
    pub fn serves(&self) -> bool {
        self.serves.load(Ordering::Acquire)
    }

    /// Whether what was answered as a primary may not leave any more: the lease was not renewed in time, or
    /// lost. Who let go of it in favour of another one has nothing to withhold.
    #[inline]
    pub fn withholds(&self) -> bool {
        !self.is_orderly.load(Ordering::Acquire) && self.fence.has_passed(boot_ns())
    }

    /// Finds who answers a call whose keys are all in one slot. `changes`: it may change something.
    /// `reads_here`: the client takes what a replica has. O(1), and O(nodes) for another shard's slot
    pub fn route(&self, slot: u16, changes: bool, reads_here: bool, reader: Reader) -> Route {
        let topology = self.topology();
        match topology.owner(slot) {
            Owner::Nobody => Route::Refused("CLUSTERDOWN Hash slot not served".to_owned()),
            Owner::Other(node) => Route::Refused(reader.moved(slot, node)),
            Owner::Mine if topology.is_primary() => self.own_route(&topology, changes),
            Owner::Mine if reads_here && !changes => Route::Here,
            Owner::Mine => match topology.my_primary() {
                Some(primary) => Route::Refused(reader.moved(slot, primary)),
                None => Route::Refused(DOWN.to_owned()),
            },
        }
    }

    /// Whether a replica at an address counts for WAIT: it may lead, by a map that is decided. O(nodes)
    pub fn counts(&self, host: &str, port: u16) -> bool {
        let topology = self.topology();
        let shard = topology.my_shard();
        let node = topology.map.nodes_of(shard).find(|node| node.answers_at(host, port));
        node.is_some_and(|node| shard.is_eligible(&node.id) && !self.uncounted.lock().contains(&node.id))
    }

    /// Whether a slot is this node's shard's.
    pub fn owns(&self, slot: u16) -> bool {
        self.topology().owner(slot) == Owner::Mine
    }

    #[inline]
    fn own_route(&self, topology: &Topology, changes: bool) -> Route {
        if self.hands_over.load(Ordering::Acquire) && (changes || !self.may_answer()) {
            return Route::Wait;
        }
        let reads_when_down = self.reads_when_down.load(Ordering::Relaxed) && !changes;
        let covered = topology.covered() == SLOTS || !self.needs_all_slots.load(Ordering::Relaxed);
        match self.may_answer() && covered || reads_when_down {
            true => Route::Here,
            false => Route::Refused(DOWN.to_owned()),
        }
    }

    /// Milliseconds until it may no more, unless its lease is renewed.
    pub fn fence_ms(&self) -> u64 {
        if self.serves.load(Ordering::Acquire) {
            self.fence.at_ns().saturating_sub(boot_ns()) / 1_000_000
        } else {
            0
        }
    }

    pub fn describe(&self) -> String {
        self.coordinator.describe()
    }

    /// Why nobody leads this shard, as far as this node knows; empty: somebody does.
    pub fn trouble(&self) -> String {
        self.trouble.lock().clone()
    }

    /// Whether all is well from this node's place: its shard has a primary, and the slots have owners.
    pub fn is_ok(&self) -> bool {
        let topology = self.topology();
        let covered = !self.needs_all_slots.load(Ordering::Relaxed) || topology.covered() == SLOTS;
        let leads = match topology.is_primary() {
            true => topology.is_member() && self.may_answer(),
            false => self.trouble.lock().is_empty(),
        };
        covered && leads && topology.covered() > 0
    }

    /// Has the map changed. It may take as long as the coordinator, some seconds at most. Errors: the words of
    /// Redis, or a sentence about the coordinator.
    pub fn change(&self, change: &Change) -> Result<(), String> {
        let _one = self.changing.lock();
        let until = Instant::now() + PATIENCE;
        loop {
            let (mut map, expected) = self.read_map()?;
            let me = self.me.lock().clone();
            if !change.apply(&mut map, &me)? {
                self.take(Some((map, expected)));
                return Ok(());
            }
            let number = self.changes.fetch_add(1, Ordering::Relaxed);
            map.set_rest("change", format!("{}:{}:{number}", me.id, self.run).into());
            match cas_known(&*self.coordinator, "map", expected, Some(&map.to_json()), until) {
                Cas::Done(revision) => {
                    self.take(Some((map, revision)));
                    return Ok(());
                }
                Cas::Conflict(_) if Instant::now() < until => {}
                Cas::Conflict(_) => {
                    return Err("ERR the map is being changed by others all the time: try again".into());
                }
                Cas::Unknown(trouble) => {
                    return Err(format!(
                        "ERR the coordinator did not answer, so the change may be made or not: {trouble}"
                    ));
                }
            }
        }
    }

    fn read_map(&self) -> Result<(Map, Revision), String> {
        let read = self.coordinator.read("map");
        let (_, entries) =
            read.map_err(|trouble| format!("ERR the coordinator cannot be reached: {trouble}"))?;
        match entries.into_iter().find(|entry| entry.key == "map") {
            Some(entry) => Ok((Map::parse(&entry.value).map_err(|e| format!("ERR {e}"))?, entry.revision)),
            None => Ok((Map::default(), 0)),
        }
    }

    /// Takes a map for the present one, unless a newer one is known (ME2). None: there is none.
    fn take(&self, map: Option<(Map, Revision)>) {
        let mut me = self.me.lock();
        let (map, revision) = map.unwrap_or_default();
        if revision > 0 && revision <= self.topology().revision {
            return;
        }
        let new =
            Topology::of_member(map, revision.max(1), &me.id).unwrap_or_else(|| Topology::alone(me.clone()));
        if new.is_member() {
            me.shard.clone_from(&new.my_shard().id);
        }
        drop(me);
        self.topology.store(Arc::new(new));
        self.wake();
        self.host.changed();
    }

    /// This node gets another id, and a shard of its own: it has left.
    pub fn begin_anew(&self, id: Option<String>, shard: String) {
        let mut me = self.me.lock();
        me.shard = shard;
        id.into_iter().for_each(|id| me.id = id);
        self.topology.store(Arc::new(Topology::alone(me.clone())));
    }

    /// Has the thread `cluster` look.
    pub(crate) fn wake(&self) {
        self.seen.lock().is_new = true;
        self.news.notify_all();
    }

    /// Reads what the coordinator has and follows its changes until the end. For the thread `map`.
    pub(crate) fn follow_map(&self) {
        let mut was_out = false;
        while !self.stop.is_stopped() {
            let (revision, entries) = match self.coordinator.read("") {
                Ok(read) => read,
                Err(trouble) => {
                    if !std::mem::replace(&mut was_out, true) {
                        log::warn!("the coordinator {} cannot be reached: {trouble}", self.describe());
                    }
                    self.stop.wait(AGAIN);
                    continue;
                }
            };
            if std::mem::take(&mut was_out) {
                log::info!("the coordinator {} can be reached again", self.describe());
            }
            {
                let mut seen = self.seen.lock();
                seen.entries = entries.into_iter().map(|entry| (entry.key.clone(), entry)).collect();
                seen.is_known = true;
            }
            self.see_map();
            let ended = self.coordinator.watch("", revision, &self.stop, &mut |change| {
                let is_map = change.key == "map";
                let mut seen = self.seen.lock();
                match change.entry {
                    Some(entry) => drop(seen.entries.insert(change.key, entry)),
                    None => drop(seen.entries.remove(&change.key)),
                }
                drop(seen);
                if is_map { self.see_map() } else { self.wake() }
            });
            if let Ended::Broken(trouble) = ended {
                log::debug!("the coordinator's changes are read anew: {trouble}");
                self.stop.wait(AGAIN);
            }
        }
    }

    /// Takes the map that was seen last.
    fn see_map(&self) {
        let entry = self.seen.lock().entries.get("map").cloned();
        match entry.as_ref().map(|entry| (Map::parse(&entry.value), entry.revision)) {
            Some((Ok(map), revision)) => self.take(Some((map, revision))),
            Some((Err(why), _)) => log::error!("the map cannot be used: {why}"),
            None => self.take(None),
        }
    }
}
