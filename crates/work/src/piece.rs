//! Long work as an event loop sees it: pieces that are done in slices between serving clients.
//!
//! ```text
//! loop ──Box<dyn Piece>──► advance(desk) ──► Step: more, over, waits for a place, held, nothing was there
//!                              │
//!                              └─► desk: what changed, what ran, what else begins: the caller sees to it
//! ```
//!
//! - E1: a slice of a piece takes some 10 µs, and says what is left.
//! - E2: a piece tells nobody of its changes: it puts them on the desk. The caller tells them, and then
//!   delivers the reply (exec X3).
//! - E3: a piece that belongs to no thread and no line is in one place: a loop's queue, its waiting room, or
//!   a letter.

use crate::reading::ReadKeys;
use crate::watch::{AT_A_STRETCH, Watch};
use crate::works::Work;
use command::{Block, Command, Stream};
use keyspace::Changes;
use observe::tally::Tally;
use observe::waits::{Ahead, Spent};
use resp::OwnedArgs;
use std::any::Any;
use std::sync::Arc;

/// The owner of a work: client, command, loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Who {
    pub client: u64,
    pub command: &'static str,
    pub loop_id: usize,
}

/// Long work that a loop does in slices (works L1 to L3). Jobs, bulks, KEYS, scripts, rows and registrations
/// are its kinds.
pub trait Piece: Send {
    /// Does the next slice.
    fn advance(self: Box<Self>, desk: &mut Desk<'_>) -> Step;

    /// Its client, command and loop. By default it has none.
    fn who(&self) -> Who {
        Who::default()
    }

    /// Whether it may yet decide to change something. If so, CLIENT PAUSE holds it.
    fn is_open(&self) -> bool {
        false
    }

    /// Whether no client wants it any more. If so, it has to end.
    fn is_useless(&self) -> bool {
        false
    }

    /// Whether others wait for its place, and it can give that up.
    fn gives_way(&self) -> bool {
        false
    }

    /// The account of its time, if its client is told that.
    fn spent(&mut self) -> Option<&mut Spent> {
        None
    }

    /// Makes it the first of its line.
    fn stands_first(&mut self, _: crate::lines::Place) {}

    /// Whether a test holds it where it is (`stdx::points`).
    fn stays(&self) -> bool {
        false
    }
}

/// The state of a piece after a slice.
pub enum Step {
    /// There is more to do.
    More(Box<dyn Piece>),
    /// It goes on at once, but its changes are told before.
    Tell(Box<dyn Piece>),
    /// It waits for a place, with this ticket (`snapshots/places.rs`).
    Queued(u64, Box<dyn Piece>),
    /// CLIENT PAUSE holds it.
    Held(Box<dyn Piece>),
    /// It is over, or goes on elsewhere: on a thread, or in a line.
    Over(Option<Delivery>),
    /// It found nothing, so its client waits.
    Waits(Box<Wait>),
}

/// The state of a piece that goes on if something is left, and is over without a reply else.
pub fn more(is_left: bool, piece: Box<dyn Piece>) -> Step {
    if is_left { Step::More(piece) } else { Step::Over(None) }
}

/// A finished reply for a client that was parked.
pub struct Delivery {
    pub client: u64,
    pub bytes: Vec<u8>,
    pub stream: Option<Box<dyn Stream>>,
    /// The account of its time.
    pub spent: Option<Box<Spent>>,
    /// EXEC: the database that its client is left in.
    pub selected: Option<usize>,
}

/// The wait of a blocking command whose job found nothing.
pub struct Wait {
    pub client: u64,
    pub command: &'static Command,
    pub args: Arc<OwnedArgs>,
    pub block: Block,
    /// When the job began.
    pub since_ns: u64,
    pub spent: Spent,
}

impl Piece for Delivery {
    fn advance(self: Box<Self>, _: &mut Desk<'_>) -> Step {
        Step::Over(Some(*self))
    }

    fn who(&self) -> Who {
        Who { client: self.client, ..Who::default() }
    }
}

/// Things a slice leaves for its caller (E2).
#[derive(Default)]
pub struct Tray {
    /// Changes to be told.
    pub told: Vec<Changes>,
    /// Commands that ran within others of a client, to be counted.
    pub ran: Vec<(u64, Tally)>,
    /// Pieces that begin.
    pub begun: Vec<Box<dyn Piece>>,
}

/// The desk at which a piece does a slice: the parts of its loop that it may use.
pub struct Desk<'a> {
    pub work: &'a Arc<Work>,
    pub loop_id: usize,
    /// Wall clock of the turn.
    pub now_ms: u64,
    pub tray: Tray,
    /// The client and command that a word of `stdx::doing` stands for.
    pub doer: &'a dyn Fn(u64) -> Option<(u64, &'static str)>,
    /// The loop itself, for kinds that know it.
    pub home: &'a mut dyn Any,
}

impl Desk<'_> {
    /// Adds changes to be told, in this order.
    pub fn tell(&mut self, changes: Changes) {
        self.tray.told.push(changes);
    }

    /// Counts commands that ran for a client.
    pub fn count(&mut self, client: u64, tally: Tally) {
        self.tray.ran.push((client, tally));
    }

    /// Whether nothing may change now (CLIENT PAUSE).
    pub fn stops_writes(&self) -> bool {
        self.work.pause.stops_writes(self.now_ms)
    }

    /// The client to which a race was lost, if it is known, with the time of all attempts so far.
    pub fn lost_to(&self, by: u64, ns: u64) -> Option<Ahead> {
        (self.doer)(by).map(|(client, command)| (client, command, ns))
    }

    /// Gives up the keys that a client watched, in slices if they are many.
    pub fn forget(&mut self, mut watch: Watch) {
        if watch.forget_some(&self.work.keyspace, AT_A_STRETCH) {
            self.tray.begun.push(Box::new(watch));
        }
    }
}

/// A letter of long work to a loop.
pub enum Letter {
    /// It has left its thread.
    Back(Box<dyn Piece>),
    /// It is the first of its line now.
    First(Box<dyn Piece>),
    /// A script's thread asks for keys: it may not lock shards itself.
    Read(Box<ReadKeys>),
    /// A snapshot was closed, and this loop is the first that waits for one.
    Snapshot,
    /// Close this client: it reads its reply too slowly.
    Kill(u64),
}

/// Sends a letter to a loop, from any thread.
pub type Post = Arc<dyn Fn(usize, Letter) + Send + Sync>;
