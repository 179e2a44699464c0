//! Letters of threads to an event loop: one queue per loop, and an eventfd that wakes it (`stdx::letterbox`).

use crate::piece::Letter;
use command::Stream;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use stdx::letterbox::{Bell, Letterbox};

/// A letter to a loop.
pub enum Mail {
    /// More effects are durable: replies that waited for that may leave.
    Durable,
    /// The reply a parked client waits for: encoded bytes, and what streams after them.
    Reply {
        client: u64,
        bytes: Vec<u8>,
        stream: Option<Box<dyn Stream>>,
    },
    /// Long work tells something: see [`crate::drive::receive`].
    Work(Letter),
    /// A script's thread has something performed.
    Errand(Box<scripts::Errand>),
    /// What a committed script or transaction still has to do.
    Deeds(Box<crate::deeds::Deeds>),
    /// Keys were filled that somebody waits for.
    Ready(Vec<keyspace::Ready>),
    /// A client that waited has much to do: see [`crate::blocking::give_to_job`].
    Serve(Arc<crate::park::Waiter>),
    /// A job found nothing for a command that waits: see [`crate::blocking::wait`].
    Wait(Box<crate::piece::Wait>),
    /// A message nobody waits for, that has patterns to pass, or many.
    Announce(pubsub::Announced),
    Publish(pubsub::Published),
    /// Close this client, its replies so far unsent.
    Kill {
        client: u64,
    },
    /// CLIENT PAUSE ended, or something else parked clients should look at again.
    Retry,
    /// Rows of sources came, or changed.
    Source(crate::rows::Letter),
    /// A connection for this loop; what it is only `net` knows.
    Adopt(Box<dyn std::any::Any + Send>),
    Shutdown,
}

impl From<pubsub::Letter> for Mail {
    fn from(letter: pubsub::Letter) -> Mail {
        match letter {
            pubsub::Letter::Publish(message) => Mail::Publish(message),
            pubsub::Letter::Announce(announced) => Mail::Announce(announced),
            pubsub::Letter::CutOff(client) => Mail::Kill { client },
        }
    }
}

impl From<scripts::Letter> for Mail {
    fn from(letter: scripts::Letter) -> Mail {
        match letter {
            scripts::Letter::Errand(errand) => Mail::Errand(errand),
            scripts::Letter::Deeds(committed) => Mail::Deeds(crate::deeds::Deeds::new(*committed, 0)),
        }
    }
}

impl From<Letter> for Mail {
    fn from(letter: Letter) -> Mail {
        match letter {
            Letter::Kill(client) => Mail::Kill { client },
            letter => Mail::Work(letter),
        }
    }
}

/// An eventfd.
pub struct Eventfd(OwnedFd);

impl Bell for Eventfd {
    fn ring(&self) {
        // It can only fail when the counter is full, and then the loop is awake already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn silence(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

/// One loop's queue. Whoever sleeps on its descriptor must do so for edges, not for levels: a late ring may stay unread.
pub struct Mailbox(Letterbox<Mail, Eventfd>);

impl Mailbox {
    pub fn new() -> std::io::Result<Mailbox> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Mailbox(Letterbox::new(Eventfd(fd))))
    }

    /// Never blocks for longer than another letter takes to be put in.
    pub fn send(&self, mail: Mail) {
        self.0.send(mail);
    }

    /// True if there may be mail: the loop must not sleep.
    pub fn is_rung(&self) -> bool {
        self.0.is_rung()
    }

    /// Takes all mail; for the loop itself.
    pub fn drain(&self, into: &mut Vec<Mail>) {
        self.0.drain(into);
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.bell().0.as_fd()
    }
}
