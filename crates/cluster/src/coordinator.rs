//! Leases, and small values with revisions, as each engine keeps them.
//!
//! ```text
//! acquire ──► Lease (epoch) ──renew, each second──► Kept … ──release, or the TTL passes──► the next one's
//! read ──► revision ──watch behind it──► each change, in order        cas: from a revision to the next
//! ```
//!
//! - C1: a shard has one holder at most. Epochs of a shard grow with each holder, also past a restart of the
//!   engine.
//! - C2: a lease lasts for its TTL from when the last kept renewal was sent, and at least as long. It ends by
//!   itself if nobody renews it.
//! - C3: a revision names one state of all keys. It grows, and is never 0: 0 is that of a key that is not
//!   there.
//! - C4: a watch tells each change behind its revision once and in the order of revisions, or it ends. Changes
//!   of one step (a holder lets go in favour of another) may have one revision.
//! - C5: no call waits longer than about a second, but for [`Coordinator::watch`]. An answer that did not come
//!   is Unknown: it may still be done later. [`acquire_known`] and [`cas_known`] ask until it is known.
//!
//! Keys are relative: `map`, `node/<id>`, `offer/<id>/<node>`, `shard/<id>` (the holder of a lease), and
//! `shard/<id>/next` (for whom it was released). Those of shards are written by leases alone.
//!
//! Threads block in all calls. Each call may be made from many threads at once.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The longest a call waits for the engine. A renewal that takes longer is worth nothing.
pub const CALL_LIMIT: Duration = Duration::from_secs(1);

/// The longest key, and the longest id, in bytes.
const LONGEST: usize = 200;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Box<str>);

        impl $name {
            /// Errors: it is empty, too long, or has other signs than letters, digits, `-`, `_` and `.`.
            pub fn new(text: &str) -> Result<$name, String> {
                match is_word(text) {
                    true => Ok($name(text.into())),
                    false => Err(format!(concat!("'{}' is no id of a ", $what), text)),
                }
            }
        }

        impl Deref for $name {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fmt_as_text!();
        }
    };
}

macro_rules! fmt_as_text {
    () => {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(&self.0)
        }
    };
}

id!(
    /// A shard, by 40 hexadecimal digits.
    ShardId,
    "shard"
);
id!(
    /// A node, by 40 hexadecimal digits.
    NodeId,
    "node"
);

/// Whether a text can stand between the slashes of a key.
fn is_word(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    !text.is_empty() && text.len() <= LONGEST && text.bytes().all(plain) && !text.starts_with('.')
}

/// Checks a key. Errors: a sentence for a bug report, as keys are made by this program.
pub fn check_key(key: &str) -> Result<(), Trouble> {
    match key.len() <= LONGEST && key.split('/').all(is_word) {
        true => Ok(()),
        false => Err(Trouble::new(format!("'{key}' is no key of a coordinator"))),
    }
}

/// The key of a shard's holder.
pub fn shard_key(shard: &ShardId) -> String {
    format!("shard/{shard}")
}

/// The key of the node for which a shard's lease was released.
pub fn next_key(shard: &ShardId) -> String {
    format!("shard/{shard}/next")
}

/// A state of the keys (C3). Only revisions of one coordinator can be compared.
pub type Revision = u64;

/// The right to lead a shard, while it is renewed. Two copies are one lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub shard: ShardId,
    pub node: NodeId,
    /// Grows with each holder of the shard.
    pub epoch: u64,
    pub ttl: Duration,
    /// The engine's own name for it.
    pub handle: u64,
}

/// The reason for which a lease was not given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// This node holds it. It may be the caller itself, by an earlier process (F6).
    By(NodeId),
    /// It was released in favour of this node, and so is kept for it for one TTL.
    For(NodeId),
    /// Nothing was changed.
    Trouble(Trouble),
    /// It may be held, by the caller. [`acquire_known`] asks on.
    Unknown(Trouble),
}

