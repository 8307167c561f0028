//! Shape of a language model: a configured one, or one of which only the size is known.

use crate::config::{Config, StrategyKind};
use crate::cost::GroupBytes;
use crate::cost::activations::ActivationModel;
use crate::cost::flops::{flops_per_token, matmul_weights};
use crate::error::Result;
use crate::flat::Dtype;
use crate::models::GptConfig;
use crate::nn::KvTransfer;
use crate::parameter::UnitId;
use crate::train::new_model;
use serde::{Serialize, Serializer};

/// Dimensions of a transformer, and the memory of its parameters.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelShape {
    /// Ψ: number of parameters, including all experts.
    pub parameters: f64,
    /// Parameters in the matrix products of a token; fewer than all with experts.
    pub active: f64,
    /// Number of experts per block; 1 for a dense model.
    pub experts: usize,
    /// Dimensions of the transformer.
    #[serde(flatten, serialize_with = "dimensions")]
    pub gpt: GptConfig,
    /// Bytes of one activation.
    pub activation_bytes: usize,
    /// Bytes of memory per parameter.
    pub bytes: BytesPerParam,
    /// Parameters of each unit; empty for equal blocks.
    #[serde(skip)]
    pub(crate) units: Vec<f64>,
}

impl ModelShape {
    /// Returns a dense model of this size in mixed precision with the usual proportions: Ψ = 12Lh²
    /// with h = 128L, a number of layers that divides well, and sequences of 4096 tokens.
    pub fn from_parameters(parameters: f64) -> Self {
        let layers = (parameters / (12.0 * 128.0 * 128.0)).cbrt();
        let step = if layers < 28.0 { 2.0 } else { 8.0 };
        let layers = ((layers / step).round() * step).max(1.0) as usize;
        Self {
            parameters,
            active: parameters,
            experts: 1,
            gpt: GptConfig::new(32_000, 4096, 128 * layers, layers, layers),
            activation_bytes: 2,
            bytes: BytesPerParam::mixed(4.0, false),
            units: Vec::new(),
        }
    }

    /// Returns the shape of a configured language model, with the exact number of its parameters.
    ///
    /// # Errors
    /// Fails if the configuration is invalid.
    pub fn from_config(config: &Config) -> Result<Self> {
        let (_, inventory) = new_model(config, None)?;
        let layout = config.settings().layout(StrategyKind::Bucketed.parallel_kind(), &inventory, 1);
        let [weight, gradient, state] = GroupBytes::of_layout(config, &inventory, &layout)
            .state
            .map(|bytes| bytes / layout.count() as f64);
        let count =
            |unit| inventory.parameters_of(unit).map(|id| inventory[id].count()).sum::<usize>() as f64;
        Ok(Self {
            parameters: inventory.count() as f64,
            active: matmul_weights(&inventory, &config.experts),
            experts: config.experts.count.max(1),
            gpt: config.gpt_config(),
            activation_bytes: Dtype::F32.size(),
            bytes: BytesPerParam { weight, gradient, state },
            units: (0..inventory.units.len()).map(|number| count(UnitId(number))).collect(),
        })
    }

    /// Returns the bytes of activations per sample on each of `parts` ranks, which shard layers and
    /// the rows between them. `recomputes` keeps the inputs of blocks only. Assumes attention
    /// without a score matrix: proportional to S · h · L. Data parallel strategies do not shard
    /// activations.
    pub fn activations(&self, parts: usize, recomputes: bool) -> f64 {
        let gpt = &GptConfig { activation_checkpointing: recomputes, ..self.gpt.clone() };
        let one = ActivationModel {
            gpt,
            shards: parts,
            rows: parts,
            chunks: 1,
            micro_batch: 1,
            breadth_first: 1,
            micro_sequences: 1,
            kv_transfer: KvTransfer::Gather,
        };
        (one.per_extra_micro_batch() * self.activation_bytes) as f64
    }

    /// Returns the parameters of the largest unit: a block or the token embedding.
    pub fn largest_unit(&self) -> f64 {
        let block = self.parameters / self.gpt.layers as f64;
        let equal = block.max((self.gpt.vocabulary * self.gpt.width) as f64);
        self.units.iter().copied().reduce(f64::max).unwrap_or(equal)
    }

    /// Returns the number of units.
    pub fn unit_count(&self) -> usize {
        if self.units.is_empty() { self.gpt.layers } else { self.units.len() }
    }

    /// Returns the floating-point operations of forward and backward per sample.
    pub fn flops(&self) -> f64 {
        let GptConfig { layers, width, context, .. } = self.gpt;
        let [layers, width, context] = [layers, width, context].map(|extent| extent as f64);
        context * flops_per_token(self.active, layers, width, context)
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

fn dimensions<S: Serializer>(gpt: &GptConfig, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    let GptConfig { layers, width, heads, context, vocabulary, .. } = *gpt;
    let names = ["layers", "width", "heads", "sequence", "vocabulary"];
    serializer.collect_map(names.into_iter().zip([layers, width, heads, context, vocabulary]))
}
