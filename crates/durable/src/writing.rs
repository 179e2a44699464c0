//! The writer's part of a snapshot: a thread that writes what the walk visits ([`crate::saving`]).

use crate::Durability;
use crate::aof::Rewrite;
use crate::lock::DirLock;
use crate::saving::{Copied, Done, LOOP, Purpose};
use crate::walking::{Batch, Header, Item, Message, Saving};
use keyspace::Mark;
use observe::info;
use persist::stream::HistoryPlace;
use persist::{SaveError, SaveFile, Spool};
use rdb::Dialect;
use rdb::file::Format;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};
use stdx::points::{self, Point};
use stdx::threads::Breath;
use value::Value;
use work::piece::Letter;

/// The writer of a snapshot. See [`crate::saving`].
pub(crate) struct Writer {
    pub(crate) durability: Arc<Durability>,
    pub(crate) purpose: Purpose,
    pub(crate) file: PathBuf,
    /// The piece of a rewrite, until the files are ready.
    pub(crate) first: Option<Box<Saving>>,
    pub(crate) rewrite: Option<Rewrite>,
    pub(crate) spool: Option<Arc<dyn Spool>>,
    /// The mark of its moment in the replicas' history. A spool has its own.
    pub(crate) place: Option<Mark>,
    pub(crate) batches: Receiver<Message>,
    pub(crate) give_back: Sender<Batch>,
    pub(crate) done: Option<Done>,
    pub(crate) began: Instant,
}

/// A file that is being written.
struct Open {
    out: SaveFile,
    sizes: Vec<(u64, u64)>,
    db: Option<u32>,
    /// `foreign-types`: whether values of Evenkeel's own types are left out, or are an error.
    foreign: i64,
    /// Streams are written without their idempotent producers, which servers before Redis 8.6 do not read.
    forgets: bool,
    /// Until the file has its name (lock L1). It is dropped behind the file.
    _lock: Option<Arc<DirLock>>,
}

impl Writer {
    /// Starts the thread.
    pub(crate) fn start(self) {
        let durability = self.durability.clone();
        let spawned = std::thread::Builder::new().name("save".into()).spawn(move || self.run());
        if let Err(error) = spawned {
            log::error!("a snapshot was not begun: {error}");
            // The queue goes with the writer: the piece finds that and ends the snapshot.
            durability.saves.broken.store(true, Release);
        }
    }

    fn run(mut self) {
        machine::threads::demote(self.durability.observe.crowd.rank().nice());
        let (mut open, mut so_far) = (None, Ok(()));
        if let Err(why) = self.prepare() {
            return self.over(&Err(why));
        }
        let result = loop {
            let Ok(message) = self.batches.recv() else { break Err("it was given up".to_owned()) };
            match message {
                Message::Piece(loop_id, piece) => (self.durability.work.post)(loop_id, Letter::Back(piece)),
                Message::Gave(why) => break so_far.and(Err(why)),
                Message::End => break so_far.and_then(|()| self.finish(open.take())),
                message if so_far.is_ok() => {
                    so_far = self.put(&mut open, message);
                    if so_far.is_err() {
                        open = None;
                        self.durability.saves.broken.store(true, Release);
                    }
                }
                _ => {}
            }
        };
        drop(open);
        let result = self.end_rewrite(result);
        self.over(&result);
    }

    fn over(mut self, result: &Result<(), String>) {
        if let Some(spool) = self.spool.take() {
            let bytes = self.durability.saves.written_bytes.load(Relaxed);
            spool.ended(result.as_ref().map(|()| bytes).map_err(String::as_str));
        }
        let file = result.as_ref().map(|()| &*self.file).map_err(String::as_str);
        // A copy has no name any more when the next snapshot, or the end of the server, may begin.
        let answer = self.done.take().map(|done| done(file));
        self.durability.ended(self.purpose, self.began, result);
        if let Some(answer) = answer {
            answer();
        }
    }

    /// Begins a rewrite on the disk, and only then on the loop.
    fn prepare(&mut self) -> Result<(), String> {
        let Some(mut piece) = self.first.take() else { return Ok(()) };
        let rewrite = self.durability.files()?.begin_rewrite()?;
        piece.is_for(rewrite.clone());
        self.rewrite = Some(rewrite);
        (self.durability.work.post)(LOOP, Letter::Back(piece));
        Ok(())
    }

