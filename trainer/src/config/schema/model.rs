//! Section `model` of the configuration.

use crate::models::Family;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Normalization layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Norm {
    /// LayerNorm: mean 0 and standard deviation 1.
    #[serde(alias = "layernorm", alias = "layer-norm")]
    Layer,
    /// RMSNorm: root mean square 1.
    #[serde(alias = "rmsnorm", alias = "rms-norm")]
    Rms,
}

/// Feed-forward part of a transformer block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FeedForward {
    /// Two matrices with a GELU between them.
    Gelu,
    /// Three matrices with a gated SiLU.
    Swiglu,
}

/// Encoding of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Positions {
    /// Learned embedding of each position.
    Learned,
    /// Rotation of queries and keys by their position (RoPE).
    #[serde(alias = "rope")]
    Rotary,
}

/// Formula by which rotary positions are scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RopeScalingKind {
    /// All frequencies are divided.
    Linear,
    /// Low frequencies are divided, as in Llama 3.1.
    Llama3,
    /// Low frequencies are divided, and queries and keys are scaled.
    Yarn,
}

impl Model {
    /// Sets the keys of the preset `shape`.
    pub fn apply_shape(&mut self) {
        let (shape, is_llama) = (self.shape, self.shape != Family::Gpt2);
        self.positions = if is_llama { Positions::Rotary } else { Positions::Learned };
        self.norm = if is_llama { Norm::Rms } else { Norm::Layer };
        self.feed_forward = if is_llama { FeedForward::Swiglu } else { FeedForward::Gelu };
        self.bias = !is_llama;
        self.qkv_bias = shape.has_qkv_bias();
        self.qk_norm = shape.has_qk_norm();
        self.tie_word_embeddings = !is_llama;
    }
}

/// Settings of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Model {
    /// Family of models, which is a preset of `positions`, `norm`, `feed_forward`, `bias`,
    /// `qkv_bias`, `qk_norm` and `tie_word_embeddings`. Other keys of a file, and later overrides,
    /// change single values. `export` writes the files of the family, if it has such models.
    pub shape: Family,
    /// Folder of a model of one of the families in Hugging Face's layout, whose weights a new run
    /// begins with. Its `config.json` sets `shape`, the dimensions, the experts and
    /// `data.vocabulary`. Other keys of a file, and later overrides, change single values. None if
    /// empty.
    pub from: String,
    /// Number of transformer blocks.
    pub layers: usize,
    /// Number of features per token.
    pub width: usize,
    /// Number of attention heads; must divide the width if `head_dim` is 0.
    pub heads: usize,
    /// Features per head. 0 is the width, divided by the number of heads.
    pub head_dim: usize,
    /// Number of heads of keys and values; must divide the number of heads. 0 is one for each head.
    pub kv_heads: usize,
    /// Sequence length in tokens.
    pub context: usize,
    /// Positions to which a token attends, as in Mistral: its own and those before it. At least the
    /// context, because attention within a narrower window is not part of this build; 0 is all.
    pub sliding_window: usize,
    /// Encoding of positions.
    pub positions: Positions,
    /// Base of the frequencies of rotary positions.
    pub rope_base: f64,
    /// Formula of the scaling of rotary positions, for contexts longer than those of pretraining.
    pub rope_scaling: RopeScalingKind,
    /// Divisor of frequencies of rotary positions; 1 disables scaling.
    pub rope_scaling_factor: f64,
    /// Turns in the original context below which a frequency is divided, for `llama3`.
    pub rope_low_freq_factor: f64,
    /// Turns in the original context above which a frequency is unchanged, for `llama3`.
    pub rope_high_freq_factor: f64,
    /// Turns in the original context above which a frequency is unchanged, for `yarn`.
    pub rope_beta_fast: f64,
    /// Turns in the original context below which a frequency is divided, for `yarn`.
    pub rope_beta_slow: f64,
    /// Factor of rotated queries and keys, for `yarn`. 0 is 0.1 ln(`rope_scaling_factor`) + 1.
    pub rope_attention_factor: f64,
    /// Rounds the pairs that turn `rope_beta_fast` and `rope_beta_slow` times to whole numbers, for
    /// `yarn`.
    pub rope_truncate: bool,
    /// Context of pretraining in tokens, for the scaling of rotary positions.
    pub rope_original_context: usize,
    /// Normalization layer.
    pub norm: Norm,
    /// Number added to the variance in normalization layers.
    pub norm_epsilon: f64,
    /// Feed-forward part of a block.
    pub feed_forward: FeedForward,
    /// Hidden features of the feed-forward part; 0 is the usual multiple of the width.
    pub ffn_width: usize,
    /// Gives linear layers a bias, except for the head.
    pub bias: bool,
    /// Gives queries, keys and values a bias, also without `bias`, as in Qwen2.
    pub qkv_bias: bool,
    /// Normalizes each head of queries and keys by its root mean square, as in Qwen3.
    pub qk_norm: bool,
    /// Uses the embedding weights in the language model head.
    pub tie_word_embeddings: bool,
    /// Fraction of activations dropped in training.
    pub dropout: f64,
    /// Recomputes the activations of a block in backward instead of keeping them.
    pub activation_checkpointing: bool,
    /// Number of row groups for the head and the loss, computed one after the other. From 2 on, the
    /// logits of all rows never exist at once, and are computed twice.
    pub cross_entropy_splits: usize,
    /// Frozen parameters, by path of a parameter or module, such as `wte` or `h.*.attn`. `*`
    /// matches one component of a path, and one or more at the start.
    pub freeze: Vec<String>,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            shape: Family::Gpt2,
            from: String::new(),
            layers: 2,
            width: 128,
            heads: 4,
            head_dim: 0,
            kv_heads: 0,
            context: 128,
            sliding_window: 0,
            positions: Positions::Learned,
            rope_base: 10_000.0,
            rope_scaling: RopeScalingKind::Llama3,
            rope_scaling_factor: 1.0,
            rope_low_freq_factor: 1.0,
            rope_high_freq_factor: 4.0,
            rope_beta_fast: 32.0,
            rope_beta_slow: 1.0,
            rope_attention_factor: 0.0,
            rope_truncate: true,
            rope_original_context: 8192,
            norm: Norm::Layer,
            norm_epsilon: 1e-5,
            feed_forward: FeedForward::Gelu,
            ffn_width: 0,
            bias: true,
            qkv_bias: false,
            qk_norm: false,
            tie_word_embeddings: true,
            dropout: 0.0,
            activation_checkpointing: false,
            cross_entropy_splits: 1,
            freeze: Vec::new(),
        }
    }
}
