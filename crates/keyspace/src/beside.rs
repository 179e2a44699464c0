//! Changes of something that is no key, such as libraries of functions, in the order of the sequence.
//!
//! ```text
//! alone:            lock of one shard ─► change, told at an LSN of its own
//! with a commit:    locks of its keys and of that shard ─► keys, change and effects, told at one LSN
//! ```
//!
//! - B1: such a change is made while its shard is locked. A walk begins under all locks, so it comes wholly
//!   before the change or wholly after it.
//! - B2: a commit with such a change checks under that lock whether the change can still be made. If not, it
//!   has lost a race.
//! - B3: a long commit makes the change with its decision. Its keys may still be unfolded, but everybody sees
//!   them by then.

use crate::Keyspace;
use crate::sequence::Lsn;
use crate::tell::{EffectVisitor, Effects};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use stdx::locks::Bits;

/// The shard whose lock such a change needs (B1).
pub const BESIDE: usize = 0;

/// A change that is made with a commit, O(1). See the module.
pub trait Beside: Send + Sync {
    /// Whether the change can still be made (B2).
    fn holds(&self) -> bool;

    /// Makes the change.
    fn make(&self);
}

/// The words of such a change, to be told by pointer.
struct BesideWords(Vec<Box<[u8]>>);

impl Effects for BesideWords {
    fn each(&self, visit: &mut EffectVisitor<'_>) {
        visit(None, &mut self.0.iter().map(|word| &**word));
    }

    fn bytes(&self) -> usize {
        self.0.iter().map(|word| word.len() + 16).sum()
    }
}

impl Keyspace {
    /// Counts such a change among those since the last snapshot.
    pub(crate) fn changed_beside(&self) {
        self.stats.dirty.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes a change beside the keys that returns whether it was made, and tells its words at an LSN of its
    /// own. `None`: it was not made. `Some(None)`: nobody listens. O(words); under one shard's lock O(1).
    pub fn change_beside(
        &self,
        change: impl FnOnce() -> bool,
        words: Option<&mut dyn Iterator<Item = &[u8]>>,
    ) -> Option<Option<Lsn>> {
        let words = words.map(|words| Arc::new(BesideWords(words.map(Box::from).collect())));
        let guard = self.lock(Bits::one(BESIDE));
        if !change() {
            return None;
        }
        let words = words.filter(|_| self.listens());
        let told = words.map(|words| self.sequence.draw_told(|lsn| self.tell_shared(lsn, words)));
        told.into_iter().for_each(|lsn| self.note_recent_beside(lsn));
        drop(guard);
        Some(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Announce, At, CommitSink, Mark, Overlay, Progress, Snapshot, View};
    use parking_lot::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    /// The told commands: LSN and words.
    #[derive(Clone, Default)]
    struct Heard(Arc<Mutex<Vec<(Lsn, String)>>>);

    impl CommitSink for Heard {
        fn words(&self, at: At, words: &mut dyn Iterator<Item = &[u8]>) {
            let words: Vec<_> = words.map(String::from_utf8_lossy).collect();
            self.0.lock().push((at.lsn, words.join(" ")));
        }

        fn shared(&self, at: At, effects: Arc<dyn Effects>) {
            effects.each(&mut |_, words| self.words(at, words));
        }

        fn mark(&self, _: Lsn, _: Mark) {}
    }

    struct Change;

    impl Effects for Change {
        fn each(&self, visit: &mut crate::EffectVisitor<'_>) {
            visit(Some(0), &mut [&b"SET"[..], b"k", b"v"].into_iter());
            visit(Some(0), &mut [&b"FUNCTION"[..], b"FLUSH"].into_iter());
        }

        fn bytes(&self) -> usize {
            1
        }
    }

    /// A thing with a version that may be changed once.
    #[derive(Clone, Default)]
    struct Thing {
        taken: Arc<AtomicBool>,
        made: Arc<AtomicU64>,
    }

    impl Beside for Thing {
        fn holds(&self) -> bool {
            !self.taken.load(Ordering::SeqCst)
        }

        fn make(&self) {
            self.made.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Commits a change of a thing, and perhaps a key. True: it is committed.
    fn commits(keyspace: &Arc<Keyspace>, thing: &Thing, key: bool, in_pieces: bool) -> bool {
        let mut overlay = Overlay::new(Snapshot::open(keyspace).expect("a place"), None);
        let mut view = View::overlay(keyspace, &mut overlay, 0, 1);
        if key {
            view.put_string(b"k", b"v", None);
        }
        view.finish();
        overlay.brings(Box::new(thing.clone()));
        assert!(overlay.is_dirty());
        let announce: Announce = Some(Arc::new(Change));
        if !in_pieces {
            return overlay.commit(1, announce).is_ok();
        }
        let mut commit = overlay.seal(1, announce);
        loop {
            match commit.advance(1, 1, &mut Vec::new()) {
                Progress::More => {}
                progress => return progress != Progress::Lost,
            }
        }
    }

    #[test]
    fn a_change_is_made_and_told_with_the_keys_of_its_commit_or_not_at_all() {
        for (key, in_pieces) in [(false, false), (false, true), (true, false), (true, true)] {
            let (keyspace, heard, thing) = (Keyspace::new(2), Heard::default(), Thing::default());
            keyspace.listen(Arc::new(heard.clone()));
            assert!(commits(&keyspace, &thing, key, in_pieces));
            let told = std::mem::take(&mut *heard.0.lock());
            let words: Vec<&str> = told.iter().map(|(_, words)| &**words).collect();
            assert_eq!(words, ["SET k v", "FUNCTION FLUSH"]);
            assert!(told[0].0 == told[1].0 && told[0].0 > 0);
            assert_eq!((thing.made.load(Ordering::SeqCst), keyspace.len(0)), (1, usize::from(key)));
            // Somebody else changed it since: the race is lost.
            thing.taken.store(true, Ordering::SeqCst);
            assert!(!commits(&keyspace, &thing, key, in_pieces));
            assert!(heard.0.lock().is_empty());
            assert_eq!(thing.made.load(Ordering::SeqCst), 1);
            keyspace.check_invariants();
        }
    }

    #[test]
    fn a_change_alone_is_told_in_its_order_and_waits_for_all_locks() {
        let (keyspace, heard, made) = (Keyspace::new(2), Heard::default(), AtomicBool::new(false));
        let words = || [&b"FUNCTION"[..], b"FLUSH"].into_iter();
        let change = || !made.swap(true, Ordering::SeqCst);
        assert_eq!(keyspace.change_beside(change, Some(&mut words())), Some(None));
        keyspace.listen(Arc::new(heard.clone()));
        assert_eq!(keyspace.change_beside(change, Some(&mut words())), None);
        assert!(heard.0.lock().is_empty());
        made.store(false, Ordering::SeqCst);
        std::thread::scope(|scope| {
            // As a walk that begins.
            let view = View::whole(&keyspace, 0, 1);
            let changes = scope.spawn(|| keyspace.change_beside(change, Some(&mut words())));
            let until = std::time::Instant::now() + std::time::Duration::from_millis(50);
            while std::time::Instant::now() < until {
                assert!(!made.load(Ordering::SeqCst) && heard.0.lock().is_empty());
            }
            view.finish();
            let lsn = changes.join().expect("no panic").flatten().expect("somebody listens");
            assert_eq!(*heard.0.lock(), [(lsn, "FUNCTION FLUSH".to_owned())]);
        });
        assert!(made.load(Ordering::SeqCst));
    }
}
