//! Families of models: how their files name them, and how they differ from Llama.

use crate::models::{FeedForward, GptConfig, Norm, Positions};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use unisono_nn::error::{Error, Result};
use unisono_parallel::experts::{ExpertBalance, Experts, RouterScore};

/// Family of models in Hugging Face's transformers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// Learned positions, LayerNorm, GELU, biases, and a tied head.
    Gpt2,
    /// Rotary positions, RMSNorm, SwiGLU, no biases, and an untied head.
    Llama,
    /// As `llama`, with `sliding_window` in its files.
    Mistral,
    /// As `llama`, with `qkv_bias`.
    Qwen2,
    /// As `llama`, with `qk_norm`.
    Qwen3,
    /// As `llama`, with one matrix of queries, keys and values, and one of gates and values, in its
    /// files.
    Phi3,
    /// As `llama`, with `experts.count` = 8, of which a token uses 2.
    Mixtral,
}

/// Switches of a family.
pub(super) struct Switches {
    family: Family,
    /// Name of the family in `config.json`.
    pub(super) model_type: &'static str,
    /// Class of its models in transformers.
    pub(super) class: &'static str,
    /// The file says if linear layers have biases.
    pub(super) has_bias_keys: bool,
    /// Queries, keys and values have biases.
    pub(super) qkv_bias: bool,
    /// Heads of queries and keys are normalized.
    pub(super) qk_norm: bool,
    /// The file has the features per head, also if they are width / heads.
    pub(super) has_head_dim: bool,
    pub(super) window: Window,
    /// The file may scale rotary positions.
    pub(super) scales_rope: bool,
    /// The file of weights has one matrix of queries, keys and values, and one of gates and values.
    pub(super) is_fused: bool,
    /// Feed-forward parts are experts.
    pub(super) has_experts: bool,
}

/// Window of attention in the files of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Window {
    /// There is none.
    Never,
    /// `sliding_window` is the window of all blocks.
    Key,
    /// `sliding_window` is the window of some blocks if `use_sliding_window` is true.
    Switch,
}

const LLAMA: Switches = Switches {
    family: Family::Llama,
    model_type: "llama",
    class: "LlamaForCausalLM",
    has_bias_keys: true,
    qkv_bias: false,
    qk_norm: false,
    has_head_dim: true,
    window: Window::Never,
    scales_rope: true,
    is_fused: false,
    has_experts: false,
};

/// Families without keys for biases begin with these switches.
const PLAIN: Switches = Switches { has_bias_keys: false, ..LLAMA };

/// All families. GPT-2 has keys of its own, and no other switch counts for it.
static TABLE: [Switches; 7] = [
    Switches { family: Family::Gpt2, model_type: "gpt2", class: "GPT2LMHeadModel", ..PLAIN },
    LLAMA,
    Switches {
        family: Family::Mistral,
        model_type: "mistral",
        class: "MistralForCausalLM",
        window: Window::Key,
        ..PLAIN
    },
    Switches {
        family: Family::Qwen2,
        model_type: "qwen2",
        class: "Qwen2ForCausalLM",
        qkv_bias: true,
        has_head_dim: false,
        window: Window::Switch,
        ..PLAIN
    },
    Switches {
        family: Family::Qwen3,
        model_type: "qwen3",
        class: "Qwen3ForCausalLM",
        qk_norm: true,
        window: Window::Switch,
        ..PLAIN
    },
    Switches {
        family: Family::Phi3,
        model_type: "phi3",
        class: "Phi3ForCausalLM",
        has_head_dim: false,
        window: Window::Key,
        scales_rope: false,
        is_fused: true,
        ..PLAIN
    },
    Switches {
        family: Family::Mixtral,
        model_type: "mixtral",
        class: "MixtralForCausalLM",
        window: Window::Key,
        has_experts: true,
        ..PLAIN
    },
];

