//! Ends of control connections without a farewell: by silence or by a reset.
//!
//! The model follows TCP. A kernel that gets no answer for too long gives up its end of a
//! connection. It then knows nothing of the connection, and answers all data of the other end by a
//! reset. A kernel whose process has closed the connection with control messages unread does the
//! same. A rank whose connection is reset probes the listener of the other rank. It takes that rank
//! for dead only if nobody listens there.

use crate::PeerEvent;
use crate::sim::fabric::Stream;
use crate::sim::nodes::{Arrival, Direction, NetworkState, Packet, Route, as_nanos};
use std::time::Duration;

/// State of one end of a control connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ConnectionState {
    #[default]
    Open,
    /// The end was reset, and the other rank is being probed.
    Probing,
    /// Nothing arrives or leaves.
    Closed,
}

impl NetworkState {
    /// Schedules a check of all ends of a new fabric at the times when a fault may have silenced
    /// them.
    pub(super) fn schedule_keepalives(&mut self, key: u64) {
        let (hosts, now) = (self.fabric(key).hosts.clone(), self.now());
        for (rank, &host) in hosts.iter().enumerate() {
            for (peer, &other) in hosts.iter().enumerate().filter(|&(peer, _)| peer != rank) {
                let cuts = self.fault_plan.partitions_between(host, other).map(|(start, _)| start);
                let begin: Vec<Duration> = cuts.filter(|start| *start >= now).collect();
                (0..)
                    .zip(begin)
                    .for_each(|(index, start)| self.schedule_keepalive(key, rank, peer, start, index));
                if self.has_vanished(other) {
                    self.schedule_keepalive(key, rank, peer, now, VANISHED_INDEX);
                }
            }
        }
    }

    /// Schedules checks after a host has vanished: its peers hear nothing from it again.
    pub(super) fn schedule_keepalives_for_host(&mut self, host: usize) {
        for key in self.fabrics.keys().copied().collect::<Vec<_>>() {
            let Some(rank) = self.fabric(key).rank_of(host) else { continue };
            let (ranks, now) = (self.fabric(key).hosts.len(), self.now());
            let peers = (0..ranks).filter(|&peer| peer != rank);
            peers.for_each(|peer| self.schedule_keepalive(key, peer, rank, now, VANISHED_INDEX));
        }
    }

    /// Schedules the check of `rank` at which `peer` has answered nothing for the keepalive timeout
    /// since then.
    fn schedule_keepalive(&mut self, key: u64, rank: usize, peer: usize, start: Duration, index: u64) {
        let [host, other] = [rank, peer].map(|rank| self.fabric(key).hosts[rank]);
        if let Some(patience) = self.fault_plan.host_keepalive_timeout(host, other) {
            self.schedule_at(
                start + patience,
                Route::local(KEEPALIVE_TIMER, key, Direction { from: peer, to: rank }, host),
                index,
                Packet::KeepaliveTimer,
            );
        }
    }

    /// Gives up the end of `rank` if `peer` has answered nothing for too long.
    pub(super) fn check_keepalive(&mut self, key: u64, rank: usize, peer: usize) -> bool {
        let [host, other] = [rank, peer].map(|rank| self.fabric(key).hosts[rank]);
        let endpoint = &self.fabric(key).endpoints[rank];
        let is_over =
            endpoint.is_closed() || endpoint.connections[peer] != ConnectionState::Open || self.is_dead(host);
        let (silence, now) = (self.fault_plan.keepalive_timeout.unwrap_or(Duration::MAX), self.now());
        let vanished = self.died_at(other).filter(|_| !self.is_known_dead(other));
        let start = self.fault_plan.unanswered_since(host, other, now).into_iter().chain(vanished).min();
        if is_over || start.is_none_or(|start| now < start.saturating_add(silence)) {
            return false;
        }
        self.fabric(key).endpoints[rank].connections[peer] = ConnectionState::Closed;
        self.fabric(key).endpoints[rank].events.push_back(PeerEvent::Unreachable { from: peer });
        // Some kernels announce it by a reset, if packets pass.
        match self.fault_plan.resets_on_timeout(host) && !self.is_partitioned(host, other) {
            true => self.send_once(RESET, key, Direction { from: rank, to: peer }, Packet::Reset),
            false => self.send_stale_data(key, rank, peer),
        }
        true
    }

    /// Sends data or a probe of `peer`, after some time, on a connection of which `rank` knows
    /// nothing.
    pub(super) fn send_stale_data(&mut self, key: u64, rank: usize, peer: usize) {
        self.send_once(STALE_DATA, key, Direction { from: peer, to: rank }, Packet::StaleData);
    }

