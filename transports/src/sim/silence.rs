//! How connections for notes end otherwise than by a farewell: in silence, or by a reset.
//!
//! As over TCP: a kernel to which nothing was answered for too long gives its end of a connection up. It then knows nothing
//! of it, and answers whatever the other end says by a reset; so does one whose process has shut the connection with notes
//! unread. Whoever is reset knocks at the door of the other rank, and takes it for dead only if nobody listens there.

use super::group::Stream;
use super::world::{Arrival, Cargo, Way, World, nanos};
use crate::Event;
use std::time::Duration;

/// One end of a connection for notes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum End {
    #[default]
    Open,
    /// It was reset, and the other rank is asked whether it lives.
    Doubted,
    /// Nothing comes or goes any more.
    Over,
}

impl World {
    /// Has all ends of a new mesh looked at when something may have silenced them.
    pub(super) fn expect_silence(&mut self, key: u64) {
        let (hosts, now) = (self.group(key).hosts.clone(), self.now());
        for (rank, &host) in hosts.iter().enumerate() {
            for (peer, &other) in hosts.iter().enumerate().filter(|&(peer, _)| peer != rank) {
                let cuts = self.weather.cuts_between(host, other).map(|(at, _)| at);
                let begin: Vec<Duration> = cuts.filter(|at| *at >= now).collect();
                (0..).zip(begin).for_each(|(index, at)| self.look_later(key, (rank, peer), at, index));
                if self.has_vanished(other) {
                    self.look_later(key, (rank, peer), now, VANISHED);
                }
            }
        }
    }

    /// A host has vanished: its peers hear nothing any more.
    pub(super) fn expect_silence_of(&mut self, host: usize) {
        for key in self.groups.keys().copied().collect::<Vec<_>>() {
            let Some(rank) = self.group(key).rank_of(host) else { continue };
            let (ranks, now) = (self.group(key).hosts.len(), self.now());
            let peers = (0..ranks).filter(|&peer| peer != rank);
            peers.for_each(|peer| self.look_later(key, (peer, rank), now, VANISHED));
        }
    }

    /// The kernel of `rank` looks when `peer` has answered nothing for as long as it bears since then.
    fn look_later(&mut self, key: u64, (rank, peer): (usize, usize), since: Duration, index: u64) {
        let [host, other] = [rank, peer].map(|rank| self.group(key).hosts[rank]);
        if let Some(patience) = self.weather.patience(host, other) {
            self.at(since + patience, Way::within(LOOK, key, (peer, rank), host), index, Cargo::Look);
        }
    }

    /// Gives the end of `rank` up if `peer` has answered nothing for too long.
    pub(super) fn look(&mut self, key: u64, rank: usize, peer: usize) -> bool {
        let [host, other] = [rank, peer].map(|rank| self.group(key).hosts[rank]);
        let seat = &self.group(key).seats[rank];
        let is_over = seat.is_closed() || seat.ends[peer] != End::Open || self.is_dead(host);
        let (silence, now) = (self.weather.silence.unwrap_or(Duration::MAX), self.now());
        let vanished = self.died(other).filter(|_| !self.is_known_dead(other));
        let since = self.weather.unanswered_since(host, other, now).into_iter().chain(vanished).min();
        if is_over || since.is_none_or(|since| now < since.saturating_add(silence)) {
            return false;
        }
        self.group(key).seats[rank].ends[peer] = End::Over;
        self.group(key).seats[rank].events.push_back(Event::Silent { from: peer });
        // Some kernels say so themselves, where that passes.
        match self.weather.is_outspoken(host) && !self.is_cut(host, other) {
            true => self.send_once(RESET, key, (rank, peer), Cargo::Reset),
            false => self.ask(key, rank, peer),
        }
        true
    }

    /// `peer` says or asks something on a connection of which `rank` knows nothing any more, some time.
    pub(super) fn ask(&mut self, key: u64, rank: usize, peer: usize) {
        self.send_once(QUESTION, key, (peer, rank), Cargo::Question);
    }

