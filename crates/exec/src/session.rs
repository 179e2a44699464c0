//! A client's state between its commands. It belongs to the loop that serves the connection.

use crate::parts::{CopyWish, Gate, Half, Holds, Login, Multi, Settings, Speech, Watched};
use observe::waits::{Away, Lacking, What};
pub use observe::{ClientInfo, ClientText, flag};
pub use pubsub::Subscriptions;
use role::replicas::{Feed, Said};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A client's state. See the module.
pub struct Session {
    pub id: u64,
    pub info: Arc<ClientInfo>,
    pub db: usize,
    /// Set when the client disconnects: cancels what runs for it on a worker.
    pub cancel: Arc<AtomicBool>,
    pub speech: Speech,
    pub login: Login,
    pub settings: Settings,
    pub multi: Option<Multi>,
    pub watched: Watched,
    pub subs: Subscriptions,
    /// CLIENT TRACKING is on.
    pub tracking: Option<Box<pubsub::tracking::Mine>>,
    pub(crate) copy_wish: CopyWish,
    /// Its words about itself, before PSYNC.
    pub(crate) said: Option<Box<Said>>,
    /// It follows this server: what it is sent.
    pub feed: Option<Box<dyn Feed>>,
    /// The newest effect of its own commands, or one behind it.
    pub(crate) wrote: keyspace::Lsn,
    /// The time at which the client's replies may leave.
    pub gate: Gate,
    /// In a cluster: what waits to be sent tells of keys as their primary does ([`crate::cluster`]).
    pub tells_keys: bool,
    /// The request whose reply will come by mail.
    pub away: Option<Box<Away>>,
    /// The progress of the command under way.
    pub(crate) half: Half,
    /// The next look of a client that waits for keys to be due.
    pub look: Option<park::Look>,
    /// Reasons to hold the client back.
    pub holds: Holds,
    /// Rows of sources that the command waits for, or was given.
    pub rows: rows::Pending,
    /// It is the connection to the primary that this server follows.
    pub link: Option<Box<role::link::Linked>>,
}

impl Session {
    /// `authenticated`: the client need not log in.
    pub fn new(info: Arc<ClientInfo>, acl: &acl::Acl, authenticated: bool) -> Session {
        let guest_since_ms = info.connected_ms;
        Session {
            id: info.id,
            info,
            db: 0,
            cancel: Arc::default(),
            speech: Speech::default(),
            login: Login { authenticated, guest_since_ms, user: acl::Identity::guest(acl), token: None },
            settings: Settings::default(),
            multi: None,
            watched: Watched::default(),
            subs: Subscriptions::default(),
            tracking: None,
            copy_wish: CopyWish::default(),
            said: None,
            feed: None,
            wrote: 0,
            gate: Gate::default(),
            tells_keys: false,
            away: None,
            half: Half::default(),
            look: None,
            holds: Holds::default(),
            rows: rows::Pending::default(),
            link: None,
        }
    }

    /// Makes it the connection to the primary: it may do everything, and nobody answers it.
    pub fn become_link(&mut self, linked: role::link::Linked) {
        self.login.user = acl::Identity::internal();
        self.set_flag(flag::PRIMARY | flag::NO_EVICT, true);
        self.settings.no_evict = true;
        self.speech.reply_mode = crate::parts::ReplyMode::Off;
        self.link = Some(Box::new(linked));
    }

    /// Whether a command has not run yet, since a replica is about to lead.
    pub fn waits_for_successor(&self) -> bool {
        matches!(self.holds.lacking.get(), Some((Lacking::Successor, _)))
    }

    /// Whether the command had to wait before it ran: `Local::end_waits` is to be told.
    #[inline]
    pub fn was_held(&self) -> bool {
        self.holds.guarded.get().is_some()
            || self.holds.held_back.get().is_some()
            || self.holds.lacking.get().is_some()
            || self.rows.loaded_since_ns.is_some()
    }

    /// How the client looks at keys now: whether they count as used (CLIENT NO-TOUCH), and whether expired
    /// ones are there.
    pub(crate) fn look(&self, keyspace: &keyspace::Keyspace, now_ms: u64) -> keyspace::Look {
        let used_ms = (!self.settings.no_touch).then_some(now_ms);
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

    /// Whether expired keys are there for the client: CLIENT IMPORT-SOURCE, or the primary, which says itself
    /// what is removed.
    #[inline]
    pub(crate) fn sees_expired(&self, keyspace: &keyspace::Keyspace) -> bool {
        self.link.is_some() || self.settings.imports && keyspace.imports() && !keyspace.follows()
    }

    pub fn is_local(&self) -> bool {
        self.info.unix || self.info.address.starts_with("127.") || self.info.address.starts_with("[::1]")
    }

    /// Holds the client back until less of its own work is under way. False: it was held back already.
    pub(crate) fn waits_for_itself(&self, what: What, now_ns: u64) -> bool {
        let begins = self.holds.held_back.get().is_none();
        if begins {
            self.holds.held_back.set(Some((what, now_ns)));
        }
        begins
    }

    /// Whether the client may send a few commands only: it speaks RESP2 and has subscribed.
    pub fn in_pubsub_mode(&self) -> bool {
        !self.speech.resp3 && !self.subs.is_empty()
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
