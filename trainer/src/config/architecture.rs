//! Dimensions of language models: from the keys of a configuration, and back.

use crate::config::{Config, Experts, FeedForward, Model, Norm, Positions, RopeScalingKind};
use crate::models::hugging_face::read_folder;
use crate::models::{self, GptConfig};
use std::path::Path;
use unisono_nn::batch::PADDING;
use unisono_nn::error::Result;
use unisono_nn::modules::{Llama3Scaling, RopeConfig, RopeScaling, YarnScaling};

impl Model {
    /// Returns the dimensions and options of the configured GPT, without experts.
    fn gpt_config(&self, vocabulary: usize) -> GptConfig {
        let Self { context, width, heads, layers, .. } = *self;
        GptConfig {
            family: self.shape,
            head_dim: (self.head_dim > 0).then_some(self.head_dim),
            kv_heads: if self.kv_heads == 0 { heads } else { self.kv_heads },
            sliding_window: (self.sliding_window > 0).then_some(self.sliding_window),
            positions: match self.positions {
                Positions::Learned => models::Positions::Learned,
                Positions::Rotary => models::Positions::Rotary(self.rope_config()),
            },
            norm: match self.norm {
                Norm::Layer => models::Norm::Layer,
                Norm::Rms => models::Norm::Rms,
            },
            norm_epsilon: self.norm_epsilon,
            feed_forward: match self.feed_forward {
                FeedForward::Gelu => models::FeedForward::Gelu,
                FeedForward::Swiglu => models::FeedForward::SwiGlu,
            },
            ffn_width: (self.ffn_width > 0).then_some(self.ffn_width),
            bias: self.bias,
            qkv_bias: self.qkv_bias,
            qk_norm: self.qk_norm,
            dropout: self.dropout as f32,
            tie_word_embeddings: self.tie_word_embeddings,
            activation_checkpointing: self.activation_checkpointing,
            cross_entropy_splits: self.cross_entropy_splits,
            ..GptConfig::new(vocabulary, context, width, heads, layers)
        }
    }

    /// Returns the frequencies of rotary positions.
    pub(super) fn rope_config(&self) -> RopeConfig {
        let (factor, original_context) = (self.rope_scaling_factor, self.rope_original_context);
        let scaling = match self.rope_scaling {
            RopeScalingKind::Linear => RopeScaling::Linear { factor },
            RopeScalingKind::Llama3 => RopeScaling::Llama3(Llama3Scaling {
                factor,
                low_freq_factor: self.rope_low_freq_factor,
                high_freq_factor: self.rope_high_freq_factor,
                original_context,
            }),
            RopeScalingKind::Yarn => RopeScaling::Yarn(YarnScaling {
                factor,
                original_context,
                beta_fast: self.rope_beta_fast,
                beta_slow: self.rope_beta_slow,
                attention_factor: (self.rope_attention_factor != 0.0).then_some(self.rope_attention_factor),
                truncate: self.rope_truncate,
            }),
        };
        RopeConfig { base: self.rope_base, scaling: Some(scaling).filter(|scaling| !scaling.is_identity()) }
    }

    /// Sets the keys that describe `gpt`, except for those of training.
    fn set_gpt_config(&mut self, gpt: &GptConfig) {
        let &GptConfig { context, width, heads, kv_heads, layers, .. } = gpt;
        *self = Self {
            shape: gpt.family,
            layers,
            width,
            heads,
            head_dim: gpt.head_dim.unwrap_or(0),
            kv_heads,
            context,
            sliding_window: gpt.sliding_window.unwrap_or(0),
            positions: match gpt.positions {
                models::Positions::Learned => Positions::Learned,
                models::Positions::Rotary(_) => Positions::Rotary,
            },
            norm: match gpt.norm {
                models::Norm::Layer => Norm::Layer,
                models::Norm::Rms => Norm::Rms,
            },
            norm_epsilon: gpt.norm_epsilon,
            feed_forward: match gpt.feed_forward {
                models::FeedForward::Gelu => FeedForward::Gelu,
                models::FeedForward::SwiGlu => FeedForward::Swiglu,
            },
            ffn_width: gpt.ffn_width(),
            bias: gpt.bias,
            qkv_bias: gpt.qkv_bias,
            qk_norm: gpt.qk_norm,
            tie_word_embeddings: gpt.tie_word_embeddings,
            ..self.clone()
        };
        if let models::Positions::Rotary(rope) = gpt.positions {
            self.set_rope_config(rope);
        }
    }

