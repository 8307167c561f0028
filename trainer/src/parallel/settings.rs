//! How a strategy does its work.

use crate::flat::{Dtype, Layout, Packing};
use crate::parallel::Average;
use crate::parameter::{Inventory, Parameter};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Who keeps what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParallelKind {
    /// Everyone everything: data parallel.
    Replicated,
    /// The optimizer's state of each parameter one rank only.
    Zero1Parameters,
    /// The optimizer's state in shares.
    Zero1,
    /// Gradients too.
    Zero2,
    /// Weights too.
    Zero3,
}

/// When replicas exchange gradients; all three have the same results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradReduction {
    /// Parameter by parameter, after backward.
    Naive,
    /// Parameter by parameter, as soon as each is ready.
    Overlapped,
    /// Bucket by bucket, as soon as each is ready.
    Bucketed,
}

/// What happens to trainable parameters that a backward pass did not reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnusedGradients {
    /// Their gradient is zero at this rank.
    Zero,
    /// An error that names them: the graph is meant to be static.
    Refuse,
}

/// How often gradients are reduced where only shares of the sums are kept: ZeRO's stages 2 and 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReduceFrequency {
    /// Once: whole gradients are kept until the last micro-batch.
    Step,
    /// After every micro-batch: as many times the bytes, and whole gradients of a few buckets only.
    MicroBatch,
}

/// Settings of all strategies; each heeds those that mean something to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Start of the initial weights.
    pub seed: u64,
    /// When replicas exchange gradients.
    pub grad_reduction: GradReduction,
    /// Bytes of weights in a bucket, at most.
    pub bucket_bytes: usize,
    /// Whether shares of hidden matrices are whole rows: what Muon needs.
    pub shard_by_rows: bool,
    /// How sums become means.
    pub average: Average,
    /// Type in which gradients are sent; theirs if none. Sums are formed in 32 bits in any case.
    pub wire_dtype: Option<Dtype>,
    /// Whether gradients of 16-bit weights are kept in 32 bits.
    pub fp32_grad_accum: bool,
    /// What happens to parameters without a gradient.
    pub unused: UnusedGradients,
    /// How often gradients are reduced.
    pub reduce_each: ReduceFrequency,
    /// Reductions of whole buckets under way, at most.
    pub max_pending_reductions: usize,
    /// Units whose weights are gathered ahead.
    pub prefetch: usize,
    /// Gathers under way, at most.
    pub max_pending_gathers: usize,
    /// Whether weights are freed after forward and gathered again in backward.
    pub reshard_after_forward: bool,
    /// Folder in whose files the optimizer's state is kept between steps; memory if none.
    pub offload: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: 0,
            grad_reduction: GradReduction::Bucketed,
            bucket_bytes: 25 << 20,
            shard_by_rows: false,
            average: Average::InReduction,
            wire_dtype: None,
            fp32_grad_accum: false,
            unused: UnusedGradients::Zero,
            reduce_each: ReduceFrequency::Step,
            max_pending_reductions: 2,
            prefetch: 1,
            max_pending_gathers: 2,
            reshard_after_forward: true,
            offload: None,
        }
    }
}

impl Settings {
    /// Where parameters lie with the strategy `kind` over so many data ranks.
    pub fn layout(&self, kind: ParallelKind, inventory: &Inventory, ranks: usize) -> Layout {
        let cap = if self.grad_reduction == GradReduction::Bucketed { self.bucket_bytes } else { 0 };
        let (shares, packing) = match kind {
            ParallelKind::Replicated => (1, Packing::MaxBytes(cap)),
            ParallelKind::Zero1Parameters => (1, Packing::MaxBytes(0)),
            ParallelKind::Zero1 | ParallelKind::Zero2 => (ranks, Packing::MaxBytes(cap)),
            ParallelKind::Zero3 => (ranks, Packing::PerUnit),
        };
        let by_rows = |parameter: &Parameter| self.shard_by_rows && parameter.shape.len() == 2;
        let layout = Layout::with_rows(inventory, shares, packing, &by_rows);
        if self.fp32_grad_accum { layout.with_fp32_grads() } else { layout }
    }
}
