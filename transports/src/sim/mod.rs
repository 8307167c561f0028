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
mod world;

use crate::{Geometry, Mesh};
use ends::{SimControl, SimLink, SimPace};
use std::sync::Arc;
use std::time::Duration;
use world::Network;

/// What the network does to its users.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Decides every delay.
    pub seed: u64,
    /// Shortest time on the way; never less than a nanosecond.
    pub delay_min: Duration,
    /// Longest time on the way. Messages of different lanes overtake each other, those of one never.
    pub delay_max: Duration,
    /// A rank that does nothing for a while.
    pub stall: Option<Stall>,
    /// A rank that dies.
    pub death: Option<Death>,
}

/// A rank that does nothing for a while.
#[derive(Clone, Copy, Debug)]
pub struct Stall {
    /// Which one.
    pub rank: usize,
    /// Since when: its first wait from then on lasts until the end of the stall.
    pub from: Duration,
    /// For how long.
    pub lasts: Duration,
}

/// The death of a rank.
#[derive(Clone, Copy, Debug)]
pub struct Death {
    /// Which one.
    pub rank: usize,
    /// When.
    pub at: Duration,
}

impl Weather {
    /// Delays between 1 and 50 µs, nothing worse.
    pub fn fair(seed: u64) -> Self {
        let (delay_min, delay_max) = (Duration::from_micros(1), Duration::from_micros(50));
        Self { seed, delay_min, delay_max, stall: None, death: None }
    }
}

/// A look at the network from outside.
pub struct Observer(Arc<Network>);

impl Observer {
    /// A digest of all that was delivered, in its order and with its times.
    pub fn trace(&self) -> u64 {
        self.0.lock().trace()
    }

    /// The virtual time.
    pub fn now(&self) -> Duration {
        self.0.lock().now()
    }
}

/// The meshes of `ranks` ranks, by rank. Until each is in use or dropped, time stands still.
pub fn mesh(ranks: usize, geometry: Geometry, weather: Weather) -> Vec<Mesh> {
    observed(ranks, geometry, weather).0
}

/// As [`mesh`], and somebody who watches.
pub fn observed(ranks: usize, geometry: Geometry, weather: Weather) -> (Vec<Mesh>, Observer) {
    let network = Arc::new(Network::new(ranks, geometry, weather));
    let link = |rank, peer| -> Box<dyn crate::Link> { Box::new(SimLink::new(&network, rank, peer)) };
    let mesh = |rank| Mesh {
        rank,
        ranks,
        geometry,
        links: (0..ranks).map(|peer| (peer != rank).then(|| link(rank, peer))).collect(),
        window: None,
        control: Box::new(SimControl::new(&network, rank)),
        pace: Box::new(SimPace::new(&network, rank)),
        transport: "sim",
    };
    ((0..ranks).map(mesh).collect(), Observer(Arc::clone(&network)))
}

#[cfg(test)]
mod tests;
