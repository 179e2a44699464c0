//! COMMANDLOG and SLOWLOG: the latest commands that took long, and why, and those with large requests or
//! replies.
//!
//! ```text
//! slow           microseconds ≥ commandlog-execution-slower-than   SLOWLOG is a view of this log
//! large-request  bytes        ≥ commandlog-request-larger-than
//! large-reply    bytes        ≥ commandlog-reply-larger-than
//! ```
//!
//! An entry has the form of Redis: at most [`ARGS_MAX`] words of at most [`ARG_BYTES_MAX`] bytes, with a note
//! of how much was left out. A slow one also has the cause, which `SLOWLOG WHY` shows. GET keeps its six
//! fields, since some client libraries read exactly those.
//!
//! - Q1: the lock is held for a bounded number of entries at a time, however long the log is.
//! - Q2: entries are numbered from 0 without gaps, newest first; numbers are never used twice.
//!
//! Memory: some 6 KB per entry at most, and no more entries than the log's directive allows.

use crate::waits::Culprit;
use command::Error;
use parking_lot::Mutex;
use resp::{Args, Reply};
use std::collections::VecDeque;
use std::sync::Arc;

/// Words kept of one command.
pub const ARGS_MAX: usize = 32;
/// Bytes kept of one word.
pub const ARG_BYTES_MAX: usize = 128;
/// Entries copied or dropped in one go under the lock (Q1).
const BATCH: usize = 128;

/// One command that was logged.
#[derive(Clone, Debug)]
pub struct Entry {
    pub id: u64,
    /// The end of the command, in seconds since 1970.
    pub unix_s: u64,
    /// Microseconds in the log of slow commands, bytes in the others.
    pub amount: u64,
    /// The words, shortened.
    pub args: Vec<Vec<u8>>,
    pub client_address: String,
    pub client_name: Vec<u8>,
    /// The client's number.
    pub client: u64,
    /// Where the time went, in words; may be empty.
    pub cause: String,
    /// The same as names and microseconds.
    pub phases: Vec<(&'static str, u64)>,
    /// The work the command waited for, if it did.
    pub culprit: Option<Arc<Culprit>>,
}

/// The kinds of logs, in the order of [`KINDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKind {
    Slow,
    LargeRequest,
    LargeReply,
}

/// The kinds by the names that COMMANDLOG knows.
const KINDS: [(&str, LogKind); 3] =
    [("slow", LogKind::Slow), ("large-request", LogKind::LargeRequest), ("large-reply", LogKind::LargeReply)];

impl LogKind {
    /// The kind of this name, in any case.
    pub fn named(name: &[u8]) -> Result<LogKind, Error> {
        let found = KINDS.iter().find(|(known, _)| command::options::is(name, known));
        let unknown = Error::new("ERR type should be one of the following: slow, large-request, large-reply");
        found.map(|(_, kind)| *kind).ok_or(unknown)
    }
}

/// The three logs.
#[derive(Debug, Default)]
pub struct Logs {
    pub slow: CommandLog,
    pub large_requests: CommandLog,
    pub large_replies: CommandLog,
}

impl Logs {
    pub fn of(&self, kind: LogKind) -> &CommandLog {
        match kind {
            LogKind::Slow => &self.slow,
            LogKind::LargeRequest => &self.large_requests,
            LogKind::LargeReply => &self.large_replies,
        }
    }
}

/// One log, shared by all threads.
#[derive(Debug, Default)]
pub struct CommandLog {
    ring: Mutex<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    next_id: u64,
    /// Newest first.
    entries: VecDeque<Arc<Entry>>,
}

impl CommandLog {
    /// Numbers and adds an entry, and drops the oldest beyond `max_len`. One call drops at most [`BATCH`]
    /// entries, so a log whose limit was lowered shrinks over the next calls.
    pub fn add(&self, mut entry: Entry, max_len: usize) {
        let mut gone = Vec::new();
        let mut ring = self.ring.lock();
        entry.id = ring.next_id;
        ring.next_id += 1;
        ring.entries.push_front(Arc::new(entry));
        while ring.entries.len() > max_len && gone.len() < BATCH {
            gone.extend(ring.entries.pop_back());
        }
        drop(ring);
    }

