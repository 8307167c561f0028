//! Cache of keys and values, for generation token by token.

use crate::allocator::F32Vec;
use crate::ops::host::attention::tile::QkvColumns;
use crate::pass::{Extension, Pass};
use crate::tensor::Tensor;

/// Keys and values of the earlier positions of one sequence, for every attention layer of a model.
///
/// It is a value of a pass ([`Pass::extensions_mut`]). A forward without backward appends the keys
/// and values of its rows, whose positions follow those of the cache. One more position then costs
/// one row.
pub struct KvCache {
    /// Keys | values of each layer, row by row.
    layers: Vec<F32Vec>,
    /// Layer that is computed next.
    next: usize,
    length: usize,
    capacity: usize,
}

impl Extension for KvCache {}

impl KvCache {
    /// Creates an empty cache for up to `capacity` positions.
    pub fn new(capacity: usize) -> Self {
        Self { layers: Vec::new(), next: 0, length: 0, capacity }
    }

    /// Returns the number of positions.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns the number of positions that are left.
    pub fn room(&self) -> usize {
        self.capacity - self.length
    }

    /// Counts the rows of a complete forward.
    pub fn advance(&mut self, rows: usize) {
        self.length += rows;
        self.next = 0;
    }

    /// Appends the keys and values of the next layer, and returns all of that layer.
    pub(super) fn append(&mut self, pass: &Pass<'_>, columns: QkvColumns, input: &Tensor) -> &[f32] {
        let (layer, width) = (self.next, 2 * columns.keys);
        self.next += 1;
        // The first forward allocates room for all positions, so that later ones move no keys.
        if self.layers.len() == layer {
            self.layers.push(pass.floats(self.capacity * width));
        }
        let cached = &mut self.layers[layer];
        let rows = cached[self.length * width..].chunks_exact_mut(width);
        for (kept, row) in rows.zip(input.data().chunks_exact(columns.all())) {
            kept.copy_from_slice(&row[columns.queries..]);
        }
        &cached[..(self.length + input.rows()) * width]
    }
}
