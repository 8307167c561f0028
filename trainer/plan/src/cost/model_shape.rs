//! Shape of a language model: one whose parameters are known, or one of which only the size is.

use crate::cost::activations::ActivationModel;
use crate::cost::flops::{flops_per_token, matmul_weights};
use crate::cost::memory::bytes_of_layout;
use crate::{GptShape, RunShape, SequenceSharing};
use serde::{Serialize, Serializer};
use unisono_nn::parameter::{Domain, Dtype, Inventory, Parameter, UnitId};
use unisono_parallel::data_parallel::GroupBytes;
use unisono_parallel::data_parallel::ParallelKind;
use unisono_parallel::experts::Experts;

/// Dimensions of a transformer, and the memory of its parameters.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelShape {
    /// Ψ: number of parameters, including all experts.
    pub parameters: f64,
    /// Parameters in the matrix products of a token; fewer than all with experts.
    pub active: f64,
    /// Parameters of all routed experts.
    pub expert_parameters: f64,
    /// Dimensions of the transformer.
    #[serde(flatten, serialize_with = "dimensions")]
    pub gpt: GptShape,
    /// Way in which ranks share sequences.
    #[serde(skip)]
    pub sharing: SequenceSharing,
    /// Number of neighboring data ranks that divide state; 0 is all of them.
    pub shard_ranks: usize,
    /// Bytes of one activation.
    pub activation_bytes: usize,
    /// Bytes of memory per parameter.
    pub bytes: BytesPerParam,
    /// Parameters of each unit; empty for equal blocks.
    #[serde(skip)]
    pub(crate) units: Vec<f64>,
}

impl ModelShape {
    /// Returns a dense model of this size in mixed precision with the usual proportions. They are
    /// Ψ = 12Lh² with h = 128L, a number of layers that divides well, and sequences of 4096 tokens.
    pub fn from_parameters(parameters: f64) -> Self {
        let layers = (parameters / (12.0 * 128.0 * 128.0)).cbrt();
        let step = if layers < 28.0 { 2.0 } else { 8.0 };
        let layers = ((layers / step).round() * step).max(1.0) as usize;
        Self {
            parameters,
            active: parameters,
            expert_parameters: 0.0,
            gpt: GptShape::new(32_000, 4096, 128 * layers, layers, layers),
            sharing: SequenceSharing::default(),
            shard_ranks: 0,
            activation_bytes: 2,
            bytes: BytesPerParam::mixed(4.0, false),
            units: Vec::new(),
        }
    }

    /// Returns the shape of the language model of a run, with the exact numbers of its parameters.
    /// `inventory` has all of them, on one rank.
    pub fn from_inventory(run: &RunShape, inventory: &Inventory) -> Self {
        let layout = run.settings.layout(ParallelKind::Replicated, inventory, 1);
        let [weight, gradient, state] =
            bytes_of_layout(run, inventory, &layout).state.map(|bytes| bytes / layout.count() as f64);
        let count =
            |unit| inventory.parameters_of(unit).map(|id| inventory[id].count()).sum::<usize>() as f64;
        let is_expert = |parameter: &&Parameter| parameter.domain == Domain::Expert;
        let of_experts = inventory.parameters.iter().filter(is_expert);
        Self {
            parameters: inventory.count() as f64,
            active: matmul_weights(inventory, run.gpt.experts.as_ref()),
            expert_parameters: of_experts.map(Parameter::count).sum::<usize>() as f64,
            gpt: GptShape { padding: 0, ..run.gpt },
            sharing: run.sharing,
            shard_ranks: run.settings.shard_ranks,
            activation_bytes: Dtype::F32.size(),
            bytes: BytesPerParam { weight, gradient, state },
            units: (0..inventory.units.len()).map(|number| count(UnitId(number))).collect(),
        }
    }

    /// Returns this model with its feed-forward parts divided into `count` experts, of which each
    /// token uses `per_token`. `active` is the number of parameters that a token uses. Without it,
    /// two thirds of all parameters are those of experts, as feed-forward parts are in usual
    /// blocks.
    pub fn with_experts(mut self, count: usize, per_token: usize, active: Option<f64>) -> Self {
        self.gpt.experts = (count > 1).then_some(Experts { count, per_token, ..Experts::default() });
        if count > 1 {
            let idle = idle_share(&self.gpt);
            let of_experts = |active: f64| if idle > 0.0 { (self.parameters - active) / idle } else { 0.0 };
            self.expert_parameters = active.map_or(self.parameters * 2.0 / 3.0, of_experts);
            self.active = self.parameters - idle * self.expert_parameters;
        }
        self
    }

    /// Returns the number of routed experts per block; 1 for a dense model.
    pub fn experts(&self) -> usize {
        self.gpt.experts.as_ref().map_or(1, |experts| experts.count)
    }

