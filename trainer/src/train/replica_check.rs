//! Checks that ranks with the same parameters hold equal weights.

use crate::error::{Error, Result};
use crate::mesh::GroupKind;
use crate::parameter::{Domain, ParameterId};
use crate::random::{hash_iter, hash_numbers};
use crate::strategy::{Direction, host_weights};
use crate::train::run::Run;

impl Run {
    /// Returns a hash of each parameter's weights, as this rank computes with them. All ranks must
    /// call this.
    fn parameter_hashes(&mut self) -> Result<Vec<u64>> {
        let mut hashes = vec![0; self.inventory.parameters.len()];
        for unit in self.inventory.own_units() {
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
        let own = hash_numbers(&hashes);
        let mut all = vec![0; self.world.size()];
        self.world.all_gather(&[own], &mut all)?;
        let data_group = self.groups.mesh().group(GroupKind::ModelAndSequenceData, self.world.rank());
        Ok(hash_numbers(&data_group.into_iter().map(|rank| all[rank]).collect::<Vec<_>>()))
    }

    /// Compares the weights of all ranks that should hold equal weights.
    ///
    /// # Errors
    /// [`Error::ReplicasDiverged`] on every rank of a group with different weights; names the first
    /// parameter and its ranks.
    pub fn check_replicas(&mut self) -> Result<()> {
        let mut own = self.parameter_hashes()?;
        self.compare(&own, GroupKind::ExpertData)?;
        for (hash, parameter) in own.iter_mut().zip(&self.inventory.parameters) {
            *hash *= u64::from(parameter.domain == Domain::Dense);
        }
        self.compare(&own, GroupKind::Data)
    }

    /// Adds the hashes of the experts of other ranks.
    fn add_other_experts(&self, hashes: &mut [u64]) -> Result<()> {
        let Some(group) = self.groups.get(GroupKind::Expert) else { return Ok(()) };
        let mut all = vec![0; hashes.len() * group.size()];
        group.all_gather(hashes, &mut all)?;
        for (at, parameter) in self.inventory.parameters.iter().enumerate() {
            if parameter.domain == Domain::Expert {
                hashes[at] = all.iter().skip(at).step_by(hashes.len()).fold(0, |sum, hash| sum ^ hash);
            }
        }
        Ok(())
    }

    /// Compares the hashes of a group of ranks.
    fn compare(&self, own: &[u64], kind: GroupKind) -> Result<()> {
        let Some(group) = self.groups.get(kind) else { return Ok(()) };
        let mut all = vec![0; own.len() * group.size()];
        group.all_gather(own, &mut all)?;
        let members = self.groups.mesh().group(kind, self.world.rank());
        match first_difference(&all, own.len()) {
            Some((parameter, places)) => {
                let ranks: Vec<_> = places.into_iter().map(|place| members[place]).collect();
                Err(self.divergence_error(ParameterId(parameter), members[0], &ranks))
            }
            None => Ok(()),
        }
    }

    fn divergence_error(&self, parameter: ParameterId, first: usize, others: &[usize]) -> Error {
        let name = &self.inventory[parameter].name;
        let what = format!(
            "after step {}, {name} on ranks {others:?} is not what rank {first} has",
            self.train_step
        );
        Error::ReplicasDiverged(what)
    }
}

/// Returns the first parameter that differs, and the ranks that differ from the first rank. `all`
/// holds `count` hashes per rank.
fn first_difference(all: &[u64], count: usize) -> Option<(usize, Vec<usize>)> {
    let others = |parameter: usize| -> Vec<usize> {
        let differs = |place: &usize| all[place * count + parameter] != all[parameter];
        (1..all.len() / count).filter(differs).collect()
    };
    (0..count).map(|parameter| (parameter, others(parameter))).find(|(_, others)| !others.is_empty())
}

#[cfg(test)]
mod tests {
    use super::first_difference;

    #[test]
    fn first_divergent_parameter_names_all_ranks() {
        assert_eq!(first_difference(&[1, 2, 3, 1, 2, 3, 1, 2, 3], 3), None);
        assert_eq!(first_difference(&[1, 2, 3, 1, 9, 9, 1, 9, 3], 3), Some((1, vec![1, 2])));
        assert_eq!(first_difference(&[1, 2, 3, 4, 1, 2, 3, 5], 4), Some((3, vec![1])));
    }
}
