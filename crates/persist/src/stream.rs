//! The stream of effects, as it is handed to a log or to replicas.

pub use crate::order::Order;
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

/// Takes the stream.
pub trait Outlet: Send {
    fn take(&mut self, item: Item);

    /// Notes that all items up to an LSN were given.
    fn turn(&mut self, upto: Lsn);

    /// The kind of effects it hears: those for a log, or those for replicas.
    fn hears(&self) -> To {
        To::Log
    }
}
