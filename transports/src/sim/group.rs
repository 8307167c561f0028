//! One mesh among hosts of the simulated network: its lanes, and its notes.

use super::silence::End;
use super::world::{Cargo, Way, World};
use crate::{Event, Geometry, Head, MAX_NOTE_BYTES};
use std::collections::VecDeque;

/// The state of one mesh.
pub(super) struct Group {
    lanes: usize,
    /// The host of each rank.
    pub(super) hosts: Vec<usize>,
    /// By sender, receiver and lane.
    pipes: Vec<Pipe>,
    pub(super) seats: Vec<Seat>,
}

/// What one rank has beside its lanes.
#[derive(Default)]
pub(super) struct Seat {
    /// It takes part no more, and the others have been told.
    closed: bool,
    /// It knows that all have met.
    pub(super) met: bool,
    pub(super) events: VecDeque<Event>,
    /// Its ends of the connections for notes, by peer.
    pub(super) ends: Vec<End>,
    /// Nobody listens at its door any more.
    pub(super) shut: bool,
    /// What it sent to each rank beside messages.
    notes: Vec<Stream>,
}

/// One lane in one direction.
#[derive(Default)]
pub(super) struct Pipe {
    messages: Stream,
    credits: Stream,
    /// Messages that may still be sent.
    room: usize,
    pub(super) arrived: VecDeque<(Head, Vec<u8>)>,
}

/// Things that arrive in the order sent.
#[derive(Clone, Copy, Default)]
pub(super) struct Stream {
    pub(super) sent: u64,
    pub(super) last: u64,
}

impl Group {
    pub(super) fn new(geometry: &Geometry, hosts: Vec<usize>) -> Self {
        let (ranks, lanes) = (hosts.len(), geometry.lanes);
        let pipe = || Pipe { room: geometry.slots, ..Pipe::default() };
        let (notes, ends) = (vec![Stream::default(); ranks], vec![End::Open; ranks]);
        let seat = || Seat { notes: notes.clone(), ends: ends.clone(), ..Seat::default() };
        Self {
            lanes,
            hosts,
            pipes: (0..ranks * ranks * lanes).map(|_| pipe()).collect(),
            seats: (0..ranks).map(|_| seat()).collect(),
        }
    }

    pub(super) fn rank_of(&self, host: usize) -> Option<usize> {
        self.hosts.iter().position(|&other| other == host)
    }

    pub(super) fn pipe(&mut self, from: usize, to: usize, lane: usize) -> &mut Pipe {
        assert!(lane < self.lanes, "lane {lane} of {}", self.lanes);
        &mut self.pipes[(from * self.hosts.len() + to) * self.lanes + lane]
    }

    pub(super) fn way(&self, kind: u64, group: u64, from: usize, to: usize, lane: usize) -> Way {
        Way { kind, group, from, to, lane, hosts: (self.hosts[from], self.hosts[to]) }
    }
}

impl Seat {
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether something of `peer` has come that was not read.
    fn has_unread(&self, peer: usize) -> bool {
        let of_peer = |event: &Event| matches!(event, Event::Note { from, .. } if *from == peer);
        self.events.iter().any(of_peer)
    }
}

impl Pipe {
    /// The receiver has taken a message; says whether the sender may have waited for that.
    pub(super) fn credit(&mut self) -> bool {
        self.room += 1;
        self.room == 1
    }
}

impl World {
    /// The mesh with this key: whoever has a part of it made it.
    pub(super) fn group(&mut self, key: u64) -> &mut Group {
        self.groups.get_mut(&key).expect("a mesh stays as long as the network")
    }

    /// Whether another message fits on the lane.
    pub(super) fn has_room(&mut self, key: u64, from: usize, to: usize, lane: usize) -> bool {
        self.group(key).pipe(from, to, lane).room > 0
    }

