//! What is trained, in a few numbers.

use crate::config::{Config, DataKind, ModelKind, OptimizerKind};
use crate::data::text;
use crate::error::{Error, Result};
use crate::flat::Dtype;
use crate::models::GptConfig;
use crate::train::{ActivationModel, DataDims, Network, flops_per_token};
use serde::Serialize;

/// A transformer, as far as a plan needs to know it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelDims {
    /// Ψ: parameters, all experts included.
    pub parameters: f64,
    /// Parameters that each token meets; fewer than all with experts.
    pub active: f64,
    /// L: blocks.
    pub layers: usize,
    /// h: features of a token.
    pub width: usize,
    /// Attention heads.
    pub heads: usize,
    /// S: tokens of a sequence.
    pub sequence: usize,
    /// Different tokens.
    pub vocabulary: usize,
    /// Experts of each block; 1 for a dense model.
    pub experts: usize,
    /// Whether activations are computed again in backward.
    pub activation_checkpointing: bool,
    /// Bytes of one activation.
    pub activation_bytes: usize,
}

impl ModelDims {
    /// A dense model of so many parameters and of the usual proportions: Ψ = 12Lh² with h = 128L, and about as many layers as can be cut
    /// well; sequences of 4096 tokens.
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

    /// That they go together.
    ///
    /// # Errors
    /// [`Error::Illegal`] names those that do not.
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

    /// Those of a configured language model.
    ///
    /// # Errors
    /// [`Error::Unavailable`] for other models; if the configuration is of no model.
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

    /// Bytes of activations of one sample on each of `parts` ranks that share the layers and the rows between them, where
    /// attention keeps no matrix of scores: in proportion to S · h · L, and no strategy of data ranks cuts them.
    pub fn activations(&self, parts: usize) -> f64 {
        let gpt = GptConfig {
            activation_checkpointing: self.activation_checkpointing,
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

    /// Parameters of the largest layer: a block, or the table of tokens.
    pub fn largest_layer(&self) -> f64 {
        (self.parameters / self.layers as f64).max((self.vocabulary * self.width) as f64)
    }

    /// Floating-point operations of forward and backward of one sample.
    pub fn flops(&self) -> f64 {
        let [layers, width, sequence] = [self.layers, self.width, self.sequence].map(|extent| extent as f64);
        sequence * flops_per_token(self.active, layers, width, sequence)
    }
}

/// Bytes that training keeps of every parameter.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BytesPerParam {
    /// Of the weight that modules compute with.
    pub weight: f64,
    /// Of its gradient, and of the sum in 32 bits if there is one beside it.
    pub gradient: f64,
    /// k: of the optimizer's state, a weight in full precision included.
    pub state: f64,
}

impl BytesPerParam {
    /// Mixed precision with Adam: 2 + 2 + 12, of the state 4 for the weight and `moment` for each of two moments; with `wide`
    /// gradients 4 more.
    pub fn mixed(moment: f64, wide: bool) -> Self {
        let sum = if wide { 4.0 } else { 0.0 };
        Self { weight: 2.0, gradient: 2.0 + sum, state: 4.0 + 2.0 * moment }
    }

    /// Those of a configured run.
    pub fn from_config(config: &Config) -> Self {
        let moments = match config.optimizer.kind {
            OptimizerKind::Adamw => 2,
            OptimizerKind::Muon | OptimizerKind::Sgd => 1,
        };
        let size = config.strategy.param_dtype.size();
        let copies = moments + usize::from(config.strategy.param_dtype != Dtype::F32);
        Self { weight: size as f64, gradient: size as f64, state: (copies * Dtype::F32.size()) as f64 }
    }

    /// All of them.
    pub fn total(&self) -> f64 {
        self.weight + self.gradient + self.state
    }
}

/// The number that `text` means, with k, m, b, t or K, M, G, T for thousands, millions, billions and trillions.
///
/// # Errors
/// [`Error::Illegal`] if it is none above 0 and below 10^16.
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
        Error::invalid(format!("`{text}` is no number above 0 and below 10^16, such as 4096, 7b or 4.2M"))
    })
}
