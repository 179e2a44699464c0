//! A client's state between its commands. It belongs to the loop that serves the connection.

use crate::half::Half;
use crate::pause::Postponed;
use crate::queue::Queue;
use crate::waits::{Away, What};
use command::reads::Reads;
pub use observe::{ClientInfo, ClientText, flag};
pub use pubsub::Subscriptions;
use pubsub::flood::Added;
use resp::Reply;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use work::Others;
pub use work::Watch;

/// Whether the next replies are sent (CLIENT REPLY).
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
    /// Keys that its client keeps copies of, if it does.
    pub reads: Reads,
    /// Some command names keys of sources.
    pub sources: bool,
    /// The user who was allowed the commands, and whether it was another one for some of them.
    user: Option<Arc<acl::User>>,
    users_differ: bool,
    /// The database that the queue's last SELECT chooses.
    pub selected: Option<usize>,
    /// Some command may change or tell anything ([`crate::gates::may_change`]).
    pub changes: bool,
    /// Some command could not be queued: EXEC refuses the whole transaction.
    pub broken: bool,
}

impl Multi {
    /// Notes the user who was allowed the next command.
    #[inline]
    pub(crate) fn note_user(&mut self, user: &Arc<acl::User>) {
        match &self.user {
            Some(known) => self.users_differ |= !Arc::ptr_eq(known, user),
            None => self.user = Some(user.clone()),
        }
    }

    /// Whether this user, as it is now, was allowed all commands.
    pub(crate) fn is_of(&self, user: &Arc<acl::User>) -> bool {
        !self.users_differ && self.user.as_ref().is_none_or(|known| Arc::ptr_eq(known, user))
    }
}

/// Watched rows of a client whose EXEC runs elsewhere.
struct WatchedRows(crate::rows::Watched);

impl Others for WatchedRows {
    fn are_marked(&self) -> bool {
        self.0.is_told()
    }

    fn forget_some(&mut self, count: usize) -> bool {
        self.0.forget_some(count)
    }
}

/// A client's state. See the module.
pub struct Session {
    pub id: u64,
    pub info: Arc<ClientInfo>,
    pub db: usize,
    pub resp3: bool,
    /// The client gave the password, or none was required when it connected; see [`Session::is_let_in`].
    pub authenticated: bool,
    /// Milliseconds since 1970 at which it connected, or logged out.
    pub guest_since_ms: u64,
    /// The user that the client acts as.
    pub user: acl::Identity,
    /// HTTP: the token of the last request, and the generation of users in which it was right.
    pub(crate) token: Option<(Vec<u8>, u64)>,
    pub reply_mode: ReplyMode,
    /// Confirmations of subscriptions, written while replies are left out (CLIENT REPLY). They are sent all
    /// the same.
    pub(crate) told: Vec<u8>,
    pub multi: Option<Multi>,
    pub watch: Watch,
    /// Watched keys that are rows of sources.
    pub watched_rows: crate::rows::Watched,
    pub subs: Subscriptions,
    /// CLIENT TRACKING is on.
    pub tracking: Option<Box<crate::tracking::Mine>>,
    pub(crate) copy_wish: crate::actions::CopyWish,
    pub no_touch: bool,
    /// CLIENT IMPORT-SOURCE is on. It counts in import mode.
    pub imports: bool,
    pub no_evict: bool,
    /// Messages wait until the reply under way is written.
    pub hushed: bool,
    /// The connection closes when everything written so far is sent (QUIT, errors of the protocol).
    pub closing: bool,
    /// Set when the client disconnects: cancels what runs for it on a worker.
    pub cancel: Arc<AtomicBool>,
    /// The client's replies leave when effects up to this LSN are durable. It covers the client's own
    /// effects, and those that its replies may tell of.
    pub gate: keyspace::Lsn,
    /// Hashes of the keys that the parked command's reply tells of. None: it may tell of anything.
    pub saw: Option<Vec<u64>>,
    /// The request whose reply will come by mail.
    pub away: Option<Box<Away>>,
    /// The progress of the command under way.
    pub(crate) half: Half,
    /// The client whose protected commit holds this one up, and the start of that wait (monotonic clock, ns).
    pub guarded: Cell<Option<(u64, u64)>>,
    /// The reclaimer's fullness when this client last gave it garbage while it was full
    /// (`stdx::reclaim::fullness`).
    pub littered: u64,
    /// Messages that the client published while very many were under way.
    pub(crate) published: Added,
    /// The client is held back until less of its own work is under way: which work, and since when (monotonic
    /// clock, ns).
    pub held_back: Cell<Option<(What, u64)>>,
    /// The command waits for the end of CLIENT PAUSE.
    pub(crate) postponed: Option<Postponed>,
    /// When the command began, memory was short and nothing could be evicted; see `shortage::is_short`.
    pub(crate) short: bool,
    /// Rows of sources that the command waits for, or was given.
    pub rows: crate::rows::Pending,
}

