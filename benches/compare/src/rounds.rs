//! The rounds of the comparison: for every number of ranks and transport, all libraries run in
//! every round.

use crate::case::{Collective, World};
use crate::library::InstalledLibrary;
use crate::load::Load;
use crate::neighbors::LoadControl;
use crate::results::{Results, SourceKey};
use crate::rows::ROOFLINE;
use crate::run_result::{Implementation, TimeSpent};
use crate::settings::{SETTINGS, Setting, Task, TimeLimits, Workload};
use crate::unisono::Unisono;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Plan of a comparison.
pub(crate) struct Plan {
    pub(crate) worlds: Vec<World>,
    pub(crate) collectives: Vec<Collective>,
    pub(crate) sizes: Vec<usize>,
    pub(crate) rounds: usize,
    /// Further rounds, for close data points only.
    pub(crate) extra_rounds: usize,
    /// Ratio up to which two times are close.
    pub(crate) close_ratio: f64,
    pub(crate) time_limits: TimeLimits,
    /// After the first round: ratio to the best peer's time up to which a size is measured again.
    pub(crate) retry_ratio: f64,
    pub(crate) cores: usize,
    /// Names of implementations; empty: all.
    pub(crate) only: Vec<String>,
}

/// Time spent by each library.
type TimeByImplementation = BTreeMap<SourceKey<'static>, TimeSpent>;

impl Plan {
    /// Runs everything that `results` lacks.
    pub(crate) fn run(
        &self,
        unisono: &Unisono,
        peers: &[InstalledLibrary],
        control: &LoadControl,
        results: &mut Results,
    ) -> Result<(), String> {
        let (begun, mut bill) = (Instant::now(), TimeByImplementation::new());
        for (world, round) in self.run_order() {
            let (rounds, minutes) = (self.rounds_for(world), begun.elapsed().as_secs() / 60);
            eprintln!(
                "{world}: round {round} of {rounds} and {} more, {minutes} min so far",
                self.extra_rounds
            );
            let implementations = self.implementations(world, unisono, peers);
            let _load = control.begin(world, unisono.program())?;
            // The order rotates, so that no library always runs behind the same one.
            let mut order: Vec<&Implementation<'_>> = implementations.iter().collect();
            order.rotate_left((round - 1) * implementations.len() / rounds % implementations.len().max(1));
            for implementation in order {
                let wanted = self.workloads_left(implementation, world, round, results);
                if wanted.is_empty() {
                    continue;
                }
                let task = Task {
                    world,
                    workloads: wanted,
                    time_limits: self.time_limits,
                    measure_roofline: round == 1 && world.load.is_quiet(),
                };
                let spent = self.run_round(implementation, &task, round, results)?;
                bill.entry(implementation.source_key()).or_default().add(spent);
            }
        }
        for ((name, setting), spent) in bill {
            eprintln!("in all: {name}, {setting}: {spent}");
        }
        Ok(())
    }

