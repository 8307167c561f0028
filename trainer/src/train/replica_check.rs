//! Checks that ranks with the same parameters hold equal weights.

use crate::error::{Error, Result};
use crate::mesh::GroupKind;
use crate::parameter::{Domain, ParameterId};
use crate::random::{hash_iter, hash_numbers};
use crate::step_plan::Direction;
use crate::strategy::host_weights;
use crate::train::run::Run;
use std::collections::BTreeMap;

impl Run {
    /// Returns a hash of each parameter's weights, as this rank computes with them. All ranks must
    /// call this.
    fn parameter_hashes(&mut self) -> Result<Vec<u64>> {
        let mut hashes = vec![0; self.inventory.parameters.len()];
        for unit in self.inventory.own_units() {
            // With sharded weights, a rank has whole ones only while their unit is open.
            self.strategy.pre_unit(unit, Direction::Forward)?;
            for id in self.inventory.present_of(unit) {
                let weights = host_weights(&*self.strategy, id)?;
                hashes[id.0] =
                    hash_iter(weights.len(), weights.iter().map(|weight| u64::from(weight.to_bits())));
            }
            self.strategy.post_unit(unit, Direction::Forward)?;
        }
        self.strategy.wait_all()?;
        Ok(hashes)
    }

    /// Returns a hash of all weights of the model. It is equal on all ranks, and for bitwise equal
    /// runs.
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    pub fn fingerprint(&mut self) -> Result<u64> {
        let mut hashes = self.parameter_hashes()?;
        self.add_other_experts(&mut hashes)?;
        let rank_hash = hash_numbers(&hashes);
        let mut rank_hashes = vec![0; self.world.size()];
        self.world.all_gather(&[rank_hash], &mut rank_hashes)?;
        let data_group = self.groups.mesh().group(GroupKind::ModelAndSequenceData, self.world.rank());
        Ok(hash_numbers(&data_group.into_iter().map(|rank| rank_hashes[rank]).collect::<Vec<_>>()))
    }

    /// Compares the weights of all ranks that should hold equal weights: of data ranks, of tensor
    /// parallel ranks for parameters that they do not divide, and of the two stages of a tied
    /// embedding.
    ///
    /// # Errors
    /// [`Error::ReplicasDiverged`] on every rank; names the first parameter that differs and the
    /// ranks that differ from the first one.
    pub fn check_replicas(&mut self) -> Result<()> {
        let mut hashes = self.parameter_hashes()?;
        for (hash, parameter) in hashes.iter_mut().zip(&self.inventory.parameters) {
            // A hash of 0 would look like the mark of an absent parameter.
            *hash = if parameter.residency.is_here() { (*hash).max(1) } else { ABSENT };
        }
        // Every rank sees every difference. One that knew its own groups alone would go on to
        // collectives in which others are missing.
        let mut world_hashes = vec![0; hashes.len() * self.world.size()];
        self.world.all_gather(&hashes, &mut world_hashes)?;
        let part = |parameter: usize, rank: usize| self.part_of(ParameterId(parameter), rank);
        match first_difference(&world_hashes, hashes.len(), part) {
            Some(found) => Err(self.divergence_error(&found)),
            None => Ok(()),
        }
    }

    /// Returns which part of a parameter a rank holds, if it has one: ranks with equal parts hold
    /// equal weights.
    fn part_of(&self, id: ParameterId, rank: usize) -> [usize; 2] {
        let (parameter, mesh) = (&self.inventory[id], self.groups.mesh());
        let position = mesh.coordinates(rank);
        let shard = if parameter.shard.is_some() { position.tensor } else { 0 };
        [shard, if parameter.domain == Domain::Expert { mesh.expert_rank(position) } else { 0 }]
    }

    /// Adds the hashes of the experts of other ranks.
    fn add_other_experts(&self, hashes: &mut [u64]) -> Result<()> {
        let Some(group) = self.groups.get(GroupKind::Expert) else { return Ok(()) };
        let mut group_hashes = vec![0; hashes.len() * group.size()];
        group.all_gather(hashes, &mut group_hashes)?;
        for (index, parameter) in self.inventory.parameters.iter().enumerate() {
            if parameter.domain == Domain::Expert {
                // One rank of the group has the expert, and the others have 0.
                hashes[index] =
                    group_hashes.iter().skip(index).step_by(hashes.len()).fold(0, |sum, hash| sum ^ hash);
            }
        }
        Ok(())
    }

    fn divergence_error(&self, found: &Difference) -> Error {
        let Difference { parameter, first, others } = found;
        let name = &self.inventory[ParameterId(*parameter)].name;
        let step = self.train_step;
        let what = format!("after step {step}, {name} on ranks {others:?} is not what rank {first} has");
        Error::ReplicasDiverged(what)
    }
}

/// Mark of a parameter that a rank does not have, in place of its hash.
const ABSENT: u64 = 0;

/// Copies of a parameter that are not equal.
#[derive(Debug, PartialEq, Eq)]
struct Difference {
    parameter: usize,
    /// First rank with the same part of the parameter.
    first: usize,
    /// Ranks that have something else than the first.
    others: Vec<usize>,
}

/// Returns the first difference between ranks with the same `part` of a parameter.
/// `world_hashes` holds `count` hashes per rank.
fn first_difference(
    world_hashes: &[u64],
    count: usize,
    part: impl Fn(usize, usize) -> [usize; 2],
) -> Option<Difference> {
    let of_parameter = |parameter: usize| {
        let mut copies = BTreeMap::<[usize; 2], Vec<(usize, u64)>>::new();
        for (rank, hashes) in world_hashes.chunks_exact(count).enumerate() {
            if hashes[parameter] != ABSENT {
                copies.entry(part(parameter, rank)).or_default().push((rank, hashes[parameter]));
            }
        }
        copies.into_values().find_map(|copies| {
            let (first, hash) = copies[0];
            let others: Vec<_> =
                copies.iter().filter(|(_, other)| *other != hash).map(|(rank, _)| *rank).collect();
            (!others.is_empty()).then_some(Difference { parameter, first, others })
        })
    };
    (0..count).find_map(of_parameter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_divergent_parameter_names_all_ranks() {
        let found = |hashes: &[u64], count| first_difference(hashes, count, |_, _| [0; 2]);
        let others = |parameter, first, others: &[usize]| {
            Some(Difference { parameter, first, others: others.to_vec() })
        };
        assert_eq!(found(&[1, 2, 3, 1, 2, 3, 1, 2, 3], 3), None);
        assert_eq!(found(&[1, 2, 3, 1, 9, 9, 1, 9, 3], 3), others(1, 0, &[1, 2]));
        assert_eq!(found(&[1, 2, 3, 4, 1, 2, 3, 5], 4), others(3, 0, &[1]));
        assert_eq!(found(&[1, ABSENT, 1, 2, 1, 3], 2), others(1, 1, &[2]), "rank 0 does not have it");
    }

    #[test]
    fn only_ranks_with_the_same_part_are_compared() {
        let hashes = [1, 5, 2, 5, 1, 5, 2, 6];
        let halves = |parameter, rank| [if parameter == 0 { rank % 2 } else { 0 }, 0];
        let found = first_difference(&hashes, 2, halves);
        assert_eq!(found, Some(Difference { parameter: 1, first: 0, others: vec![3] }));
    }
}
