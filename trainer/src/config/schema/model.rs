//! Section `model` of the configuration.

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

/// Preset of the keys that make up an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// Learned positions, LayerNorm, GELU, biases, and a tied head.
    Gpt2,
    /// Rotary positions, RMSNorm, SwiGLU, no biases, and an untied head.
    Llama,
}

impl Shape {
    /// Sets the keys of the preset.
    pub fn apply(self, model: &mut Model) {
        let is_llama = self == Self::Llama;
        model.shape = self;
        model.positions = if is_llama { Positions::Rotary } else { Positions::Learned };
        model.norm = if is_llama { Norm::Rms } else { Norm::Layer };
        model.feed_forward = if is_llama { FeedForward::Swiglu } else { FeedForward::Gelu };
        model.bias = !is_llama;
        model.tie_word_embeddings = !is_llama;
    }
}

/// Settings of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Model {
    /// Preset of `positions`, `norm`, `feed_forward`, `bias` and `tie_word_embeddings`. Other keys
    /// of a file, and later overrides, change single values.
    pub shape: Shape,
    /// Folder of a GPT-2 or Llama in Hugging Face's layout, whose weights a new run begins with.
    /// Its `config.json` sets the dimensions and `data.vocabulary`. Other keys of a file, and later
    /// overrides, change single values. None if empty.
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
    /// Divisor of low frequencies of rotary positions, as in Llama 3.1; 1 disables scaling.
    pub rope_scaling_factor: f64,
    /// Turns in the original context below which a frequency is divided.
    pub rope_low_freq_factor: f64,
    /// Turns in the original context above which a frequency is unchanged.
    pub rope_high_freq_factor: f64,
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
            shape: Shape::Gpt2,
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
            rope_scaling_factor: 1.0,
            rope_low_freq_factor: 1.0,
            rope_high_freq_factor: 4.0,
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
