//! A second keyspace that executes at once what the first one tells, in debug builds.
//!
//! ```text
//! keyspace ─► told words ─► log, replicas
//!    │            └──────► Shadow::note ─► Shadow::step: Replay ─► second keyspace
//!    └─────────────── equal at a moment, keys that have expired too ───┘
//! ```
//!
//! - H1: no told command fails.
//! - H2: at each LSN both keyspaces hold the same.
//! - H3: what changes without being told (a load, DEBUG POPULATE) begins the shadow anew
//!   ([`Keyspace::tell_replaced`]).
//!
//! Values above [`COMPARED`] and keyspaces above [`KEYS`] are not compared, as debug builds take long for them.

use crate::contents::{self, Contents};
use crate::{Host, Replay};
use command::{Command, Error};
use keyspace::{At, Changes, CommitSink, Effects, Keyspace, Lsn, Mark, Owned, View};
use parking_lot::Mutex;
use resp::Args;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Elements, or bytes of a string, above which a value is not compared.
const COMPARED: usize = 100_000;
/// Keys above which nothing is compared.
const KEYS: usize = 50_000;
/// Characters of an error's list of commands.
const SHOWN: usize = 4000;

/// A keyspace with its shadow. See the module.
pub struct Shadow {
    first: Arc<Keyspace>,
    second: Arc<Second>,
    replay: Replay<Second>,
    notes: Arc<Notes>,
    /// The commands since the last comparison, as text.
    recent: Vec<String>,
    applied: Lsn,
    /// Something was told since the last comparison.
    told: bool,
}

/// Told commands that are not executed yet.
#[derive(Default)]
struct Notes {
    told: Mutex<Vec<(Lsn, Note)>>,
    /// H3
    replaced: AtomicBool,
}

enum Note {
    Words(Option<u32>, Vec<Vec<u8>>),
    Shared(Arc<dyn Effects>),
}

/// The owner of the second keyspace. Nobody is told of its changes.
struct Second {
    keyspace: Arc<Keyspace>,
}

impl Host for Second {
    fn keyspace(&self) -> &Arc<Keyspace> {
        &self.keyspace
    }

    fn tell(&self, _: Changes) {}

    fn publish(&self, _: bool, _: &[u8], _: &[u8]) {}

    fn change_libraries(&self, _: &'static Command, _: Args<'_>, _: bool) -> Result<(), Error> {
        Ok(())
    }
}

impl CommitSink for Notes {
    fn words(&self, at: At, words: &mut dyn Iterator<Item = &[u8]>) {
        let note = Note::Words(at.db, words.map(<[u8]>::to_vec).collect());
        self.told.lock().push((at.lsn, note));
    }

    fn shared(&self, at: At, effects: Arc<dyn Effects>) {
        self.told.lock().push((at.lsn, Note::Shared(effects)));
    }

    fn mark(&self, _: Lsn, mark: Mark) {
        if mark == Mark::REPLACED {
            self.replaced.store(true, Ordering::SeqCst);
        }
    }
}

impl Shadow {
    /// Begins to follow a keyspace. O(its keys).
    pub fn follow(first: &Arc<Keyspace>) -> Shadow {
        let second = Arc::new(Second { keyspace: Keyspace::new(first.databases()) });
        second.keyspace.set_active_expire(false);
        let notes = Arc::new(Notes::default());
        notes.replaced.store(true, Ordering::SeqCst);
        first.shadow(notes.clone());
        let replay = Replay::new(&second);
        Shadow { first: first.clone(), second, replay, notes, recent: Vec::new(), applied: 0, told: true }
    }

    /// Executes what was told. O(that).
    ///
    /// # Errors
    /// A command fails (H1); the text names it and its group.
    pub fn step(&mut self) -> Result<(), String> {
        self.step_to(self.first.settled()).map(|_| ())
    }

    /// Executes what was told, and compares the keyspaces as of now (H2). O(keys + sizes of values). Holds
    /// all locks while it clones.
    ///
    /// # Errors
    /// They differ; the text names a key.
    pub fn compare(&mut self) -> Result<(), String> {
        self.step()?;
        if !std::mem::take(&mut self.told) {
            return Ok(());
        }
        if (0..self.first.databases()).map(|db| self.first.len(db)).sum::<usize>() > KEYS {
            self.recent.clear();
            return Ok(());
        }
        let (ours, lsn) = contents::moment(&self.first);
        while self.first.settled() < lsn {
            std::thread::yield_now();
        }
        if self.step_to(lsn)? || self.applied > lsn || self.notes.replaced.load(Ordering::SeqCst) {
            return Ok(());
        }
        let (ours, theirs) = (plain(ours), plain(contents::moment(&self.second.keyspace).0));
        stdx::reclaim::flush();
        let recent = std::mem::take(&mut self.recent);
        let Some(((_, key), difference)) = contents::difference(&ours, &theirs) else { return Ok(()) };
        let key = key.escape_ascii().to_string();
        let about = |line: &&String| line.contains(&key) || line.contains("FLUSH") || line.contains("SWAP");
        let lines: Vec<String> = recent.iter().filter(about).cloned().collect();
        Err(format!("at {lsn}, {difference}\ntold of it:\n{}", lines.join("\n")))
    }