    /// A question has come to where nobody knows of the connection.
    pub(super) fn answer(&mut self, key: u64, rank: usize, peer: usize) -> bool {
        let host = self.group(key).hosts[rank];
        if !self.has_vanished(host) {
            self.send_once(RESET, key, (rank, peer), Cargo::Reset);
        }
        false
    }

    /// A note, or the end of all notes, has come to `to`, if both ends of the connection are there.
    pub(super) fn hear(&mut self, key: u64, (from, to): (usize, usize), event: Event) -> bool {
        let seats = &mut self.group(key).seats;
        if seats[from].ends[to] != End::Open || seats[to].ends[from] != End::Open {
            return false;
        }
        if matches!(event, Event::Closed { .. }) {
            seats[to].ends[from] = End::Over;
        }
        seats[to].events.push_back(event);
        true
    }

    /// The end of `rank` is reset: it knocks at the door of `peer`.
    pub(super) fn reset(&mut self, key: u64, rank: usize, peer: usize) -> bool {
        let host = self.group(key).hosts[rank];
        let end = &mut self.group(key).seats[rank].ends[peer];
        if *end == End::Open {
            *end = End::Doubted;
            self.send_once(KNOCK, key, (rank, peer), Cargo::Knock);
            let patience = self.weather.silence.unwrap_or(KNOCK_TIME).min(KNOCK_TIME);
            let way = Way::within(NO_ANSWER, key, (peer, rank), host);
            self.at(self.now() + patience, way, 0, Cargo::Fate { ended: false });
        }
        false
    }

    /// `peer` knocks at the door of `rank`. Of a process that has ended the kernel says so, of one that is stopped nobody.
    pub(super) fn knock(&mut self, key: u64, rank: usize, peer: usize) -> bool {
        let host = self.group(key).hosts[rank];
        let ended = self.is_dead(host) || self.group(key).seats[rank].shut;
        if !self.has_vanished(host) && (ended || self.stall_end(host).is_none()) {
            self.send_once(ANSWER, key, (rank, peer), Cargo::Fate { ended });
        }
        false
    }

    /// `rank` has heard at the door of `peer` what became of that one, or has waited long enough.
    pub(super) fn conclude(&mut self, key: u64, rank: usize, peer: usize, ended: bool) -> bool {
        let seat = &mut self.group(key).seats[rank];
        let is_asked = seat.ends[peer] == End::Doubted;
        if is_asked {
            seat.ends[peer] = End::Over;
            let from = peer;
            seat.events.push_back(if ended { Event::Closed { from } } else { Event::Cut { from } });
        }
        is_asked
    }

    /// The door of `rank` is shut: nobody holds it open any more.
    pub(super) fn shut(&mut self, key: u64, rank: usize) {
        self.group(key).seats[rank].shut = true;
    }

    fn has_vanished(&self, host: usize) -> bool {
        self.is_dead(host) && !self.is_known_dead(host)
    }

    /// Sends what is sent once at most from one rank of a mesh to another.
    fn send_once(&mut self, kind: u64, key: u64, (from, to): (usize, usize), cargo: Cargo) {
        let way = self.group(key).way(kind, key, from, to, 0);
        self.send_after(Stream::default(), way, cargo);
    }

    /// Has something happen at this time.
    fn at(&mut self, time: Duration, way: Way, index: u64, cargo: Cargo) {
        self.under_way.insert(Arrival { time: nanos(time), way, index }, cargo);
    }
}

/// For how long ranks wait for an answer at a door.
const KNOCK_TIME: Duration = Duration::from_secs(2);
/// Keeps these looks apart from those at cuts.
const VANISHED: u64 = 1 << 32;
const LOOK: u64 = 7;
const QUESTION: u64 = 8;
const RESET: u64 = 9;
const KNOCK: u64 = 10;
const ANSWER: u64 = 11;
const NO_ANSWER: u64 = 12;
