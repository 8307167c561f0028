//! The state of the simulated network, and how its time passes.

use super::group::{Group, Stream};
use super::meeting::Meeting;
use super::random::stir;
use super::weather::{Fault, Moment, Weather};
use crate::{Error, Event, Geometry, Head, Result};
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What all hosts share.
pub(super) struct Network {
    world: Mutex<World>,
    /// One bell for each host.
    bells: Vec<Condvar>,
}

/// The state of the network.
pub(super) struct World {
    pub(super) geometry: Geometry,
    pub(super) weather: Weather,
    /// Nanoseconds since the beginning.
    now: u64,
    hosts: Vec<Host>,
    /// Meshes, by the key of the meeting at which they were made; the first one has none.
    pub(super) groups: BTreeMap<u64, Group>,
    pub(super) meetings: BTreeMap<u64, Meeting>,
    /// Everything on its way, in the order in which it will arrive.
    pub(super) under_way: BTreeMap<Arrival, Cargo>,
    delivered: u64,
    trace: u64,
}

/// Where a rank of the first mesh runs, whatever its number is in later ones.
#[derive(Default)]
struct Host {
    /// When its wait is over, while it waits.
    wakes: Option<u64>,
    /// Nobody will use it any more.
    gone: bool,
    /// When it died, and whether that is told.
    dead: Option<u64>,
    told: bool,
    /// How often it has read the clock since.
    readings: u32,
    /// Places for meetings that it has named.
    places: u32,
}

/// When something arrives; no two things have the same place in the order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Arrival {
    pub(super) time: u64,
    pub(super) way: Way,
    pub(super) index: u64,
}

/// A lane, by the numbers of its ends in its group; and the hosts that these are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Way {
    pub(super) kind: u64,
    pub(super) group: u64,
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) lane: usize,
    pub(super) hosts: (usize, usize),
}

pub(super) enum Cargo {
    Message(Head, Vec<u8>),
    Credit,
    Event(Event),
    Death {
        told: bool,
    },
    /// A rank comes to a meeting.
    Coming,
    /// It is time for the root of a meeting to tell the next rank.
    Turn,
    /// The root's word that all are here.
    Word,
    /// It is time for a kernel to look how long nothing was answered.
    Look,
    /// Something comes on a connection that only its sender knows of; and the answer.
    Question,
    Reset,
    /// Somebody asks whether a rank lives; and what the answer, or its absence, shows.
    Knock,
    Fate {
        ended: bool,
    },
}

impl Way {
    /// Of something that concerns two ranks and happens on one host.
    pub(super) fn within(kind: u64, group: u64, (from, to): (usize, usize), host: usize) -> Self {
        Self { kind, group, from, to, lane: 0, hosts: (host, host) }
    }
}

