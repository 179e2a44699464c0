//! The outgoing bytes of a connection: replies, messages between them, and bytes that may not leave yet.

use super::secure::Sealed;
use super::*;

/// A reply that is written piece by piece, and since when.
pub(super) struct Streaming {
    pub(super) reply: Box<dyn Stream>,
    since_ms: Option<u64>,
}

impl Streaming {
    pub(super) fn new(reply: Box<dyn Stream>) -> Streaming {
        Streaming { reply, since_ms: None }
    }
}

impl Conn {
    /// Ends the wait with a reply that came by mail, and leaves when effects up to `gate` are durable.
    pub(crate) fn resume(&mut self, bytes: Vec<u8>, stream: Option<Box<dyn Stream>>, gate: Lsn) {
        if gate > 0 {
            self.session.gate.lsn = self.session.gate.lsn.max(gate);
            self.gates.close(self.out.len(), gate);
        }
        self.session.set_flag(flag::BLOCKED, false);
        self.state = State::Running;
        self.session.speech.muted = false;
        // The reply may be that of HELLO.
        self.out.set_resp3(self.session.speech.resp3);
        if let Some(link) = &self.session.link {
            link.heard_reply(&bytes);
        }
        if self.session.speech.mutes_reply() {
            return self.session.speech.take_told(&mut self.out);
        }
        self.reads_on = stream.as_ref().is_some_and(|stream| stream.reads_on());
        self.stream = stream.map(Streaming::new);
        if self.is_http() {
            return self.replied(bytes);
        }
        if self.out.is_empty() && bytes.len() > KEEP {
            // Large replies are handed over, not copied.
            self.out = Reply::with_buffer(bytes, self.session.speech.resp3);
        } else {
            self.out.encoded(&bytes);
        }
    }

    /// Appends a message that is no reply. It goes between replies, never inside one; during a stream it waits.
    /// It leaves when effects up to `gate` are durable. True if the connection has to be continued to write it.
    pub(crate) fn push(&mut self, message: &Encoded, gate: Lsn, pool: &mut Pool) -> bool {
        if gate > 0 && self.takes_messages() && matches!(message, Encoded::Short(_)) {
            self.gates.close(self.out.len(), gate);
        } else {
            self.behind_gate = self.behind_gate.max(gate);
        }
        match message {
            Encoded::Short(bytes) if self.takes_messages() => {
                if self.out.capacity() == 0 {
                    self.out.swap(&mut pool.get());
                }
                self.out.encoded(bytes);
                self.told += bytes.len();
                return false;
            }
            Encoded::Short(bytes) => self.behind.push_back(Shared::Own(bytes.clone())),
            Encoded::Long(parts) => self.behind.extend(parts.iter().cloned()),
        }
        self.behind_bytes += message.len();
        true
    }

    /// Whether a short message may be copied to `out`. A full `out` takes none, so that its buffer does not
    /// grow by leaps.
    pub(super) fn takes_messages(&self) -> bool {
        !self.session.speech.muted
            && self.stream.is_none()
            && self.behind.is_empty()
            && self.out.len() < MESSAGES_MAX
    }

    /// Whether waiting messages can be written; also true while a command is blocked.
    pub(super) fn has_messages(&self) -> bool {
        !self.behind.is_empty()
            && !self.session.speech.muted
            && self.stream.is_none()
            && self.written() < OUT_HIGH
    }

    /// Writes up to [`STREAM_PART`] bytes of the waiting messages.
    pub(super) fn write_behind(&mut self) {
        if self.behind_gate > 0 {
            self.gates.close(self.out.len(), self.behind_gate);
        }
        let until = self.out.len() + STREAM_PART;
        while let Some(piece) = self.behind.front() {
            let room = until.saturating_sub(self.out.len());
            if room == 0 {
                return;
            }
            let rest = &piece[self.behind_from..];
            let part = rest.len().min(room);
            self.out.encoded(&rest[..part]);
            self.behind_bytes -= part;
            self.behind_from += part;
            if self.behind_from == piece.len() {
                self.behind_from = 0;
                if let Some(piece) = self.behind.pop_front()
                    && piece.len() >= exec::job::MANY_BYTES
                {
                    exec::job::discard(piece);
                }
            }
        }
        (self.behind, self.behind_gate) = (Queue::default(), 0);
    }

    /// Returns its socket. Large buffers are freed on another thread.
    pub(crate) fn dismiss(mut self, server: &Server) -> Socket {
        self.set_thirsty(server, None);
        self.drop_open();
        let unsent = self.unsent.take().map_or(Vec::new(), |(bytes, _)| bytes);
        let end = self.input.len();
        let unsealed = self.tls.as_mut().map_or(Vec::new(), |secure| secure.take_rest());
        for buffer in [self.input.take_to(end), self.out.take(), unsent, unsealed] {
            if buffer.capacity() >= exec::job::MANY_BYTES {
                exec::job::discard(buffer);
            }
        }
        if self.behind_bytes >= exec::job::MANY_BYTES {
            exec::job::discard(self.behind);
        }
        if let Some(held) = self.held.take() {
            exec::job::discard(held);
        }
        self.socket
    }

    /// Takes back the bytes that the transport could not send.
    pub(crate) fn put_back(&mut self, bytes: Vec<u8>, from: usize, blocked: bool, now_ns: u64) {
        debug_assert!(self.unsent.is_none(), "one send at a time");
        let rest = (bytes.len() - from) as u64;
        add(&self.session.info.net_out, rest.wrapping_neg());
        self.unsent = Some((bytes, from));
        self.blocked = blocked;
        if blocked {
            self.blocked_ns.get_or_insert(now_ns);
        }
    }

