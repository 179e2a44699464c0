//! The one stream of writes: who hears of them, and in what form.
//!
//! ```text
//! a command's words ─► words()  ─┐
//! a list of commands ─► shared() ├─► CommitSink: a log, replicas
//! a place in the stream ─► mark() ┘
//! ```
//!
//! - T1, T2, T4: an LSN is settled once all that is told up to it was told (`tell/slots.rs`).
//! - T5: a write of a hidden database is told to nobody. This is the only place that looks.
//! - T6: what is told at one LSN is a *group*: all of it or nothing takes effect. A thread tells it in the
//!   order in which it takes effect.
//! - T7: listening begins and ends under all shard locks. Undecided commits are ended then, and overlays
//!   begun before lose their race: what they did was not noted. So from the LSN that [`Keyspace::listen`]
//!   returns on, everything is told.
//! - T8: a replica passes its primary's bytes on unchanged. They are told at the LSN of their effect, so that
//!   offset and data agree at every mark (`tell/carry.rs`).

mod carry;
mod slots;

use crate::sequence::Lsn;
use crate::{Keyspace, SHARDS};
use parking_lot::Mutex;
use slots::{Seat, Slots};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stdx::locks::Bits;

/// Receives every write: for a log, for replicas. An expiry arrives as the removal it is (DEL, HDEL).
///
/// Several threads call it at once, and LSNs need not come in order. Shard locks may be held during a call:
/// note the effect, never wait.
pub trait CommitSink: Send + Sync {
    /// A command took effect. Its words are valid during the call.
    fn words(&self, at: At, words: &mut dyn Iterator<Item = &[u8]>);

    /// Many commands took effect together. O(1): the effects are kept, and written out later.
    fn shared(&self, at: At, effects: Arc<dyn Effects>);

    /// A place in the stream, behind everything told at earlier LSNs.
    fn mark(&self, lsn: Lsn, mark: Mark);

    /// Bytes of the primary's stream, whose effect is told at this LSN, and the database behind them (T8).
    fn carried(&self, _: Lsn, _: u32, _: Vec<u8>) {}
}

/// The place of an effect in the stream, and its receivers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct At {
    pub lsn: Lsn,
    /// The database of the command. `None`: it has none, or each effect names its own.
    pub db: Option<u32>,
    pub to: To,
}

impl At {
    /// A write to a database, told to all.
    #[inline]
    pub fn db(lsn: Lsn, db: usize) -> At {
        At { lsn, db: Some(db as u32), to: To::All }
    }
}

/// The listeners that hear of something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum To {
    All,
    Replicas,
    Log,
}

/// The name of a place in the stream. The caller numbers them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Mark(pub u64);

impl Mark {
    /// Tells a shadow that contents changed without being told ([`Keyspace::tell_replaced`]).
    pub const REPLACED: Mark = Mark(u64::MAX);
    /// From here on replicas hear what this server does itself.
    pub const OWN: Mark = Mark::of_replicas(1 << 62 | 1);
    /// From here on they hear what its primary says.
    pub const CARRIED: Mark = Mark::of_replicas(1 << 62 | 2);
    /// The log is to note which place in the replicas' history its end is.
    pub const PLACE: Mark = Mark(1 << 62 | 3);

    /// A mark in the stream of the replicas alone. The others are the log's.
    pub const fn of_replicas(number: u64) -> Mark {
        Mark(number | 1 << 63)
    }

    /// The listeners that hear of it.
    pub const fn to(self) -> To {
        if self.0 >> 63 == 0 { To::Log } else { To::Replicas }
    }
}

/// Receives the effects of a list: the database, if the command has one, and the words.
pub type EffectVisitor<'a> = dyn FnMut(Option<u32>, &mut dyn Iterator<Item = &[u8]>) + 'a;

