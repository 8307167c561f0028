//! Access to kept weights and moments, to save and load checkpoints.

use crate::bucket::{BucketId, FlatBuffer};
use crate::data_parallel::LocalShard;
use crate::data_parallel::optimizer_shards::{BufferFrom, OptimizerShard, OptimizerShards, host_f32};
use std::ops::Range;
use std::sync::Arc;
use unisono_nn::allocator::{AllocClass, Allocator};
use unisono_nn::error::Result;
use unisono_nn::parameter::Parameter;

impl OptimizerShards {
    /// Calls `visit` with each kept piece of a bucket.
    pub(super) fn for_each_shard(
        &mut self,
        bucket: BucketId,
        weights: BufferFrom<&mut FlatBuffer>,
        visit: &mut dyn FnMut(LocalShard<'_>) -> Result<()>,
    ) -> Result<()> {
        self.load_state(bucket)?;
        self.visit_entry(bucket, weights, visit)?;
        self.store_state(bucket)
    }

    fn visit_entry(
        &mut self,
        bucket: BucketId,
        weights: BufferFrom<&mut FlatBuffer>,
        visit: &mut dyn FnMut(LocalShard<'_>) -> Result<()>,
    ) -> Result<()> {
        let part = &mut self.shards[bucket.0];
        for (parameter, range, place) in self.layout[bucket].entries_within(part.range.clone()) {
            let offsets = |start: usize| place.start - start..place.end - start;
            let kept = offsets(part.range.start);
            let OptimizerShard { master, moments, .. } = part;
            let show = |weights: &mut [f32]| {
                with_f32_slices(moments, &self.memory, kept.clone(), weights, |weights, moments| {
                    visit(LocalShard { parameter, range: range.clone(), weights, moments })
                })
            };
            match master {
                Some(master) => {
                    master.with_f32_mut(&self.memory, kept.clone(), show)??;
                    // A checkpoint that is loaded changes the full-precision copy, from which
                    // modules' weights follow.
                    weights.buffer.copy_range(offsets(weights.start), master, kept)?;
                }
                None => weights.buffer.with_f32_mut(&self.memory, offsets(weights.start), show)??,
            }
        }
        Ok(())
    }

    /// Allocates moments before a checkpoint is loaded.
    pub(super) fn alloc_moments(&mut self, count: &dyn Fn(&Parameter) -> usize) -> Result<()> {
        let layout = Arc::clone(&self.layout);
        for id in layout.ids().filter(|&id| layout[id].trainable) {
            self.load_state(id)?;
            let counts = layout[id].entries.iter().map(|piece| count(&self.inventory[piece.parameter]));
            self.shards[id.0].alloc_moments(&self.memory, self.moment_dtype, counts.max().unwrap_or(0))?;
            self.store_state(id)?;
        }
        Ok(())
    }
}

/// Calls `work` with mutable 32-bit host views of `range` in all buffers, and of the weights.
fn with_f32_slices(
    buffers: &mut [FlatBuffer],
    memory: &Allocator,
    range: Range<usize>,
    weights: &mut [f32],
    body: impl for<'a> FnOnce(&'a mut [f32], &'a mut [&'a mut [f32]]) -> Result<()>,
) -> Result<()> {
    if buffers.iter().all(|numbers| numbers.as_f32().is_some()) {
        let mut slices: Vec<_> =
            buffers.iter_mut().map(|numbers| &mut host_f32(numbers)[range.clone()]).collect();
        return body(weights, &mut slices);
    }
    let mut copies = Vec::new();
    for numbers in buffers.iter() {
        let mut copy = memory.alloc::<f32>(AllocClass::Buffers, range.len());
        numbers.widen(range.clone(), &mut copy)?;
        copies.push(copy);
    }
    body(weights, &mut copies.iter_mut().map(|copy| &mut copy[..]).collect::<Vec<_>>())?;
    for (numbers, copy) in buffers.iter_mut().zip(copies) {
        numbers.narrow(range.clone(), &copy)?;
        // No step needs vectors of this length, so the allocator's cache would keep them in vain.
        copy.free();
    }
    Ok(())
}