    /// Sets the keys of rotary positions.
    fn set_rope_config(&mut self, rope: RopeConfig) {
        self.rope_base = rope.base;
        match rope.scaling {
            None => (self.rope_scaling_factor, self.rope_attention_factor) = (1.0, 0.0),
            Some(RopeScaling::Linear { factor }) => {
                (self.rope_scaling, self.rope_scaling_factor) = (RopeScalingKind::Linear, factor);
            }
            Some(RopeScaling::Llama3(scaling)) => {
                (self.rope_scaling, self.rope_scaling_factor) = (RopeScalingKind::Llama3, scaling.factor);
                self.rope_low_freq_factor = scaling.low_freq_factor;
                self.rope_high_freq_factor = scaling.high_freq_factor;
                self.rope_original_context = scaling.original_context;
            }
            Some(RopeScaling::Yarn(scaling)) => {
                (self.rope_scaling, self.rope_scaling_factor) = (RopeScalingKind::Yarn, scaling.factor);
                self.rope_original_context = scaling.original_context;
                (self.rope_beta_fast, self.rope_beta_slow) = (scaling.beta_fast, scaling.beta_slow);
                self.rope_attention_factor = scaling.attention_factor.unwrap_or(0.0);
                self.rope_truncate = scaling.truncate;
            }
        }
    }
}

impl Config {
    /// Returns the dimensions and options of the configured GPT.
    pub fn gpt_config(&self) -> GptConfig {
        let (experts, padding) = (self.experts, self.sequence_padding());
        GptConfig {
            experts: (experts.count > 0).then_some(experts),
            padding,
            ignore_index: (padding > 0).then_some(PADDING),
            ..self.model.gpt_config(self.data.vocabulary_size())
        }
    }

    /// Sets the keys that follow from others. With `has_shape`, these are those of the preset
    /// `model.shape`. With `has_folder`, these are the dimensions, experts and tokenizer of the
    /// model in the folder `model.from`.
    ///
    /// # Errors
    /// Fails if `config.json` in the folder cannot be read, or describes an unsupported model, or
    /// if the folder has an adapter or quantized weights.
    pub(super) fn apply_presets(&mut self, has_shape: bool, has_folder: bool) -> Result<()> {
        if has_shape {
            self.model.apply_shape();
            if self.model.shape.has_experts() {
                self.experts = Experts { count: 8, per_token: 2, ..self.experts };
            }
        }
        if has_folder && !self.model.from.is_empty() {
            let gpt = read_folder(Path::new(&self.model.from))?;
            self.model.set_gpt_config(&gpt);
            if let Some(experts) = gpt.experts {
                // These keys belong to the training and not to the model, so the folder leaves them
                // as they are.
                let Experts { capacity_factor, balance, balance_loss, bias_rate, z_loss, .. } = self.experts;
                self.experts =
                    Experts { capacity_factor, balance, balance_loss, bias_rate, z_loss, ..experts };
            }
            let tokenizer = Path::new(&self.model.from).join("tokenizer.json");
            if tokenizer.is_file() {
                self.data.tokenizer = tokenizer.display().to_string();
            }
            self.data.vocabulary = u32::try_from(gpt.vocabulary).unwrap_or(u32::MAX);
        }
        Ok(())
    }
}
