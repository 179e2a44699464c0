//! Counts the bytes of a reply that is written piece by piece, for the log of large replies.
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
    bytes: usize,
}

/// The same stream, whose bytes are counted from `written` on if large replies are logged.
pub fn counted(
    observe: &Arc<Observe>,
    info: &Arc<ClientInfo>,
    (command, words): (&'static Command, impl FnOnce() -> Vec<Vec<u8>>),
    written: usize,
    stream: Box<dyn Stream>,
) -> Box<dyn Stream> {
    if observe.config.live.large_reply_bytes.get() < 0 {
        return stream;
    }
    let (observe, info) = (observe.clone(), info.clone());
    Box::new(Counted { stream, observe, info, command, words: words(), bytes: written })
}

impl Stream for Counted {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let mark = out.len();
        let more = self.stream.fill(out, room);
        self.bytes += out.len().saturating_sub(mark);
        if !more {
            let words = std::mem::take(&mut self.words);
            let live = &self.observe.config.live;
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

    fn has_effects(&self) -> bool {
        self.stream.has_effects()
    }
}
