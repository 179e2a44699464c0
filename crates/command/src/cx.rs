//! The surroundings of a handler: its view of the keyspace, the reply, and the limits of its run.

use crate::Error;
use keyspace::View;
use resp::{OwnedArgs, Reply};
use std::sync::Arc;
use stdx::budget::{self, Holding};
use stdx::turns::Turn;
use value::Held;

/// Elements of a reply above which it is streamed instead of written at once.
pub const STREAM_FROM: usize = 512;

/// Bytes of a reply written between two charges where it cannot be streamed.
const PIECE: usize = 8 << 10;

/// Bytes of a reply written in one step: an element or two.
pub(crate) const BYTES_PER_STEP: usize = 64;

/// A reply written piece by piece while the socket drains. It owns its data (values clone in O(1)).
pub trait Stream: Send {
    /// Appends about `room` bytes of whole reply parts; false when nothing is left. Must stay within a
    /// quantum.
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool;

    /// Reports the large things it keeps alive: values, which may be shared, and collected data. O(1), or
    /// O(keys) of its command.
    fn holds(&self, held: &mut dyn FnMut(Held)) {
        let _ = held;
    }

    /// Whether the reply may be far larger than the data it keeps alive, because elements repeat. As a part
    /// of another reply, such a stream is written at once, not kept until the client reads.
    fn repeats(&self) -> bool {
        false
    }

    /// Bytes already in memory as they will be sent. They count to the client's output buffer. O(1).
    fn unsent_bytes(&self) -> usize {
        0
    }

    /// Whether it goes on reading, or writing, the keyspace while it is written. It then tells of later writes
    /// than those there were when it began.
    fn reads_on(&self) -> bool {
        false
    }

    /// Whether it has effects besides its reply. It must then run to its end even if the client is gone.
    fn has_effects(&self) -> bool {
        false
    }
}

/// Facts about where a handler runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caller {
    /// May wait for data (not in MULTI or a script).
    pub may_block: bool,
    /// May answer with a stream (not in MULTI or a script).
    pub may_stream: bool,
    /// May leave the rest of a long reply to a stream among other replies (a long transaction).
    pub may_keep: bool,
    pub in_script: bool,
    /// Replicated or replayed: the first run has already settled relative times and limits. Nothing counts as
    /// expired ([`View::set_expired_live`]).
    pub in_replay: bool,
    pub client_id: u64,
    /// Number of earlier runs thrown away because another client changed the keys.
    pub attempt: u32,
}

/// A blocking command's request to wait, made when its keys have nothing to give.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// None: wait for ever.
    pub timeout_ms: Option<u64>,
    /// The reply on a time-out: true for a null array, false for a null.
    pub null_array: bool,
    /// The words it waits with, if not its own: what they stood for when it first ran.
    pub words: Option<Arc<OwnedArgs>>,
}

/// How a run ended, besides its reply.
#[derive(Default)]
pub enum Outcome {
    #[default]
    Done,
    /// Park the client on the command's keys and run it again when one is filled.
    Block(Block),
    /// The reply holds the beginning; the stream gives the rest.
    Stream(Box<dyn Stream>),
}

/// Steps between two looks at the clock.
const LOOK: usize = 200;

/// Bytes of a reply that need no permission.
const REPLY_FREE: usize = 32 << 10;
/// Bytes of a reply above which its rest is kept as a stream (`Caller::may_keep`).
const KEPT_FROM: usize = 64 << 10;

/// The memory that a run may take beside the data: its reply and the data it collects.
pub struct Room<'a> {
    budget: &'a Arc<budget::Budget>,
    holding: &'a mut Holding,
    /// Bytes the caller holds for this run already, and bytes the run has collected.
    base: u64,
    collected: u64,
}

impl<'a> Room<'a> {
    /// Makes a room. `base`: bytes held beside the run itself. The caller sets `holding` anew after the run.
    pub fn new(budget: &'a Arc<budget::Budget>, holding: &'a mut Holding, base: usize) -> Room<'a> {
        Room { budget, holding, base: base as u64, collected: 0 }
    }

    fn ask(&mut self, more: usize) -> Result<(), Error> {
        let all = self.base.saturating_add(self.collected).saturating_add(more as u64);
        self.holding.set(self.budget, all).map_err(|_| Error::work_memory())
    }
}

