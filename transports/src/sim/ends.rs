//! What a rank holds of the simulated network.

use super::world::Network;
use crate::{Control, Error, Event, Head, Link, Pace, Result, Tag};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use unisono_cuda::{Source, Store, Target, copy_to};

/// A link to one peer.
pub(super) struct SimLink {
    network: Arc<Network>,
    rank: usize,
    peer: usize,
    /// The message in hand on each lane.
    front: HashMap<usize, (Head, Vec<u8>)>,
}

impl SimLink {
    pub(super) fn new(network: &Arc<Network>, rank: usize, peer: usize) -> Self {
        Self { network: Arc::clone(network), rank, peer, front: HashMap::new() }
    }
}

impl Link for SimLink {
    fn try_send<'a>(
        &mut self,
        lane: usize,
        tag: &Tag,
        bytes: usize,
        parts: &mut dyn Iterator<Item = Source<'a>>,
    ) -> Result<bool> {
        let mut world = self.network.lock();
        world.alive(self.rank)?;
        if !world.has_room(self.rank, self.peer, lane) {
            return Ok(false);
        }
        let mut body = vec![0; bytes];
        let mut rest = &mut body[..];
        for part in parts {
            let Some((place, behind)) = rest.split_at_mut_checked(part.len()) else {
                return Err(Error::Misuse(format!(
                    "the parts of a message are longer than its {bytes} bytes"
                )));
            };
            copy_to(Store::Cached, Target::from(place), part);
            rest = behind;
        }
        if !rest.is_empty() {
            return Err(Error::Misuse(format!("the parts of a message are shorter than its {bytes} bytes")));
        }
        world.send(self.rank, self.peer, lane, Head { tag: *tag, bytes }, body);
        Ok(true)
    }

    fn head(&mut self, lane: usize) -> Result<Option<Head>> {
        let mut world = self.network.lock();
        world.alive(self.rank)?;
        if let Some((head, _)) = self.front.get(&lane) {
            return Ok(Some(*head));
        }
        let Some((head, body)) = world.receive(self.peer, self.rank, lane) else {
            return Ok(None);
        };
        self.front.insert(lane, (head, body));
        Ok(Some(head))
    }

    fn body(&mut self, lane: usize) -> Result<Option<Source<'_>>> {
        self.head(lane)?;
        Ok(self.front.get(&lane).map(|(_, body)| Source::from(&body[..])))
    }

    fn release(&mut self, lane: usize) {
        if self.front.remove(&lane).is_some() {
            self.network.lock().give_back(self.peer, self.rank, lane);
        }
    }

    fn take(&mut self, lane: usize, target: Target<'_>) -> Result<bool> {
        let Some(body) = self.body(lane)? else {
            return Ok(false);
        };
        copy_to(Store::Cached, target, body);
        self.release(lane);
        Ok(true)
    }

    fn progress(&mut self) -> Result<()> {
        self.network.lock().alive(self.rank)
    }
}

/// The control path of one rank.
pub(super) struct SimControl {
    network: Arc<Network>,
    rank: usize,
}

impl SimControl {
    pub(super) fn new(network: &Arc<Network>, rank: usize) -> Self {
        Self { network: Arc::clone(network), rank }
    }
}

impl Control for SimControl {
    fn post(&mut self, note: &[u8]) {
        self.network.lock().post(self.rank, note);
    }

    fn poll(&mut self) -> Option<Event> {
        self.network.lock().next_event(self.rank)
    }
}

/// The clock of one rank, and its life: the rank is gone when this is dropped, the last part of a mesh.
pub(super) struct SimPace {
    network: Arc<Network>,
    rank: usize,
}

impl SimPace {
    pub(super) fn new(network: &Arc<Network>, rank: usize) -> Self {
        Self { network: Arc::clone(network), rank }
    }
}

impl Pace for SimPace {
    fn now(&self) -> Duration {
        self.network.lock().now()
    }

    fn pause(&mut self, rounds: u32) {
        if rounds > 0 {
            self.network.wait(self.rank, (PAUSE_PER_ROUND * rounds).min(PAUSE_MAX));
        }
    }
}

impl Drop for SimPace {
    fn drop(&mut self) {
        self.network.leave(self.rank);
    }
}

/// An arrival ends a pause early, so long ones only save turns.
const PAUSE_PER_ROUND: Duration = Duration::from_micros(1);
const PAUSE_MAX: Duration = Duration::from_millis(5);
