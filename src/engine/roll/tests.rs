//! Many ranks that count, in every order that a seed gives, while some of them end at the worst moments.

use super::*;
use std::collections::VecDeque;

/// What is on its way from one rank to another.
#[derive(Clone)]
enum Letter {
    Said(Count),
    End,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    Talking,
    /// In a meeting of these.
    Meeting(Company),
    Gone(u32, Vec<bool>),
    Dead,
}

struct World {
    random: u64,
    rolls: Vec<Roll>,
    states: Vec<State>,
    /// What each has met for.
    held: Vec<Option<(u32, Vec<bool>)>>,
    /// By sender and receiver.
    letters: Vec<Vec<VecDeque<Letter>>>,
}

impl World {
    fn new(ranks: usize, seed: u64) -> Self {
        let roll = |rank| Roll::new(rank, vec![false; ranks], Duration::ZERO);
        let mut world = Self {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            rolls: (0..ranks).map(roll).collect(),
            states: vec![State::Talking; ranks],
            held: vec![None; ranks],
            letters: vec![vec![VecDeque::new(); ranks]; ranks],
        };
        (0..ranks).for_each(|rank| world.say(rank));
        world
    }

    fn below(&mut self, end: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 20) as usize % end
    }

    fn ranks(&self) -> usize {
        self.rolls.len()
    }

    fn say(&mut self, rank: Rank) {
        if self.rolls[rank].needs_place() {
            self.rolls[rank].set_place(format!("at {rank}"));
        }
        let said = self.rolls[rank].own().clone();
        self.letters[rank].iter_mut().for_each(|box_| box_.push_back(Letter::Said(said.clone())));
    }

    /// Ends `rank`; its last words reach only some.
    fn kill(&mut self, rank: Rank) {
        self.states[rank] = State::Dead;
        for peer in 0..self.ranks() {
            let cut = self.below(2);
            if cut == 1 {
                self.letters[rank][peer].pop_back();
            }
            self.letters[rank][peer].push_back(Letter::End);
        }
    }

    /// Delivers the next letter from `from` to `to`.
    fn deliver(&mut self, from: Rank, to: Rank) {
        let Some(letter) = self.letters[from][to].pop_front() else { return };
        let before = self.rolls[to].own().clone();
        match letter {
            _ if from == to => {}
            Letter::Said(count) => {
                self.rolls[to].hear(from, count, Duration::ZERO).expect("nobody is left behind")
            }
            Letter::End => self.rolls[to].lose(from),
        }
        if self.rolls[to].is_decided() {
            self.rolls[to].decide();
            let (attempt, gone) = self.held[to].clone().expect("it has met");
            assert_eq!(attempt, self.rolls[to].own().attempt);
            self.states[to] = State::Gone(attempt, gone);
            return self.say(to);
        }
        if let Some(company) = self.rolls[to].company() {
            self.rolls[to].convene();
            self.held[to] = None;
            self.states[to] = State::Meeting(company);
        }
        if *self.rolls[to].own() != before {
            self.say(to);
        }
    }

    /// Ends the meeting of `rank` if it can end: well if all are there, and either way if somebody has died.
    fn leave(&mut self, rank: Rank) {
        let State::Meeting(company) = self.states[rank].clone() else { return };
        let members: Vec<Rank> = (0..self.ranks()).filter(|&peer| !company.gone[peer]).collect();
        let same = |state: &State| matches!(state, State::Meeting(other) if (other.attempt, &other.gone) == (company.attempt, &company.gone));
        let is_there = |peer: &Rank| {
            same(&self.states[*peer]) || self.held[*peer] == Some((company.attempt, company.gone.clone()))
        };
        let all = members.iter().all(is_there);
        let well =
            all && (members.iter().all(|&peer| self.states[peer] != State::Dead) || self.below(2) == 0);
        self.states[rank] = State::Talking;
        if well {
            self.rolls[rank].meet();
            self.held[rank] = Some((company.attempt, company.gone));
        } else if all || self.below(50) == 0 {
            self.rolls[rank].miss();
        } else {
            self.states[rank] = State::Meeting(company);
            return;
        }
        self.say(rank);
    }

    fn run(&mut self, deaths: usize) {
        let mut deaths = deaths;
        for _ in 0..200_000 {
            if !self.states.iter().any(|state| matches!(state, State::Talking | State::Meeting(_))) {
                return;
            }
            let (from, to) = (self.below(self.ranks()), self.below(self.ranks()));
            match self.states[to] {
                State::Talking => self.deliver(from, to),
                State::Meeting(_) => self.leave(to),
                State::Gone(..) | State::Dead => {}
            }
            // The worst moment: right after a decision, which only some hear of.
            let odds = if matches!(self.states[to], State::Gone(..)) { 4 } else { 60 };
            if deaths > 0 && self.states[to] != State::Dead && self.below(odds) == 0 {
                deaths -= 1;
                self.kill(to);
            }
        }
        panic!("it has no end: {:?}", self.states);
    }
}

