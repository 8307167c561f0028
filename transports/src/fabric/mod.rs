//! All connections of one rank: what a transport makes, and the way to make it anew.

mod reconnect;

pub use reconnect::{Reconnect, RegroupRequest};

use crate::shm::Window;
use crate::{ControlChannel, Geometry, Link, WaitStrategy};

/// All connections of one rank of one communicator.
pub struct Fabric {
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Sizes on which all ranks agree.
    pub geometry: Geometry,
    /// Link to each rank. It is `None` at this rank's own index.
    pub links: Vec<Option<Box<dyn Link>>>,
    /// Memory of all ranks. It is `None` unless every rank can access the memory of every other
    /// rank.
    pub window: Option<Window>,
    /// The channel for control messages, which also reports ranks that ended.
    pub control: Box<dyn ControlChannel>,
    /// The clock and the way to wait.
    pub wait: Box<dyn WaitStrategy>,
    /// Short name of the transport to each rank, for tables and errors.
    pub transport: &'static str,
    /// True if all ranks share one host that has fewer cores than ranks. All ranks have the same
    /// value.
    pub oversubscribed: bool,
}
