//! How ranks that know of each other meet anew.

use crate::{Fabric, Result};
use std::time::Duration;

/// Who meets, and where.
#[derive(Clone, Copy, Debug)]
pub struct RegroupRequest<'a> {
    /// As the rank that holds the meeting, the first, has said it.
    pub endpoint: &'a str,
    /// Only those meet that give the same: others mean another company.
    pub group_id: &'a [u8],
    /// This rank's number in the new fabric.
    pub rank: usize,
    /// How many come.
    pub ranks: usize,
}

/// Where one rank meets others anew: what splitting and shrinking a communicator need of its transport.
pub trait Reconnect: Send + Sync {
    /// A place, not used before, where this rank can hold a meeting: 1 to 64 bytes.
    ///
    /// # Errors
    /// The transport's.
    fn endpoint(&self) -> Result<String>;

    /// Meets the others; the fabric is new in all its parts, so that nothing late reaches it.
    ///
    /// # Errors
    /// [`Error::Timeout`](crate::Error::Timeout) if not all have come within `patience`; the transport's.
    fn connect(&self, gathering: RegroupRequest<'_>, patience: Duration) -> Result<Fabric>;
}
