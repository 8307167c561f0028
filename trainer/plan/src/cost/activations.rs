//! Predicts the peak of a GPT's activations.
//!
//! Source: Korthikanti et al., "Reducing activation recomputation in large transformer models",
//! MLSys 2023.

use crate::GptShape;
use crate::stages::HeldLayers;
use unisono_nn::modules::Attention;
use unisono_parallel::experts::Experts;

/// Dimensions that determine the activations of one rank in a pass.
pub(super) struct ActivationModel<'a> {
    pub(crate) gpt: &'a GptShape,
    /// Number of tensor parallel shards of the layers.
    pub(crate) shards: usize,
    /// Number of shards of the rows between layers.
    pub(crate) rows: usize,
    /// Number of chunks per sequence.
    pub(crate) chunks: usize,
    /// Number of sequences per micro-batch.
    pub(crate) micro_batch: usize,
    /// Number of micro-batches computed breadth first.
    pub(crate) breadth_first: usize,
    /// Number of micro-sequences per micro-batch.
    pub(crate) micro_sequences: usize,
    /// Size of a head group: neighbors that exchange positions for heads, in a ring of such groups.
    /// `None` if keys and values are gathered.
    pub(crate) head_group: Option<usize>,
}

impl ActivationModel<'_> {
    /// Returns the peak number of elements. The peak is at the end of forward. With recomputation,
    /// or keys and values of whole sequences, it may be in the backward of a block.
    pub(crate) fn peak(&self) -> usize {
        let (gpt, tokens) = (self.gpt, self.tokens());
        let breadth = self.breadth_first * self.micro_sequences;
        let (passed, (kept, again)) = (self.between(), self.layer());
        let blocks = breadth * (gpt.layers * kept - self.saved_by_dense_blocks());
        let (of_head, passing) = self.head();
        let at_end = tokens * (blocks + breadth * of_head + passing);
        let others = blocks + (breadth - 1) * passed - if gpt.activation_checkpointing { 0 } else { kept };
        let attending = tokens * (self.attention() + self.qkv().div_ceil(self.shards) + passed);
        let attending = attending + self.per_sequence() + self.workspace();
        let in_block = tokens * others + (tokens * again).max(attending).max(tokens * self.in_mixture());
        let earlier = self.breadth_first * self.earlier_kv();
        (at_end + gpt.layers * earlier).max(in_block + (gpt.layers + 1) * earlier)
    }

    /// Returns the peak number of elements on a pipeline stage that holds `held` layers of
    /// micro-batches at most. The head keeps its own for as many micro-batches as there are in the
    /// last stage.
    pub(crate) fn stage_peak(&self, held: HeldLayers, has_head: bool) -> usize {
        let (passed, (kept, again)) = (self.between(), self.layer());
        let (of_head, passing) = if has_head { self.head() } else { (0, 0) };
        // One value arrives and one leaves while a third is computed.
        let moving = 3 * passed;
        let earlier = held.earlier_kv * self.earlier_kv();
        self.tokens() * (held.layers * kept + held.micro_batches * of_head + passing.max(again) + moving)
            + earlier
            + self.per_sequence()
            + self.workspace()
    }

    /// Returns the workspace of attention, whose tiles see all keys of a sequence, or those of one
    /// group of a ring.
    fn workspace(&self) -> usize {
        let keys = match self.head_group.filter(|_| self.has_ring()) {
            Some(group) => self.gpt.padded_context() / self.chunks * group,
            None => self.gpt.padded_context(),
        };
        Attention::workspace_len(keys)
    }

    /// Returns the elements per token between two blocks.
    fn between(&self) -> usize {
        self.gpt.width.div_ceil(self.rows)
    }

    /// Returns the elements per token that a block keeps, and those that it computes again in
    /// backward.
    fn layer(&self) -> (usize, usize) {
        let block = self.attention() + self.feed_forward();
        match self.gpt.activation_checkpointing {
            true => (self.between(), block + 2 * self.gpt.width),
            false => (block, 0),
        }
    }

    /// Returns the elements added by one more sequence per micro-batch.
    pub(crate) fn per_extra_micro_batch(&self) -> usize {
        Self { micro_batch: self.micro_batch + 1, ..*self }.peak() - self.peak()
    }

    /// Returns the tokens per micro-batch.
    fn tokens(&self) -> usize {
        self.micro_batch * self.length()
    }

    /// Returns the tokens of a sequence, or of a micro-sequence, on this rank.
    fn length(&self) -> usize {
        self.gpt.padded_context() / self.chunks / self.micro_sequences
    }

    /// Returns the elements per token kept for a block's attention, including its norm.
    fn attention(&self) -> usize {
        let gpt = self.gpt;
        // A ring saves its output too.
        let outputs = if self.has_ring() { 2 } else { 1 };
        let of_heads = self.qkv() + outputs * gpt.query_width() + gpt.heads + self.query_key_norm();
        self.norm() + gpt.width + of_heads.div_ceil(self.shards)
    }

    /// Returns the elements per token that the norms of queries and keys keep: their inputs, and a
    /// number per head.
    fn query_key_norm(&self) -> usize {
        let gpt = self.gpt;
        let kv_heads = gpt.kv_heads.max(self.shards);
        let elements = gpt.query_width() + self.kv_width() + gpt.heads + kv_heads;
        if gpt.qk_norm { elements } else { 0 }
    }

    /// Returns true if keys and values go round several groups.
    fn has_ring(&self) -> bool {
        self.head_group.is_some_and(|group| group < self.chunks)
    }

    /// Returns the columns of queries, keys and values together, on all ranks that divide them.
    fn qkv(&self) -> usize {
        self.gpt.query_width() + 2 * self.kv_width()
    }

    /// Returns the columns of keys on all ranks that divide or repeat them.
    fn kv_width(&self) -> usize {
        self.gpt.kv_width_on(self.shards)
    }

    /// Returns the elements per token kept for a block's feed-forward part: that of experts, if the
    /// model has some.
    fn feed_forward(&self) -> usize {
        self.gpt.experts.map_or_else(|| self.dense(), |experts| self.mixture(&experts))
    }

    fn dense(&self) -> usize {
        self.norm() + self.gpt.width + (self.per_hidden() * self.gpt.ffn_width()).div_ceil(self.shards)
    }

    /// Returns the elements kept per hidden feature.
    fn per_hidden(&self) -> usize {
        if self.gpt.gated { 3 } else { 2 }
    }

    /// Returns the elements per token kept for a mixture with equal loads. They are the input,
    /// scores and weights, and the row, result and hidden features of each of a token's experts.
    fn mixture(&self, experts: &Experts) -> usize {
        let (gpt, hidden) = (self.gpt, experts.hidden_width(self.gpt.ffn_width()));
        let of_expert = 2 * gpt.width + (self.per_hidden() * hidden).div_ceil(self.shards);
        let of_shared = match experts.shared {
            0 => 0,
            shared => gpt.width + (self.per_hidden() * shared * hidden).div_ceil(self.shards),
        };
        let of_router = experts.count + experts.per_token + usize::from(experts.z_loss > 0.0);
        self.norm() + gpt.width + of_router + experts.per_token * of_expert + of_shared
    }

    /// Returns the elements per token that dense blocks of a model with experts keep less than its
    /// other blocks.
    fn saved_by_dense_blocks(&self) -> usize {
        match self.gpt.experts {
            Some(experts) if !self.gpt.activation_checkpointing => {
                experts.first_dense * self.mixture(&experts).saturating_sub(self.dense())
            }
            _ => 0,
        }
    }

    /// Returns the elements per token in the backward of a mixture: those of its block, and
    /// gradients of rows and hidden features.
    fn in_mixture(&self) -> usize {
        let Some(experts) = &self.gpt.experts else { return 0 };
        let hidden = experts.hidden_width(self.gpt.ffn_width()).div_ceil(self.shards);
        let (kept, again) = self.layer();
        kept.max(again) + experts.per_token * (self.gpt.width + hidden) + self.gpt.width
    }

    fn norm(&self) -> usize {
        (self.gpt.width + if self.gpt.layer_norm { 2 } else { 1 }).div_ceil(self.rows)
    }

    /// Returns the elements per token kept by the head between forward and backward, and the
    /// elements used only during its computation.
    fn head(&self) -> (usize, usize) {
        let (kept, classes) = (self.norm() + self.gpt.width, self.gpt.vocabulary.div_ceil(self.shards));
        match self.gpt.cross_entropy_splits {
            1 => (kept + classes, 0),
            splits => (kept + 1, (self.gpt.width + classes).div_ceil(splits)),
        }
    }

    /// Returns the elements of keys and values of one sharded sequence, and of their gradients:
    /// this rank's part and the whole.
    fn per_sequence(&self) -> usize {
        let width = self.kv_width().div_ceil(self.shards);
        if let Some(group) = self.head_group {
            // Blocks of keys and values in use, on their way and arriving, and their gradients.
            let blocks = if self.has_ring() { 7 * 2 * width } else { 0 };
            // Values to be sent, received ones, and these in order.
            let exchanged = if group > 1 { 3 * self.qkv().div_ceil(self.shards) } else { 0 };
            return (blocks + exchanged) * self.tokens();
        }
        match (self.micro_sequences, self.chunks) {
            (1, 1) => 0,
            (1, _) => 2 * width * (self.length() + 2 * self.gpt.padded_context()),
            _ => 2 * width * self.length(),
        }
    }

    /// Returns the elements of keys and values that an attention keeps for the micro-sequences of a
    /// micro-batch. Their gradients need as many.
    fn earlier_kv(&self) -> usize {
        let tokens = self.gpt.padded_context() * self.micro_batch;
        let elements = 2 * self.kv_width().div_ceil(self.shards) * tokens;
        if self.micro_sequences > 1 { elements } else { 0 }
    }
}
