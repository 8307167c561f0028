//! Model of a configuration.

use crate::config::{self, Config, FeedForward, ModelKind, Norm, Positions};
use crate::error::{Error, Result};
use crate::flat::ProcessGroup;
use crate::models::{self, Classifier, Gpt, GptConfig, Model};
use crate::nn::{RopeConfig, RopeScaling};
use crate::parameter::{Inventory, Registry};
use crate::tensor_parallel::TensorParallel;
use crate::train::data_loader::DataDims;

/// Models that a configuration can select.
pub enum Network {
    /// Language model.
    Gpt(Box<Gpt>),
    /// Classifier of rows.
    Classifier(Classifier),
}

impl Network {
    /// Creates the configured model for data of these dimensions, sharded over `tensor`, and lists
    /// its parameters.
    ///
    /// # Errors
    /// Fails if the settings do not fit together.
    pub fn new(
        config: &Config,
        extents: DataDims,
        tensor: Option<&ProcessGroup>,
    ) -> Result<(Self, Inventory)> {
        let mut registry = Registry::default();
        let network = match (config.model.kind, extents) {
            (ModelKind::Gpt, DataDims::Tokens(vocabulary)) => {
                let gpt = gpt(&config.model, vocabulary);
                let split = TensorParallel::new(
                    tensor.cloned(),
                    config.strategy.sequence_parallel,
                    gpt.parallel_plan(),
                );
                Self::Gpt(Box::new(Gpt::new(&mut registry, gpt, split)?))
            }
            (ModelKind::Mlp, DataDims::Rows(features, classes)) if tensor.is_none() => {
                let sizes = [&[features], &config.model.hidden_sizes[..], &[classes]].concat();
                Self::Classifier(Classifier::mlp(&mut registry, &sizes))
            }
            (ModelKind::Gpt, DataDims::Rows(..)) => {
                return Err(Error::invalid("model.kind = \"gpt\" learns from text or tokens: see data.kind"));
            }
            (ModelKind::Mlp, DataDims::Tokens(_)) => {
                return Err(Error::invalid("model.kind = \"mlp\" learns from a table: see data.kind"));
            }
            (ModelKind::Mlp, DataDims::Rows(..)) => {
                return Err(Error::invalid("model.kind = \"mlp\" is not cut: set mesh.tensor to 1"));
            }
        };
        registry.freeze_all(&config.model.freeze)?;
        registry.set_dtype(config.strategy.param_dtype, |_| true);
        Ok((network, registry.finish()))
    }

    /// Returns the model for the training loop.
    pub fn model(&self) -> &dyn Model {
        match self {
            Network::Gpt(gpt) => &**gpt,
            Network::Classifier(classifier) => classifier,
        }
    }

    /// Returns the language model, if it is one.
    pub fn gpt(&self) -> Option<&Gpt> {
        match self {
            Network::Gpt(gpt) => Some(gpt),
            Network::Classifier(_) => None,
        }
    }
}

/// Returns the dimensions of the configured GPT.
pub(super) fn gpt(model: &config::Model, vocabulary: usize) -> GptConfig {
    let config::Model { context, width, heads, layers, .. } = *model;
    GptConfig {
        kv_heads: if model.kv_heads == 0 { heads } else { model.kv_heads },
        positions: match model.positions {
            Positions::Learned => models::Positions::Learned,
            Positions::Rotary => models::Positions::Rotary(rope(model)),
        },
        norm_epsilon: model.norm_epsilon as f32,
        ffn_width: (model.ffn_width > 0).then_some(model.ffn_width),
        bias: model.bias,
        norm: match model.norm {
            Norm::Layer => models::Norm::Layer,
            Norm::Rms => models::Norm::Rms,
        },
        feed_forward: match model.feed_forward {
            FeedForward::Gelu => models::FeedForward::Gelu,
            FeedForward::Swiglu => models::FeedForward::SwiGlu,
        },
        dropout: model.dropout as f32,
        tie_word_embeddings: model.tie_word_embeddings,
        activation_checkpointing: model.activation_checkpointing,
        cross_entropy_splits: model.cross_entropy_splits,
        ..GptConfig::new(vocabulary, context, width, heads, layers)
    }
}

/// Returns the frequencies of rotary positions.
fn rope(model: &config::Model) -> RopeConfig {
    let scaling = RopeScaling {
        factor: model.rope_scaling_factor,
        low_freq_factor: model.rope_low_freq_factor,
        high_freq_factor: model.rope_high_freq_factor,
        original_context: model.rope_original_context,
    };
    RopeConfig { base: model.rope_base, scaling: (scaling.factor != 1.0).then_some(scaling) }
}
