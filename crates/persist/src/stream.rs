//! The stream of effects, as it is handed to a log or to replicas.

pub use crate::order::Order;
pub use crate::order::shared::{Listening, Shared};
pub use keyspace::{Lsn, Mark, To};

use std::sync::Arc;

/// Whole groups, one behind the other, as commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub first: Lsn,
    pub last: Lsn,
    pub bytes: Vec<u8>,
    pub groups: u32,
}

/// A piece of the stream. The group behind a mark begins with SELECT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    Block(Block),
    Mark(Lsn, Mark),
    /// Effects up to an LSN are lost, for this reason. The next item is a mark behind that LSN.
    Break(Lsn, Arc<str>),
}

/// A place in the history that replicas follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryPlace {
    pub id: String,
    /// Bytes of the history up to here.
    pub offset: u64,
    /// The database that the history has selected here.
    pub db: u32,
}

/// Takes the stream.
pub trait Outlet: Send {
    fn take(&mut self, item: Item);

    /// Notes that all items up to an LSN were given.
    fn turn(&mut self, upto: Lsn);

    /// Notes the database behind all that was given.
    fn selected(&mut self, _: u32) {}

    /// Notes the end of a look, with or without items. It comes between two groups.
    fn looked(&mut self) {}

    /// The place in the replicas' history of all that it was given. None: it counts none.
    fn place(&self) -> Option<HistoryPlace> {
        None
    }

    /// Notes that the log names the present place, at an LSN.
    fn named(&mut self, _: Lsn) {}

    /// Effects up to this LSN are not for it, though they may still be on their way when it comes.
    fn since(&self) -> Lsn {
        0
    }

    /// The kind of effects it hears: those for a log, or those for replicas.
    fn hears(&self) -> To {
        To::Log
    }
}
