//! Tensor and sequence parallelism: layers cut between the ranks of a group.
//!
//! A map is cut by columns (its outputs) or by rows (its inputs). Where a cut region begins stands an [`CopyToRegion`], where it ends a
//! [`ReduceFromRegion`]: of these two, each does forward what the other does backward. With sequence parallelism the rows between two
//! regions are cut too, and norms, dropout and residuals work on a rank's share of them.
//!
//! | | forward | backward |
//! |---|---|---|
//! | [`CopyToRegion`] | nothing | sum over the group |
//! | [`ReduceFromRegion`] | sum over the group | nothing |
//! | [`CopyToRegion`], rows cut | all_gather of rows | reduce_scatter of rows |
//! | [`ReduceFromRegion`], rows cut | reduce_scatter of rows | all_gather of rows |
//!
//! Which map is cut how is said by name, in a [`ParallelPlan`].
//!
//! # A layer of your own, in four steps
//!
//! 1. Declare how its parameters are cut: a [`ParallelConfig`] for each, by [`TensorParallel::cut`].
//! 2. Add the parameters with it, and make the module of its local extents.
//! 3. Put an [`CopyToRegion`] before what is cut, and a [`ReduceFromRegion`] behind, by [`TensorParallel::enter`] and [`TensorParallel::leave`].
//! 4. Add what works on rows between regions within [`TensorParallel::on_rows`]: its gradients are then summed over the group.
//!
//! Sources: Shoeybi et al., "Megatron-LM", arXiv 1909.08053, 2019; Korthikanti et al., "Reducing activation
//! recomputation in large transformer models", MLSys 2023.

mod cross_entropy;
mod plan;
pub(crate) mod regions;

pub use crate::tensor_parallel::cross_entropy::VocabParallelCrossEntropy;
pub use crate::tensor_parallel::plan::{ParallelPlan, ParallelStyle};
pub use crate::tensor_parallel::regions::{BiasAdd, CopyToRegion, ReduceFromRegion};

use crate::error::{Error, Result};
use crate::flat::ProcessGroup;
use crate::nn::{Linear, LinearInit, Module, RngStream, Sequential};
use crate::parameter::{Inventory, Parameter, Registry, ShardSpec};
use crate::pass::Pass;
use crate::tensor::Tensor;

/// How a model is cut between the ranks of a group; by default not at all.
#[derive(Default)]
pub struct TensorParallel {
    group: Option<ProcessGroup>,
    /// Whether rows are cut between regions.
    sequence: bool,
    plan: ParallelPlan,
}

impl TensorParallel {
    /// Between the ranks of `group`, as `plan` says. A pass on a GPU needs ranks that have met there.
    pub fn new(group: Option<ProcessGroup>, sequence: bool, plan: ParallelPlan) -> Self {
        let sequence = sequence && group.is_some();
        Self { group, sequence, plan }
    }

    /// Number of parts.
    pub fn size(&self) -> usize {
        self.group.as_ref().map_or(1, ProcessGroup::size)
    }

    /// This rank's part.
    pub fn rank(&self) -> usize {
        self.group.as_ref().map_or(0, ProcessGroup::rank)
    }

    /// The ranks between which the model is cut.
    pub fn group(&self) -> Option<&ProcessGroup> {
        self.group.as_ref()
    }

    /// This rank's part of a dimension of `blocks` blocks, of grains that stay together; none where nothing is cut.
    pub fn shard(&self, dimension: usize, whole: usize, blocks: usize, grain: usize) -> Option<ShardSpec> {
        let (parts, part) = (self.size(), self.rank());
        (parts > 1).then_some(ShardSpec {
            dim: dimension,
            global_size: whole,
            block_count: blocks,
            granularity: grain,
            shard_count: parts,
            shard_index: part,
        })
    }

    /// Where a region begins that is cut.
    pub fn copy_to_region(&self) -> CopyToRegion {
        CopyToRegion::new(self.group.clone(), self.sequence)
    }

