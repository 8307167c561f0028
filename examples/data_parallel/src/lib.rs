//! Forms of data parallelism to learn from: strategies of one idea each, written by hand on a
//! communicator. All take the steps of the trainer's strategies, to the last bit.
//!
//! | form | gradients | optimizer state |
//! |---|---|---|
//! | [`Naive`] | reduced one by one after backward | whole |
//! | [`Overlapped`] | each reduced as soon as it is ready | whole |
//! | [`Owners`] | as in [`Overlapped`] | of each parameter at one rank, which sends the weights |
//! | the trainer's [`ShardedStrategy`] | reduced in buckets as they fill | whole |
//!
//! Sources: Li et al., "PyTorch Distributed", VLDB 13(12), 2020, for overlap and buckets; stage 1
//! of Rajbhandari et al., "ZeRO", SC 2020, for owners.
#![forbid(unsafe_code)]

mod naive;
mod overlapped;
mod owners;
mod replica;

pub use naive::Naive;
pub use overlapped::Overlapped;
pub use owners::Owners;
pub use replica::Replica;

use std::sync::Arc;
use std::time::Duration;
use unisono::{Communicator, Config};
use unisono_nn::Result;
use unisono_nn::allocator::Allocator;
use unisono_nn::parameter::Inventory;
use unisono_nn::strategy::Strategy;
use unisono_nn::testing::slow;
use unisono_parallel::data_parallel::{DataParallel, ParallelKind, ProcessGroups, Settings, ShardedStrategy};
use unisono_parallel::optimizer::{Optimizer, Step};

/// Strategy with the operations of a training loop.
pub trait Form: Strategy {
    /// Completes backward. On return, gradients are the mean over all ranks.
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    fn finish_backward(&mut self) -> Result<()>;

    /// Takes an optimizer step with the present gradients and clears them.
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    fn optimizer_step(&mut self, optimizer: &dyn Optimizer, step: &Step) -> Result<()>;

    /// Waits for all communication under way, and returns the bits of all weights.
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    fn weight_bits(&mut self) -> Result<Vec<u32>>;

    /// Returns the time this rank has waited for communication since the last call.
    fn take_wait_time(&mut self) -> Duration;
}

/// Name of a form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormKind {
    /// [`Naive`].
    Naive,
    /// [`Overlapped`].
    Overlapped,
    /// [`ShardedStrategy`] that keeps all on every rank.
    Bucketed,
    /// [`Owners`].
    Owners,
}

impl FormKind {
    /// All forms.
    pub const ALL: [Self; 4] = [Self::Naive, Self::Overlapped, Self::Bucketed, Self::Owners];

    /// Creates the form, with buckets of `bucket_bytes` if it has any. The weights are those of
    /// rank 0.
    ///
    /// # Errors
    /// Returns the error of a failed broadcast.
    pub fn create(
        self,
        inventory: &Arc<Inventory>,
        group: &Communicator,
        memory: &Allocator,
        bucket_bytes: usize,
    ) -> Result<Box<dyn Form>> {
        let settings = Settings { bucket_bytes, ..Settings::default() };
        let replica = || Replica::new(inventory, group, settings.seed);
        let team = ProcessGroups::data_only(Some(group.clone()));
        Ok(match self {
            Self::Naive => Box::new(Naive::new(replica()?)),
            Self::Overlapped => Box::new(Overlapped::new(replica()?)),
            Self::Bucketed => {
                Box::new(ShardedStrategy::new(ParallelKind::Replicated, inventory, team, &settings, memory)?)
            }
            Self::Owners => Box::new(Owners::new(replica()?)),
        })
    }
}

impl Form for ShardedStrategy {
    fn finish_backward(&mut self) -> Result<()> {
        DataParallel::finish_backward(self)
    }

    fn optimizer_step(&mut self, optimizer: &dyn Optimizer, step: &Step) -> Result<()> {
        DataParallel::optimizer_step(self, optimizer, step)
    }

    fn weight_bits(&mut self) -> Result<Vec<u32>> {
        let mut shards = Vec::new();
        self.for_each_shard(&mut |shard| {
            let bits = shard.weights.iter().map(|weight| weight.to_bits());
            shards.push((shard.parameter, bits.collect::<Vec<_>>()));
            Ok(())
        })?;
        shards.sort_by_key(|(id, _)| id.0);
        Ok(shards.into_iter().flat_map(|(_, bits)| bits).collect())
    }

    fn take_wait_time(&mut self) -> Duration {
        DataParallel::take_wait_time(self)
    }
}

/// Creates two ranks whose messages take `seconds` plus `seconds_per_byte` per byte.
///
/// # Errors
/// Fails as a communicator's creation does.
pub fn slow_groups(
    seconds: f64,
    seconds_per_byte: f64,
    config: &Config,
) -> unisono::Result<Vec<Communicator>> {
    slow::groups(seconds, seconds_per_byte, config)
}
