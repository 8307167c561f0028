//! Estimate of a model on ranks of some hardware, in one way of parallelism.

use crate::config::StrategyKind;
use crate::cost::{Exchange, ExchangeKind, GroupBytes, Hardware, ModelShape};
use serde::Serialize;

/// Parallelism of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ParallelConfig {
    /// Data parallel strategy.
    pub kind: StrategyKind,
    /// Tensor parallel degree.
    pub tensor: usize,
    /// Pipeline parallel degree.
    pub pipeline: usize,
    /// Context parallel degree, within the data ranks.
    pub context: usize,
    /// Expert parallel degree, within the data ranks.
    pub expert: usize,
    /// Number of ranks with the same part of the model, apart from experts.
    pub data: usize,
    /// Recomputes activations in backward, also if the model does not say so.
    pub activation_checkpointing: bool,
    /// Reduces gradients after each micro-batch, so that ranks that shard gradients never keep
    /// whole ones.
    pub reduces_each: bool,
}

impl ParallelConfig {
    /// Returns pure data parallelism with replicated state.
    pub fn replicated(ranks: usize) -> Self {
        Self {
            kind: StrategyKind::Bucketed,
            tensor: 1,
            pipeline: 1,
            context: 1,
            expert: 1,
            data: ranks,
            activation_checkpointing: false,
            reduces_each: false,
        }
    }

    /// Returns the number of reductions of a gradient in a step.
    fn reductions(&self, micro_batches: usize) -> usize {
        if self.reduces_in_each() { micro_batches } else { 1 }
    }

    /// Returns true if gradients are reduced in the backward pass of each micro-batch.
    fn reduces_in_each(&self) -> bool {
        self.reduces_each && self.kind.shards_gradients()
    }
}

/// Model on hardware, in one way of parallelism. Ranks have equal parts without padding.
#[derive(Clone, Copy, Debug)]
pub struct Estimate<'a> {
    /// Model.
    pub shape: &'a ModelShape,
    /// Hardware.
    pub hardware: &'a Hardware,
    /// Parallelism.
    pub parallel: ParallelConfig,
}

