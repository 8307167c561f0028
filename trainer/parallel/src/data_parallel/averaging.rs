//! Averages gradients over a group of ranks.

use crate::bucket::FlatBuffer;
use crate::data_parallel::Settings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use unisono::{Avg, ReduceOp, Result, Sum};
use unisono_nn::allocator::{AllocClass, Allocator};
use unisono_nn::parameter::Dtype;
use unisono_nn::process_group::{Comm, ProcessGroup};

/// Place of the division by the number of ranks. The results of all three differ only by rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Average {
    /// Divides complete sums in the collective.
    InReduction,
    /// Divides after the collective.
    After,
    /// Scales the loss before backward.
    InLoss,
}

impl Average {
    /// Returns the factor for the loss before backward, with this number of ranks.
    pub fn loss_factor(self, ranks: usize) -> f32 {
        if self == Self::InLoss { 1.0 / ranks as f32 } else { 1.0 }
    }
}

/// Averages whole buckets over a data parallel group.
#[derive(Clone)]
pub struct GradAverager {
    /// Number of ranks of the group.
    ranks: usize,
    /// Number of ranks whose samples the mean is over. It is larger than the group if there are
    /// groups with replicas of its shards. It is larger for experts, too: each rank of the group
    /// has the sum over the ranks that share them.
    mean_over: usize,
    /// Ranks of other groups with the same shards; `None` if there is one group.
    replicas: Option<ProcessGroup>,
    average: Average,
    wire_dtype: Option<Dtype>,
    memory: Allocator,
    wire_memory: Allocator,
}

impl GradAverager {
    /// Creates an averager over `ranks` ranks.
    pub fn new(ranks: usize, settings: &Settings, memory: &Allocator) -> Self {
        Self {
            ranks,
            mean_over: ranks,
            replicas: None,
            average: settings.average,
            wire_dtype: settings.wire_dtype,
            memory: memory.clone(),
            wire_memory: memory.for_communication(),
        }
    }

    /// Sets the number of ranks whose samples the mean is over.
    pub(super) fn with_mean_over(self, ranks: usize) -> Self {
        Self { mean_over: ranks, ..self }
    }

    /// Sets the ranks of other groups with the same shards.
    pub(super) fn with_replicas(self, replicas: Option<ProcessGroup>) -> Self {
        Self { replicas, ..self }
    }

    /// Starts averaging `gradients` over all ranks.
    pub(super) fn all_reduce(&self, peers: Option<Comm<'_>>, gradients: FlatBuffer) -> Result<FlatBuffer> {
        // A rank that is the only one with its experts divides, too: it has a sum over the ranks
        // that share experts.
        let Some(peers) = peers else { return self.divide(gradients) };
        let dtype = gradients.dtype();
        let mut sent = self.to_wire(gradients)?;
        sent.all_reduce(peers, self.reduce_op())?;
        self.cast_from_wire(sent, dtype)
    }

    /// Starts averaging `gradients` over all ranks; each rank receives its shard. The shards of
    /// other groups are added after the reduction within the group, because the links within it are
    /// the fast ones, and only a shard then crosses the others.
    pub(super) fn reduce_scatter(
        &self,
        peers: Option<Comm<'_>>,
        gradients: FlatBuffer,
    ) -> Result<FlatBuffer> {
        let Some(peers) = peers else { return self.divide(gradients) };
        let dtype = gradients.dtype();
        let sent = self.to_wire(gradients)?;
        let mut share = sent.new_like(&self.memory, AllocClass::Gradients, sent.len() / self.ranks)?;
        sent.reduce_scatter(&mut share, peers, self.reduce_op())?;
        // The whole bucket is released before the conversion allocates, which keeps the peak lower.
        drop(sent);
        let shard = 0..share.len();
        self.add_replicas(&mut share, shard)?;
        self.cast_from_wire(share, dtype)
    }

    /// Averages as [`GradAverager::reduce_scatter`] does, with the shard in place. The rest of the
    /// buffer is undefined afterwards.
    pub(super) fn reduce_scatter_in_place(
        &self,
        peers: Option<Comm<'_>>,
        mut gradients: FlatBuffer,
    ) -> Result<FlatBuffer> {
        let Some(peers) = peers else { return self.divide(gradients) };
        let count = gradients.len() / self.ranks;
        let place = peers.rank() * count..(peers.rank() + 1) * count;
        if self.wire_dtype.is_none_or(|wire| wire == gradients.dtype()) {
            gradients.reduce_scatter_in_place(peers, self.reduce_op())?;
            self.add_replicas(&mut gradients, place)?;
            let dtype = gradients.dtype();
            return self.cast_from_wire(gradients, dtype);
        }
        // Elements of the wire type do not fit in place, so a second buffer takes part in the
        // reduction.
        let sent = gradients.to_dtype(
            &self.wire_memory,
            AllocClass::Buffers,
            self.wire_dtype.expect("another type"),
        )?;
        let mut share = sent.new_like(&self.wire_memory, AllocClass::Buffers, count)?;
        sent.reduce_scatter(&mut share, peers, self.reduce_op())?;
        self.add_replicas(&mut share, 0..count)?;
        let share = self.cast_from_wire(share, gradients.dtype())?;
        gradients.copy_range(place, &share, 0..count)?;
        Ok(gradients)
    }

    /// Adds the same shard of all other groups, which is `shard` of `sums`.
    fn add_replicas(&self, sums: &mut FlatBuffer, shard: Range<usize>) -> Result<()> {
        let mut replicas = self.replicas.iter();
        replicas.try_for_each(|replicas| sums.all_reduce_range(shard.clone(), replicas.comm()))
    }

    fn to_wire(&self, gradients: FlatBuffer) -> Result<FlatBuffer> {
        match self.wire_dtype.filter(|&wire| wire != gradients.dtype()) {
            Some(wire) => gradients.to_dtype(&self.wire_memory, AllocClass::Buffers, wire),
            None => Ok(gradients),
        }
    }

    fn cast_from_wire(&self, mut sums: FlatBuffer, dtype: Dtype) -> Result<FlatBuffer> {
        // The conversion comes before the division, which then rounds in the type of the gradients
        // only.
        if sums.dtype() != dtype {
            sums = sums.to_dtype(&self.memory, AllocClass::Gradients, dtype)?;
        }
        self.divide(sums)
    }

    /// Divides sums over the group, unless the collective or the loss has done so.
    fn divide(&self, mut sums: FlatBuffer) -> Result<FlatBuffer> {
        let is_divided = self.average == Average::InLoss || self.divides_in_reduction();
        if !is_divided && self.mean_over > 1 {
            sums.divide(self.mean_over as u32)?;
        }
        Ok(sums)
    }

    fn divides_in_reduction(&self) -> bool {
        // A collective divides by the size of its group, which is not the divisor for experts, nor
        // for groups with replicas.
        self.average == Average::InReduction && self.mean_over == self.ranks
    }

    fn reduce_op(&self) -> ReduceOp {
        if self.divides_in_reduction() { Avg } else { Sum }
    }
}
