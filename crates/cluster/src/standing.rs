//! The lead of a shard: leases are taken, kept and let go, and this server's role follows from the map.
//!
//! ```text
//! lease free ─► offer ─► most data? ─► acquire ─► map names me (epoch + 1) ─► server leads ─► serves
//!                                                                                  │
//! serves no more ◄── lease lost, or not renewed in time, or the map names another ─┘
//! ```
//!
//! - ST1: this node serves only when the map names it at the epoch that it wrote itself behind its lease (M1).
//! - ST2: a process that starts holds nothing, whatever the one before held: it offers as all do.
//! - ST3: who lets go serves no more before it says so.

use crate::candidate::{Offer, Verdict, is_same_run, judge};
use crate::change::Change;
use crate::coordinator::{Cas, Held, Lease, NodeId, ShardId, acquire_known, boot_ns, next_key, shard_key};
use crate::lease::{BootClock, Keeper, News};
use crate::map::{Node, Shard};
use crate::member::Member;
use crate::topology::Topology;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest time between two looks.
const ROUND: Duration = Duration::from_millis(100);
/// How long offers are awaited.
const OFFERS: Duration = Duration::from_millis(300);
/// Time that who has most data has to take the lease before the next one tries.
const TURN: Duration = Duration::from_secs(1);
/// How long a replica may say nothing before it is no longer in sync.
const SILENCE: Duration = Duration::from_secs(10);
/// Largest lag of a replica that comes in sync.
const IN_SYNC_MS: u64 = 1000;
/// How long a hand-over may hold writes.
const HAND_OVER: Duration = Duration::from_secs(5);

/// Starts the threads of a node. Errors: a thread could not be started.
pub fn start(member: &Arc<Member>) -> std::io::Result<()> {
    let reader = member.clone();
    std::thread::Builder::new().name("map".into()).spawn(move || reader.follow_map())?;
    let standing = Standing {
        member: member.clone(),
        own: None,
        ended: None,
        offered: None,
        heard: HashMap::new(),
        told: String::new(),
    };
    std::thread::Builder::new().name("cluster".into()).spawn(move || standing.run())?;
    Ok(())
}

/// A lease that this node holds.
struct Own {
    keeper: Keeper,
    /// The epoch that the map has since this node leads; None: it does not say so yet.
    epoch: Option<u64>,
    is_lost: Arc<AtomicBool>,
}

impl Own {
    fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }
}

/// The state of the thread `cluster`.
struct Standing {
    member: Arc<Member>,
    own: Option<Own>,
    /// Since when the shard's lease is free.
    ended: Option<Instant>,
    /// The epoch for which this node has offered itself, and what it said.
    offered: Option<Offer>,
    /// When each replica was last seen in sync.
    heard: HashMap<String, Instant>,
    /// The last sentence in the log about why nobody leads.
    told: String,
}

impl Standing {
    fn run(mut self) {
        while !self.member.stop.is_stopped() {
            let is_known = {
                let mut seen = self.member.seen.lock();
                if !seen.is_new {
                    self.member.news.wait_for(&mut seen, ROUND);
                }
                seen.is_new = false;
                seen.is_known
            };
            if is_known {
                self.round();
            } else {
                self.check_own();
            }
        }
        self.let_go(None);
        self.member.has_left.store(true, Ordering::Release);
    }

    fn round(&mut self) {
        self.check_own();
        let topology = self.member.topology().clone();
        if !topology.is_member() {
            return self.let_go(None);
        }
        self.check_place(&topology);
        let shard = topology.my_shard();
        let leads = |own: &Own| {
            own.keeper.lease().shard[..] == shard.id[..]
                && topology.is_primary()
                && own.epoch == Some(shard.epoch)
        };
        match &self.own {
            Some(own) if leads(own) => return self.keep(&topology),
            Some(_) => self.let_go(None),
            None => {}
        }
        if let Some(primary) = topology.my_primary().filter(|_| !topology.is_primary()) {
            self.member.host.follow(&primary.host, primary.port.max(primary.tls));
        }
        self.stand(&topology);
    }

    /// Has the map say where this node is: it may have started at another address than before.
    fn check_place(&self, topology: &Topology) {
        let is_there = topology.me().is_at(&self.member.me.lock());
        if !is_there && let Err(why) = self.member.change(&Change::Move) {
            log::warn!("the map does not say yet where this node is: {why}");
        }
    }

