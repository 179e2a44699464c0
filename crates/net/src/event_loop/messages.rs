//! Messages to subscribers: written into all their buffers before any is sent.
//!
//! ```text
//! Mail::Publish ─► publishing ─in slices─► each subscriber's buffer ─► notified ─a few per turn─► its socket
//! ```
//!
//! - M1: messages are written one after the other, so that each subscriber gets them in the order they were
//!   published.
//! - M2: a send costs many times what a write costs, whatever its size. So while messages are to be written,
//!   few connections are sent to, and each send takes along what came meanwhile.
//! - M3: bytes written and not sent are bounded ([`TOLD_MAX`]). For messages not written yet, publishers wait
//!   (`exec::flood`).

use super::{EventLoop, SLICE_NS};
use crate::listed::List;
use crate::transport::Transport;
use exec::pubsub::{Encoded, FanOut};
use resp::Reply;
use stdx::points::{self, Point};

/// Connections with nothing but messages that are sent to per turn; a send takes some microseconds.
const TELLS: usize = 16;
/// The same while messages are to be written. A send costs so much more than a message that it should take
/// many along.
const TELLS_MEANWHILE: usize = 2;
/// Bytes of messages written but not sent, above which no more are written.
const TOLD_MAX: usize = 16 * 1024 * 1024;
/// Subscribers a message is written for between two looks at the clock, and the bytes written meanwhile: some
/// 10 µs.
const TOLD_AT_ONCE: usize = 32;
const BYTES_AT_ONCE: usize = 16 * 1024;
/// Subscribers up to which a message is sent with this turn's replies, not in line behind messages for many.
const FEW: usize = 8;

impl EventLoop {
    /// Writes messages into their subscribers' buffers, for one slice's time.
    pub(super) fn publish_some(&mut self) {
        let until = self.local.log.lap() + SLICE_NS;
        while let Some(mut fan_out) = self.publishing.pop_front() {
            loop {
                let stays = points::stays(Point::Publish, fan_out.delivered());
                if stays || self.told >= TOLD_MAX || self.local.log.lap() >= until {
                    return self.publishing.push_front(fan_out);
                }
                let at_once = match points::any_armed() {
                    true => 1,
                    false => (BYTES_AT_ONCE / fan_out.bytes().max(1)).clamp(1, TOLD_AT_ONCE),
                };
                let mut clients = std::mem::take(&mut self.audience);
                fan_out.next(&self.local.subscribers, at_once, &mut clients);
                let all = clients.is_empty();
                clients.drain(..).for_each(|client| self.tell(client, &mut fan_out));
                self.audience = clients;
                if all {
                    break;
                }
            }
            fan_out.end(&self.server.pubsub);
        }
    }

    fn tell(&mut self, client: u64, fan_out: &mut FanOut) {
        let Some(&slot) = self.by_id.get(&client) else { return };
        let Some(conn) = self.conns[slot].as_mut() else { return };
        let before = conn.told;
        let gate =
            if fan_out.gate() > 0 && fan_out.gate() > self.server.durable() { fan_out.gate() } else { 0 };
        let more = conn.push(fan_out.encoded(conn.session.speech.resp3), gate, &mut self.pool);
        self.told += conn.told - before;
        if more {
            self.queue(slot);
        } else if fan_out.count() <= FEW {
            self.mark_dirty(slot);
        } else {
            self.lists.add(List::Notified, slot, &mut **conn);
        }
    }

    /// Writes messages of tracking, some at a time: between replies, as other messages.
    pub(super) fn open_inbox(&mut self, client: u64) {
        let Some(&slot) = self.by_id.get(&client) else { return self.pass_on_inbox(client) };
        let Some(conn) = self.conns[slot].as_mut() else { return };
        let mut out = Reply::new(conn.session.speech.resp3);
        if exec::tracking::open_inbox(&self.server, &mut conn.session, &mut out) {
            self.server.tracking.remind(client);
        }
        if out.is_empty() {
            return;
        }
        let before = conn.told;
        let more = conn.push(&Encoded::Short(out.into_bytes().into()), 0, &mut self.pool);
        self.told += conn.told - before;
        if more {
            self.queue(slot);
        }
        self.mark_dirty(slot);
    }

    /// Sends the messages of some connections.
    pub(super) fn send_messages<T: Transport>(&mut self, io: &mut T) {
        let until = self.local.log.lap() + SLICE_NS;
        let more_to_come = !self.publishing.is_empty() && self.told < TOLD_MAX;
        for _ in 0..if more_to_come { TELLS_MEANWHILE } else { TELLS } {
            let Some(slot) = self.lists.pop(List::Notified, &mut self.conns) else { return };
            let waits = self.conns[slot].as_ref().is_some_and(|conn| conn.marks.has(List::Dirty));
            if !waits && self.write_one(io, slot) {
                self.mark_dirty(slot);
            }
            if self.local.log.lap() >= until {
                return;
            }
        }
    }
}
