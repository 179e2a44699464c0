//! What a handler works with: its view of the keyspace, the reply, and what the run around it allows.

use crate::Error;
use keyspace::View;
use resp::{OwnedArgs, Reply};
use std::sync::Arc;
use stdx::budget::{self, Holding};
use stdx::turns::Turn;
use value::Held;

/// Elements of a reply above which it is streamed instead of written at once.
pub const STREAM_FROM: usize = 512;

/// Bytes of a reply that are written between two charges where it cannot be streamed.
const PIECE: usize = 8 << 10;

/// Bytes of a reply written in a step: an element or two.
pub(crate) const BYTES_PER_STEP: usize = 64;

/// A reply that is written piece by piece while the socket drains. It owns what it reads (values clone in O(1)).
pub trait Stream: Send {
    /// Appends about `room` bytes of whole reply parts; false when nothing is left. Must stay within a quantum.
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool;

    /// Tells what it keeps alive that is large: values, which others may have as well, and what it has collected. O(1), or
    /// O(keys) of its command.
    fn holds(&self, held: &mut dyn FnMut(Held)) {
        let _ = held;
    }

    /// Whether what it writes may be far more than what it keeps alive: an element is written again and again. Such a reply is not
    /// kept to be written when its client reads it, where it is a part of another.
    fn repeats(&self) -> bool {
        false
    }

    /// Bytes that stand in memory as they will be sent, and count to the client's output buffer. O(1).
    fn unsent_bytes(&self) -> usize {
        0
    }

    /// Whether it does something besides writing a reply, so that it must run to its end even if nobody is told.
    fn has_effects(&self) -> bool {
        false
    }
}

/// Where a handler runs, as far as it matters to it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caller {
    /// May wait for data (not in MULTI or a script).
    pub may_block: bool,
    /// May answer with a stream (not in MULTI or a script).
    pub may_stream: bool,
    /// May leave the rest of a long reply to a stream, which stands amid other replies then (a long transaction).
    pub may_keep: bool,
    pub in_script: bool,
    /// Replicated or replayed: relative times and limits were settled by whoever ran it first.
    pub in_replay: bool,
    pub client_id: u64,
    /// How often the run was done in vain before, because somebody changed its keys.
    pub attempt: u32,
}

/// What a blocking command asks for when there is nothing to give.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Block {
    /// None: wait for ever.
    pub timeout_ms: Option<u64>,
    /// What a time-out answers: a null array, else a null.
    pub null_array: bool,
}

/// How a run ended besides its reply.
#[derive(Default)]
pub enum Outcome {
    #[default]
    Done,
    /// Park the client on the command's keys and run it again when one is filled.
    Block(Block),
    /// What stands in the reply so far is its beginning; the rest comes from the stream.
    Stream(Box<dyn Stream>),
}

/// Steps after which the time is looked at.
const LOOK: usize = 200;

/// Bytes of a reply that nobody asks about.
const REPLY_FREE: usize = 32 << 10;
/// Bytes of a reply from which on its rest is kept as a stream (`Caller::may_keep`).
const KEPT_FROM: usize = 64 << 10;

/// The memory a run may take beside the data: its reply, and what it collects.
pub struct Room<'a> {
    budget: &'a Arc<budget::Budget>,
    holding: &'a mut Holding,
    /// What its caller holds for it already, and what it has collected.
    base: u64,
    collected: u64,
}

impl<'a> Room<'a> {
    /// `base`: bytes that are held beside the run itself. Whoever runs it sets `holding` anew when it is over.
    pub fn new(budget: &'a Arc<budget::Budget>, holding: &'a mut Holding, base: usize) -> Room<'a> {
        Room { budget, holding, base: base as u64, collected: 0 }
    }

    fn ask(&mut self, more: usize) -> Result<(), Error> {
        let all = self.base.saturating_add(self.collected).saturating_add(more as u64);
        self.holding.set(self.budget, all).map_err(|_| Error::work_memory())
    }
}

/// Work allowed before a run is dropped and repeated elsewhere.
pub struct Budget<'a> {
    steps: usize,
    /// When it is over (`mono_ns`), looked at when no more than so many steps are left.
    until: Option<(u64, usize)>,
    /// On a worker: asked now and then whether to go on.
    cancelled: Option<&'a std::sync::atomic::AtomicBool>,
    /// On a thread of background work: lets others go on when its turn is over.
    turn: Option<&'a Turn>,
    /// The memory it may take; None: as much as it likes.
    room: Option<Room<'a>>,
    /// Length of the reply from which on `room` is asked.
    reply_until: usize,
    /// How often it was asked, and the most that was charged at once.
    #[cfg(test)]
    pub(crate) looks: (usize, usize),
}

