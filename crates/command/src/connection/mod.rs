//! Commands about the connection they arrive on, and about others.

pub(crate) mod client;
pub(crate) mod session;