impl Family {
    /// Returns the switches.
    pub(super) fn switches(self) -> &'static Switches {
        TABLE.iter().find(|row| row.family == self).expect("a row of each family")
    }

    /// Returns the family with this name in `config.json`.
    pub(super) fn named(model_type: &str) -> Option<Self> {
        TABLE.iter().find(|row| row.model_type == model_type).map(|row| row.family)
    }

    /// Returns the family of a class of transformers, with a head or without.
    pub(super) fn of_class(class: &str) -> Option<Self> {
        let is_of = |row: &&Switches| {
            let base = row.class.trim_end_matches("ForCausalLM").trim_end_matches("LMHeadModel");
            class == row.class || class.strip_suffix("Model") == Some(base)
        };
        TABLE.iter().find(is_of).map(|row| row.family)
    }

    /// Returns the names of all families, for errors.
    pub(super) fn names() -> String {
        TABLE.iter().map(|row| row.model_type).collect::<Vec<_>>().join(", ")
    }

    /// Returns the name in configurations and in `config.json`.
    pub fn name(self) -> &'static str {
        self.switches().model_type
    }

    /// Returns true if queries, keys and values have biases although other layers have none.
    pub fn has_qkv_bias(self) -> bool {
        self.switches().qkv_bias
    }

    /// Returns true if heads of queries and keys are normalized.
    pub fn has_qk_norm(self) -> bool {
        self.switches().qk_norm
    }

    /// Returns true if feed-forward parts are experts.
    pub fn has_experts(self) -> bool {
        self.switches().has_experts
    }

    /// Returns the family whose files describe a model: its own, or the first that can.
    ///
    /// # Errors
    /// Fails if there is none, and names what is different in the nearest family.
    pub fn of(config: &GptConfig) -> Result<Self> {
        let mut families = [config.family].into_iter().chain(TABLE.iter().map(|row| row.family));
        families.find(|family| family.difference(config).is_none()).ok_or_else(|| {
            let is_rotary = matches!(config.positions, Positions::Rotary(_));
            let nearest = match config.family {
                Self::Gpt2 if is_rotary && config.experts.is_some() => Self::Mixtral,
                Self::Gpt2 if is_rotary => Self::Llama,
                family => family,
            };
            let what = nearest.difference(config).unwrap_or_default();
            Error::invalid(format!("no model of the family {}: {what}", nearest.name()))
        })
    }

    /// Returns the first setting with which a model is none of the family.
    fn difference(self, config: &GptConfig) -> Option<String> {
        let row = self.switches();
        let &GptConfig { norm, feed_forward, bias, qkv_bias, qk_norm, sliding_window, .. } = config;
        let is_rotary = matches!(config.positions, Positions::Rotary(_));
        if self == Self::Gpt2 {
            return gpt2_difference(config);
        }
        let has_own_bias = if row.qkv_bias { !bias && qkv_bias } else { bias || !qkv_bias };
        let scales_rope = matches!(config.positions, Positions::Rotary(rope) if rope.scaling.is_some());
        let checks = [
            (is_rotary, "its positions are not rotary".to_owned()),
            (
                norm == Norm::Rms && feed_forward == FeedForward::SwiGlu,
                format!("norm {norm:?}, feed-forward {feed_forward:?}"),
            ),
            (has_own_bias && (row.has_bias_keys || !bias), format!("bias {bias}, qkv_bias {qkv_bias}")),
            (qk_norm == row.qk_norm, format!("qk_norm {qk_norm}")),
            (
                sliding_window.is_none() || row.window != Window::Never,
                format!("a sliding_window of {}", sliding_window.unwrap_or(0)),
            ),
            (row.scales_rope || !scales_rope, "scaled rotary positions".to_owned()),
            (row.has_experts == config.experts.is_some(), format!("experts {}", config.experts.is_some())),
            (config.experts.as_ref().is_none_or(are_mixtral), format!("{:?}", config.experts)),
        ];
        checks.into_iter().find(|(fits, _)| !fits).map(|(_, what)| what)
    }

    /// Returns the values that transformers has for keys that a file does not give.
    pub(super) fn defaults(self) -> Map<String, Value> {
        let common = json!({
            "vocab_size": 32_000, "max_position_embeddings": 131_072, "hidden_size": 4096,
            "intermediate_size": 14_336, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "head_dim": null, "hidden_act": "silu", "rms_norm_eps": 1e-6,
            "rope_theta": 1e4, "sliding_window": null, "tie_word_embeddings": false,
        });
        let mut qwen = json!({
            "vocab_size": 151_936, "max_position_embeddings": 32_768, "intermediate_size": 22_016,
            "num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28,
        });
        let of_family = match self {
            Self::Gpt2 => json!({}),
            Self::Llama => json!({
                "max_position_embeddings": 2048, "intermediate_size": 11_008, "num_key_value_heads": null,
            }),
            Self::Mistral => json!({"sliding_window": 4096}),
            Self::Qwen2 => qwen,
            Self::Qwen3 => {
                qwen["head_dim"] = json!(128);
                qwen
            }
            Self::Phi3 => json!({
                "vocab_size": 32_064, "max_position_embeddings": 4096, "hidden_size": 3072,
                "intermediate_size": 8192, "num_key_value_heads": null, "rms_norm_eps": 1e-5,
            }),
            Self::Mixtral => json!({
                "rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_local_experts": 8, "num_experts_per_tok": 2,
            }),
        };
        [common, of_family].into_iter().filter_map(|part| part.as_object().cloned()).flatten().collect()
    }
}

