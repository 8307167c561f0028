//! Meetings on the simulated network, for ranks that go on in another mesh.
//!
//! What matters of a meeting over sockets, without the sockets: all come to the
//! first of them, the root; it sees to it that each reaches each; then it tells
//! one after the other, and may die or be cut off between two words. Who hears
//! nothing gives up, and its end is told to those who have heard.

use super::ends::Process;
use super::group::{Group, Stream};
use super::random::stir;
use super::world::{Cargo, Network, Way, World};
use crate::{Error, Gathering, Mesh, Result, Venue};
use std::sync::Arc;
use std::time::Duration;

/// Who has come to a meeting; its key is that of the mesh that it makes.
pub(super) struct Meeting {
    /// The host of each rank; none before it has set out.
    hosts: Vec<Option<usize>>,
    /// Who has arrived at the root.
    here: Vec<bool>,
    /// Who has given up before all had come.
    failed: bool,
}

/// How one host meets others over the simulated network.
pub(super) struct SimVenue {
    process: Arc<Process>,
}

impl SimVenue {
    pub(super) fn new(process: &Arc<Process>) -> Self {
        Self { process: Arc::clone(process) }
    }
}

impl Venue for SimVenue {
    fn place(&self) -> Result<String> {
        let Process { network, host } = &*self.process;
        let mut world = network.lock();
        world.alive(*host)?;
        Ok(format!("host {host}, {}", world.next_place(*host)))
    }

    fn meet(&self, gathering: Gathering<'_>, patience: Duration) -> Result<Mesh> {
        let Process { network, host } = &*self.process;
        let (key, rank) = (key(gathering.place, gathering.label), gathering.rank);
        let mut world = network.lock();
        let deadline = world.now() + patience;
        world.set_out(key, &gathering, *host);
        loop {
            world.alive(*host)?;
            if world.groups.get(&key).is_some_and(|group| group.seats[rank].met) {
                drop(world);
                return Ok(super::ends::mesh(&self.process, key, rank));
            }
            let left = deadline.saturating_sub(world.now());
            if left.is_zero() {
                world.give_up(key, rank);
                let what = format!("{} ranks did not all meet at {}", gathering.ranks, gathering.place);
                return Err(Error::Timeout { what });
            }
            drop(world);
            network.wait(*host, left);
            world = network.lock();
        }
    }
}

/// What those who mean the same meeting have in common.
pub(super) fn key(place: &str, label: &[u8]) -> u64 {
    let words = place.bytes().chain([0]).chain(label.iter().copied());
    words.fold(MEETING, |digest, byte| stir(digest, u64::from(byte)))
}

impl World {
    /// `host` is on its way to the root.
    fn set_out(&mut self, key: u64, gathering: &Gathering<'_>, host: usize) {
        let Gathering { rank, ranks, .. } = *gathering;
        let meeting = self.meetings.entry(key).or_insert_with(|| Meeting {
            hosts: vec![None; ranks],
            here: vec![false; ranks],
            failed: false,
        });
        meeting.hosts[rank] = Some(host);
        if rank == 0 {
            // Those who came before there was a root have tried again and again.
            (0..ranks).for_each(|early| self.approach(key, early));
        } else {
            self.approach(key, rank);
        }
    }

    fn approach(&mut self, key: u64, rank: usize) {
        let hosts = &self.meetings[&key].hosts;
        if let (Some(host), Some(root)) = (hosts[rank], hosts[0]) {
            let way = Way { kind: MEETING, group: key, from: rank, to: 0, lane: 0, hosts: (host, root) };
            self.send_after(Stream::default(), way, Cargo::Coming);
        }
    }

    /// `rank` has come to the root; once all have, it makes their mesh.
    pub(super) fn come(&mut self, key: u64, rank: usize) -> bool {
        let meeting = self.meetings.get_mut(&key).expect("somebody set out for it");
        meeting.here[rank] = true;
        let all: Option<Vec<usize>> = meeting.hosts.iter().copied().collect();
        let Some(hosts) = all.filter(|_| !meeting.failed && !meeting.here.contains(&false)) else {
            return false;
        };
        let reaches = |from: &usize| hosts.iter().all(|&to| to == *from || !self.is_cut(*from, to));
        if self.is_dead(hosts[0]) || self.groups.contains_key(&key) || !hosts.iter().all(reaches) {
            return false;
        }
        let ranks = hosts.len();
        let dead: Vec<usize> = (0..ranks).filter(|&rank| self.is_known_dead(hosts[rank])).collect();
        self.groups.insert(key, Group::new(&self.geometry, hosts));
        self.expect_silence(key);
        dead.into_iter().for_each(|rank| self.tell_of_end(key, rank));
        self.turn(key, 0);
        false
    }

    /// The root speaks to `rank`, and then to the next one.
    pub(super) fn speak(&mut self, key: u64, rank: usize) -> bool {
        let hosts = self.group(key).hosts.clone();
        if !self.is_dead(hosts[0]) {
            let way =
                Way { kind: WORD, group: key, from: 0, to: rank, lane: 0, hosts: (hosts[0], hosts[rank]) };
            self.send_after(Stream::default(), way, Cargo::Word);
            if rank + 1 < hosts.len() {
                self.turn(key, rank + 1);
            }
        }
        false
    }

    fn turn(&mut self, key: u64, rank: usize) {
        let root = self.group(key).hosts[0];
        let way = Way { kind: TURN, group: key, from: 0, to: rank, lane: 0, hosts: (root, root) };
        self.send_after(Stream::default(), way, Cargo::Turn);
    }

    fn give_up(&mut self, key: u64, rank: usize) {
        match self.groups.contains_key(&key) {
            true => self.close(key, rank),
            false => self.meetings.get_mut(&key).expect("this rank set out for it").failed = true,
        }
    }
}

impl Group {
    /// The root says that all have met.
    pub(super) fn hear_word(&mut self, rank: usize) -> bool {
        self.seats[rank].met = true;
        true
    }
}

impl Network {
    /// The hosts of the mesh that came of a meeting, by rank.
    pub(super) fn members(&self, place: &str, label: &[u8]) -> Option<Vec<usize>> {
        self.lock().groups.get(&key(place, label)).map(|group| group.hosts.clone())
    }
}

const MEETING: u64 = 4;
const TURN: u64 = 5;
const WORD: u64 = 6;
