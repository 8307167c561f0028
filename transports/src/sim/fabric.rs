//! One fabric among hosts of the simulated network: its lanes and its control channels.

use crate::sim::nodes::{Direction, NetworkState, Packet, Route};
use crate::sim::timeouts::ConnectionState;
use crate::{Geometry, Header, MAX_CONTROL_MSG_BYTES, PeerEvent};
use std::collections::VecDeque;

/// The state of one fabric.
pub(super) struct FabricState {
    lanes: usize,
    /// The host of each rank.
    pub(super) hosts: Vec<usize>,
    /// State of each lane, by sender, receiver and lane.
    queues: Vec<Queue>,
    pub(super) endpoints: Vec<EndpointState>,
}

/// State of one rank apart from its lanes.
#[derive(Default)]
pub(super) struct EndpointState {
    /// True if the rank has left, and the others have been told.
    closed: bool,
    /// True if the rank knows that all ranks have joined.
    pub(super) joined: bool,
    pub(super) events: VecDeque<PeerEvent>,
    /// Its ends of the control connections, by peer.
    pub(super) connections: Vec<ConnectionState>,
    /// True if the listener of the rank is closed.
    pub(super) listener_closed: bool,
    /// Streams to each rank of all that it sends beside messages.
    control_streams: Vec<Stream>,
}

/// One lane in one direction.
#[derive(Default)]
pub(super) struct Queue {
    messages: Stream,
    credits: Stream,
    /// Messages that may still be sent.
    free_slots: usize,
    pub(super) arrived: VecDeque<(Header, Vec<u8>)>,
}

/// Packets that arrive in the order sent.
#[derive(Clone, Copy, Default)]
pub(super) struct Stream {
    pub(super) sent: u64,
    pub(super) last_arrival: u64,
}

impl FabricState {
    pub(super) fn new(geometry: &Geometry, hosts: Vec<usize>) -> Self {
        let (ranks, lanes) = (hosts.len(), geometry.lanes);
        let pipe = || Queue { free_slots: geometry.slots, ..Queue::default() };
        let (notes, ends) = (vec![Stream::default(); ranks], vec![ConnectionState::Open; ranks]);
        let seat = || EndpointState {
            control_streams: notes.clone(),
            connections: ends.clone(),
            ..EndpointState::default()
        };
        Self {
            lanes,
            hosts,
            queues: (0..ranks * ranks * lanes).map(|_| pipe()).collect(),
            endpoints: (0..ranks).map(|_| seat()).collect(),
        }
    }

    pub(super) fn rank_of(&self, host: usize) -> Option<usize> {
        self.hosts.iter().position(|&other| other == host)
    }

    pub(super) fn queue(&mut self, sender: usize, receiver: usize, lane: usize) -> &mut Queue {
        assert!(lane < self.lanes, "lane {lane} of {}", self.lanes);
        &mut self.queues[(sender * self.hosts.len() + receiver) * self.lanes + lane]
    }

    pub(super) fn route(&self, kind: u64, group: u64, sender: usize, receiver: usize, lane: usize) -> Route {
        Route {
            kind,
            fabric: group,
            from: sender,
            to: receiver,
            lane,
            hosts: (self.hosts[sender], self.hosts[receiver]),
        }
    }
}

impl EndpointState {
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns true if something from `peer` has arrived that was not read.
    fn has_unread(&self, peer: usize) -> bool {
        let of_peer = |event: &PeerEvent| matches!(event, PeerEvent::Message { from, .. } if *from == peer);
        self.events.iter().any(of_peer)
    }
}

impl Queue {
    /// Adds a credit after the receiver has taken a message. Returns true if the sender may have
    /// waited for it.
    pub(super) fn add_credit(&mut self) -> bool {
        self.free_slots += 1;
        self.free_slots == 1
    }
}

impl NetworkState {
    /// Returns the fabric with this key, which exists for every rank that holds a part of it.
    pub(super) fn fabric(&mut self, key: u64) -> &mut FabricState {
        self.fabrics.get_mut(&key).expect("a fabric stays as long as the network")
    }

    /// Returns true if another message fits on the lane.
    pub(super) fn has_credit(&mut self, key: u64, sender: usize, receiver: usize, lane: usize) -> bool {
        self.fabric(key).queue(sender, receiver, lane).free_slots > 0
    }

