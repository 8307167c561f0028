//! Bytes that a rank sends in a step.
//!
//! Source: Shoeybi et al., "Megatron-LM", arXiv 1909.08053, for tensor parallelism.

use crate::cost::CostModel;
use crate::cost::cost_model::ModelPart;
use crate::cost::memory::trained_elements;
use unisono_nn::parameter::{Dtype, Inventory, Parameter};
use unisono_nn::step_plan::Direction;
use unisono_parallel::bucket::{Bucket, Layout};
use unisono_parallel::data_parallel::ParallelKind;
use unisono_parallel::data_parallel::ReduceFrequency;
use unisono_parallel::data_parallel::{GroupBytes, remote_fraction};
use unisono_parallel::pipeline::Program;

/// Bytes that a rank sends in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Sent in forward passes: gathered weights.
    pub forward: f64,
    /// Sent in backward passes: gathered weights and reduced gradients.
    pub backward: f64,
    /// Sent in the optimizer step: update directions of whole matrices, and new weights.
    pub after_step: f64,
    /// Sent by tensor parallel layers: activations, their gradients, and partial gradients.
    pub tensor_parallel: f64,
    /// Sent for sharded sequences: keys, values and their gradients.
    pub sequence_parallel: f64,
    /// Sent to the ranks of experts and back, with equal loads: rows of tokens and their gradients.
    pub experts: f64,
    /// Sent to other pipeline stages: features, their gradients, and that of a tied parameter.
    pub pipeline: f64,
}

impl Traffic {
    /// Returns the total.
    pub fn total(&self) -> f64 {
        let in_layers = self.tensor_parallel + self.sequence_parallel + self.experts + self.pipeline;
        self.forward + self.backward + self.after_step + in_layers
    }
}

