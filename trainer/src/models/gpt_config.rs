//! Dimensions and options of a GPT.

use super::hugging_face::Family;
use unisono_nn::error::{Error, Result};
use unisono_nn::modules::{self, LinearInit, Module, RopeConfig};
use unisono_nn::parameter::Registry;
use unisono_parallel::experts::Experts;
use unisono_parallel::tensor_parallel::{ParallelPlan, ParallelStyle};
use unisono_plan::GptShape;

/// Normalization layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    /// LayerNorm, as in GPT-2.
    Layer,
    /// RMSNorm, as in Llama.
    Rms,
}

/// Feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// [`Gelu::Tanh`](unisono_nn::modules::Gelu::Tanh) with 4 × width features, as in GPT-2.
    Gelu,
    /// [`SwiGlu`](unisono_nn::modules::SwiGlu) with 8/3 × width features, as in Llama.
    SwiGlu,
}

/// Encoding of positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Positions {
    /// Learned embedding of each position, as in GPT-2.
    Learned,
    /// Rotation of queries and keys by their position, as in Llama.
    Rotary(RopeConfig),
}

/// Dimensions and options of a [`Gpt`](super::Gpt).
#[derive(Clone, Debug, PartialEq)]
pub struct GptConfig {
    /// Family of the files that the model is written to, if it has such models.
    pub family: Family,
    /// Vocabulary size.
    pub vocabulary: usize,
    /// Maximum sequence length in tokens.
    pub context: usize,
    /// Features per token.
    pub width: usize,
    /// Number of attention heads.
    pub heads: usize,
    /// Features per head; `None` for width / heads.
    pub head_dim: Option<usize>,
    /// Number of heads of keys and values. Each serves heads / kv_heads consecutive query heads.
    pub kv_heads: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Encoding of positions.
    pub positions: Positions,
    /// Normalization layer.
    pub norm: Norm,
    /// Number added to the variance in normalization layers.
    pub norm_epsilon: f64,
    /// Feed-forward part.
    pub feed_forward: FeedForward,
    /// Hidden features of the feed-forward part; `None` for the usual multiple of the width.
    pub ffn_width: Option<usize>,
    /// Experts in place of the feed-forward part; `None` for a dense model.
    pub experts: Option<Experts>,
    /// Gives linear layers a bias, except for the head.
    pub bias: bool,
    /// Gives queries, keys and values a bias, also if other layers have none, as in Qwen2.
    pub qkv_bias: bool,
    /// Normalizes each head of queries and keys before its rotation, as in Qwen3.
    pub qk_norm: bool,
    /// Positions to which a row attends: its own and those before it; `None` for all. A window is
    /// at least the context, because attention within a narrower one is not supported.
    pub sliding_window: Option<usize>,
    /// Dropout rate of the embedding and of every residual branch.
    pub dropout: f32,
    /// Uses the token embedding as weight of the head.
    pub tie_word_embeddings: bool,
    /// Makes blocks save their input only, and recompute forward in backward.
    pub activation_checkpointing: bool,
    /// Number of positions after the context that fill up each sequence, so that ranks have equal
    /// parts of it. Their targets are `ignore_index`, and no token attends to them.
    pub padding: usize,
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
            family: Family::Gpt2,
            vocabulary,
            context,
            width,
            heads,
            head_dim: None,
            kv_heads: heads,
            layers,
            positions: Positions::Learned,
            norm: Norm::Layer,
            norm_epsilon: 1e-5,
            feed_forward: FeedForward::Gelu,
            ffn_width: None,
            experts: None,
            bias: true,
            qkv_bias: false,
            qk_norm: false,
            sliding_window: None,
            dropout: 0.0,
            tie_word_embeddings: true,
            activation_checkpointing: false,
            padding: 0,
            ignore_index: None,
            cross_entropy_splits: 1,
        }
    }

    /// Returns a Llama of these dimensions: rotary positions, RMSNorm, SwiGLU, no biases, and a
    /// head of its own.
    pub fn llama(vocabulary: usize, context: usize, width: usize, heads: usize, layers: usize) -> Self {
        Self {
            family: Family::Llama,
            positions: Positions::Rotary(RopeConfig::default()),
            norm: Norm::Rms,
            feed_forward: FeedForward::SwiGlu,
            bias: false,
            tie_word_embeddings: false,
            ..Self::new(vocabulary, context, width, heads, layers)
        }
    }

    /// Returns the dimensions on which memory, traffic and operations depend. They have the
    /// formulas of widths, so that plans and models have the same.
    pub fn gpt_shape(&self) -> GptShape {
        GptShape {
            vocabulary: self.vocabulary,
            context: self.context,
            padding: self.padding,
            width: self.width,
            heads: self.heads,
            head_dim: self.head_dim,
            kv_heads: self.kv_heads,
            layers: self.layers,
            layer_norm: self.norm == Norm::Layer,
            gated: self.feed_forward == FeedForward::SwiGlu,
            ffn_width: self.ffn_width,
            experts: self.experts,
            qkv_bias: self.bias || self.qkv_bias,
            qk_norm: self.qk_norm,
            activation_checkpointing: self.activation_checkpointing,
            cross_entropy_splits: self.cross_entropy_splits,
        }
    }

    /// Returns the hidden features of the feed-forward part. By default, it is a multiple of 8 with
    /// SwiGLU.
    pub fn ffn_width(&self) -> usize {
        self.gpt_shape().ffn_width()
    }

    /// Returns the experts of a block; `None` if it is dense.
    pub fn experts_of(&self, block: usize) -> Option<&Experts> {
        self.experts.as_ref().filter(|experts| block >= experts.first_dense)
    }

    /// Returns the positions of a sequence with its padding.
    pub fn padded_context(&self) -> usize {
        self.gpt_shape().padded_context()
    }

    /// Returns the features per head.
    pub fn head_dim(&self) -> usize {
        self.gpt_shape().head_dim()
    }

    /// Returns the features of all queries. They equal the width unless `head_dim` is given.
    pub fn query_width(&self) -> usize {
        self.gpt_shape().query_width()
    }

    /// Returns the features of all keys, which equal those of all values.
    pub fn kv_width(&self) -> usize {
        self.gpt_shape().kv_width()
    }

    /// Returns the initialization of linear layers, except for the last of a residual branch.
    pub fn init(&self) -> LinearInit {
        self.linear_init(0.02)
    }

    /// Returns the initialization of the layer of queries, keys and values.
    pub fn qkv_init(&self) -> LinearInit {
        let init = LinearInit::normal(0.02);
        if self.bias || self.qkv_bias { init } else { init.without_bias() }
    }

    fn linear_init(&self, deviation: f32) -> LinearInit {
        let init = LinearInit::normal(deviation);
        if self.bias { init } else { init.without_bias() }
    }

    /// Returns the initialization of the last linear layer of a residual branch. It is smaller,
    /// because 2 × layers branches are added.
    pub fn residual_init(&self) -> LinearInit {
        self.linear_init(0.02 / (2.0 * self.layers as f32).sqrt())
    }

    /// Creates a normalization layer named `name`.
    pub fn make_norm(&self, registry: &mut Registry, name: &str) -> Box<dyn Module> {
        let epsilon = self.norm_epsilon as f32;
        registry.scope(name, |registry| match self.norm {
            Norm::Layer => Box::new(modules::Norm::layer(registry, self.width, epsilon)) as Box<dyn Module>,
            Norm::Rms => Box::new(modules::Norm::rms(registry, self.width, epsilon)),
        })
    }

    /// Returns the tensor parallel plan of a model with these options: heads and hidden features by
    /// columns, then by rows. The head is always sharded by classes.
    pub fn parallel_plan(&self) -> ParallelPlan {
        let ratio = self.heads / self.kv_heads.max(1);
        let (head, gates) = (self.head_dim(), if self.feed_forward == FeedForward::SwiGlu { 2 } else { 1 });
        let attention = [
            ("h.*.attn.c_attn", ParallelStyle::QueryKeyValue { ratio, head }),
            ("h.*.attn.c_proj", ParallelStyle::Row { grain: head }),
        ];
        let dense = [
            ("h.*.mlp.c_fc", ParallelStyle::Column { blocks: gates, grain: 1 }),
            ("h.*.mlp.c_proj", ParallelStyle::Row { grain: 1 }),
        ];
        let has_dense = self.experts_of(0).is_none();
        ParallelPlan::new(attention.into_iter().chain(dense.into_iter().filter(|_| has_dense)))
    }

    /// Returns the refusal of a number of ranks that neither divide nor repeat the heads of keys.
    fn uneven_kv_heads(&self, parts: usize) -> String {
        let (heads, kv_heads) = (self.heads, self.kv_heads);
        let shape = self.gpt_shape();
        let legal = (1..=heads).filter(|&parts| shape.shares_kv_heads(parts)).take(MAX_NAMED);
        let legal: Vec<_> = legal.map(|parts| parts.to_string()).collect();
        format!(
            "{kv_heads} heads of keys and values cannot be divided among {parts} ranks, and these cannot repeat them \
             evenly for {heads} heads of queries: set mesh.tensor to one of {}",
            legal.join(", ")
        )
    }

    /// Checks that attention sees the whole context.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a window that is less than the context.
    pub(crate) fn check_window(&self) -> Result<()> {
        match self.sliding_window.filter(|window| *window < self.context) {
            Some(window) => Err(Error::Unsupported(narrow_window(window, self.context))),
            None => Ok(()),
        }
    }

    /// Checks that heads divide the width or have features of their own, and that each of `parts`
    /// ranks gets one.
    pub(crate) fn check(&self, parts: usize) -> Result<()> {
        let (width, heads, kv_heads) = (self.width, self.heads, self.kv_heads);
        let fail = |what: String| Err(Error::invalid(what));
        if parts > heads {
            let hint = "use no more ranks than heads, in tensor parallelism";
            return fail(format!("{heads} heads cannot be divided among {parts} ranks: {hint}"));
        }
        let is_split = match self.head_dim {
            Some(head_dim) => head_dim > 0 && heads.checked_mul(head_dim).is_some(),
            None => heads > 0 && width.is_multiple_of(heads),
        };
        if heads == 0 || !is_split {
            let features = self.head_dim.map_or(String::new(), |head_dim| format!(" of {head_dim} features"));
            return fail(format!("a width of {width} cannot be split into {heads} heads{features}"));
        }
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return fail(format!("{heads} heads cannot share {kv_heads} heads of keys and values equally"));
        }
        if kv_heads < heads && !self.gpt_shape().shares_kv_heads(parts) {
            return fail(self.uneven_kv_heads(parts));
        }
        match self.positions {
            Positions::Rotary(rope) => rope.check(self.head_dim()),
            Positions::Learned => Ok(()),
        }
    }
}

/// Number of legal degrees that an error names.
const MAX_NAMED: usize = 12;

/// Returns the refusal of a window of attention that is less than the context.
pub(crate) fn narrow_window(window: usize, context: usize) -> String {
    format!(
        "model.sliding_window = {window} is less than model.context = {context}: attention within a window is not \
         part of this build; set model.context to at most {window}"
    )
}
