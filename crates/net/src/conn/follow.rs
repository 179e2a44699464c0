//! A connection to a replica: what it is sent comes from its feed, and it goes on saying what it has.
//!
//! - FO1: a feed writes only while little waits for the socket, and in pieces, so one replica takes no more
//!   than a quantum.
//! - FO2: a reply to anything the replica sends would stand in the stream, so it ends the connection.

use super::*;
use role::replicas::Fed;

/// Bytes that a feed writes at once.
const FEED_PART: usize = 64 * 1024;

impl Conn {
    /// There may be more for the replica.
    pub(crate) fn feed(&mut self) {
        self.feed_waits = false;
    }

    /// Whether the feed has to be asked for more.
    #[inline]
    pub(super) fn is_hungry(&self) -> bool {
        self.session.feed.is_some() && !self.feed_waits
    }

    /// Writes the next piece for the replica. `Some`: the connection closes.
    pub(super) fn write_feed(&mut self, server: &Server, local: &Local) -> Option<Next> {
        let durable = server.keyspace.gates().then(|| server.durable());
        let feed = self.session.feed.as_mut()?;
        self.doing = Doing::Other;
        panics::begin();
        match feed.fill(&mut self.out, FEED_PART, durable, local.log.now_ms) {
            Fed::More => None,
            Fed::Wait => {
                self.feed_waits = true;
                None
            }
            Fed::End(why) => {
                let address = &self.session.info.address;
                log::warn!("the connection to the replica at {address} is closed: {why}");
                Some(Next::Close)
            }
        }
    }

    /// Whether a command of a replica was answered, and which length the output had before (FO2).
    #[cold]
    pub(super) fn answered_replica(&mut self, args: Args<'_>, mark: usize) {
        let name = args.at(0).escape_ascii().to_string();
        log::warn!("the replica at {} sent {name:.40}: closed", self.session.info.address);
        self.out.truncate(mark);
        self.session.speech.closing = true;
    }
}
