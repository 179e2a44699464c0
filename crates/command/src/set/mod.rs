//! Sets: members, random members, algebra.

pub(crate) mod algebra;
pub(crate) mod members;
pub(crate) mod random;
