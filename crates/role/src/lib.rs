//! Whether this server leads or follows another one, how that changes, and how commands and connections see the
//! other servers: its primary ([`link`]) and its replicas ([`replicas`]).
//!
//! ```text
//! REPLICAOF h p ─► wish, READONLY at once ─► thread `role`: barrier, nothing expires by itself, link
//! REPLICAOF NO ONE ─► wish, writes wait ───► thread `role`: link ended, expiry on, writes go on
//! ```
//!
//! - RO1: the wish changes at once and in order; the thread carries out what was wished last.
//! - RO2: INFO says `slave` from the wish on, and `master` only when writes are taken.
//! - RO4: while a failover is under way, writes are held, and the wish cannot change but by its outcome.
//! - RO3: from the answer to REPLICAOF on no client's write is admitted, and what was admitted before is over
//!   before the link's first command. Long writes that are not decided by then are refused.

#![forbid(unsafe_code)]

pub mod link;
pub mod replicas;

use arc_swap::ArcSwapOption;
use command::Error;
use command::options::int;
use link::Link;
use observe::info::Following;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use stdx::budget::Budget;
use work::follows::Follows;

/// Follows: clients' writes are refused.
const FOLLOWS: u32 = 1;
/// Is about to lead: clients' writes wait.
const LEADS_SOON: u32 = 2;

/// How long the answer of a replica that is to lead is awaited before FAILOVER ABORT is taken all the same.
const ANSWER_MS: u64 = 10_000;

/// The address of a primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub host: String,
    pub port: u16,
}

impl Address {
    /// Reads what REPLICAOF names. Errors: the host is none, or the port.
    pub fn of_words(host: &[u8], port: &[u8]) -> Result<Address, Error> {
        let is_host = |host: &&str| !host.is_empty() && !host.contains(char::is_whitespace);
        let host = std::str::from_utf8(host).ok().filter(is_host);
        let host = host.ok_or(Error::new("ERR Invalid master host"))?.to_owned();
        let port = int(port).ok().and_then(|port| u16::try_from(port).ok());
        Ok(Address { host, port: port.ok_or(Error::new("ERR Invalid master port"))? })
    }
}

/// A wish of FAILOVER.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failover {
    /// The replica that is to lead; None: the first one that has everything.
    pub to: Option<Address>,
    /// It leads when the time is over, even if it lacks something.
    pub force: bool,
    pub timeout: Option<Duration>,
}

/// The progress of a failover, as INFO names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Failing {
    No,
    /// A replica is to have everything.
    Waits,
    /// It was told to lead.
    InProgress,
}

/// The part of the program that carries out a role.
pub trait Follower: Send + Sync {
    /// Lets a replica lead, as soon as what was asked before is done. O(1)
    fn fail_over(&self, wish: Failover);

    /// Follows a primary, or none, as soon as what was asked before is done. O(1)
    fn follow(&self, primary: Option<Address>);

    /// Ends the link, and waits for that: what the primary says from here on is neither applied nor
    /// acknowledged.
    fn rest(&self);

    /// The figures of INFO and ROLE. O(1)
    fn figures(&self) -> Following;
}

/// The role of a server. See the module.
#[derive(Default)]
pub struct Role {
    bits: AtomicU32,
    primary: ArcSwapOption<Address>,
    /// The primary before, which INFO names until this server leads.
    former: ArcSwapOption<Address>,
    /// Held while the wish changes (RO1).
    changing: Mutex<()>,
    follower: OnceLock<Box<dyn Follower>>,
    /// The client that is the link, plus one; 0: there is none.
    link: AtomicU64,
    /// Its state.
    present: ArcSwapOption<Link>,
    /// A [`Failing`], and whether it is to be given up.
    failing: AtomicU8,
    gives_up: AtomicBool,
    /// When the replica was told to lead, in milliseconds since 1970.
    told_ms: AtomicU64,
    /// Count of failovers that handed over.
    moves: AtomicU64,
    /// Memory for the primary's long commands: it is not limited, as they cannot be refused.
    pub work: Arc<Budget>,
}

