//! A client's state between its commands. It belongs to the loop that serves the connection.

use crate::flood::Added;
use crate::pause::Postponed;
use crate::queue::Queue;
use crate::waits::{Away, Request, What};
use keyspace::Watched;
use parking_lot::Mutex;
use resp::Reply;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use stdx::budget::Holding;

/// What others may see and set of a client (CLIENT LIST, CLIENT KILL). Written by its loop, relaxed.
#[derive(Debug)]
pub struct ClientInfo {
    pub id: u64,
    pub loop_id: AtomicU32,
    pub address: String,
    pub local_address: String,
    pub fd: i32,
    pub unix: bool,
    /// Milliseconds since 1970.
    pub connected_ms: u64,
    pub last_ms: AtomicU64,
    pub db: AtomicU32,
    pub resp: AtomicU32,
    /// Bits of [`flag`].
    pub flags: AtomicU32,
    pub subscriptions: AtomicU32,
    pub pattern_subscriptions: AtomicU32,
    pub shard_subscriptions: AtomicU32,
    pub watching: AtomicU32,
    /// -1 outside MULTI.
    pub queued: AtomicI64,
    pub query_bytes: AtomicU64,
    pub query_free: AtomicU64,
    pub reply_bytes: AtomicU64,
    /// What its MULTI has queued; the keys it watches; and its long work beside the data, replies above all.
    pub multi_bytes: AtomicU64,
    pub watch_bytes: AtomicU64,
    pub work_bytes: AtomicU64,
    pub commands: AtomicU64,
    /// The last command, as one more than its number ([`command::places`]); 0 before the first.
    pub last_command: AtomicU32,
    pub net_in: AtomicU64,
    pub net_out: AtomicU64,
    /// CLIENT KILL and the output limits set it; the loop then closes the connection.
    pub killed: AtomicBool,
    pub text: Mutex<ClientText>,
    /// How long the last command ran, in nanoseconds.
    pub last_ns: AtomicU64,
    /// The latest requests that were slow.
    pub(crate) history: Mutex<VecDeque<Request>>,
}

impl ClientInfo {
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        id: u64,
        loop_id: usize,
        address: String,
        local_address: String,
        fd: i32,
        unix: bool,
        now_ms: u64,
    ) -> ClientInfo {
        ClientInfo {
            id,
            loop_id: AtomicU32::new(loop_id as u32),
            address,
            local_address,
            fd,
            unix,
            connected_ms: now_ms,
            last_ms: AtomicU64::new(now_ms),
            db: AtomicU32::new(0),
            resp: AtomicU32::new(2),
            flags: AtomicU32::new(0),
            subscriptions: AtomicU32::new(0),
            pattern_subscriptions: AtomicU32::new(0),
            shard_subscriptions: AtomicU32::new(0),
            watching: AtomicU32::new(0),
            queued: AtomicI64::new(-1),
            query_bytes: AtomicU64::new(0),
            query_free: AtomicU64::new(0),
            reply_bytes: AtomicU64::new(0),
            multi_bytes: AtomicU64::new(0),
            watch_bytes: AtomicU64::new(0),
            work_bytes: AtomicU64::new(0),
            commands: AtomicU64::new(0),
            last_command: AtomicU32::new(0),
            net_in: AtomicU64::new(0),
            net_out: AtomicU64::new(0),
            killed: AtomicBool::new(false),
            text: Mutex::new(ClientText { user: "default".into(), ..ClientText::default() }),
            last_ns: AtomicU64::new(0),
            history: Mutex::default(),
        }
    }
}

