//! `config.json` of Llama, and of the families that differ from it by a few switches.

use super::super::family::{Family, Switches, Window};
use super::rope::{self, RopeJson};
use crate::models::{GptConfig, Positions};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use unisono_nn::error::{Error, Result};
use unisono_nn::modules::RopeConfig;
use unisono_parallel::experts::Experts;

/// Relevant fields of the file.
#[derive(Deserialize)]
pub(super) struct LlamaJson {
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
    partial_rotary_factor: Option<f64>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    tie_word_embeddings: bool,
    sliding_window: Option<usize>,
    /// The window is that of blocks from `max_window_layers` on, or of those that `layer_types`
    /// names.
    #[serde(default)]
    use_sliding_window: bool,
    #[serde(default)]
    max_window_layers: usize,
    layer_types: Option<Vec<String>>,
    #[serde(default)]
    num_local_experts: usize,
    #[serde(default)]
    num_experts_per_tok: usize,
    router_jitter_noise: Option<f64>,
}

impl LlamaJson {
    /// Reads the fields of a file.
    ///
    /// # Errors
    /// Fails for a value of another type.
    pub(super) fn read(family: Family, fields: &Map<String, Value>) -> serde_json::Result<Self> {
        let mut with_defaults = family.defaults();
        with_defaults.extend(fields.clone());
        serde_json::from_value(Value::Object(with_defaults))
    }

    fn rope(&self) -> RopeJson {
        RopeJson::first(self.rope_scaling.as_ref(), self.rope_parameters.as_ref())
    }

    /// Returns the dimensions. The settings of the experts that concern training are left to the
    /// run.
    pub(super) fn dimensions(&self, family: Family) -> GptConfig {
        let (switches, rope) = (family.switches(), self.rope());
        let (context, heads) = (self.max_position_embeddings, self.num_attention_heads);
        let llama =
            GptConfig::llama(self.vocab_size, context, self.hidden_size, heads, self.num_hidden_layers);
        let usual = llama.ffn_width();
        let is_of_width = |head_dim: &usize| heads.checked_mul(*head_dim) == Some(self.hidden_size);
        let experts = Experts {
            count: self.num_local_experts,
            per_token: self.num_experts_per_tok,
            width: self.intermediate_size,
            ..Experts::default()
        };
        GptConfig {
            family,
            head_dim: self.head_dim.filter(|head_dim| !is_of_width(head_dim)),
            kv_heads: self.num_key_value_heads.unwrap_or(heads),
            positions: Positions::Rotary(RopeConfig {
                base: rope.rope_theta.unwrap_or(self.rope_theta),
                scaling: rope.scaling(context).ok().flatten(),
            }),
            norm_epsilon: self.rms_norm_eps,
            ffn_width: Some(self.intermediate_size).filter(|width| *width != usual),
            experts: switches.has_experts.then_some(experts),
            bias: switches.has_bias_keys && self.attention_bias,
            qkv_bias: switches.qkv_bias,
            qk_norm: switches.qk_norm,
            sliding_window: self.window(switches),
            tie_word_embeddings: self.tie_word_embeddings,
            ..llama
        }
    }

    /// Returns the window of attention, if a block has one.
    fn window(&self, switches: &Switches) -> Option<usize> {
        let has_block = || match &self.layer_types {
            Some(types) => types.iter().any(|kind| kind == SLIDING),
            None => self.max_window_layers < self.num_hidden_layers,
        };
        match switches.window {
            Window::Never => None,
            Window::Key => self.sliding_window,
            Window::Switch => self.sliding_window.filter(|_| self.use_sliding_window && has_block()),
        }
    }