    /// The loads of all worlds, each once.
    pub(crate) fn loads(&self) -> Vec<Load> {
        self.worlds.iter().map(|world| world.load).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Runs all rounds of one world after the other, then further rounds of all worlds in turn.
    ///
    /// Worlds that differ in their load only take turns in each round, so that their times come
    /// from the same minutes. Minutes lie between the further rounds of one world, in which the
    /// machine changes.
    fn run_order(&self) -> Vec<(World, usize)> {
        let alike = |world: &World, other: &World| World { load: other.load, ..*world } == *other;
        let rounds_of = |worlds: &[World]| {
            let rounds = 1..=worlds.first().map_or(0, |&world| self.rounds_for(world));
            let turns = rounds.flat_map(|round| worlds.iter().map(move |&world| (world, round)));
            turns.collect::<Vec<_>>()
        };
        let further = |more| self.worlds.iter().map(move |&world| (world, self.rounds_for(world) + more));
        let more = if self.rounds == 0 { 0 } else { self.extra_rounds };
        self.worlds.chunk_by(alike).flat_map(rounds_of).chain((1..=more).flat_map(further)).collect()
    }

    /// Returns the number of rounds: twice as many where every rank has a core, because those are
    /// short and meet several core placements. Under load no placement lasts.
    fn rounds_for(&self, world: World) -> usize {
        let quiet = self.worlds.iter().all(|world| world.load.is_quiet());
        if quiet && world.ranks <= self.cores { self.rounds * 2 } else { self.rounds }
    }

    /// Returns whether a library takes part.
    pub(crate) fn includes(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }

    fn implementations<'a>(
        &self,
        world: World,
        unisono: &'a Unisono,
        peers: &'a [InstalledLibrary],
    ) -> Vec<Implementation<'a>> {
        let ours = unisono.names_for(world).into_iter().filter(|name| self.includes(name));
        let ours = ours.map(|name| Implementation::Unisono(unisono, name));
        let settings = |peer: &'a InstalledLibrary| {
            let its = move |setting: &&Setting| setting.library == peer.library;
            SETTINGS.iter().filter(its).map(move |setting| Implementation::Peer(peer, setting))
        };
        let theirs = peers.iter().filter(|peer| self.includes(peer.library.name())).flat_map(settings);
        ours.chain(theirs).collect()
    }

    /// Returns the workload of a source in a round.
    fn workloads_left(
        &self,
        implementation: &Implementation<'_>,
        world: World,
        round: usize,
        results: &Results,
    ) -> Vec<Workload> {
        let names = implementation.source_key();
        let sizes = |collective| {
            let case = world.case(collective);
            let is_worth = |&bytes: &usize| match round {
                1 => true,
                _ if round <= self.rounds_for(world) => {
                    results.deserves_round(case, bytes, names, self.retry_ratio)
                }
                _ => results.needs_more_rounds(case, bytes, names, self.close_ratio),
            };
            let mut sizes = results.missing(round, case, names, &self.sizes);
            sizes.retain(is_worth);
            sizes
        };
        let takes_part = |collective: &Collective| implementation.supports(world, *collective, self.cores);
        let collectives = self.collectives.iter().copied().filter(takes_part);
        let wanted = collectives.map(|collective| Workload { collective, sizes: sizes(collective) });
        wanted.filter(|wanted| !wanted.sizes.is_empty()).collect()
    }

    fn run_round(
        &self,
        implementation: &Implementation<'_>,
        task: &Task,
        round: usize,
        results: &mut Results,
    ) -> Result<TimeSpent, String> {
        let names = implementation.source_key();
        let turn = implementation.run(task, self.cores);
        let (figures, spent) = (turn.outcomes.len(), turn.time_spent);
        let reasons: BTreeSet<_> =
            turn.outcomes.iter().filter_map(|outcome| outcome.value.clone().err()).collect();
        let complaints: String = reasons.into_iter().map(|why| format!("; {why}")).collect();
        results.add(round, (ROOFLINE, ""), turn.roofline)?;
        results.add(round, names, turn.outcomes)?;
        eprintln!("  {}, {}: {figures} figures in {spent}{complaints}", names.0, names.1);
        Ok(spent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Transport;
    use crate::load::combinations;
    use std::time::Duration;

    fn plan(loads: &[Load]) -> Plan {
        let world = |ranks| move |&load| World { transport: Transport::Shm, ranks, load };
        Plan {
            worlds: [2, 4].into_iter().flat_map(|ranks| loads.iter().map(world(ranks))).collect(),
            collectives: vec![Collective::AllReduce],
            sizes: vec![8],
            rounds: 2,
            extra_rounds: 0,
            close_ratio: 1.0,
            time_limits: TimeLimits { budget: Duration::ZERO, limit: Duration::ZERO },
            retry_ratio: 1.5,
            cores: 2,
            only: Vec::new(),
        }
    }

    #[test]
    fn loads_take_turns_in_each_round() {
        let order = plan(&combinations(&[0, 2], &[], &[], &[])).run_order();
        let order: Vec<_> =
            order.into_iter().map(|(world, round)| (world.ranks, round, world.load.busy)).collect();
        let rounds_of = |ranks| [(ranks, 1, 0), (ranks, 1, 2), (ranks, 2, 0), (ranks, 2, 2)];
        assert_eq!(order, [rounds_of(2), rounds_of(4)].concat());
    }

    #[test]
    fn quiet_ranks_with_cores_have_twice_the_rounds() {
        let order = plan(&[Load::QUIET]).run_order();
        let rounds = |ranks| order.iter().filter(|(world, _)| world.ranks == ranks).count();
        assert_eq!((rounds(2), rounds(4)), (4, 2));
    }
}
