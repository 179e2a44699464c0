//! Scripts and functions in Lua.

pub(crate) mod eval;
pub(crate) mod functions;
