//! A network with bad weather, in virtual time: the same seed gives the same run.
//!
//! Ranks are threads of one process. The clock moves only when every living
//! rank is waiting, to the next moment at which something happens, and
//! everything that passes between ranks (messages, room for more of them,
//! notes, news of deaths) takes a time that is a hash of the seed and of what
//! passes. So nothing a rank can see depends on how its thread was scheduled,
//! and a failing run is replayed by its seed. After the packet simulator of
//! TigerBeetle.

mod ends;
mod group;
mod meeting;
mod random;
mod silence;
mod weather;
mod world;

pub use random::Random;
pub use weather::{Fault, Moment, Ranks, Weather};

use crate::{Geometry, Mesh, Venue};
use ends::Process;
use meeting::SimVenue;
use std::sync::Arc;
use std::time::Duration;
use world::{FIRST, Network};

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

    /// When a rank of the first mesh died, if it has.
    pub fn died(&self, rank: usize) -> Option<Duration> {
        self.0.lock().died(rank)
    }

    /// Who met at a place, under a label, by the numbers that they had in the first mesh.
    pub fn members(&self, place: &str, label: &[u8]) -> Option<Vec<usize>> {
        self.0.members(place, label)
    }
}

/// What one rank gets of the network: its part of the first mesh, and where it meets others anew.
pub type Place = (Mesh, Arc<dyn Venue>);

/// The meshes of `ranks` ranks, by rank. Until each is in use or dropped, time stands still.
pub fn mesh(ranks: usize, geometry: Geometry, weather: Weather) -> Vec<Mesh> {
    observed(ranks, geometry, weather).0
}

/// As [`mesh`], and somebody who watches.
pub fn observed(ranks: usize, geometry: Geometry, weather: Weather) -> (Vec<Mesh>, Observer) {
    let (places, observer) = world(ranks, geometry, weather);
    (places.into_iter().map(|(mesh, _)| mesh).collect(), observer)
}

/// As [`observed`], and for each rank where it meets others anew. Time stands still until a rank waits, or has
/// dropped its mesh, its venue, and what was met there.
pub fn world(ranks: usize, geometry: Geometry, weather: Weather) -> (Vec<Place>, Observer) {
    let network = Arc::new(Network::new(ranks, geometry, weather));
    let place = |host| -> Place {
        let process = Arc::new(Process { network: Arc::clone(&network), host });
        (ends::mesh(&process, FIRST, host), Arc::new(SimVenue::new(&process)))
    };
    ((0..ranks).map(place).collect(), Observer(Arc::clone(&network)))
}

#[cfg(test)]
mod tests;