    /// Installs the base of a rewrite, or reports that there is none.
    fn end_rewrite(&self, result: Result<(), String>) -> Result<(), String> {
        let Some(rewrite) = &self.rewrite else { return result };
        let files = self.durability.files()?;
        match result {
            Ok(()) => {
                let bytes = self.durability.saves.written_bytes.load(Relaxed);
                files.finish_rewrite(rewrite, bytes)
            }
            Err(why) => {
                files.fail_rewrite(rewrite);
                Err(why)
            }
        }
    }

    /// Writes a message of the walk. A panic fails only this snapshot.
    fn put(&self, open: &mut Option<Open>, message: Message) -> Result<(), String> {
        let put = stdx::panics::contain(|| match message {
            Message::Begin(header) => {
                *open = Some(self.open(header)?);
                Ok(())
            }
            Message::Batch(batch) => {
                points::reach(Point::SaveWrite);
                let file = open.as_mut().ok_or("it was not begun")?;
                file.write(&batch, &self.durability)?;
                if let Some(spool) = &self.spool {
                    spool.grown(file.out.written_bytes());
                }
                self.pace(file.out.size_bytes());
                let Batch { mut bytes, mut items } = batch;
                bytes.clear();
                items.clear();
                // The piece may have ended.
                let _ = self.give_back.send(Batch { bytes, items });
                Ok(())
            }
            _ => Ok(()),
        });
        put.unwrap_or_else(|_| Err("a fault in the server: see the log".to_owned()))
    }

    /// Begins the file: its facts, and the libraries.
    fn open(&self, header: Header) -> Result<Open, String> {
        let (files, live) = (self.durability.files()?, &self.durability.config.live);
        let format = self.format(&header)?;
        let path = self.rewrite.as_ref().map_or(&self.file, |rewrite| rewrite.base());
        let passes = matches!(self.purpose, Purpose::Copy(_) | Purpose::Sync);
        // A base is in the directory of a log that has its lock, and a copy takes no other file's place.
        let lock = if passes { None } else { files.hold_for(path)? };
        let (mut out, reader) = match SaveFile::create(files.disk.clone(), path, format) {
            Err(SaveError { error, .. })
                if self.spool.is_some() && persist::disk::is_without_place(error.kind()) =>
            {
                log::warn!("no file can be made for a copy ({error}): it is kept in memory");
                let max_bytes = live.repl_spool_max_bytes.size() as u64;
                let (out, reader) = SaveFile::in_memory(format, max_bytes).map_err(said)?;
                (out, Some(reader))
            }
            made => (made.map_err(said)?, None),
        };
        if !live.rdb_checksum.get() {
            out.leave_out_sum();
        }
        if passes {
            out.forgo_power_loss();
        }
        for (name, value) in self.facts(&header) {
            out.aux(name.as_bytes(), value.as_bytes()).map_err(said)?;
        }
        if let Some(spool) = &self.spool {
            let in_memory = reader.is_some();
            let file = reader.map_or_else(|| out.take_name(), Ok).map_err(said)?;
            for (name, value) in spool.begun(header.lsn, file, in_memory)? {
                out.aux(name.as_bytes(), value.as_bytes()).map_err(said)?;
            }
        }
        if let (Some(mark), Some(history)) = (self.place, self.durability.history.get()) {
            match history.at(mark, header.lsn) {
                Ok(HistoryPlace { id, offset, db }) => {
                    let facts = [("repl-stream-db", db.to_string()), ("repl-id", id)];
                    for (name, value) in facts.into_iter().chain([("repl-offset", offset.to_string())]) {
                        out.aux(name.as_bytes(), value.as_bytes()).map_err(said)?;
                    }
                }
                Err(why) => log::warn!("the snapshot does not name its place for replicas: {why}"),
            }
        }
        if let Some(libraries) = &header.libraries {
            libraries.each(&mut |code| out.function(code).map_err(said))?;
        }
        let foreign = match &self.spool {
            Some(spool) => spool.foreign(),
            None if self.rewrite.is_some() => 0,
            None => live.foreign_types.get(),
        };
        let forgets = match &self.spool {
            Some(_) => foreign != 0,
            None => self.rewrite.is_none() && (self.fixed_version() != 0 || live.rdb_dialect.get() == 1),
        };
        Ok(Open { out, sizes: header.sizes, db: None, foreign, forgets, _lock: lock })
    }

