//! Reads and writes `config.json`.

use crate::error::{Error, Result};
use crate::models::{FeedForward, GptConfig, Norm};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Relevant fields of the file. Missing fields have GPT-2's values.
#[derive(Serialize, Deserialize)]
#[serde(default)]
struct ConfigJson {
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

impl Default for ConfigJson {
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

/// Reads the model configuration from the file at `path`. Dropout is left to the training run.
///
/// # Errors
/// Fails if the file cannot be read, or describes a model that [`Gpt`](super::super::Gpt) does not
/// support.
pub fn read_config(path: &Path) -> Result<GptConfig> {
    let text = std::fs::read_to_string(path).map_err(|error| Error::file(path, error))?;
    let text: ConfigJson = serde_json::from_str(&text).map_err(|error| Error::file(path, error))?;
    if let Some(what) = text.unsupported_option() {
        return Err(Error::file(path, format!("{what}, which this model has not")));
    }
    let config = GptConfig::new(text.vocab_size, text.n_positions, text.n_embd, text.n_head, text.n_layer);
    config.check(1).map_err(|error| Error::file(path, error))?;
    Ok(GptConfig { tie_word_embeddings: text.tie_word_embeddings, ..config })
}

/// Writes the file for a model.
///
/// # Errors
/// Fails if the file cannot be written, or the model is no GPT-2.
pub fn write_config(path: &Path, config: &GptConfig) -> Result<()> {
    if config.norm != Norm::Layer || config.feed_forward != FeedForward::Gelu {
        let (norm, feed_forward) = (config.norm, config.feed_forward);
        return Err(Error::invalid(format!("no GPT-2: norm {norm:?}, feed-forward {feed_forward:?}")));
    }
    let text = ConfigJson {
        vocab_size: config.vocabulary,
        n_positions: config.context,
        n_embd: config.width,
        n_layer: config.layers,
        n_head: config.heads,
        embd_pdrop: config.dropout,
        resid_pdrop: config.dropout,
        attn_pdrop: 0.0,
        tie_word_embeddings: config.tie_word_embeddings,
        ..ConfigJson::default()
    };
    let text = serde_json::to_string_pretty(&text).map_err(|error| Error::file(path, error))?;
    std::fs::write(path, text).map_err(|error| Error::file(path, error))
}

impl ConfigJson {
    /// Returns an unsupported option of the file, if there is one.
    fn unsupported_option(&self) -> Option<String> {
        let activation = self.activation_function.as_str();
        let checks = [
            (self.model_type == "gpt2", format!("model_type {}", self.model_type)),
            (
                matches!(activation, "gelu_new" | "gelu_pytorch_tanh"),
                format!("activation_function {activation}"),
            ),
            (self.layer_norm_epsilon == 1e-5, format!("layer_norm_epsilon {}", self.layer_norm_epsilon)),
            (
                self.n_inner.is_none_or(|inner| inner == 4 * self.n_embd),
                format!("n_inner {}", self.n_inner.unwrap_or_default()),
            ),
            (self.scale_attn_weights, "attention that is not scaled".to_owned()),
            (!self.scale_attn_by_inverse_layer_idx, "attention scaled by layer".to_owned()),
        ];
        checks.into_iter().find(|(fits, _)| !fits).map(|(_, what)| what)
    }
}