impl<'a> Budget<'a> {
    pub const fn steps(steps: usize) -> Budget<'a> {
        Budget {
            steps,
            until: None,
            cancelled: None,
            turn: None,
            room: None,
            reply_until: usize::MAX,
            #[cfg(test)]
            looks: (0, 0),
        }
    }

    pub const fn unlimited(cancelled: Option<&'a std::sync::atomic::AtomicBool>) -> Budget<'a> {
        Budget { cancelled, ..Budget::steps(usize::MAX) }
    }

    /// The run is dropped as well when a time (`mono_ns`) has come: how long a step takes nobody knows.
    pub const fn until(self, ns: u64) -> Budget<'a> {
        Budget { until: Some((ns, self.steps.saturating_sub(LOOK))), ..self }
    }

    /// The run takes turns with its like: each charge may be the end of one.
    pub const fn in_turns(self, turn: Option<&'a Turn>) -> Budget<'a> {
        Budget { turn, ..self }
    }

    /// The run may take so much memory. `reply`: how long its reply is when it begins.
    pub fn within(self, room: Room<'a>, reply: usize) -> Budget<'a> {
        Budget { room: Some(room), reply_until: reply + REPLY_FREE, ..self }
    }

    /// Takes memory for so many bytes that the run collects. Errors: it is not to be had.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), Error> {
        let Some(room) = &mut self.room else { return Ok(()) };
        room.collected = room.collected.saturating_add(bytes as u64);
        room.ask(0)
    }

    /// Asks whether so many bytes would be to be had, and takes none.
    pub(crate) fn expect(&mut self, bytes: usize) -> Result<(), Error> {
        let Some(room) = &mut self.room else { return Ok(()) };
        room.ask(bytes)?;
        room.ask(0)
    }

    #[cold]
    fn ask_for_reply(&mut self, len: usize) -> Result<(), Error> {
        let Some(room) = &mut self.room else { return Ok(()) };
        room.ask(len)?;
        self.reply_until = len + REPLY_FREE;
        Ok(())
    }

    /// As [`Budget::charge`], for a run that has written so long a reply.
    #[inline]
    pub(crate) fn charge_reply(&mut self, reply: usize, steps: usize) -> Result<(), Error> {
        if reply >= self.reply_until {
            self.ask_for_reply(reply)?;
        }
        self.charge(steps)
    }

    pub(crate) fn charge(&mut self, steps: usize) -> Result<(), Error> {
        match self.steps.checked_sub(steps) {
            Some(left) => self.steps = left,
            None => return Err(Error::Budget),
        }
        if let Some((until, look)) = &mut self.until
            && self.steps <= *look
        {
            if stdx::clock::mono_ns() > *until {
                return Err(Error::Budget);
            }
            *look = self.steps.saturating_sub(LOOK);
        }
        #[cfg(test)]
        (self.looks = (self.looks.0, self.looks.1.max(steps)));
        self.pause()
    }

    /// Lets others go on, where what is done was charged for before: amid a change, which must not end for want of steps. An
    /// error only if the run is dropped with all it changed.
    pub(crate) fn pause(&mut self) -> Result<(), Error> {
        #[cfg(test)]
        (self.looks.0 += 1);
        if let Some(turn) = self.turn {
            turn.check();
        }
        match self.cancelled {
            Some(flag) if flag.load(std::sync::atomic::Ordering::Relaxed) => Err(Error::Cancelled),
            _ => Ok(()),
        }
    }
}

/// See the module.
pub struct Cx<'a, 'k> {
    pub view: &'a mut View<'k>,
    pub out: &'a mut Reply,
    pub caller: Caller,
    pub budget: Budget<'a>,
    pub outcome: Outcome,
    /// The deterministic form of a write whose row says [`crate::Effect::Noted`]; several commands, in order.
    pub effects: Vec<OwnedArgs>,
    /// A random number for this run.
    random: u64,
}

