//! Keys and values of one sequence at a time, apart from the queries: those of earlier
//! micro-sequences, and those of other chunks.

use super::Attention;
use super::earlier_kv::EarlierKv;
use super::kv_source::{KvBlock, KvBlocks, chunk_count, sequence_count};
use crate::allocator::F32Vec;
use crate::error::Result;
use crate::ops::host::attention::tile::QkvColumns;
use crate::pass::Pass;
use crate::step_plan::Direction;
use crate::tensor::Tensor;
use std::ops::Range;

/// Exchange of the keys and values of one sequence, whose other chunks are elsewhere.
pub trait ChunkExchange {
    /// Gathers the keys | values of all chunks, in the order of positions. `chunk` has those of
    /// this pass.
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    fn gather(&mut self, pass: &Pass<'_>, chunk: &[f32], gathered: &mut [f32]) -> Result<()>;

    /// Writes the gradients of this pass's chunk to `chunk`: the sum of the gradients that all
    /// passes have for it. `gradients` has those of this pass for all chunks, in the order of
    /// positions.
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    fn scatter_sum(&mut self, pass: &Pass<'_>, gradients: &[f32], chunk: &mut [f32]) -> Result<()>;
}

/// Blocks of one sequence each. A block has the keys and values of all chunks, and those of the
/// earlier micro-sequences.
pub struct SequenceKv {
    /// Exchange with the other chunks; `None` if there are none.
    exchange: Option<Box<dyn ChunkExchange>>,
    /// Keys and values of this pass's chunk.
    chunk: F32Vec,
    /// Those of all chunks. Empty if they are kept with the earlier ones.
    gathered: F32Vec,
    /// Gradients of the keys and values of all chunks, in backward. Empty if they are kept.
    slopes: F32Vec,
    /// Keys and values of all micro-sequences so far; `None` if there is one.
    earlier: Option<EarlierKv>,
    columns: QkvColumns,
    site: u64,
    visible: Vec<usize>,
    workspace: usize,
    /// Number of the next sequence.
    next: usize,
    /// Number of sequences.
    count: usize,
}

impl SequenceKv {
    /// Creates the blocks of `attention` in a pass with `rows` rows. `exchange` is for sequences of
    /// several chunks.
    ///
    /// # Errors
    /// Fails for micro-sequences on a GPU.
    pub fn new(
        pass: &mut Pass<'_>,
        attention: &Attention,
        rows: usize,
        exchange: Option<Box<dyn ChunkExchange>>,
    ) -> Result<Self> {
        let parts = pass.micro_sequences();
        if parts > 1 {
            pass.expect_host("attention between micro-sequences (data.micro_sequences)")?;
        }
        let (columns, site, count) = (attention.columns(), attention.site, sequence_count(pass, rows));
        let (visible, chunks) = (attention.visible_keys(pass), chunk_count(pass));
        let workspace = Attention::workspace_len(pass.sequence() * chunks * parts) / 2;
        let chunk_len = pass.sequence() * 2 * columns.keys;
        let gathered_len = chunk_len * chunks;
        let earlier = (parts > 1).then(|| {
            let kept = EarlierKv::take(pass, site);
            kept.unwrap_or_else(|| EarlierKv::new(pass, count, gathered_len))
        });
        let gathered = pass.floats(if earlier.is_some() { 0 } else { gathered_len });
        let (chunk, slopes) = (pass.floats(chunk_len), pass.floats(0));
        Ok(Self {
            exchange,
            chunk,
            gathered,
            slopes,
            earlier,
            columns,
            site,
            visible,
            workspace,
            next: 0,
            count,
        })
    }

    /// Returns the range of this pass's chunk of sequence `number` among all its chunks.
    fn chunk_range(&self, number: usize) -> Range<usize> {
        let count = self.chunk.len() / (2 * self.columns.keys) * self.columns.all();
        number * count..(number + 1) * count
    }

    /// Completes the keys | values of sequence `number`, up to the last row of this pass. `input`
    /// has the queries | keys | values of this pass's chunks.
    fn complete_keys(&mut self, pass: &Pass<'_>, number: usize, input: &[f32]) -> Result<()> {
        let index = pass.micro_sequence();
        // Backward and a repeated forward find the keys and values that forward has kept.
        if self.earlier.as_ref().is_some_and(|earlier| earlier.has(index)) {
            return Ok(());
        }
        let QkvColumns { queries, keys } = self.columns;
        let rows = input[self.chunk_range(number)].chunks_exact(self.columns.all());
        let chunk: &mut [f32] = match (&self.exchange, &mut self.earlier) {
            // Without other chunks, this one is written where the micro-sequence is kept.
            (None, Some(earlier)) => earlier.part_mut(number, index),
            _ => &mut self.chunk,
        };
        for (keys_of_row, row) in chunk.chunks_exact_mut(2 * keys).zip(rows) {
            keys_of_row.copy_from_slice(&row[queries..]);
        }
        let Some(exchange) = &mut self.exchange else { return Ok(()) };
        let gathered: &mut [f32] = match &mut self.earlier {
            Some(earlier) => earlier.part_mut(number, index),
            None => &mut self.gathered,
        };
        exchange.gather(pass, &self.chunk, gathered)
    }
}

impl KvBlocks for SequenceKv {
    fn next_block(&mut self, pass: &Pass<'_>, input: &Tensor, way: Direction) -> Result<Option<KvBlock<'_>>> {
        if self.next == self.count {
            return Ok(None);
        }
        let number = self.next;
        self.next += 1;
        self.complete_keys(pass, number, input.data())?;
        let (keys, gradients): (&[f32], Option<&mut [f32]>) = match (way, &mut self.earlier) {
            (Direction::Forward, Some(earlier)) => (earlier.keys(number, pass.micro_sequence()), None),
            (Direction::Forward, None) => (&self.gathered[..], None),
            // The gradients have the sums of the later micro-sequences.
            (Direction::Backward, Some(earlier)) => {
                let (keys, slopes) = earlier.keys_and_slopes(pass, number);
                (keys, Some(slopes))
            }
            (Direction::Backward, None) => {
                if self.slopes.is_empty() {
                    self.slopes = pass.floats(self.gathered.len());
                }
                self.slopes.fill(0.0);
                (&self.gathered[..], Some(&mut self.slopes[..]))
            }
        };
        let (visible, workspace) = (&self.visible, self.workspace);
        Ok(Some(KvBlock { sequences: number..number + 1, visible, workspace, keys: Some(keys), gradients }))
    }

    /// Writes the sum over all chunks of the gradients of the last block to its rows of `result`.
    fn send_gradients(&mut self, pass: &Pass<'_>, result: &mut Tensor) -> Result<()> {
        let number = self.next - 1;
        let slopes: &[f32] = match &self.earlier {
            Some(earlier) => earlier.part_slopes(number, pass.micro_sequence()),
            None => &self.slopes,
        };
        let slopes_of_chunk: &[f32] = match &mut self.exchange {
            None => slopes,
            Some(exchange) => {
                // The keys of the chunk were gathered before, so its memory is free for the sum.
                exchange.scatter_sum(pass, slopes, &mut self.chunk)?;
                &self.chunk
            }
        };
        let QkvColumns { queries, keys } = self.columns;
        let rows = result.data_mut()[self.chunk_range(number)].chunks_exact_mut(self.columns.all());
        let pairs = rows.zip(slopes_of_chunk.chunks_exact(2 * keys));
        pairs.for_each(|(row, slopes)| row[queries..].copy_from_slice(slopes));
        Ok(())
    }

    /// Keeps the keys and values if a later micro-sequence or backward needs them.
    fn end_forward(self: Box<Self>, pass: &mut Pass<'_>) {
        let index = pass.micro_sequence();
        let Some(mut earlier) = self.earlier else { return };
        earlier.complete(index);
        if pass.keeps() || index + 1 < pass.micro_sequences() {
            earlier.keep(pass, self.site);
        }
    }

    /// Keeps the keys and values, unless this is the first micro-sequence, which needs them last.
    fn end_backward(self: Box<Self>, pass: &mut Pass<'_>, _: &mut Tensor) -> Result<()> {
        if let Some(earlier) = self.earlier.filter(|_| pass.micro_sequence() > 0) {
            earlier.keep(pass, self.site);
        }
        Ok(())
    }
}
