//! Links with adjustable speed.

use std::time::{Duration, Instant};
use unisono::{Communicator, Config};
use unisono_transports::{Fabric, Header, Link, Result as Sent, Tag, WaitStrategy, threads};

/// Link whose messages take time. The wire carries one message at a time, for all lanes.
struct SlowLink {
    link: Box<dyn Link>,
    seconds: f64,
    seconds_per_byte: f64,
    /// Time when the wire becomes free.
    free: Instant,
    /// Time when each lane's message has arrived.
    due: Vec<Option<Instant>>,
}

impl Link for SlowLink {
    fn try_send<'a>(
        &mut self,
        lane: usize,
        tag: &Tag,
        bytes: usize,
        parts: &mut dyn Iterator<Item = unisono_cuda::Source<'a>>,
    ) -> Sent<bool> {
        let now = Instant::now();
        if self.due[lane].is_none() {
            let takes = self.seconds + bytes as f64 * self.seconds_per_byte;
            self.free = self.free.max(now) + Duration::from_secs_f64(takes);
            self.due[lane] = Some(self.free);
        }
        if self.due[lane] > Some(now) || !self.link.try_send(lane, tag, bytes, parts)? {
            return Ok(false);
        }
        self.due[lane] = None;
        Ok(true)
    }

    fn header(&mut self, lane: usize) -> Sent<Option<Header>> {
        self.link.header(lane)
    }

    fn body(&mut self, lane: usize) -> Sent<Option<unisono_cuda::Source<'_>>> {
        self.link.body(lane)
    }

    fn release(&mut self, lane: usize) {
        self.link.release(lane);
    }

    fn recv_into(&mut self, lane: usize, target: unisono_cuda::Target<'_>) -> Sent<bool> {
        self.link.recv_into(lane, target)
    }

    fn progress(&mut self) -> Sent<()> {
        self.link.progress()
    }
}

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
pub(crate) fn groups(
    seconds: f64,
    seconds_per_byte: f64,
    config: &Config,
) -> unisono::Result<Vec<Communicator>> {
    let geometry = config.geometry();
    let slow = |link| {
        let due = vec![None; geometry.lanes];
        Box::new(SlowLink { link, seconds, seconds_per_byte, free: Instant::now(), due }) as Box<dyn Link>
    };
    let throttled = |mesh: Fabric| Fabric {
        links: mesh.links.into_iter().map(|link| link.map(slow)).collect(),
        window: None,
        wait: Box::new(SleepWait(Instant::now())),
        ..mesh
    };
    let meshes = threads::fabrics(2, geometry)?.into_iter().map(throttled);
    meshes.map(|mesh| Communicator::builder().config(config).from_fabric(mesh)).collect()
}