/// The commands that one commit told, kept until they are written out.
pub trait Effects: Send + Sync {
    /// Gives the commands in the order in which they take effect. O(their words).
    fn each(&self, visit: &mut EffectVisitor<'_>);

    /// The bytes of all words, estimated. O(commands).
    fn bytes(&self) -> usize;
}

/// The effects of a long commit. `None`: nobody listens, or there is nothing to tell.
pub type Announce = Option<Arc<dyn Effects>>;

/// Numbers of keyspaces, for their threads.
static TELLS: AtomicU64 = AtomicU64::new(1);

/// The listener, and the slots of the threads that write. See the module.
pub(crate) struct Tell {
    id: u64,
    slots: Slots,
    sink: Mutex<Option<Arc<dyn CommitSink>>>,
    /// Hears all that a sink hears, and before there is one, in debug builds.
    #[cfg(debug_assertions)]
    shadow: std::sync::OnceLock<Arc<dyn CommitSink>>,
    /// Number of times that `sink` was replaced, which counts before LISTEN is set, and of times that
    /// listening began, which counts after it.
    replaced: AtomicU64,
    epoch: AtomicU64,
    carry: carry::Carry,
}

impl Default for Tell {
    fn default() -> Tell {
        Tell {
            id: TELLS.fetch_add(1, Ordering::Relaxed),
            slots: Slots::default(),
            sink: Mutex::default(),
            #[cfg(debug_assertions)]
            shadow: Default::default(),
            replaced: AtomicU64::new(1),
            epoch: AtomicU64::new(0),
            carry: carry::Carry::default(),
        }
    }
}

/// A thread's place in a keyspace that it writes to.
struct Chair {
    of: u64,
    seat: Seat,
    sink: Option<Arc<dyn CommitSink>>,
    replaced: u64,
}

thread_local! {
    static CHAIRS: RefCell<Vec<Chair>> = const { RefCell::new(Vec::new()) };
}

impl Tell {
    /// Calls `f` with what this thread knows of the keyspace.
    #[inline]
    fn with<T>(&self, f: impl FnOnce(&Chair) -> T) -> T {
        CHAIRS.with(|chairs| {
            let replaced = self.replaced.load(Ordering::Acquire);
            let fits = |chair: &Chair| chair.of == self.id && chair.replaced == replaced;
            let place = chairs.borrow().iter().position(fits);
            let place = place.unwrap_or_else(|| self.sit_down(&mut chairs.borrow_mut(), replaced));
            f(&chairs.borrow()[place])
        })
    }

    /// Brings this thread's chair up to date, or makes one.
    #[cold]
    fn sit_down(&self, chairs: &mut Vec<Chair>, replaced: u64) -> usize {
        let sink = self.sink.lock().clone();
        let place = chairs.iter().position(|chair| chair.of == self.id).unwrap_or_else(|| {
            chairs.push(Chair { of: self.id, seat: self.slots.seat(), sink: None, replaced: 0 });
            chairs.len() - 1
        });
        (chairs[place].sink, chairs[place].replaced) = (sink, replaced);
        place
    }

    /// Enters this thread's slot, before an LSN is drawn (T1).
    #[inline]
    pub(crate) fn enter(&self, last: impl FnOnce() -> Lsn) {
        self.with(|chair| chair.seat.enter(last));
    }

    /// Leaves it, once all was told.
    #[inline]
    pub(crate) fn leave(&self) {
        self.with(|chair| chair.seat.leave());
    }

    #[inline]
    fn heard(&self, f: impl FnOnce(&dyn CommitSink)) {
        self.with(|chair| {
            if let Some(sink) = &chair.sink {
                f(&**sink);
            }
        });
    }

    /// Tells the effects of a long commit.
    pub(crate) fn shared(&self, lsn: Lsn, effects: Arc<dyn Effects>) {
        self.heard(|sink| sink.shared(At { lsn, db: None, to: To::All }, effects));
        self.tell_carried(lsn);
    }

    /// Tells what the effect at this LSN was caused by, if the primary said it (T8).
    #[inline]
    fn tell_carried(&self, lsn: Lsn) {
        if self.carry.is_there()
            && let Some((db, bytes)) = self.carry.take()
        {
            self.heard(|sink| sink.carried(lsn, db, bytes));
        }
    }

    #[cfg(debug_assertions)]
    fn with_shadow(&self, sink: Option<Arc<dyn CommitSink>>) -> Option<Arc<dyn CommitSink>> {
        let Some(shadow) = self.shadow.get().cloned() else { return sink };
        Some(Arc::new(Both { shadow, sink }))
    }

    /// Changes who listens, and has threads hear of it.
    fn replace(&self, sink: Option<Arc<dyn CommitSink>>) {
        *self.sink.lock() = sink;
        self.replaced.fetch_add(1, Ordering::SeqCst);
    }
}

/// A listener and a shadow.
#[cfg(debug_assertions)]
struct Both {
    shadow: Arc<dyn CommitSink>,
    sink: Option<Arc<dyn CommitSink>>,
}

#[cfg(debug_assertions)]
impl CommitSink for Both {
    fn words(&self, at: At, words: &mut dyn Iterator<Item = &[u8]>) {
        let words: Vec<&[u8]> = words.collect();
        self.shadow.words(at, &mut words.iter().copied());
        if let Some(sink) = &self.sink {
            sink.words(at, &mut words.iter().copied());
        }
    }

