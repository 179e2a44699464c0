//! The end of a connection from the peer's side: what it sent whole still runs.

use super::*;

impl Conn {
    /// Notes that the peer sends no more.
    pub(crate) fn end(&mut self) -> Next {
        if self.is_link() {
            return if self.end_link() { Next::Wait } else { Next::Continue };
        }
        self.eof = true;
        let idle = self.unread() == 0 && !self.is_replying() && self.held.is_none();
        if self.state == State::Running && (self.session.speech.closing || idle) {
            // Replies may still be on their way, or come back from the transport. The connection closes when
            // all are out.
            self.ended = true;
            return Next::Wait;
        }
        if self.is_http() {
            // An HTTP client may have sent all it wanted and wait for the answers.
            return if self.state == State::Running { Next::Continue } else { Next::Wait };
        }
        // Commands that were fully received run; reads for a client that is gone are cancelled.
        self.session.cancel.store(true, Ordering::Relaxed);
        if self.state == State::Running {
            return Next::Continue;
        }
        if self.orphan() { Next::Wait } else { Next::Close }
    }

    /// Notes that the peer is gone for good. True if the connection stays, because commands the peer sent are
    /// still to be run.
    pub(crate) fn orphan(&mut self) -> bool {
        if self.orphaned {
            return true;
        }
        if self.is_link() {
            self.end_link();
            return true;
        }
        if self.is_http() {
            return false;
        }
        let acts = self.stream.as_ref().is_some_and(|stream| stream.reply.has_effects());
        let rest = self.unread() > 0 || self.has_sealed() || self.held.is_some() || acts;
        if !rest || self.is_blocked() || self.session.speech.closing {
            return false;
        }
        (self.eof, self.orphaned) = (true, true);
        self.session.speech.reply_mode = ReplyMode::Off;
        self.session.cancel.store(true, Ordering::Relaxed);
        if !acts {
            self.stream = None;
        }
        let unsealed = self.tls.as_mut().map(|secure| secure.take_rest());
        exec::job::discard((self.out.take(), self.unsent.take(), unsealed, std::mem::take(&mut self.behind)));
        self.gates.forget();
        (self.behind_bytes, self.behind_from, self.blocked) = (0, 0, false);
        true
    }

    /// Whether its peer is gone while its commands still run.
    pub(crate) fn is_orphaned(&self) -> bool {
        self.orphaned
    }

    /// Whether it waits for other clients or for a time. A job on a worker does not count: it ends by itself.
    pub(crate) fn is_blocked(&self) -> bool {
        let flags = self.session.info.flags.load(Ordering::Relaxed);
        matches!(self.state, State::Parked(_)) && flags & flag::BLOCKED != 0
    }

    /// Whether it is blocked although its peer sends no more.
    pub(crate) fn waits_in_vain(&self) -> bool {
        (self.half || self.eof) && self.is_blocked()
    }
}