    /// Where it ends.
    pub fn reduce_from_region(&self) -> ReduceFromRegion {
        ReduceFromRegion::new(self.group.clone(), self.sequence)
    }

    /// Adds parameters of what works on the rows between regions.
    pub fn sequence_parallel_region<R>(
        &self,
        registry: &mut Registry,
        make: impl FnOnce(&mut Registry) -> R,
    ) -> R {
        registry.with_partial_grads(self.sequence, make)
    }

    /// What decides about dropout between regions.
    pub fn rng_stream(&self) -> RngStream {
        if self.sequence { RngStream::PerRank } else { RngStream::Shared }
    }

    /// A linear map with `weight` and perhaps `bias`, cut as the plan says of the path that is open.
    pub fn linear(
        &self,
        registry: &mut Registry,
        inputs: usize,
        outputs: usize,
        start: LinearInit,
    ) -> Box<dyn Module> {
        match self.plan.style(&registry.path()) {
            ParallelStyle::Replicated => {
                Box::new(self.sequence_parallel_region(registry, |r| Linear::new(r, inputs, outputs, start)))
            }
            ParallelStyle::Column { blocks, grain } => match self.shard(0, outputs, blocks, grain) {
                Some(cut) => self.column_parallel(registry, inputs, cut, start),
                None => Box::new(Linear::new(registry, inputs, outputs, start)),
            },
            ParallelStyle::Row { grain } => match self.shard(1, inputs, 1, grain) {
                Some(cut) => self.row_parallel(registry, outputs, cut, start),
                None => Box::new(Linear::new(registry, inputs, outputs, start)),
            },
        }
    }

    /// A linear map to classes, of which every rank has some. [`TensorParallel::enter`] stands before it, and nothing behind: what follows
    /// knows that its classes are cut.
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
        inputs: usize,
        cut: ShardSpec,
        start: LinearInit,
    ) -> Box<dyn Module> {
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
            modules.push(Box::new(BiasAdd::new(bias)));
        }
        Box::new(Sequential(modules))
    }

    /// The first of this rank's rows of `rows` between regions, and how many it has.
    ///
    /// # Errors
    /// If they cannot be cut equally.
    pub fn row_range(&self, pass: &Pass<'_>, rows: usize) -> Result<(usize, usize)> {
        if !self.sequence || !pass.keeps() {
            return Ok((0, rows));
        }
        let parts = self.size();
        if !rows.is_multiple_of(parts) {
            let what = format!(
                "{rows} rows of a micro-batch (sequences × tokens) cannot be cut into {parts} equal parts"
            );
            return Err(Error::invalid(format!("{what}: sequence parallelism needs a multiple of {parts}")));
        }
        Ok((self.rank() * rows / parts, rows / parts))
    }

    /// All columns of one row of which every rank has its part.
    ///
    /// # Errors
    /// Of the collective.
    pub fn gather_row(&self, pass: &Pass<'_>, row: Tensor) -> Result<Tensor> {
        let Some(group) = &self.group else { return Ok(row) };
        let mut whole = pass.tensor(1, row.columns() * self.size());
        pass.timed_wait("logits", || whole.all_gather(&row, group))?;
        Ok(whole)
    }

    /// That every line of the plan cut something; and a warning for what is padded.
    ///
    /// # Errors
    /// Names the line that did not, and the names that are near.
    pub fn check(&self, inventory: &Inventory) -> Result<()> {
        self.plan.check()?;
        for parameter in inventory.parameters.iter().filter(|parameter| parameter.shape.len() > 1) {
            let waste = parameter.shard.as_ref().map_or(0.0, ShardSpec::padding_fraction);
            if waste > 0.0 {
                tracing::warn!("{}: {:.1} % of all parts together is padding", parameter.name, 100.0 * waste);
            }
        }
        Ok(())
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
