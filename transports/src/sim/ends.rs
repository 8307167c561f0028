//! What a rank holds of the simulated network.

use super::world::Network;
use crate::{Control, Door, Error, Event, Head, Link, Mesh, Pace, Result, Tag};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use unisono_cuda::{Source, Store, Target, copy_to};

/// The life of one host: it is over when the last part of it that can wait is dropped.
pub(super) struct Process {
    pub(super) network: Arc<Network>,
    pub(super) host: usize,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.network.leave(self.host);
    }
}

/// The mesh with this key, as `rank` of it holds it.
pub(super) fn mesh(process: &Arc<Process>, key: u64, rank: usize) -> Mesh {
    let mut world = process.network.lock();
    let (geometry, ranks) = (world.geometry, world.group(key).hosts.len());
    drop(world);
    let seat = |process: &Arc<Process>| Seat { process: Arc::clone(process), key, rank };
    let link =
        |peer| -> Box<dyn Link> { Box::new(SimLink { seat: seat(process), peer, front: HashMap::new() }) };
    Mesh {
        rank,
        ranks,
        geometry,
        links: (0..ranks).map(|peer| (peer != rank).then(|| link(peer))).collect(),
        window: None,
        control: Box::new(SimControl { seat: seat(process), door: Arc::new(SimDoor(seat(process))) }),
        pace: Box::new(SimPace { process: Arc::clone(process), last: 0, calls: 0 }),
        transport: "sim",
        crowded: false,
    }
}

/// Whose part of which mesh something is.
struct Seat {
    process: Arc<Process>,
    key: u64,
    rank: usize,
}

/// A link to one peer.
struct SimLink {
    seat: Seat,
    peer: usize,
    /// The message in hand on each lane.
    front: HashMap<usize, (Head, Vec<u8>)>,
}

impl Link for SimLink {
    fn try_send<'a>(
        &mut self,
        lane: usize,
        tag: &Tag,
        bytes: usize,
        parts: &mut dyn Iterator<Item = Source<'a>>,
    ) -> Result<bool> {
        let Seat { process, key, rank } = &self.seat;
        let mut world = process.network.lock();
        world.alive(process.host)?;
        if !world.has_room(*key, *rank, self.peer, lane) {
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
        world.send(*key, (*rank, self.peer), lane, Head { tag: *tag, bytes }, body);
        Ok(true)
    }

    fn head(&mut self, lane: usize) -> Result<Option<Head>> {
        let Seat { process, key, rank } = &self.seat;
        let mut world = process.network.lock();
        world.alive(process.host)?;
        if let Some((head, _)) = self.front.get(&lane) {
            return Ok(Some(*head));
        }
        let Some((head, body)) = world.receive(*key, self.peer, *rank, lane) else {
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
            let Seat { process, key, rank } = &self.seat;
            process.network.lock().give_back(*key, self.peer, *rank, lane);
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
        let Process { network, host } = &*self.seat.process;
        network.lock().alive(*host)
    }
}

/// The control path of one rank.
struct SimControl {
    seat: Seat,
    door: Arc<SimDoor>,
}

/// The door of one rank, open as long as this is there.
struct SimDoor(Seat);

impl Drop for SimDoor {
    fn drop(&mut self) {
        let Seat { process, key, rank } = &self.0;
        process.network.lock().shut(*key, *rank);
    }
}

impl Control for SimControl {
    fn post(&mut self, note: &[u8]) {
        let Seat { process, key, rank } = &self.seat;
        process.network.lock().post(*key, *rank, note);
    }

    fn poll(&mut self) -> Option<Event> {
        let Seat { process, key, rank } = &self.seat;
        process.network.lock().next_event(*key, *rank)
    }

    fn door(&self) -> Option<Door> {
        Some(self.door.clone())
    }
}

impl Drop for SimControl {
    fn drop(&mut self) {
        let Seat { process, key, rank } = &self.seat;
        process.network.lock().close(*key, *rank);
    }
}

/// The clock of one rank, and how it waits.
///
/// A hand-over between threads costs more than a look at all lanes, and
/// whatever arrives ends a pause. So the first pauses of a wait are long, and
/// of the later ones, in which most engines only look around, few take any time.
struct SimPace {
    process: Arc<Process>,
    /// Rounds at the last call.
    last: u32,
    /// Calls in this wait.
    calls: u32,
}

impl Pace for SimPace {
    fn now(&self) -> Duration {
        let Process { network, host } = &*self.process;
        network.lock().clock_of(*host)
    }

    fn pause(&mut self, rounds: u32) {
        if rounds <= self.last {
            self.calls = 0;
        }
        (self.last, self.calls) = (rounds, self.calls + 1);
        let Process { network, host } = &*self.process;
        if rounds > 0 && self.calls <= PAUSES_FIRST {
            network.wait(*host, PAUSE_FIRST * self.calls);
        } else if self.calls.is_multiple_of(CALLS_PER_PAUSE) {
            network.wait(*host, (PAUSE_LATER * (self.calls / CALLS_PER_PAUSE)).min(PAUSE_MAX));
        }
    }
}

const PAUSES_FIRST: u32 = 4;
const PAUSE_FIRST: Duration = Duration::from_micros(100);
const CALLS_PER_PAUSE: u32 = 64;
const PAUSE_LATER: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(100);
