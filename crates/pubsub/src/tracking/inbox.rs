//! A client's inbox: what it is to be told, until its loop writes it.
//!
//! - IB1: a letter, or a reply that does as well, is on its way exactly while the inbox is *rung*. The loop
//!   that empties it ends that.
//! - IB2: above [`ITEMS_MAX`] messages or [`BYTES_MAX`] bytes all of them become one: everything is old. That
//!   is true of any cache, and says less than the messages did.
//! - IB3: RESP2 has no messages beside replies. A client that speaks it gets those of other clients, while it
//!   is subscribed to anything; the rest is dropped.

use super::Taken;
use super::broadcast::Batch;
use parking_lot::Mutex;
use resp::Reply;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Messages above which an inbox becomes one message (IB2).
const ITEMS_MAX: usize = 10_000;
/// The same for the bytes of their names.
pub(super) const BYTES_MAX: usize = 1 << 20;
/// Messages and bytes written in one go.
const AT_ONCE: usize = 64;
const BYTES_AT_ONCE: usize = 32 * 1024;

/// The news for a client.
#[derive(Clone)]
pub(super) enum What {
    Key(Arc<[u8]>),
    Keys(Arc<Batch>),
    /// All keys.
    All,
    /// The target of its REDIRECT, which has this number, is gone.
    Broken(u64),
}

pub(super) struct Item {
    pub(super) what: What,
    /// Another client's message, which comes here by REDIRECT.
    pub(super) redirected: bool,
    /// It is about a write of the client's own blocked command, whose reply is on its way (TK3).
    pub(super) behind_reply: bool,
}

impl Item {
    fn bytes(&self) -> usize {
        match &self.what {
            What::Key(key) => key.len(),
            What::Keys(batch) => batch.bytes(),
            What::All | What::Broken(_) => 0,
        }
    }
}

/// How a client hears messages now.
#[derive(Clone, Copy)]
pub struct Hearer {
    pub resp3: bool,
    pub subscribed: bool,
    /// Its command waits for keys, so its reply is still to come.
    pub blocked: bool,
}

#[derive(Default)]
struct Items {
    queue: VecDeque<Item>,
    bytes: usize,
    /// Some message comes behind a reply.
    behind_reply: bool,
}

/// See the module.
#[derive(Default)]
pub(super) struct Inbox {
    items: Mutex<Items>,
    rung: AtomicBool,
}

impl Inbox {
    pub(super) fn has_mail(&self) -> bool {
        self.rung.load(Ordering::Acquire)
    }

    /// Adds a message. True: a letter has to be sent (IB1).
    pub(super) fn put(&self, item: Item) -> bool {
        let mut items = self.items.lock();
        let (redirected, behind_reply) = (item.redirected, item.behind_reply);
        items.behind_reply |= behind_reply;
        items.bytes += item.bytes();
        items.queue.push_back(item);
        if items.queue.len() > ITEMS_MAX || items.bytes > BYTES_MAX {
            let old = std::mem::take(&mut *items);
            items.behind_reply = behind_reply;
            items.queue.push_back(Item { what: What::All, redirected, behind_reply });
            if old.queue.iter().any(|item| item.redirected != redirected) {
                items.queue.push_back(Item { what: What::All, redirected: !redirected, behind_reply });
            }
            stdx::reclaim::discard(old.queue);
        }
        !self.rung.swap(true, Ordering::AcqRel)
    }

    /// Writes some messages. `blocked`: the client waits for a reply, and what comes behind that stays; whoever
    /// writes the reply looks again.
    pub(super) fn take(&self, id: u64, to: Hearer, out: &mut Reply) -> Taken {
        let Hearer { resp3, subscribed, blocked } = to;
        let (mut taken, mut items, mark) = (Taken::default(), self.items.lock(), out.len());
        if !blocked && std::mem::take(&mut items.behind_reply) {
            items.queue.iter_mut().for_each(|item| item.behind_reply = false);
        }
        for _ in 0..AT_ONCE {
            if out.len() - mark >= BYTES_AT_ONCE {
                break;
            }
            if items.queue.front().is_some_and(|item| item.behind_reply) {
                // IB1: the reply is the letter.
                self.rung.store(true, Ordering::Release);
                return taken;
            }
            let Some(item) = items.queue.pop_front() else { break };
            items.bytes -= item.bytes();
            taken.broken |= matches!(item.what, What::Broken(_));
            if resp3 || item.redirected && subscribed {
                write(&item, id, resp3, out);
            }
        }
        taken.more = !items.queue.is_empty();
        self.rung.store(taken.more, Ordering::Release);
        taken
    }
}

/// Writes a message. A client that speaks RESP2 gets it as one of a channel.
fn write(item: &Item, id: u64, resp3: bool, out: &mut Reply) {
    match &item.what {
        What::Keys(batch) => return batch.write(id, resp3, out),
        What::Broken(target) if resp3 => {
            out.push(2);
            out.bulk(b"tracking-redir-broken");
            return out.int(*target as i64);
        }
        What::Broken(_) => return,
        What::Key(_) | What::All => begin(resp3, out),
    }
    match &item.what {
        What::Key(key) => {
            out.array(1);
            out.bulk(key);
        }
        _ => out.null(),
    }
}

/// The part of a message before its keys.
pub(super) fn begin(resp3: bool, out: &mut Reply) {
    if resp3 {
        out.push(2);
        out.bulk(b"invalidate");
    } else {
        out.push(3);
        out.bulk(b"message");
        out.bulk(b"__redis__:invalidate");
    }
}
