//! Numbers of a model and of a run, on which their memory, traffic and step time depend.

use unisono_parallel::context_parallel::KvTransfer;
use unisono_parallel::data_parallel::Settings;
use unisono_parallel::experts::Experts;
use unisono_parallel::optimizer::Optimizer;

/// Dimensions and options of a GPT.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GptShape {
    /// Vocabulary size.
    pub vocabulary: usize,
    /// Sequence length in tokens.
    pub context: usize,
    /// Number of positions that fill up each sequence, so that ranks have equal parts of it.
    pub padding: usize,
    /// Features per token.
    pub width: usize,
    /// Number of attention heads.
    pub heads: usize,
    /// Features per head; `None` for width / heads.
    pub head_dim: Option<usize>,
    /// Number of heads of keys and values.
    pub kv_heads: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Normalizes by LayerNorm, which keeps two numbers per row, and else by RMSNorm, which keeps
    /// one.
    pub layer_norm: bool,
    /// Has a third matrix of gates in each feed-forward part, as SwiGLU does.
    pub gated: bool,
    /// Hidden features of the feed-forward part; `None` for the usual multiple of the width.
    pub ffn_width: Option<usize>,
    /// Experts in place of the feed-forward part; `None` for a dense model.
    pub experts: Option<Experts>,
    /// Gives queries, keys and values a bias.
    pub qkv_bias: bool,
    /// Normalizes each head of queries and keys.
    pub qk_norm: bool,
    /// Makes blocks save their input only, and recompute forward in backward.
    pub activation_checkpointing: bool,
    /// Number of row groups for the head, computed one after the other.
    pub cross_entropy_splits: usize,
}

impl GptShape {
    /// Returns a GPT-2 of these dimensions.
    pub(crate) fn new(vocabulary: usize, context: usize, width: usize, heads: usize, layers: usize) -> Self {
        Self {
            vocabulary,
            context,
            padding: 0,
            width,
            heads,
            head_dim: None,
            kv_heads: heads,
            layers,
            layer_norm: true,
            gated: false,
            ffn_width: None,
            experts: None,
            qkv_bias: true,
            qk_norm: false,
            activation_checkpointing: false,
            cross_entropy_splits: 1,
        }
    }

    /// Returns a Llama of these dimensions: RMSNorm, SwiGLU and no biases.
    pub(crate) fn llama(
        vocabulary: usize,
        context: usize,
        width: usize,
        heads: usize,
        layers: usize,
    ) -> Self {
        let gpt = Self::new(vocabulary, context, width, heads, layers);
        Self { layer_norm: false, gated: true, qkv_bias: false, ..gpt }
    }

    /// Returns the hidden features of the feed-forward part. By default, it is a multiple of 8 with
    /// gates.
    pub fn ffn_width(&self) -> usize {
        self.ffn_width.unwrap_or(match self.gated {
            false => self.width.saturating_mul(4),
            true => self.width.saturating_mul(8).div_ceil(24) * 8,
        })
    }

    /// Returns the positions of a sequence with its padding.
    pub fn padded_context(&self) -> usize {
        self.context + self.padding
    }

    /// Returns the features per head.
    pub fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or_else(|| self.width / self.heads)
    }

    /// Returns the features of all queries. They equal the width unless `head_dim` is given.
    pub fn query_width(&self) -> usize {
        self.head_dim.map_or(self.width, |head_dim| self.heads * head_dim)
    }

    /// Returns the features of all keys, which equal those of all values.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim()
    }

    /// Returns the features of all keys that `parts` tensor parallel ranks have together. Ranks
    /// repeat the heads of keys if these are fewer.
    pub(crate) fn kv_width_on(&self, parts: usize) -> usize {
        self.kv_heads.max(parts) * self.head_dim()
    }

    /// Returns true if `parts` ranks get equally many heads of keys and values, divided or
    /// repeated, each with heads of queries that it serves.
    pub fn shares_kv_heads(&self, parts: usize) -> bool {
        let repeats = parts.is_multiple_of(self.kv_heads) && self.heads.is_multiple_of(parts);
        self.kv_heads.is_multiple_of(parts) || repeats
    }
}

/// Way in which ranks share sequences.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SequenceSharing {
    /// Way to the keys and values of other ranks.
    pub kv_transfer: KvTransfer,
    /// Number of neighbors that exchange positions for heads, if keys and values go round a ring.
    pub ulysses_ranks: usize,
}

impl Default for SequenceSharing {
    fn default() -> Self {
        Self { kv_transfer: KvTransfer::default(), ulysses_ranks: 1 }
    }
}

impl SequenceSharing {
    /// Returns the number of neighbors that exchange positions for heads, among `ranks` that share
    /// sequences; `None` if keys and values are gathered.
    pub(crate) fn head_group_size(self, ranks: usize) -> Option<usize> {
        self.kv_transfer.head_group_size(ranks, self.ulysses_ranks)
    }
}

/// Settings of a run on which its memory and traffic depend, apart from its mesh and batch.
pub struct RunShape {
    /// Dimensions of the model.
    pub gpt: GptShape,
    /// Way in which ranks share sequences.
    pub sharing: SequenceSharing,
    /// Divides the rows between tensor parallel layers among their ranks, too.
    pub sequence_parallel: bool,
    /// Settings of all data parallel strategies.
    pub settings: Settings,
    /// Optimizer, which determines the number of moments and the parameters with whole-matrix
    /// steps.
    pub optimizer: Box<dyn Optimizer>,
}
