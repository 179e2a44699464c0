//! The state one loop has for itself.

use crate::{Server, Session};
use observe::TurnLog;
use std::collections::HashMap;
use std::sync::Arc;
use work::piece::{Desk, Piece, Step, more};
use work::works;

/// The state one loop has for itself.
pub struct Local {
    pub(crate) server: Arc<Server>,
    /// The loop's clocks, its turn and its counters.
    pub log: TurnLog,
    random: u64,
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
    /// Deferred effects that wait for an answer by mail, by client.
    pub(crate) acting: HashMap<u64, Box<scripts::Deferred>>,
    /// Stand-ins of clients that disconnected before their deferred effects were done ([`crate::deferred`] D3).
    pub(crate) stand_ins: HashMap<u64, Box<Session>>,
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
            guard: std::cell::Cell::new(0),
            newest: 0,
            leaving: Vec::new(),
            lua: None,
            subscribers: pubsub::Subscribers::default(),
            announced: std::collections::VecDeque::new(),
            acting: HashMap::new(),
            stand_ins: HashMap::new(),
            asked: 0,
            works: works::Works::default(),
            arrived: Vec::new(),
        }
    }

    /// The server and the loop that a piece of work is on.
    pub(crate) fn of<'a>(desk: &'a mut Desk<'_>) -> (Arc<Server>, &'a mut Local) {
        let local = desk.home.downcast_mut::<Local>().expect("a loop drives its own work");
        (local.server.clone(), local)
    }

    /// Sends a message without a waiting publisher through the patterns, in slices.
    pub fn announce(&mut self, announced: pubsub::Announced) {
        if self.announced.is_empty() {
            self.works.push(Box::new(Announcing));
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

/// Sends the messages in `Local::announced`.
struct Announcing;

impl Piece for Announcing {
    fn advance(self: Box<Self>, desk: &mut Desk<'_>) -> Step {
        let (server, local) = Local::of(desk);
        if local.announced.front_mut().is_none_or(|first| first.advance(&server.pubsub)) {
            local.announced.pop_front();
        }
        let is_left = !local.announced.is_empty();
        more(is_left, self)
    }
}
