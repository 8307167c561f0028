//! Checks that ranks with the same parameters hold equal weights.

use crate::train::run::Run;
use std::collections::BTreeMap;
use unisono_nn::error::{Error, Result};
use unisono_nn::parameter::{Domain, Parameter};
use unisono_nn::random::{hash_iter, hash_numbers};
use unisono_nn::step_plan::Direction;
use unisono_nn::strategy::host_weights;
use unisono_parallel::mesh::GroupKind;

impl Run {
    /// Returns two hashes of each parameter's weights, as this rank computes with them: of all, and
    /// of those that tensor parallel ranks repeat. All ranks must call this.
    fn parameter_hashes(&mut self) -> Result<Vec<[u64; 2]>> {
        let mut hashes = vec![[0; 2]; self.inventory.parameters.len()];
        for unit in self.inventory.own_units() {
            // With sharded weights, a rank has whole ones only while their unit is open.
            self.strategy.pre_unit(unit, Direction::Forward)?;
            for id in self.inventory.present_of(unit) {
                let weights = host_weights(&*self.strategy, id)?;
                let repeated = self.inventory[id].repeated_elements();
                hashes[id.0] = [&weights[..], &weights[repeated]].map(hash_weights);
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
        let mut hashes: Vec<u64> = self.parameter_hashes()?.into_iter().map(|[hash, _]| hash).collect();
        self.add_other_experts(&mut hashes)?;
        let rank_hash = hash_numbers(&hashes);
        let mut rank_hashes = vec![0; self.world.size()];
        self.world.all_gather(&[rank_hash], &mut rank_hashes)?;
        // Each rank hashes the ranks of its own replica. Replicas are equal, so all ranks get one
        // number.
        let data_group = self.groups.mesh().group(GroupKind::ModelAndSequenceData, self.world.rank());
        Ok(hash_numbers(&data_group.into_iter().map(|rank| rank_hashes[rank]).collect::<Vec<_>>()))
    }

    /// Compares the weights of all ranks that should hold equal weights. Data ranks should, and the
    /// two stages of a tied embedding. Tensor parallel ranks should for parameters that they do not
    /// divide, and for heads that they repeat.
    ///
    /// # Errors
    /// [`Error::ReplicasDiverged`] on every rank; names the first parameter that differs and the
    /// ranks that differ from the first one.
    pub fn check_replicas(&mut self) -> Result<()> {
        let pairs = self.parameter_hashes()?;
        let parameters = || pairs.iter().zip(&self.inventory.parameters);
        // A hash of 0 would look like the mark of an absent parameter.
        let mark = |hash: u64, is_here: bool| if is_here { hash.max(1) } else { ABSENT };
        let complete = parameters().map(|(pair, parameter)| mark(pair[0], parameter.residency.is_here()));
        let repeated = parameters().map(|(pair, parameter)| {
            let is_repeated = !parameter.repeated_elements().is_empty();
            mark(pair[1], is_repeated && parameter.residency.is_here())
        });
        let hashes: Vec<u64> = complete.chain(repeated).collect();
        // Every rank sees every difference. One that knew its own groups alone would go on to
        // collectives in which others are missing.
        let mut world_hashes = vec![0; hashes.len() * self.world.size()];
        self.world.all_gather(&hashes, &mut world_hashes)?;
        let part = |index: usize, rank: usize| self.part_of(index, rank);
        match first_difference(&world_hashes, hashes.len(), part) {
            Some(found) => Err(self.divergence_error(&found)),
            None => Ok(()),
        }
    }

    /// Returns the parameter of a hash. The hashes of repeated weights follow those of all weights.
    fn parameter_at(&self, index: usize) -> &Parameter {
        &self.inventory.parameters[index % self.inventory.parameters.len()]
    }

    /// Returns which part of a parameter a rank holds, if it has one: ranks with equal parts hold
    /// equal weights. `index` is that of a hash.
    fn part_of(&self, index: usize, rank: usize) -> [usize; 2] {
        let (parameter, mesh) = (self.parameter_at(index), self.groups.mesh());
        let position = mesh.coordinates(rank);
        let shard = match &parameter.shard {
            None => 0,
            Some(cut) if index >= self.inventory.parameters.len() => position.tensor / cut.repeats,
            Some(_) => position.tensor,
        };
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
        let Difference { index, first, others } = found;
        let name = &self.parameter_at(*index).name;
        let step = self.train_step;
        let what = format!("after step {step}, {name} on ranks {others:?} is not what rank {first} has");
        Error::ReplicasDiverged(what)
    }
}

/// Mark of a parameter that a rank does not have, in place of its hash.
const ABSENT: u64 = 0;

fn hash_weights(weights: &[f32]) -> u64 {
    hash_iter(weights.len(), weights.iter().map(|weight| u64::from(weight.to_bits())))
}

/// Copies of a parameter that are not equal.
#[derive(Debug, PartialEq, Eq)]
struct Difference {
    /// Number of the hash.
    index: usize,
    /// First rank with the same part of the parameter.
    first: usize,
    /// Ranks that have something else than the first.
    others: Vec<usize>,
}

/// Returns the first difference between ranks with the same `part` of the parameter of a hash.
/// `world_hashes` holds `count` hashes per rank.
fn first_difference(
    world_hashes: &[u64],
    count: usize,
    part: impl Fn(usize, usize) -> [usize; 2],
) -> Option<Difference> {
    let at_index = |index: usize| {
        let mut copies = BTreeMap::<[usize; 2], Vec<(usize, u64)>>::new();
        for (rank, hashes) in world_hashes.chunks_exact(count).enumerate() {
            if hashes[index] != ABSENT {
                copies.entry(part(index, rank)).or_default().push((rank, hashes[index]));
            }
        }
        copies.into_values().find_map(|copies| {
            let (first, hash) = copies[0];
            let others: Vec<_> =
                copies.iter().filter(|(_, other)| *other != hash).map(|(rank, _)| *rank).collect();
            (!others.is_empty()).then_some(Difference { index, first, others })
        })
    };
    (0..count).find_map(at_index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_divergent_parameter_names_all_ranks() {
        let found = |hashes: &[u64], count| first_difference(hashes, count, |_, _| [0; 2]);
        let others =
            |index, first, others: &[usize]| Some(Difference { index, first, others: others.to_vec() });
        assert_eq!(found(&[1, 2, 3, 1, 2, 3, 1, 2, 3], 3), None);
        assert_eq!(found(&[1, 2, 3, 1, 9, 9, 1, 9, 3], 3), others(1, 0, &[1, 2]));
        assert_eq!(found(&[1, 2, 3, 4, 1, 2, 3, 5], 4), others(3, 0, &[1]));
        assert_eq!(found(&[1, ABSENT, 1, 2, 1, 3], 2), others(1, 1, &[2]), "rank 0 does not have it");
    }

    #[test]
    fn only_ranks_with_the_same_part_are_compared() {
        let hashes = [1, 5, 2, 5, 1, 5, 2, 6];
        let halves = |index, rank| [if index == 0 { rank % 2 } else { 0 }, 0];
        let found = first_difference(&hashes, 2, halves);
        assert_eq!(found, Some(Difference { index: 1, first: 0, others: vec![3] }));
    }
}
