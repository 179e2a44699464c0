//! The stream of one replica: an answer to PSYNC, perhaps a snapshot, then the stream.
//!
//! ```text
//! Deciding ─► Partial: +CONTINUE ─────────────────────────────────► Stream
//!        └──► Full: +FULLRESYNC, the file ─► first ACK ($EOF alone) ──┘
//! ```
//!
//! - F1: nothing here waits. A loop calls [`Feed::fill`] when there is more, or a second has passed.
//! - F2: behind a file of unknown length no byte of the stream leaves before the replica's first ACK: it looks
//!   for the end in the last bytes that it read.
//! - F3: a replica that waits is sent an empty line each second.

use super::Primary;
use super::peer::{Peer, Stage};
use super::spool::{Look, SpoolFile};
use crate::backlog::{Hold, Next};
use crate::ids::new_id;
use keyspace::Lsn;
use persist::{FileCopy, Read};
use resp::Reply;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

/// Time between two signs of life.
const SIGN_MS: u64 = 1000;
/// Bytes of a file, or of the stream, that are written at once.
const PART: usize = 64 * 1024;

/// A replica that waits for a decision.
pub(super) struct Ticket {
    pub(super) peer: Arc<Peer>,
    pub(super) decision: Arc<OnceLock<Decision>>,
}

/// The answer to PSYNC.
pub(super) enum Decision {
    Partial {
        hold: Hold,
        at: u64,
        id: String,
    },
    Full(Arc<SpoolFile>),
    Refused(String),
    /// Refused for a while, which the replica is told.
    Later(String),
}

/// The next step of a loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fed {
    /// There is more to write at once.
    More,
    /// Nothing, until it is told.
    Wait,
    /// The connection closes, for this reason.
    End(String),
}

enum At {
    Deciding,
    Waiting(Arc<SpoolFile>),
    Sending(Sending),
    /// All of the file was sent: the first ACK is awaited (F2).
    Loading {
        at: u64,
        hold: Hold,
    },
    Stream {
        at: u64,
        hold: Hold,
    },
}

/// A file on its way.
struct Sending {
    spool: Arc<SpoolFile>,
    copy: FileCopy,
    /// The mark behind a file of unknown length.
    mark: Option<String>,
    /// The header was sent.
    has_begun: bool,
    offset: u64,
    hold: Hold,
}

/// See the module.
pub struct Feed {
    primary: Arc<Primary>,
    peer: Arc<Peer>,
    decision: Arc<OnceLock<Decision>>,
    at: At,
    signed_ms: u64,
    /// For what is read from the spill's file.
    buffer: Vec<u8>,
}

impl Feed {
    pub(super) fn new(primary: Arc<Primary>, peer: Arc<Peer>, decision: Arc<OnceLock<Decision>>) -> Feed {
        Feed { primary, peer, decision, at: At::Deciding, signed_ms: 0, buffer: Vec::new() }
    }

    /// Writes what comes next, some `room` bytes at most, and nothing behind a durable LSN (0: all may leave).
    /// It does not wait. O(bytes)
    pub fn fill(&mut self, out: &mut Reply, room: usize, durable: Option<Lsn>, now_ms: u64) -> Fed {
        if let Some(why) = self.peer.is_ended() {
            return Fed::End(why);
        }
        match &mut self.at {
            At::Deciding => self.decided(out, now_ms),
            At::Waiting(spool) => match spool.look() {
                Look::Waits => self.sign(out, now_ms),
                Look::Failed(why) => Fed::End(why),
                Look::Grown(..) => self.begin_file(out),
            },
            At::Sending(_) => self.send(out, room, now_ms),
            At::Loading { at, hold } => {
                if !self.peer.has_spoken.load(Ordering::Acquire) {
                    return Fed::Wait;
                }
                let (at, hold) = (*at, hold.again());
                self.go_online(at, hold)
            }
            At::Stream { at, hold } => {
                let upto = durable.map_or(u64::MAX, |lsn| self.primary.backlog.named_offset(lsn));
                let fed = stream(at, hold, &mut self.buffer, (out, room), upto);
                self.peer.note_sent(*at);
                if fed == Fed::Wait && *at < upto && !self.peer.has_caught_up() {
                    self.buffer = Vec::new();
                    self.peer.catches_up();
                }
                fed
            }
        }
    }

    /// Bytes of the stream that it was not sent, once it has caught up. Before that they are bounded otherwise
    /// ([`crate::spill`]). O(1)
    pub fn behind_bytes(&self) -> u64 {
        match &self.at {
            At::Stream { at, hold } if self.peer.has_caught_up() => hold.behind(*at),
            _ => 0,
        }
    }

    /// Names it in the log as slow, unless that was done: the loop is about to close it for what waits. O(1)
    pub fn name_slow(&self) {
        let settings = self.primary.host.settings();
        let limits = (settings.hard_bytes, settings.soft_bytes);
        if let Some(slow) = self.peer.name_at_end(self.behind_bytes(), limits) {
            self.peer.warn(&slow);
        }
    }

