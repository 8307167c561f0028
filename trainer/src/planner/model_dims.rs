//! Model of a plan.

use crate::config::{Config, DataKind, ModelKind, OptimizerKind};
use crate::data::text;
use crate::error::{Error, Result};
use crate::flat::Dtype;
use crate::models::GptConfig;
use crate::train::{ActivationModel, DataDims, Network, flops_per_token};
use serde::Serialize;

/// Dimensions of a transformer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelDims {
    /// Ψ: number of parameters, including all experts.
    pub parameters: f64,
    /// Parameters used per token; fewer than all with experts.
    pub active: f64,
    /// L: number of blocks.
    pub layers: usize,
    /// h: number of features per token.
    pub width: usize,
    /// Number of attention heads.
    pub heads: usize,
    /// S: sequence length in tokens.
    pub sequence: usize,
    /// Vocabulary size.
    pub vocabulary: usize,
    /// Number of experts per block; 1 for a dense model.
    pub experts: usize,
    /// Recomputes activations in backward.
    pub activation_checkpointing: bool,
    /// Bytes of one activation.
    pub activation_bytes: usize,
}

impl ModelDims {
    /// Returns a dense model of this size with the usual proportions: Ψ = 12Lh² with h = 128L, a
    /// number of layers that divides well, and sequences of 4096 tokens.
    pub fn from_parameters(parameters: f64) -> Self {
        let layers = (parameters / (12.0 * 128.0 * 128.0)).cbrt();
        let step = if layers < 28.0 { 2.0 } else { 8.0 };
        let layers = ((layers / step).round() * step).max(1.0) as usize;
        Self {
            parameters,
            active: parameters,
            layers,
            width: 128 * layers,
            heads: layers,
            sequence: 4096,
            vocabulary: 32_000,
            experts: 1,
            activation_checkpointing: false,
            activation_bytes: 2,
        }
    }

    /// Checks that the dimensions fit together.
    ///
    /// # Errors
    /// [`Error::Invalid`] names those that do not.
    pub fn check(&self) -> Result<()> {
        let Self { parameters, active, width, heads, experts, .. } = *self;
        let rules = [
            (active <= parameters, format!("--active {active}: there are {parameters} parameters in all")),
            (
                active == parameters || experts > 1,
                format!("--active {active}: without --experts, all {parameters} are"),
            ),
            (width.is_multiple_of(heads), format!("--heads {heads}: they do not divide a width of {width}")),
        ];
        let broken = rules.into_iter().find(|&(holds, _)| !holds);
        broken.map_or(Ok(()), |(_, rule)| Err(Error::invalid(rule)))
    }

    /// Returns the dimensions of a configured language model.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for other models. Fails if the configuration is invalid.
    pub fn from_config(config: &Config) -> Result<Self> {
        if config.model.kind != ModelKind::Gpt {
            let what = "a plan is for language models: `train --dry-run` counts for all others";
            return Err(Error::Unsupported(what.to_owned()));
        }
        let vocabulary = match config.data.kind {
            DataKind::Tokens => config.data.vocabulary,
            DataKind::Text | DataKind::Table => text::VOCAB_SIZE,
        };
        let (_, inventory) = Network::new(config, DataDims::Tokens(vocabulary as usize), None)?;
        let (model, parameters) = (&config.model, inventory.count() as f64);
        Ok(Self {
            parameters,
            active: parameters,
            layers: model.layers,
            width: model.width,
            heads: model.heads,
            sequence: model.context,
            vocabulary: vocabulary as usize,
            experts: 1,
            activation_checkpointing: model.activation_checkpointing,
            activation_bytes: Dtype::F32.size(),
        })
    }

    /// Returns the bytes of activations per sample on each of `parts` ranks, which shard layers and
    /// the rows between them. `recomputes` keeps the inputs of blocks only. Assumes attention
    /// without a score matrix: proportional to S · h · L. Data parallel strategies do not shard
    /// activations.
    pub fn activations(&self, parts: usize, recomputes: bool) -> f64 {
        let gpt = GptConfig {
            activation_checkpointing: recomputes,
            ..GptConfig::new(self.vocabulary, self.sequence, self.width, self.heads, self.layers)
        };
        let one = ActivationModel {
            gpt: &gpt,
            shards: parts,
            rows: parts,
            chunks: 1,
            micro_batch: 1,
            breadth_first: 1,
        };
        (one.per_extra_micro_batch() * self.activation_bytes) as f64
    }

    /// Returns the parameters of the largest layer: a block or the token embedding.
    pub fn largest_layer(&self) -> f64 {
        (self.parameters / self.layers as f64).max((self.vocabulary * self.width) as f64)
    }

    /// Returns the floating-point operations of forward and backward per sample.
    pub fn flops(&self) -> f64 {
        let [layers, width, sequence] = [self.layers, self.width, self.sequence].map(|extent| extent as f64);
        sequence * flops_per_token(self.active, layers, width, sequence)
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

    /// Returns the bytes of a configured run.
    pub fn from_config(config: &Config) -> Self {
        let moments = match config.optimizer.kind {
            OptimizerKind::Adamw => 2,
            OptimizerKind::Muon | OptimizerKind::Sgd => 1,
        };
        let size = config.strategy.param_dtype.size();
        let copies = moments + usize::from(config.strategy.param_dtype != Dtype::F32);
        Self { weight: size as f64, gradient: size as f64, state: (copies * Dtype::F32.size()) as f64 }
    }

    /// Returns the total.
    pub fn total(&self) -> f64 {
        self.weight + self.gradient + self.state
    }
}

/// Parses a number with a suffix k, m, b, t or K, M, G, T for thousands, millions, billions and
/// trillions.
///
/// # Errors
/// [`Error::Invalid`] if it is no number above 0 and below 10^16.
pub fn parse_number(text: &str) -> Result<f64> {
    let (digits, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
    let power = match unit.to_ascii_lowercase().as_str() {
        "" => Some(0),
        "k" => Some(3),
        "m" => Some(6),
        "b" | "g" => Some(9),
        "t" => Some(12),
        _ => None,
    };
    let value = digits.parse::<f64>().ok().zip(power).map(|(value, power)| value * 10f64.powi(power));
    value.filter(|value| *value > 0.0 && *value < 1e16).ok_or_else(|| {
        Error::invalid(format!("`{text}` is not a number above 0 and below 10^16, such as 4096, 7b or 4.2M"))
    })
}
