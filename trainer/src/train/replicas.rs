//! That ranks which should hold the same weights do.

use super::run::Run;
use crate::error::{Error, Result};
use crate::mesh::GroupKind;
use crate::parameter::{ParameterId, UnitId};
use crate::random::{chain, fold};
use crate::strategy::{Way, host_weights};

impl Run {
    /// A number for the weights of every parameter, as this rank computes with them. All ranks call it.
    fn hashes(&mut self) -> Result<Vec<u64>> {
        let mut hashes = vec![0; self.inventory.parameters.len()];
        for unit in (0..self.inventory.units.len()).map(UnitId) {
            self.strategy.need(unit, Way::Forward)?;
            for id in self.inventory[unit].parameters.clone() {
                let weights = host_weights(&*self.strategy, ParameterId(id))?;
                hashes[id] = fold(weights.len(), weights.iter().map(|weight| u64::from(weight.to_bits())));
            }
            self.strategy.done(unit, Way::Forward)?;
        }
        self.strategy.settle()?;
        Ok(hashes)
    }

    /// A number for all weights of the whole model: the same on all ranks, and for runs that went the same way.
    ///
    /// # Errors
    /// Of collectives.
    pub fn fingerprint(&mut self) -> Result<u64> {
        let own = chain(&self.hashes()?);
        let mut all = vec![0; self.world.ranks()];
        self.world.all_gather(&[own], &mut all)?;
        let data_group = self.groups.mesh().group(GroupKind::ModelAndSequenceData, self.world.rank());
        Ok(chain(&data_group.into_iter().map(|rank| all[rank]).collect::<Vec<_>>()))
    }

    /// Compares the weights of all ranks that should hold the same ones.
    ///
    /// # Errors
    /// [`Error::Diverged`] on every rank of a group whose weights differ; names the first parameter and its ranks.
    pub fn compare(&mut self) -> Result<()> {
        let own = self.hashes()?;
        let Some(group) = self.groups.get(GroupKind::Data) else { return Ok(()) };
        let mut all = vec![0; own.len() * group.ranks()];
        group.all_gather(&own, &mut all)?;
        let members = self.groups.mesh().group(GroupKind::Data, self.world.rank());
        match first_difference(&all, own.len()) {
            Some((parameter, places)) => {
                let ranks: Vec<_> = places.into_iter().map(|place| members[place]).collect();
                Err(self.diverged(ParameterId(parameter), members[0], &ranks))
            }
            None => Ok(()),
        }
    }

    fn diverged(&self, parameter: ParameterId, first: usize, others: &[usize]) -> Error {
        let name = &self.inventory[parameter].name;
        let what =
            format!("after step {}, {name} on ranks {others:?} is not what rank {first} has", self.step);
        Error::Diverged(what)
    }
}

/// The first parameter that not all have alike, and who has not what the first has; `all` is `count` numbers of each.
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
    fn the_first_parameter_that_differs_is_named_with_all_who_differ() {
        assert_eq!(first_difference(&[1, 2, 3, 1, 2, 3, 1, 2, 3], 3), None);
        assert_eq!(first_difference(&[1, 2, 3, 1, 9, 9, 1, 9, 3], 3), Some((1, vec![1, 2])));
        assert_eq!(first_difference(&[1, 2, 3, 4, 1, 2, 3, 5], 4), Some((3, vec![1])));
    }
}
