//! Tensor and sequence parallelism: layers sharded over the ranks of a group.
//!
//! A linear layer is sharded by columns (its outputs) or by rows (its inputs). A sharded region
//! begins with a [`CopyToRegion`] and ends with a [`ReduceFromRegion`]. Each of them does in
//! forward what the other does in backward. With sequence parallelism the rows between two regions
//! are sharded too, and norms, dropout and residuals work on a rank's shard of the rows.
//!
//! | | forward | backward |
//! |---|---|---|
//! | [`CopyToRegion`] | nothing | sum over the group |
//! | [`ReduceFromRegion`] | sum over the group | nothing |
//! | [`CopyToRegion`], sharded rows | all_gather of rows | reduce_scatter of rows |
//! | [`ReduceFromRegion`], sharded rows | reduce_scatter of rows | all_gather of rows |
//!
//! A [`ParallelPlan`] selects the sharding of each layer by name. If there are more ranks than
//! heads of keys and values, each head is on several ranks ([`ShardSpec::repeats`]), and its
//! gradient is the sum of theirs.
//!
//! # Adding a sharded layer
//!
//! 1. Declare the sharding of each parameter: a [`ShardSpec`] from [`TensorParallel::shard`].
//! 2. Add the parameters with it, and create the module with its local dimensions.
//! 3. Put a [`CopyToRegion`] before the sharded part and a [`ReduceFromRegion`] after it, from
//!    [`TensorParallel::copy_to_region`] and [`TensorParallel::reduce_from_region`].
//! 4. Add modules that work on rows between regions within
//!    [`TensorParallel::sequence_parallel_region`]. Their gradients are then summed over the group.
//!
//! Sources: Shoeybi et al., "Megatron-LM", arXiv 1909.08053, 2019; Korthikanti et al., "Reducing
//! activation recomputation in large transformer models", MLSys 2023.

mod cross_entropy;
mod plan;
pub(crate) mod regions;

pub use crate::tensor_parallel::cross_entropy::VocabParallelCrossEntropy;
pub use crate::tensor_parallel::plan::{ParallelPlan, ParallelStyle};
pub use crate::tensor_parallel::regions::{BiasAdd, CopyToRegion, ReduceFromRegion};

use unisono_nn::error::{Error, Result};
use unisono_nn::modules::{Linear, LinearInit, Module, RngStream, Sequential};
use unisono_nn::parameter::{Parameter, Registry, ShardSpec};
use unisono_nn::pass::Pass;
use unisono_nn::process_group::ProcessGroup;
use unisono_nn::tensor::Tensor;

/// Tensor parallelism of a model: this rank's place in the group, and the plan. The default shards
/// nothing.
#[derive(Clone, Default)]
pub struct TensorParallel {
    group: Option<ProcessGroup>,
    /// Shards rows between regions.
    sequence: bool,
    plan: ParallelPlan,
}

impl TensorParallel {
    /// Shards over the ranks of `group` by `plan`. `None` is a rank that is alone. If `sequence` is
    /// true, rows between regions are sharded too (sequence parallelism). A pass on a GPU requires
    /// a group with GPU communication.
    pub fn new(group: Option<ProcessGroup>, sequence: bool, plan: ParallelPlan) -> Self {
        let sequence = sequence && group.is_some();
        Self { group, sequence, plan }
    }

    /// Returns the number of shards.
    pub fn size(&self) -> usize {
        self.group.as_ref().map_or(1, ProcessGroup::size)
    }

    /// Returns this rank's shard index.
    pub fn rank(&self) -> usize {
        self.group.as_ref().map_or(0, ProcessGroup::rank)
    }

    /// Returns the tensor parallel group.
    pub fn group(&self) -> Option<&ProcessGroup> {
        self.group.as_ref()
    }