/// Returns the first setting with which a model is no GPT-2.
fn gpt2_difference(config: &GptConfig) -> Option<String> {
    let GptConfig { norm, feed_forward, positions, bias, heads, kv_heads, qk_norm, .. } = config;
    let is_gpt2 = *norm == Norm::Layer
        && *feed_forward == FeedForward::Gelu
        && *positions == Positions::Learned
        && *bias
        && heads == kv_heads
        && !qk_norm;
    let is_plain = config.head_dim.is_none() && config.sliding_window.is_none() && config.experts.is_none();
    if is_gpt2 && is_plain {
        return None;
    }
    Some(format!(
        "norm {norm:?}, feed-forward {feed_forward:?}, positions {positions:?}, bias {bias}, {heads} heads with \
         {kv_heads} of keys and values, qk_norm {qk_norm}, head_dim {:?}, sliding_window {:?}, experts {}",
        config.head_dim,
        config.sliding_window,
        config.experts.is_some()
    ))
}

/// Returns true for experts that compute what Mixtral's compute: probabilities over all experts,
/// divided by the sum of those of the chosen ones.
fn are_mixtral(experts: &Experts) -> bool {
    let Experts { shared, first_dense, score, normalize, scale, balance, .. } = *experts;
    (shared, first_dense, score) == (0, 0, RouterScore::Softmax)
        && normalize
        && scale == 1.0
        && balance != ExpertBalance::Bias
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_found_by_name_class_and_switches() {
        for row in &TABLE {
            assert_eq!(Family::named(row.model_type), Some(row.family));
            assert_eq!(Family::of_class(row.class), Some(row.family));
            assert_eq!(row.family.name(), row.model_type);
        }
        assert_eq!(Family::of_class("GPT2Model"), Some(Family::Gpt2));
        assert_eq!(Family::of_class("Qwen2Model"), Some(Family::Qwen2));
        assert_eq!((Family::of_class("Model"), Family::named("gemma2")), (None, None));
        let llama = GptConfig::llama(11, 6, 16, 4, 2);
        let experts = Experts { count: 4, ..Experts::default() };
        for (config, family) in [
            (GptConfig::new(11, 6, 16, 4, 2), Family::Gpt2),
            (llama.clone(), Family::Llama),
            (GptConfig { family: Family::Phi3, ..llama.clone() }, Family::Phi3),
            (GptConfig { family: Family::Gpt2, ..llama.clone() }, Family::Llama),
            (GptConfig { bias: true, ..llama.clone() }, Family::Llama),
            (GptConfig { sliding_window: Some(9), ..llama.clone() }, Family::Mistral),
            (GptConfig { qkv_bias: true, ..llama.clone() }, Family::Qwen2),
            (GptConfig { qk_norm: true, ..llama.clone() }, Family::Qwen3),
            (GptConfig { experts: Some(experts), ..llama.clone() }, Family::Mixtral),
        ] {
            assert_eq!(Family::of(&config).unwrap(), family, "{config:?}");
        }
        let refused = |config: GptConfig| Family::of(&config).unwrap_err().to_string();
        let qwen = GptConfig { qk_norm: true, qkv_bias: true, ..llama.clone() };
        assert_eq!(refused(qwen.clone()), "no model of the family llama: bias false, qkv_bias true");
        let named = GptConfig { family: Family::Qwen2, ..qwen };
        assert_eq!(refused(named), "no model of the family qwen2: qk_norm true");
        let shared = Experts { shared: 1, ..experts };
        let shared = GptConfig { experts: Some(shared), family: Family::Mixtral, ..llama };
        assert!(refused(shared).contains("family mixtral: Some(Experts { count: 4, per_token: 2"));
    }
}
