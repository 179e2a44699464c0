//! Accepted connections wait here until they ask for something.
//!
//! ```text
//! accept ─► arrivals ──first bytes, read in a slice of long work──► Transport: received from like everybody
//!             └── the peer leaves without a word: seen and closed in the same slices
//! ```
//!
//! - O1: bytes sent by connections among the arrivals stay in the kernel until they are fetched, a few connections
//!   at a time. A crowd that asks all at once makes no completions, takes no buffers and stands in no queue
//!   that others are in.
//! - O2: a connection is either among the arrivals or received from by the transport, never both.
//!
//! Cost: three short system calls once per connection (add, remove, read), and one for each [`CALLERS`] of a
//! crowd. The transport never hears of connections that leave without a word.

use crate::socket::Socket;
use rustix::event::{Timespec, epoll};
use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Connections fetched at once. Few, because another client's turn may come meanwhile.
const CALLERS: usize = 8;

pub(crate) struct Arrivals(OwnedFd);

impl Arrivals {
    pub(crate) fn new() -> io::Result<Arrivals> {
        Ok(Arrivals(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    pub(crate) fn add(&self, slot: usize, socket: &Socket) -> io::Result<()> {
        Ok(epoll::add(&self.0, socket, epoll::EventData::new_u64(slot as u64), epoll::EventFlags::IN)?)
    }

    /// Removes a connection. A closed one need not be removed.
    pub(crate) fn remove(&self, socket: &Socket) {
        // The call can only fail for a connection that is not there.
        let _ = epoll::delete(&self.0, socket);
    }

    /// Appends some connections that have sent something or ended, in that order; none: there are none.
    pub(crate) fn callers(&self, callers: &mut VecDeque<usize>) {
        let mut events = [const { MaybeUninit::uninit() }; CALLERS];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // The only error possible here is an interruption; the next call then reports them.
        if let Ok((events, _)) = epoll::wait(&self.0, &mut events, Some(&at_once)) {
            callers.extend(events.iter().map(|event| event.data.u64() as usize));
        }
    }
}

impl AsFd for Arrivals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
