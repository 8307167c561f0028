//! Keys and values in the rows of the queries.

use super::Attention;
use super::kv_source::{KvBlock, KvBlocks};
use crate::error::Result;
use crate::pass::Pass;
use crate::step_plan::Direction;
use crate::tensor::Tensor;
use std::ops::Range;

/// One block of all sequences, whose keys and values are in the rows of the queries.
pub struct LocalRows {
    visible: Vec<usize>,
    /// The sequences. `None` after the block, and if there are none.
    sequences: Option<Range<usize>>,
}

impl LocalRows {
    /// Creates the block of `sequences` sequences. Each row of a sequence attends to the first
    /// `visible` keys.
    pub fn new(visible: Vec<usize>, sequences: usize) -> Self {
        Self { visible, sequences: (sequences > 0).then_some(0..sequences) }
    }
}

impl KvBlocks for LocalRows {
    fn next_block(&mut self, _: &Pass<'_>, _: &Tensor, _: Direction) -> Result<Option<KvBlock<'_>>> {
        let Some(sequences) = self.sequences.take() else { return Ok(None) };
        let workspace = Attention::workspace_len(self.visible.len()) / 2;
        Ok(Some(KvBlock { sequences, visible: &self.visible, workspace, keys: None, gradients: None }))
    }
}
