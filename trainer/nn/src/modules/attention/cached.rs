//! Attention of new positions to those in a cache, for generation token by token.

use super::Attention;
use crate::error::Result;
use crate::ops::host::attention::tile::TILE_ROWS;
use crate::ops::{AttentionShape, Values};
use crate::pass::Pass;
use crate::tensor::Tensor;

impl Attention {
    /// Computes attention of some consecutive positions to themselves and those of the cache.
    ///
    /// # Panics
    /// Panics if a backward follows, for several sequences, or if the cache is too small.
    pub(super) fn forward_cached(&self, pass: &mut Pass<'_>, input: &Tensor) -> Result<Tensor> {
        let rows = input.rows();
        assert!(!pass.keeps() && pass.sequence() == rows, "generation of one sequence");
        // Few distinct lengths let the allocator reuse memory.
        let visible = self.visible_keys(pass);
        let keys = visible[rows - 1].next_multiple_of(TILE_ROWS);
        let shape = AttentionShape { workspace: rows.min(TILE_ROWS) * keys, ..self.shape(pass, &visible) };
        let mut cache = pass.set_kv_cache(None).expect("a cache");
        assert!(rows <= cache.room(), "{rows} rows in a cache with {} left", cache.room());
        let (mut output, mut log_sums) = (pass.tensor(rows, self.width()), pass.tensor(rows, self.heads));
        let keys = Some(Values::Host(cache.append(pass, self.columns(), input)));
        let (to, sums) = (output.values_mut(), log_sums.values_mut());
        pass.ops().attention(&shape, 0..1, input.values(), keys, to, sums)?;
        pass.set_kv_cache(Some(cache));
        Ok(output)
    }
}