    fn shared(&self, at: At, effects: Arc<dyn Effects>) {
        self.shadow.shared(at, effects.clone());
        if let Some(sink) = &self.sink {
            sink.shared(at, effects);
        }
    }

    fn mark(&self, lsn: Lsn, mark: Mark) {
        if let Some(sink) = &self.sink {
            sink.mark(lsn, mark);
        }
    }

    fn carried(&self, lsn: Lsn, db: u32, bytes: Vec<u8>) {
        if let Some(sink) = &self.sink {
            sink.carried(lsn, db, bytes);
        }
    }
}

/// Checks in debug builds that this thread holds no slot: it is about to wait (T4).
#[inline]
pub fn debug_assert_no_slot() {
    debug_assert!(
        CHAIRS.with(|chairs| chairs.borrow().iter().all(|chair| !chair.seat.is_entered())),
        "a thread waits in a write that is told"
    );
}

/// Effects of a commit without those of hidden databases, behind the removal of keys it found expired.
struct Group {
    expired: Vec<(usize, Box<[u8]>)>,
    effects: Announce,
    /// Databases from this one on are hidden.
    visible: u32,
}

impl Effects for Group {
    fn each(&self, visit: &mut EffectVisitor<'_>) {
        for (db, key) in self.expired.iter().filter(|(db, _)| *db < self.visible as usize) {
            visit(Some(*db as u32), &mut [b"DEL", &**key].into_iter());
        }
        let Some(effects) = &self.effects else { return };
        effects.each(&mut |db, words| {
            if db.is_none_or(|db| db < self.visible) {
                visit(db, words);
            }
        });
    }

    fn bytes(&self) -> usize {
        let expired: usize = self.expired.iter().map(|(_, key)| key.len() + 16).sum();
        expired + self.effects.as_ref().map_or(0, |effects| effects.bytes())
    }
}

impl Keyspace {
    /// Makes a sink hear of every write from now on, in place of any other. Returns the LSN behind which it
    /// hears of all (T7). Takes all shard locks for some 20 µs. O(commits under way).
    pub fn listen(&self, sink: Arc<dyn CommitSink>) -> Lsn {
        self.change_listener(Some(sink))
    }

    /// Ends listening. Returns the LSN up to which the sink heard of all.
    pub fn unlisten(&self) -> Lsn {
        self.change_listener(None)
    }

    /// Makes a second sink hear of every write from now on, whoever listens beside it. Once, and in debug
    /// builds.
    #[cfg(debug_assertions)]
    pub fn shadow(&self, sink: Arc<dyn CommitSink>) {
        let beside = self.sequence.tell.sink.lock().clone();
        if self.sequence.tell.shadow.set(sink).is_ok() {
            self.change_listener(beside);
        }
    }

    /// Tells a shadow that contents changed, or will, without being told. O(1), and nothing in release builds.
    #[inline]
    pub fn tell_replaced(&self) {
        #[cfg(debug_assertions)]
        if let Some(shadow) = self.sequence.tell.shadow.get() {
            shadow.mark(self.last_lsn(), Mark::REPLACED);
        }
    }

    fn change_listener(&self, sink: Option<Arc<dyn CommitSink>>) -> Lsn {
        let guard = self.lock(Bits::below(SHARDS));
        let tell = &self.sequence.tell;
        #[cfg(debug_assertions)]
        let sink = tell.with_shadow(sink);
        let listens = sink.is_some();
        tell.replace(sink);
        self.sequence.set_listens(listens);
        if listens {
            tell.epoch.fetch_add(1, Ordering::SeqCst);
            self.underway.end(&self.sequence, None);
        }
        let lsn = self.sequence.draw();
        drop(guard);
        lsn
    }

    /// Whether a sink listens to writes. Under a lock, the answer holds until it is released.
    #[inline]
    pub fn listens(&self) -> bool {
        self.sequence.listens()
    }

    /// The number of times that listening began. Changes noted before the last of them are lost (T7).
    #[inline]
    pub(crate) fn listen_epoch(&self) -> u64 {
        self.sequence.tell.epoch.load(Ordering::SeqCst)
    }

