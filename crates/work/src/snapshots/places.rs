//! Places: the work that may have a snapshot, and the work that gives one up when others wait.
//!
//! ```text
//! comes ──a place is free, nobody waits──► holder ──done, or ended──► free
//!   └─► queue of its class ──it is next──────▲ └──asked to give way──► queue of those that gave way, to start over
//! ```
//!
//! - H1: there are as many places as long snapshots. None is kept free while waiting work could take it. The
//!   class that holds fewest goes first.
//! - H2: a holder keeps its place for [`KEPT_NS`], and twice as long after each time it gave way. Then, if
//!   others wait, it is asked to give way. Nothing of it was applied, so it starts over, behind those who
//!   wait.
//! - H3: a class that holds fewer than [`SHARE`] places takes them from the one that holds most, else from
//!   its own.
//! - H4: while newcomers wait, only the [`ELDERS`] of a class that hold longest may use a doubled time. So at
//!   least `SHARE - ELDERS` places come free in each `KEPT_NS`. A newcomer waits for as many of them as there
//!   are newcomers before it.
//! - H5: works that gave way have a queue of their own. It takes turns with the newcomers' queue until
//!   `ELDERS` of the class hold places. The next of it is by turns the first, and the one that gave way
//!   least. Each becomes one of the elders and gets all of its doubled time. So work ends after as many
//!   rounds as it has doublings. The time of a work that was stopped early is not doubled.
//! - H6: work whose client has gone is behind all others.
//! - H7: a walk (KEYS, MGET) goes on by itself, whether or not its reply is read, and is not asked. Walks
//!   hold [`WALKS`] places at most.
//!
//! Cost: O(places), and O(log n) for n that wait.

use super::Ahead;
use keyspace::Lsn;
use observe::ClientInfo;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Number of places (H1).
pub const PLACES: usize = keyspace::MAX_LONG;
/// Time for which a place is kept (H2).
const KEPT_NS: u64 = 100_000_000;
/// 410 s: a snapshot is not kept for much longer (`snapshot-max-age`).
const DOUBLINGS_MAX: u32 = 12;
/// Places of a class that it need not give to another (H3).
const SHARE: usize = 24;
/// Holders of a class that may use a doubled time (H4, H5).
const ELDERS: usize = 8;
/// Largest number of places of walks (H7).
const WALKS: usize = 16;
/// Former holders whose names are kept, for works that waited for them.
const FORMER: usize = PLACES;

/// Kinds of long work that share the places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// It ends by itself.
    Job,
    /// It may never end.
    Script,
    /// The loop does it, in slices, and it changes nothing.
    Walk,
}

const CLASSES: [Class; 3] = [Class::Job, Class::Script, Class::Walk];

/// A flag that tells long work to stop, and the reason.
#[derive(Clone, Default, Debug)]
pub struct StopSign {
    /// The work looks at this while it runs.
    pub stop: Arc<AtomicBool>,
    /// It stops because others wait (H2).
    gives_way: Arc<AtomicBool>,
    /// It stops before it had all of its doubled time (H4).
    early: Arc<AtomicBool>,
}

impl StopSign {
    pub fn gives_way(&self) -> bool {
        self.gives_way.load(Relaxed)
    }

    /// The number of times it gave way, with this one, after so many before. A work that was stopped early
    /// keeps the number, and so its doubled time.
    pub fn gave_way(&self, before: u32) -> u32 {
        before + u32::from(!self.early.load(Relaxed))
    }

    /// Asks it to give way.
    fn ask(&self, early: bool) {
        self.early.store(early, Relaxed);
        self.gives_way.store(true, Relaxed);
        self.stop.store(true, Relaxed);
    }
}

/// Work that asks for a place.
#[derive(Clone)]
pub struct Asker {
    pub client: u64,
    pub info: Option<Arc<ClientInfo>>,
    pub command: &'static str,
    pub class: Class,
    /// Number of times that it gave way.
    pub gave_way: u32,
    /// Set when its client goes.
    pub gone: Option<Arc<AtomicBool>>,
    /// It is of no use without its client.
    pub for_client: bool,
    pub sign: StopSign,
    /// Its words, shortened, for clients that wait for it.
    pub words: Vec<Vec<u8>>,
}

impl Asker {
    fn is_gone(&self) -> bool {
        self.gone.as_ref().is_some_and(|gone| gone.load(Relaxed))
    }
}

