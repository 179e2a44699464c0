//! The one stream of writes: who hears of them, and in what form.
//!
//! ```text
//! a command's words ─► words()  ─┐
//! a list of commands ─► shared() ├─► CommitSink: a log, replicas
//! a place in the stream ─► mark() ┘
//! ```
//!
//! - T5: a write of a hidden database is told to nobody. This is the only place that looks.
//! - T6: what is told at one LSN is a *group*: all of it or nothing takes effect. A thread tells it in the order
//!   in which it takes effect.

use crate::Keyspace;
use crate::sequence::Lsn;
use std::sync::{Arc, OnceLock};

/// Receives every write: for a log, for replicas. An expiry arrives as the removal it is (DEL, HDEL).
///
/// Several threads call it at once, and LSNs need not come in order. Shard locks may be held during a call: note
/// the effect, never wait.
pub trait CommitSink: Send + Sync {
    /// A command took effect. Its words are valid during the call.
    fn words(&self, at: At, words: &mut dyn Iterator<Item = &[u8]>);

    /// Many commands took effect together. O(1): the effects are kept, and written out later.
    fn shared(&self, at: At, effects: Arc<dyn Effects>);

    /// A place in the stream, behind everything told at earlier LSNs.
    fn mark(&self, lsn: Lsn, mark: Mark);
}

/// Where in the stream something is told, and to whom.
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

/// Who hears of something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum To {
    All,
    Replicas,
    Log,
}

/// The name of a place in the stream. The caller numbers them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark(pub u64);

/// Receives the effects of a list: the database, if the command has one, and the words.
pub type EffectVisitor<'a> = dyn FnMut(Option<u32>, &mut dyn Iterator<Item = &[u8]>) + 'a;

/// The commands that one commit told, kept until they are written out.
pub trait Effects: Send + Sync {
    /// Gives the commands in the order in which they take effect. O(their words).
    fn each(&self, visit: &mut EffectVisitor<'_>);

    /// The bytes of all words, estimated. O(commands).
    fn bytes(&self) -> usize;
}

/// The effects of a long commit. `None`: nobody hears of it, or there is nothing to be told.
pub type Announce = Option<Arc<dyn Effects>>;

/// Tells the listener. See the module.
#[derive(Default)]
pub(crate) struct Tell {
    sink: OnceLock<Arc<dyn CommitSink>>,
}

impl Tell {
    /// Tells the effects of a long commit.
    pub(crate) fn shared(&self, lsn: Lsn, effects: Arc<dyn Effects>) {
        if let Some(sink) = self.sink.get() {
            sink.shared(At { lsn, db: None, to: To::All }, effects);
        }
    }
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
    /// Has a sink hear of every write from now on. Only the first call counts.
    pub fn listen(&self, sink: Arc<dyn CommitSink>) {
        let _ = self.sequence.tell.sink.set(sink);
    }

    /// Whether anybody hears of writes.
    #[inline]
    pub fn listens(&self) -> bool {
        self.sequence.tell.sink.get().is_some()
    }

    /// Tells a command that took effect; the locks of its keys are held. O(its words).
    pub fn tell(&self, at: At, words: &mut dyn Iterator<Item = &[u8]>) {
        if let Some(sink) = self.sequence.tell.sink.get()
            && at.db.is_none_or(|db| self.is_visible(db))
        {
            sink.words(at, words);
        }
    }

    /// Tells the effects of a commit; the locks of its keys are held. O(1).
    pub fn tell_shared(&self, lsn: Lsn, effects: Arc<dyn Effects>) {
        if let Some(effects) = self.group(Vec::new(), Some(effects)) {
            self.sequence.tell.shared(lsn, effects);
        }
    }

    /// Tells something that changes no key, at an LSN of its own. O(its words).
    pub fn tell_apart(&self, to: To, words: &mut dyn Iterator<Item = &[u8]>) {
        if self.listens() {
            let lsn = self.sequence.draw();
            self.tell(At { lsn, db: None, to }, words);
        }
    }

    /// Tells what the keyspace did by itself; the locks are held.
    pub(crate) fn tell_sink(&self, lsn: Lsn, db: usize, words: &[&[u8]]) {
        self.tell(At::db(lsn, db), &mut words.iter().copied());
    }

    fn is_visible(&self, db: u32) -> bool {
        (db as usize) < self.databases()
    }

    /// The effects of a long commit as they are told: those of hidden databases are left out (T5), and keys that
    /// it found expired go first. `None`: there is nobody to hear of it, or nothing to be told.
    pub(crate) fn group(&self, expired: Vec<(usize, Box<[u8]>)>, effects: Announce) -> Announce {
        let any = !expired.is_empty() || effects.is_some();
        let visible = self.databases() as u32;
        (any && self.listens()).then(|| Arc::new(Group { expired, effects, visible }) as Arc<dyn Effects>)
    }
}
