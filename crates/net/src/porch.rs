//! Where connections wait that were accepted and have not asked for anything yet.
//!
//! ```text
//! accept ─► porch ──first bytes, read in a slice of chores──► Transport: received from like everybody
//!             └── the peer leaves without a word: seen and closed in the same slices
//! ```
//!
//! - O1: what those on the porch send stays in the kernel until it is asked for, a few at a time: a crowd that asks all at once
//!   makes no completions, takes no buffers and stands in no queue that others are in.
//! - O2: a connection is on the porch or received from by the transport, never both.
//!
//! Cost: a connection pays three short system calls once (onto it, off it, a read), and one for each [`CALLERS`] of a crowd; the
//! transport need not be told of those that leave without a word.

use crate::socket::Socket;
use rustix::event::{Timespec, epoll};
use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Looked for at once. Few: who comes meanwhile may be somebody else's turn.
const CALLERS: usize = 8;

pub(crate) struct Porch(OwnedFd);

impl Porch {
    pub(crate) fn new() -> io::Result<Porch> {
        Ok(Porch(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    pub(crate) fn add(&self, slot: usize, socket: &Socket) -> io::Result<()> {
        Ok(epoll::add(&self.0, socket, epoll::EventData::new_u64(slot as u64), epoll::EventFlags::IN)?)
    }

    /// Who is closed need not be removed.
    pub(crate) fn remove(&self, socket: &Socket) {
        // It can only fail for one that is not there.
        let _ = epoll::delete(&self.0, socket);
    }

    /// Appends some of those who have said something or left, in the order they did; none: nobody has.
    pub(crate) fn callers(&self, callers: &mut VecDeque<usize>) {
        let mut events = [const { MaybeUninit::uninit() }; CALLERS];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // The only error that can happen here is an interruption, and then it is asked again when somebody comes.
        if let Ok((events, _)) = epoll::wait(&self.0, &mut events, Some(&at_once)) {
            callers.extend(events.iter().map(|event| event.data.u64() as usize));
        }
    }
}

impl AsFd for Porch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