    /// Handles a packet for a connection that nobody knows at its destination.
    pub(super) fn on_stale_data(&mut self, key: u64, rank: usize, peer: usize) -> bool {
        let host = self.fabric(key).hosts[rank];
        if !self.has_vanished(host) {
            self.send_once(RESET, key, Direction { from: rank, to: peer }, Packet::Reset);
        }
        false
    }

    /// Delivers a control message, or the end of all of them, to its receiver if both ends of the
    /// connection exist.
    pub(super) fn on_event(&mut self, key: u64, direction: Direction, event: PeerEvent) -> bool {
        let Direction { from, to } = direction;
        let endpoints = &mut self.fabric(key).endpoints;
        if endpoints[from].connections[to] != ConnectionState::Open
            || endpoints[to].connections[from] != ConnectionState::Open
        {
            return false;
        }
        if matches!(event, PeerEvent::Exited { .. }) {
            endpoints[to].connections[from] = ConnectionState::Closed;
        }
        endpoints[to].events.push_back(event);
        true
    }

    /// Handles a reset of the end of `rank`, which then probes the listener of `peer`.
    pub(super) fn on_reset(&mut self, key: u64, rank: usize, peer: usize) -> bool {
        let host = self.fabric(key).hosts[rank];
        let end = &mut self.fabric(key).endpoints[rank].connections[peer];
        if *end == ConnectionState::Open {
            *end = ConnectionState::Probing;
            self.send_once(PROBE, key, Direction { from: rank, to: peer }, Packet::Probe);
            let patience = self.fault_plan.keepalive_timeout.unwrap_or(PROBE_WAIT_MAX).min(PROBE_WAIT_MAX);
            let way = Route::local(PROBE_TIMEOUT, key, Direction { from: peer, to: rank }, host);
            self.schedule_at(self.now() + patience, way, 0, Packet::ProbeResult { ended: false });
        }
        false
    }

    /// Handles a probe of `peer` at the listener of `rank`. The kernel answers for a process that
    /// has ended. A stopped process gives no answer.
    pub(super) fn on_probe(&mut self, key: u64, rank: usize, peer: usize) -> bool {
        let host = self.fabric(key).hosts[rank];
        let ended = self.is_dead(host) || self.fabric(key).endpoints[rank].listener_closed;
        if !self.has_vanished(host) && (ended || self.stall_end(host).is_none()) {
            self.send_once(
                PROBE_REPLY,
                key,
                Direction { from: rank, to: peer },
                Packet::ProbeResult { ended },
            );
        }
        false
    }

    /// Handles the result of the probe of `peer` by `rank`, or the end of the wait for it.
    pub(super) fn on_probe_result(&mut self, key: u64, rank: usize, peer: usize, ended: bool) -> bool {
        let endpoint = &mut self.fabric(key).endpoints[rank];
        let was_probing = endpoint.connections[peer] == ConnectionState::Probing;
        if was_probing {
            endpoint.connections[peer] = ConnectionState::Closed;
            let event =
                if ended { PeerEvent::Exited { from: peer } } else { PeerEvent::Reset { from: peer } };
            endpoint.events.push_back(event);
        }
        was_probing
    }

    /// Closes the listener of `rank`, which nobody holds open.
    pub(super) fn close_listener(&mut self, key: u64, rank: usize) {
        self.fabric(key).endpoints[rank].listener_closed = true;
    }

    fn has_vanished(&self, host: usize) -> bool {
        self.is_dead(host) && !self.is_known_dead(host)
    }

    /// Sends a packet that is sent once at most from one rank of a fabric to another.
    fn send_once(&mut self, kind: u64, key: u64, direction: Direction, cargo: Packet) {
        let way = self.fabric(key).route(kind, key, direction.from, direction.to, 0);
        self.enqueue(Stream::default(), way, cargo);
    }

    /// Schedules an event for this time.
    fn schedule_at(&mut self, time: Duration, way: Route, index: u64, cargo: Packet) {
        self.in_flight.insert(Arrival { time: as_nanos(time), route: way, index }, cargo);
    }
}

/// Longest wait of a rank for the answer to a probe.
const PROBE_WAIT_MAX: Duration = Duration::from_secs(2);
/// Separates these checks from those at partitions.
const VANISHED_INDEX: u64 = 1 << 32;
const KEEPALIVE_TIMER: u64 = 7;
const STALE_DATA: u64 = 8;
const RESET: u64 = 9;
const PROBE: u64 = 10;
const PROBE_REPLY: u64 = 11;
const PROBE_TIMEOUT: u64 = 12;
