//! Keys and values of whole sequences, which all ranks gather.

use super::{ContextParallel, Placement};
use unisono::{Communicator, Sum};
use unisono_nn::allocator::F32Vec;
use unisono_nn::error::Result;
use unisono_nn::modules::ChunkExchange;
use unisono_nn::pass::Pass;

/// Gathers the keys and values of one sequence at a time.
pub(super) struct Gather {
    ranks: Communicator,
    order: KeyOrder,
}

impl Gather {
    /// Creates the exchange of `columns` columns of keys | values.
    pub(super) fn new(shared: &ContextParallel, pass: &Pass<'_>, columns: usize) -> Self {
        Self { ranks: shared.ranks.clone(), order: KeyOrder::new(shared, pass, columns) }
    }
}

impl ChunkExchange for Gather {
    fn gather(&mut self, pass: &Pass<'_>, chunk: &[f32], gathered: &mut [f32]) -> Result<()> {
        pass.waits().time("keys and values", || self.ranks.all_gather(chunk, gathered))?;
        self.order.by_position(gathered);
        Ok(())
    }

    fn scatter_sum(&mut self, pass: &Pass<'_>, gradients: &[f32], chunk: &mut [f32]) -> Result<()> {
        // Each rank receives the shard of its number, so the rows go back to the order of ranks
        // first.
        let gradients = self.order.by_rank(gradients);
        pass.waits()
            .time("gradients of keys and values", || self.ranks.reduce_scatter(gradients, chunk, Sum))?;
        Ok(())
    }
}

/// Reorders the rows of a sequence, or of a micro-sequence, that ranks have gathered.
struct KeyOrder {
    /// Place by position of each row by rank. Empty if both orders are equal.
    places: Vec<usize>,
    room: F32Vec,
}

impl KeyOrder {
    /// Creates the order for a pass with gathered rows of `columns` columns.
    fn new(shared: &ContextParallel, pass: &Pass<'_>, columns: usize) -> Self {
        let (chunk, length) = (shared.rank_chunk(), pass.sequence());
        if chunk.placement == Placement::Contiguous {
            return Self { places: Vec::new(), room: pass.floats(0) };
        }
        let places = (0..chunk.count).flat_map(|rank| chunk.positions_of(rank, length));
        Self { places: places.collect(), room: pass.floats(chunk.count * length * columns) }
    }

    /// Sorts rows by position.
    fn by_position(&mut self, rows: &mut [f32]) {
        if self.places.is_empty() {
            return;
        }
        self.room.copy_from_slice(rows);
        let width = rows.len() / self.places.len();
        for (row, place) in self.room.chunks_exact(width).zip(&self.places) {
            rows[place * width..(place + 1) * width].copy_from_slice(row);
        }
    }

    /// Returns rows that are in the order of positions in that of ranks.
    fn by_rank<'a>(&'a mut self, rows: &'a [f32]) -> &'a [f32] {
        if self.places.is_empty() {
            return rows;
        }
        let width = rows.len() / self.places.len();
        for (row, place) in self.room.chunks_exact_mut(width).zip(&self.places) {
            row.copy_from_slice(&rows[place * width..(place + 1) * width]);
        }
        &self.room
    }
}