    /// Ends what a lost lease allowed.
    fn check_own(&mut self) {
        if self.own.as_ref().is_some_and(Own::is_lost) {
            log::warn!("the lease of this shard was lost: this node answers no more");
            self.let_go(None);
        }
    }

    /// Serves no more, and lets go of the lease (ST3).
    fn let_go(&mut self, next: Option<&NodeId>) {
        let Some(own) = self.own.take() else { return };
        let member = &self.member;
        let served = member.serves.swap(false, Ordering::AcqRel);
        member.is_orderly.store(next.is_some(), Ordering::Release);
        if served {
            member.host.changed();
        }
        if let Err(trouble) = own.keeper.release(next) {
            log::warn!("the lease ends by itself: {trouble}");
        }
    }

    /// Offers this node if the shard's lease is free, and takes it if nobody has more.
    fn stand(&mut self, topology: &Topology) {
        let (me, shard) = (topology.me(), topology.my_shard());
        let Ok(id) = ShardId::new(&shard.id) else { return };
        let seen = self.member.seen.lock();
        if seen.entries.contains_key(&shard_key(&id)) {
            drop(seen);
            self.ended = None;
            return self.say("");
        }
        let next =
            seen.entries.get(&next_key(&id)).map(|entry| String::from_utf8_lossy(&entry.value).into_owned());
        let offers: Vec<Offer> = seen
            .entries
            .range(format!("offer/{}/", shard.id)..)
            .map_while(|(key, entry)| Some((key.strip_prefix(&format!("offer/{}/", shard.id))?, entry)))
            .filter_map(|(node, entry)| Offer::parse(node, &entry.value))
            .collect();
        drop(seen);
        let since = *self.ended.get_or_insert_with(Instant::now);
        // The lease was let go of in favour of the process that had everything, not of one that started since.
        if next.is_some_and(|next| next.split(' ').next() == Some(&me.id))
            && is_same_run(shard, me, &self.member.run)
        {
            return self.take(topology, &id);
        }
        if !self.member.host.is_whole() {
            return self.say("this node has no whole copy of the data, so it cannot lead");
        }
        if !self.offer(me, shard, &offers) {
            return;
        }
        let all = || {
            shard
                .eligible_nodes()
                .filter(|node| *node != shard.primary)
                .all(|node| offers.iter().any(|offer| offer.node == node && offer.epoch == shard.epoch))
        };
        if since.elapsed() < OFFERS && !all() {
            return self.say("the lease of this shard is free: nodes offer themselves");
        }
        match judge(shard, &me.id, &offers, since.elapsed() >= OFFERS + TURN) {
            Verdict::Try => self.take(topology, &id),
            Verdict::Behind(node) => {
                self.say(&format!("node {node} has more data, and takes the lease first"))
            }
            Verdict::Lacks(nodes) => self.say(&format!(
                "nobody may lead before these nodes have offered themselves: {}",
                nodes.join(", ")
            )),
            Verdict::Barred => {
                self.say("this node was not in sync when the primary was lost, so it cannot lead")
            }
        }
    }

    /// Writes this node's offer, unless it stands. False: it is not seen yet.
    fn offer(&mut self, me: &Node, shard: &Shard, offers: &[Offer]) -> bool {
        let member = &self.member;
        let is_same_run = is_same_run(shard, me, &member.run);
        let offer =
            Offer { node: me.id.clone(), epoch: shard.epoch, offset: member.host.offset(), is_same_run };
        let stands = |known: &Offer| {
            known.node == me.id && known.epoch == shard.epoch && known.is_same_run == is_same_run
        };
        if offers.iter().any(stands) {
            return true;
        }
        if self.offered.as_ref().is_some_and(|known| *known == offer) {
            // It is on its way to be seen.
            self.offered = None;
            return false;
        }
        let key = format!("offer/{}/{}", shard.id, me.id);
        let revision = member.seen.lock().entries.get(&key).map_or(0, |entry| entry.revision);
        if let Cas::Unknown(trouble) = member.coordinator.cas(&key, revision, Some(&offer.to_json())) {
            log::debug!("an offer may not have arrived: {trouble}");
        }
        self.offered = Some(offer);
        false
    }