    /// The LSN up to which all that is told was told (T2).
    pub fn settled(&self) -> Lsn {
        self.sequence.tell.slots.settled(|| self.sequence.last())
    }

    /// Tells a command that took effect; the locks of its keys are held. O(its words).
    #[inline]
    pub fn tell(&self, at: At, words: &mut dyn Iterator<Item = &[u8]>) {
        if at.db.is_none_or(|db| self.is_visible(db)) && self.listens() {
            self.sequence.tell.heard(|sink| sink.words(at, words));
            if at.to != To::Replicas {
                self.sequence.tell.tell_carried(at.lsn);
            }
        }
    }

    /// Tells something that changes nothing (PUBLISH), at an LSN of its own. `None`: nobody listens. O(its
    /// words).
    pub fn tell_apart(&self, to: To, words: &mut dyn Iterator<Item = &[u8]>) -> Option<Lsn> {
        if !self.listens() {
            return None;
        }
        Some(self.sequence.draw_told(|lsn| self.tell(At { lsn, db: None, to }, words)))
    }

    /// Tells the effects of a commit; the locks of its keys are held. O(1).
    pub fn tell_shared(&self, lsn: Lsn, effects: Arc<dyn Effects>) {
        if let Some(effects) = self.group(Vec::new(), Some(effects)) {
            self.sequence.tell.shared(lsn, effects);
        }
    }

    /// Marks the place of a walk's LSN; called where the walk says it ([`crate::Walk::begin_marked`]).
    pub fn tell_mark(&self, lsn: Lsn, mark: Mark) {
        self.sequence.tell.heard(|sink| sink.mark(lsn, mark));
    }

    /// Marks a place in the stream, between two groups. `None`: nobody listens.
    pub fn mark_now(&self, mark: Mark) -> Option<Lsn> {
        self.listens().then(|| self.sequence.draw_told(|lsn| self.tell_mark(lsn, mark)))
    }

    /// Lets the sequence go on behind an LSN, after a start. No LSN was drawn behind it yet.
    pub fn start_at(&self, lsn: Lsn) {
        self.sequence.start_at(lsn);
    }

    /// Tells a change that the keyspace made by itself. The locks are held.
    pub(crate) fn tell_sink(&self, lsn: Lsn, db: usize, words: &[&[u8]]) {
        self.tell(At::db(lsn, db), &mut words.iter().copied());
    }

    #[inline]
    fn is_visible(&self, db: u32) -> bool {
        (db as usize) < self.databases()
    }

    /// The effects of a long commit as they are told. Those of hidden databases are left out (T5), and
    /// removals of keys that it found expired go first. `None`: nobody listens, or there is nothing to tell.
    pub(crate) fn group(&self, expired: Vec<(usize, Box<[u8]>)>, effects: Announce) -> Announce {
        let any = !expired.is_empty() || effects.is_some();
        let visible = self.databases() as u32;
        (any && self.listens()).then(|| Arc::new(Group { expired, effects, visible }) as Arc<dyn Effects>)
    }
}

/// The bytes of the primary's stream, on a replica (T8, `tell/carry.rs`).
impl Keyspace {
    /// A command of the primary begins: its bytes, and the database behind it. `counts`: the offset of the link
    /// counts all before it. O(bytes)
    pub fn carry(&self, bytes: &[u8], db: usize, counts: bool) {
        self.sequence.tell.carry.begin(bytes, db as u32, counts);
    }

    /// It has ended. `db`: the database behind it. O(its bytes)
    pub fn carry_done(&self, db: usize) {
        self.sequence.tell.carry.done(db as u32);
    }

    /// It will run again later: its bytes come again. O(1)
    pub fn carry_again(&self) {
        self.sequence.tell.carry.again();
    }

    /// Tells bytes that caused no effect, at an LSN of their own. Not while a command is under way. O(bytes)
    pub fn carry_apart(&self) {
        let tell = &self.sequence.tell;
        if tell.carry.is_there() && self.listens() {
            self.sequence.draw_told(|lsn| tell.tell_carried(lsn));
        }
    }

    /// The link has ended: tells what its offset counts, and drops the rest, which comes again. O(bytes)
    pub fn carry_end(&self) {
        self.sequence.tell.carry.keep_counted();
        self.carry_apart();
        self.sequence.tell.carry.nothing();
    }
}
