//! TLS of a connection, between its socket and all the rest.
//!
//! ```text
//! socket ─► records ─► plaintext ─► input          at most tls::RECORDS records at a time
//!              └─ `waiting`, if there are more
//! out ─► `plain` ─► records ─► `unsent` ─► socket   at most SEAL bytes at a time
//! ```
//!
//! - CS1: `unsent` are records, as they go to the socket; `out` and `plain` are plaintext. All of `plain` goes
//!   before `out`.
//! - CS2: no more is sealed before `unsent` is out. So at most [`SEAL`] bytes of a reply exist twice.
//! - CS3: the last record is a farewell: behind the last reply, and, if nothing is under way, also of a
//!   connection that is closed otherwise. Then its peer knows that nothing was cut off.
//! - CS4: while records wait to be opened, the connection is in the queue, and no more is received than is
//!   under way. The end of its peer is heard behind them.
//!
//! Cost: O(bytes) each way, and one copy more than without TLS. A connection without TLS pays one comparison
//! per receive, and one per flush.

use super::*;

/// Plaintext sealed at once; more would take longer than a quantum. Four whole records.
const SEAL: usize = 64 * 1024;
/// Records received at once.
const READ: usize = 32 * 1024;

/// TLS of one connection. See the module.
pub(crate) struct Secure {
    session: tls::Session,
    /// Plaintext that came together with the handshake, until a loop has the connection.
    early: Vec<u8>,
    plain: Vec<u8>,
    /// Bytes of `plain` that are sealed.
    from: usize,
    /// Received records that are to be opened (CS4), and how many of their bytes are.
    waiting: Vec<u8>,
    opened: usize,
    /// The peer ends behind them.
    ends: bool,
}

impl Secure {
    /// Plaintext that is not sealed yet.
    pub(super) fn rest(&self) -> usize {
        self.plain.len() - self.from
    }

    /// Whether anything is to be sent besides replies.
    pub(super) fn has_to_send(&self) -> bool {
        self.session.has_to_send()
    }

    /// Bytes of records that wait to be opened.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len() - self.opened
    }

    fn open(&mut self, sealed: &[u8], plain: &mut Vec<u8>) -> Result<(), tls::Failure> {
        if self.waiting.is_empty() {
            let taken = self.session.open(sealed, plain)?;
            self.waiting.extend_from_slice(&sealed[taken..]);
            return Ok(());
        }
        if !sealed.is_empty() {
            self.waiting.drain(..std::mem::take(&mut self.opened));
            self.waiting.extend_from_slice(sealed);
        }
        self.opened += self.session.open(&self.waiting[self.opened..], plain)?;
        if self.waiting() == 0 {
            self.drop_waiting();
        }
        Ok(())
    }

    fn drop_waiting(&mut self) {
        (self.waiting, self.opened) = (Vec::new(), 0);
    }

    /// Takes the plaintext, which nobody will get.
    pub(super) fn take_rest(&mut self) -> Vec<u8> {
        self.from = 0;
        std::mem::take(&mut self.plain)
    }
}

/// Records to send, if any.
pub(super) enum Sealed {
    Bytes(Vec<u8>),
    Nothing,
    Gated,
}

impl Conn {
    /// Puts TLS between this connection and its socket. `early`: what the peer has said already.
    pub(crate) fn secured(mut self, session: tls::Session, early: Vec<u8>) -> Conn {
        let (plain, waiting) = (Vec::new(), Vec::new());
        self.tls = Some(Box::new(Secure { session, early, plain, from: 0, waiting, opened: 0, ends: false }));
        self
    }

    pub(crate) fn take_early(&mut self) -> Vec<u8> {
        self.tls.as_mut().map_or(Vec::new(), |secure| std::mem::take(&mut secure.early))
    }