impl CostModel<'_> {
    /// Returns the bytes that each rank sends in a step: (N−1)/N of multiples of the sizes. `units`
    /// has the strategy of each unit.
    pub fn traffic(&self, units: &[ParallelKind]) -> Traffic {
        let program = self.stages.program(self.stage, &self.batch, self.inventory);
        let micro_batches = self.batch.accumulation as f64;
        let [layers, sequences] = [self.tensor_parallel_traffic(), self.sequence_parallel_traffic()];
        let mut sum = Traffic {
            tensor_parallel: micro_batches * layers,
            sequence_parallel: micro_batches * sequences,
            experts: micro_batches * self.expert_traffic(),
            pipeline: self.pipeline_traffic(&program),
            ..Traffic::default()
        };
        for part in self.parts(units) {
            let part = self.exchanged(&part, &program);
            sum.forward += part.forward;
            sum.backward += part.backward;
            sum.after_step += part.after_step;
            sum.tensor_parallel += part.tensor_parallel;
        }
        sum
    }

    /// Returns the bytes that each rank sends for weights, gradients and steps of a part.
    fn exchanged(&self, part: &ModelPart, program: &Program) -> Traffic {
        let ModelPart { kind, groups, ref inventory } = *part;
        let (settings, layout) = (&self.run.settings, self.layout(part));
        let passes = program.plan.backward_passes() as f64;
        let sum = |bytes: &dyn Fn(&Bucket) -> usize| layout.buckets.iter().map(bytes).sum::<usize>() as f64;
        let wire = |bucket: &Bucket| settings.wire_dtype.unwrap_or(bucket.grad_dtype);
        let gradients = sum(&|bucket| trained_elements(bucket) * wire(bucket).size());
        let each = settings.reduce_each == ReduceFrequency::MicroBatch && kind.shards_gradients();
        let [ahead, again] = gathered_bytes(&layout, inventory, program);
        let group = GroupBytes {
            gathered: [ahead, if settings.reshard_after_forward { again } else { 0.0 }],
            reduced: if each { passes * gradients } else { gradients },
            stepped: sum(&|bucket| trained_elements(bucket) * bucket.dtype.size()),
            ..GroupBytes::default()
        };
        let [forward, backward, stepped] = group.sent(kind, groups.shards);
        let backward = backward + group.sent_between(groups);
        let stepped = stepped + self.optimizer_traffic(part, &layout);
        let layers = if each { passes } else { 1.0 } * self.partial_grad_traffic(inventory);
        Traffic { forward, backward, after_step: stepped, tensor_parallel: layers, ..Traffic::default() }
    }

    /// Returns the bytes sent by the optimizer step: update directions of whole matrices, gathered
    /// from shards and parts.
    fn optimizer_traffic(&self, part: &ModelPart, layout: &Layout) -> f64 {
        let optimizer = &self.run.optimizer;
        let shares = remote_fraction(if part.kind.shards_state() { part.groups.shards } else { 1 });
        let parts = (self.mesh.degrees().tensor - 1) as f64;
        let bytes_of = |bucket: &Bucket| {
            let parameter = &self.inventory[bucket.entries.first()?.parameter];
            optimizer.as_matrix_optimizer(parameter)?;
            let part = if parameter.shard.is_some() { parts * parameter.count() as f64 } else { 0.0 };
            Some(shares * bucket.count as f64 + part)
        };
        layout.buckets.iter().filter(|bucket| bucket.trainable).filter_map(bytes_of).sum::<f64>()
            * Dtype::F32.size() as f64
    }

    /// Returns the bytes per step of sums of partial gradients over tensor parallel ranks: over all
    /// of them, or over those that repeat a head of keys and values.
    fn partial_grad_traffic(&self, inventory: &Inventory) -> f64 {
        let here = |parameter: &&Parameter| parameter.trainable && parameter.residency.is_here();
        let elements = |parameter: &Parameter| {
            let repeats = parameter.shard.as_ref().map_or(1, |cut| cut.repeats);
            let partial = if parameter.partial_grad { parameter.count() as f64 } else { 0.0 };
            let repeated = parameter.repeated_elements().len() as f64;
            remote_fraction(self.mesh.degrees().tensor) * partial + remote_fraction(repeats) * repeated
        };
        let sent = inventory.parameters.iter().filter(here).map(elements).sum::<f64>();
        2.0 * Dtype::F32.size() as f64 * sent
    }

    /// Returns the bytes per micro-batch of rows for experts on other ranks, with equal loads. Each
    /// token goes to its experts and back in forward, and its gradient in backward. Recomputation
    /// repeats forward.
    fn expert_traffic(&self) -> f64 {
        let (gpt, degrees) = (&self.run.gpt, self.mesh.degrees());
        let Some(experts) = &gpt.experts else { return 0.0 };
        let with_experts = experts.first_dense + 1..=gpt.layers;
        let blocks = self.inventory.own_units().filter(|unit| with_experts.contains(&unit.0)).count();
        let tokens = self.batch.micro_batch * gpt.padded_context() / degrees.sequence_data;
        let ways = if gpt.activation_checkpointing { 6 } else { 4 };
        let rows = blocks * tokens * experts.per_token * ways;
        remote_fraction(degrees.expert) * (rows * gpt.width * Dtype::F32.size()) as f64
    }

    /// Returns the bytes per micro-batch of sharded sequences. Each block gathers keys and values
    /// of all tokens in both directions, and sums their gradients. With micro-sequences, the keys
    /// and values are kept for backward. In a ring they go from group to group. The ranks of a
    /// group exchange them and the queries.
    fn sequence_parallel_traffic(&self) -> f64 {
        let (gpt, degrees) = (&self.run.gpt, self.mesh.degrees());
        let width = gpt.kv_heads.div_ceil(degrees.tensor) * gpt.head_dim();
        let numbers = self.batch.micro_batch * gpt.padded_context() * 2 * width * Dtype::F32.size();
        let (ranks, again) =
            (degrees.sequence_data as f64, if gpt.activation_checkpointing { 1.0 } else { 0.0 });
        if let Some(group) = self.run.sharing.head_group_size(degrees.sequence_data) {
            // R-1 blocks of 1/N per way, and the gradients return with one more hop.
            let ring = ranks / group as f64;
            let hops = if ring > 1.0 { (2.0 + again) * (ring - 1.0) + ring } else { 0.0 };
            // Queries, keys, values and outputs of this rank's positions.
            let queries = numbers / width * gpt.heads.div_ceil(degrees.tensor) * gpt.head_dim();
            let exchanged = (numbers + queries) as f64;
            let sent = hops * numbers as f64 + (2.0 + again) * remote_fraction(group) * exchanged;
            return sent / ranks * self.layers() as f64;
        }
        let times = match (self.batch.micro_sequences, gpt.activation_checkpointing) {
            (1, true) => 4,
            (1, false) => 3,
            _ => 2,
        };
        remote_fraction(degrees.sequence_data) * (times * self.layers() * numbers) as f64
    }

    /// Returns the bytes per micro-batch of tensor parallel layers. Each block reduces over rows
    /// and features before and after both of its parts, in both directions. Recomputation repeats
    /// the sums after them. The embedding, the head and the loss (three numbers per row) add
    /// theirs.
    fn tensor_parallel_traffic(&self) -> f64 {
        let (gpt, chunks) = (&self.run.gpt, self.mesh.degrees().sequence_data);
        let rows = self.batch.micro_batch * gpt.padded_context() / chunks;
        let sums = (if gpt.activation_checkpointing { 6 } else { 4 }) * self.layers();
        let sums = sums + usize::from(self.has_embedding()) + usize::from(self.has_head());
        let losses = if self.has_head() { 3 } else { 0 };
        2.0 * remote_fraction(self.mesh.degrees().tensor)
            * (rows * (sums * gpt.width + losses) * Dtype::F32.size()) as f64
    }

    /// Returns the bytes per step of values for other pipeline stages. A tied parameter's gradient
    /// is summed over two stages.
    fn pipeline_traffic(&self, program: &Program) -> f64 {
        let (gpt, degrees) = (&self.run.gpt, self.mesh.degrees());
        let split = if self.run.sequence_parallel { degrees.tensor } else { 1 };
        let rows = self.batch.micro_batch * gpt.padded_context() / degrees.sequence_data / split;
        let rows = rows / self.batch.micro_sequences;
        let tied = self.inventory.parameters.iter().filter(|parameter| parameter.residency.is_tied());
        let tied: usize = tied.map(Parameter::count).sum();
        ((program.send_count() * rows * gpt.width + tied) * Dtype::F32.size()) as f64
    }
}

/// Returns the bytes of weights gathered in forward and in backward of a step: those that each unit
/// uses.
fn gathered_bytes(layout: &Layout, inventory: &Inventory, program: &Program) -> [f64; 2] {
    let size = |bucket| layout[bucket].count * layout[bucket].dtype.size();
    let bytes = |unit| layout.buckets_of(inventory, unit).into_iter().map(size).sum::<usize>();
    [Direction::Forward, Direction::Backward].map(|wanted| {
        let gathers = program.plan.gathers().filter(|&(_, way)| way == wanted);
        gathers.map(|(unit, _)| bytes(unit)).sum::<usize>() as f64
    })
}