/// Words of a command kept for clients that wait for it, and bytes of each.
pub fn shortened<'a>(words: impl Iterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
    words.take(4).map(|word| word[..word.len().min(64)].to_vec()).collect()
}

struct Holder {
    asker: Asker,
    lsn: Lsn,
    began_ns: u64,
    /// The time at which it was asked to give way.
    asked_ns: Option<u64>,
}

struct Waiter {
    loop_id: usize,
    gave_way: u32,
    gone: Option<Arc<AtomicBool>>,
}

impl Waiter {
    fn is_gone(&self) -> bool {
        self.gone.as_ref().is_some_and(|gone| gone.load(Relaxed))
    }
}

/// Waiting work of one class, by ticket.
#[derive(Default)]
struct ClassQueue {
    new: BTreeMap<u64, Waiter>,
    /// Works that gave way (H5).
    again: BTreeMap<u64, Waiter>,
    /// Works whose clients have gone (H6).
    left: BTreeMap<u64, Waiter>,
    /// Whether the last turn was that of the works that gave way.
    again_last: bool,
    /// Whether the next of them is the one that gave way least, not the first.
    least_next: bool,
}

impl ClassQueue {
    fn len(&self) -> usize {
        self.new.len() + self.again.len() + self.left.len()
    }

    fn remove(&mut self, ticket: u64) -> bool {
        let queues = [&mut self.new, &mut self.again, &mut self.left];
        queues.into_iter().any(|queue| queue.remove(&ticket).is_some())
    }

    /// Moves those in front whose clients have gone behind all others (H6).
    fn sort(&mut self) {
        for queue in [&mut self.new, &mut self.again] {
            while let Some(first) = queue.first_entry().filter(|first| first.get().is_gone()) {
                let (ticket, waiter) = first.remove_entry();
                self.left.insert(ticket, waiter);
            }
        }
    }

    /// The next one, while so many that gave way hold places.
    fn front(&mut self, elders: usize) -> Option<(u64, usize)> {
        self.sort();
        let again = !self.again.is_empty() && (self.new.is_empty() || elders < ELDERS && !self.again_last);
        if again && self.least_next {
            let least = self.again.iter().min_by_key(|(_, waiter)| waiter.gave_way);
            return least.map(|(ticket, waiter)| (*ticket, waiter.loop_id));
        }
        let queue = match again {
            true => &self.again,
            false if !self.new.is_empty() => &self.new,
            false => &self.left,
        };
        queue.first_key_value().map(|(ticket, waiter)| (*ticket, waiter.loop_id))
    }
}

/// A former holder, or one that is still there.
#[derive(Clone)]
pub struct Known {
    client: u64,
    pub info: Option<Arc<ClientInfo>>,
    pub words: Vec<Vec<u8>>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Table {
    holders: Vec<Holder>,
    queues: [ClassQueue; CLASSES.len()],
    last_ticket: u64,
    former: VecDeque<Known>,
    /// Number of times that a work was asked to give way.
    pub(super) asked: u64,
}

impl Table {
    /// Leaves out those whose snapshots are closed.
    pub(super) fn sweep(&mut self, active: &[Lsn]) {
        let former = &mut self.former;
        self.holders.retain_mut(|holder| {
            let holds = active.contains(&holder.lsn);
            if !holds {
                former.truncate(FORMER - 1);
                former.push_front(holder.known());
            }
            holds
        });
    }

    pub(super) fn held(&self, class: Class) -> usize {
        self.holders.iter().filter(|holder| holder.asker.class == class).count()
    }

    pub(super) fn waiting(&self, class: Class) -> usize {
        self.queues[class as usize].len()
    }

    /// Number of works that wait, of all classes.
    pub(super) fn all_waiting(&self) -> usize {
        self.queues.iter().map(ClassQueue::len).sum()
    }

    /// The loop of a work that waits.
    pub(super) fn some_loop(&self) -> Option<usize> {
        let all = self.queues.iter().flat_map(|queue| [&queue.new, &queue.again, &queue.left]);
        all.filter_map(|queue| queue.first_key_value()).map(|(_, waiter)| waiter.loop_id).next()
    }

    fn elders(&self, class: Class) -> usize {
        let gave_way = |holder: &&Holder| holder.asker.class == class && holder.asker.gave_way > 0;
        self.holders.iter().filter(gave_way).count()
    }

    /// Whether a class may have one place more.
    fn has_room(&self, class: Class) -> bool {
        self.holders.len() < PLACES && (class != Class::Walk || self.held(class) < WALKS)
    }