    /// Notes that the socket has room again. Returns when it ran out of room (monotonic clock).
    pub(crate) fn unblock(&mut self) -> Option<u64> {
        self.blocked = false;
        self.blocked_ns.take()
    }

    /// Takes those of the bytes to be sent that may leave; None: none may.
    #[cold]
    pub(super) fn take_free(&mut self, durable: Lsn) -> Option<Vec<u8>> {
        let free = self.gates.free(self.out.len(), durable);
        if free == 0 {
            return None;
        }
        self.gates.left(free);
        let mut bytes = self.out.take();
        if free < bytes.len() {
            self.out.encoded(&bytes.split_off(free));
        }
        Some(bytes)
    }

    /// Sends what waits, as far as it tells of nothing behind `durable`.
    pub(crate) fn flush<T: Transport>(
        &mut self,
        io: &mut T,
        slot: usize,
        (local, durable): (&Local, Lsn),
        pool: &mut Pool,
    ) -> std::io::Result<Flushed> {
        self.told = 0;
        if self.blocked {
            self.session.info.reply_bytes.store(self.pending_out() as u64, Ordering::Relaxed);
            return Ok(Flushed::Blocked);
        }
        let (bytes, from) = match self.unsent.take() {
            Some(unsent) => unsent,
            None if self.is_secure() => match self.seal_some(durable, pool) {
                Sealed::Bytes(bytes) => (bytes, 0),
                Sealed::Nothing => return Ok(Flushed::All),
                Sealed::Gated => return Ok(Flushed::Gated),
            },
            None if self.out.is_empty() => return Ok(Flushed::All),
            None if !self.gates.are_open() => match self.take_free(durable) {
                Some(bytes) => (bytes, 0),
                None => return Ok(Flushed::Gated),
            },
            None => (self.out.take(), 0),
        };
        if let Some(http) = self.as_http() {
            http.progress_ms = local.log.now_ms;
        }
        let asked = (bytes.len() - from) as u64;
        local.log.recorder.add(Counter::WritesProcessed, 1);
        let info = &self.session.info;
        info.reply_bytes.store(self.pending_out() as u64, Ordering::Relaxed);
        add(&info.net_out, asked);
        local.log.recorder.add(Counter::NetOutputBytes, asked);
        match io.send(slot, &mut self.socket, bytes, from)? {
            Sent::Done(buffer) => {
                pool.put(buffer);
                Ok(if self.written() == 0 && !self.owes_farewell() { Flushed::All } else { Flushed::Part })
            }
            Sent::Queued => Ok(Flushed::Queued),
            Sent::Short { bytes, from, blocked } => {
                let rest = (bytes.len() - from) as u64;
                local.log.recorder.add(Counter::NetOutputBytes, rest.wrapping_neg());
                self.put_back(bytes, from, blocked, local.log.clock_ns);
                self.session.info.reply_bytes.store(self.pending_out() as u64, Ordering::Relaxed);
                Ok(if blocked { Flushed::Blocked } else { Flushed::Part })
            }
        }
    }

    /// Since when its reply is being streamed, by the wall clock: since the loop first asked, which is now at
    /// the latest. None: it is not.
    pub(crate) fn streams_since_ms(&mut self, now_ms: u64) -> Option<u64> {
        self.stream.as_mut().map(|stream| *stream.since_ms.get_or_insert(now_ms))
    }

    /// Reports what its streamed reply keeps alive.
    pub(crate) fn held(&self, held: &mut dyn FnMut(exec::Held)) {
        if let Some(stream) = &self.stream {
            stream.reply.holds(held);
        }
    }

    /// Whether its output exceeds the soft limit.
    pub(crate) fn is_over_soft_limit(&self) -> bool {
        self.soft_since.is_some()
    }

    /// Bytes in memory that are to be sent to the client, including those its stream has not written yet.
    pub(crate) fn bytes_to_send(&self) -> usize {
        let stream = self.stream.as_ref().map_or(0, |stream| stream.reply.unsent_bytes());
        self.pending_out() + stream + self.session.feed.as_ref().map_or(0, |feed| feed.behind_bytes())
    }

    /// Whether a reply, or a part of one, is not with the kernel yet.
    pub(crate) fn owes_bytes(&self) -> bool {
        self.pending_out() > 0 || self.stream.is_some()
    }

    /// Whether its output exceeds the hard limit, or has exceeded the soft one for too long.
    pub(crate) fn exceeds_output_limit(&mut self, server: &Server, now_ms: u64) -> bool {
        let subs = &self.session.subs;
        let follows = self.session.feed.is_some();
        let class = if follows || !subs.monitor.is_empty() { 1 } else { 2 * usize::from(!subs.is_empty()) };
        let limit = &server.config.live.output_limits[class];
        let pending = self.bytes_to_send();
        let (hard, soft) = (limit.hard_bytes.size(), limit.soft_bytes.size());
        if hard > 0 && pending > hard {
            return true;
        }
        if soft == 0 || pending <= soft {
            self.soft_since = None;
            return false;
        }
        let since = *self.soft_since.get_or_insert(now_ms);
        now_ms.saturating_sub(since) >= (limit.soft_s.get() as u64).saturating_mul(1000)
    }

    /// Whether something can run without more input.
    pub(crate) fn has_work(&self) -> bool {
        self.has_messages()
            || self.state == State::Running
                && self.written() < OUT_HIGH
                && (self.is_replying()
                    || self.is_hungry()
                    || self.held.is_some()
                    || self.unread() > 0 && (self.unread() >= self.enough || self.eof))
    }

    pub(crate) fn is_finished(&self) -> bool {
        (self.session.speech.closing || self.ended)
            && self.pending_out() == 0
            && !self.is_replying()
            && self.state == State::Running
    }
}
