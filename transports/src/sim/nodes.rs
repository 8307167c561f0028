//! The state of the simulated network, and how its time passes.

use crate::sim::fabric::{FabricState, Stream};
use crate::sim::fault_plan::{Fault, FaultPlan, Trigger};
use crate::sim::reconnect::Regroup;
use crate::sim::rng::mix;
use crate::{Error, Geometry, Header, PeerEvent, Result};
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What all hosts share.
pub(super) struct Network {
    state: Mutex<NetworkState>,
    /// One bell for each host.
    condvars: Vec<Condvar>,
}

/// The state of the network.
pub(super) struct NetworkState {
    pub(super) geometry: Geometry,
    pub(super) fault_plan: FaultPlan,
    /// Nanoseconds since the beginning.
    now: u64,
    hosts: Vec<Host>,
    /// Meshes, by the key of the meeting at which they were made; the first one has none.
    pub(super) fabrics: BTreeMap<u64, FabricState>,
    pub(super) regroups: BTreeMap<u64, Regroup>,
    /// Everything on its way, in the order in which it will arrive.
    pub(super) in_flight: BTreeMap<Arrival, Packet>,
    delivered: u64,
    trace: u64,
}

/// Where a rank of the first fabric runs, whatever its number is in later ones.
#[derive(Default)]
struct Host {
    /// When its wait is over, while it waits.
    wake_at: Option<u64>,
    /// Nobody will use it any more.
    exited: bool,
    /// When it died, and whether that is told.
    died_at: Option<u64>,
    death_announced: bool,
    /// How often it has read the clock since.
    clock_reads: u32,
    /// Places for meetings that it has named.
    endpoints: u32,
}

/// When something arrives; no two things have the same place in the order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Arrival {
    pub(super) time: u64,
    pub(super) route: Route,
    pub(super) index: u64,
}

/// A lane, by the numbers of its ends in its group; and the hosts that these are.
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
    /// A rank comes to a meeting.
    Join,
    /// It is time for the root of a meeting to tell the next rank.
    ConfirmTimer,
    /// The root's word that all are here.
    Confirm,
    /// It is time for a kernel to look how long nothing was answered.
    KeepaliveTimer,
    /// Something comes on a connection that only its sender knows of; and the answer.
    StaleData,
    Reset,
    /// Somebody asks whether a rank lives; and what the answer, or its absence, shows.
    Probe,
    ProbeResult {
        ended: bool,
    },
}

impl Route {
    /// Of something that concerns two ranks and happens on one host.
    pub(super) fn local(kind: u64, group: u64, (from, to): (usize, usize), host: usize) -> Self {
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
        // A rank that panicked did so outside: no call in here leaves the world half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets `host` wait for `time`, or until something arrives for it. One thread of a host waits at a time.
    pub(super) fn wait(&self, host: usize, time: Duration) {
        let mut world = self.lock();
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

    /// `host` will do nothing any more.
    pub(super) fn leave(&self, host: usize) {
        let mut world = self.lock();
        world.hosts[host].exited = true;
        self.advance(&mut world, host);
    }

    /// Lets time pass until somebody has something to do; `caller` needs no waking.
    fn advance(&self, world: &mut NetworkState, caller: usize) {
        loop {
            let living = || world.hosts.iter().filter(|host| !host.exited);
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

impl NetworkState {
    pub(super) fn now(&self) -> Duration {
        Duration::from_nanos(self.now)
    }

    /// The time as `host` sees it. To the dead every reading is an hour later, so that whatever they wait for ends.
    pub(super) fn host_clock(&mut self, host: usize) -> Duration {
        let Host { died_at: dead, clock_reads: readings, .. } = &mut self.hosts[host];
        *readings += u32::from(dead.is_some());
        Duration::from_nanos(self.now) + Duration::from_secs(3600) * *readings
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

    /// Whether `host` is dead, and others can know.
    pub(super) fn is_known_dead(&self, host: usize) -> bool {
        self.is_dead(host) && self.hosts[host].death_announced
    }

    /// Whether nothing passes from one host to another just now.
    pub(super) fn is_partitioned(&self, from: usize, to: usize) -> bool {
        self.fault_plan.partitioned_until(from, to, self.now()).is_some()
    }

    /// The number of a place that no meeting of `host` was at.
    pub(super) fn next_endpoint(&mut self, host: usize) -> u32 {
        self.hosts[host].endpoints += 1;
        self.hosts[host].endpoints
    }

    /// Sends `cargo` after the last thing of a stream; gives the stream as it is then.
    pub(super) fn enqueue(&mut self, stream: Stream, way: Route, cargo: Packet) -> Stream {
        let arrival = self.schedule_arrival(stream, way);
        if arrival.time < NEVER {
            self.in_flight.insert(arrival, cargo);
        }
        Stream { sent: arrival.index + 1, last_arrival: arrival.time }
    }

    /// When the next thing of a stream arrives: after a delay of its own, but not before the last one.
    fn schedule_arrival(&self, stream: Stream, way: Route) -> Arrival {
        let FaultPlan { seed, delay_min, delay_max, .. } = self.fault_plan;
        let least = as_nanos(delay_min).max(1);
        let spread = as_nanos(delay_max).saturating_sub(least) + 1;
        let (from, to) = way.hosts;
        let words = [way.kind, way.fabric, way.from as u64, way.to as u64, way.lane as u64, stream.sent];
        let delay = least + words.into_iter().fold(seed, mix) % spread;
        let delay = delay * if from == to { 1 } else { self.fault_plan.slowdown(from, to) };
        let mut time = (self.now + delay).max(stream.last_arrival);
        while time < NEVER
            && let Some(end) = self.fault_plan.partitioned_until(from, to, Duration::from_nanos(time))
        {
            time = as_nanos(end).saturating_add(delay);
        }
        Arrival { time, route: way, index: stream.sent }
    }

    /// Hands over everything that has arrived by now.
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
                Packet::Event(event) => self.on_event(group, (from, to), event),
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

    /// Some deaths happen at a certain delivery.
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

    /// Those that happen at a certain time.
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
        if told {
            let seats: Vec<_> =
                self.fabrics.iter().filter_map(|(key, group)| Some((*key, group.rank_of(host)?))).collect();
            seats.into_iter().for_each(|(key, rank)| self.close(key, rank));
        }
        (self.hosts[host].died_at, self.hosts[host].death_announced) = (Some(self.now), told);
        if !told {
            self.schedule_keepalives_for_host(host);
        }
        true
    }

    /// The end of everything: nobody waits any longer.
    fn end_all(&mut self) {
        for host in 0..self.hosts.len() {
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

    /// Until when `host` is stalled, if it is now.
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
/// When what is lost arrives.
const NEVER: u64 = u64::MAX;
const DEATH: u64 = 0;
