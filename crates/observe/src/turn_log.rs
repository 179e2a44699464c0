//! The record of one loop: its clocks, its turn, its counters.

use crate::Observe;
use crate::stats::Recorder;
use crate::tally::Tally;
use crate::waits::{Turn, Waits};
use std::sync::Arc;

/// One loop's own part of [`Observe`]. Only that loop uses it.
pub struct TurnLog {
    /// The loop's number.
    pub id: usize,
    /// The wall clock at the begin of the current turn.
    pub now_ms: u64,
    /// The monotonic clock at the end of the last command, which is the start of the next.
    pub clock_ns: u64,
    /// The monotonic clock at the begin of this turn.
    turn_ns: u64,
    /// The begin of the turn in which the request under way came; 0: none is measured.
    pub came_ns: u64,
    ticker: stdx::clock::Ticker,
    /// The long pieces of work of this turn.
    pub turn: Turn,
    pub waits: Arc<Waits>,
    /// This loop's counters.
    pub recorder: Recorder,
}

impl TurnLog {
    pub fn new(id: usize, observe: &Observe) -> TurnLog {
        let ticker = stdx::clock::Ticker::new();
        // The first reading calibrates the counter for milliseconds, so it happens here and not in a turn.
        ticker.now_ns();
        TurnLog {
            id,
            now_ms: stdx::clock::wall_ms(),
            clock_ns: stdx::clock::mono_ns(),
            turn_ns: 0,
            came_ns: 0,
            ticker,
            turn: Turn::default(),
            waits: observe.waits.clone(),
            recorder: observe.stats.recorder(id),
        }
    }

    /// Begins a turn: reads both clocks and counts the turn before.
    #[inline]
    pub fn tick(&mut self) {
        if self.turn_ns != 0 {
            // The last lap was the end of the turn; the time since then was sleep.
            self.recorder.turn(self.clock_ns.saturating_sub(self.turn_ns));
        }
        self.now_ms = stdx::clock::wall_ms();
        self.clock_ns = self.ticker.set();
        self.turn_ns = self.clock_ns;
        self.begin_turn();
    }

    /// Reads the monotonic clock the cheap way. Called after every command and every piece of a stream.
    #[inline]
    pub fn lap(&mut self) -> u64 {
        self.clock_ns = self.ticker.now_ns();
        self.clock_ns
    }

    /// Counts the latency of a request that has its reply. `came_ns`: see the field.
    #[inline]
    pub fn replied(&self, came_ns: u64) {
        self.replied_after(came_ns, 0);
    }

    /// As [`TurnLog::replied`], without `parked_ns` of it.
    #[inline]
    pub fn replied_after(&self, came_ns: u64, parked_ns: u64) {
        if came_ns != 0 {
            self.recorder.latency(self.clock_ns.saturating_sub(came_ns + parked_ns));
        }
    }

    /// The begin of the turn in which bytes came that are received now: that of the turn before, if it was
    /// slow, as they may have come then.
    #[inline]
    pub fn receives_since_ns(&self) -> u64 {
        self.turn.since_ns()
    }

    /// Counts the commands that ran within a script or transaction of `client`, logs the noted ones, and tells
    /// HOTKEYS of the rest.
    pub fn count_within(&self, observe: &Observe, tally: &mut Tally, client: u64) {
        let (noted, live) = (tally.take_noted(), &observe.config.live);
        if !noted.is_empty()
            && let Some(info) = observe.clients.get(client)
        {
            noted.into_iter().for_each(|one| observe.stats.queued_elsewhere(self, live, &info, one));
        }
        if let Some(hot) = tally.take_hot() {
            observe.stats.hotkeys.add_run(*hot, self.now_ms);
        }
        tally.tell(&self.recorder, live.latency_tracking.get());
    }
}
