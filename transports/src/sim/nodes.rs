//! The state of the simulated network, and the progress of its time.

use crate::rng::mix;
use crate::sim::fabric::{FabricState, Stream};
use crate::sim::fault_plan::{Fault, FaultPlan, Trigger};
use crate::sim::reconnect::Regroup;
use crate::{Error, Geometry, Header, PeerEvent, Result};
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// State that all hosts share.
pub(super) struct Network {
    state: Mutex<NetworkState>,
    /// One condition variable for each host.
    condvars: Vec<Condvar>,
}

/// The state of the network.
pub(super) struct NetworkState {
    pub(super) geometry: Geometry,
    pub(super) fault_plan: FaultPlan,
    /// Nanoseconds since the start.
    now: u64,
    hosts: Vec<Host>,
    /// Fabrics, by the key of the regroup that made them. The first fabric has the key
    /// [`INITIAL_FABRIC`].
    pub(super) fabrics: BTreeMap<u64, FabricState>,
    pub(super) regroups: BTreeMap<u64, Regroup>,
    /// All packets in flight, in the order in which they will arrive.
    pub(super) in_flight: BTreeMap<Arrival, Packet>,
    delivered: u64,
    trace: u64,
}

/// The host of a rank of the first fabric, regardless of its number in later ones.
#[derive(Default)]
struct Host {
    /// Time at which its wait ends, while it waits.
    wake_at: Option<u64>,
    /// True if nobody will use the host again.
    exited: bool,
    /// Time of its death, and true if the death is announced.
    died_at: Option<u64>,
    death_announced: bool,
    /// Number of times that it has read the clock since.
    clock_reads: u32,
    /// Number of places to regroup that it has named.
    endpoints: u32,
}

/// Arrival of a packet. No two packets have the same position in the order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Arrival {
    pub(super) time: u64,
    pub(super) route: Route,
    pub(super) index: u64,
}

/// A lane, by the ranks of its ends in their fabric, and the hosts of these ranks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Route {
    pub(super) kind: u64,
    pub(super) fabric: u64,
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) lane: usize,
    pub(super) hosts: (usize, usize),
}

pub(super) enum Packet {
    Message(Header, Vec<u8>),
    Credit,
    Event(PeerEvent),
    Death {
        announced: bool,
    },
    /// A rank joins a regroup.
    Join,
    /// Timer of the root of a regroup to confirm to the next rank.
    ConfirmTimer,
    /// The root's confirmation that all ranks have joined.
    Confirm,
    /// Timer of a kernel to check how long nothing was answered.
    KeepaliveTimer,
    /// Data on a connection that only its sender knows of, and the answer.
    StaleData,
    Reset,
    /// A liveness probe of a rank, and the result that its answer or its absence shows.
    Probe,
    ProbeResult {
        ended: bool,
    },
}

/// The ranks of a fabric between which something passes.
#[derive(Clone, Copy)]
pub(super) struct Direction {
    pub(super) from: usize,
    pub(super) to: usize,
}

impl Route {
    /// Returns the route of an event that concerns two ranks and happens on one host.
    pub(super) fn local(kind: u64, group: u64, direction: Direction, host: usize) -> Self {
        let Direction { from, to } = direction;
        Self { kind, fabric: group, from, to, lane: 0, hosts: (host, host) }
    }
}

