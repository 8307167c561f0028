//! Simulations of many ranks that agree, with messages in an order given by a seed, while ranks die
//! at the worst moments.

use crate::engine::membership::agreement::*;
use std::collections::VecDeque;

/// A message in transit from one rank to another.
#[derive(Clone)]
enum Message {
    View(View),
    End,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    Negotiating,
    /// The rank connects to this group.
    Connecting(Membership),
    Committed(Group),
    Dead,
}

/// The group that a rank has connected to.
#[derive(Clone, Debug, PartialEq)]
struct Group {
    attempt: u32,
    failed: Vec<bool>,
    value: u64,
}

impl Group {
    fn of(membership: &Membership) -> Self {
        let Membership { attempt, failed, value, .. } = membership.clone();
        Self { attempt, failed, value }
    }
}

struct Simulation {
    random: u64,
    agreements: Vec<Agreement>,
    states: Vec<State>,
    connected: Vec<Option<Group>>,
    /// Messages in transit, by sender and receiver.
    messages: Vec<Vec<VecDeque<Message>>>,
}

impl Simulation {
    fn new(ranks: usize, seed: u64) -> Self {
        let agreement =
            |rank| Agreement::new(rank, vec![false; ranks], Duration::ZERO).with_value(value_of(rank, seed));
        let mut simulation = Self {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            agreements: (0..ranks).map(agreement).collect(),
            states: vec![State::Negotiating; ranks],
            connected: vec![None; ranks],
            messages: vec![vec![VecDeque::new(); ranks]; ranks],
        };
        (0..ranks).for_each(|rank| simulation.broadcast(rank));
        simulation
    }

    fn below(&mut self, end: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 20) as usize % end
    }

    fn ranks(&self) -> usize {
        self.agreements.len()
    }

    fn broadcast(&mut self, rank: Rank) {
        if self.agreements[rank].needs_endpoint() {
            self.agreements[rank].set_endpoint(format!("at {rank}"));
        }
        let view = self.agreements[rank].own().clone();
        self.messages[rank].iter_mut().for_each(|box_| box_.push_back(Message::View(view.clone())));
    }

    /// Kills `rank`; its last messages reach only some peers.
    fn kill(&mut self, rank: Rank) {
        self.states[rank] = State::Dead;
        for peer in 0..self.ranks() {
            let cut = self.below(2);
            if cut == 1 {
                self.messages[rank][peer].pop_back();
            }
            self.messages[rank][peer].push_back(Message::End);
        }
    }

    /// Delivers the next message from `sender` to `receiver`.
    fn deliver(&mut self, sender: Rank, receiver: Rank) {
        let Some(message) = self.messages[sender][receiver].pop_front() else { return };
        let earlier = self.agreements[receiver].own().clone();
        match message {
            _ if sender == receiver => {}
            Message::View(view) => {
                self.agreements[receiver].on_view(sender, view, Duration::ZERO).expect("no rank is excluded")
            }
            Message::End => self.agreements[receiver].on_failure(sender),
        }
        if self.agreements[receiver].is_committed() {
            self.agreements[receiver].commit();
            let group = self.connected[receiver].clone().expect("a committed rank is connected");
            assert_eq!(group.attempt, self.agreements[receiver].own().attempt);
            self.states[receiver] = State::Committed(group);
            return self.broadcast(receiver);
        }
        if let Some(membership) = self.agreements[receiver].membership() {
            self.agreements[receiver].begin_connect();
            self.connected[receiver] = None;
            self.states[receiver] = State::Connecting(membership);
        }
        if *self.agreements[receiver].own() != earlier {
            self.broadcast(receiver);
        }
    }

    /// Ends the connecting of `rank` if it can end. It succeeds if all members connect. If a member
    /// died, it succeeds or fails by chance.
    fn end_connecting(&mut self, rank: Rank) {
        let State::Connecting(membership) = self.states[rank].clone() else { return };
        let members: Vec<Rank> = (0..self.ranks()).filter(|&peer| !membership.failed[peer]).collect();
        let same = |state: &State| matches!(state, State::Connecting(other) if (other.attempt, &other.failed) == (membership.attempt, &membership.failed));
        let is_there = |peer: &Rank| {
            same(&self.states[*peer])
                || self.connected[*peer].as_ref().is_some_and(|group| {
                    (group.attempt, &group.failed) == (membership.attempt, &membership.failed)
                })
        };
        let are_there = members.iter().all(is_there);
        let succeeds =
            are_there && (members.iter().all(|&peer| self.states[peer] != State::Dead) || self.below(2) == 0);
        self.states[rank] = State::Negotiating;
        if succeeds {
            self.agreements[rank].on_connected();
            self.connected[rank] = Some(Group::of(&membership));
        } else if are_there || self.below(50) == 0 {
            self.agreements[rank].on_connect_failed();
        } else {
            self.states[rank] = State::Connecting(membership);
            return;
        }
        self.broadcast(rank);
    }

    fn run(&mut self, deaths: usize) {
        let mut deaths = deaths;
        for _ in 0..200_000 {
            if !self.states.iter().any(|state| matches!(state, State::Negotiating | State::Connecting(_))) {
                return;
            }
            let (sender, receiver) = (self.below(self.ranks()), self.below(self.ranks()));
            match self.states[receiver] {
                State::Negotiating => self.deliver(sender, receiver),
                State::Connecting(_) => self.end_connecting(receiver),
                State::Committed(..) | State::Dead => {}
            }
            // The worst moment is right after a commit, which only some peers receive.
            let odds = if matches!(self.states[receiver], State::Committed(..)) { 4 } else { 60 };
            if deaths > 0 && self.states[receiver] != State::Dead && self.below(odds) == 0 {
                deaths -= 1;
                self.kill(receiver);
            }
        }
        panic!("the agreement does not end: {:?}", self.states);
    }
}