impl ClientInfo {
    /// Name of the command that was run last.
    pub fn command(&self) -> &'static str {
        let number = self.last_command.load(Ordering::Relaxed) as usize;
        number.checked_sub(1).and_then(|at| command::places::all().get(at)).map_or("NULL", |c| c.name)
    }

    /// Called by the client's loop before it runs a command.
    #[inline]
    pub fn runs(&self, number: usize) {
        self.last_command.store(number as u32 + 1, Ordering::Relaxed);
        // Only this loop writes, so no locked instruction is needed.
        self.commands.store(self.commands.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// The parts of [`ClientInfo`] that are not numbers.
#[derive(Default, Clone, Debug)]
pub struct ClientText {
    pub name: Vec<u8>,
    pub lib_name: Vec<u8>,
    pub lib_ver: Vec<u8>,
    pub user: String,
}

/// Bits of [`ClientInfo::flags`].
pub mod flag {
    pub const MULTI: u32 = 1;
    pub const BLOCKED: u32 = 2;
    pub const DIRTY_EXEC: u32 = 4;
    pub const PUBSUB: u32 = 8;
    pub const NO_EVICT: u32 = 16;
    pub const NO_TOUCH: u32 = 32;
    pub const CLOSE_SOON: u32 = 64;
    pub const WATCH_DIRTY: u32 = 128;
}

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

/// Keys of WATCH, and the mark that any touch of them sets.
#[derive(Default)]
pub struct Watch {
    pub dirty: Arc<AtomicBool>,
    /// Database and key, and what was there. A tree, for it never grows by leaps.
    pub keys: BTreeMap<(usize, Box<[u8]>), Watched>,
    /// Watched keys that are rows of sources.
    pub rows: crate::sources::Watched,
    /// About what they take, of what work may hold.
    pub(crate) bytes: usize,
    pub(crate) holding: Holding,
}

/// What a client listens to.
#[derive(Default)]
pub struct Subscriptions {
    // Trees, for they never grow by leaps.
    pub channels: BTreeSet<Arc<[u8]>>,
    pub patterns: BTreeSet<Arc<[u8]>>,
    pub shard_channels: BTreeSet<Arc<[u8]>>,
}

impl Subscriptions {
    pub fn count(&self) -> usize {
        self.channels.len() + self.patterns.len()
    }

    pub fn is_empty(&self) -> bool {
        self.channels.is_empty() && self.patterns.is_empty() && self.shard_channels.is_empty()
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
    /// Its command waits for the end of CLIENT PAUSE.
    pub(crate) postponed: Option<Postponed>,
    /// It waits for evictions: since when (milliseconds since 1970) how many keys have been evicted in all.
    pub(crate) short_since: Cell<Option<(u64, u64)>>,
    /// Memory was short, and nothing could be evicted, when its command began; see `Memory::is_short`.
    pub(crate) short: bool,
    /// The rows its command waits for.
    pub loading: Option<crate::sources::Loading>,
    /// A key whose row is there for the command that runs, and for no other.
    pub(crate) lent: Option<Box<[u8]>>,
    /// Since when a command waited that now has its rows.
    pub loaded_since_ns: Option<u64>,
    /// Its command has very many keys, and not all were asked for the source they belong to yet.
    pub(crate) routing: Option<Box<crate::sources::Routing>>,
    /// What its command has found of several keys so far.
    pub(crate) fetch: Option<Box<crate::sources::Fetch>>,
    /// The source the keys of the command that runs belong to.
    pub(crate) source: Option<Arc<crate::sources::Entry>>,
}

impl Session {
    /// Whether its command had to wait before it could run: `Local::end_waits` is to be told.
    #[inline]
    pub fn was_held(&self) -> bool {
        self.guarded.get().is_some() || self.held_back.get().is_some() || self.loaded_since_ns.is_some()
    }

    /// When keys that are looked at now count as used; None: not by this client (CLIENT NO-TOUCH).
    pub(crate) fn uses_at(&self, now_ms: u64) -> Option<u64> {
        (!self.no_touch).then_some(now_ms)
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
            subs: Subscriptions::default(),
            no_touch: false,
            no_evict: false,
            hushed: false,
            closing: false,
            cancel: Arc::default(),
            gate: 0,
            away: None,
            done: 0,
            guarded: Cell::new(None),
            littered: 0,
            published: Added::default(),
            held_back: Cell::new(None),
            postponed: None,
            short_since: Cell::new(None),
            short: false,
            loading: None,
            lent: None,
            loaded_since_ns: None,
            routing: None,
            fetch: None,
            source: None,
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

    /// The command waits for no row any more.
    pub(crate) fn end_loading(&mut self) {
        if let Some(loading) = self.loading.take() {
            self.loaded_since_ns = Some(loading.since_ns);
        }
    }

    pub fn set_flag(&self, flag: u32, on: bool) {
        if on {
            self.info.flags.fetch_or(flag, Ordering::Relaxed);
        } else {
            self.info.flags.fetch_and(!flag, Ordering::Relaxed);
        }
    }
}
