//! The state one loop has for itself.

use crate::aside::Collected;
use crate::{Server, pubsub, scripts, sources, stats, tally, waits, works};
use resp::OwnedArgs;
use std::sync::Arc;

/// The state one loop has for itself.
pub struct Local {
    pub id: usize,
    /// Wall clock of the current turn.
    pub now_ms: u64,
    random: u64,
    /// Monotonic clock at the end of the last command: the start of the next.
    pub clock_ns: u64,
    /// Monotonic clock at which this turn began.
    turn_ns: u64,
    /// The long pieces of this turn.
    pub turn: waits::Turn,
    pub(crate) waits: Arc<waits::Waits>,
    /// The command that runs has become a job or a script on a thread: it is counted when that is done.
    pub(crate) away: bool,
    /// An answer that is collected elsewhere is for a script, which waits for it on its thread.
    pub(crate) collected: Collected,
    /// The client whose commit was found to be protected last.
    pub(crate) guard: std::cell::Cell<u64>,
    ticker: stdx::clock::Ticker,
    /// The newest effect that was told here.
    pub(crate) newest: keyspace::Lsn,
    /// Clients that went while somebody was about to serve them.
    pub(crate) leaving: Vec<u64>,
    /// This loop's Lua; made when the first script comes.
    pub(crate) lua: Option<Box<scripts::LuaState>>,
    /// This loop's subscribers.
    pub subscribers: pubsub::Subscribers,
    /// Messages nobody waits for, on their way through the patterns, one after the other.
    pub(crate) announced: std::collections::VecDeque<pubsub::Announced>,
    /// The words of the command that is about to run, if they are many: whoever keeps them takes a share
    /// instead of a copy.
    pub incoming: Option<Arc<OwnedArgs>>,
    /// The hash of the first argument of the command that is about to run, if that is known.
    pub key_hash: Option<u64>,
    /// Commands that asked for memory.
    pub(crate) asked: u32,
    /// Long work that this loop does in slices.
    pub works: works::Works,
    /// Clients for whom rows arrived.
    pub arrived: Vec<(u64, sources::Arrival)>,
    /// The loop's counters.
    pub recorder: stats::Recorder,
}

impl Local {
    pub fn new(id: usize, server: &Server) -> Local {
        let random = stdx::hash::hash_u64(id as u64 ^ stdx::clock::wall_ns());
        let ticker = stdx::clock::Ticker::new();
        // The first reading measures the counter for milliseconds: not in a turn of the loop.
        ticker.now_ns();
        Local {
            id,
            now_ms: stdx::clock::wall_ms(),
            random,
            clock_ns: stdx::clock::mono_ns(),
            turn_ns: 0,
            turn: waits::Turn::default(),
            waits: server.waits.clone(),
            away: false,
            collected: Collected::default(),
            guard: std::cell::Cell::new(0),
            ticker,
            newest: 0,
            leaving: Vec::new(),
            lua: None,
            subscribers: pubsub::Subscribers::default(),
            announced: std::collections::VecDeque::new(),
            incoming: None,
            key_hash: None,
            asked: 0,
            works: works::Works::default(),
            arrived: Vec::new(),
            recorder: server.stats.recorder(),
        }
    }

    /// A message nobody waits for goes on from here.
    pub fn announce(&mut self, announced: pubsub::Announced) {
        if self.announced.is_empty() {
            self.works.push(works::Work::Announce);
        }
        self.announced.push_back(announced);
    }

    /// Counts the commands that ran within another one of that client, and logs the slow ones of them.
    pub(crate) fn count_within(&self, server: &Server, tally: &mut tally::Tally, client: u64) {
        let slow = tally.take_slow();
        if !slow.is_empty()
            && let Some(info) = server.clients.get(client)
        {
            slow.into_iter()
                .for_each(|one| server.stats.queued_elsewhere(self, &server.config.live, &info, one));
        }
        tally.tell(&self.recorder, server.config.live.latency_tracking.get());
    }

    /// Reads both clocks; at the begin of every turn.
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

    /// A fresh random number; nobody may rely on its being hard to guess.
    #[inline]
    pub fn random(&mut self) -> u64 {
        // A step of a linear congruential generator, whose weak low bits go to the top and into the others.
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        self.random.rotate_left(32) ^ self.random
    }
}
