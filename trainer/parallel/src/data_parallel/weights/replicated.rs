//! Whole weights on every rank, which all ranks update alike.
//!
//! Source: Li et al., "PyTorch Distributed", VLDB 13(12), 2020.

use super::WeightPolicy;
use crate::bucket::{BucketId, FlatBuffer, ParamStore};
use crate::data_parallel::optimizer_shards::BufferFrom;
use crate::data_parallel::strategy_core::StrategyCore;
use unisono_nn::error::Result;
use unisono_nn::parameter::UnitId;
use unisono_nn::step_plan::Direction;

/// Keeps whole weights. The initial weights are those of rank 0.
pub(super) struct Replicated;

impl WeightPolicy for Replicated {
    fn initialize(&mut self, base: &mut StrategyCore, bucket: BucketId) -> Result<()> {
        let count = base.store.layout[bucket].count;
        let mut weights = base.store.initial_weights(bucket, 0..count, base.settings.seed)?;
        if let Some(group) = &base.group {
            weights.broadcast(group.peers(), 0)?;
        }
        base.store.put_weights(bucket, weights);
        Ok(())
    }

    fn pre_unit(&mut self, base: &mut StrategyCore, unit: UnitId, _: Direction) -> Result<()> {
        base.store.widen_unit(unit)
    }

    fn kept<'a>(&'a mut self, store: &'a mut ParamStore, bucket: BucketId) -> BufferFrom<&'a mut FlatBuffer> {
        BufferFrom { buffer: store.weights_mut(bucket), start: 0 }
    }
}
