//! Commands on keys of any type.

pub(crate) mod dump;
pub(crate) mod expiry;
pub(crate) mod items;
pub(crate) mod iterate;
pub(crate) mod names;
pub(crate) mod object;
pub(crate) mod sort;
