//! A network with injected faults, in virtual time. The same seed gives the same run.
//!
//! Ranks are threads of one process. The clock advances only when every living rank waits, and then
//! to the time of the next event. Messages, credits, control messages and notices of deaths have
//! delays that are a hash of the seed and of the packet. So nothing that a rank can observe depends
//! on the scheduling of its thread, and a seed replays a failing run. The design follows the packet
//! simulator of TigerBeetle.

mod endpoint;
mod fabric;
mod fault_plan;
mod nodes;
mod reconnect;
mod timeouts;

pub use crate::sim::fault_plan::{Fault, FaultPlan, RankSet, Trigger};

use crate::sim::endpoint::HostProcess;
use crate::sim::reconnect::SimReconnect;
use crate::{Fabric, Geometry, Reconnect};
use nodes::{INITIAL_FABRIC, Network};
use std::sync::Arc;
use std::time::Duration;

/// A view of the network from outside.
#[derive(Clone)]
pub struct Observer(Arc<Network>);

impl Observer {
    /// Returns a digest of all deliveries, in their order and with their times.
    pub fn trace(&self) -> u64 {
        self.0.lock().trace()
    }

    /// Returns the number of deliveries.
    pub fn delivered(&self) -> u64 {
        self.0.lock().delivered()
    }

    /// Returns the virtual time.
    pub fn now(&self) -> Duration {
        self.0.lock().now()
    }

    /// Returns the time at which a rank of the first fabric died, if it has.
    pub fn died_at(&self, rank: usize) -> Option<Duration> {
        self.0.lock().died_at(rank)
    }

    /// Returns the ranks that met at a place with a label, as their numbers in the first fabric.
    pub fn members(&self, place: &str, label: &[u8]) -> Option<Vec<usize>> {
        self.0.members(place, label)
    }
}

/// The access of one rank to the network, which is its endpoint in the first fabric and its means
/// to reconnect.
pub type Node = (Fabric, Arc<dyn Reconnect>);

/// Returns the fabrics of `ranks` ranks, by rank. Time stands still until each is in use or
/// dropped.
pub fn fabrics(ranks: usize, geometry: Geometry, fault_plan: FaultPlan) -> Vec<Fabric> {
    observed_fabrics(ranks, geometry, fault_plan).0
}

/// Returns fabrics like [`fabrics`], and an observer.
pub fn observed_fabrics(ranks: usize, geometry: Geometry, fault_plan: FaultPlan) -> (Vec<Fabric>, Observer) {
    let (places, observer) = world(ranks, geometry, fault_plan);
    (places.into_iter().map(|(fabric, _)| fabric).collect(), observer)
}

/// Returns fabrics like [`observed_fabrics`], and for each rank its means to reconnect. Time stands
/// still until every rank waits or has dropped all its parts. Those are its fabric, its means to
/// reconnect, and the fabrics made by it.
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
