//! The life of a communicator: how ranks meet, divide, join, shrink and leave.

pub(in crate::communicator) mod builder;
pub(in crate::communicator) mod create_group;
pub(in crate::communicator) mod grow;
pub(in crate::communicator) mod leaving;
pub(in crate::communicator) mod local_ranks;
pub(in crate::communicator) mod recovery;
pub(in crate::communicator) mod shrink;
pub(in crate::communicator) mod split;