#[test]
fn all_that_are_left_go_together_whoever_ends_when() {
    for seed in 0..3000 {
        let ranks = 2 + seed as usize % 5;
        let mut world = World::new(ranks, seed);
        world.run(seed as usize / 5 % ranks);
        let mut ends = world.states.iter().filter(|state| **state != State::Dead);
        let first = ends.next().expect("somebody is left");
        assert!(ends.all(|end| end == first), "seed {seed}: {:?}", world.states);
        let State::Gone(_, gone) = first else { panic!("seed {seed}: {first:?}") };
        for (rank, state) in world.states.iter().enumerate() {
            assert!(*state == State::Dead || !gone[rank], "seed {seed}: rank {rank} is left behind");
        }
    }
}

#[test]
fn nobody_gone_means_the_same_ranks() {
    let mut world = World::new(4, 7);
    world.run(0);
    let State::Gone(attempt, _) = world.states[0] else { panic!("{:?}", world.states) };
    assert_eq!(world.states, vec![State::Gone(attempt, vec![false; 4]); 4]);
}

#[test]
fn whoever_was_counted_out_hears_of_it() {
    let mut late = Roll::new(2, vec![false; 3], Duration::ZERO);
    let gone = vec![false, false, true];
    let count = Count { attempt: 0, stage: Stage::Decided, gone, place: String::new() };
    assert_eq!(late.hear(0, count, Duration::ZERO), Err(LeftBehind(0)));
}

#[test]
fn the_silent_are_counted_out_by_more_than_half_only() {
    let second = Duration::from_secs(1);
    let mut roll = Roll::new(0, vec![false; 4], Duration::ZERO);
    let count = Count { attempt: 0, stage: Stage::Counting, gone: vec![false; 4], place: String::new() };
    roll.hear(1, count, 5 * second).expect("all are counted");
    assert_eq!(roll.silent(6 * second, 2 * second), [2, 3]);
    assert!(!roll.is_majority_without(&[2, 3]) && roll.is_majority_without(&[2]));
}

#[test]
fn one_after_the_other_no_more_are_counted_out_than_at_once() {
    let second = Duration::from_secs(1);
    let mut roll = Roll::new(0, vec![false; 5], Duration::ZERO);
    let count = Count { attempt: 0, stage: Stage::Counting, gone: vec![false; 5], place: String::new() };
    (1..5).for_each(|peer| roll.hear(peer, count.clone(), peer as u32 * second).expect("all are counted"));
    for (peer, is_left_out) in [(1, true), (2, true), (3, false)] {
        let silent = roll.silent((peer as u32 + 3) * second, 2 * second);
        assert_eq!((silent.as_slice(), roll.is_majority_without(&silent)), (&[peer][..], is_left_out));
        roll.leave_out(peer);
    }
    let mut roll = Roll::new(0, vec![false; 5], Duration::ZERO);
    let rumour = Count { gone: vec![false, false, true, true, true], ..count };
    roll.hear(1, rumour, Duration::ZERO).expect("this one is left");
    roll.believe(second);
    assert_eq!(roll.own().gone, [false; 5], "two of five are too few to believe it");
    roll.lose(4);
    roll.lose(3);
    roll.believe(second);
    assert_eq!(roll.own().gone, [false, false, true, true, true], "two of three are not");
}

#[test]
fn those_left_are_no_company_once_the_one_that_made_them_enough_has_ended() {
    let mut roll = Roll::new(0, vec![false; 5], Duration::ZERO);
    [1, 4].into_iter().for_each(|peer| roll.leave_out(peer));
    roll.set_place("at 0".to_owned());
    let count = Count { place: String::new(), ..roll.own().clone() };
    [2, 3].into_iter().for_each(|peer| roll.hear(peer, count.clone(), Duration::ZERO).expect("it is left"));
    assert_eq!(roll.company().map(|company| company.ranks), Some(3));
    roll.lose(2);
    roll.hear(3, roll.own().clone(), Duration::ZERO).expect("it is left");
    assert_eq!((roll.company(), roll.left_out().collect::<Vec<_>>()), (None, vec![1, 4]));
}
