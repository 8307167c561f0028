//! The state of the simulated network, and how its time passes.

use super::Weather;
use crate::{Error, Event, Geometry, Head, MAX_NOTE_BYTES, Result};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What all ranks share.
pub(super) struct Network {
    world: Mutex<World>,
    /// One bell for each rank.
    bells: Vec<Condvar>,
}

/// The state of the network.
pub(super) struct World {
    geometry: Geometry,
    weather: Weather,
    /// Nanoseconds since the beginning.
    now: u64,
    members: Vec<Member>,
    /// By sender, receiver and lane.
    pipes: Vec<Pipe>,
    /// Everything on its way, in the order in which it will arrive.
    under_way: BTreeMap<Arrival, Cargo>,
    trace: u64,
}

#[derive(Default)]
struct Member {
    /// When its wait is over, while it waits.
    wakes: Option<u64>,
    /// Its mesh was dropped.
    gone: bool,
    dead: bool,
    events: VecDeque<Event>,
    /// What it sent to each rank beside messages.
    notes: Vec<Stream>,
}

/// One lane in one direction.
#[derive(Default)]
struct Pipe {
    messages: Stream,
    credits: Stream,
    /// Messages that may still be sent.
    room: usize,
    arrived: VecDeque<(Head, Vec<u8>)>,
}

/// Things that arrive in the order sent.
#[derive(Clone, Copy, Default)]
struct Stream {
    sent: u64,
    last: u64,
}

/// When something arrives; no two things have the same place in the order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Arrival {
    time: u64,
    way: Way,
    index: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Way {
    kind: u64,
    from: usize,
    to: usize,
    lane: usize,
}

enum Cargo {
    Message(Head, Vec<u8>),
    Credit,
    Event(Event),
    Death,
}

