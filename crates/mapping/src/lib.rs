//! Keys that are rows of a database: which table, which key names which row, how an id is spelled. No driver,
//! no I/O.
#![forbid(unsafe_code)]

pub mod folders;
pub mod shown;
mod spec;
pub mod spelling;

pub use spec::{Form, IdType, Pattern, Spec, Writes};

/// An id as it stands in a key.
pub type Id = Box<[u8]>;