    pub(super) fn send(
        &mut self,
        key: u64,
        (from, to): (usize, usize),
        lane: usize,
        head: Head,
        body: Vec<u8>,
    ) {
        let group = self.group(key);
        let way = group.way(MESSAGE, key, from, to, lane);
        let pipe = group.pipe(from, to, lane);
        pipe.room -= 1;
        let messages = pipe.messages;
        let messages = self.send_after(messages, way, Cargo::Message(head, body));
        self.group(key).pipe(from, to, lane).messages = messages;
    }

    /// The oldest message that has arrived on the lane.
    pub(super) fn receive(
        &mut self,
        key: u64,
        from: usize,
        to: usize,
        lane: usize,
    ) -> Option<(Head, Vec<u8>)> {
        self.group(key).pipe(from, to, lane).arrived.pop_front()
    }

    /// Tells the sender that there is room for one more.
    pub(super) fn give_back(&mut self, key: u64, from: usize, to: usize, lane: usize) {
        let group = self.group(key);
        // Named by its own direction: it goes from the receiver to the sender.
        let way = group.way(CREDIT, key, to, from, lane);
        let credits = group.pipe(from, to, lane).credits;
        let credits = self.send_after(credits, way, Cargo::Credit);
        self.group(key).pipe(from, to, lane).credits = credits;
    }

    pub(super) fn post(&mut self, key: u64, from: usize, note: &[u8]) {
        let group = self.group(key);
        let (host, ends) = (group.hosts[from], group.seats[from].ends.clone());
        if !self.is_dead(host) && note.len() <= MAX_NOTE_BYTES {
            for (to, _) in ends.iter().enumerate().filter(|&(to, end)| to != from && *end == End::Open) {
                self.tell(key, from, to, Cargo::Event(Event::Note { from, bytes: note.to_vec() }));
            }
        }
    }

    pub(super) fn next_event(&mut self, key: u64, rank: usize) -> Option<Event> {
        self.group(key).seats[rank].events.pop_front()
    }

    /// `rank` takes part no more: its peers hear of it, unless it is dead.
    pub(super) fn close(&mut self, key: u64, rank: usize) {
        let host = self.group(key).hosts[rank];
        if !self.is_dead(host) {
            self.tell_of_end(key, rank);
        }
    }

    /// The peers hear of the end of `rank`, once.
    pub(super) fn tell_of_end(&mut self, key: u64, rank: usize) {
        let group = self.group(key);
        let ranks = group.hosts.len();
        if std::mem::replace(&mut group.seats[rank].closed, true) {
            return;
        }
        for peer in (0..ranks).filter(|&peer| peer != rank) {
            self.hang_up(key, rank, peer);
        }
    }

    /// `rank` ends its connection with `peer`: by a reset if it has not read all of it.
    fn hang_up(&mut self, key: u64, rank: usize, peer: usize) {
        let resets = self.weather.silence.is_some();
        let group = self.group(key);
        let (host, other, seat) = (group.hosts[rank], group.hosts[peer], &mut group.seats[rank]);
        if seat.ends[peer] != End::Open {
            return;
        }
        if !(resets && seat.has_unread(peer)) {
            return self.tell(key, rank, peer, Cargo::Event(Event::Closed { from: rank }));
        }
        if !self.is_cut(host, other) {
            return self.tell(key, rank, peer, Cargo::Reset);
        }
        // The one reset gets lost, and what was under way is not sent again.
        self.group(key).seats[rank].ends[peer] = End::Over;
        self.ask(key, rank, peer);
    }

    fn tell(&mut self, key: u64, from: usize, to: usize, cargo: Cargo) {
        let group = self.group(key);
        let way = group.way(NOTE, key, from, to, 0);
        let notes = group.seats[from].notes[to];
        let notes = self.send_after(notes, way, cargo);
        self.group(key).seats[from].notes[to] = notes;
    }
}

const MESSAGE: u64 = 1;
const CREDIT: u64 = 2;
const NOTE: u64 = 3;