impl<'a, 'k> Cx<'a, 'k> {
    pub fn new(
        view: &'a mut View<'k>,
        out: &'a mut Reply,
        caller: Caller,
        budget: Budget<'a>,
        random: u64,
    ) -> Cx<'a, 'k> {
        Cx { view, out, caller, budget, outcome: Outcome::Done, effects: Vec::new(), random }
    }

    /// Charges `steps` (about 50 ns each) of work. A write must charge before its first change: the run may be dropped.
    #[inline]
    pub fn charge(&mut self, steps: usize) -> Result<(), Error> {
        self.budget.charge_reply(self.out.len(), steps)
    }

    /// Waits for something that is no work; a turn among its like is given back meanwhile. On a worker only.
    pub fn aside<T>(&self, f: impl FnOnce() -> T) -> T {
        match self.budget.turn {
            Some(turn) => turn.aside(f),
            None => f(),
        }
    }

    /// Asks to wait. The handler must have changed and written nothing. Where waiting is not allowed (MULTI, scripts)
    /// the null of a time-out is written at once.
    pub fn block(&mut self, timeout_ms: Option<u64>, null_array: bool) {
        if self.caller.may_block {
            self.outcome = Outcome::Block(Block { timeout_ms, null_array });
        } else if null_array {
            self.out.null_array();
        } else {
            self.out.null();
        }
    }

    /// Before a reply of at least so many bytes is begun that cannot be streamed: asks whether there is memory for it.
    pub fn expect_reply(&mut self, bytes: usize) -> Result<(), Error> {
        if self.caller.may_stream { Ok(()) } else { self.budget.expect(self.out.len().saturating_add(bytes)) }
    }

    /// Hands over the rest of the reply. Where streams are not allowed it is written at once, and charged piece by piece; a
    /// write may have changed something by then, for who bounds such a run drops what it changed with it.
    pub fn stream(&mut self, mut stream: impl Stream + 'static) -> Result<(), Error> {
        if self.caller.may_stream {
            self.outcome = Outcome::Stream(Box::new(stream));
            return Ok(());
        }
        let start = self.out.len();
        loop {
            let before = self.out.len();
            let more = stream.fill(self.out, PIECE);
            self.charge(1 + (self.out.len() - before) / BYTES_PER_STEP)?;
            if !more {
                return Ok(());
            }
            if self.caller.may_keep && self.out.len() - start >= KEPT_FROM && !stream.repeats() {
                self.outcome = Outcome::Stream(Box::new(stream));
                return Ok(());
            }
        }
    }

    /// Notes the deterministic form of what was done.
    pub fn effect(&mut self, words: &[&[u8]]) {
        self.effects.push(OwnedArgs::from_slices(words));
    }

    /// A fresh random number.
    pub fn random(&mut self) -> u64 {
        // splitmix64
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A random number below `n` (which is not 0).
    pub fn random_below(&mut self, n: usize) -> usize {
        ((self.random() as u128 * n as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_gets_no_more_memory_than_there_is() {
        let all = Arc::new(budget::Budget::default());
        all.set_limit(64 << 20);
        let mut holding = Holding::default();
        let mut budget = Budget::unlimited(None).within(Room::new(&all, &mut holding, 1 << 20), 10);
        budget.charge_reply(10 + REPLY_FREE - 1, 1).unwrap();
        assert_eq!(all.used(), 0, "little is not asked for");
        budget.charge_reply(10 << 20, 1).unwrap();
        budget.expect(64 << 20).unwrap_err();
        budget.take(40 << 20).unwrap();
        assert!((41 << 20..44 << 20).contains(&all.used()));
        assert_eq!(budget.charge_reply(30 << 20, 1), Err(Error::work_memory()));
        assert_eq!(budget.take(30 << 20), Err(Error::work_memory()));
        drop(holding);
        assert_eq!(all.used(), 0);
    }

    #[test]
    fn a_budget_ends_with_its_time_or_its_steps() {
        let steps = |mut budget: Budget<'_>| (0..100).take_while(|_| budget.charge(50).is_ok()).count();
        assert_eq!(steps(Budget::steps(1000)), 20);
        assert_eq!(steps(Budget::steps(1000).until(u64::MAX)), 20);
        // It is looked at after so many steps, for little work is done before the clock could be read twice.
        assert_eq!(steps(Budget::steps(1000).until(0)) * 50 + 50, LOOK);
        assert_eq!(steps(Budget::steps(120).until(0)), 2, "steps that do not come to a look");
        assert_eq!(steps(Budget::unlimited(None)), 100);
    }
}