    /// Returns an unsupported option of the file, if there is one.
    pub(super) fn unsupported_option(&self, family: Family) -> Option<String> {
        let (switches, rope) = (family.switches(), self.rope());
        let (activation, jitter) = (self.hidden_act.as_str(), self.router_jitter_noise.unwrap_or(0.0));
        let scaling = rope.scaling(self.max_position_embeddings);
        let part = self.partial_rotary_factor.or(rope.partial_rotary_factor).unwrap_or(1.0);
        let has_biases = match family {
            Family::Llama => self.attention_bias == self.mlp_bias,
            Family::Qwen3 => !self.attention_bias,
            // Other families have no keys of biases, so their files cannot ask for an unsupported
            // one.
            _ => true,
        };
        let kinds = self.layer_types.iter().flatten().filter(|_| switches.window == Window::Switch);
        let kind = kinds.into_iter().find(|kind| ![SLIDING, "full_attention"].contains(&kind.as_str()));
        let checks = [
            (matches!(activation, "silu" | "swish"), format!("hidden_act {activation}")),
            (
                switches.scales_rope || rope.kind() == "default",
                format!("rope_type {} with model_type {}", rope.kind(), switches.model_type),
            ),
            (scaling.is_ok(), scaling.err().unwrap_or_default()),
            (part == 1.0, format!("partial_rotary_factor {part}")),
            (has_biases, format!("attention_bias {} and mlp_bias {}", self.attention_bias, self.mlp_bias)),
            (self.window(switches) != Some(0), "sliding_window 0".to_owned()),
            (kind.is_none(), format!("layer_types with {}", kind.map_or("", String::as_str))),
            (!switches.has_experts || jitter == 0.0, format!("router_jitter_noise {jitter}")),
            (
                !switches.has_experts || self.has_legal_experts(),
                format!(
                    "num_local_experts {} and num_experts_per_tok {}",
                    self.num_local_experts, self.num_experts_per_tok
                ),
            ),
        ];
        checks.into_iter().find(|(fits, _)| !fits).map(|(_, what)| what)
    }

    fn has_legal_experts(&self) -> bool {
        (1..=Experts::MAX_COUNT).contains(&self.num_local_experts)
            && (1..=self.num_local_experts).contains(&self.num_experts_per_tok)
    }
}

/// Name in `layer_types` of a block with a window.
const SLIDING: &str = "sliding_attention";

/// Keys that describe the window of attention. A file may have others than it is written with.
pub(super) const WINDOW_KEYS: [&str; 4] =
    ["use_sliding_window", "sliding_window", "max_window_layers", "layer_types"];

/// Returns the fields of the file for a model.
///
/// # Errors
/// Fails if the model is none of the family.
pub(super) fn fields(family: Family, config: &GptConfig) -> Result<Map<String, Value>> {
    let Positions::Rotary(rotation) = config.positions else {
        return Err(Error::invalid(format!("no model of the family {}: learned positions", family.name())));
    };
    let (switches, usual) = (family.switches(), config.ffn_width());
    // The files of a mixture have the width of one expert here.
    let hidden = config.experts.as_ref().map_or(usual, |experts| experts.hidden_width(usual));
    let mut fields = vec![
        ("model_type", json!(switches.model_type)),
        ("architectures", json!([switches.class])),
        ("vocab_size", json!(config.vocabulary)),
        ("max_position_embeddings", json!(config.context)),
        ("hidden_size", json!(config.width)),
        ("intermediate_size", json!(hidden)),
        ("num_hidden_layers", json!(config.layers)),
        ("num_attention_heads", json!(config.heads)),
        ("num_key_value_heads", json!(config.kv_heads)),
        ("hidden_act", json!("silu")),
        ("rms_norm_eps", json!(config.norm_epsilon)),
        ("tie_word_embeddings", json!(config.tie_word_embeddings)),
    ];
    fields.extend(rope::KEYS.into_iter().zip(rope::values(rotation)));
    if switches.has_head_dim || config.head_dim.is_some() {
        fields.push(("head_dim", json!(config.head_dim())));
    }
    if switches.has_bias_keys {
        fields.extend(["attention_bias", "mlp_bias"].map(|key| (key, json!(config.bias))));
    }
    match (switches.window, config.sliding_window) {
        (Window::Never, _) => {}
        (Window::Key, window) => fields.push(("sliding_window", json!(window))),
        (Window::Switch, None) => fields.push(("use_sliding_window", json!(false))),
        (Window::Switch, Some(window)) => fields.extend([
            ("use_sliding_window", json!(true)),
            ("sliding_window", json!(window)),
            ("max_window_layers", json!(0)),
        ]),
    }
    if let Some(experts) = &config.experts {
        fields.extend([
            ("num_local_experts", json!(experts.count)),
            ("num_experts_per_tok", json!(experts.per_token)),
        ]);
    }
    Ok(fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}
