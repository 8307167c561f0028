//! What of a GPT's activations is there at once.

use crate::models::{FeedForward, GptConfig, Norm};
use crate::nn::CausalAttention;

/// The activations of one rank in a pass.
pub(crate) struct ActivationModel<'a> {
    pub(crate) gpt: &'a GptConfig,
    /// Parts that layers are cut in.
    pub(crate) shards: usize,
    /// Parts of the rows between layers.
    pub(crate) rows: usize,
    /// Chunks that sequences are cut in.
    pub(crate) chunks: usize,
    /// Sequences of a micro-batch.
    pub(crate) micro_batch: usize,
    /// Micro-batches that go breadth first together.
    pub(crate) breadth_first: usize,
}

impl ActivationModel<'_> {
    /// Numbers when there are most of them: at the end of forward, or within a block's backward, with checkpointing or with keys
    /// and values of whole sequences.
    pub(crate) fn peak(&self) -> usize {
        let (gpt, breadth, tokens) = (self.gpt, self.breadth_first, self.tokens());
        let between = gpt.width.div_ceil(self.rows);
        let block = self.attention() + self.feed_forward();
        let (kept, again) =
            if gpt.activation_checkpointing { (between, block + 2 * gpt.width) } else { (block, 0) };
        let blocks = breadth * gpt.layers * kept;
        let (of_head, passing) = self.head();
        let at_end = tokens * (blocks + breadth * of_head + passing);
        let others = blocks + (breadth - 1) * between - if gpt.activation_checkpointing { 0 } else { block };
        let attending = tokens * (self.attention() + (3 * gpt.width).div_ceil(self.shards) + between);
        let attending = attending + self.per_sequence() + CausalAttention::workspace_len(gpt.context);
        let in_block = tokens * others + (tokens * again).max(attending);
        at_end.max(in_block)
    }

    /// What another sequence in the micro-batch adds.
    pub(crate) fn per_extra_micro_batch(&self) -> usize {
        Self { micro_batch: self.micro_batch + 1, ..*self }.peak() - self.peak()
    }

    /// Tokens of a micro-batch.
    fn tokens(&self) -> usize {
        self.micro_batch * self.length()
    }

    /// Tokens of a sequence that this rank has.
    fn length(&self) -> usize {
        self.gpt.context / self.chunks
    }

    /// Of one token, between forward and backward of a block's attention, its norm included.
    fn attention(&self) -> usize {
        let gpt = self.gpt;
        self.norm() + gpt.width + (4 * gpt.width + gpt.heads).div_ceil(self.shards)
    }

    /// The same of its feed-forward part.
    fn feed_forward(&self) -> usize {
        let gpt = self.gpt;
        let between = if gpt.feed_forward == FeedForward::Gelu { 2 } else { 3 };
        self.norm() + gpt.width + (between * gpt.ffn_width()).div_ceil(self.shards)
    }

    fn norm(&self) -> usize {
        (self.gpt.width + if self.gpt.norm == Norm::Layer { 2 } else { 1 }).div_ceil(self.rows)
    }

    /// Of one token, between the head's forward and backward of each micro-batch; and beside, while one of them is worked on.
    fn head(&self) -> (usize, usize) {
        let (kept, classes) = (self.norm() + self.gpt.width, self.gpt.vocabulary.div_ceil(self.shards));
        match self.gpt.cross_entropy_splits {
            1 => (kept + classes, 0),
            splits => (kept + 1, (self.gpt.width + classes).div_ceil(splits)),
        }
    }

    /// Keys and values of one sequence that ranks share, and their gradients: this rank's, and those of all.
    fn per_sequence(&self) -> usize {
        let width = self.gpt.width.div_ceil(self.shards);
        if self.chunks > 1 { 2 * width * (self.length() + 2 * self.gpt.context) } else { 0 }
    }
}