/// The result of a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// It lasts for the TTL from when this call began.
    Kept,
    /// It is over. Another may hold it.
    Lost,
    /// No answer. It lasts at least as long as before.
    Unknown(Trouble),
}

/// The result of a change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cas {
    /// The key has the new value since this revision. Of a removal: it is gone since.
    Done(Revision),
    /// Nothing was changed: the key has this revision. 0: it is not there.
    Conflict(Revision),
    /// No answer. It may be done, or be done later. [`cas_known`] asks on.
    Unknown(Trouble),
}

/// A key that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: String,
    pub value: Vec<u8>,
    /// That of its last change, which [`Coordinator::cas`] expects.
    pub revision: Revision,
    /// The holder's, if this is the key of a shard; else 0.
    pub epoch: u64,
}

/// A change of one key. None: it was removed, or its lease ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub key: String,
    pub revision: Revision,
    pub entry: Option<Entry>,
}

/// The reason for which a watch ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Changes behind the given revision are no longer kept: read again, and watch from there.
    Compacted,
    /// The engine cannot be reached. Watch again behind the last change that was seen.
    Broken(Trouble),
    /// By [`Stop::stop`].
    Stopped,
}

/// A sentence about what went wrong with a coordinator, for the log and INFO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble(Box<str>);

impl Trouble {
    pub fn new(text: impl Into<String>) -> Trouble {
        Trouble(text.into().into())
    }
}

impl fmt::Display for Trouble {
    fmt_as_text!();
}

/// Ends threads that wait. Copies are one.
#[derive(Clone, Default)]
pub struct Stop(Arc<(Mutex<bool>, Condvar)>);

impl Stop {
    pub fn new() -> Stop {
        Stop::default()
    }

    /// Ends all waiting, for good. A watch ends within a quarter of a second.
    pub fn stop(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_all();
    }

    pub fn is_stopped(&self) -> bool {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for `limit`, or until it is stopped. Returns whether it is.
    pub fn wait(&self, limit: Duration) -> bool {
        let stopped = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.0.1.wait_timeout_while(stopped, limit, |stopped| !*stopped);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stop({})", self.is_stopped())
    }
}

/// An engine. See the module.
pub trait Coordinator: Send + Sync {
    /// The engine and where it is, for INFO and the log; no passwords.
    fn describe(&self) -> String;

    /// Takes the lease of a shard if nobody holds it. It lasts for `ttl` from when this call began. A call
    /// behind one that was Unknown finds what became of it.
    fn acquire(&self, shard: &ShardId, me: &NodeId, ttl: Duration) -> Result<Lease, Held>;

    /// Renews a lease.
    fn renew(&self, lease: &Lease) -> Renewed;

    /// Ends a lease. With `next`, nobody else can take it for one TTL. A lease that is lost is no error.
    /// Errors: no answer; then it ends by itself.
    fn release(&self, lease: Lease, next: Option<&NodeId>) -> Result<(), Trouble>;

    /// All keys that begin with `prefix`, sorted, as of one revision. O(their bytes).
    fn read(&self, prefix: &str) -> Result<(Revision, Vec<Entry>), Trouble>;

    /// Gives a key another value, if its revision is `expected`; 0: if it is not there. None removes it.
    fn cas(&self, key: &str, expected: Revision, value: Option<&[u8]>) -> Cas;

    /// Tells each change behind a revision of keys that begin with `prefix` (C4). Blocks until it ends.
    /// `after`: as a call of this object told it; another one's may be compacted.
    fn watch(&self, prefix: &str, after: Revision, stop: &Stop, seen: &mut dyn FnMut(Change)) -> Ended;