    /// Returns whether the shadow began anew.
    fn step_to(&mut self, lsn: Lsn) -> Result<bool, String> {
        let mut told = {
            let mut all = self.notes.told.lock();
            let (now, later) = std::mem::take(&mut *all).into_iter().partition(|(at, _)| *at <= lsn);
            *all = later;
            now
        };
        if self.notes.replaced.swap(false, Ordering::SeqCst) {
            self.begin_anew();
            self.told = true;
            return Ok(true);
        }
        self.told |= !told.is_empty();
        told.sort_by_key(|(at, _): &(Lsn, Note)| *at);
        told.chunk_by(|a, b| a.0 == b.0).filter(|group| group[0].0 > self.applied).try_for_each(|group| {
            let mut commands = Vec::new();
            for (_, note) in group {
                match note {
                    Note::Words(db, words) => commands.push((*db, words.clone())),
                    Note::Shared(effects) => effects.each(&mut |db, words| {
                        commands.push((db, words.map(<[u8]>::to_vec).collect()));
                    }),
                }
            }
            execute(&mut self.replay, group[0].0, &commands, &mut self.recent)
        })?;
        self.applied = self.applied.max(lsn);
        stdx::reclaim::flush();
        Ok(false)
    }

    /// Makes the second keyspace a copy of the first one (H3).
    fn begin_anew(&mut self) {
        let (all, lsn) = contents::moment(&self.first);
        self.replay = Replay::new(&self.second);
        self.recent.clear();
        let mut view = View::whole(&self.second.keyspace, 0, 1);
        view.set_expired_live();
        for db in 0..self.first.databases() {
            view.flush(Some(db));
        }
        for (db, key, Owned { value, expire_ms }) in all {
            view.select(db);
            view.put(&key, value, expire_ms);
        }
        let _ = view.finish();
        self.applied = lsn;
    }
}

/// Executes the commands of one LSN.
fn execute(
    replay: &mut Replay<Second>,
    lsn: Lsn,
    commands: &[(Option<u32>, Vec<Vec<u8>>)],
    recent: &mut Vec<String>,
) -> Result<(), String> {
    let from = recent.len();
    let alone = commands.len() == 1;
    let mut done = if alone { Ok(()) } else { replay.apply(&[b"MULTI"]) };
    for (db, words) in commands {
        recent.push(line(lsn, *db, words));
        if let Some(db) = db {
            done = done.and(replay.apply(&[b"SELECT", db.to_string().as_bytes()]));
        }
        done = done.and(replay.apply(&words.iter().map(Vec::as_slice).collect::<Vec<_>>()));
    }
    if !alone {
        done = done.and(replay.apply(&[b"EXEC"]));
    }
    done.map_err(|error| {
        let group: String = recent[from..].join("\n").chars().take(SHOWN).collect();
        format!("{error}, in what was told at {lsn}:\n{group}")
    })
}

fn line(lsn: Lsn, db: Option<u32>, words: &[Vec<u8>]) -> String {
    let shown = words.iter().take(50).map(|word| word[..word.len().min(60)].escape_ascii().to_string());
    format!("{lsn:6} {db:?} {}", shown.collect::<Vec<_>>().join(" "))
}

/// The contents, without large values.
fn plain(mut all: Vec<(usize, Vec<u8>, Owned)>) -> Contents {
    all.retain(|(_, _, owned)| contents::size(&owned.value) <= COMPARED);
    contents::plainly(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(keyspace: &Keyspace, key: &[u8], told: &[&[u8]]) {
        let mut view = View::locked_one(keyspace, key, 0, 1);
        view.put_string(key, b"v", None);
        if !told.is_empty() {
            keyspace.tell(At::db(keyspace.last_lsn(), 0), &mut told.iter().copied());
        }
        view.finish();
    }

    #[test]
    fn a_write_that_is_told_makes_both_equal() {
        let first = Keyspace::new(2);
        put(&first, b"before", &[]);
        let mut shadow = Shadow::follow(&first);
        assert_eq!(shadow.compare(), Ok(()));
        put(&first, b"k", &[b"SET", b"k", b"v"]);
        assert_eq!((shadow.step(), shadow.compare()), (Ok(()), Ok(())));
    }

    #[test]
    fn a_write_that_is_not_told_or_told_wrongly_is_a_difference() {
        let wrong: [&[&[u8]]; 3] = [&[], &[b"SET", b"k", b"w"], &[b"SET", b"l", b"v"]];
        for told in wrong {
            let first = Keyspace::new(2);
            let mut shadow = Shadow::follow(&first);
            assert_eq!(shadow.compare(), Ok(()));
            put(&first, b"k", told);
            put(&first, b"m", &[b"SET", b"m", b"v"]);
            let error = shadow.compare().unwrap_err();
            assert!(error.contains("database 0, "), "{told:?}: {error}");
        }
    }

    #[test]
    fn a_told_command_that_fails_is_an_error_with_its_words() {
        let first = Keyspace::new(2);
        let mut shadow = Shadow::follow(&first);
        assert_eq!(shadow.compare(), Ok(()));
        put(&first, b"k", &[b"SET", b"k", b"v"]);
        put(&first, b"k", &[b"LPUSH", b"k", b"v"]);
        let error = shadow.step().unwrap_err();
        assert!(error.contains("WRONGTYPE") && error.contains("LPUSH k v"), "{error}");
    }

    #[test]
    fn what_replaces_the_contents_begins_it_anew() {
        let first = Keyspace::new(2);
        let mut shadow = Shadow::follow(&first);
        assert_eq!(shadow.compare(), Ok(()));
        put(&first, b"k", &[]);
        first.tell_replaced();
        put(&first, b"l", &[b"SET", b"l", b"v"]);
        assert_eq!((shadow.compare(), shadow.compare()), (Ok(()), Ok(())));
    }
}
