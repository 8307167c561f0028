//! Regroup on the simulated network, for ranks that go on in another fabric.
//!
//! The model keeps the essential behavior of a regroup over sockets, without the sockets. All ranks
//! connect to the first of them, the root, which makes sure that each reaches each. Then the root
//! confirms to one rank after another, and may die or be cut off between two confirmations. A rank
//! that hears nothing gives up, and its end is reported to those that were confirmed.

use crate::rng::mix;
use crate::sim::endpoint::HostProcess;
use crate::sim::fabric::{FabricState, Stream};
use crate::sim::nodes::{Network, NetworkState, Packet, Route};
use crate::{Error, Fabric, Reconnect, RegroupRequest, Result};
use std::sync::Arc;
use std::time::Duration;

/// State of one regroup. Its key is that of the fabric that it makes.
pub(super) struct Regroup {
    /// The host of each rank, or `None` before it has started to join.
    hosts: Vec<Option<usize>>,
    /// True for each rank that has arrived at the root.
    arrived: Vec<bool>,
    /// True if a rank has given up before all had arrived.
    failed: bool,
}

/// Means of one host to regroup with others over the simulated network.
pub(super) struct SimReconnect {
    process: Arc<HostProcess>,
}

impl SimReconnect {
    pub(super) fn new(process: &Arc<HostProcess>) -> Self {
        Self { process: Arc::clone(process) }
    }
}

impl Reconnect for SimReconnect {
    fn endpoint(&self) -> Result<String> {
        let HostProcess { network, host } = &*self.process;
        let mut world = network.lock();
        world.check_alive(*host)?;
        Ok(format!("host {host}, {}", world.next_endpoint(*host)))
    }

    fn connect(&self, request: RegroupRequest<'_>, patience: Duration) -> Result<Fabric> {
        let HostProcess { network, host } = &*self.process;
        let (key, rank) = (fabric_key(request.endpoint, request.group_id), request.rank);
        let mut world = network.lock();
        let deadline = world.now() + patience;
        world.start_join(key, &request, *host);
        loop {
            world.check_alive(*host)?;
            if world.fabrics.get(&key).is_some_and(|group| group.endpoints[rank].joined) {
                // The next call takes the lock itself.
                drop(world);
                return Ok(crate::sim::endpoint::fabric(&self.process, key, rank));
            }
            let left = deadline.saturating_sub(world.now());
            if left.is_zero() {
                world.abandon_join(key, rank);
                let what = format!("{} ranks did not all meet at {}", request.ranks, request.endpoint);
                return Err(Error::Timeout { what });
            }
            drop(world);
            network.wait(*host, left);
            world = network.lock();
        }
    }
}

/// Returns the key that ranks of the same regroup have in common.
pub(super) fn fabric_key(place: &str, label: &[u8]) -> u64 {
    let words = place.bytes().chain([0]).chain(label.iter().copied());
    words.fold(JOIN, |digest, byte| mix(digest, u64::from(byte)))
}

impl NetworkState {
    /// Sends `host` on its way to the root.
    fn start_join(&mut self, key: u64, request: &RegroupRequest<'_>, host: usize) {
        let RegroupRequest { rank, ranks, .. } = *request;
        let meeting = self.regroups.entry(key).or_insert_with(|| Regroup {
            hosts: vec![None; ranks],
            arrived: vec![false; ranks],
            failed: false,
        });
        meeting.hosts[rank] = Some(host);
        if rank == 0 {
            // Ranks that came before there was a root have retried until now.
            (0..ranks).for_each(|early| self.send_join(key, early));
        } else {
            self.send_join(key, rank);
        }
    }

    fn send_join(&mut self, key: u64, rank: usize) {
        let hosts = &self.regroups[&key].hosts;
        if let (Some(host), Some(root)) = (hosts[rank], hosts[0]) {
            let way = Route { kind: JOIN, fabric: key, from: rank, to: 0, lane: 0, hosts: (host, root) };
            self.enqueue(Stream::default(), way, Packet::Join);
        }
    }

    /// Records the arrival of `rank` at the root. Once all have arrived, the root makes their
    /// fabric.
    pub(super) fn on_join(&mut self, key: u64, rank: usize) -> bool {
        let meeting = self.regroups.get_mut(&key).expect("somebody set out for it");
        meeting.arrived[rank] = true;
        let arrived_hosts: Option<Vec<usize>> = meeting.hosts.iter().copied().collect();
        let Some(hosts) = arrived_hosts.filter(|_| !meeting.failed && !meeting.arrived.contains(&false))
        else {
            return false;
        };
        let reaches =
            |host: &usize| hosts.iter().all(|&other| other == *host || !self.is_partitioned(*host, other));
        if self.is_dead(hosts[0]) || self.fabrics.contains_key(&key) || !hosts.iter().all(reaches) {
            return false;
        }
        let ranks = hosts.len();
        // A host that died before this fabric existed has not announced its death there.
        let dead: Vec<usize> = (0..ranks).filter(|&rank| self.is_known_dead(hosts[rank])).collect();
        self.fabrics.insert(key, FabricState::new(&self.geometry, hosts));
        self.schedule_keepalives(key);
        dead.into_iter().for_each(|rank| self.announce_exit(key, rank));
        self.schedule_confirm(key, 0);
        false
    }

    /// Sends the root's confirmation to `rank`, and then schedules the next one.
    pub(super) fn on_confirm_timer(&mut self, key: u64, rank: usize) -> bool {
        let hosts = self.fabric(key).hosts.clone();
        if !self.is_dead(hosts[0]) {
            let way = Route {
                kind: CONFIRM,
                fabric: key,
                from: 0,
                to: rank,
                lane: 0,
                hosts: (hosts[0], hosts[rank]),
            };
            self.enqueue(Stream::default(), way, Packet::Confirm);
            if rank + 1 < hosts.len() {
                self.schedule_confirm(key, rank + 1);
            }
        }
        false
    }

    fn schedule_confirm(&mut self, key: u64, rank: usize) {
        let root = self.fabric(key).hosts[0];
        let way = Route { kind: CONFIRM_TIMER, fabric: key, from: 0, to: rank, lane: 0, hosts: (root, root) };
        self.enqueue(Stream::default(), way, Packet::ConfirmTimer);
    }

    fn abandon_join(&mut self, key: u64, rank: usize) {
        match self.fabrics.contains_key(&key) {
            // Once the fabric exists, other ranks may hold it, and learn from it that this one has
            // left.
            true => self.close(key, rank),
            false => self.regroups.get_mut(&key).expect("this rank set out for it").failed = true,
        }
    }
}

impl FabricState {
    /// Records the root's confirmation that all ranks have joined.
    pub(super) fn on_confirm(&mut self, rank: usize) -> bool {
        self.endpoints[rank].joined = true;
        true
    }
}

impl Network {
    /// Returns the hosts of the fabric that a regroup made, by rank.
    pub(super) fn members(&self, place: &str, label: &[u8]) -> Option<Vec<usize>> {
        self.lock().fabrics.get(&fabric_key(place, label)).map(|group| group.hosts.clone())
    }
}

const JOIN: u64 = 4;
const CONFIRM_TIMER: u64 = 5;
const CONFIRM: u64 = 6;
