//! Sources of the keys and values that attention computes with.
//!
//! Attention asks the [`KvSource`] of its pass for blocks of keys and values, and computes with
//! each block that it is given. By default, the rows of a pass are whole sequences, and every block
//! is in them. With a [`KvCache`] or with micro-sequences, blocks have earlier positions too.
//! Another source ([`set_kv_source`]) may bring the keys and values of other ranks.

use super::cached::CachedKv;
use super::local_rows::LocalRows;
use super::{Attention, KvCache, SequenceKv};
use crate::error::Result;
use crate::pass::{Extension, Pass};
use crate::step_plan::Direction;
use crate::tensor::Tensor;
use std::ops::Range;
use std::sync::Arc;

/// Source of the keys and values to which the rows of a pass attend.
///
/// A source may divide each sequence, or each micro-sequence, into equal chunks. The rows of the
/// pass are then one of them.
pub trait KvSource: Send + Sync {
    /// Returns the number of chunks of each sequence, or of each micro-sequence.
    fn chunks(&self) -> usize;

    /// Returns the positions of the `length` rows of this pass's chunk, in ascending order.
    fn positions(&self, length: usize) -> Vec<usize>;

    /// Begins one forward or backward of `attention` with `rows` rows. A repeated forward begins
    /// anew, and gets the same blocks.
    ///
    /// # Errors
    /// Fails for a pass on a GPU, if keys and values are not all in its rows.
    fn blocks(&self, pass: &mut Pass<'_>, attention: &Attention, rows: usize) -> Result<Box<dyn KvBlocks>>;

    /// Computes attention of the rows of `input`. A source that divides heads, too, exchanges rows
    /// before and after [`Attention::forward_blocks`].
    ///
    /// # Errors
    /// Returns the error of a failed collective, or of the GPU driver.
    fn forward(&self, pass: &mut Pass<'_>, attention: &Attention, input: Tensor) -> Result<Tensor> {
        let blocks = self.blocks(pass, attention, input.rows())?;
        attention.forward_blocks(pass, input, blocks)
    }

    /// Computes the gradient of the input from that of the output, as [`KvSource::forward`] does.
    ///
    /// # Errors
    /// Returns the error of a failed collective, or of the GPU driver.
    fn backward(&self, pass: &mut Pass<'_>, attention: &Attention, gradient: Tensor) -> Result<Tensor> {
        let blocks = self.blocks(pass, attention, gradient.rows())?;
        attention.backward_blocks(pass, &gradient, blocks)
    }
}

/// Blocks of keys and values of one attention, in one forward or backward.
pub trait KvBlocks {
    /// Returns the number of rows of a sequence, if their keys are in several blocks. Attention
    /// then merges the outputs of all blocks. `None` if each row attends to the keys of one block.
    fn merged_rows(&self) -> Option<usize> {
        None
    }

    /// Waits for the next block, and may start the transfer of the one after it. Returns `None`
    /// after the last block. `input` has rows of queries | keys | values.
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    fn next_block(&mut self, pass: &Pass<'_>, input: &Tensor, way: Direction) -> Result<Option<KvBlock<'_>>>;

    /// Takes the gradients that backward has added to the last block. They may go elsewhere, or to
    /// the keys and values in the rows of `result`.
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    fn send_gradients(&mut self, _pass: &Pass<'_>, _result: &mut Tensor) -> Result<()> {
        Ok(())
    }

    /// Ends a forward after the last block.
    fn end_forward(self: Box<Self>, _pass: &mut Pass<'_>) {}

    /// Ends a backward after the last block, and completes the rows of `result`.
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    fn end_backward(self: Box<Self>, _pass: &mut Pass<'_>, _result: &mut Tensor) -> Result<()> {
        Ok(())
    }
}

/// Keys and values of some sequences, for the queries of the same sequences.
pub struct KvBlock<'b> {
    /// Numbers of the sequences in the pass.
    pub sequences: Range<usize>,
    /// For each row of a sequence, the number of keys that it attends to: the first ones.
    pub visible: &'b [usize],
    /// Elements for the scores of the largest tile on the host.
    pub workspace: usize,
    /// Keys | values of one sequence after the other, of equal lengths. `None` if they are in the
    /// rows of the queries.
    pub keys: Option<&'b [f32]>,
    /// Gradients of `keys`, in the same order. Backward adds to them. `None` in forward, and if
    /// they are in the rows of the queries.
    pub gradients: Option<&'b mut [f32]>,
}

/// Source of passes whose rows are whole sequences, or whole micro-sequences.
pub(super) struct WholeSequences;

impl KvSource for WholeSequences {
    fn chunks(&self) -> usize {
        1
    }

    fn positions(&self, length: usize) -> Vec<usize> {
        (0..length).collect()
    }

    fn blocks(&self, pass: &mut Pass<'_>, attention: &Attention, rows: usize) -> Result<Box<dyn KvBlocks>> {
        // The block changes the cache while attention borrows the pass, so the cache leaves the
        // pass until `end_forward`.
        if let Some(cache) = pass.extensions_mut().remove::<KvCache>() {
            pass.expect_host("attention to a cache of keys and values")?;
            return Ok(Box::new(CachedKv::new(pass, attention, rows, cache)));
        }
        if pass.micro_sequences() > 1 {
            return Ok(Box::new(SequenceKv::new(pass, attention, rows, None)?));
        }
        let visible = attention.visible_keys(pass);
        Ok(Box::new(LocalRows::new(visible, sequence_count(pass, rows))))
    }
}

/// Source that a pass has as an extension.
struct SourceOfPass(Arc<dyn KvSource>);

impl Extension for SourceOfPass {}

/// Sets the source of keys and values of a pass.
pub fn set_kv_source(pass: &mut Pass<'_>, source: Arc<dyn KvSource>) {
    pass.extensions_mut().insert(SourceOfPass(source));
}

/// Returns the source of keys and values of a pass. Sequences with a cache are whole.
pub(super) fn kv_source(pass: &Pass<'_>) -> Arc<dyn KvSource> {
    let extensions = pass.extensions();
    match extensions.get::<SourceOfPass>() {
        Some(SourceOfPass(source)) if extensions.get::<KvCache>().is_none() => Arc::clone(source),
        _ => Arc::new(WholeSequences),
    }
}

/// Returns the number of equal chunks of each sequence of a pass, or of each micro-sequence. The
/// rows of the pass are one of them.
pub fn chunk_count(pass: &Pass<'_>) -> usize {
    kv_source(pass).chunks()
}

/// Returns the number of sequences, or chunks of sequences, in `rows` rows of a pass.
///
/// # Panics
/// Panics if the rows are no whole sequences.
pub fn sequence_count(pass: &Pass<'_>, rows: usize) -> usize {
    assert!(rows.is_multiple_of(pass.sequence()), "{rows} rows are no sequences of {}", pass.sequence());
    rows / pass.sequence()
}

/// Returns the positions in its sequence of the rows of one sequence of a pass, in ascending order.
pub fn row_positions(pass: &Pass<'_>) -> Vec<usize> {
    let length = pass.sequence();
    if let Some(cache) = pass.extensions().get::<KvCache>() {
        return (cache.length()..cache.length() + length).collect();
    }
    let source = kv_source(pass);
    let first = pass.micro_sequence() * source.chunks() * length;
    source.positions(length).into_iter().map(|position| first + position).collect()
}
