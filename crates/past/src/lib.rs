//! The past: feeds the history once a second, and answers questions about it.
//!
//! ```text
//! observe: counters, waits, slow log ─┐
//! exec: INFO's figures ───────────────┴─► a second, with names ─► history ─► EVENKEEL NOW, HISTORY, FLOWS, …
//! ```
//!
//! The statistics thread calls [`Past::tick`]. Cost once a second: O(loops + commands used + waits of the
//! second), some 100 us. No loop waits for it.
#![forbid(unsafe_code)]

mod facts;
mod parties;
mod seconds;

use history::{Asked, History, Viewer};
use observe::Observe;
use observe::info::Snapshot;
use parking_lot::Mutex;
use resp::{Args, Reply};
use seconds::Collector;
use std::path::PathBuf;
use std::sync::Arc;

/// The history of one server.
pub struct Past {
    observe: Arc<Observe>,
    history: Arc<History>,
    collector: Mutex<Collector>,
}

impl Past {
    /// Creates an empty history. Changes of the configuration are marked in it from now on.
    pub fn new(observe: Arc<Observe>) -> Past {
        let collector = Collector::default();
        observe.config.observe(Box::new(collector.changes()));
        let history = Arc::new(History::new(seconds::NAMES));
        Past { observe, history, collector: Mutex::new(collector) }
    }

    /// Adds a second to the history, if a new one has begun. `look`: INFO's figures, and sentences about
    /// sources that cannot load rows. Cost: see the module.
    pub fn tick(&self, now_ms: u64, look: impl FnOnce() -> (Snapshot, Vec<String>)) {
        let mut collector = self.collector.lock();
        if !collector.wants(now_ms) {
            return;
        }
        let (snapshot, sources) = look();
        let second = collector.second(&self.observe, &self.history, now_ms, &snapshot, sources);
        drop(collector);
        let Some(second) = second else { return };
        self.name_functions(&second);
        let limit = self.observe.config.live.history_max_bytes.size();
        self.history.add(second, limit, self.dir());
    }

    /// The directory for the history's files; None: nothing is kept on the disk.
    fn dir(&self) -> Option<PathBuf> {
        let live = &self.observe.config.live;
        let keeps = live.appendonly.get() || !live.save_points.is_empty();
        keeps.then(|| PathBuf::from(live.dir.string()))
    }

    /// Writes the running minute to the disk. For an orderly end; it waits for half a second at most.
    pub fn end(&self) {
        self.history.end(self.dir());
    }

    /// Figures for INFO.
    pub fn figures(&self) -> [(&'static str, u64); 2] {
        [("history_bytes", self.history.bytes() as u64), ("history_seconds", self.history.seconds())]
    }

    /// Answers a question. `sees_words`: with the words of commands. O(minutes asked for)
    pub fn answer(&self, asked: &Asked, sees_words: bool, out: &mut Reply) {
        let facts = self.collector.lock().facts.clone();
        asked.answer(&self.history, Viewer { sees_words }, (4, &|out| facts.write(out)), out);
    }

    /// Lets the reporter name the functions that were under way in a second's longest waits: the first time
    /// takes long.
    fn name_functions(&self, second: &history::Second) {
        if second.records.is_empty() {
            return;
        }
        for stall in self.observe.waits.stalls(8).into_iter().filter(|stall| !stall.stack.is_empty()) {
            let ms = stall.unix_ms..=stall.unix_ms + stall.ns / 1_000_000 + 1;
            let is_new = stall.unix_ms / 1000 + 2 >= second.unix_s;
            if is_new && second.records.iter().any(|record| ms.contains(&record.time_ms)) {
                let history = self.history.clone();
                self.observe.reporter.send(move || {
                    let frames = stall.stack.iter().take(4).map(|at| machine::stacks::name(*at).into_bytes());
                    history.name_functions(ms, &frames.collect::<Vec<_>>());
                });
            }
        }
    }
}

/// Reads a question about the history: the words from EVENKEEL on. Errors: an error's text.
pub fn asked(args: Args<'_>, now_ms: u64) -> Result<Asked, &'static str> {
    let words: Vec<&[u8]> = args.from(1).iter().take(32).collect();
    Asked::parse(&words, now_ms)
}