impl Network {
    pub(super) fn new(hosts: usize, geometry: Geometry, fault_plan: FaultPlan) -> Self {
        let mut world = NetworkState {
            geometry,
            fault_plan,
            now: 0,
            hosts: (0..hosts).map(|_| Host::default()).collect(),
            fabrics: BTreeMap::from([(INITIAL_FABRIC, FabricState::new(&geometry, (0..hosts).collect()))]),
            regroups: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            delivered: 0,
            trace: 0,
        };
        world.schedule_deaths();
        world.schedule_keepalives(INITIAL_FABRIC);
        Self { state: Mutex::new(world), condvars: (0..hosts).map(|_| Condvar::new()).collect() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, NetworkState> {
        // A rank that panicked did so outside: no call in here leaves the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets `host` wait for `time`, or until something arrives for it. One thread of a host waits
    /// at a time.
    pub(super) fn wait(&self, host: usize, time: Duration) {
        let mut world = self.lock();
        // A dead host does not wait, so that its thread comes to the call that reports the death.
        if world.hosts[host].died_at.is_some() {
            return;
        }
        let wakes = world.now.saturating_add(as_nanos(time).max(1));
        world.hosts[host].wake_at = Some(world.stall_end(host).map_or(wakes, |end| end.max(wakes)));
        self.advance(&mut world, host);
        while world.hosts[host].wake_at.is_some() {
            world = self.condvars[host].wait(world).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Marks that `host` will do nothing more.
    pub(super) fn leave(&self, host: usize) {
        let mut world = self.lock();
        world.hosts[host].exited = true;
        self.advance(&mut world, host);
    }

    /// Advances time until some host has something to do. `caller` needs no wake-up.
    fn advance(&self, world: &mut NetworkState, caller: usize) {
        loop {
            let living = || world.hosts.iter().filter(|host| !host.exited);
            // Time stands still while any host computes, so no result depends on the speed of
            // threads (docs/decisions/0013-failures-are-simulated-from-seeds.md).
            if living().any(|host| host.wake_at.is_none()) {
                return;
            }
            let Some(wakes) = living().filter_map(|host| host.wake_at).min() else {
                return;
            };
            let arrives = world.in_flight.first_key_value().map_or(u64::MAX, |(arrival, _)| arrival.time);
            world.now = world.now.max(arrives.min(wakes));
            if world.now > as_nanos(world.fault_plan.max_time) {
                world.end_all();
            }
            world.deliver_due();
            for host in 0..world.hosts.len() {
                if world.hosts[host].wake_at.is_some_and(|wakes| wakes <= world.now) {
                    world.wake(host);
                }
            }
            let woken = |&host: &usize| world.hosts[host].wake_at.is_none() && !world.hosts[host].exited;
            for host in (0..world.hosts.len()).filter(woken).filter(|&host| host != caller) {
                self.condvars[host].notify_one();
            }
        }
    }
}

/// Readings of its clock after which the time of a dead host runs ahead.
const READINGS_AFTER_DEATH: u32 = 64;

impl NetworkState {
    pub(super) fn now(&self) -> Duration {
        Duration::from_nanos(self.now)
    }

    /// Returns the time as `host` sees it.
    ///
    /// The links of a dead host say that it has died, so a wait that looks at one ends there. Waits
    /// that look at none must end as well: after some readings, each is an hour later.
    pub(super) fn host_clock(&mut self, host: usize) -> Duration {
        let Host { died_at: dead, clock_reads: readings, .. } = &mut self.hosts[host];
        *readings += u32::from(dead.is_some());
        Duration::from_nanos(self.now)
            + Duration::from_secs(3600) * readings.saturating_sub(READINGS_AFTER_DEATH)
    }

    pub(super) fn trace(&self) -> u64 {
        self.trace
    }

    pub(super) fn delivered(&self) -> u64 {
        self.delivered
    }

    pub(super) fn died_at(&self, host: usize) -> Option<Duration> {
        self.hosts[host].died_at.map(Duration::from_nanos)
    }

    /// Fails if `host` is dead.
    pub(super) fn check_alive(&self, host: usize) -> Result<()> {
        match self.hosts[host].died_at {
            None => Ok(()),
            Some(_) => {
                Err(Error::ConnectionLost { peer: host, what: "this rank died in the simulation".to_owned() })
            }
        }
    }

    pub(super) fn is_dead(&self, host: usize) -> bool {
        self.hosts[host].died_at.is_some()
    }

    /// Returns true if `host` is dead, and others can know.
    pub(super) fn is_known_dead(&self, host: usize) -> bool {
        self.is_dead(host) && self.hosts[host].death_announced
    }

    /// Returns true if nothing passes from one host to another at this time.
    pub(super) fn is_partitioned(&self, sender: usize, receiver: usize) -> bool {
        self.fault_plan.partitioned_until(sender, receiver, self.now()).is_some()
    }

    /// Returns the number of a place at which `host` has not regrouped before.
    pub(super) fn next_endpoint(&mut self, host: usize) -> u32 {
        self.hosts[host].endpoints += 1;
        self.hosts[host].endpoints
    }

    /// Sends a packet after the last one of a stream. Returns the new state of the stream.
    pub(super) fn enqueue(&mut self, stream: Stream, way: Route, cargo: Packet) -> Stream {
        let arrival = self.schedule_arrival(stream, way);
        if arrival.time < NEVER {
            self.in_flight.insert(arrival, cargo);
        }
        Stream { sent: arrival.index + 1, last_arrival: arrival.time }
    }

    /// Returns the arrival of the next packet of a stream: after a delay of its own, but not before
    /// the last one.
    fn schedule_arrival(&self, stream: Stream, way: Route) -> Arrival {
        let FaultPlan { seed, delay_min, delay_max, .. } = self.fault_plan;
        let least = as_nanos(delay_min).max(1);
        let spread = as_nanos(delay_max).saturating_sub(least) + 1;
        let (sender, receiver) = way.hosts;
        let words = [way.kind, way.fabric, way.from as u64, way.to as u64, way.lane as u64, stream.sent];
        let delay = least + words.into_iter().fold(seed, mix) % spread;
        let delay = delay * if sender == receiver { 1 } else { self.fault_plan.slowdown(sender, receiver) };
        let mut time = (self.now + delay).max(stream.last_arrival);
        while time < NEVER
            && let Some(end) = self.fault_plan.partitioned_until(sender, receiver, Duration::from_nanos(time))
        {
            time = as_nanos(end).saturating_add(delay);
        }
        Arrival { time, route: way, index: stream.sent }
    }

    /// Delivers all packets that have arrived by this time.
    fn deliver_due(&mut self) {
        while let Some(next) = self.in_flight.first_entry() {
            if next.key().time > self.now {
                return;
            }
            let (arrival, cargo) = next.remove_entry();
            self.trace_arrival(&arrival);
            let Route { fabric: group, from, to, lane, hosts: (_, host), .. } = arrival.route;
            let is_news = match cargo {
                Packet::Message(head, body) => {
                    self.trace = body.iter().fold(self.trace, |trace, &byte| mix(trace, u64::from(byte)));
                    self.fabric(group).queue(from, to, lane).arrived.push_back((head, body));
                    true
                }
                Packet::Credit => self.fabric(group).queue(to, from, lane).add_credit(),
                Packet::Event(event) => self.on_event(group, Direction { from, to }, event),
                Packet::Death { announced: told } => self.kill(host, told),
                Packet::Join => self.on_join(group, from),
                Packet::ConfirmTimer => self.on_confirm_timer(group, to),
                Packet::Confirm => self.fabric(group).on_confirm(to),
                Packet::KeepaliveTimer => self.check_keepalive(group, to, from),
                Packet::StaleData => self.on_stale_data(group, to, from),
                Packet::Reset => self.on_reset(group, to, from),
                Packet::Probe => self.on_probe(group, to, from),
                Packet::ProbeResult { ended } => self.on_probe_result(group, to, from, ended),
            };
            if is_news {
                self.wake(host);
            }
            self.count_delivery();
        }
    }

    fn trace_arrival(&mut self, arrival: &Arrival) {
        let Route { kind, fabric: group, from, to, lane, .. } = arrival.route;
        let words = [arrival.time, kind, group, from as u64, to as u64, lane as u64, arrival.index];
        self.trace = words.into_iter().fold(self.trace, mix);
    }

    /// Counts a delivery, and triggers the deaths that happen at it.
    fn count_delivery(&mut self) {
        self.delivered += 1;
        let due = |fault: &Fault| match *fault {
            Fault::Death { rank, at: Trigger::Deliveries(count), announced: told }
                if count == self.delivered =>
            {
                (rank < self.hosts.len()).then_some((rank, told))
            }
            _ => None,
        };
        let dying: Vec<_> = self.fault_plan.faults.iter().filter_map(due).collect();
        for (rank, told) in dying {
            self.kill(rank, told);
            self.wake(rank);
        }
    }

    /// Schedules the deaths that happen at a certain time.
    fn schedule_deaths(&mut self) {
        for (index, fault) in (0..).zip(self.fault_plan.faults.clone()) {
            if let Fault::Death { rank, at: Trigger::Time(at), announced: told } = fault
                && rank < self.hosts.len()
            {
                let way = Route {
                    kind: DEATH,
                    fabric: INITIAL_FABRIC,
                    from: rank,
                    to: rank,
                    lane: 0,
                    hosts: (rank, rank),
                };
                self.in_flight.insert(
                    Arrival { time: as_nanos(at), route: way, index },
                    Packet::Death { announced: told },
                );
            }
        }
    }

    fn kill(&mut self, host: usize, told: bool) -> bool {
        if self.hosts[host].died_at.is_some() || self.hosts[host].exited {
            return false;
        }
        // A dead host sends nothing, so its announcements leave before it counts as dead.
        if told {
            let endpoints: Vec<_> =
                self.fabrics.iter().filter_map(|(key, group)| Some((*key, group.rank_of(host)?))).collect();
            endpoints.into_iter().for_each(|(key, rank)| self.close(key, rank));
        }
        (self.hosts[host].died_at, self.hosts[host].death_announced) = (Some(self.now), told);
        if !told {
            self.schedule_keepalives_for_host(host);
        }
        true
    }

    /// Ends the simulation, so that no host waits any longer.
    fn end_all(&mut self) {
        for host in 0..self.hosts.len() {
            // Every host counts as dead, so that no new wait begins.
            self.hosts[host].died_at.get_or_insert(self.now);
            self.hosts[host].wake_at = None;
        }
        self.in_flight.clear();
    }

    /// Ends the wait of `host`, unless it is stalled.
    fn wake(&mut self, host: usize) {
        let stalled = self.stall_end(host);
        let host = &mut self.hosts[host];
        host.wake_at = host.wake_at.and(stalled);
    }

    /// Returns the time at which the stall of `host` ends, if it is stalled.
    pub(super) fn stall_end(&self, host: usize) -> Option<u64> {
        let stalled = self.fault_plan.stalled_until(host, self.now()).filter(|_| !self.is_dead(host));
        stalled.map(as_nanos)
    }
}

pub(super) fn as_nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(NEVER)
}

/// The key of the first fabric.
pub(super) const INITIAL_FABRIC: u64 = 0;
/// Arrival time of lost packets.
const NEVER: u64 = u64::MAX;
const DEATH: u64 = 0;