    pub(super) fn send(&mut self, key: u64, direction: Direction, lane: usize, head: Header, body: Vec<u8>) {
        let Direction { from, to } = direction;
        let group = self.fabric(key);
        let way = group.route(MESSAGE, key, from, to, lane);
        let pipe = group.queue(from, to, lane);
        pipe.free_slots -= 1;
        // The stream is copied out and put back, because `enqueue` borrows the whole network.
        let messages = pipe.messages;
        let messages = self.enqueue(messages, way, Packet::Message(head, body));
        self.fabric(key).queue(from, to, lane).messages = messages;
    }

    /// Takes the oldest message that has arrived on the lane.
    pub(super) fn receive(
        &mut self,
        key: u64,
        sender: usize,
        receiver: usize,
        lane: usize,
    ) -> Option<(Header, Vec<u8>)> {
        self.fabric(key).queue(sender, receiver, lane).arrived.pop_front()
    }

    /// Tells the sender that there is room for one more message.
    pub(super) fn return_credit(&mut self, key: u64, sender: usize, receiver: usize, lane: usize) {
        let group = self.fabric(key);
        // The credit has a route of its own direction: from the receiver to the sender.
        let way = group.route(CREDIT, key, receiver, sender, lane);
        let credits = group.queue(sender, receiver, lane).credits;
        let credits = self.enqueue(credits, way, Packet::Credit);
        self.fabric(key).queue(sender, receiver, lane).credits = credits;
    }

    pub(super) fn post(&mut self, key: u64, sender: usize, note: &[u8]) {
        let group = self.fabric(key);
        let (host, ends) = (group.hosts[sender], group.endpoints[sender].connections.clone());
        if !self.is_dead(host) && note.len() <= MAX_CONTROL_MSG_BYTES {
            for (receiver, _) in ends
                .iter()
                .enumerate()
                .filter(|&(receiver, end)| receiver != sender && *end == ConnectionState::Open)
            {
                self.send_control(
                    key,
                    sender,
                    receiver,
                    Packet::Event(PeerEvent::Message { from: sender, bytes: note.to_vec() }),
                );
            }
        }
    }

    pub(super) fn next_event(&mut self, key: u64, rank: usize) -> Option<PeerEvent> {
        self.fabric(key).endpoints[rank].events.pop_front()
    }

    /// Removes `rank` from the fabric. Its peers are told, unless it is dead.
    pub(super) fn close(&mut self, key: u64, rank: usize) {
        let host = self.fabric(key).hosts[rank];
        if !self.is_dead(host) {
            self.announce_exit(key, rank);
        }
    }

    /// Tells the peers, once, that `rank` has ended.
    pub(super) fn announce_exit(&mut self, key: u64, rank: usize) {
        let group = self.fabric(key);
        let ranks = group.hosts.len();
        if std::mem::replace(&mut group.endpoints[rank].closed, true) {
            return;
        }
        for peer in (0..ranks).filter(|&peer| peer != rank) {
            self.close_connection(key, rank, peer);
        }
    }

    /// Ends the connection of `rank` with `peer`. The end is a reset if `rank` has not read all of
    /// it.
    fn close_connection(&mut self, key: u64, rank: usize, peer: usize) {
        let resets = self.fault_plan.keepalive_timeout.is_some();
        let group = self.fabric(key);
        let (host, other, seat) = (group.hosts[rank], group.hosts[peer], &mut group.endpoints[rank]);
        if seat.connections[peer] != ConnectionState::Open {
            return;
        }
        if !(resets && seat.has_unread(peer)) {
            return self.send_control(key, rank, peer, Packet::Event(PeerEvent::Exited { from: rank }));
        }
        if !self.is_partitioned(host, other) {
            return self.send_control(key, rank, peer, Packet::Reset);
        }
        // The only reset gets lost, and packets in flight are not sent again.
        self.fabric(key).endpoints[rank].connections[peer] = ConnectionState::Closed;
        self.send_stale_data(key, rank, peer);
    }

    fn send_control(&mut self, key: u64, sender: usize, receiver: usize, cargo: Packet) {
        let group = self.fabric(key);
        let way = group.route(CONTROL, key, sender, receiver, 0);
        let notes = group.endpoints[sender].control_streams[receiver];
        let notes = self.enqueue(notes, way, cargo);
        self.fabric(key).endpoints[sender].control_streams[receiver] = notes;
    }
}

const MESSAGE: u64 = 1;
const CREDIT: u64 = 2;
const CONTROL: u64 = 3;
