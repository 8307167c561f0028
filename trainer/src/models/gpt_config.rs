//! Extents and options of a GPT.

use crate::error::{Error, Result};
use crate::nn::{LayerNorm, LinearInit, Module, RmsNorm};
use crate::parameter::Registry;
use crate::tensor_parallel::{ParallelPlan, ParallelStyle};

/// Which normalization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    /// [`LayerNorm`], as GPT-2.
    Layer,
    /// [`RmsNorm`], as Llama.
    Rms,
}

/// Which non-linear part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// [`Gelu::Tanh`](crate::nn::Gelu::Tanh) of 4 × width features, as GPT-2.
    Gelu,
    /// [`SwiGlu`](crate::nn::SwiGlu) of 8/3 × width features, as Llama.
    SwiGlu,
}

/// Extents and options of a [`Gpt`](super::Gpt).
#[derive(Clone, Debug, PartialEq)]
pub struct GptConfig {
    /// Number of different tokens.
    pub vocabulary: usize,
    /// Tokens of the longest sequence.
    pub context: usize,
    /// Features of a token.
    pub width: usize,
    /// Heads of attention, of width / heads features each.
    pub heads: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Which normalization.
    pub norm: Norm,
    /// Which non-linear part.
    pub feed_forward: FeedForward,
    /// Rate of dropout of the embedding and of every residual branch.
    pub dropout: f32,
    /// Whether the head's weight is the token embedding.
    pub tie_word_embeddings: bool,
    /// Whether blocks keep their input only, and run forward again in backward.
    pub activation_checkpointing: bool,
    /// Targets that do not count: padding.
    pub ignore_index: Option<u32>,
    /// Parts of the rows for which the head is computed one after the other: from two on, there are never the logits of all
    /// rows, and they are computed again in backward.
    pub cross_entropy_splits: usize,
}

impl GptConfig {
    /// GPT-2 of these extents, without dropout.
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

    /// Features between the two maps of the feed-forward part; with SwiGLU a multiple of 8.
    pub fn ffn_width(&self) -> usize {
        match self.feed_forward {
            FeedForward::Gelu => 4 * self.width,
            FeedForward::SwiGlu => (8 * self.width).div_ceil(24) * 8,
        }
    }

    /// Features of a head.
    pub fn head_dim(&self) -> usize {
        self.width / self.heads
    }

    /// How maps start, but for the last of a branch.
    pub fn init(&self) -> LinearInit {
        LinearInit::normal(0.02)
    }

    /// How the last map of a residual branch starts: smaller, as there are 2 × layers of them to be summed.
    pub fn residual_init(&self) -> LinearInit {
        LinearInit::normal(0.02 / (2.0 * self.layers as f32).sqrt())
    }

    /// A normalization named `name`.
    pub fn make_norm(&self, registry: &mut Registry, name: &str) -> Box<dyn Module> {
        registry.scope(name, |registry| match self.norm {
            Norm::Layer => Box::new(LayerNorm::new(registry, self.width, 1e-5)) as Box<dyn Module>,
            Norm::Rms => Box::new(RmsNorm::new(registry, self.width, 1e-5)),
        })
    }

    /// How a model of these options is cut: heads and hidden features by columns, then by rows. The head is cut by classes in any
    /// case.
    pub fn parallel_plan(&self) -> ParallelPlan {
        let (head, gates) = (self.head_dim(), if self.feed_forward == FeedForward::SwiGlu { 2 } else { 1 });
        ParallelPlan::new([
            ("h.*.attn.c_attn", ParallelStyle::Column { blocks: 3, grain: head }),
            ("h.*.attn.c_proj", ParallelStyle::Row { grain: head }),
            ("h.*.mlp.c_fc", ParallelStyle::Column { blocks: gates, grain: 1 }),
            ("h.*.mlp.c_proj", ParallelStyle::Row { grain: 1 }),
        ])
    }

    /// That heads divide the width, and that every one of `parts` ranks gets one.
    pub(super) fn check(&self, parts: usize) -> Result<()> {
        let (width, heads) = (self.width, self.heads);
        if parts > heads {
            let hint = "use no more ranks than heads, in tensor parallelism";
            return Err(Error::invalid(format!("{heads} heads cannot be dealt to {parts} ranks: {hint}")));
        }
        if heads == 0 || !width.is_multiple_of(heads) {
            return Err(Error::invalid(format!("a width of {width} cannot be cut into {heads} heads")));
        }
        Ok(())
    }
}