    /// `rdb-version`, if it counts for this file; 0: the lowest that holds the data.
    fn fixed_version(&self) -> u16 {
        match &self.rewrite {
            Some(_) => 0,
            None => {
                let chosen = config::RDB_VERSIONS.get(self.durability.config.live.rdb_version.size());
                chosen.and_then(|version| version.parse().ok()).unwrap_or(0)
            }
        }
    }

    /// The format of the file: as configured, but a base has to hold everything.
    fn format(&self, header: &Header) -> Result<Format, String> {
        let live = &self.durability.config.live;
        let has_functions = header.libraries.as_ref().is_some_and(|libraries| !libraries.is_empty());
        if let Some(spool) = &self.spool {
            return match spool.format() {
                (dialect, 0) => Ok(Format::lowest(dialect, has_functions, header.has_field_times)),
                (dialect, version) => Format::new(dialect, version).ok_or_else(unknown_version),
            };
        }
        let version = self.fixed_version();
        let dialect = if live.rdb_dialect.get() == 1 { Dialect::Valkey } else { Dialect::Redis };
        match version {
            0 => Ok(Format::lowest(dialect, has_functions, header.has_field_times)),
            rdb::VERSION_VALKEY_9 => Format::new(Dialect::Valkey, version).ok_or_else(unknown_version),
            _ => Format::new(Dialect::Redis, version).ok_or_else(unknown_version),
        }
    }

    /// The facts about the file that it holds.
    fn facts(&self, header: &Header) -> [(&'static str, String); 8] {
        let (used, rewrite) = (self.durability.observe.measured.allocator().allocated, self.rewrite.as_ref());
        [
            ("redis-ver", info::REDIS_VERSION.to_owned()),
            ("redis-bits", usize::BITS.to_string()),
            ("ctime", (stdx::clock::wall_ms() / 1000).to_string()),
            ("used-mem", used.to_string()),
            ("aof-base", u8::from(rewrite.is_some()).to_string()),
            ("evenkeel-ver", info::EVENKEEL_VERSION.to_owned()),
            ("evenkeel-lsn", header.lsn.to_string()),
            ("evenkeel-epoch", rewrite.map_or(0, |rewrite| rewrite.epoch).to_string()),
        ]
    }

    /// Waits to keep to `save-rate-limit`, unless writers replace more than the walk keeps up with.
    fn pace(&self, written: u64) {
        let saves = &self.durability.saves;
        saves.written_bytes.store(written, Relaxed);
        loop {
            let rate = self.durability.config.live.save_rate_bytes.size() as u64;
            let goes_on = rate == 0 || saves.pressed.load(Relaxed) || saves.cancelled.load(Relaxed);
            let due = Duration::from_secs_f64(written as f64 / rate.max(1) as f64);
            let early = due.saturating_sub(self.began.elapsed());
            if goes_on || early.is_zero() {
                return;
            }
            std::thread::sleep(early.min(Duration::from_millis(20)));
        }
    }

    fn finish(&self, open: Option<Open>) -> Result<(), String> {
        let open = open.ok_or("it was not begun")?;
        if self.durability.saves.cancelled.load(Acquire) {
            return Err("it was cancelled".to_owned());
        }
        let finished = stdx::panics::contain(|| {
            points::reach(Point::SaveEnd);
            open.out.finish().map(|saved| saved.bytes).map_err(said)
        });
        let bytes = finished.unwrap_or_else(|_| Err("a fault in the server: see the log".to_owned()))?;
        self.durability.saves.written_bytes.store(bytes, Relaxed);
        Ok(())
    }
}

impl Drop for Writer {
    /// A thread that could not be started tells nobody else; the caller waits. The piece of a rewrite never came to
    /// a loop, so the snapshot ends here (V3). Others end on theirs.
    fn drop(&mut self) {
        if let (Some(mark), Some(history)) = (self.place.take(), self.durability.history.get()) {
            history.forget(mark);
        }
        let why = "no thread could be started";
        if let Some(spool) = self.spool.take() {
            spool.ended(Err(why));
        }
        let answer = self.done.take().map(|done| done(Err(why)));
        if self.first.take().is_some() {
            self.durability.ended(self.purpose, self.began, &Err(why.to_owned()));
        }
        if let Some(answer) = answer {
            answer();
        }
    }
}

impl Open {
    fn write(&mut self, batch: &Batch, durability: &Durability) -> Result<(), String> {
        let (mut rest, breath) = (&batch.bytes[..], Breath::default());
        for item in &batch.items {
            let (key, behind) = rest.split_at(item.key as usize);
            let (text, behind) = behind.split_at(item.text as usize);
            rest = behind;
            if self.is_left_out(item, durability)? {
                continue;
            }
            if self.db != Some(item.db) {
                self.db = Some(item.db);
                let sizes = self.sizes.get_mut(item.db as usize).map(std::mem::take);
                match sizes.filter(|sizes| sizes.0 > 0) {
                    Some((keys, expires)) => self.out.database(item.db, keys, expires).map_err(said)?,
                    None => self.out.select(item.db).map_err(said)?,
                }
            }
            match &item.value {
                None => self.out.text(key, text, item.facts).map_err(said)?,
                Some(value @ Value::Stream(_)) if self.forgets => {
                    self.out.key(key, &value.without_producers(), item.facts).map_err(said)?;
                }
                Some(value) => self.out.key(key, value, item.facts).map_err(said)?,
            }
            breath.breathe();
        }
        Ok(())
    }