    /// Returns this rank's shard of a dimension of `size` elements; `None` if nothing is sharded.
    /// The dimension has `blocks` equal blocks, which are sharded alike. In a block, each `grain`
    /// elements stay together. Ranks that do not divide their number get padding.
    pub fn shard(&self, dimension: usize, size: usize, blocks: usize, grain: usize) -> Option<ShardSpec> {
        let (parts, part) = (self.size(), self.rank());
        (parts > 1).then_some(ShardSpec {
            dim: dimension,
            global_size: size,
            block_count: blocks,
            first_block_ratio: 1,
            granularity: grain,
            shard_count: parts,
            shard_index: part,
            repeats: 1,
        })
    }

    /// Returns this rank's shard of queries, keys and values with `outputs` features in all; `None`
    /// if nothing is sharded. If there are fewer heads of keys than ranks, several ranks have each
    /// head of keys and of values, and their gradients of it are summed.
    fn query_key_value_shard(&self, outputs: usize, ratio: usize, head: usize) -> Option<ShardSpec> {
        let cut = self.shard(0, outputs, 3, head)?;
        let (ranks, kv_heads) = (self.size(), outputs / head / (ratio + 2));
        let repeats = if kv_heads > 0 && ranks.is_multiple_of(kv_heads) { ranks / kv_heads } else { 1 };
        // Ranks that would divide the queries of a head unevenly get padding instead.
        let repeats = if ratio.is_multiple_of(repeats) { repeats } else { 1 };
        Some(ShardSpec { first_block_ratio: ratio, repeats, ..cut })
    }

    /// Returns the module at the start of a sharded region.
    pub fn copy_to_region(&self) -> CopyToRegion {
        CopyToRegion::new(self.group.clone(), self.sequence)
    }

    /// Returns the module at the end of a sharded region.
    pub fn reduce_from_region(&self) -> ReduceFromRegion {
        ReduceFromRegion::new(self.group.clone(), self.sequence)
    }

    /// Adds the parameters of modules that work on the rows between regions.
    pub fn sequence_parallel_region<R>(
        &self,
        registry: &mut Registry,
        make: impl FnOnce(&mut Registry) -> R,
    ) -> R {
        registry.with_partial_grads(self.sequence, make)
    }

    /// Returns the random stream of dropout between regions.
    pub fn rng_stream(&self) -> RngStream {
        if self.sequence { RngStream::PerRank } else { RngStream::Shared }
    }

    /// Creates a linear layer with `weight` and optional `bias`, sharded by the plan for the open
    /// path. `inputs` and `outputs` are those of the whole layer. The result has the
    /// communication of its sharding: a layer by columns begins with a [`CopyToRegion`], and one by
    /// rows ends with a [`ReduceFromRegion`].
    ///
    /// # Panics
    /// Panics as [`Registry::add`] does.
    pub fn linear(
        &self,
        registry: &mut Registry,
        inputs: usize,
        outputs: usize,
        start: LinearInit,
    ) -> Box<dyn Module> {
        match self.plan.style(&registry.path()) {
            // With sequence parallelism, a replicated layer sees only this rank's rows, so its
            // gradients are partial.
            ParallelStyle::Replicated => {
                Box::new(self.sequence_parallel_region(registry, |r| Linear::new(r, inputs, outputs, start)))
            }
            ParallelStyle::Column { blocks, grain } => self.column_parallel(
                registry,
                [inputs, outputs],
                self.shard(0, outputs, blocks, grain),
                start,
            ),
            ParallelStyle::QueryKeyValue { ratio, head } => {
                let cut = self.query_key_value_shard(outputs, ratio, head);
                self.column_parallel(registry, [inputs, outputs], cut, start)
            }
            ParallelStyle::Row { grain } => match self.shard(1, inputs, 1, grain) {
                Some(cut) => self.row_parallel(registry, outputs, cut, start),
                None => Box::new(Linear::new(registry, inputs, outputs, start)),
            },
        }
    }

