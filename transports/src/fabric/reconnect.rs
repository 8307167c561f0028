//! Reconnection, by which ranks of one communicator connect again as members of another
//! communicator.

use crate::{Fabric, Result};
use std::time::Duration;

/// Request of one rank to connect to the others of a new communicator.
#[derive(Clone, Copy, Debug)]
pub struct RegroupRequest<'a> {
    /// Endpoint of rank 0 of the new communicator, as [`Reconnect::endpoint`] returned it there.
    pub endpoint: &'a str,
    /// Identifier of the new communicator. Only ranks with the same identifier connect to each
    /// other.
    pub group_id: &'a [u8],
    /// Rank of this process in the new communicator.
    pub rank: usize,
    /// Number of ranks of the new communicator.
    pub ranks: usize,
}

/// The service by which a transport lets communicators be split and shrunk.
pub trait Reconnect: Send + Sync {
    /// Returns an unused endpoint, of 1 to 64 bytes, at which this rank can be rank 0 of a new
    /// communicator.
    ///
    /// # Errors
    /// The errors of the transport.
    fn endpoint(&self) -> Result<String>;

    /// Connects to the other ranks. All parts of the fabric are new, so no late message can reach
    /// it.
    ///
    /// # Errors
    /// [`Error::Timeout`](crate::Error::Timeout) if not all ranks have come within `timeout`, and
    /// the errors of the transport.
    fn connect(&self, request: RegroupRequest<'_>, timeout: Duration) -> Result<Fabric>;
}
