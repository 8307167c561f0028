//! Ranks that divide experts.

use super::Experts;
use std::ops::Range;
use unisono::Communicator;
use unisono_nn::error::{Error, Result};

/// Expert parallelism of a model: each rank has equally many of the experts of every layer. The
/// default has all experts on every rank.
#[derive(Clone, Default)]
pub struct ExpertParallel {
    group: Option<Communicator>,
}

impl ExpertParallel {
    /// Divides experts between the ranks of `group`. No other thread may use the communicator.
    pub fn new(group: Option<Communicator>) -> Self {
        Self { group }
    }

    /// Returns the ranks that divide experts; `None` if this rank has all.
    pub fn group(&self) -> Option<&Communicator> {
        self.group.as_ref()
    }

    /// Returns the number of ranks that divide experts.
    pub fn size(&self) -> usize {
        self.group.as_ref().map_or(1, Communicator::size)
    }

    /// Checks that ranks can divide experts equally. `None` is a model without experts.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the numbers of experts and of ranks.
    pub fn check(&self, experts: Option<&Experts>) -> Result<()> {
        let (ranks, count) = (self.size(), experts.map_or(0, |experts| experts.count));
        match ranks {
            1 => Ok(()),
            _ if count == 0 => {
                Err(Error::invalid(format!("{ranks} ranks share experts, and the model has none")))
            }
            _ if count.is_multiple_of(ranks) => Ok(()),
            _ => {
                Err(Error::invalid(format!("{count} experts cannot be divided among {ranks} ranks equally")))
            }
        }
    }

    /// Returns the numbers of this rank's experts, of `count` in all, which the ranks divide.
    pub fn own_experts(&self, count: usize) -> Range<usize> {
        let (rank, share) = (self.group.as_ref().map_or(0, Communicator::rank), count / self.size());
        rank * share..(rank + 1) * share
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unisono_nn::testing::run_ranks;

    #[test]
    fn experts_are_placed_in_equal_blocks() {
        let places = run_ranks(8, |group| ExpertParallel::new(Some(group)).own_experts(64));
        let expected: Vec<_> = (0..8).map(|rank| 8 * rank..8 * rank + 8).collect();
        assert_eq!(places, expected);
        let wrong = run_ranks(3, |group| {
            let experts = Experts { count: 4, ..Experts::default() };
            ExpertParallel::new(Some(group)).check(Some(&experts)).unwrap_err().to_string()
        });
        assert_eq!(wrong[0], "4 experts cannot be divided among 3 ranks equally");
    }
}
