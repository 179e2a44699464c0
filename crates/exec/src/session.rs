//! A client's state between its commands. It belongs to the loop that serves the connection.

use crate::pause::Postponed;
use crate::queue::Queue;
use crate::waits::{Away, What};
pub use observe::{ClientInfo, ClientText, flag};
pub use pubsub::Subscriptions;
use pubsub::flood::Added;
use resp::Reply;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use work::Others;
pub use work::Watch;

/// What the next replies of a client are worth (CLIENT REPLY).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReplyMode {
    #[default]
    On,
    Off,
    /// The reply of the next command is dropped.
    SkipNext,
    /// The reply of this command is dropped.
    Skip,
}

/// Commands queued by MULTI.
#[derive(Default)]
pub struct Multi {
    pub queue: Queue,
    /// A command names keys of sources.
    pub sources: bool,
    /// What the last SELECT of the queue selects.
    pub selected: Option<usize>,
    /// A command could not be queued: EXEC refuses the whole.
    pub broken: bool,
}

/// Watched rows of a client whose EXEC is under way elsewhere.
struct WatchedRows(crate::rows::Watched);

impl Others for WatchedRows {
    fn are_marked(&self) -> bool {
        self.0.is_told()
    }

    fn forget_some(&mut self, count: usize) -> bool {
        self.0.forget_some(count)
    }
}

/// See the module.
pub struct Session {
    pub id: u64,
    pub info: Arc<ClientInfo>,
    pub db: usize,
    pub resp3: bool,
    /// It gave the password, or none was asked for when it came; see [`Session::is_let_in`].
    pub authenticated: bool,
    pub reply_mode: ReplyMode,
    /// Confirmations of subscriptions that were written while replies are left out (CLIENT REPLY): they are told all the same.
    pub(crate) told: Vec<u8>,
    pub multi: Option<Multi>,
    pub watch: Watch,
    /// Watched keys that are rows of sources.
    pub watched_rows: crate::rows::Watched,
    pub subs: Subscriptions,
    pub no_touch: bool,
    pub no_evict: bool,
    /// Messages wait until the reply that is being made is written.
    pub hushed: bool,
    /// Close when everything written so far is sent (QUIT, errors of the protocol).
    pub closing: bool,
    /// Cancels what runs for this client on a worker, when it goes.
    pub cancel: Arc<AtomicBool>,
    /// Its replies leave when effects up to this LSN are durable: the newest of its own, or of those it may
    /// have been told of.
    pub gate: keyspace::Lsn,
    /// MONITOR has shown the command that runs, or is held.
    pub(crate) is_shown: bool,
    /// Hashes of the keys that the reply of the parked command tells of; None: of anything.
    pub saw: Option<Vec<u64>>,
    /// The request whose reply will come by mail.
    pub away: Option<Box<Away>>,
    /// How many words of the command that is run again and again are done.
    pub(crate) done: usize,
    /// The client whose protected commit holds this one up, and since when (monotonic clock).
    pub guarded: Cell<Option<(u64, u64)>>,
    /// When the reclaimer was full and it gave it something to free (`stdx::reclaim::fullness`).
    pub littered: u64,
    /// What it published while very many messages were under way.
    pub(crate) published: Added,
    /// It is held back until less of its own is under way: of what, and since when (monotonic clock).
    pub held_back: Cell<Option<(What, u64)>>,
    aof_wait: Option<(keyspace::Lsn, u64)>,
    /// Its command waits for the end of CLIENT PAUSE.
    pub(crate) postponed: Option<Postponed>,
    /// It waits for evictions: since when (milliseconds since 1970) how many keys have been evicted in all.
    pub(crate) short_since: Cell<Option<(u64, u64)>>,
    /// Memory was short, and nothing could be evicted, when its command began; see `Memory::is_short`.
    pub(crate) short: bool,
    /// Rows of sources that its command waits for, or was given.
    pub rows: crate::rows::Pending,
}

impl Session {
    /// Whether its command had to wait before it could run: `Local::end_waits` is to be told.
    #[inline]
    pub fn was_held(&self) -> bool {
        self.guarded.get().is_some() || self.held_back.get().is_some() || self.rows.loaded_since_ns.is_some()
    }

