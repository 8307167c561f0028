//! Membership after a failure: the survivors agree on who continues, and connect again.

pub(crate) mod agreement;
pub(crate) mod shrink;
