//! The destination of loaded keys.

use crate::stream::HistoryPlace;
use keyspace::{Keyspace, View};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use value::Value;

/// A key as it was read.
#[derive(Debug)]
pub struct Loaded {
    pub db: u32,
    pub key: Box<[u8]>,
    pub value: Value,
    /// The expiry, in milliseconds since 1970. It may have passed.
    pub expire_ms: Option<u64>,
    pub idle_s: Option<u64>,
    pub freq: Option<u8>,
}

/// The reason why a key of a batch was not taken. The keys before it were taken, those behind it were not.
#[derive(Debug)]
pub enum NotTaken {
    /// It is there already.
    Twice(usize),
    Refused(usize, String),
}

/// Takes what is loaded. Called from several threads.
pub trait Install: Sync {
    /// Number of databases.
    fn databases(&self) -> u64 {
        u64::from(u32::MAX)
    }

    /// A fact about the file. Called by the thread that reads, in order, as is `function`.
    fn aux(&self, name: &[u8], value: &[u8]) {
        let _ = (name, value);
    }

    /// The code of a library.
    ///
    /// Errors: the library cannot be taken, and the load fails.
    fn function(&self, code: &[u8]) -> Result<(), String>;

    /// Takes keys, in the order of the file.
    fn install(&self, batch: &mut Vec<Loaded>) -> Result<(), NotTaken>;
}

/// Installs into a keyspace that no one else writes to. Libraries go to a closure.
pub struct IntoKeyspace<'k, F> {
    keyspace: &'k Keyspace,
    now_ms: u64,
    functions: F,
    expired: AtomicU64,
    merges: bool,
    stream_db: AtomicU64,
    /// The place in the replicas' history that the file names: its id and its offset.
    place: Mutex<(Option<String>, Option<u64>)>,
    /// The file is one of a history: what has expired stays, as its removal is told to those who follow.
    is_of_history: AtomicBool,
}

impl<'k, F: Fn(&[u8]) -> Result<(), String> + Sync> IntoKeyspace<'k, F> {
    /// Keys that have expired at `now_ms` are left out, but with 0 none are. Fields keep their times: the
    /// keyspace removes them itself.
    pub fn new(keyspace: &'k Keyspace, now_ms: u64, functions: F) -> IntoKeyspace<'k, F> {
        IntoKeyspace {
            keyspace,
            now_ms,
            functions,
            expired: AtomicU64::new(0),
            merges: false,
            stream_db: AtomicU64::new(0),
            place: Mutex::default(),
            is_of_history: AtomicBool::new(false),
        }
    }

    /// Whether keys of the file take the place of present ones. Else a present one ends the load.
    pub fn merging(self, merges: bool) -> Self {
        IntoKeyspace { merges, ..self }
    }

    /// The database in which the stream goes on that the file is the begin of (`repl-stream-db`).
    pub fn stream_db(&self) -> usize {
        self.stream_db.load(Ordering::Relaxed) as usize
    }

    /// The place in the replicas' history that the file names (`repl-id`, `repl-offset`).
    pub fn place(&self) -> Option<HistoryPlace> {
        let (id, offset) = self.place.lock().clone();
        Some(HistoryPlace { id: id?, offset: offset?, db: self.stream_db() as u32 })
    }

    /// Keys that were left out because they had expired.
    pub fn expired(&self) -> u64 {
        self.expired.load(Ordering::Relaxed)
    }
}

impl<F: Fn(&[u8]) -> Result<(), String> + Sync> Install for IntoKeyspace<'_, F> {
    fn databases(&self) -> u64 {
        self.keyspace.databases() as u64
    }

    fn aux(&self, name: &[u8], value: &[u8]) {
        let number = || std::str::from_utf8(value).ok()?.parse::<u64>().ok();
        match name {
            b"repl-id" if value.len() == 40 && value.iter().all(u8::is_ascii_alphanumeric) => {
                self.place.lock().0 = std::str::from_utf8(value).ok().map(str::to_owned);
                self.is_of_history.store(true, Ordering::Relaxed);
            }
            b"repl-offset" => self.place.lock().1 = number(),
            _ => {}
        }
        if name == b"repl-stream-db"
            && let Some(db) = number().filter(|db| *db < self.databases())
        {
            self.stream_db.store(db, Ordering::Relaxed);
        }
    }

    fn function(&self, code: &[u8]) -> Result<(), String> {
        (self.functions)(code)
    }

    /// Cost: O(1) a key, under the lock of its shard.
    fn install(&self, batch: &mut Vec<Loaded>) -> Result<(), NotTaken> {
        let leaves_out = self.now_ms > 0 && !self.is_of_history.load(Ordering::Relaxed);
        // They count as used now, whether or not any expires.
        let at_ms = if self.now_ms == 0 { stdx::clock::wall_ms() } else { self.now_ms };
        for (index, loaded) in batch.drain(..).enumerate() {
            if leaves_out && loaded.expire_ms.is_some_and(|at| at <= self.now_ms) {
                self.expired.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let db = loaded.db as usize;
            if db >= self.keyspace.databases() {
                return Err(NotTaken::Refused(index, format!("there is no database {db} here")));
            }
            let mut view = View::locked_one(self.keyspace, &loaded.key, db, at_ms);
            view.set_quiet(true);
            if self.now_ms == 0 {
                view.set_expired_live();
            }
            if !self.merges && view.exists(&loaded.key) {
                return Err(NotTaken::Twice(index));
            }
            view.put(&loaded.key, loaded.value, loaded.expire_ms);
            if let Some(idle_s) = loaded.idle_s {
                view.set_idle(&loaded.key, idle_s);
            }
            // No client watches, waits or is told while data is loaded.
            let _ = view.finish();
        }
        Ok(())
    }
}