impl Network {
    pub(super) fn new(hosts: usize, geometry: Geometry, weather: Weather) -> Self {
        let mut world = World {
            geometry,
            weather,
            now: 0,
            hosts: (0..hosts).map(|_| Host::default()).collect(),
            groups: BTreeMap::from([(FIRST, Group::new(&geometry, (0..hosts).collect()))]),
            meetings: BTreeMap::new(),
            under_way: BTreeMap::new(),
            delivered: 0,
            trace: 0,
        };
        world.expect_deaths();
        world.expect_silence(FIRST);
        Self { world: Mutex::new(world), bells: (0..hosts).map(|_| Condvar::new()).collect() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, World> {
        // A rank that panicked did so outside: no call in here leaves the world half changed.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets `host` wait for `time`, or until something arrives for it. One thread of a host waits at a time.
    pub(super) fn wait(&self, host: usize, time: Duration) {
        let mut world = self.lock();
        if world.hosts[host].dead.is_some() {
            return;
        }
        let wakes = world.now.saturating_add(nanos(time).max(1));
        world.hosts[host].wakes = Some(world.stall_end(host).map_or(wakes, |end| end.max(wakes)));
        self.advance(&mut world, host);
        while world.hosts[host].wakes.is_some() {
            world = self.bells[host].wait(world).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// `host` will do nothing any more.
    pub(super) fn leave(&self, host: usize) {
        let mut world = self.lock();
        world.hosts[host].gone = true;
        self.advance(&mut world, host);
    }

    /// Lets time pass until somebody has something to do; `caller` needs no waking.
    fn advance(&self, world: &mut World, caller: usize) {
        loop {
            let living = || world.hosts.iter().filter(|host| !host.gone);
            if living().any(|host| host.wakes.is_none()) {
                return;
            }
            let Some(wakes) = living().filter_map(|host| host.wakes).min() else {
                return;
            };
            let arrives = world.under_way.first_key_value().map_or(u64::MAX, |(arrival, _)| arrival.time);
            world.now = world.now.max(arrives.min(wakes));
            if world.now > nanos(world.weather.ends) {
                world.end();
            }
            world.deliver();
            for host in 0..world.hosts.len() {
                if world.hosts[host].wakes.is_some_and(|wakes| wakes <= world.now) {
                    world.wake(host);
                }
            }
            let woken = |&host: &usize| world.hosts[host].wakes.is_none() && !world.hosts[host].gone;
            for host in (0..world.hosts.len()).filter(woken).filter(|&host| host != caller) {
                self.bells[host].notify_one();
            }
        }
    }
}

impl World {
    pub(super) fn now(&self) -> Duration {
        Duration::from_nanos(self.now)
    }

    /// The time as `host` sees it. To the dead every reading is an hour later, so that whatever they wait for ends.
    pub(super) fn clock_of(&mut self, host: usize) -> Duration {
        let Host { dead, readings, .. } = &mut self.hosts[host];
        *readings += u32::from(dead.is_some());
        Duration::from_nanos(self.now) + Duration::from_secs(3600) * *readings
    }

    pub(super) fn trace(&self) -> u64 {
        self.trace
    }

    pub(super) fn delivered(&self) -> u64 {
        self.delivered
    }

    pub(super) fn died(&self, host: usize) -> Option<Duration> {
        self.hosts[host].dead.map(Duration::from_nanos)
    }

    /// Fails if `host` is dead.
    pub(super) fn alive(&self, host: usize) -> Result<()> {
        match self.hosts[host].dead {
            None => Ok(()),
            Some(_) => Err(Error::Lost { peer: host, what: "this rank died in the simulation".to_owned() }),
        }
    }

    pub(super) fn is_dead(&self, host: usize) -> bool {
        self.hosts[host].dead.is_some()
    }

    /// Whether `host` is dead, and others can know.
    pub(super) fn is_known_dead(&self, host: usize) -> bool {
        self.is_dead(host) && self.hosts[host].told
    }

    /// Whether nothing passes from one host to another just now.
    pub(super) fn is_cut(&self, from: usize, to: usize) -> bool {
        self.weather.cut_until(from, to, self.now()).is_some()
    }

    /// The number of a place that no meeting of `host` was at.
    pub(super) fn next_place(&mut self, host: usize) -> u32 {
        self.hosts[host].places += 1;
        self.hosts[host].places
    }

    /// Sends `cargo` after the last thing of a stream; gives the stream as it is then.
    pub(super) fn send_after(&mut self, stream: Stream, way: Way, cargo: Cargo) -> Stream {
        let arrival = self.schedule(stream, way);
        if arrival.time < NEVER {
            self.under_way.insert(arrival, cargo);
        }
        Stream { sent: arrival.index + 1, last: arrival.time }
    }

    /// When the next thing of a stream arrives: after a delay of its own, but not before the last one.
    fn schedule(&self, stream: Stream, way: Way) -> Arrival {
        let Weather { seed, delay_min, delay_max, .. } = self.weather;
        let least = nanos(delay_min).max(1);
        let spread = nanos(delay_max).saturating_sub(least) + 1;
        let (from, to) = way.hosts;
        let words = [way.kind, way.group, way.from as u64, way.to as u64, way.lane as u64, stream.sent];
        let delay = least + words.into_iter().fold(seed, stir) % spread;
        let delay = delay * if from == to { 1 } else { self.weather.slowness(from, to) };
        let mut time = (self.now + delay).max(stream.last);
        while time < NEVER
            && let Some(end) = self.weather.cut_until(from, to, Duration::from_nanos(time))
        {
            time = nanos(end).saturating_add(delay);
        }
        Arrival { time, way, index: stream.sent }
    }

    /// Hands over everything that has arrived by now.
    fn deliver(&mut self) {
        while let Some(next) = self.under_way.first_entry() {
            if next.key().time > self.now {
                return;
            }
            let (arrival, cargo) = next.remove_entry();
            self.note(&arrival);
            let Way { group, from, to, lane, hosts: (_, host), .. } = arrival.way;
            let is_news = match cargo {
                Cargo::Message(head, body) => {
                    self.trace = body.iter().fold(self.trace, |trace, &byte| stir(trace, u64::from(byte)));
                    self.group(group).pipe(from, to, lane).arrived.push_back((head, body));
                    true
                }
                Cargo::Credit => self.group(group).pipe(to, from, lane).credit(),
                Cargo::Event(event) => self.hear(group, (from, to), event),
                Cargo::Death { told } => self.kill(host, told),
                Cargo::Coming => self.come(group, from),
                Cargo::Turn => self.speak(group, to),
                Cargo::Word => self.group(group).hear_word(to),
                Cargo::Look => self.look(group, to, from),
                Cargo::Question => self.answer(group, to, from),
                Cargo::Reset => self.reset(group, to, from),
                Cargo::Knock => self.knock(group, to, from),
                Cargo::Fate { ended } => self.conclude(group, to, from, ended),
            };
            if is_news {
                self.wake(host);
            }
            self.count_delivery();
        }
    }

    fn note(&mut self, arrival: &Arrival) {
        let Way { kind, group, from, to, lane, .. } = arrival.way;
        let words = [arrival.time, kind, group, from as u64, to as u64, lane as u64, arrival.index];
        self.trace = words.into_iter().fold(self.trace, stir);
    }

    /// Some deaths happen at a certain delivery.
    fn count_delivery(&mut self) {
        self.delivered += 1;
        let due = |fault: &Fault| match *fault {
            Fault::Death { rank, at: Moment::Deliveries(count), told } if count == self.delivered => {
                (rank < self.hosts.len()).then_some((rank, told))
            }
            _ => None,
        };
        let dying: Vec<_> = self.weather.faults.iter().filter_map(due).collect();
        for (rank, told) in dying {
            self.kill(rank, told);
            self.wake(rank);
        }
    }

    /// Those that happen at a certain time.
    fn expect_deaths(&mut self) {
        for (index, fault) in (0..).zip(self.weather.faults.clone()) {
            if let Fault::Death { rank, at: Moment::Time(at), told } = fault
                && rank < self.hosts.len()
            {
                let way =
                    Way { kind: DEATH, group: FIRST, from: rank, to: rank, lane: 0, hosts: (rank, rank) };
                self.under_way.insert(Arrival { time: nanos(at), way, index }, Cargo::Death { told });
            }
        }
    }

    fn kill(&mut self, host: usize, told: bool) -> bool {
        if self.hosts[host].dead.is_some() || self.hosts[host].gone {
            return false;
        }
        if told {
            let seats: Vec<_> =
                self.groups.iter().filter_map(|(key, group)| Some((*key, group.rank_of(host)?))).collect();
            seats.into_iter().for_each(|(key, rank)| self.close(key, rank));
        }
        (self.hosts[host].dead, self.hosts[host].told) = (Some(self.now), told);
        if !told {
            self.expect_silence_of(host);
        }
        true
    }

    /// The end of everything: nobody waits any longer.
    fn end(&mut self) {
        for host in 0..self.hosts.len() {
            self.hosts[host].dead.get_or_insert(self.now);
            self.hosts[host].wakes = None;
        }
        self.under_way.clear();
    }

    /// Ends the wait of `host`, unless it is stalled.
    fn wake(&mut self, host: usize) {
        let stalled = self.stall_end(host);
        let host = &mut self.hosts[host];
        host.wakes = host.wakes.and(stalled);
    }

    /// Until when `host` is stalled, if it is now.
    pub(super) fn stall_end(&self, host: usize) -> Option<u64> {
        let stalled = self.weather.stalled_until(host, self.now()).filter(|_| !self.is_dead(host));
        stalled.map(nanos)
    }
}

pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(NEVER)
}

/// The key of the first mesh.
pub(super) const FIRST: u64 = 0;
/// When what is lost arrives.
const NEVER: u64 = u64::MAX;
const DEATH: u64 = 0;
