//! Commands about the server as a whole.

pub(crate) mod databases;
pub(crate) mod introspection;
pub(crate) mod lifecycle;
pub(crate) mod modules;
