//! The state one loop has for itself.

use crate::aside::Collected;
use crate::{Server, chores, pubsub, rows, works};
use observe::TurnLog;
use resp::OwnedArgs;
use std::sync::Arc;

/// The state one loop has for itself.
pub struct Local {
    pub(crate) server: Arc<Server>,
    /// Its clocks, its turn, its counters.
    pub log: TurnLog,
    random: u64,
    /// The command that runs has become a job or a script on a thread: it is counted when that is done.
    pub(crate) away: bool,
    /// An answer that is collected elsewhere is for a script, which waits for it on its thread.
    pub(crate) collected: Collected,
    /// The client whose commit was found to be protected last.
    pub(crate) guard: std::cell::Cell<u64>,
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
    /// Deeds that wait for an answer by mail, by their client.
    pub(crate) acting: std::collections::HashMap<u64, Box<crate::deeds::Deeds>>,
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

    /// A message nobody waits for goes on from here.
    pub fn announce(&mut self, announced: pubsub::Announced) {
        if self.announced.is_empty() {
            self.works.push(Box::new(chores::Announcing));
        }
        self.announced.push_back(announced);
    }

    /// A fresh random number; nobody may rely on its being hard to guess.
    #[inline]
    pub fn random(&mut self) -> u64 {
        // A step of a linear congruential generator, whose weak low bits go to the top and into the others.
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        self.random.rotate_left(32) ^ self.random
    }
}
