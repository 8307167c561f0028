//! Attention of new positions to those in a cache, for generation token by token.

use super::kv_source::{KvBlock, KvBlocks};
use super::{Attention, KvCache};
use crate::error::Result;
use crate::ops::host::attention::tile::{QkvColumns, TILE_ROWS};
use crate::pass::Pass;
use crate::step_plan::Direction;
use crate::tensor::Tensor;

/// One block: the keys and values of some consecutive positions, and those of the cache before
/// them.
pub(super) struct CachedKv {
    cache: KvCache,
    columns: QkvColumns,
    visible: Vec<usize>,
    workspace: usize,
    is_used: bool,
}

impl CachedKv {
    /// Creates the block of the next layer of `cache`, for `rows` new positions.
    ///
    /// # Panics
    /// Panics if a backward follows, for several sequences, or if the cache is too small.
    pub(super) fn new(pass: &Pass<'_>, attention: &Attention, rows: usize, cache: KvCache) -> Self {
        assert!(!pass.keeps() && pass.sequence() == rows, "generation of one sequence");
        assert!(attention.is_causal, "only causal attention has an order");
        assert!(rows <= cache.room(), "{rows} rows in a cache with {} left", cache.room());
        let visible = (cache.length() + 1..=cache.length() + rows).collect();
        // Few distinct lengths let the allocator reuse memory.
        let keys = (cache.length() + rows).next_multiple_of(TILE_ROWS);
        let workspace = rows.min(TILE_ROWS) * keys;
        Self { cache, columns: attention.columns(), visible, workspace, is_used: false }
    }
}

impl KvBlocks for CachedKv {
    fn next_block(&mut self, pass: &Pass<'_>, input: &Tensor, _: Direction) -> Result<Option<KvBlock<'_>>> {
        if std::mem::replace(&mut self.is_used, true) {
            return Ok(None);
        }
        let keys = Some(self.cache.append(pass, self.columns, input));
        let (visible, workspace) = (&self.visible, self.workspace);
        Ok(Some(KvBlock { sequences: 0..1, visible, workspace, keys, gradients: None }))
    }

    fn end_forward(self: Box<Self>, pass: &mut Pass<'_>) {
        pass.extensions_mut().insert(self.cache);
    }
}