/// Returns the value that `rank` gives.
fn value_of(rank: Rank, seed: u64) -> u64 {
    (rank as u64 * 7 + seed) % 11
}

#[test]
fn agreement_survivors_commit_same_view_for_any_failures() {
    for seed in 0..3000 {
        let ranks = 2 + seed as usize % 5;
        let mut simulation = Simulation::new(ranks, seed);
        simulation.run(seed as usize / 5 % ranks);
        let mut ends = simulation.states.iter().filter(|state| **state != State::Dead);
        let first = ends.next().expect("a rank survives");
        assert!(ends.all(|end| end == first), "seed {seed}: {:?}", simulation.states);
        let State::Committed(Group { failed, value, .. }) = first else { panic!("seed {seed}: {first:?}") };
        let values = (0..ranks).filter(|&rank| !failed[rank]).map(|rank| value_of(rank, seed));
        assert_eq!(values.min(), Some(*value), "seed {seed}");
        for (rank, state) in simulation.states.iter().enumerate() {
            assert!(*state == State::Dead || !failed[rank], "seed {seed}: rank {rank} is excluded");
        }
    }
}

#[test]
fn agreement_without_failures_keeps_all_ranks() {
    let mut simulation = Simulation::new(4, 7);
    simulation.run(0);
    let State::Committed(Group { attempt, value, .. }) = simulation.states[0] else {
        panic!("{:?}", simulation.states)
    };
    let group = Group { attempt, failed: vec![false; 4], value };
    assert_eq!(simulation.states, vec![State::Committed(group); 4]);
}

/// Returns the view of the first attempt of a peer.
fn first_view(phase: Phase, failed: Vec<bool>) -> View {
    View { attempt: 0, phase, failed, endpoint: String::new(), settings: 0, value: 0 }
}

#[test]
fn agreement_tells_excluded_rank() {
    let mut late = Agreement::new(2, vec![false; 3], Duration::ZERO);
    let view = first_view(Phase::Committed, vec![false, false, true]);
    assert_eq!(late.on_view(0, view, Duration::ZERO), Err(Excluded(0)));
}

#[test]
fn agreement_excludes_unresponsive_only_by_majority() {
    let second = Duration::from_secs(1);
    let mut agreement = Agreement::new(0, vec![false; 4], Duration::ZERO);
    let view = first_view(Phase::Proposing, vec![false; 4]);
    agreement.on_view(1, view, 5 * second).expect("this rank is not excluded");
    assert_eq!(agreement.unresponsive(6 * second, 2 * second), [2, 3]);
    assert!(!agreement.is_majority_without(&[2, 3]) && agreement.is_majority_without(&[2]));
}

#[test]
fn agreement_serial_exclusions_need_majority_too() {
    let second = Duration::from_secs(1);
    let mut agreement = Agreement::new(0, vec![false; 5], Duration::ZERO);
    let view = first_view(Phase::Proposing, vec![false; 5]);
    (1..5).for_each(|peer| {
        agreement.on_view(peer, view.clone(), peer as u32 * second).expect("this rank is not excluded")
    });
    for (peer, may_exclude) in [(1, true), (2, true), (3, false)] {
        let silent = agreement.unresponsive((peer as u32 + 3) * second, 2 * second);
        assert_eq!((silent.as_slice(), agreement.is_majority_without(&silent)), (&[peer][..], may_exclude));
        agreement.exclude(peer);
    }
    let mut agreement = Agreement::new(0, vec![false; 5], Duration::ZERO);
    let suspicion = View { failed: vec![false, false, true, true, true], ..view };
    agreement.on_view(1, suspicion, Duration::ZERO).expect("this rank is not excluded");
    agreement.accept_suspicions(second);
    assert_eq!(agreement.own().failed, [false; 5], "two of five are no majority");
    agreement.on_failure(4);
    agreement.on_failure(3);
    agreement.accept_suspicions(second);
    assert_eq!(agreement.own().failed, [false, false, true, true, true], "two of three are a majority");
}

#[test]
fn agreement_loses_majority_when_a_survivor_fails() {
    let mut agreement = Agreement::new(0, vec![false; 5], Duration::ZERO);
    [1, 4].into_iter().for_each(|peer| agreement.exclude(peer));
    agreement.set_endpoint("at 0".to_owned());
    let view = View { endpoint: String::new(), ..agreement.own().clone() };
    [2, 3].into_iter().for_each(|peer| {
        agreement.on_view(peer, view.clone(), Duration::ZERO).expect("this rank is not excluded")
    });
    assert_eq!(agreement.membership().map(|membership| membership.ranks), Some(3));
    agreement.on_failure(2);
    agreement.on_view(3, agreement.own().clone(), Duration::ZERO).expect("this rank is not excluded");
    assert_eq!((agreement.membership(), agreement.excluded().collect::<Vec<_>>()), (None, vec![1, 4]));
}

/// The last rank failed, the others differ or agree in what was set on them.
#[test]
fn settings_agree_if_those_of_all_survivors_are_equal() {
    for (others, expected) in [([5, 5, 6], true), ([5, 4, 5], false)] {
        let mut agreement =
            Agreement::new(0, vec![false, false, false, true], Duration::ZERO).with_settings(5);
        agreement.set_endpoint("at 0".to_owned());
        assert_eq!(agreement.membership(), None, "nothing is known yet");
        for (peer, settings) in (1..).zip(others) {
            let view = View { settings, ..agreement.own().clone() };
            agreement.on_view(peer, view, Duration::ZERO).unwrap();
        }
        assert_eq!(agreement.membership().map(|members| members.settings_agree), Some(expected));
    }
}
