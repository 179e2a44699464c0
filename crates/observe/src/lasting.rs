//! Counts the bytes of a reply that is written piece by piece, for the log of large replies and for HOTKEYS.
//!
//! - C1: only a reply that was written to its end is logged. One whose client left is not.
//!
//! Cost: one allocation for each reply of this kind, and its command's words as the log shows them.

use crate::{ClientInfo, Observe};
use command::{Command, Held, Stream};
use resp::Reply;
use std::sync::Arc;

/// A stream whose bytes are counted.
struct Counted {
    stream: Box<dyn Stream>,
    observe: Arc<Observe>,
    info: Arc<ClientInfo>,
    command: &'static Command,
    words: Vec<Vec<u8>>,
    /// The keys, if HOTKEYS wants to know.
    keys: Vec<Vec<u8>>,
    /// Bytes that were written before the stream.
    before: usize,
    bytes: usize,
}

/// The same stream, whose bytes are counted from `written` on if large replies are logged.
pub fn counted(
    observe: &Arc<Observe>,
    info: &Arc<ClientInfo>,
    (command, words): (&'static Command, impl FnOnce() -> Vec<Vec<u8>>),
    keys: Vec<Vec<u8>>,
    written: usize,
    stream: Box<dyn Stream>,
) -> Box<dyn Stream> {
    if observe.config.live.large_reply_bytes.get() < 0 && keys.is_empty() {
        return stream;
    }
    let (observe, info) = (observe.clone(), info.clone());
    Box::new(Counted {
        stream,
        observe,
        info,
        command,
        words: words(),
        keys,
        before: written,
        bytes: written,
    })
}

impl Stream for Counted {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let mark = out.len();
        let more = self.stream.fill(out, room);
        self.bytes += out.len().saturating_sub(mark);
        if !more {
            let words = std::mem::take(&mut self.words);
            let (live, keys) = (&self.observe.config.live, self.keys.iter().map(Vec::as_slice));
            if !self.keys.is_empty() {
                let its = (0, (self.bytes - self.before) as u64, 0);
                self.observe.stats.hotkeys.add(keys, self.keys.len(), its, stdx::clock::wall_ms());
            }
            self.observe.stats.replied(live, &self.info, self.command, self.bytes, || words); // C1
        }
        more
    }

    fn holds(&self, held: &mut dyn FnMut(Held)) {
        self.stream.holds(held);
    }

    fn repeats(&self) -> bool {
        self.stream.repeats()
    }

    fn unsent_bytes(&self) -> usize {
        self.stream.unsent_bytes()
    }

    fn reads_on(&self) -> bool {
        self.stream.reads_on()
    }

    fn has_effects(&self) -> bool {
        self.stream.has_effects()
    }
}
