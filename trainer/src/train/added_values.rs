//! Losses and metrics of blocks, averaged over ranks.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use unisono::Communicator;
use unisono_nn::error::{Error, Result};
use unisono_nn::pass::AddedSums;
use unisono_parallel::experts::Experts;

/// Values that blocks have added in a step, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AddedValues {
    /// Losses: sums over blocks, and means over micro-batches and data ranks.
    pub losses: BTreeMap<String, f64>,
    /// Metrics: means over blocks, micro-batches and data ranks.
    pub metrics: BTreeMap<String, f64>,
    /// Tokens of each expert of all data ranks, relative to equal loads, by path of the block.
    pub loads: BTreeMap<String, Vec<f64>>,
}

/// Names of all losses and metrics that some rank has added. They give the values an order that is
/// equal on all ranks.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct AddedNames {
    losses: BTreeSet<String>,
    metrics: BTreeSet<String>,
    /// Number of experts of each block that has some.
    experts: BTreeMap<String, usize>,
}

impl AddedNames {
    /// Returns true if a name of `sums` is missing.
    pub(super) fn lack(&self, sums: &AddedSums) -> bool {
        let is_new = |names: &BTreeSet<String>, name: &String| !names.contains(name);
        sums.losses.keys().any(|name| is_new(&self.losses, name))
            || sums.metrics.keys().any(|name| is_new(&self.metrics, name))
            || sums.loads.keys().any(|name| !self.experts.contains_key(name))
    }

    /// Adds the names of `sums`, and those that other ranks of `groups` have. All ranks must call
    /// this with the same groups.
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    pub(super) fn extend<'a>(
        &mut self,
        sums: &AddedSums,
        groups: impl IntoIterator<Item = &'a Communicator>,
    ) -> Result<()> {
        self.losses.extend(sums.losses.keys().cloned());
        self.metrics.extend(sums.metrics.keys().cloned());
        self.experts.extend(sums.loads.iter().map(|(name, loads)| (name.clone(), loads.len())));
        // Each exchange passes on the names of those before it, so that all ranks have all names.
        for group in groups {
            for (rank, other) in group.all_gather_object(self)?.into_iter().enumerate() {
                self.losses.extend(other.losses);
                self.metrics.extend(other.metrics);
                for (name, count) in other.experts {
                    self.add_experts(rank, name, count)?;
                }
            }
        }
        Ok(())
    }

    /// Adds the number of experts that a rank of a group has in a block, of which it is the same on
    /// all ranks.
    fn add_experts(&mut self, rank: usize, name: String, count: usize) -> Result<()> {
        let known = *self.experts.entry(name.clone()).or_insert(count);
        // Each rank allocates as many numbers as this message says.
        if known == count && count <= Experts::MAX_COUNT {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "rank {rank} of a group has {count} experts in {name}, where others have {known} and the most are {}: \
             check that all ranks run the same build",
            Experts::MAX_COUNT
        )))
    }

    /// Returns the numbers to be averaged over data ranks and summed over stages.
    pub(super) fn numbers(&self, sums: &AddedSums, micro_batches: usize) -> Vec<f64> {
        let loss = |name| sums.losses.get(name).copied().unwrap_or_default() / micro_batches as f64;
        let metric = |name| {
            let (sum, count) = sums.metrics.get(name).copied().unwrap_or_default();
            [sum, count as f64]
        };
        let loads = |(name, &count): (&String, &usize)| {
            let loads = sums.loads.get(name).cloned().unwrap_or_else(|| vec![0; count]);
            loads.into_iter().map(|tokens| tokens as f64).collect::<Vec<_>>()
        };
        let losses = self.losses.iter().map(loss).chain(self.metrics.iter().flat_map(metric));
        losses.chain(self.experts.iter().flat_map(loads)).collect()
    }

    /// Returns the values of averaged [`AddedNames::numbers`].
    pub(super) fn values(&self, numbers: &[f64]) -> AddedValues {
        let (losses, metrics) = numbers.split_at(self.losses.len());
        let (metrics, mut loads) = metrics.split_at(2 * self.metrics.len());
        let losses = self.losses.iter().cloned().zip(losses.iter().copied()).collect();
        let metrics = self.metrics.iter().cloned().zip(metrics.chunks_exact(2));
        let metrics = metrics.filter(|(_, pair)| pair[1] > 0.0).map(|(name, pair)| (name, pair[0] / pair[1]));
        let relative = self.experts.iter().map(|(name, &count)| {
            let (block, others) = loads.split_at(count);
            loads = others;
            let mean = block.iter().sum::<f64>() / count as f64;
            (name.clone(), block.iter().map(|tokens| tokens / mean).collect())
        });
        let relative = relative.collect();
        AddedValues { losses, metrics: metrics.collect(), loads: relative }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unisono::Avg;
    use unisono_nn::testing::run_ranks;

    #[test]
    fn names_of_single_ranks_are_known_to_all() {
        let found = run_ranks(3, |group| {
            let (mut names, mut sums) = (AddedNames::default(), AddedSums::default());
            assert!(!names.lack(&sums));
            let rank = group.rank() as f64;
            sums.losses.insert("all".to_owned(), 4.0 * rank);
            if group.rank() == 1 {
                sums.losses.insert("one".to_owned(), 6.0);
            } else {
                sums.metrics.insert("two".to_owned(), (rank + 1.0, 2));
            }
            assert!(names.lack(&sums));
            names.extend(&sums, [&group]).unwrap();
            assert!(!names.lack(&sums));
            let mut numbers = names.numbers(&sums, 2);
            group.all_reduce(&mut numbers, Avg).unwrap();
            names.values(&numbers)
        });
        assert!(found.iter().all(|values| *values == found[0]));
        assert_eq!(found[0].losses, [("all".to_owned(), 2.0), ("one".to_owned(), 1.0)].into());
        assert_eq!(found[0].metrics, [("two".to_owned(), 1.0)].into());
    }

    #[test]
    fn numbers_of_experts_of_peers_are_checked_on_all_ranks() {
        for (given, other) in [(8, 9), (usize::MAX, usize::MAX)] {
            let errors = run_ranks(2, |group| {
                let count = if group.rank() == 0 { given } else { other };
                let mut names =
                    AddedNames { experts: [("block".to_owned(), count)].into(), ..AddedNames::default() };
                names.extend(&AddedSums::default(), [&group]).unwrap_err().to_string()
            });
            assert!(errors.iter().all(|error| error.contains("experts in block")), "{errors:?}");
        }
    }
}
