//! The parts of the simulated network that a rank holds.

use crate::sim::nodes::{Direction, Network};
use crate::{
    ControlChannel, Error, Fabric, Header, Link, ListenerGuard, PeerEvent, Result, Tag, WaitStrategy,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use unisono_reducers::{Source, Store, Target, copy_to};

/// Lifetime of one host. It ends when the last part of it that can wait is dropped.
pub(super) struct HostProcess {
    pub(super) network: Arc<Network>,
    pub(super) host: usize,
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        self.network.leave(self.host);
    }
}

/// Returns the fabric with this key, as `rank` of it holds it.
pub(super) fn fabric(process: &Arc<HostProcess>, key: u64, rank: usize) -> Fabric {
    let mut world = process.network.lock();
    let (geometry, ranks) = (world.geometry, world.fabric(key).hosts.len());
    drop(world);
    let seat = |process: &Arc<HostProcess>| Endpoint { host_process: Arc::clone(process), key, rank };
    let link = |peer| -> Box<dyn Link> {
        Box::new(SimLink { endpoint: seat(process), peer, current: HashMap::new() })
    };
    Fabric {
        rank,
        ranks,
        geometry,
        links: (0..ranks).map(|peer| (peer != rank).then(|| link(peer))).collect(),
        window: None,
        control: Box::new(SimControlChannel {
            endpoint: seat(process),
            listener_guard: Arc::new(SimListenerGuard(seat(process))),
        }),
        wait: Box::new(SimWait { process: Arc::clone(process), last_rounds: 0, calls: 0 }),
        transport: "sim",
        oversubscribed: false,
    }
}

/// Place of an object: its host, its fabric and its rank there.
struct Endpoint {
    host_process: Arc<HostProcess>,
    key: u64,
    rank: usize,
}

/// A link to one peer.
struct SimLink {
    endpoint: Endpoint,
    peer: usize,
    /// The received message on each lane that is not yet released.
    current: HashMap<usize, (Header, Vec<u8>)>,
}

impl Link for SimLink {
    fn try_send<'a>(
        &mut self,
        lane: usize,
        tag: &Tag,
        bytes: usize,
        parts: &mut dyn Iterator<Item = Source<'a>>,
    ) -> Result<bool> {
        let Endpoint { host_process: process, key, rank } = &self.endpoint;
        let mut world = process.network.lock();
        world.check_alive(process.host)?;
        if !world.has_credit(*key, *rank, self.peer, lane) {
            return Ok(false);
        }
        let mut body = vec![0; bytes];
        let mut remaining = &mut body[..];
        for part in parts {
            let Some((place, tail)) = remaining.split_at_mut_checked(part.len()) else {
                return Err(Error::InvalidUsage(format!(
                    "the parts of a message are longer than its {bytes} bytes"
                )));
            };
            copy_to(Store::Cached, Target::from(place), part);
            remaining = tail;
        }
        if !remaining.is_empty() {
            return Err(Error::InvalidUsage(format!(
                "the parts of a message are shorter than its {bytes} bytes"
            )));
        }
        let direction = Direction { from: *rank, to: self.peer };
        world.send(*key, direction, lane, Header { tag: *tag, bytes }, body);
        Ok(true)
    }

    fn header(&mut self, lane: usize) -> Result<Option<Header>> {
        let Endpoint { host_process: process, key, rank } = &self.endpoint;
        let mut world = process.network.lock();
        world.check_alive(process.host)?;
        if let Some((head, _)) = self.current.get(&lane) {
            return Ok(Some(*head));
        }
        let Some((head, body)) = world.receive(*key, self.peer, *rank, lane) else {
            return Ok(None);
        };
        // The message leaves the queue here, but its credit returns only with its release.
        self.current.insert(lane, (head, body));
        Ok(Some(head))
    }

    fn body(&mut self, lane: usize) -> Result<Option<Source<'_>>> {
        self.header(lane)?;
        Ok(self.current.get(&lane).map(|(_, body)| Source::from(&body[..])))
    }

    fn release(&mut self, lane: usize) {
        if self.current.remove(&lane).is_some() {
            let Endpoint { host_process: process, key, rank } = &self.endpoint;
            process.network.lock().return_credit(*key, self.peer, *rank, lane);
        }
    }

    fn recv_into(&mut self, lane: usize, target: Target<'_>) -> Result<bool> {
        let Some(body) = self.body(lane)? else {
            return Ok(false);
        };
        copy_to(Store::Cached, target, body);
        self.release(lane);
        Ok(true)
    }

    fn progress(&mut self) -> Result<()> {
        let HostProcess { network, host } = &*self.endpoint.host_process;
        network.lock().check_alive(*host)
    }
}

/// The control channel of one rank.
struct SimControlChannel {
    endpoint: Endpoint,
    listener_guard: Arc<SimListenerGuard>,
}

/// The open listener of one rank, which closes when this is dropped.
struct SimListenerGuard(Endpoint);

impl Drop for SimListenerGuard {
    fn drop(&mut self) {
        let Endpoint { host_process: process, key, rank } = &self.0;
        process.network.lock().close_listener(*key, *rank);
    }
}

impl ControlChannel for SimControlChannel {
    fn post(&mut self, note: &[u8]) {
        let Endpoint { host_process: process, key, rank } = &self.endpoint;
        process.network.lock().post(*key, *rank, note);
    }

    fn poll(&mut self) -> Option<PeerEvent> {
        let Endpoint { host_process: process, key, rank } = &self.endpoint;
        process.network.lock().next_event(*key, *rank)
    }

    fn listener_guard(&self) -> Option<ListenerGuard> {
        Some(self.listener_guard.clone())
    }
}

impl Drop for SimControlChannel {
    fn drop(&mut self) {
        let Endpoint { host_process: process, key, rank } = &self.endpoint;
        process.network.lock().close(*key, *rank);
    }
}

/// The clock and the wait strategy of one rank.
///
/// A switch between threads costs more than a look at all lanes, and every arrival ends a pause. So
/// the first pauses of a wait are long. In later pauses most engines only poll, so few of those
/// take any time.
struct SimWait {
    process: Arc<HostProcess>,
    /// Rounds at the last call.
    last_rounds: u32,
    /// Calls in this wait.
    calls: u32,
}

impl WaitStrategy for SimWait {
    fn now(&self) -> Duration {
        let HostProcess { network, host } = &*self.process;
        network.lock().host_clock(*host)
    }

    fn is_simulated(&self) -> bool {
        true
    }

    fn pause(&mut self, rounds: u32) {
        if rounds <= self.last_rounds {
            self.calls = 0;
        }
        (self.last_rounds, self.calls) = (rounds, self.calls + 1);
        let HostProcess { network, host } = &*self.process;
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
