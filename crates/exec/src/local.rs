//! The state one loop has for itself.

use crate::aside::Collected;
use crate::{Server, chores, pubsub, rows, works};
use observe::TurnLog;
use resp::OwnedArgs;
use std::sync::Arc;

/// The state one loop has for itself.
pub struct Local {
    pub(crate) server: Arc<Server>,
    /// The loop's clocks, its turn and its counters.
    pub log: TurnLog,
    random: u64,
    /// The running command has become a job, or a script on a thread. It is counted when that is done.
    pub(crate) away: bool,
    /// A script's thread waits for an answer that is collected elsewhere: the state of that answer.
    pub(crate) collected: Collected,
    /// The client whose protected commit last held a command up.
    pub(crate) guard: std::cell::Cell<u64>,
    /// The newest effect that this loop told.
    pub(crate) newest: keyspace::Lsn,
    /// Clients that disconnected while a writer was about to serve them.
    pub(crate) leaving: Vec<u64>,
    /// This loop's Lua engine; made when the first script comes.
    pub(crate) lua: Option<Box<scripts::LuaState>>,
    /// This loop's subscribers.
    pub subscribers: pubsub::Subscribers,
    /// Messages without a waiting publisher, on their way through the patterns, one after the other.
    pub(crate) announced: std::collections::VecDeque<pubsub::Announced>,
    /// Deeds that wait for an answer by mail, by client.
    pub(crate) acting: std::collections::HashMap<u64, Box<crate::deeds::Deeds>>,
    /// The words of the command that is about to run, if they are many: a caller that keeps them takes a
    /// share, not a copy.
    pub incoming: Option<Arc<OwnedArgs>>,
    /// The hash of the first argument of the command that is about to run, if it is known.
    pub key_hash: Option<u64>,
    /// Count of commands that asked for memory.
    pub(crate) asked: u32,
    /// Long work that this loop does in slices.
    pub works: works::Works,
    /// Clients whose rows arrived.
    pub arrived: Vec<(u64, rows::Arrival)>,
}

impl Local {
    pub fn new(id: usize, server: &Arc<Server>) -> Local {
        let random = stdx::hash::hash_u64(id as u64 ^ stdx::clock::wall_ns());
        Local {
            server: server.clone(),
            log: TurnLog::new(id, &server.observe),
            random,
            away: false,
            collected: Collected::default(),
            guard: std::cell::Cell::new(0),
            newest: 0,
            leaving: Vec::new(),
            lua: None,
            subscribers: pubsub::Subscribers::default(),
            announced: std::collections::VecDeque::new(),
            acting: std::collections::HashMap::new(),
            incoming: None,
            key_hash: None,
            asked: 0,
            works: works::Works::default(),
            arrived: Vec::new(),
        }
    }

    /// Sends a message without a waiting publisher through the patterns, in slices.
    pub fn announce(&mut self, announced: pubsub::Announced) {
        if self.announced.is_empty() {
            self.works.push(Box::new(chores::Announcing));
        }
        self.announced.push_back(announced);
    }

    /// A fresh random number. It can be guessed: not for secrets.
    #[inline]
    pub fn random(&mut self) -> u64 {
        // A step of a linear congruential generator. Its low bits are weak, so they go to the top and are
        // mixed in.
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        self.random.rotate_left(32) ^ self.random
    }
}
