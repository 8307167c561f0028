//! Order of gathered keys and values: by rank, or by position.

use crate::allocator::F32Vec;
use crate::pass::Pass;
use crate::placement::Placement;

/// Reorders the rows of a sequence, or of a micro-sequence, that ranks have gathered.
pub(super) struct KeyOrder {
    /// Place by position of each row by rank. Empty if both orders are equal.
    places: Vec<usize>,
    room: F32Vec,
}

impl KeyOrder {
    /// Creates the order for a pass with gathered rows of `elements` elements in all.
    pub(super) fn new(pass: &Pass<'_>, elements: usize) -> Self {
        let (chunk, length) = (pass.chunk().within(0, 1), pass.sequence());
        if chunk.placement == Placement::Contiguous {
            return Self { places: Vec::new(), room: pass.floats(0) };
        }
        let places = (0..chunk.count).flat_map(|rank| chunk.positions_of(rank, length));
        Self { places: places.collect(), room: pass.floats(elements) }
    }

    /// Sorts rows by position.
    pub(super) fn by_position(&mut self, rows: &mut [f32]) {
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
    pub(super) fn by_rank<'a>(&'a mut self, rows: &'a [f32]) -> &'a [f32] {
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
