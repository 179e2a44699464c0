//! A snapshot on its way to replicas: one file, many readers, also while it grows.
//!
//! - SP1: the file has no name; its room is free when the last reader has gone.
//! - SP2: the stream from its mark on is kept while it lives, so that one who comes late can read both from the
//!   begin.

use super::Primary;
use super::peer::Kind;
use crate::backlog::{Backlog, Hold, Marked};
use keyspace::{Lsn, Mark};
use parking_lot::Mutex;
use persist::Spool;
use rdb::Dialect;
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// See the module.
pub(super) struct SpoolFile {
    backlog: Arc<Backlog>,
    primary: Weak<Primary>,
    kind: Kind,
    mark: Mark,
    state: Mutex<State>,
    grown: AtomicU64,
    in_memory: AtomicBool,
    /// Bytes counted in [`super::Counts::in_memory`].
    counted: AtomicU64,
}

/// The file, as far as it is known.
#[derive(Default)]
struct State {
    begun: Option<Begun>,
    whole: Option<Result<u64, String>>,
}

/// The begin of a file: who reads it goes on behind it at an offset of a history.
pub(super) struct Begun {
    pub(super) file: Arc<File>,
    hold: Hold,
    pub(super) offset: u64,
    pub(super) id: String,
}

/// The next step of a reader.
pub(super) enum Look {
    /// The snapshot has not begun.
    Waits,
    Failed(String),
    /// Bytes that can be read, and whether these are all.
    Grown(u64, bool),
}

/// A mark in the stream of the replicas that was not used yet.
pub(super) fn next_mark() -> Mark {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    Mark::of_replicas(NEXT.fetch_add(1, Ordering::Relaxed))
}

impl SpoolFile {
    pub(super) fn new(primary: &Arc<Primary>, kind: Kind) -> Arc<SpoolFile> {
        let mark = next_mark();
        Arc::new(SpoolFile {
            backlog: primary.backlog.clone(),
            primary: Arc::downgrade(primary),
            kind,
            mark,
            state: Mutex::default(),
            grown: AtomicU64::new(0),
            in_memory: AtomicBool::new(false),
            counted: AtomicU64::new(0),
        })
    }

    /// Counts what the file takes of memory.
    fn count(&self, bytes: u64) {
        if self.in_memory.load(Ordering::Acquire)
            && let Some(primary) = self.primary.upgrade()
        {
            let before = self.counted.swap(bytes, Ordering::AcqRel);
            primary.counts.copies_in_memory.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
        }
    }

    /// Whether one who comes now may read it.
    pub(super) fn may_join(&self, kind: Kind) -> bool {
        let state = self.state.lock();
        let is_whole = !matches!(state.whole, Some(Err(_)));
        let is_broken = state.begun.as_ref().is_some_and(|begun| begun.hold.is_broken());
        self.kind == kind && is_whole && !is_broken
    }

    pub(super) fn look(&self) -> Look {
        let state = self.state.lock();
        match (&state.begun, &state.whole) {
            (_, Some(Err(why))) => Look::Failed(why.clone()),
            (Some(begun), _) if begun.hold.is_broken() => Look::Failed("the stream broke".to_owned()),
            (Some(_), Some(Ok(bytes))) => Look::Grown(*bytes, true),
            (Some(_), None) => Look::Grown(self.grown.load(Ordering::Acquire), false),
            (None, _) => Look::Waits,
        }
    }

    /// The file, the id and the offset, and a hold of what follows. None: it has not begun.
    pub(super) fn begun(&self) -> Option<(Arc<File>, String, u64, Hold)> {
        let state = self.state.lock();
        let begun = state.begun.as_ref()?;
        Some((begun.file.clone(), begun.id.clone(), begun.offset, begun.hold.again()))
    }

    fn tell(&self) {
        if let Some(primary) = self.primary.upgrade() {
            primary.host.tell_loops();
        }
    }
}

impl Spool for SpoolFile {
    fn mark(&self) -> Mark {
        self.mark
    }

    fn format(&self) -> (Dialect, u16) {
        (self.kind.dialect, self.kind.version)
    }

    fn foreign(&self) -> i64 {
        self.kind.foreign
    }

    fn begun(&self, lsn: Lsn, file: File, in_memory: bool) -> Result<Vec<(&'static str, String)>, String> {
        let Marked { hold, offset, id, db } = self.backlog.at_mark(self.mark, lsn)?;
        let facts = vec![
            ("repl-stream-db", db.to_string()),
            ("repl-id", id.clone()),
            ("repl-offset", offset.to_string()),
        ];
        self.in_memory.store(in_memory, Ordering::Release);
        self.state.lock().begun = Some(Begun { file: Arc::new(file), hold, offset, id });
        self.tell();
        Ok(facts)
    }

    fn grown(&self, bytes: u64) {
        self.count(bytes);
        self.grown.store(bytes, Ordering::Release);
        self.tell();
    }

    fn ended(&self, whole: Result<u64, &str>) {
        self.backlog.forget_mark(self.mark);
        if let Ok(bytes) = whole {
            self.count(bytes);
        }
        self.state.lock().whole = Some(whole.map_err(str::to_owned));
        self.tell();
    }
}

impl Drop for SpoolFile {
    fn drop(&mut self) {
        self.count(0);
    }
}