    fn decided(&mut self, out: &mut Reply, now_ms: u64) -> Fed {
        // It is not kept: what it holds would be kept for as long as the replica follows.
        let decision = std::mem::take(&mut self.decision);
        match decision.get() {
            None => {
                self.decision = decision;
                self.sign(out, now_ms)
            }
            Some(Decision::Refused(why)) => Fed::End(why.clone()),
            Some(Decision::Later(why)) => {
                // Any other error has a replica say SYNC on the same connection.
                out.error(&format!("NOMASTERLINK {why}"));
                Fed::End(why.clone())
            }
            Some(Decision::Partial { hold, at, id }) => {
                let (at, hold) = (*at, hold.again());
                out.simple(&format!("CONTINUE {id}"));
                self.peer.note_ack(Some(at), None);
                self.go_online(at, hold)
            }
            Some(Decision::Full(spool)) => {
                self.at = At::Waiting(spool.clone());
                Fed::More
            }
        }
    }

    /// Says that the server lives (F3).
    fn sign(&mut self, out: &mut Reply, now_ms: u64) -> Fed {
        // SYNC's old replicas take it as well.
        if now_ms >= self.signed_ms + SIGN_MS {
            if self.signed_ms > 0 {
                out.encoded(b"\n");
            }
            self.signed_ms = now_ms;
        }
        Fed::Wait
    }

    fn begin_file(&mut self, out: &mut Reply) -> Fed {
        let At::Waiting(spool) = &self.at else { return Fed::Wait };
        let Some((file, id, offset, hold)) = spool.begun() else { return Fed::Wait };
        if self.peer.asked.goes_on.is_some() {
            out.simple(&format!("FULLRESYNC {id} {offset}"));
        }
        let mark = self.peer.asked.eof.then(new_id);
        let copy = FileCopy::follow(file);
        let spool = spool.clone();
        self.peer.set_stage(Stage::Sends);
        self.at = At::Sending(Sending { spool, copy, mark, has_begun: false, offset, hold });
        Fed::More
    }

    fn send(&mut self, out: &mut Reply, room: usize, now_ms: u64) -> Fed {
        let At::Sending(sending) = &mut self.at else { return Fed::Wait };
        let (grown, is_whole) = match sending.spool.look() {
            Look::Failed(why) => return Fed::End(why),
            Look::Waits => return Fed::Wait,
            Look::Grown(grown, is_whole) => (grown, is_whole),
        };
        sending.copy.grow(grown);
        if !sending.has_begun {
            match &sending.mark {
                Some(mark) => out.encoded(format!("$EOF:{mark}\r\n").as_bytes()),
                None if is_whole => out.encoded(format!("${grown}\r\n").as_bytes()),
                None => return self.sign(out, now_ms),
            }
            sending.has_begun = true;
        }
        match sending.copy.read(room.min(PART)) {
            Read::Bytes(bytes) => {
                out.encoded(bytes);
                Fed::More
            }
            Read::Later => Fed::More,
            Read::Broken => Fed::End("its snapshot cannot be read".to_owned()),
            Read::End if !is_whole => Fed::Wait,
            Read::End => {
                let (at, hold) = (sending.offset, sending.hold.again());
                self.peer.note_file();
                match sending.mark.take() {
                    Some(mark) => {
                        out.encoded(mark.as_bytes());
                        self.at = At::Loading { at, hold };
                        Fed::More
                    }
                    None => self.go_online(at, hold),
                }
            }
        }
    }

    fn go_online(&mut self, at: u64, hold: Hold) -> Fed {
        log::info!("replica {} is online", self.peer.asked.place());
        self.peer.set_stage(Stage::Online);
        self.at = At::Stream { at, hold };
        self.primary.count_good();
        Fed::More
    }
}

/// Writes bytes of the stream, none behind `upto`.
fn stream(
    at: &mut u64,
    hold: &Hold,
    buffer: &mut Vec<u8>,
    (out, room): (&mut Reply, usize),
    upto: u64,
) -> Fed {
    if *at >= upto {
        return Fed::Wait;
    }
    match hold.read(*at) {
        Next::Bytes(bytes, from) => {
            let part = (bytes.len() - from).min(room.min(PART)).min((upto - *at) as usize);
            out.encoded(&bytes[from..from + part]);
            *at += part as u64;
            Fed::More
        }
        Next::Stored(file, place, len) => {
            buffer.resize(PART, 0);
            let part = len.min(room.min(PART)).min((upto - *at) as usize);
            match persist::read_if_cached(&file, place, &mut buffer[..part]) {
                Ok(None) => Fed::More,
                Ok(Some(0)) | Err(_) => Fed::End("the stream that waits for it cannot be read".to_owned()),
                Ok(Some(read)) => {
                    out.encoded(&buffer[..read]);
                    *at += read as u64;
                    Fed::More
                }
            }
        }
        Next::End => Fed::Wait,
        Next::Gone => Fed::End(
            "the stream that it follows broke or has another id, or it fell behind too far".to_owned(),
        ),
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.primary.leave(&self.peer);
    }
}
