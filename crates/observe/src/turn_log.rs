//! What one loop notes: its clocks, its turn, its counters.

use crate::Observe;
use crate::stats::Recorder;
use crate::tally::Tally;
use crate::waits::{Turn, Waits};
use std::sync::Arc;

/// One loop's own part of [`Observe`].
pub struct TurnLog {
    /// The loop's number.
    pub id: usize,
    /// Wall clock of the current turn.
    pub now_ms: u64,
    /// Monotonic clock at the end of the last command: the start of the next.
    pub clock_ns: u64,
    /// Monotonic clock at which this turn began.
    turn_ns: u64,
    ticker: stdx::clock::Ticker,
    /// What took long in this turn.
    pub turn: Turn,
    pub waits: Arc<Waits>,
    /// What this loop counts.
    pub recorder: Recorder,
}

impl TurnLog {
    pub fn new(id: usize, observe: &Observe) -> TurnLog {
        let ticker = stdx::clock::Ticker::new();
        // The first reading measures the counter for milliseconds: not in a turn of the loop.
        ticker.now_ns();
        TurnLog {
            id,
            now_ms: stdx::clock::wall_ms(),
            clock_ns: stdx::clock::mono_ns(),
            turn_ns: 0,
            ticker,
            turn: Turn::default(),
            waits: observe.waits.clone(),
            recorder: observe.stats.recorder(),
        }
    }

    /// Reads both clocks; at the begin of every turn.
    #[inline]
    pub fn tick(&mut self) {
        if self.turn_ns != 0 {
            // The last lap was the end of a turn; what passed since was sleep.
            self.recorder.turn(self.clock_ns.saturating_sub(self.turn_ns));
        }
        self.now_ms = stdx::clock::wall_ms();
        self.clock_ns = self.ticker.set();
        self.turn_ns = self.clock_ns;
        self.begin_turn();
    }

    /// Reads the monotonic clock the cheap way; after every command and piece of a stream.
    #[inline]
    pub fn lap(&mut self) -> u64 {
        self.clock_ns = self.ticker.now_ns();
        self.clock_ns
    }

    /// Counts the commands that ran within another one of that client, and logs the slow ones of them.
    pub fn count_within(&self, observe: &Observe, tally: &mut Tally, client: u64) {
        let (slow, live) = (tally.take_slow(), &observe.config.live);
        if !slow.is_empty()
            && let Some(info) = observe.clients.get(client)
        {
            slow.into_iter().for_each(|one| observe.stats.queued_elsewhere(self, live, &info, one));
        }
        tally.tell(&self.recorder, live.latency_tracking.get());
    }
}