    /// The ticket and the loop of the next work to get a place, if there is one (H1).
    pub(super) fn next(&mut self) -> Option<(u64, usize)> {
        let mut classes = CLASSES;
        classes.sort_by_key(|class| self.held(*class));
        classes.into_iter().find_map(|class| {
            let elders = self.elders(class);
            self.has_room(class).then(|| self.queues[class as usize].front(elders)).flatten()
        })
    }

    /// Whether work that comes now, and has not waited, may take a place at once.
    pub(super) fn admits(&mut self, class: Class) -> bool {
        self.has_room(class) && self.queues[class as usize].len() == 0 && self.next().is_none()
    }

    /// Adds a work that waits. Returns its ticket.
    pub(super) fn enqueue(&mut self, loop_id: usize, asker: &Asker) -> u64 {
        self.last_ticket += 1;
        let queue = &mut self.queues[asker.class as usize];
        let waiter = Waiter { loop_id, gave_way: asker.gave_way, gone: asker.gone.clone() };
        let queue = if asker.gave_way > 0 { &mut queue.again } else { &mut queue.new };
        queue.insert(self.last_ticket, waiter);
        self.last_ticket
    }

    /// Takes a waiting work out. `served`: it got its place.
    pub(super) fn leave(&mut self, ticket: u64, served: bool) {
        for queue in &mut self.queues {
            let again = queue.again.contains_key(&ticket);
            if queue.remove(ticket) && served {
                queue.again_last = again;
                queue.least_next ^= again;
            }
        }
    }

    pub(super) fn hold(&mut self, asker: Asker, lsn: Lsn, began_ns: u64) {
        self.holders.push(Holder { asker, lsn, began_ns, asked_ns: None });
    }

    /// The record of a client that holds a place, or held one lately.
    pub(super) fn whose(&self, client: u64) -> Option<Known> {
        let holder = self.holders.iter().find(|holder| holder.asker.client == client);
        let former = || self.former.iter().find(|known| known.client == client).cloned();
        holder.map(Holder::known).or_else(former)
    }

    /// The holder of the oldest snapshot.
    pub(super) fn oldest(&self, now_ns: u64) -> Option<Ahead> {
        let oldest = self.holders.iter().min_by_key(|holder| holder.lsn)?;
        Some((oldest.asker.client, oldest.asker.command, now_ns.saturating_sub(oldest.began_ns)))
    }

    /// The client that holds the snapshot at that LSN, and its command.
    pub(super) fn holder_of(&self, lsn: Lsn) -> Option<(u64, &'static str)> {
        let holder = self.holders.iter().find(|holder| holder.lsn == lsn)?;
        Some((holder.asker.client, holder.asker.command))
    }

    /// Stops the work of a client.
    pub(super) fn stop(&self, client: u64) {
        let his = self.holders.iter().filter(|holder| holder.asker.client == client);
        his.for_each(|holder| holder.asker.sign.stop.store(true, Relaxed));
    }

    /// Stops work that is of no use because its client has gone.
    pub(super) fn stop_useless(&self) {
        let useless = |holder: &&Holder| holder.asker.for_client && holder.asker.is_gone();
        self.holders.iter().filter(useless).for_each(|holder| holder.asker.sign.stop.store(true, Relaxed));
    }

    /// Asks as many works to give way as others wait, if their time is over (H2 to H4). For works whose
    /// clients have gone, only works of the same kind are asked (H6).
    pub(super) fn press(&mut self, now_ns: u64) {
        self.holders.sort_by_key(|holder| holder.began_ns);
        for class in CLASSES {
            let queue = &mut self.queues[class as usize];
            queue.sort();
            let (waiting, left) = (queue.new.len() + queue.again.len(), queue.left.len());
            // Walks at their own limit wait for walks, which end.
            if waiting + left == 0 || class == Class::Walk && self.held(class) >= WALKS {
                continue;
            }
            // Work that commits does not come to it, and is not waited for.
            let asked =
                |holder: &&Holder| holder.asked_ns.is_some_and(|at| now_ns.saturating_sub(at) < KEPT_NS);
            let coming =
                PLACES.saturating_sub(self.holders.len()) + self.holders.iter().filter(asked).count();
            self.press_for(class, waiting.saturating_sub(coming), false, now_ns);
            self.press_for(class, left.saturating_sub(coming.saturating_sub(waiting)), true, now_ns);
        }
    }