    /// When keys that are looked at now count as used; None: not by this client (CLIENT NO-TOUCH).
    pub(crate) fn uses_at(&self, now_ms: u64) -> Option<u64> {
        (!self.no_touch).then_some(now_ms)
    }

    /// How many keys and rows it watches.
    pub(crate) fn watched(&self) -> usize {
        self.watch.keys.len() + self.watched_rows.len()
    }

    /// Takes all it watches out of it.
    pub(crate) fn take_watch(&mut self) -> Watch {
        let (mut watch, rows) = (std::mem::take(&mut self.watch), std::mem::take(&mut self.watched_rows));
        if !rows.is_empty() {
            watch.others = Some(Box::new(WatchedRows(rows)));
        }
        watch
    }

    pub fn new(info: Arc<ClientInfo>, authenticated: bool) -> Session {
        Session {
            id: info.id,
            info,
            db: 0,
            resp3: false,
            authenticated,
            reply_mode: ReplyMode::On,
            told: Vec::new(),
            multi: None,
            watch: Watch::default(),
            watched_rows: crate::rows::Watched::default(),
            subs: Subscriptions::default(),
            no_touch: false,
            no_evict: false,
            hushed: false,
            closing: false,
            cancel: Arc::default(),
            gate: 0,
            is_shown: false,
            saw: None,
            away: None,
            done: 0,
            guarded: Cell::new(None),
            littered: 0,
            published: Added::default(),
            held_back: Cell::new(None),
            aof_wait: None,
            postponed: None,
            short_since: Cell::new(None),
            short: false,
            rows: crate::rows::Pending::default(),
        }
    }

    /// Whether it may use commands. One that has not authenticated may as soon as no password is asked for any more, and no
    /// longer than that.
    #[inline]
    pub fn is_let_in(&self, server: &crate::Server) -> bool {
        self.authenticated || server.config.live.requirepass.is_empty()
    }

    pub fn is_local(&self) -> bool {
        self.info.unix || self.info.address.starts_with("127.") || self.info.address.starts_with("[::1]")
    }

    /// It is held back until less of its own is under way; false if it was already.
    pub(crate) fn waits_for_itself(&self, what: What, now_ns: u64) -> bool {
        let begins = self.held_back.get().is_none();
        if begins {
            self.held_back.set(Some((what, now_ns)));
        }
        begins
    }

    /// WAITAOF goes on: the LSN it waits for and when it began, if it has.
    pub(crate) fn aof_wait(&mut self) -> &mut Option<(keyspace::Lsn, u64)> {
        &mut self.aof_wait
    }

    /// RESP2 clients that subscribed may only send a few commands.
    pub fn in_pubsub_mode(&self) -> bool {
        !self.resp3 && !self.subs.is_empty()
    }

    /// The client sent an empty line or array: to Redis a command that has no reply, so what CLIENT REPLY SKIP left out is that.
    pub fn got_nothing(&mut self) {
        if matches!(self.reply_mode, ReplyMode::Skip | ReplyMode::SkipNext) {
            self.reply_mode = ReplyMode::On;
        }
    }

    /// Whether replies are left out now (CLIENT REPLY).
    pub(crate) fn is_muted(&self) -> bool {
        matches!(self.reply_mode, ReplyMode::Off | ReplyMode::Skip)
    }

    /// Takes what is told although replies are left out. O(its length).
    pub fn take_told(&mut self, out: &mut Reply) {
        if !self.told.is_empty() {
            out.encoded(&std::mem::take(&mut self.told));
        }
    }

    /// Whether the reply of a command that was elsewhere is to be dropped (CLIENT REPLY).
    pub fn mutes_reply(&mut self) -> bool {
        if self.reply_mode == ReplyMode::Skip {
            self.reply_mode = ReplyMode::On;
            return true;
        }
        self.reply_mode == ReplyMode::Off
    }

    pub fn select(&mut self, db: usize) {
        self.db = db;
        self.info.db.store(db as u32, Ordering::Relaxed);
    }

    pub fn set_flag(&self, flag: u32, on: bool) {
        if on {
            self.info.flags.fetch_or(flag, Ordering::Relaxed);
        } else {
            self.info.flags.fetch_and(!flag, Ordering::Relaxed);
        }
    }
}
