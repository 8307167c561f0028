//! How connections for notes end otherwise than by a farewell: in silence, or by a reset.
//!
//! As over TCP: a kernel to which nothing was answered for too long gives its end of a connection up. It then knows nothing
//! of it, and answers whatever the other end says by a reset; so does one whose process has shut the connection with notes
//! unread. Whoever is reset knocks at the door of the other rank, and takes it for dead only if nobody listens there.

use crate::PeerEvent;
use crate::sim::fabric::Stream;
use crate::sim::nodes::{Arrival, NetworkState, Packet, Route, as_nanos};
use std::time::Duration;

/// One end of a connection for notes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ConnectionState {
    #[default]
    Open,
    /// It was reset, and the other rank is asked whether it lives.
    Probing,
    /// Nothing comes or goes any more.
    Closed,
}

impl NetworkState {
    /// Has all ends of a new fabric looked at when something may have silenced them.
    pub(super) fn schedule_keepalives(&mut self, key: u64) {
        let (hosts, now) = (self.fabric(key).hosts.clone(), self.now());
        for (rank, &host) in hosts.iter().enumerate() {
            for (peer, &other) in hosts.iter().enumerate().filter(|&(peer, _)| peer != rank) {
                let cuts = self.fault_plan.partitions_between(host, other).map(|(at, _)| at);
                let begin: Vec<Duration> = cuts.filter(|at| *at >= now).collect();
                (0..)
                    .zip(begin)
                    .for_each(|(index, at)| self.schedule_keepalive(key, (rank, peer), at, index));
                if self.has_vanished(other) {
                    self.schedule_keepalive(key, (rank, peer), now, VANISHED_INDEX);
                }
            }
        }
    }

    /// A host has vanished: its peers hear nothing any more.
    pub(super) fn schedule_keepalives_for_host(&mut self, host: usize) {
        for key in self.fabrics.keys().copied().collect::<Vec<_>>() {
            let Some(rank) = self.fabric(key).rank_of(host) else { continue };
            let (ranks, now) = (self.fabric(key).hosts.len(), self.now());
            let peers = (0..ranks).filter(|&peer| peer != rank);
            peers.for_each(|peer| self.schedule_keepalive(key, (peer, rank), now, VANISHED_INDEX));
        }
    }

    /// The kernel of `rank` looks when `peer` has answered nothing for as long as it bears since then.
    fn schedule_keepalive(&mut self, key: u64, (rank, peer): (usize, usize), since: Duration, index: u64) {
        let [host, other] = [rank, peer].map(|rank| self.fabric(key).hosts[rank]);
        if let Some(patience) = self.fault_plan.host_keepalive_timeout(host, other) {
            self.schedule_at(
                since + patience,
                Route::local(KEEPALIVE_TIMER, key, (peer, rank), host),
                index,
                Packet::KeepaliveTimer,
            );
        }
    }

    /// Gives the end of `rank` up if `peer` has answered nothing for too long.
    pub(super) fn check_keepalive(&mut self, key: u64, rank: usize, peer: usize) -> bool {
        let [host, other] = [rank, peer].map(|rank| self.fabric(key).hosts[rank]);
        let seat = &self.fabric(key).endpoints[rank];
        let is_over =
            seat.is_closed() || seat.connections[peer] != ConnectionState::Open || self.is_dead(host);
        let (silence, now) = (self.fault_plan.keepalive_timeout.unwrap_or(Duration::MAX), self.now());
        let vanished = self.died_at(other).filter(|_| !self.is_known_dead(other));
        let since = self.fault_plan.unanswered_since(host, other, now).into_iter().chain(vanished).min();
        if is_over || since.is_none_or(|since| now < since.saturating_add(silence)) {
            return false;
        }
        self.fabric(key).endpoints[rank].connections[peer] = ConnectionState::Closed;
        self.fabric(key).endpoints[rank].events.push_back(PeerEvent::Unreachable { from: peer });
        // Some kernels say so themselves, where that passes.
        match self.fault_plan.resets_on_timeout(host) && !self.is_partitioned(host, other) {
            true => self.send_once(RESET, key, (rank, peer), Packet::Reset),
            false => self.send_stale_data(key, rank, peer),
        }
        true
    }

    /// `peer` says or asks something on a connection of which `rank` knows nothing any more, some time.
    pub(super) fn send_stale_data(&mut self, key: u64, rank: usize, peer: usize) {
        self.send_once(STALE_DATA, key, (peer, rank), Packet::StaleData);
    }

