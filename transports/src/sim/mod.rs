//! A network with injected faults, in virtual time: the same seed gives the same run.
//!
//! Ranks are threads of one process. The clock moves only when every living
//! rank is waiting, to the next moment at which something happens, and
//! everything that passes between ranks (messages, room for more of them,
//! notes, notices of deaths) takes a time that is a hash of the seed and of what
//! passes. So nothing a rank can see depends on how its thread was scheduled,
//! and a failing run is replayed by its seed. After the packet simulator of
//! TigerBeetle.

mod endpoint;
mod fabric;
mod fault_plan;
mod nodes;
mod reconnect;
mod rng;
mod timeouts;

pub use crate::sim::fault_plan::{Fault, FaultPlan, RankSet, Trigger};
pub use crate::sim::rng::Rng;

use crate::sim::endpoint::HostProcess;
use crate::sim::reconnect::SimReconnect;
use crate::{Fabric, Geometry, Reconnect};
use nodes::{INITIAL_FABRIC, Network};
use std::sync::Arc;
use std::time::Duration;

/// A look at the network from outside.
#[derive(Clone)]
pub struct Observer(Arc<Network>);

impl Observer {
    /// A digest of all that was delivered, in its order and with its times.
    pub fn trace(&self) -> u64 {
        self.0.lock().trace()
    }

    /// How many things were delivered.
    pub fn delivered(&self) -> u64 {
        self.0.lock().delivered()
    }

    /// The virtual time.
    pub fn now(&self) -> Duration {
        self.0.lock().now()
    }

    /// When a rank of the first fabric died, if it has.
    pub fn died_at(&self, rank: usize) -> Option<Duration> {
        self.0.lock().died_at(rank)
    }

    /// Who met at a place, under a label, by the numbers that they had in the first fabric.
    pub fn members(&self, place: &str, label: &[u8]) -> Option<Vec<usize>> {
        self.0.members(place, label)
    }
}

/// What one rank gets of the network: its part of the first fabric, and where it meets others anew.
pub type Node = (Fabric, Arc<dyn Reconnect>);

/// The fabrics of `ranks` ranks, by rank. Until each is in use or dropped, time stands still.
pub fn fabrics(ranks: usize, geometry: Geometry, fault_plan: FaultPlan) -> Vec<Fabric> {
    observed_fabrics(ranks, geometry, fault_plan).0
}

/// Creates the fabrics of [`fabrics`] and an observer of the network.
pub fn observed_fabrics(ranks: usize, geometry: Geometry, fault_plan: FaultPlan) -> (Vec<Fabric>, Observer) {
    let (places, observer) = world(ranks, geometry, fault_plan);
    (places.into_iter().map(|(fabric, _)| fabric).collect(), observer)
}

/// As [`observed_fabrics`], and for each rank where it meets others anew. Time stands still until a rank waits, or has
/// dropped its fabric, its venue, and what was met there.
pub fn world(ranks: usize, geometry: Geometry, fault_plan: FaultPlan) -> (Vec<Node>, Observer) {
    let network = Arc::new(Network::new(ranks, geometry, fault_plan));
    let place = |host| -> Node {
        let process = Arc::new(HostProcess { network: Arc::clone(&network), host });
        (crate::sim::endpoint::fabric(&process, INITIAL_FABRIC, host), Arc::new(SimReconnect::new(&process)))
    };
    ((0..ranks).map(place).collect(), Observer(Arc::clone(&network)))
}

#[cfg(test)]
mod tests;