    /// Whether a value has a type of Evenkeel's own and is left out (`foreign-types`).
    fn is_left_out(&self, item: &Item, durability: &Durability) -> Result<bool, String> {
        if !matches!(item.value, Some(Value::Roaring(_) | Value::Roaring64(_))) {
            return Ok(false);
        }
        durability.saves.foreign.fetch_add(1, Relaxed);
        match self.foreign {
            0 => Ok(false),
            1 => Err("there is a compressed bitmap, and foreign-types is 'fail'".to_owned()),
            _ => Ok(true),
        }
    }
}

/// The text of an error of a file.
fn said(error: SaveError) -> String {
    error.to_string()
}

fn unknown_version() -> String {
    "rdb-version is not a known version".to_owned()
}

impl Durability {
    /// Ends a snapshot: notes its result and lets the next one begin (V3).
    pub(crate) fn ended(&self, purpose: Purpose, began: Instant, result: &Result<(), String>) {
        let saves = &self.saves;
        let took = began.elapsed();
        if let Purpose::Copy(Copied { client, .. }) = purpose {
            match result {
                Ok(()) => {
                    log::info!("a snapshot for client {client} was taken in {:.2} s", took.as_secs_f64())
                }
                Err(why) => log::warn!("a snapshot for client {client} failed: {why}"),
            }
            return self.give_back();
        }
        if purpose == Purpose::Sync {
            match result {
                Ok(()) => log::info!("a snapshot for replicas was taken in {:.2} s", took.as_secs_f64()),
                Err(why) => log::warn!("a snapshot for replicas failed: {why}"),
            }
            return self.give_back();
        }
        saves.last_s.store(took.as_secs(), Relaxed);
        saves.last_kept_bytes.store(saves.kept_bytes.load(Relaxed), Relaxed);
        let cancelled = saves.cancelled.load(Acquire);
        let failed_by_itself = !cancelled && !self.is_anew();
        if purpose == Purpose::Rewrite && (result.is_ok() || failed_by_itself) {
            self.note_rewrite(result, took.as_secs());
        }
        match result {
            Ok(()) if purpose == Purpose::Rewrite => {
                log::info!("the append-only log was rewritten in {:.2} s", took.as_secs_f64());
            }
            Err(_) if purpose == Purpose::Rewrite && cancelled => {
                log::info!("the rewrite of the append-only log was cancelled");
            }
            Err(why) if purpose == Purpose::Rewrite && !failed_by_itself => {
                log::info!("the rewrite of the append-only log begins again: {why}");
            }
            Err(why) if purpose == Purpose::Rewrite => {
                log::error!("the append-only log was not rewritten: {why}")
            }
            Ok(()) => {
                saves.count.fetch_add(1, Relaxed);
                saves.failed.store(false, Relaxed);
                saves.last_save_s.store(stdx::clock::wall_ms() / 1000, Relaxed);
                saves.dirty_saved.store(saves.dirty_begun.load(Relaxed), Relaxed);
                let (keys, bytes) = (saves.keys.load(Relaxed), saves.written_bytes.load(Relaxed));
                log::info!("saved: {keys} keys, {bytes} bytes, in {:.2} s", took.as_secs_f64());
            }
            Err(_) if cancelled && purpose == Purpose::Save => log::info!("the snapshot was cancelled"),
            Err(why) => {
                saves.failed.store(true, Relaxed);
                log::error!("the snapshot failed: {why}");
            }
        }
        self.judge();
        self.give_back();
    }
}
