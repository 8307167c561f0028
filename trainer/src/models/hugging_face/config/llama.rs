//! `config.json` of Llama.

use crate::error::{Error, Result};
use crate::models::{FeedForward, GptConfig, Norm, Positions};
use crate::nn::{RopeConfig, RopeScaling};
use serde::{Deserialize, Serialize};

/// Relevant fields of the file. Missing fields have the values of the first Llama.
#[derive(Serialize, Deserialize)]
#[serde(default)]
pub(super) struct LlamaJson {
    model_type: String,
    architectures: Vec<String>,
    vocab_size: usize,
    max_position_embeddings: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    hidden_act: String,
    rms_norm_eps: f64,
    /// Base of rotary positions, in files before version 5 of transformers.
    rope_theta: f64,
    /// Scaling of rotary positions, in files before version 5.
    rope_scaling: Option<RopeJson>,
    /// Both, from version 5 on.
    rope_parameters: Option<RopeJson>,
    attention_bias: bool,
    mlp_bias: bool,
    tie_word_embeddings: bool,
}

/// Parameters of rotary positions.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct RopeJson {
    #[serde(default)]
    rope_type: String,
    /// Earlier name of the field. Some files have both.
    #[serde(default, rename = "type", skip_serializing)]
    earlier_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rope_theta: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    factor: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    low_freq_factor: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    high_freq_factor: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    original_max_position_embeddings: Option<usize>,
    /// Part of the features that are rotated.
    #[serde(default, skip_serializing)]
    partial_rotary_factor: Option<f64>,
}

impl Default for LlamaJson {
    fn default() -> Self {
        Self {
            model_type: "llama".to_owned(),
            architectures: vec!["LlamaForCausalLM".to_owned()],
            vocab_size: 32_000,
            max_position_embeddings: 2048,
            hidden_size: 4096,
            intermediate_size: 11_008,
            num_hidden_layers: 32,
            num_attention_heads: 32,
            num_key_value_heads: None,
            head_dim: None,
            hidden_act: "silu".to_owned(),
            rms_norm_eps: 1e-6,
            rope_theta: 10_000.0,
            rope_scaling: None,
            rope_parameters: None,
            attention_bias: false,
            mlp_bias: false,
            tie_word_embeddings: false,
        }
    }
}

impl RopeJson {
    fn new(rope: RopeConfig) -> Self {
        let scaling = rope.scaling;
        Self {
            rope_type: if scaling.is_some() { "llama3" } else { "default" }.to_owned(),
            rope_theta: Some(rope.base),
            factor: scaling.map(|scaling| scaling.factor),
            low_freq_factor: scaling.map(|scaling| scaling.low_freq_factor),
            high_freq_factor: scaling.map(|scaling| scaling.high_freq_factor),
            original_max_position_embeddings: scaling.map(|scaling| scaling.original_context),
            ..Self::default()
        }
    }

    fn kind(&self) -> &str {
        if self.rope_type.is_empty() { &self.earlier_type } else { &self.rope_type }
    }

    /// Returns Llama 3's scaling; `None` for another kind, or if a number is missing.
    fn scaling(&self) -> Option<RopeScaling> {
        Some(RopeScaling {
            factor: self.factor?,
            low_freq_factor: self.low_freq_factor?,
            high_freq_factor: self.high_freq_factor?,
            original_context: self.original_max_position_embeddings?,
        })
        .filter(|_| self.kind() == "llama3")
    }

    fn is_plain(&self) -> bool {
        matches!(self.kind(), "" | "default")
    }
}

impl LlamaJson {
    /// Returns the file for a model.
    pub(super) fn new(config: &GptConfig) -> Result<Self> {
        let GptConfig { norm, feed_forward, bias, .. } = *config;
        let Positions::Rotary(rope) = config.positions else {
            return Err(Error::invalid("no Llama: its positions are not rotary"));
        };
        if norm != Norm::Rms || feed_forward != FeedForward::SwiGlu {
            return Err(Error::invalid(format!("no Llama: norm {norm:?}, feed-forward {feed_forward:?}")));
        }
        Ok(Self {
            vocab_size: config.vocabulary,
            max_position_embeddings: config.context,
            hidden_size: config.width,
            intermediate_size: config.ffn_width(),
            num_hidden_layers: config.layers,
            num_attention_heads: config.heads,
            num_key_value_heads: Some(config.kv_heads),
            head_dim: Some(config.head_dim()),
            rms_norm_eps: config.norm_epsilon,
            rope_theta: rope.base,
            rope_scaling: rope.scaling.map(|_| RopeJson { rope_theta: None, ..RopeJson::new(rope) }),
            rope_parameters: Some(RopeJson::new(rope)),
            attention_bias: bias,
            mlp_bias: bias,
            tie_word_embeddings: config.tie_word_embeddings,
            ..Self::default()
        })
    }

    fn rope(&self) -> Option<&RopeJson> {
        self.rope_parameters.as_ref().or(self.rope_scaling.as_ref())
    }

    /// Returns the dimensions.
    pub(super) fn dimensions(&self) -> GptConfig {
        let (context, heads) = (self.max_position_embeddings, self.num_attention_heads);
        let base = self.rope().and_then(|rope| rope.rope_theta).unwrap_or(self.rope_theta);
        let llama =
            GptConfig::llama(self.vocab_size, context, self.hidden_size, heads, self.num_hidden_layers);
        let usual = llama.ffn_width();
        GptConfig {
            kv_heads: self.num_key_value_heads.unwrap_or(heads),
            positions: Positions::Rotary(RopeConfig {
                base,
                scaling: self.rope().and_then(RopeJson::scaling),
            }),
            norm_epsilon: self.rms_norm_eps,
            ffn_width: Some(self.intermediate_size).filter(|width| *width != usual),
            bias: self.attention_bias,
            tie_word_embeddings: self.tie_word_embeddings,
            ..llama
        }
    }

    /// Returns an unsupported option of the file, if there is one.
    pub(super) fn unsupported_option(&self) -> Option<String> {
        let activation = self.hidden_act.as_str();
        let head_dim = self.hidden_size / self.num_attention_heads.max(1);
        let rope = self.rope().filter(|rope| !rope.is_plain() && rope.scaling().is_none());
        let kind = rope.map(RopeJson::kind).unwrap_or_default();
        let part = self.rope().and_then(|rope| rope.partial_rotary_factor).unwrap_or(1.0);
        let checks = [
            (matches!(activation, "silu" | "swish"), format!("hidden_act {activation}")),
            (
                self.head_dim.is_none_or(|own| own == head_dim),
                format!("head_dim {}, not hidden_size / num_attention_heads", self.head_dim.unwrap_or(0)),
            ),
            (
                rope.is_none(),
                format!("rope_type {kind} with these parameters, neither default nor all of llama3"),
            ),
            (part == 1.0, format!("partial_rotary_factor {part}")),
            (
                self.attention_bias == self.mlp_bias,
                format!("attention_bias {} and mlp_bias {}", self.attention_bias, self.mlp_bias),
            ),
        ];
        checks.into_iter().find(|(fits, _)| !fits).map(|(_, what)| what)
    }
}
