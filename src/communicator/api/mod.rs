//! The calls of the API on communicators, one file for each kind of operation.

pub(in crate::communicator) mod algorithm;
pub(in crate::communicator) mod async_forms;
pub(in crate::communicator) mod collectives;
pub(in crate::communicator) mod info;
pub(in crate::communicator) mod lists;
pub(in crate::communicator) mod messages;
#[cfg(feature = "serde")]
pub(in crate::communicator) mod object_decoder;
#[cfg(feature = "serde")]
pub(in crate::communicator) mod objects;
pub(in crate::communicator) mod point_to_point;
pub(in crate::communicator) mod rooted;
pub(in crate::communicator) mod scans;
pub(in crate::communicator) mod scope;
pub(in crate::communicator) mod symmetric;
pub(in crate::communicator) mod uneven;
pub(in crate::communicator) mod vectors;