impl Network {
    pub(super) fn new(ranks: usize, geometry: Geometry, weather: Weather) -> Self {
        let member = || Member { notes: vec![Stream::default(); ranks], ..Member::default() };
        let pipe = || Pipe { room: geometry.slots, ..Pipe::default() };
        let mut world = World {
            geometry,
            weather,
            now: 0,
            members: (0..ranks).map(|_| member()).collect(),
            pipes: (0..ranks * ranks * geometry.lanes).map(|_| pipe()).collect(),
            under_way: BTreeMap::new(),
            trace: 0,
        };
        if let Some(death) = weather.death.filter(|death| death.rank < ranks) {
            let way = Way { kind: DEATH, from: death.rank, to: death.rank, lane: 0 };
            world.under_way.insert(Arrival { time: nanos(death.at), way, index: 0 }, Cargo::Death);
        }
        Self { world: Mutex::new(world), bells: (0..ranks).map(|_| Condvar::new()).collect() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, World> {
        // A rank that panicked did so outside: no call in here leaves the world half changed.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets `rank` wait for `time`, or until something arrives for it.
    pub(super) fn wait(&self, rank: usize, time: Duration) {
        let mut world = self.lock();
        let wakes = world.now.saturating_add(nanos(time).max(1));
        world.members[rank].wakes = Some(world.stall_end(rank).map_or(wakes, |end| end.max(wakes)));
        self.advance(&mut world);
        while world.members[rank].wakes.is_some() {
            world = self.bells[rank].wait(world).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// `rank` will do nothing any more.
    pub(super) fn leave(&self, rank: usize) {
        let mut world = self.lock();
        world.part(rank);
        world.members[rank].gone = true;
        self.advance(&mut world);
    }

    /// Lets time pass until somebody has something to do.
    fn advance(&self, world: &mut World) {
        loop {
            let living = || world.members.iter().filter(|member| !member.gone);
            if living().any(|member| member.wakes.is_none()) {
                return;
            }
            let Some(wakes) = living().filter_map(|member| member.wakes).min() else {
                return;
            };
            let arrives = world.under_way.first_key_value().map_or(u64::MAX, |(arrival, _)| arrival.time);
            world.now = world.now.max(arrives.min(wakes));
            world.deliver();
            for rank in 0..world.members.len() {
                if world.members[rank].wakes.is_some_and(|wakes| wakes <= world.now) {
                    world.wake(rank);
                }
            }
            for (member, bell) in world.members.iter().zip(&self.bells) {
                if member.wakes.is_none() {
                    bell.notify_one();
                }
            }
        }
    }
}

impl World {
    pub(super) fn now(&self) -> Duration {
        Duration::from_nanos(self.now)
    }

    pub(super) fn trace(&self) -> u64 {
        self.trace
    }

    /// Fails if `rank` is dead.
    pub(super) fn alive(&self, rank: usize) -> Result<()> {
        match self.members[rank].dead {
            false => Ok(()),
            true => Err(Error::Lost { peer: rank, what: "this rank died in the simulation".to_owned() }),
        }
    }

    /// Whether another message fits on the lane.
    pub(super) fn has_room(&self, from: usize, to: usize, lane: usize) -> bool {
        self.pipes[self.pipe(from, to, lane)].room > 0
    }

    pub(super) fn send(&mut self, from: usize, to: usize, lane: usize, head: Head, body: Vec<u8>) {
        let index = self.pipe(from, to, lane);
        self.pipes[index].room -= 1;
        let way = Way { kind: MESSAGE, from, to, lane };
        let arrival = self.schedule(self.pipes[index].messages, way);
        self.pipes[index].messages = Stream { sent: arrival.index + 1, last: arrival.time };
        self.under_way.insert(arrival, Cargo::Message(head, body));
    }

    /// The oldest message that has arrived on the lane.
    pub(super) fn receive(&mut self, from: usize, to: usize, lane: usize) -> Option<(Head, Vec<u8>)> {
        let index = self.pipe(from, to, lane);
        self.pipes[index].arrived.pop_front()
    }

    /// Tells the sender that there is room for one more.
    pub(super) fn give_back(&mut self, from: usize, to: usize, lane: usize) {
        let index = self.pipe(from, to, lane);
        // Named by its own direction: it goes from the receiver to the sender.
        let way = Way { kind: CREDIT, from: to, to: from, lane };
        let arrival = self.schedule(self.pipes[index].credits, way);
        self.pipes[index].credits = Stream { sent: arrival.index + 1, last: arrival.time };
        self.under_way.insert(arrival, Cargo::Credit);
    }

    pub(super) fn post(&mut self, from: usize, note: &[u8]) {
        if !self.members[from].dead && note.len() <= MAX_NOTE_BYTES {
            for to in (0..self.members.len()).filter(|&to| to != from) {
                self.tell(from, to, Event::Note { from, bytes: note.to_vec() });
            }
        }
    }

    pub(super) fn next_event(&mut self, rank: usize) -> Option<Event> {
        self.members[rank].events.pop_front()
    }

    /// The peers hear of the end of `rank`, once.
    fn part(&mut self, rank: usize) {
        if self.members[rank].dead || self.members[rank].gone {
            return;
        }
        for peer in (0..self.members.len()).filter(|&peer| peer != rank) {
            self.tell(rank, peer, Event::Closed { from: rank });
        }
    }

    fn tell(&mut self, from: usize, to: usize, event: Event) {
        let way = Way { kind: NOTE, from, to, lane: 0 };
        let arrival = self.schedule(self.members[from].notes[to], way);
        self.members[from].notes[to] = Stream { sent: arrival.index + 1, last: arrival.time };
        self.under_way.insert(arrival, Cargo::Event(event));
    }

    /// When the next thing of a stream arrives: after a delay of its own, but not before the last one.
    fn schedule(&self, stream: Stream, way: Way) -> Arrival {
        let Weather { seed, delay_min, delay_max, .. } = self.weather;
        let least = nanos(delay_min).max(1);
        let spread = nanos(delay_max).saturating_sub(least) + 1;
        let words = [way.kind, way.from as u64, way.to as u64, way.lane as u64, stream.sent];
        let delay = least + words.into_iter().fold(seed, stir) % spread;
        Arrival { time: (self.now + delay).max(stream.last), way, index: stream.sent }
    }

    /// Hands over everything that has arrived by now.
    fn deliver(&mut self) {
        while let Some(next) = self.under_way.first_entry() {
            if next.key().time > self.now {
                return;
            }
            let (arrival, cargo) = next.remove_entry();
            let Way { from, to, lane, kind } = arrival.way;
            let words = [arrival.time, kind, from as u64, to as u64, lane as u64, arrival.index];
            self.trace = words.into_iter().fold(self.trace, stir);
            match cargo {
                Cargo::Message(head, body) => {
                    self.trace = body.iter().fold(self.trace, |trace, &byte| stir(trace, u64::from(byte)));
                    let index = self.pipe(from, to, lane);
                    self.pipes[index].arrived.push_back((head, body));
                }
                Cargo::Credit => {
                    let index = self.pipe(to, from, lane);
                    self.pipes[index].room += 1;
                }
                Cargo::Event(event) => self.members[to].events.push_back(event),
                Cargo::Death => {
                    self.part(to);
                    self.members[to].dead = true;
                }
            }
            self.wake(to);
        }
    }

    /// Ends the wait of `rank`, unless it is stalled.
    fn wake(&mut self, rank: usize) {
        let stalled = self.stall_end(rank);
        let member = &mut self.members[rank];
        member.wakes = member.wakes.and(stalled);
    }

    /// Until when `rank` is stalled, if it is now.
    fn stall_end(&self, rank: usize) -> Option<u64> {
        let stall = self.weather.stall.filter(|stall| stall.rank == rank && !self.members[rank].dead)?;
        let (from, end) = (nanos(stall.from), nanos(stall.from.saturating_add(stall.lasts)));
        (from..end).contains(&self.now).then_some(end)
    }

    fn pipe(&self, from: usize, to: usize, lane: usize) -> usize {
        assert!(lane < self.geometry.lanes, "lane {lane} of {}", self.geometry.lanes);
        (from * self.members.len() + to) * self.geometry.lanes + lane
    }
}

/// Mixes one more word into a digest (the finaliser of SplitMix64, Steele et al. 2014).
fn stir(digest: u64, word: u64) -> u64 {
    let mixed = (digest ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

const DEATH: u64 = 0;
const MESSAGE: u64 = 1;
const CREDIT: u64 = 2;
const NOTE: u64 = 3;