    /// Shows others which role this node has, `primary` or `replica`: in Kubernetes by its pod's label,
    /// elsewhere not.
    fn show_role(&self, role: &str) -> Result<(), Trouble> {
        let _ = role;
        Ok(())
    }
}

/// Nanoseconds since the machine started, with the time that it was suspended. Never goes back. Cost: 50 ns.
pub fn boot_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A random number above 0, so that what one process does is not taken for what the next one with its id does.
/// Errors: the system has no randomness.
pub(crate) fn random() -> Result<u64, String> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|e| format!("no random numbers: {e}"))?;
    Ok((u64::from_le_bytes(bytes) >> 1).max(1))
}

/// The wait between two questions about an answer that is not known.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// Takes a lease as [`Coordinator::acquire`] does, and asks until the answer is known, or `until` has come
/// (M3). The lease lasts for its TTL from when this call began, or longer.
pub fn acquire_known(
    coordinator: &dyn Coordinator,
    shard: &ShardId,
    me: &NodeId,
    ttl: Duration,
    until: Instant,
) -> Result<Lease, Held> {
    loop {
        match coordinator.acquire(shard, me, ttl) {
            Err(Held::Unknown(_)) if Instant::now() < until => std::thread::sleep(ASK_AGAIN),
            answer => return answer,
        }
    }
}

/// Changes a key as [`Coordinator::cas`] does, and asks until the answer is known, or `until` has come (M3).
/// After an Unknown, a change from `expected` to these very bytes counts as ours, whoever made it: two nodes
/// that write alike say the same. If the engine has forgotten that change, or `expected` is 0, the present
/// value is compared; then Conflict may also mean that ours was done and is overwritten.
pub fn cas_known(
    coordinator: &dyn Coordinator,
    key: &str,
    expected: Revision,
    value: Option<&[u8]>,
    until: Instant,
) -> Cas {
    let mut answer = coordinator.cas(key, expected, value);
    while matches!(answer, Cas::Unknown(_)) && Instant::now() < until {
        std::thread::sleep(ASK_AGAIN);
        // A change that is under way fails behind this one, so the answer to a second try is the truth.
        answer = match coordinator.cas(key, expected, value) {
            Cas::Conflict(now) => match found(coordinator, key, expected, now, value) {
                Ok(answer) => answer,
                Err(trouble) => Cas::Unknown(trouble),
            },
            answer => answer,
        };
    }
    answer
}

/// The answer to a change of which an earlier try was Unknown, and which is refused now, at revision `now`.
fn found(
    coordinator: &dyn Coordinator,
    key: &str,
    expected: Revision,
    now: Revision,
    value: Option<&[u8]>,
) -> Result<Cas, Trouble> {
    // Ours, if it was done, was the first one behind `expected`.
    if expected > 0
        && let Some(change) = first_change(coordinator, key, expected)?
    {
        let wrote = change.entry.as_ref().map(|entry| entry.value.as_slice());
        return Ok(if wrote == value { Cas::Done(change.revision) } else { Cas::Conflict(now) });
    }
    let (revision, entries) = coordinator.read(key)?;
    let entry = entries.into_iter().find(|entry| entry.key == key);
    Ok(match (entry, value) {
        (Some(entry), Some(value)) if entry.value == value => Cas::Done(entry.revision),
        (None, None) => Cas::Done(revision),
        (Some(entry), _) => Cas::Conflict(entry.revision),
        (None, Some(_)) => Cas::Conflict(0),
    })
}

/// The first change of a key behind a revision; there is one. None: it is no longer kept.
fn first_change(
    coordinator: &dyn Coordinator,
    key: &str,
    after: Revision,
) -> Result<Option<Change>, Trouble> {
    let (stop, mut first) = (Stop::new(), None);
    let ended = coordinator.watch(key, after, &stop, &mut |change| {
        if change.key == key && first.is_none() {
            first = Some(change);
            stop.stop();
        }
    });
    match (first, ended) {
        (Some(change), _) => Ok(Some(change)),
        (None, Ended::Compacted) => Ok(None),
        (None, Ended::Broken(trouble)) => Err(trouble),
        (None, Ended::Stopped) => Err(Trouble::new("the change was not found")),
    }
}
