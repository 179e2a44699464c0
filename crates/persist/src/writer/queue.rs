//! The items that were taken and are not written.

use super::Shared;
use crate::files::local::locked;
use crate::stream::{Block, Item, Mark, Outlet};
use keyspace::Lsn;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The way in which the log ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Closing {
    #[default]
    No,
    /// It ends after everything was written.
    Clean,
    /// It ends at once.
    Abandoned,
}

impl Closing {
    pub(super) fn of(number: u8) -> Closing {
        match number {
            0 => Closing::No,
            1 => Closing::Clean,
            _ => Closing::Abandoned,
        }
    }
}

/// A sync that another thread has done.
pub(crate) struct Synced {
    pub(crate) seq: u64,
    pub(crate) end: u64,
    pub(crate) result: io::Result<()>,
}

#[derive(Default)]
pub(crate) struct Queue {
    items: VecDeque<Item>,
    /// The LSN up to which everything was given.
    pub(super) upto: Lsn,
    pub(super) synced: Option<Synced>,
    pub(super) settings_changed: bool,
    /// A rewrite has ended since the log thread looked.
    pub(crate) has_base: bool,
    /// The log thread tells how far the stream was given.
    pub(super) wants_turns: bool,
    pub(super) closing: Closing,
}

/// The next work of the log thread.
pub(super) enum Todo {
    Batch(Vec<Block>),
    Mark(Lsn, Mark),
    /// Effects were lost.
    Break(Arc<str>),
}

impl Queue {
    pub(super) fn new(upto: Lsn) -> Queue {
        Queue { upto, ..Queue::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Takes a mark or a break, or blocks up to one.
    pub(super) fn take(&mut self, bytes_max: u64) -> Option<Todo> {
        let (mut blocks, mut bytes) = (Vec::new(), 0);
        while bytes < bytes_max {
            match self.items.pop_front() {
                Some(Item::Block(block)) => {
                    bytes += block.bytes.len() as u64;
                    blocks.push(block);
                }
                Some(other) if !blocks.is_empty() => {
                    self.items.push_front(other);
                    break;
                }
                Some(Item::Mark(lsn, mark)) => return Some(Todo::Mark(lsn, mark)),
                Some(Item::Break(_, why)) => return Some(Todo::Break(why)),
                None => break,
            }
        }
        (!blocks.is_empty()).then_some(Todo::Batch(blocks))
    }
}

/// Takes the stream for the log. It never waits.
pub struct LogOutlet {
    shared: Arc<Shared>,
    /// The LSN that its files begin behind.
    since: Lsn,
}

impl LogOutlet {
    pub(super) fn new(shared: Arc<Shared>) -> LogOutlet {
        let since = locked(&shared.queue).upto;
        LogOutlet { shared, since }
    }
}

impl Outlet for LogOutlet {
    /// The base has all that was told before. A batch of that would go back behind the file's begin.
    fn since(&self) -> Lsn {
        self.since
    }

    fn take(&mut self, item: Item) {
        match &item {
            Item::Block(block) if block.bytes.is_empty() => return,
            Item::Block(block) => {
                let bytes = block.bytes.len() as u64;
                self.shared.counters.pending_bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            Item::Mark(..) => {}
            // Writes are refused from now on. The log thread comes to it behind what was given before.
            Item::Break(_, why) => self.shared.torn(why),
        }
        let mut queue = locked(&self.shared.queue);
        if queue.items.is_empty() {
            self.shared.counters.moves();
        }
        queue.items.push_back(item);
        drop(queue);
        self.shared.bell.notify_all();
    }

    fn turn(&mut self, upto: Lsn) {
        let mut queue = locked(&self.shared.queue);
        queue.upto = queue.upto.max(upto);
        if queue.wants_turns {
            self.shared.bell.notify_all();
        }
    }
}
