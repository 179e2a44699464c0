//! The connection to the primary, as a client of its own kind.
//!
//! ```text
//! bytes of the primary ─► Conn ─► obey::execute ─► as any client's, but nothing refuses it, and nobody answers it
//!                           └─► applied(): the offset up to which whole groups are done ─► ACK, INFO, PSYNC
//! ```
//!
//! - RL1: the offset grows only between two whole groups. What is half done at the connection's end counts as
//!   not received.
//! - RL2: a command that this server does not know ends the link: to go on would mean other data than the
//!   primary's.

use crate::Role;
use keyspace::Keyspace;
use resp::Reply;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use work::follows::Follows;

/// The state of a link that the thread which made it shares with its loop.
#[derive(Debug, Default)]
pub struct Link {
    offset: AtomicU64,
    db: AtomicUsize,
    heard_ms: AtomicU64,
    errors: AtomicU64,
    /// A reason to end that came from its commands.
    why: Mutex<Option<String>>,
    closes: AtomicBool,
    ended: Mutex<bool>,
    end: Condvar,
}

impl Link {
    /// A link whose stream goes on behind an offset, in a database.
    pub fn new(offset: u64, db: usize) -> Link {
        let heard_ms = AtomicU64::new(stdx::clock::wall_ms());
        Link { offset: AtomicU64::new(offset), db: AtomicUsize::new(db), heard_ms, ..Link::default() }
    }

    /// The offset and the database behind the last whole group (RL1).
    pub fn position(&self) -> (u64, usize) {
        (self.offset.load(Ordering::Acquire), self.db.load(Ordering::Acquire))
    }

    /// When bytes last came, in milliseconds since 1970.
    pub fn heard_ms(&self) -> u64 {
        self.heard_ms.load(Ordering::Relaxed)
    }

    /// Waits for its end, some milliseconds at most. True: it has ended.
    pub fn wait_for_end(&self, ms: u64) -> bool {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = Duration::from_millis(ms);
        let waited = self.end.wait_timeout_while(ended, limit, |ended| !*ended);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Why its commands ended it, if they did.
    pub fn take_why(&self) -> Option<String> {
        self.why.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn set_why(&self, why: String) {
        self.why.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
        self.closes.store(true, Ordering::Release);
    }
}

/// The link, as its session has it.
#[derive(Debug)]
pub struct Linked {
    shared: Arc<Link>,
    /// The offset behind all bytes that came.
    came: u64,
    /// An ACK is to be sent: the primary asked for it.
    owes_ack: bool,
    acked_ms: u64,
}

/// Milliseconds between two ACKs that nobody asked for.
const ACK_MS: u64 = 1000;

impl Linked {
    pub fn new(shared: Arc<Link>) -> Linked {
        let came = shared.position().0;
        Linked { shared, came, owes_ack: false, acked_ms: 0 }
    }

    /// Notes bytes of the stream that came.
    pub fn note_came(&mut self, bytes: usize, now_ms: u64) {
        self.came += bytes as u64;
        self.shared.heard_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Notes that all that came is done, but for so many bytes; the stream is between two groups (RL1).
    pub fn note_done(&mut self, but: usize, db: usize) {
        self.shared.db.store(db, Ordering::Release);
        self.shared.offset.store(self.came.saturating_sub(but as u64), Ordering::Release);
    }

    /// Writes an ACK if one is due. `durable`: the offset up to which the log has all, if there is a log.
    pub fn acknowledge(&mut self, out: &mut Reply, now_ms: u64, durable: impl FnOnce() -> Option<u64>) {
        if !self.owes_ack && now_ms < self.acked_ms.saturating_add(ACK_MS) && now_ms >= self.acked_ms {
            return;
        }
        (self.owes_ack, self.acked_ms) = (false, now_ms);
        let offset = self.shared.position().0;
        let mut words = vec!["REPLCONF".to_owned(), "ACK".to_owned(), offset.to_string()];
        if let Some(durable) = durable() {
            words.extend(["FACK".to_owned(), durable.min(offset).to_string()]);
        }
        let mut text = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| text += &format!("${}\r\n{word}\r\n", word.len()));
        out.encoded(text.as_bytes());
    }

    /// Whether its own commands end it.
    pub fn is_to_close(&self) -> bool {
        self.shared.closes.load(Ordering::Acquire)
    }

    /// Takes note of the reply of a command that ran elsewhere.
    pub fn heard_reply(&self, reply: &[u8]) {
        if let Some(text) = reply.strip_prefix(b"-") {
            self.note_error(b"a long command", text);
        }
    }

    /// An ACK is to be sent: the primary asked for it.
    pub fn owe_ack(&mut self) {
        self.owes_ack = true;
    }

    /// Ends the link over a command (RL2).
    pub fn refuse(&self, name: &[u8], error: &str) {
        let offset = self.shared.position().0;
        self.shared.set_why(format!("behind offset {offset}, '{}': {error}", name.escape_ascii()));
    }

    pub fn note_error(&self, what: &[u8], text: &[u8]) {
        let count = self.shared.errors.fetch_add(1, Ordering::Relaxed);
        if count < ERRORS_LOGGED {
            let (what, text) = (what.escape_ascii(), text.trim_ascii_end().escape_ascii());
            log::error!("behind offset {}: '{what}' of the primary failed: {text}", self.shared.position().0);
        }
    }

    /// The connection has ended.
    pub fn end(&self, keyspace: &Keyspace, role: &Role, follows: &Follows) {
        keyspace.carry_end();
        role.unlink(follows);
        *self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.end.notify_all();
    }
}

/// Errors of a link's commands that are logged.
const ERRORS_LOGGED: u64 = 100;