    /// A question has come to where nobody knows of the connection.
    pub(super) fn on_stale_data(&mut self, key: u64, rank: usize, peer: usize) -> bool {
        let host = self.fabric(key).hosts[rank];
        if !self.has_vanished(host) {
            self.send_once(RESET, key, (rank, peer), Packet::Reset);
        }
        false
    }

    /// A note, or the end of all notes, has come to `to`, if both ends of the connection are there.
    pub(super) fn on_event(&mut self, key: u64, (from, to): (usize, usize), event: PeerEvent) -> bool {
        let seats = &mut self.fabric(key).endpoints;
        if seats[from].connections[to] != ConnectionState::Open
            || seats[to].connections[from] != ConnectionState::Open
        {
            return false;
        }
        if matches!(event, PeerEvent::Exited { .. }) {
            seats[to].connections[from] = ConnectionState::Closed;
        }
        seats[to].events.push_back(event);
        true
    }

    /// The end of `rank` is reset: it knocks at the door of `peer`.
    pub(super) fn on_reset(&mut self, key: u64, rank: usize, peer: usize) -> bool {
        let host = self.fabric(key).hosts[rank];
        let end = &mut self.fabric(key).endpoints[rank].connections[peer];
        if *end == ConnectionState::Open {
            *end = ConnectionState::Probing;
            self.send_once(PROBE, key, (rank, peer), Packet::Probe);
            let patience = self.fault_plan.keepalive_timeout.unwrap_or(PROBE_WAIT_MAX).min(PROBE_WAIT_MAX);
            let way = Route::local(PROBE_TIMEOUT, key, (peer, rank), host);
            self.schedule_at(self.now() + patience, way, 0, Packet::ProbeResult { ended: false });
        }
        false
    }

    /// `peer` knocks at the door of `rank`. Of a process that has ended the kernel says so, of one that is stopped nobody.
    pub(super) fn on_probe(&mut self, key: u64, rank: usize, peer: usize) -> bool {
        let host = self.fabric(key).hosts[rank];
        let ended = self.is_dead(host) || self.fabric(key).endpoints[rank].listener_closed;
        if !self.has_vanished(host) && (ended || self.stall_end(host).is_none()) {
            self.send_once(PROBE_REPLY, key, (rank, peer), Packet::ProbeResult { ended });
        }
        false
    }

    /// `rank` has heard at the door of `peer` what became of that one, or has waited long enough.
    pub(super) fn on_probe_result(&mut self, key: u64, rank: usize, peer: usize, ended: bool) -> bool {
        let seat = &mut self.fabric(key).endpoints[rank];
        let is_asked = seat.connections[peer] == ConnectionState::Probing;
        if is_asked {
            seat.connections[peer] = ConnectionState::Closed;
            let from = peer;
            seat.events.push_back(if ended { PeerEvent::Exited { from } } else { PeerEvent::Reset { from } });
        }
        is_asked
    }

    /// The door of `rank` is shut: nobody holds it open any more.
    pub(super) fn close_listener(&mut self, key: u64, rank: usize) {
        self.fabric(key).endpoints[rank].listener_closed = true;
    }

    fn has_vanished(&self, host: usize) -> bool {
        self.is_dead(host) && !self.is_known_dead(host)
    }

    /// Sends what is sent once at most from one rank of a fabric to another.
    fn send_once(&mut self, kind: u64, key: u64, (from, to): (usize, usize), cargo: Packet) {
        let way = self.fabric(key).route(kind, key, from, to, 0);
        self.enqueue(Stream::default(), way, cargo);
    }

    /// Has something happen at this time.
    fn schedule_at(&mut self, time: Duration, way: Route, index: u64, cargo: Packet) {
        self.in_flight.insert(Arrival { time: as_nanos(time), route: way, index }, cargo);
    }
}

/// For how long ranks wait for an answer at a door.
const PROBE_WAIT_MAX: Duration = Duration::from_secs(2);
/// Keeps these looks apart from those at cuts.
const VANISHED_INDEX: u64 = 1 << 32;
const KEEPALIVE_TIMER: u64 = 7;
const STALE_DATA: u64 = 8;
const RESET: u64 = 9;
const PROBE: u64 = 10;
const PROBE_REPLY: u64 = 11;
const PROBE_TIMEOUT: u64 = 12;