    pub fn len(&self) -> usize {
        self.ring.lock().entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Up to `count` entries, newest first. Entries that come or go meanwhile may be missed, never repeated.
    pub fn newest(&self, count: usize) -> Vec<Arc<Entry>> {
        let mut found: Vec<Arc<Entry>> = Vec::new();
        while found.len() < count {
            let ring = self.ring.lock();
            let newest = ring.entries.front().map_or(0, |e| e.id);
            // An entry's place follows from its number (Q2).
            let skip = found.last().map_or(0, |last| (newest + 1).saturating_sub(last.id)) as usize;
            let batch = (count - found.len()).min(BATCH);
            let before = found.len();
            found.extend(ring.entries.iter().skip(skip).take(batch).cloned());
            if found.len() < before + batch {
                break;
            }
        }
        found
    }

    /// Removes all entries; they are freed elsewhere. The numbering goes on.
    pub fn reset(&self) {
        let entries = std::mem::take(&mut self.ring.lock().entries);
        stdx::reclaim::defer(entries.len() * size_of::<Entry>(), move || drop(entries));
    }
}

/// The words of a command as the log keeps them: shortened, and redacted where `secret` says so.
pub fn shortened(args: Args<'_>, secret: impl Fn(usize) -> bool) -> Vec<Vec<u8>> {
    let kept = if args.len() > ARGS_MAX { ARGS_MAX - 1 } else { args.len() };
    let word = |at: usize| if secret(at) { b"(redacted)".to_vec() } else { shortened_word(args.at(at)) };
    let mut words: Vec<Vec<u8>> = (0..kept).map(word).collect();
    if args.len() > kept {
        words.push(format!("... ({} more arguments)", args.len() - kept).into_bytes());
    }
    words
}

fn shortened_word(word: &[u8]) -> Vec<u8> {
    if word.len() <= ARG_BYTES_MAX {
        return word.to_vec();
    }
    let mut short = word[..ARG_BYTES_MAX].to_vec();
    short.extend(format!("... ({} more bytes)", word.len() - ARG_BYTES_MAX).bytes());
    short
}

/// Reads how many entries GET asks for; -1 means all.
pub fn count(word: &[u8]) -> Result<usize, Error> {
    match stdx::num::parse_i64(word) {
        Some(-1) => Ok(usize::MAX),
        Some(n) if n >= 0 => Ok(n as usize),
        _ => Err(Error::new("ERR count should be greater than or equal to -1")),
    }
}

/// Writes entries as GET does: number, time, amount, words, client and its name. With the cause (WHY) also
/// that, then command, address and name of the client it waited for. The last three are empty if it waited
/// for no client. O(count).
pub fn write(log: &CommandLog, count: usize, with_cause: bool, out: &mut Reply) {
    let entries = log.newest(count);
    out.array(entries.len());
    for entry in entries {
        out.array(if with_cause { 10 } else { 6 });
        out.int(entry.id as i64);
        out.int(entry.unix_s as i64);
        out.int(entry.amount as i64);
        out.array(entry.args.len());
        entry.args.iter().for_each(|word| out.bulk(word));
        out.bulk(entry.client_address.as_bytes());
        out.bulk(&entry.client_name);
        if with_cause {
            out.bulk(entry.cause.as_bytes());
            write_culprit(entry.culprit.as_deref(), out);
        }
    }
}

fn write_culprit(culprit: Option<&Culprit>, out: &mut Reply) {
    let Some(culprit) = culprit else { return (0..3).for_each(|_| out.bulk(b"")) };
    match culprit.words.is_empty() {
        true => out.bulk(culprit.command.as_bytes()),
        false => out.bulk(&culprit.words.join(&b' ')),
    }
    out.bulk(culprit.address().as_bytes());
    out.bulk(&culprit.name());
}

#[cfg(test)]
mod tests {
    use super::*;
    use resp::OwnedArgs;

