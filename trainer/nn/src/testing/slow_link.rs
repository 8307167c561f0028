//! Links with adjustable speed.

use std::time::{Duration, Instant};
use unisono_transports::{Header, Link, Result, Tag};

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
        parts: &mut dyn Iterator<Item = unisono_reducers::Source<'a>>,
    ) -> Result<bool> {
        let now = Instant::now();
        // A refused message keeps its time of arrival, so that repeated calls do not delay it.
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

    fn header(&mut self, lane: usize) -> Result<Option<Header>> {
        self.link.header(lane)
    }

    fn body(&mut self, lane: usize) -> Result<Option<unisono_reducers::Source<'_>>> {
        self.link.body(lane)
    }

    fn release(&mut self, lane: usize) {
        self.link.release(lane);
    }

    fn recv_into(&mut self, lane: usize, target: unisono_reducers::Target<'_>) -> Result<bool> {
        self.link.recv_into(lane, target)
    }

    fn progress(&mut self) -> Result<()> {
        self.link.progress()
    }
}

/// Returns a link whose messages take `seconds` plus `seconds_per_byte` per byte.
pub fn slow_link(link: Box<dyn Link>, lanes: usize, seconds: f64, seconds_per_byte: f64) -> Box<dyn Link> {
    Box::new(SlowLink { link, seconds, seconds_per_byte, free: Instant::now(), due: vec![None; lanes] })
}
