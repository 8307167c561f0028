//! `config.json` of GPT-2.

use crate::models::GptConfig;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use unisono_nn::error::{Error, Result};

/// Relevant fields of the file. Missing fields have GPT-2's values.
#[derive(Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Gpt2Json {
    model_type: String,
    architectures: Vec<String>,
    vocab_size: usize,
    n_positions: usize,
    n_embd: usize,
    n_layer: usize,
    n_head: usize,
    n_inner: Option<usize>,
    activation_function: String,
    layer_norm_epsilon: f64,
    embd_pdrop: f32,
    resid_pdrop: f32,
    attn_pdrop: f32,
    tie_word_embeddings: bool,
    scale_attn_weights: bool,
    scale_attn_by_inverse_layer_idx: bool,
}

impl Default for Gpt2Json {
    fn default() -> Self {
        Self {
            model_type: "gpt2".to_owned(),
            architectures: vec!["GPT2LMHeadModel".to_owned()],
            vocab_size: 50257,
            n_positions: 1024,
            n_embd: 768,
            n_layer: 12,
            n_head: 12,
            n_inner: None,
            activation_function: "gelu_new".to_owned(),
            layer_norm_epsilon: 1e-5,
            embd_pdrop: 0.1,
            resid_pdrop: 0.1,
            attn_pdrop: 0.1,
            tie_word_embeddings: true,
            scale_attn_weights: true,
            scale_attn_by_inverse_layer_idx: false,
        }
    }
}

impl Gpt2Json {
    /// Returns the file for a GPT-2.
    pub(super) fn new(config: &GptConfig) -> Self {
        Self {
            vocab_size: config.vocabulary,
            n_positions: config.context,
            n_embd: config.width,
            n_layer: config.layers,
            n_head: config.heads,
            n_inner: config.ffn_width,
            layer_norm_epsilon: config.norm_epsilon,
            embd_pdrop: config.dropout,
            resid_pdrop: config.dropout,
            attn_pdrop: 0.0,
            tie_word_embeddings: config.tie_word_embeddings,
            ..Self::default()
        }
    }

    /// Returns the fields of the file.
    ///
    /// # Errors
    /// Fails if a value is none of JSON's.
    pub(super) fn to_fields(&self) -> Result<Map<String, Value>> {
        match serde_json::to_value(self) {
            Ok(Value::Object(fields)) => Ok(fields),
            Ok(other) => Err(Error::invalid(format!("no fields: {other}"))),
            Err(error) => Err(Error::invalid(error.to_string())),
        }
    }

    /// Returns the dimensions. Dropout is left to the training run.
    pub(super) fn dimensions(&self) -> GptConfig {
        let usual = self.n_embd.saturating_mul(4);
        GptConfig {
            ffn_width: self.n_inner.filter(|inner| *inner != usual),
            norm_epsilon: self.layer_norm_epsilon,
            tie_word_embeddings: self.tie_word_embeddings,
            ..GptConfig::new(self.vocab_size, self.n_positions, self.n_embd, self.n_head, self.n_layer)
        }
    }

    /// Returns an unsupported option of the file, if there is one.
    pub(super) fn unsupported_option(&self) -> Option<String> {
        let activation = self.activation_function.as_str();
        let checks = [
            (
                matches!(activation, "gelu_new" | "gelu_pytorch_tanh"),
                format!("activation_function {activation}"),
            ),
            (self.scale_attn_weights, "attention that is not scaled".to_owned()),
            (!self.scale_attn_by_inverse_layer_idx, "attention scaled by layer".to_owned()),
        ];
        checks.into_iter().find(|(fits, _)| !fits).map(|(_, what)| what)
    }
}
