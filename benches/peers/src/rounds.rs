//! The comparison itself: for every number of ranks and transport, rounds in which every contender has a turn.

use crate::case::{Collective, World};
use crate::contender::{Patience, SETTINGS, Setting, Task, Wanted};
use crate::library::Peer;
use crate::ours::Unisono;
use crate::results::{Names, Outcome, Results};
use crate::rows::FLOOR;
use crate::turn::{Contender, Spent, Turn};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// What to run.
pub(crate) struct Plan {
    pub(crate) worlds: Vec<World>,
    pub(crate) collectives: Vec<Collective>,
    pub(crate) sizes: Vec<usize>,
    pub(crate) rounds: usize,
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
        for &world in &self.worlds {
            let contenders = self.contenders(world, unisono, peers);
            for round in 1..=self.rounds {
                let minutes = begun.elapsed().as_secs() / 60;
                eprintln!("{world}: round {round} of {}, {minutes} min so far", self.rounds);
                // Nobody always runs behind the same one.
                let mut order: Vec<&Contender<'_>> = contenders.iter().collect();
                order.rotate_left((round - 1) * contenders.len() / self.rounds);
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
        }
        for ((name, setting), spent) in bill {
            eprintln!("in all: {name}, {setting}: {spent}");
        }
        Ok(())
    }

    /// Whether somebody of this name takes part.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| name.eq_ignore_ascii_case(only))
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
            let mut sizes = results.missing(round, case, names, &self.sizes);
            sizes.retain(|&bytes| round == 1 || results.is_worth(case, bytes, names, self.within));
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
        let Turn { outcomes, floor, spent } = contender.run(task, self.cores);
        let (name, setting) = contender.names();
        eprintln!("  {name}, {setting}: {} figures in {spent}{}", outcomes.len(), complaints(&outcomes));
        results.add(round, (FLOOR, ""), floor)?;
        results.add(round, (name, setting), outcomes)?;
        Ok(spent)
    }
}

/// Each reason once.
fn complaints(outcomes: &[Outcome]) -> String {
    let reasons: BTreeSet<_> = outcomes.iter().filter_map(|(_, outcome)| outcome.as_ref().err()).collect();
    reasons.into_iter().map(|why| format!("; {why}")).collect()
}