    #[inline]
    pub(crate) fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// Receives records for `event`; `room` is scratch for them.
    pub(crate) fn receive_sealed<'a, T: Transport>(
        &mut self,
        io: &'a mut T,
        event: &Event,
        room: &'a mut Vec<u8>,
    ) -> std::io::Result<Received<'a>> {
        room.clear();
        let most = if self.input.moves_with(READ) { READ_MOVING } else { READ };
        match io.receive(event, &mut self.socket, Some((room, most)))? {
            Received::Appended(_) => Ok(Received::Bytes(room)),
            received => Ok(received),
        }
    }

    /// Opens received records into `plain`, behind those that wait; some may wait then (CS4). Errors: the
    /// connection is to be closed.
    pub(crate) fn open(&mut self, sealed: &[u8], plain: &mut Vec<u8>) -> Result<(), tls::Failure> {
        match &mut self.tls {
            Some(secure) if !self.session.speech.closing => secure.open(sealed, plain),
            Some(secure) => {
                secure.drop_waiting();
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Whether records wait to be opened (CS4).
    #[inline]
    pub(crate) fn has_sealed(&self) -> bool {
        self.tls.as_ref().is_some_and(|secure| secure.waiting() > 0)
    }

    /// Whether its peer's end is to be heard later, behind the records that wait. It is noted then.
    pub(crate) fn puts_off_end(&mut self) -> bool {
        let waits = self.has_sealed();
        if let Some(secure) = self.tls.as_mut().filter(|_| waits) {
            secure.ends = true;
        }
        waits
    }

    /// Whether the peer sends nothing more, by its farewell or the socket's end, and all it sent is opened.
    pub(crate) fn heard_farewell(&self) -> bool {
        let ends = |secure: &Secure| secure.session.has_ended() || secure.ends && secure.waiting() == 0;
        self.tls.as_ref().is_some_and(|secure| ends(secure))
    }

    /// Whether records are to be sent that are no replies.
    pub(crate) fn owes_records(&self) -> bool {
        self.tls.as_ref().is_some_and(|secure| secure.has_to_send())
    }

    /// Whether all replies are sent, and the farewell is not (CS3).
    pub(super) fn owes_farewell(&self) -> bool {
        self.tls.as_ref().is_some_and(|secure| !secure.session.has_said_farewell()) && self.is_finished()
    }

    /// Seals the next part of what waits (CS2), as far as it tells of nothing behind `durable`.
    pub(super) fn seal_some(&mut self, durable: Lsn, pool: &mut Pool) -> Sealed {
        let idle = self.written() == 0 && !self.owes_records() && !self.owes_farewell();
        let Some(mut secure) = self.tls.take_if(|_| !idle) else { return Sealed::Nothing };
        let mut gated = false;
        if secure.rest() == 0 && !self.out.is_empty() {
            let free = if self.gates.are_open() { Some(self.out.take()) } else { self.take_free(durable) };
            gated = free.is_none();
            pool.put(secure.take_rest());
            secure.plain = free.unwrap_or_default();
        }
        let mut sealed = pool.get();
        let to = secure.plain.len().min(secure.from + SEAL);
        secure.session.seal(&secure.plain[secure.from..to], &mut sealed);
        secure.from = to;
        if secure.rest() == 0 {
            pool.put(secure.take_rest());
        }
        self.tls = Some(secure);
        if self.owes_farewell() {
            self.say_farewell(&mut sealed);
        }
        if !sealed.is_empty() {
            return Sealed::Bytes(sealed);
        }
        pool.put(sealed);
        if gated { Sealed::Gated } else { Sealed::Nothing }
    }

    fn say_farewell(&mut self, sealed: &mut Vec<u8>) {
        if let Some(secure) = &mut self.tls {
            secure.session.farewell(sealed);
        }
    }

    /// Sends the last record of a connection that is being closed: a farewell, or the alert that says why.
    /// Nothing if a record is half out, so that no other can follow. The last send must have begun.
    pub(crate) fn say_last<T: Transport>(&mut self, io: &mut T, slot: usize) {
        if self.unsent.is_some() || self.blocked {
            return;
        }
        let mut sealed = Vec::new();
        self.say_farewell(&mut sealed);
        if !sealed.is_empty() {
            // The peer may be gone.
            let _ = io.send(slot, &mut self.socket, sealed, 0);
        }
    }

    /// Seals a refusal, and a farewell behind it.
    pub(crate) fn seal_refusal(session: &mut tls::Session, text: &[u8]) -> Vec<u8> {
        let mut sealed = Vec::new();
        session.seal(text, &mut sealed);
        session.farewell(&mut sealed);
        sealed
    }
}
