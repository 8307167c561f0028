//! Two ranks with links of adjustable speed.

use std::time::{Duration, Instant};
use unisono::{Communicator, Config};
use unisono_transports::{Fabric, WaitStrategy, threads};

/// Sleeps while waiting, so that cores are free for computation.
struct SleepWait(Instant);

impl WaitStrategy for SleepWait {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn pause(&mut self, rounds: u32) {
        if rounds > 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Creates two ranks whose messages take `seconds` plus `seconds_per_byte` per byte, without shared
/// memory.
pub fn groups(seconds: f64, seconds_per_byte: f64, config: &Config) -> unisono::Result<Vec<Communicator>> {
    let geometry = config.geometry();
    let slow = |link| super::slow_link::slow_link(link, geometry.lanes, seconds, seconds_per_byte);
    let throttled = |mesh: Fabric| Fabric {
        links: mesh.links.into_iter().map(|link| link.map(slow)).collect(),
        window: None,
        wait: Box::new(SleepWait(Instant::now())),
        ..mesh
    };
    let meshes = threads::fabrics(2, geometry)?.into_iter().map(throttled);
    meshes.map(|mesh| Communicator::builder().config(config).from_fabric(mesh)).collect()
}
