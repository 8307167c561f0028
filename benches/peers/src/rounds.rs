//! The comparison itself: for every number of ranks and transport, rounds in which every contender has a turn.

use crate::case::{Collective, World};
use crate::contender::{Patience, SETTINGS, Setting, Task, Wanted};
use crate::library::Peer;
use crate::ours::Unisono;
use crate::results::{Names, Results};
use crate::rows::FLOOR;
use crate::turn::{Contender, Spent};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// What to run.
pub(crate) struct Plan {
    pub(crate) worlds: Vec<World>,
    pub(crate) collectives: Vec<Collective>,
    pub(crate) sizes: Vec<usize>,
    pub(crate) rounds: usize,
    /// Further rounds, of close cells only.
    pub(crate) more: usize,
    /// How many times the other's time is close.
    pub(crate) close: f64,
    pub(crate) patience: Patience,
    /// After the first round: how many times the best peer's time somebody may take.
    pub(crate) within: f64,
    pub(crate) cores: usize,
    /// Names of contenders; empty: all.
    pub(crate) only: Vec<String>,
}

/// Where the time of each contender went.
type Bill = BTreeMap<Names<'static>, Spent>;

impl Plan {
    /// Runs everything that `results` lacks.
    pub(crate) fn run(&self, unisono: &Unisono, peers: &[Peer], results: &mut Results) -> Result<(), String> {
        let (begun, mut bill) = (Instant::now(), Bill::new());
        for (world, round) in self.order() {
            let (rounds, minutes) = (self.rounds_of(world), begun.elapsed().as_secs() / 60);
            eprintln!("{world}: round {round} of {rounds} and {} more, {minutes} min so far", self.more);
            let contenders = self.contenders(world, unisono, peers);
            // Nobody always runs behind the same one.
            let mut order: Vec<&Contender<'_>> = contenders.iter().collect();
            order.rotate_left((round - 1) * contenders.len() / rounds % contenders.len().max(1));
            for contender in order {
                let wanted = self.wanted(contender, world, round, results);
                if wanted.is_empty() {
                    continue;
                }
                let task = Task { world, wanted, patience: self.patience, floor: round == 1 };
                let spent = self.turn(contender, &task, round, results)?;
                bill.entry(contender.names()).or_default().add(spent);
            }
        }
        for ((name, setting), spent) in bill {
            eprintln!("in all: {name}, {setting}: {spent}");
        }
        Ok(())
    }

    /// All rounds of one world after the other, then further ones of all in turn: minutes lie between those, and the
    /// machine has changed.
    fn order(&self) -> Vec<(World, usize)> {
        let all = |world| (1..=self.rounds_of(world)).map(move |round| (world, round));
        let further = |more| self.worlds.iter().map(move |&world| (world, self.rounds_of(world) + more));
        let more = if self.rounds == 0 { 0 } else { self.more };
        self.worlds.iter().copied().flat_map(all).chain((1..=more).flat_map(further)).collect()
    }

    /// Twice as many where every rank has a core, as they are short: some find the cores near, some far.
    fn rounds_of(&self, world: World) -> usize {
        if world.ranks <= self.cores { self.rounds * 2 } else { self.rounds }
    }

    /// Whether somebody of this name takes part.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }

    fn contenders<'a>(&self, world: World, unisono: &'a Unisono, peers: &'a [Peer]) -> Vec<Contender<'a>> {
        let ours = unisono.contenders(world).into_iter().filter(|name| self.wants(name));
        let ours = ours.map(|name| Contender::Ours(unisono, name));
        let settings = |peer: &'a Peer| {
            let its = move |setting: &&Setting| setting.library == peer.library;
            SETTINGS.iter().filter(its).map(move |setting| Contender::Theirs(peer, setting))
        };
        let theirs = peers.iter().filter(|peer| self.wants(peer.library.name())).flat_map(settings);
        ours.chain(theirs).collect()
    }

    /// What a contender has to measure in a round.
    fn wanted(
        &self,
        contender: &Contender<'_>,
        world: World,
        round: usize,
        results: &Results,
    ) -> Vec<Wanted> {
        let names = contender.names();
        let sizes = |collective| {
            let case = world.case(collective);
            let is_worth = |&bytes: &usize| match round {
                1 => true,
                _ if round <= self.rounds_of(world) => results.is_worth(case, bytes, names, self.within),
                _ => results.is_close(case, bytes, names, self.close),
            };
            let mut sizes = results.missing(round, case, names, &self.sizes);
            sizes.retain(is_worth);
            sizes
        };
        let takes_part = |collective: &Collective| contender.is_for(world, *collective, self.cores);
        let collectives = self.collectives.iter().copied().filter(takes_part);
        let wanted = collectives.map(|collective| Wanted { collective, sizes: sizes(collective) });
        wanted.filter(|wanted| !wanted.sizes.is_empty()).collect()
    }

    fn turn(
        &self,
        contender: &Contender<'_>,
        task: &Task,
        round: usize,
        results: &mut Results,
    ) -> Result<Spent, String> {
        let names = contender.names();
        let turn = contender.run(task, self.cores);
        let (figures, spent) = (turn.outcomes.len(), turn.spent);
        let reasons: BTreeSet<_> =
            turn.outcomes.iter().filter_map(|outcome| outcome.value.clone().err()).collect();
        let complaints: String = reasons.into_iter().map(|why| format!("; {why}")).collect();
        results.add(round, (FLOOR, ""), turn.floor)?;
        results.add(round, names, turn.outcomes)?;
        eprintln!("  {}, {}: {figures} figures in {spent}{complaints}", names.0, names.1);
        Ok(spent)
    }
}
