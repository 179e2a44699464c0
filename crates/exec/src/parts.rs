//! The parts of a client's state ([`crate::Session`]). A part that one crate alone works with is a type of that
//! crate.

use command::reads::Reads;
use keyspace::Lsn;
use memory::Waited;
use observe::waits::{Lacking, What};
use pubsub::flood::Added;
use resp::Reply;
use role::replicas::Waits;
use std::cell::Cell;
use std::sync::Arc;
use work::pause::Postponed;
use work::queue::Queue;
use work::{Others, Watch};

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

/// The way in which the client is answered.
#[derive(Default)]
pub struct Speech {
    pub resp3: bool,
    pub reply_mode: ReplyMode,
    /// Confirmations of subscriptions, written while replies are left out (CLIENT REPLY). They are sent all
    /// the same.
    pub(crate) told: Vec<u8>,
    /// Messages wait until the reply under way is written.
    pub muted: bool,
    /// The connection closes when everything written so far is sent (QUIT, errors of the protocol).
    pub closing: bool,
}

impl Speech {
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
}

/// The user that the client acts as, and how it came to be that.
pub struct Login {
    /// The client gave the password, or none was required when it connected; see [`Login::is_let_in`].
    pub authenticated: bool,
    /// Milliseconds since 1970 at which it connected, or logged out.
    pub guest_since_ms: u64,
    pub user: acl::Identity,
    /// HTTP: the token of the last request, and the generation of users in which it was right.
    pub(crate) token: Option<(Vec<u8>, u64)>,
}

impl Login {
    /// Whether the client may use commands. Without authentication it may exactly while `default` needs no
    /// password.
    #[inline]
    pub fn is_let_in(&self, acl: &acl::Acl) -> bool {
        self.authenticated || acl.is_open()
    }
}

/// Options that the client has set by CLIENT.
#[derive(Default)]
pub struct Settings {
    pub no_touch: bool,
    /// READONLY: it reads at a replica, though it could be sent to the primary.
    pub reads_here: bool,
    /// It is another node of the cluster, which tells what its own clients publish.
    pub is_peer: bool,
    /// CLIENT IMPORT-SOURCE is on. It counts in import mode.
    pub imports: bool,
    pub no_evict: bool,
    /// CLIENT MAINT_NOTIFICATIONS: how it hears that another server leads.
    pub moving: Moving,
    /// Its wait for a key has ended, and it is to hear first whether another server leads.
    pub ended_wait: bool,
}

/// The words of a client about messages `MOVING`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Moving {
    #[default]
    Off,
    /// It is told the other server's place, or that it has moved alone (`none`).
    On { named: bool },
    /// It was told. Its writes are not refused from then on: the connection closes, so that it repeats them
    /// there.
    Told,
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
    /// The slot of all keys, in a cluster.
    pub slot: cluster::slots::Joined,
    /// Some command could not be queued: EXEC refuses the whole transaction.
    pub broken: bool,
    /// EXEC's second look at the rights, which goes on.
    pub again: Option<acl::AskingAgain>,
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

/// Keys that the client watches.
#[derive(Default)]
pub struct Watched {
    pub watch: Watch,
    /// Watched keys that are rows of sources.
    pub rows: rows::Watched,
}

impl Watched {
    /// Count of watched keys and rows.
    pub(crate) fn len(&self) -> usize {
        self.watch.keys.len() + self.rows.len()
    }

    /// Takes everything that the client watches.
    pub(crate) fn take(&mut self) -> Watch {
        let Watched { mut watch, rows } = std::mem::take(self);
        if !rows.is_empty() {
            watch.others = Some(Box::new(WatchedRows(rows)));
        }
        watch
    }
}

/// Watched rows of a client whose EXEC runs elsewhere.
struct WatchedRows(rows::Watched);

impl Others for WatchedRows {
    fn are_marked(&self) -> bool {
        self.0.is_told()
    }

    fn forget_some(&mut self, count: usize) -> bool {
        self.0.forget_some(count)
    }
}

/// The effects that have to be durable before the client's replies leave.
#[derive(Default)]
pub struct Gate {
    /// Replies leave when effects up to this LSN are durable. It covers the client's own effects, and those
    /// that its replies may tell of.
    pub lsn: keyspace::Lsn,
    /// Hashes of the keys that the parked command's reply tells of. None: it may tell of anything.
    pub saw: Option<Vec<u64>>,
}

/// Reasons to hold the client back.
#[derive(Default)]
pub struct Holds {
    /// The client whose protected commit holds this one up, and the start of that wait (monotonic clock, ns).
    pub guarded: Cell<Option<(u64, u64)>>,
    /// The client is held back until less of its own work is under way: which work, and since when (monotonic
    /// clock, ns).
    pub held_back: Cell<Option<(What, u64)>>,
    /// The replica that WAIT waits for, or the end of FAILOVER, and the start of that wait (monotonic clock,
    /// ns).
    pub(crate) lacking: Cell<Option<(Lacking, u64)>>,
    /// The command waits for the end of CLIENT PAUSE.
    pub(crate) postponed: Option<Postponed>,
    /// The reclaimer's fullness when this client last gave it garbage while it was full
    /// (`stdx::reclaim::fullness`).
    pub garbage: u64,
    /// Messages that the client published while very many were under way.
    pub(crate) published: Added,
    /// When the command began, memory was short and nothing could be evicted; see `shortage::is_short`.
    pub(crate) short: bool,
}

/// The progress of a command that goes on later (`half` H1).
#[derive(Default)]
pub(crate) struct Half {
    /// Count of words that are done, for a command that runs in slices.
    pub(crate) done: usize,
    /// WATCH goes on; true: keys had been watched before it.
    pub(crate) watching: Option<bool>,
    /// A check of rights that goes on.
    pub(crate) asking: Option<Box<acl::Asking>>,
    /// MONITOR has shown the command.
    pub(crate) is_shown: bool,
    /// WAIT, WAITAOF: what it waits for.
    pub(crate) waits: Option<Box<Waits>>,
    /// PSYNC .. FAILOVER: this server is about to lead.
    pub(crate) takes_over: bool,
    /// INFO, ROLE: the LSN that the replicas' stream is to have, and until when it is waited for.
    pub(crate) counted: Option<(Lsn, u64)>,
    /// The milliseconds that a transaction's DEBUG SLEEPs hold back the reply of EXEC.
    pub(crate) sleep_ms: u64,
    /// The command waits for evictions: since when (milliseconds since 1970), and how many keys had been
    /// evicted by then.
    pub(crate) short_since: Cell<Option<Waited>>,
}

/// The file that a client asked for by REPLCONF, before its SYNC.
#[derive(Clone, Copy, Default)]
pub(crate) struct CopyWish {
    /// It wants the file alone, and does not follow afterwards.
    pub file_alone: bool,
    /// A part was named, so that the others are left out.
    pub filtered: bool,
    pub functions: bool,
}
