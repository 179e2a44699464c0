//! Letters from threads to an event loop: one queue per loop, and an eventfd that wakes it
//! (`stdx::letterbox`).

use command::Stream;
use resp::Reply;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use stdx::letterbox::{Bell, Letterbox};
use work::piece::Letter;

/// A letter to a loop.
pub enum Mail {
    /// More effects are durable: replies that waited for them may leave.
    Durable,
    /// There is more for replicas: their connections are looked at.
    Fed,
    /// The reply that a parked client waits for: encoded bytes, and a stream that follows them.
    Reply {
        client: u64,
        bytes: Vec<u8>,
        stream: Option<Box<dyn Stream>>,
    },
    /// A letter of long work: see [`crate::drive::receive`].
    Work(Letter),
    /// A script's thread asks the loop to perform a command.
    Request(Box<scripts::Request>),
    /// The deferred effects of a committed script or transaction.
    Deferred(Box<scripts::Deferred>),
    /// Keys were filled that clients wait for.
    Ready(Vec<keyspace::Ready>),
    /// Clients that wait for filled keys are served on.
    Serving(Box<park::Serving>),
    /// A blocked client can be served, with much: see [`crate::blocking::give_to_job`].
    Serve(Arc<park::Waiter>),
    /// A job found nothing for a blocked command: see [`crate::blocking::wait`].
    Wait(Box<work::piece::Wait>),
    /// A message without a waiting publisher that has many patterns to pass.
    Announce(pubsub::Announced),
    Publish(pubsub::Published),
    /// A blocked client's wait ends with an error, because this server follows another one now.
    Unblock {
        client: u64,
    },
    /// A client hears that another server leads from now on. None: none does, and its wait ends.
    Moving {
        client: u64,
        to: Option<Arc<Moved>>,
    },
    /// Close this client; its unsent replies are dropped.
    Kill {
        client: u64,
    },
    /// Users changed: this client looks at itself ([`crate::access`] A3).
    Review {
        client: u64,
    },
    /// Parked clients look again: CLIENT PAUSE ended, or something else changed.
    Retry,
    /// A client's inbox of tracking has something, or there is work to do.
    Tracking(pubsub::tracking::Letter),
    /// Keys that a client's script has read at an LSN, or later.
    Reads(u64, command::reads::Reads, keyspace::Lsn),
    /// Rows of sources arrived or changed.
    Source(rows::Letter),
    /// A connection for this loop. Its type is `net`'s.
    Adopt(Box<dyn std::any::Any + Send>),
    Shutdown,
}

/// Another server leads.
pub struct Moved {
    /// Counts such messages, for clients that hear one twice.
    pub number: u64,
    pub to: role::Address,
}

/// How long a client should take the new address for the old one. After that its name leads there.
const MOVED_S: i64 = 60;

impl Moved {
    /// The push message, with the place or without.
    pub fn message(&self, named: bool) -> Vec<u8> {
        let mut out = Reply::new(true);
        out.push(4);
        out.bulk(b"MOVING");
        out.int(self.number as i64);
        out.int(MOVED_S);
        match named {
            true => out.bulk(format!("{}:{}", self.to.host, self.to.port).as_bytes()),
            false => out.null(),
        }
        out.into_bytes()
    }
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
            scripts::Letter::Request(request) => Mail::Request(request),
            scripts::Letter::Reads(client, reads, since) => Mail::Reads(client, reads, since),
            scripts::Letter::Deferred(committed) => Mail::Deferred(scripts::Deferred::new(*committed, 0)),
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

/// An eventfd, which wakes its loop.
pub struct Eventfd(OwnedFd);

impl Bell for Eventfd {
    fn ring(&self) {
        // A write fails only when the counter is full, and then the loop is awake already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn silence(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

/// One loop's queue. Its descriptor must be polled edge-triggered, not level-triggered: a late ring may stay
/// unread.
pub struct Mailbox(Letterbox<Mail, Eventfd>);

impl Mailbox {
    pub fn new() -> std::io::Result<Mailbox> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Mailbox(Letterbox::new(Eventfd(fd))))
    }

    /// Sends a letter. Waits at most while another letter is put in.
    pub fn send(&self, mail: Mail) {
        self.0.send(mail);
    }

    /// Whether there may be mail; the loop must not sleep then.
    pub fn is_rung(&self) -> bool {
        self.0.is_rung()
    }

    /// Takes all mail. The loop itself calls this.
    pub fn drain(&self, into: &mut Vec<Mail>) {
        self.0.drain(into);
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.bell().0.as_fd()
    }
}