    /// Takes the lease, has the map name this node, and leads.
    fn take(&mut self, topology: &Topology, id: &ShardId) {
        let Ok(me) = NodeId::new(&topology.me().id) else { return };
        let epoch = topology.my_shard().epoch;
        let (sent_ns, ttl) = (boot_ns(), self.member.ttl);
        let lease = match acquire_known(&*self.member.coordinator, id, &me, ttl, Instant::now() + ttl) {
            Ok(lease) => lease,
            Err(Held::By(node) | Held::For(node)) => {
                return self.say(&format!("node {node} takes the lease"));
            }
            Err(Held::Trouble(trouble) | Held::Unknown(trouble)) => {
                return self.say(&format!("the lease cannot be taken: {trouble}"));
            }
        };
        self.own = self.renew(lease, sent_ns);
        self.member.is_orderly.store(false, Ordering::Release);
        // Clients come as soon as the map names this node, which is a moment before it serves.
        self.member.hands_over.store(true, Ordering::Release);
        self.lead(epoch);
        self.member.hands_over.store(false, Ordering::Release);
        self.member.host.changed();
    }

    /// Has the map name this node behind its lease, and serves.
    fn lead(&mut self, epoch: u64) {
        // The map is read again behind the lease: what was known before it may be old.
        if let Err(why) = self.member.change(&Change::Lead(epoch, self.member.run.clone())) {
            self.say(&format!("this node took the lease and gives it back: {why}"));
            return self.let_go(None);
        }
        self.member.host.lead();
        while !self.member.host.leads() {
            if self.own.as_ref().is_none_or(Own::is_lost) || self.member.stop.is_stopped() {
                return self.let_go(None);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if let Some(own) = &mut self.own {
            own.epoch = Some(epoch + 1);
        }
        self.heard.clear();
        self.member.serves.store(true, Ordering::Release);
        self.say("");
        log::info!("this node leads its shard at epoch {}", epoch + 1);
    }

    /// Has a lease renewed, on a thread of its own. None: there is no thread.
    fn renew(&self, lease: Lease, sent_ns: u64) -> Option<Own> {
        let (member, is_lost) = (self.member.clone(), Arc::new(AtomicBool::new(false)));
        let lost = is_lost.clone();
        let told = move |news| match news {
            News::Kept { .. } => {}
            News::Unknown(trouble) => log::warn!("the lease was not renewed: {trouble}"),
            News::Fenced => {
                log::warn!("the lease was not renewed in time: this node answers no more until it is");
                member.host.changed();
            }
            News::Lost => {
                lost.store(true, Ordering::Release);
                member.wake();
            }
        };
        let coordinator = self.member.coordinator.clone();
        let clock = Arc::new(BootClock);
        let keeper = Keeper::start(coordinator, lease, sent_ns, self.member.fence.clone(), clock, told);
        keeper.map(|keeper| Own { keeper, epoch: None, is_lost }).ok()
    }

    /// Looks after what a primary looks after: who is in sync, and whether a replica asks to lead.
    fn keep(&mut self, topology: &Topology) {
        let (shard, member) = (topology.my_shard(), self.member.clone());
        let key = format!("handover/{}", shard.id);
        let asked = member.seen.lock().entries.get(&key).cloned();
        if let Some(entry) = asked {
            let node = String::from_utf8_lossy(&entry.value).into_owned();
            let _ = member.coordinator.cas(&key, entry.revision, None);
            return self.hand_over(topology, &node);
        }
        let now = Instant::now();
        for (node, follower) in followers(topology, &*member.host) {
            let in_sync = follower.is_online && (follower.lag_ms <= IN_SYNC_MS || shard.is_eligible(&node));
            let silent = Duration::from_millis(follower.lag_ms) >= SILENCE;
            if in_sync && !silent {
                self.heard.insert(node, now);
            }
        }
        let nodes = topology.map.nodes_of(shard).filter(|node| node.id != topology.me().id);
        let mut entries = vec![format!("{}/{}", topology.me().id, member.run)];
        for node in nodes.filter(|node| self.heard.get(&node.id).is_some_and(|at| at.elapsed() < SILENCE)) {
            if let Some(run) = self.run_of(&node.id) {
                entries.push(format!("{}/{run}", node.id));
            }
        }
        let mut known = shard.eligible.clone();
        known.sort();
        entries.sort();
        let acks = member.host.acks();
        let keeps = (entries.len() - 1) as u64 >= acks || entries.len() >= known.len();
        if (entries == known && acks == shard.acks) || !keeps {
            return;
        }
        let stays = |node: &&str| entries.iter().any(|entry| entry.split('/').next() == Some(node));
        *member.uncounted.lock() =
            shard.eligible_nodes().filter(|node| !stays(node)).map(str::to_owned).collect();
        match member.change(&Change::InSync(entries, acks)) {
            Ok(()) => member.uncounted.lock().clear(),
            Err(why) => log::warn!("the nodes that are in sync could not be noted: {why}"),
        }
    }

    /// The name of a node's process.
    fn run_of(&self, node: &str) -> Option<String> {
        let seen = self.member.seen.lock();
        let facts = seen.entries.get(&format!("node/{node}"))?;
        let value: serde_json::Value = serde_json::from_slice(&facts.value).ok()?;
        Some(value.get("run")?.as_str()?.to_owned())
    }

    /// Lets a replica lead that has everything, without a lost write. Writes are held meanwhile.
    fn hand_over(&mut self, topology: &Topology, node: &str) {
        let began = Instant::now();
        let member = self.member.clone();
        let Ok(next) = NodeId::new(node) else { return };
        if !topology.my_shard().is_eligible(node) || node == topology.me().id {
            return log::warn!("node {node} asks to lead, and is not in sync");
        }
        log::info!("node {node} is to lead: writes wait until it has everything");
        member.hands_over.store(true, Ordering::Release);
        match member.host.freeze(HAND_OVER) {
            Some(end) => self.hand_over_at(topology, &next, end, began),
            None => log::warn!("node {node} does not lead: what was under way took too long"),
        }
        member.hands_over.store(false, Ordering::Release);
        member.host.thaw();
    }

    /// The part of a hand-over in which nothing changes: its stream rests at `end`.
    fn hand_over_at(&mut self, topology: &Topology, next: &NodeId, end: u64, began: Instant) {
        let (member, node) = (self.member.clone(), &next[..]);
        let has_all =
            || followers(topology, &*member.host).any(|(id, follower)| id == node && follower.offset >= end);
        while !has_all() {
            if began.elapsed() >= HAND_OVER || self.own.as_ref().is_none_or(Own::is_lost) {
                return log::warn!("node {node} does not lead: it did not have everything in time");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.let_go(Some(next));
        while began.elapsed() < HAND_OVER && member.topology().is_primary() {
            let mut seen = member.seen.lock();
            member.news.wait_for(&mut seen, Duration::from_millis(20));
        }
        if let Some(primary) = member.topology().my_primary().filter(|primary| primary.id == node) {
            member.host.follow(&primary.host, primary.port.max(primary.tls));
            log::info!("node {node} leads: writes waited for {} ms", began.elapsed().as_millis());
        }
    }

    /// Notes why nobody leads, and says it in the log when it changes.
    fn say(&mut self, why: &str) {
        *self.member.trouble.lock() = why.to_owned();
        if self.told != why {
            why.clone_into(&mut self.told);
            if !why.is_empty() {
                log::info!("{why}");
            }
        }
    }
}

/// The replicas of this node that the map knows, by their addresses.
fn followers<'a>(
    topology: &'a Topology,
    host: &'a dyn crate::member::Host,
) -> impl Iterator<Item = (String, crate::member::Follower)> {
    let shard = topology.my_shard();
    host.followers().into_iter().filter_map(move |follower| {
        let is_it = |node: &&Node| node.answers_at(&follower.host, follower.port);
        let node = topology.map.nodes_of(shard).find(is_it)?;
        Some((node.id.clone(), follower))
    })
}

impl Member {
    /// An orderly end of this node: a replica that is in sync leads before, if there is one, and the lease is
    /// let go of. It takes as long as a hand-over, some seconds at most. Calls are not answered afterwards.
    pub fn leave(&self) {
        let began = Instant::now();
        let topology = self.topology().clone();
        let shard = topology.my_shard();
        let best = followers(&topology, &*self.host)
            .filter(|(node, follower)| follower.is_online && shard.is_eligible(node))
            .max_by_key(|(_, follower)| follower.offset);
        if let Some((node, _)) = best.filter(|_| self.serves() && topology.is_primary()) {
            let key = format!("handover/{}", shard.id);
            let revision = self.seen.lock().entries.get(&key).map_or(0, |entry| entry.revision);
            let _ = self.coordinator.cas(&key, revision, Some(node.as_bytes()));
            while self.topology().is_primary() && began.elapsed() < HAND_OVER {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        self.stop.stop();
        self.wake();
        let began = Instant::now();
        while !self.has_left.load(Ordering::Acquire) && began.elapsed() < TURN * 2 {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
