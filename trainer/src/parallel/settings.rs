//! How a strategy does its work.

use crate::flat::{Dtype, Layout, Packing};
use crate::parallel::Average;
use crate::parameter::{Inventory, Parameter};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Who keeps what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Everyone everything: data parallel.
    Replicated,
    /// The optimiser's state of each parameter one rank only.
    Owners,
    /// The optimiser's state in shares.
    Zero1,
    /// Gradients too.
    Zero2,
    /// Weights too.
    Zero3,
}

/// When replicas exchange gradients; all three have the same results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
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
pub enum Unused {
    /// Their gradient is zero at this rank.
    Zero,
    /// An error that names them: the graph is meant to be static.
    Refuse,
}

/// How often gradients are reduced where only shares of the sums are kept: ZeRO's stages 2 and 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReduceEach {
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
    pub form: Form,
    /// Bytes of weights in a bucket, at most.
    pub bucket_bytes: usize,
    /// Whether shares of hidden matrices are whole rows: what Muon needs.
    pub rows: bool,
    /// How sums become means.
    pub average: Average,
    /// Type in which gradients are sent; theirs if none. Sums are formed in 32 bits in any case.
    pub wire: Option<Dtype>,
    /// Whether gradients of 16-bit weights are kept in 32 bits.
    pub wide_gradients: bool,
    /// What happens to parameters without a gradient.
    pub unused: Unused,
    /// How often gradients are reduced.
    pub reduce_each: ReduceEach,
    /// Reductions of whole buckets under way, at most.
    pub reductions_max: usize,
    /// Units whose weights are gathered ahead.
    pub prefetch: usize,
    /// Gathers under way, at most.
    pub gathers_max: usize,
    /// Whether weights are freed after forward and gathered again in backward.
    pub reshard_after_forward: bool,
    /// Folder in whose files the optimiser's state is kept between steps; memory if none.
    pub offload: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: 0,
            form: Form::Bucketed,
            bucket_bytes: 25 << 20,
            rows: false,
            average: Average::InReduction,
            wire: None,
            wide_gradients: false,
            unused: Unused::Zero,
            reduce_each: ReduceEach::Step,
            reductions_max: 2,
            prefetch: 1,
            gathers_max: 2,
            reshard_after_forward: true,
            offload: None,
        }
    }
}

impl Settings {
    /// Where parameters lie with the strategy `kind` over so many data ranks.
    pub fn layout(&self, kind: Kind, inventory: &Inventory, ranks: usize) -> Layout {
        let cap = if self.form == Form::Bucketed { self.bucket_bytes } else { 0 };
        let (shares, packing) = match kind {
            Kind::Replicated => (1, Packing::Cap(cap)),
            Kind::Owners => (1, Packing::Cap(0)),
            Kind::Zero1 | Kind::Zero2 => (ranks, Packing::Cap(cap)),
            Kind::Zero3 => (ranks, Packing::Units),
        };
        let by_rows = |parameter: &Parameter| self.rows && parameter.shape.len() == 2;
        let layout = Layout::with_rows(inventory, shares, packing, &by_rows);
        if self.wide_gradients { layout.with_wide_gradients() } else { layout }
    }
}