impl Estimate<'_> {
    /// Returns the number of parameters of each rank before data parallel strategies shard them.
    pub fn parameters(&self) -> f64 {
        self.domains().map(|(parameters, _)| parameters).iter().sum()
    }

    /// Returns the parameters of a rank outside and in experts, each with the number of ranks that
    /// have the same.
    fn domains(&self) -> [(f64, usize); 2] {
        let ParallelConfig { tensor, pipeline, expert, data, .. } = self.parallel;
        let (parameters, of_experts) = (self.shape.parameters, self.shape.expert_parameters);
        let parts = (tensor * pipeline) as f64;
        let repeated = self.shape.gpt.layers as f64 * self.shape.repeated_in_block(tensor);
        let others = parameters - of_experts + repeated;
        [(others / parts, data), (of_experts / parts / expert as f64, data / expert)]
    }

    /// Adds up the numbers that `numbers_of` returns for parameters outside and in experts. It gets
    /// their bytes in a step of `micro_batches`, and the number of ranks with the same.
    fn sum<const N: usize>(
        &self,
        micro_batches: usize,
        numbers_of: impl Fn(GroupBytes, usize) -> [f64; N],
    ) -> [f64; N] {
        let groups = self
            .domains()
            .map(|(parameters, ranks)| numbers_of(self.group(parameters, micro_batches), ranks));
        std::array::from_fn(|index| groups.iter().map(|numbers| numbers[index]).sum())
    }

    /// Returns the bytes of these parameters, in a step of `micro_batches`.
    fn group(&self, parameters: f64, micro_batches: usize) -> GroupBytes {
        let group = self.shape.bytes.group(parameters, micro_batches);
        GroupBytes { reduced: group.reduced * self.parallel.reductions(micro_batches) as f64, ..group }
    }

    /// Returns the bytes of whole gradients that a rank keeps until the last of `micro_batches`,
    /// beyond its shard of them.
    pub fn accumulated(&self, micro_batches: usize) -> f64 {
        let ParallelConfig { kind, reduces_each, .. } = self.parallel;
        if micro_batches == 1 || reduces_each || !kind.shards_gradients() {
            return 0.0;
        }
        let beyond = |group: GroupBytes, ranks| [group.state[1] - group.kept(kind, ranks)[1]];
        self.sum(micro_batches, beyond)[0]
    }

    /// Returns the bytes of weights, gradients and optimizer state that each rank keeps.
    pub fn kept(&self) -> [f64; 3] {
        self.sum(1, |group, ranks| group.kept(self.parallel.kind, ranks))
    }

    /// Returns the bytes that each rank sends in forward, backward and step to ranks with the same
    /// part of the model.
    pub fn sent(&self, micro_batches: usize) -> [f64; 3] {
        self.sum(micro_batches, |group, ranks| group.sent(self.parallel.kind, ranks))
    }

    /// Returns the bytes each rank needs with this micro-batch: state, activations, and three whole
    /// units if weights are sharded.
    pub fn needed(&self, micro_batch: usize) -> f64 {
        let gathers = self.parallel.kind == StrategyKind::Zero3;
        let gathered = if gathers { 3.0 * self.largest_unit() } else { 0.0 };
        self.kept().iter().sum::<f64>() + gathered + micro_batch as f64 * self.activations()
    }

    /// Returns true if a rank has the memory for one sample at a time.
    pub fn fits(&self) -> bool {
        self.needed(1) <= self.hardware.usable_memory()
    }

    /// Returns the largest micro-batch that fits in memory.
    pub fn max_micro_batch(&self) -> usize {
        let left = self.hardware.usable_memory() - self.needed(0);
        (left / self.activations()).max(0.0) as usize
    }

    /// Returns the bytes of activations per sample. Pipeline stages do not reduce them, because the
    /// first stage holds as many micro-batches as there are stages.
    pub fn activations(&self) -> f64 {
        self.shape.activations(self.parallel.tensor, self.recomputes()) / self.parallel.context as f64
    }

    /// Returns true if activations are recomputed in backward.
    pub fn recomputes(&self) -> bool {
        self.parallel.activation_checkpointing || self.shape.gpt.activation_checkpointing
    }

    /// Returns the bytes of the gathered weights of the largest unit.
    pub fn largest_unit(&self) -> f64 {
        let ParallelConfig { tensor, expert, .. } = self.parallel;
        let parameters = self.shape.largest_unit(expert) + self.shape.repeated_in_block(tensor);
        self.shape.bytes.weight * (parameters / tensor as f64)
    }

    /// Returns the number of reduce-scatters and all-gathers per step, with buckets of this size.
    pub fn collectives(&self, bucket: f64, micro_batches: usize) -> f64 {
        self.collectives_of(self.parameters(), bucket, micro_batches).iter().sum()
    }

    /// Returns the number of collectives for this number of parameters in forward, backward and
    /// step.
    fn collectives_of(&self, parameters: f64, bucket: f64, micro_batches: usize) -> [f64; 3] {
        let count = match self.parallel.kind {
            StrategyKind::Zero3 => self.shape.unit_count().div_ceil(self.parallel.pipeline) as f64,
            _ => bucket_count(self.shape.bytes.weight * parameters, bucket),
        };
        let gathered = [micro_batches as f64 * count; 2];
        let reduced = self.parallel.reductions(micro_batches) as f64 * count;
        let counts = GroupBytes { gathered, reduced, stepped: count, ..GroupBytes::default() };
        counts.exchanged(self.parallel.kind)
    }

    /// Returns the exchanges of weights and gradients in forward, backward and step: of parameters
    /// outside experts, and in them.
    pub(super) fn data_exchanges(&self, bucket: f64, micro_batches: usize) -> [Vec<Exchange>; 3] {
        let ParallelConfig { kind, tensor, expert, .. } = self.parallel;
        let exchanges = |(parameters, ranks): (f64, usize), apart| {
            let parts = self.collectives_of(parameters, bucket, micro_batches);
            // One call is both parts of an all-reduce.
            let parts_per_call = if kind.shards_state() { 1.0 } else { 2.0 };
            let bytes = self.group(parameters, micro_batches).sent(kind, ranks);
            [0, 1, 2].map(|phase| Exchange {
                kind: ExchangeKind::Data,
                ranks,
                apart,
                collectives: parts[phase] / parts_per_call,
                messages: (ranks - 1) as f64 * parts[phase],
                bytes: bytes[phase],
            })
        };
        let [others, experts] = self.domains();
        let (others, experts) = (exchanges(others, tensor), exchanges(experts, tensor * expert));
        let phases = [0, 1, 2].map(|phase| vec![others[phase], experts[phase]]);
        phases.map(|mut phase_exchanges| {
            phase_exchanges.retain(|exchange| exchange.bytes > 0.0);
            phase_exchanges
        })
    }

    /// Returns the fraction of the communication in backward that each micro-batch has before the
    /// last, and that of the last: ZeRO-3 gathers weights in each, and gradients are reduced in
    /// each or in the last.
    pub(super) fn backward_fractions(&self, micro_batches: usize) -> [f64; 2] {
        let gathers = f64::from(self.parallel.kind == StrategyKind::Zero3);
        let reduces = f64::from(self.parallel.reduces_in_each());
        let [each, last] = [gathers + reduces, gathers + 1.0];
        let total = each * (micro_batches - 1) as f64 + last;
        [each / total, last / total]
    }
}

/// Returns the number of buckets of this size for gradients of `bytes` bytes.
pub fn bucket_count(bytes: f64, bucket: f64) -> f64 {
    (bytes / bucket).ceil()
}
