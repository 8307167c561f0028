//! Agreement of the survivors of a failure on who goes on.
pub(crate) mod agreement;
pub(crate) mod shrink;