    fn entry(us: u64) -> Entry {
        Entry {
            id: 0,
            unix_s: 1_795_246_024,
            amount: us,
            args: vec![b"get".to_vec(), b"k".to_vec()],
            client_address: "127.0.0.1:5".into(),
            client_name: b"app".to_vec(),
            client: 5,
            cause: "ran 5 us".into(),
            phases: Vec::new(),
            culprit: None,
        }
    }

    fn shown(log: &CommandLog, count: usize, with_cause: bool) -> String {
        let mut out = Reply::new(false);
        write(log, count, with_cause, &mut out);
        String::from_utf8(out.into_bytes()).unwrap()
    }

    #[test]
    fn the_newest_come_first_and_the_oldest_go() {
        let log = CommandLog::default();
        (0..300).for_each(|n| log.add(entry(n), 280));
        assert_eq!(log.len(), 280);
        let ids = |count| log.newest(count).iter().map(|e| e.id).collect::<Vec<_>>();
        assert_eq!(ids(3), [299, 298, 297]);
        assert_eq!(ids(usize::MAX), (20..300).rev().collect::<Vec<_>>());
        assert_eq!(ids(256).len(), 256);
        assert!(ids(0).is_empty());
        log.reset();
        assert!(log.is_empty() && log.newest(9).is_empty());
        log.add(entry(1), 0);
        assert!(log.is_empty());
        log.add(entry(1), 5);
        assert_eq!(ids(5), [301]);
    }

    #[test]
    fn long_commands_are_shortened_and_secrets_left_out() {
        let long: Vec<Vec<u8>> = (0..40).map(|n| n.to_string().into_bytes()).collect();
        let long: Vec<&[u8]> = long.iter().map(Vec::as_slice).collect();
        let words = shortened(OwnedArgs::from_slices(&long).args(), |_| false);
        assert_eq!(words.len(), ARGS_MAX);
        assert_eq!(words[31], b"... (9 more arguments)");
        let words = shortened(OwnedArgs::from_slices(&long[..32]).args(), |_| false);
        assert_eq!(words[31], b"31");
        let big = vec![b'x'; 300];
        let words = shortened(OwnedArgs::from_slices(&[b"set", &big, b"pw"]).args(), |at| at == 2);
        assert_eq!(words[1].len(), 128 + "... (172 more bytes)".len());
        assert!(words[1].ends_with(b"xx... (172 more bytes)"));
        assert_eq!(words[2], b"(redacted)");
    }

    #[test]
    fn replies_have_the_shape_clients_read() {
        let log = CommandLog::default();
        log.add(entry(5), 10);
        let fields = "*6\r\n:0\r\n:1795246024\r\n:5\r\n*2\r\n$3\r\nget\r\n$1\r\nk\r\n$11\r\n127.0.0.1:5\r\n$3\r\napp\r\n";
        assert_eq!(shown(&log, 10, false), format!("*1\r\n{fields}"));
        assert_eq!(shown(&log, usize::MAX, false), format!("*1\r\n{fields}"));
        assert_eq!(shown(&log, 0, false), "*0\r\n");
        assert!(shown(&log, 1, true).ends_with("$8\r\nran 5 us\r\n$0\r\n\r\n$0\r\n\r\n$0\r\n\r\n"));
    }

    #[test]
    fn counts_and_kinds_are_read_as_valkey_reads_them() {
        assert_eq!((count(b"-1"), count(b"0"), count(b"7")), (Ok(usize::MAX), Ok(0), Ok(7)));
        for bad in ["-2", "abc", ""] {
            let error = count(bad.as_bytes()).unwrap_err();
            assert_eq!(error.text(), "ERR count should be greater than or equal to -1");
        }
        assert_eq!(LogKind::named(b"LARGE-reply"), Ok(LogKind::LargeReply));
        assert_eq!(LogKind::named(b"slow"), Ok(LogKind::Slow));
        let error = LogKind::named(b"fast").unwrap_err();
        assert_eq!(error.text(), "ERR type should be one of the following: slow, large-request, large-reply");
    }
}