    /// Creates a linear layer to classes, sharded by classes. Put a [`CopyToRegion`] before it and
    /// nothing after it: the loss, [`VocabParallelCrossEntropy`], handles sharded classes.
    ///
    /// # Panics
    /// Panics as [`Registry::add`] does.
    pub fn vocab_linear(
        &self,
        registry: &mut Registry,
        inputs: usize,
        classes: usize,
        start: LinearInit,
    ) -> Linear {
        match self.shard(0, classes, 1, 1) {
            Some(cut) => column_linear(registry, inputs, cut, start),
            None => Linear::new(registry, inputs, classes, start),
        }
    }

    fn column_parallel(
        &self,
        registry: &mut Registry,
        [inputs, outputs]: [usize; 2],
        cut: Option<ShardSpec>,
        start: LinearInit,
    ) -> Box<dyn Module> {
        let Some(cut) = cut else { return Box::new(Linear::new(registry, inputs, outputs, start)) };
        let map = column_linear(registry, inputs, cut, start);
        Box::new(Sequential(vec![Box::new(self.copy_to_region()), Box::new(map)]))
    }

    fn row_parallel(
        &self,
        registry: &mut Registry,
        outputs: usize,
        cut: ShardSpec,
        start: LinearInit,
    ) -> Box<dyn Module> {
        let (inputs, local) = (cut.global_size, cut.local_size());
        let weight = registry.add(Parameter::new("weight", &[outputs, inputs], start.weight).with_shard(cut));
        let map = Linear::from_parameters(weight, None, local, outputs);
        let mut modules: Vec<Box<dyn Module>> = vec![Box::new(map), Box::new(self.reduce_from_region())];
        if let Some(init) = start.bias {
            let bias =
                self.sequence_parallel_region(registry, |r| r.add(Parameter::new("bias", &[outputs], init)));
            // Before the sum, every rank would add the bias.
            modules.push(Box::new(BiasAdd::new(bias)));
        }
        Box::new(Sequential(modules))
    }

    /// Returns the first of this rank's rows between regions, and their number.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `rows` does not divide evenly.
    pub fn row_range(&self, pass: &Pass<'_>, rows: usize) -> Result<(usize, usize)> {
        // Without training, there may be one row, which ranks cannot divide.
        if !self.sequence || !pass.keeps() {
            return Ok((0, rows));
        }
        let parts = self.size();
        if !rows.is_multiple_of(parts) {
            let what = format!(
                "{rows} rows of a micro-batch (sequences × tokens) cannot be split into {parts} equal parts"
            );
            return Err(Error::invalid(format!("{what}: sequence parallelism needs a multiple of {parts}")));
        }
        Ok((self.rank() * rows / parts, rows / parts))
    }

    /// Gathers all columns of one row of which every rank has a part.
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    pub fn gather_row(&self, pass: &Pass<'_>, row: Tensor) -> Result<Tensor> {
        let Some(group) = &self.group else { return Ok(row) };
        let mut gathered = pass.tensor(1, row.columns() * self.size());
        pass.waits().time("logits", || gathered.all_gather(&row, group))?;
        Ok(gathered)
    }

    /// Checks that every rule of the plan sharded something.
    ///
    /// # Errors
    /// [`Error::Invalid`] names a rule without a match, and suggests similar names.
    pub fn check(&self) -> Result<()> {
        self.plan.check()
    }
}

fn column_linear(registry: &mut Registry, inputs: usize, cut: ShardSpec, start: LinearInit) -> Linear {
    let (outputs, local) = (cut.global_size, cut.local_size());
    let bias = Parameter::new("bias", &[outputs], start.bias.unwrap_or(start.weight)).with_shard(cut.clone());
    let weight = registry.add(Parameter::new("weight", &[outputs, inputs], start.weight).with_shard(cut));
    let bias = start.bias.map(|_| registry.add(bias));
    Linear::from_parameters(weight, bias, inputs, local)
}

#[cfg(test)]
mod tests;