/// The work a run may do before it is dropped and repeated elsewhere.
pub struct Budget<'a> {
    steps: usize,
    /// The end of its time (`mono_ns`), and the number of steps left at which the clock is read next.
    until: Option<(u64, usize)>,
    /// On a worker: set when the run should stop.
    cancelled: Option<&'a std::sync::atomic::AtomicBool>,
    /// On a background thread: lets other work go on when its turn is over.
    turn: Option<&'a Turn>,
    /// The memory it may take. None: no limit.
    room: Option<Room<'a>>,
    /// Length of the reply above which `room` is asked.
    reply_until: usize,
    /// Number of looks, and the largest single charge.
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

    /// Drops the run also at a time (`mono_ns`), because steps differ in length.
    pub const fn until(self, ns: u64) -> Budget<'a> {
        Budget { until: Some((ns, self.steps.saturating_sub(LOOK))), ..self }
    }

    /// Shares the thread with other runs: a turn may end at each charge.
    pub const fn in_turns(self, turn: Option<&'a Turn>) -> Budget<'a> {
        Budget { turn, ..self }
    }

    /// Limits the run's memory. `reply`: length of the reply at the start of the run.
    pub fn within(self, room: Room<'a>, reply: usize) -> Budget<'a> {
        Budget { room: Some(room), reply_until: reply + REPLY_FREE, ..self }
    }

    /// Takes memory for bytes that the run collects. Errors: out of work memory.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), Error> {
        let Some(room) = &mut self.room else { return Ok(()) };
        room.collected = room.collected.saturating_add(bytes as u64);
        room.ask(0)
    }

    /// Checks that so many bytes are available, and takes none. Errors: out of work memory.
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

    /// As [`Budget::charge`], for a run whose reply has this length.
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

    /// Lets other work go on during a change that is already charged for. A change must not end for want of
    /// steps. Errors: cancelled; the run is then dropped with all its changes.
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

/// A handler's context. See the module.
pub struct Cx<'a, 'k> {
    pub view: &'a mut View<'k>,
    pub out: &'a mut Reply,
    pub caller: Caller,
    pub budget: Budget<'a>,
    pub outcome: Outcome,
    /// The deterministic commands, in order, that the log receives for a row with [`crate::Effect::Noted`].
    pub effects: Vec<OwnedArgs>,
    /// State of the run's random numbers.
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

    /// Whether a key or field that shall expire at `at_ms` is to be removed at once. A replay stores a time
    /// in the past, as the log has later commands from before that time; so does import mode.
    pub fn is_past(&self, at_ms: u64) -> bool {
        at_ms <= self.view.now_ms() && !self.caller.in_replay && !self.view.stores_past()
    }

    /// Charges `steps` of work, about 50 ns each. A write must charge before its first change, as the run may
    /// be dropped.
    #[inline]
    pub fn charge(&mut self, steps: usize) -> Result<(), Error> {
        self.budget.charge_reply(self.out.len(), steps)
    }

    /// Runs a wait that is not work; the run's turn is given back meanwhile. On a worker only.
    pub fn aside<T>(&self, f: impl FnOnce() -> T) -> T {
        match self.budget.turn {
            Some(turn) => turn.aside(f),
            None => f(),
        }
    }

    /// Asks to wait. The handler must not have changed or written anything. Where waiting is not allowed
    /// (MULTI, scripts), the null of a time-out is written at once.
    pub fn block(&mut self, timeout_ms: Option<u64>, null_array: bool) {
        if self.caller.may_block {
            self.outcome = Outcome::Block(Block { timeout_ms, null_array, words: None });
        } else if null_array {
            self.out.null_array();
        } else {
            self.out.null();
        }
    }

    /// As [`Cx::block`], for a null array, and with other words than the command's own.
    pub fn block_as(&mut self, timeout_ms: Option<u64>, words: OwnedArgs) {
        self.block(timeout_ms, true);
        if let Outcome::Block(block) = &mut self.outcome {
            block.words = Some(Arc::new(words));
        }
    }

    /// Checks for memory before a reply of at least so many bytes that cannot be streamed. Errors: out of
    /// work memory.
    pub fn expect_reply(&mut self, bytes: usize) -> Result<(), Error> {
        if self.caller.may_stream { Ok(()) } else { self.budget.expect(self.out.len().saturating_add(bytes)) }
    }

    /// Hands over the rest of the reply. Where streams are not allowed it is written at once and charged
    /// piece by piece. A write may call this after its changes: a run with a limit drops them too. Errors:
    /// those of [`Cx::charge`].
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

    /// Notes a deterministic command for the log, if a sink listens.
    pub fn effect(&mut self, words: &[&[u8]]) {
        if self.view.listens() {
            self.effects.push(OwnedArgs::from_slices(words));
        }
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
        // The clock is read only after so many steps, as a read costs more than a little work.
        assert_eq!(steps(Budget::steps(1000).until(0)) * 50 + 50, LOOK);
        assert_eq!(steps(Budget::steps(120).until(0)), 2, "steps that do not come to a look");
        assert_eq!(steps(Budget::unlimited(None)), 100);
    }
}