    /// Returns the bytes of activations per sample on each of `parts` ranks, which shard layers and
    /// the rows between them. `recomputes` keeps the inputs of blocks only. Assumes attention
    /// without a score matrix: proportional to S · h · L. Data parallel strategies do not shard
    /// activations.
    pub fn activations(&self, parts: usize, recomputes: bool) -> f64 {
        let gpt = &GptShape { activation_checkpointing: recomputes, ..self.gpt };
        let single = ActivationModel {
            gpt,
            shards: parts,
            rows: parts,
            chunks: 1,
            micro_batch: 1,
            breadth_first: 1,
            micro_sequences: 1,
            head_group: None,
        };
        (single.per_extra_micro_batch() * self.activation_bytes) as f64
    }

    /// Returns the parameters of the largest unit, a block or the token embedding, on each of
    /// `expert` ranks that divide the experts.
    pub(super) fn largest_unit(&self, expert: usize) -> f64 {
        let others = self.expert_parameters * (1.0 - 1.0 / expert as f64);
        let block = self.parameters / self.gpt.layers as f64;
        let equal = block.max((self.gpt.vocabulary * self.gpt.width) as f64);
        let largest = self.units.iter().copied().reduce(f64::max).unwrap_or(equal);
        largest - others / self.gpt.layers as f64
    }

    /// Returns the parameters of a block that `tensor` tensor parallel ranks have together beyond
    /// one copy: the heads of keys and values that they repeat if they are more than these.
    pub(super) fn repeated_in_block(&self, tensor: usize) -> f64 {
        let columns = 2 * (self.gpt.kv_width_on(tensor) - self.gpt.kv_width());
        let rows = self.gpt.width + usize::from(self.gpt.qkv_bias);
        columns as f64 * rows as f64
    }

    /// Returns the number of units.
    pub(super) fn unit_count(&self) -> usize {
        if self.units.is_empty() { self.gpt.layers } else { self.units.len() }
    }

    /// Returns the floating-point operations of forward and backward per sample.
    pub fn flops(&self) -> f64 {
        self.flops_with(self.active)
    }

    /// Returns the share of the operations that are those of attention between positions.
    pub(super) fn attention_share(&self) -> f64 {
        self.flops_with(0.0) / self.flops()
    }

    /// Returns the operations per sample with this number of parameters in matrix products.
    fn flops_with(&self, weights: f64) -> f64 {
        let GptShape { layers, context, .. } = self.gpt;
        let [layers, queries, context] =
            [layers, self.gpt.query_width(), context].map(|extent| extent as f64);
        context * flops_per_token(weights, layers, queries, context)
    }
}

/// Bytes of memory per parameter in training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BytesPerParam {
    /// Bytes of the weight that modules use.
    pub weight: f64,
    /// Bytes of the gradient, and of its 32-bit sum if there is one.
    pub gradient: f64,
    /// k: bytes of the optimizer state, including a full-precision weight.
    pub state: f64,
}

impl BytesPerParam {
    /// Returns the bytes of mixed precision with Adam: 2 + 2 + 12, where the state has 4 for the
    /// weight and `moment` per moment. `wide` gradients add 4.
    pub fn mixed(moment: f64, wide: bool) -> Self {
        let sum = if wide { 4.0 } else { 0.0 };
        Self { weight: 2.0, gradient: 2.0 + sum, state: 4.0 + 2.0 * moment }
    }

    /// Returns the total.
    pub fn total(&self) -> f64 {
        self.weight + self.gradient + self.state
    }

    /// Returns the bytes of `parameters`, in a step that gathers them for each of `micro_batches`.
    pub fn group(&self, parameters: f64, micro_batches: usize) -> GroupBytes {
        let [weights, gradients, state] =
            [self.weight, self.gradient, self.state].map(|bytes| bytes * parameters);
        GroupBytes {
            state: [weights, gradients, state],
            gathered: [micro_batches as f64 * weights; 2],
            reduced: weights,
            stepped: weights,
        }
    }
}

/// Returns the share of experts that a token does not use.
fn idle_share(gpt: &GptShape) -> f64 {
    gpt.experts.as_ref().map_or(0.0, |experts| 1.0 - experts.per_token as f64 / experts.count as f64)
}

fn dimensions<S: Serializer>(gpt: &GptShape, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    let GptShape { layers, width, heads, context, vocabulary, .. } = *gpt;
    let experts = gpt.experts.as_ref().map_or(1, |experts| experts.count);
    let names = ["layers", "width", "heads", "sequence", "vocabulary", "experts"];
    serializer.collect_map(names.into_iter().zip([layers, width, heads, context, vocabulary, experts]))
}