    fn press_for(&mut self, class: Class, mut wanted: usize, only_gone: bool, now_ns: u64) {
        let (jobs, scripts) = (self.held(Class::Job), self.held(Class::Script));
        let victims = match class {
            Class::Job if jobs >= SHARE => Class::Job,
            Class::Script if scripts >= SHARE => Class::Script,
            _ if jobs > scripts => Class::Job,
            _ => Class::Script,
        };
        let newcomers = !self.queues[class as usize].new.is_empty();
        let mut elders = 0;
        for holder in self.holders.iter_mut().filter(|holder| holder.asker.class == victims) {
            if wanted == 0 {
                return;
            }
            let gone = holder.asker.is_gone();
            let gave_way = holder.asker.gave_way > 0 && !gone;
            elders += usize::from(gave_way);
            let doubled = gave_way && (!newcomers || elders <= ELDERS);
            let kept_ns = KEPT_NS << if doubled { holder.asker.gave_way.min(DOUBLINGS_MAX) } else { 0 };
            if holder.asked_ns.is_none()
                && (gone || !only_gone)
                && now_ns.saturating_sub(holder.began_ns) >= kept_ns
            {
                holder.asked_ns = Some(now_ns);
                let full_ns = KEPT_NS << holder.asker.gave_way.min(DOUBLINGS_MAX);
                holder.asker.sign.ask(now_ns.saturating_sub(holder.began_ns) < full_ns);
                self.asked += 1;
                wanted -= 1;
            }
        }
    }
}

impl Holder {
    fn known(&self) -> Known {
        Known { client: self.asker.client, info: self.asker.info.clone(), words: self.asker.words.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP_NS: u64 = 10_000_000;

    /// Work that needs so much time at a stretch; 0: it never ends.
    struct Piece {
        name: u64,
        asker: Asker,
        needs_ns: u64,
        came_ns: u64,
        /// Since when it holds a place, and at which snapshot; else it waits with a ticket.
        holds: Option<(u64, Lsn)>,
        ticket: u64,
    }

    /// A server of which only the places are real.
    #[derive(Default)]
    struct Model {
        table: Table,
        now_ns: u64,
        last: u64,
        pieces: Vec<Piece>,
        /// Pieces that ended: name, time they held a place, and how often they gave way.
        ended: Vec<(u64, u64, u32)>,
    }

    impl Model {
        fn active(&self) -> Vec<Lsn> {
            self.pieces.iter().filter_map(|piece| piece.holds).map(|(_, lsn)| lsn).collect()
        }

        fn come(&mut self, class: Class, needs_ns: u64) -> u64 {
            self.last += 1;
            let (client, command, words) = (self.last, "x", Vec::new());
            let (gave_way, gone, for_client, sign) = (0, None, false, StopSign::default());
            let asker = Asker { client, info: None, command, class, gave_way, gone, for_client, sign, words };
            let (came_ns, name) = (self.now_ns, self.last);
            let mut piece = Piece { name, asker, needs_ns, came_ns, holds: None, ticket: 0 };
            self.ask(&mut piece);
            self.pieces.push(piece);
            name
        }

        fn ask(&mut self, piece: &mut Piece) {
            self.table.sweep(&self.active());
            if self.table.admits(piece.asker.class) {
                return self.hold(piece);
            }
            piece.ticket = self.table.enqueue(0, &piece.asker);
        }

        fn hold(&mut self, piece: &mut Piece) {
            self.last += 1;
            piece.holds = Some((self.now_ns, self.last));
            self.table.hold(piece.asker.clone(), self.last, self.now_ns);
        }

        /// Does the next moment.
        fn step(&mut self) {
            self.now_ns += STEP_NS;
            for at in (0..self.pieces.len()).rev() {
                let piece = &self.pieces[at];
                let Some((since_ns, _)) = piece.holds else { continue };
                if piece.needs_ns > 0 && self.now_ns - since_ns >= piece.needs_ns {
                    let piece = self.pieces.remove(at);
                    self.ended.push((piece.name, self.now_ns - piece.came_ns, piece.asker.gave_way));
                } else if piece.asker.sign.gives_way() {
                    let mut piece = self.pieces.remove(at);
                    piece.holds = None;
                    piece.asker.gave_way = piece.asker.sign.gave_way(piece.asker.gave_way);
                    piece.asker.sign = StopSign::default();
                    self.ask(&mut piece);
                    self.pieces.push(piece);
                }
            }
            self.table.sweep(&self.active());
            while let Some((ticket, _)) = self.table.next() {
                let waits = |piece: &Piece| piece.holds.is_none() && piece.ticket == ticket;
                let at = self.pieces.iter().position(waits).expect("who waits is known");
                let mut piece = self.pieces.remove(at);
                self.table.leave(ticket, true);
                self.hold(&mut piece);
                self.pieces.push(piece);
                self.table.sweep(&self.active());
            }
            self.table.press(self.now_ns);
            assert!(self.table.holders.len() <= PLACES);
            assert!(self.table.held(Class::Walk) <= WALKS);
            let waiting = self.pieces.iter().filter(|piece| piece.holds.is_none()).count();
            assert_eq!(waiting, self.table.all_waiting());
        }

        fn until_ended(
            &mut self,
            name: u64,
            limit_ns: u64,
            mut meanwhile: impl FnMut(&mut Model),
        ) -> (u64, u32) {
            let end_ns = self.now_ns + limit_ns;
            loop {
                self.step();
                meanwhile(self);
                if let Some((_, ns, gave_way)) = self.ended.iter().find(|(ended, ..)| *ended == name) {
                    return (*ns, *gave_way);
                }
                assert!(self.now_ns < end_ns, "it has not ended");
            }
        }
    }

    #[test]
    fn who_comes_gets_a_place_however_many_never_end() {
        let mut model = Model::default();
        for _ in 0..300 {
            model.come(Class::Script, 0);
        }
        // They had their time, some of them very often.
        (0..1_000).for_each(|_| model.step());
        for class in CLASSES {
            let short = model.come(class, STEP_NS);
            let (ns, gave_way) = model.until_ended(short, 1_000_000_000, |_| {});
            assert!(ns <= KEPT_NS + 4 * STEP_NS && gave_way == 0, "{class:?} {ns}");
        }
        // And jobs that take very long are no better than scripts.
        let mut model = Model::default();
        for _ in 0..300 {
            model.come(Class::Job, 1 << 50);
        }
        (0..1_000).for_each(|_| model.step());
        for class in CLASSES {
            let short = model.come(class, STEP_NS);
            let (ns, gave_way) = model.until_ended(short, 1_000_000_000, |_| {});
            assert!(ns <= KEPT_NS + 4 * STEP_NS && gave_way == 0, "{class:?} {ns}");
        }
    }

    #[test]
    fn what_is_long_ends_under_steady_pressure() {
        const NEEDS_NS: u64 = 2_000_000_000;
        let mut model = Model::default();
        for _ in 0..70 {
            model.come(Class::Script, 0);
        }
        (0..100).for_each(|_| model.step());
        let long = model.come(Class::Script, NEEDS_NS);
        // As many come all the time as can be served.
        let (ns, gave_way) = model.until_ended(long, 60 * NEEDS_NS, |model| {
            for class in [Class::Script, Class::Job] {
                if model.table.queues[class as usize].new.len() < 4 {
                    (0..4).for_each(|_| _ = model.come(class, KEPT_NS / 2));
                }
            }
        });
        assert!((1..=8).contains(&gave_way), "{gave_way} after {ns}");
    }

    #[test]
    fn whoever_has_gone_comes_last_and_what_is_free_is_taken() {
        let mut model = Model::default();
        let gone = Arc::new(AtomicBool::new(true));
        (0..PLACES).for_each(|_| _ = model.come(Class::Script, 0));
        let first = model.come(Class::Script, STEP_NS);
        let waiter = |model: &mut Model, name| {
            let piece = model.pieces.iter_mut().find(|piece| piece.name == name).expect("it waits");
            (piece.ticket, piece.asker.clone())
        };
        let (ticket, _) = waiter(&mut model, first);
        model.table.queues[Class::Script as usize].new.get_mut(&ticket).expect("it waits").gone = Some(gone);
        let second = model.come(Class::Script, STEP_NS);
        let (before, _) = model.until_ended(second, 1_000_000_000, |_| {});
        assert!(model.ended.iter().all(|(name, ..)| *name != first), "{before}");
        // The work that gave way is back, and it waits, disturbing nobody.
        let asked = model.table.asked;
        (0..100).for_each(|_| model.step());
        assert_eq!((model.table.held(Class::Script), model.table.all_waiting()), (PLACES, 1));
        assert!(model.table.asked <= asked + 1);
        let at = model.pieces.iter().position(|piece| piece.holds.is_some()).expect("all places are held");
        model.pieces.remove(at);
        model.until_ended(first, 1_000_000_000, |_| {});
    }
}