impl Session {
    /// Whether the command had to wait before it ran: `Local::end_waits` is to be told.
    #[inline]
    pub fn was_held(&self) -> bool {
        self.guarded.get().is_some() || self.held_back.get().is_some() || self.rows.loaded_since_ns.is_some()
    }

    /// How the client looks at keys now: whether they count as used (CLIENT NO-TOUCH), and whether expired
    /// ones are there.
    pub(crate) fn look(&self, keyspace: &keyspace::Keyspace, now_ms: u64) -> keyspace::Look {
        let used_ms = (!self.no_touch).then_some(now_ms);
        keyspace::Look { used_ms, shows_expired: self.sees_expired(keyspace) }
    }

    /// The same for the keys of one command. TOUCH uses them whatever the client asked for.
    pub(crate) fn look_of(
        &self,
        command: &command::Command,
        keyspace: &keyspace::Keyspace,
        now_ms: u64,
    ) -> keyspace::Look {
        let look = self.look(keyspace, now_ms);
        if command.is(command::facts::TOUCHES) {
            keyspace::Look { used_ms: Some(now_ms), ..look }
        } else {
            look
        }
    }

    /// Whether expired keys are there for the client (CLIENT IMPORT-SOURCE).
    #[inline]
    pub(crate) fn sees_expired(&self, keyspace: &keyspace::Keyspace) -> bool {
        self.imports && keyspace.imports()
    }

    /// Count of watched keys and rows.
    pub(crate) fn watched(&self) -> usize {
        self.watch.keys.len() + self.watched_rows.len()
    }

    /// Takes everything that the client watches.
    pub(crate) fn take_watch(&mut self) -> Watch {
        let (mut watch, rows) = (std::mem::take(&mut self.watch), std::mem::take(&mut self.watched_rows));
        if !rows.is_empty() {
            watch.others = Some(Box::new(WatchedRows(rows)));
        }
        watch
    }

    pub fn new(info: Arc<ClientInfo>, acl: &acl::Acl, authenticated: bool) -> Session {
        Session {
            id: info.id,
            guest_since_ms: info.connected_ms,
            info,
            db: 0,
            resp3: false,
            authenticated,
            user: acl::Identity::guest(acl),
            token: None,
            reply_mode: ReplyMode::On,
            told: Vec::new(),
            multi: None,
            watch: Watch::default(),
            watched_rows: crate::rows::Watched::default(),
            subs: Subscriptions::default(),
            tracking: None,
            copy_wish: Default::default(),
            no_touch: false,
            imports: false,
            no_evict: false,
            hushed: false,
            closing: false,
            cancel: Arc::default(),
            gate: 0,
            saw: None,
            away: None,
            half: Half::default(),
            guarded: Cell::new(None),
            littered: 0,
            published: Added::default(),
            held_back: Cell::new(None),
            postponed: None,
            short: false,
            rows: crate::rows::Pending::default(),
        }
    }

    /// Whether the client may use commands. Without authentication it may exactly while `default` needs no
    /// password.
    #[inline]
    pub fn is_let_in(&self, server: &crate::Server) -> bool {
        self.authenticated || server.acl.is_open()
    }

    pub fn is_local(&self) -> bool {
        self.info.unix || self.info.address.starts_with("127.") || self.info.address.starts_with("[::1]")
    }

    /// Holds the client back until less of its own work is under way. False: it was held back already.
    pub(crate) fn waits_for_itself(&self, what: What, now_ns: u64) -> bool {
        let begins = self.held_back.get().is_none();
        if begins {
            self.held_back.set(Some((what, now_ns)));
        }
        begins
    }

    /// Whether the client may send a few commands only: it speaks RESP2 and has subscribed.
    pub fn in_pubsub_mode(&self) -> bool {
        !self.resp3 && !self.subs.is_empty()
    }

    /// The client sent an empty line or array. Redis takes that as a command without a reply, so CLIENT REPLY
    /// SKIP ends with it.
    pub fn got_nothing(&mut self) {
        if matches!(self.reply_mode, ReplyMode::Skip | ReplyMode::SkipNext) {
            self.reply_mode = ReplyMode::On;
        }
    }

    /// Whether replies are left out now (CLIENT REPLY).
    pub(crate) fn is_muted(&self) -> bool {
        matches!(self.reply_mode, ReplyMode::Off | ReplyMode::Skip)
    }

    /// Moves the messages that CLIENT REPLY does not leave out to `out`. O(their bytes).
    pub fn take_told(&mut self, out: &mut Reply) {
        if !self.told.is_empty() {
            out.encoded(&std::mem::take(&mut self.told));
        }
    }

    /// Whether to drop the reply of a command that ran elsewhere (CLIENT REPLY).
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
