//! Memory for long requests: how much of it a connection holds, and what becomes of one that gets none.
//!
//! - HA1: a request longer than [`HAUL`] is read only while work memory is held for it. Others may wait for
//!   that memory, so a request that makes no progress gives it up ([`HAUL_PATIENCE_NS`]).

use super::*;

impl Conn {
    /// Whether memory is, or should be, counted for the current request.
    pub(crate) fn hauls(&self) -> bool {
        let is_long = self.input.capacity() > HAUL
            || self.need > HAUL
            || self.transit.held() > 0
            || self.thirsty_ns.is_some();
        is_long && !self.is_link()
    }

    /// Holds work memory for a long request, as far as its length is known. While there is none, no more is
    /// read. A request that can never get it is refused and its connection closed.
    #[cold]
    pub(super) fn haul(&mut self, server: &Server, local: &Local) {
        let coming = if self.need > BULK { self.input.len() + self.need } else { 0 };
        let bytes = match self.input.capacity().max(coming) {
            bytes if bytes > HAUL && !self.session.speech.closing => bytes as u64,
            _ => {
                self.transit.take();
                return self.set_thirsty(server, None);
            }
        };
        let memory = &server.memory;
        match memory.hold_request(&server.keyspace, &mut self.transit, bytes) {
            Incoming::Held => self.set_thirsty(server, None),
            Incoming::Waits => {
                let since_ns = self.thirsty_ns.unwrap_or(local.log.clock_ns);
                self.set_thirsty(server, Some(since_ns));
            }
            Incoming::Never => self.refuse(server, bytes),
        }
    }

    pub(super) fn set_thirsty(&mut self, server: &Server, since_ns: Option<u64>) {
        match (self.thirsty_ns.is_some(), since_ns.is_some()) {
            (false, true) => _ = server.memory.thirsty.fetch_add(1, Ordering::Relaxed),
            (true, false) => _ = server.memory.thirsty.fetch_sub(1, Ordering::Relaxed),
            _ => {}
        }
        self.thirsty_ns = since_ns;
    }

    /// Refuses a request for want of memory and closes the connection, because the rest of the request would
    /// follow.
    fn refuse(&mut self, server: &Server, bytes: u64) {
        let max = server.config.live.maxmemory_bytes.size() as u64;
        let why = match bytes > max {
            true => format!("OOM a request of {bytes} bytes is larger than 'maxmemory'"),
            false => format!("OOM no memory for a request of {bytes} bytes, see 'work-max-memory'"),
        };
        log::info!("client {} closed: {why}", self.session.id);
        if self.session.speech.reply_mode == ReplyMode::On && !self.is_http() {
            self.out.error(&why);
        }
        self.session.speech.closing = true;
        self.start = 0;
        self.input.clear();
        self.input.release();
        self.need = 1;
        self.transit.take();
        self.set_thirsty(server, None);
    }

    /// Checks a long request again: whether memory is free now, and whether it makes progress while others
    /// wait for memory. False: it is not a long request any more.
    pub(crate) fn look_at_haul(&mut self, server: &Server, local: &Local) -> bool {
        let patience = |since_ns: u64| local.log.clock_ns.saturating_sub(since_ns) >= HAUL_PATIENCE_NS;
        let came = self.session.info.net_in.load(Ordering::Relaxed);
        if self.hauled.0 != came || self.hauled.1 == 0 {
            self.hauled = (came, local.log.clock_ns);
        }
        let idle = self.thirsty_ns.is_none() && patience(self.hauled.1);
        let in_vain = self.thirsty_ns.is_some_and(patience);
        let waited_for = server.memory.thirsty.load(Ordering::Relaxed) > 0;
        if in_vain || idle && waited_for && self.transit.held() > 0 {
            self.refuse(server, self.input.capacity().max(self.input.len() + self.need) as u64);
        } else {
            self.haul(server, local);
        }
        let goes_on = self.hauls();
        if !goes_on {
            self.hauled = (0, 0);
        }
        goes_on
    }
}
