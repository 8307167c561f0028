//! Dimensions and options of a GPT.

use crate::error::{Error, Result};
use crate::nn::{LayerNorm, LinearInit, Module, RmsNorm};
use crate::parameter::Registry;
use crate::tensor_parallel::{ParallelPlan, ParallelStyle};

/// Normalization layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    /// [`LayerNorm`], as in GPT-2.
    Layer,
    /// [`RmsNorm`], as in Llama.
    Rms,
}

/// Feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// [`Gelu::Tanh`](crate::nn::Gelu::Tanh) with 4 × width features, as in GPT-2.
    Gelu,
    /// [`SwiGlu`](crate::nn::SwiGlu) with 8/3 × width features, as in Llama.
    SwiGlu,
}

/// Dimensions and options of a [`Gpt`](super::Gpt).
#[derive(Clone, Debug, PartialEq)]
pub struct GptConfig {
    /// Vocabulary size.
    pub vocabulary: usize,
    /// Maximum sequence length in tokens.
    pub context: usize,
    /// Features per token.
    pub width: usize,
    /// Number of attention heads, of width / heads features each.
    pub heads: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Normalization layer.
    pub norm: Norm,
    /// Feed-forward part.
    pub feed_forward: FeedForward,
    /// Dropout rate of the embedding and of every residual branch.
    pub dropout: f32,
    /// Uses the token embedding as weight of the head.
    pub tie_word_embeddings: bool,
    /// Makes blocks save their input only, and recompute forward in backward.
    pub activation_checkpointing: bool,
    /// Target value that is ignored: padding.
    pub ignore_index: Option<u32>,
    /// Number of row groups for the head, computed one after the other. From 2 on, the logits of
    /// all rows never exist at once, and are recomputed in backward.
    pub cross_entropy_splits: usize,
}

impl GptConfig {
    /// Returns a GPT-2 of these dimensions, without dropout.
    pub fn new(vocabulary: usize, context: usize, width: usize, heads: usize, layers: usize) -> Self {
        Self {
            vocabulary,
            context,
            width,
            heads,
            layers,
            norm: Norm::Layer,
            feed_forward: FeedForward::Gelu,
            dropout: 0.0,
            tie_word_embeddings: true,
            activation_checkpointing: false,
            ignore_index: None,
            cross_entropy_splits: 1,
        }
    }

    /// Returns the hidden features of the feed-forward part; a multiple of 8 with SwiGLU.
    pub fn ffn_width(&self) -> usize {
        match self.feed_forward {
            FeedForward::Gelu => 4 * self.width,
            FeedForward::SwiGlu => (8 * self.width).div_ceil(24) * 8,
        }
    }

    /// Returns the features per head.
    pub fn head_dim(&self) -> usize {
        self.width / self.heads
    }

    /// Returns the initialization of linear layers, except for the last of a residual branch.
    pub fn init(&self) -> LinearInit {
        LinearInit::normal(0.02)
    }

    /// Returns the initialization of the last linear layer of a residual branch. It is smaller,
    /// because 2 × layers branches are added.
    pub fn residual_init(&self) -> LinearInit {
        LinearInit::normal(0.02 / (2.0 * self.layers as f32).sqrt())
    }

    /// Creates a normalization layer named `name`.
    pub fn make_norm(&self, registry: &mut Registry, name: &str) -> Box<dyn Module> {
        registry.scope(name, |registry| match self.norm {
            Norm::Layer => Box::new(LayerNorm::new(registry, self.width, 1e-5)) as Box<dyn Module>,
            Norm::Rms => Box::new(RmsNorm::new(registry, self.width, 1e-5)),
        })
    }

    /// Returns the tensor parallel plan of a model with these options: heads and hidden features by
    /// columns, then by rows. The head is always sharded by classes.
    pub fn parallel_plan(&self) -> ParallelPlan {
        let (head, gates) = (self.head_dim(), if self.feed_forward == FeedForward::SwiGlu { 2 } else { 1 });
        ParallelPlan::new([
            ("h.*.attn.c_attn", ParallelStyle::Column { blocks: 3, grain: head }),
            ("h.*.attn.c_proj", ParallelStyle::Row { grain: head }),
            ("h.*.mlp.c_fc", ParallelStyle::Column { blocks: gates, grain: 1 }),
            ("h.*.mlp.c_proj", ParallelStyle::Row { grain: 1 }),
        ])
    }

    /// Checks that heads divide the width, and that each of `parts` ranks gets one.
    pub(super) fn check(&self, parts: usize) -> Result<()> {
        let (width, heads) = (self.width, self.heads);
        if parts > heads {
            let hint = "use no more ranks than heads, in tensor parallelism";
            return Err(Error::invalid(format!(
                "{heads} heads cannot be divided among {parts} ranks: {hint}"
            )));
        }
        if heads == 0 || !width.is_multiple_of(heads) {
            return Err(Error::invalid(format!("a width of {width} cannot be split into {heads} heads")));
        }
        Ok(())
    }
}