impl Role {
    /// Whether it leads, and nothing about that changes. Cost: one load.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.bits.load(Ordering::Acquire) == 0
    }

    /// Whether it follows, or has not ceased to yet (RO2).
    pub fn follows(&self) -> bool {
        self.bits.load(Ordering::Acquire) & FOLLOWS != 0
    }

    /// Whether a promotion is under way.
    pub fn is_about_to_lead(&self) -> bool {
        self.bits.load(Ordering::Acquire) & LEADS_SOON != 0
    }

    /// The primary it follows, by the last wish.
    pub fn primary(&self) -> Option<Arc<Address>> {
        self.primary.load_full()
    }

    /// Whether the stream of the primary is being applied.
    pub fn is_linked(&self) -> bool {
        self.link.load(Ordering::Acquire) != 0
    }

    /// Whether it follows, and the stream of the primary is not being applied: its data may be old.
    pub fn lacks_link(&self) -> bool {
        self.follows() && !self.is_linked()
    }

    /// Whether a client is the connection to the primary.
    #[inline]
    pub fn is_link(&self, client: u64) -> bool {
        self.link.load(Ordering::Acquire) == client + 1
    }

    /// Names the connection to the primary.
    pub fn link(&self, client: u64, follows: &Follows) {
        follows.set_link(Some(client));
        self.link.store(client + 1, Ordering::Release);
    }

    pub fn unlink(&self, follows: &Follows) {
        self.link.store(0, Ordering::Release);
        follows.set_link(None);
    }

    /// The client that is the connection to the primary.
    pub fn link_client(&self) -> Option<u64> {
        self.link.load(Ordering::Acquire).checked_sub(1)
    }

    /// The state of the link, while there is one.
    pub fn present_link(&self) -> Option<Arc<Link>> {
        self.present.load_full()
    }

    /// Names the state of the link, or none.
    pub fn set_present_link(&self, link: Option<Arc<Link>>) {
        self.present.store(link);
    }

    /// Follows a primary from the start on. Errors: nobody could carry it out.
    pub fn follow_from_start(&self, primary: Address) -> Result<(), &'static str> {
        self.wish(Some(primary), || ()).map(drop)
    }

    /// Names what carries wishes out, once, before the first client.
    pub fn set_follower(&self, follower: Box<dyn Follower>) {
        // A second call would be a mistake of the program; the first one counts.
        let _ = self.follower.set(follower);
    }

    /// The figures of the link. None: it leads.
    pub fn figures(&self) -> Option<Following> {
        if !self.follows() {
            return None;
        }
        let primary = self.primary().or_else(|| self.former.load_full());
        let mut figures = self.follower.get().map(|follower| follower.figures()).unwrap_or_default();
        if let Some(Address { host, port }) = primary.as_deref() {
            (figures.host, figures.port) = (host.clone(), *port);
        }
        Some(figures)
    }

    /// Applies nothing more of a primary, as the server ends: what is acknowledged is what its log will have.
    /// False goes on. It waits for the link's end. For a thread that may wait.
    pub fn rests(&self, rests: bool) {
        let Some((follower, primary)) = self.follower.get().zip(self.primary()) else { return };
        match rests {
            true => follower.rest(),
            false => follower.follow(Some((*primary).clone())),
        }
    }

    /// The progress of a failover.
    pub fn failing(&self) -> Failing {
        match self.failing.load(Ordering::Acquire) {
            0 => Failing::No,
            1 => Failing::Waits,
            _ => Failing::InProgress,
        }
    }

    /// Notes the progress of a failover. For the thread `role`.
    pub fn set_failing(&self, failing: Failing) {
        if failing == Failing::InProgress {
            self.told_ms.store(stdx::clock::wall_ms(), Ordering::Release);
        }
        self.failing.store(failing as u8, Ordering::Release);
    }

    /// Counts one more failover that handed over.
    pub fn next_move(&self) -> u64 {
        self.moves.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Whether the failover under way is to be given up.
    pub fn gives_up(&self) -> bool {
        self.gives_up.load(Ordering::Acquire)
    }

    /// Begins a failover. Errors: one is under way, or nobody could carry it out.
    pub fn fail_over(&self, wish: Failover) -> Result<(), &'static str> {
        let follower = self.follower.get().ok_or("ERR this server cannot follow another one")?;
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.failing() != Failing::No {
            return Err("ERR FAILOVER already in progress.");
        }
        if self.follows() {
            return Err("ERR FAILOVER is not valid when server is a replica.");
        }
        self.gives_up.store(false, Ordering::Release);
        self.set_failing(Failing::Waits);
        follower.fail_over(wish);
        Ok(())
    }

    /// Gives up the failover under way. Errors: there is none; or the replica has just been told to lead, so
    /// that both might.
    pub fn abort_failover(&self) -> Result<(), &'static str> {
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.failing() == Failing::No {
            return Err("ERR No failover in progress.");
        }
        let told_ms = self.told_ms.load(Ordering::Acquire);
        if self.failing() == Failing::InProgress && stdx::clock::wall_ms() < told_ms + ANSWER_MS {
            return Err(
                "ERR FAILOVER can't be aborted now: the replica was told to lead, and its answer is awaited",
            );
        }
        self.gives_up.store(true, Ordering::Release);
        Ok(())
    }

    /// Names the primary that a failover leads to, or none again (RO4). For the thread `role`.
    pub fn hand_over(&self, primary: Option<Address>) {
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let bits = if primary.is_some() { FOLLOWS } else { FOLLOWS | LEADS_SOON };
        self.primary.store(primary.map(Arc::new));
        self.bits.store(bits, Ordering::Release);
    }

    /// Changes the wish; `refuses` comes first if it is to follow, and refuses what is not decided yet (RO3).
    /// False: it is the same. Errors: nobody could carry it out, or a failover is under way.
    pub fn wish(&self, primary: Option<Address>, refuses: impl FnOnce()) -> Result<bool, &'static str> {
        let follower = self.follower.get().ok_or("ERR this server cannot follow another one")?;
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.failing() != Failing::No {
            return Err("ERR REPLICAOF not allowed while failing over.");
        }
        if self.primary().as_deref() == primary.as_ref() {
            return Ok(false);
        }
        match &primary {
            Some(_) => refuses(),
            None => self.former.store(self.primary()),
        }
        let bits = if primary.is_some() { FOLLOWS } else { FOLLOWS | LEADS_SOON };
        self.primary.store(primary.clone().map(Arc::new));
        self.bits.store(bits, Ordering::Release);
        follower.follow(primary);
        Ok(true)
    }

    /// Leads from now on, if that is still the wish: `begin` comes first. For the thread `role`.
    pub fn lead(&self, begin: impl FnOnce()) -> bool {
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let leads = self.primary().is_none();
        if leads {
            begin();
            self.bits.store(0, Ordering::Release);
        }
        leads
    }
}
