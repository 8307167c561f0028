//! Tables of uneven shares, which are cached by content. A call with the same counts as an earlier
//! call uploads nothing.

use crate::device::op::OpBuffer;
use crate::engine::{Layout, Shares as Places};
use crate::error::Result;
use std::collections::VecDeque;
use std::sync::Arc;
use unisono_cuda::device::Share;
use unisono_transports::gpu::{Endpoint, ShareTable};

/// Cache of recently used tables, the last one first.
#[derive(Default)]
pub(super) struct ShareTables(VecDeque<CachedTable>);

struct CachedTable {
    /// (offset, bytes) of each share.
    places: Vec<(usize, usize)>,
    chunks_per_share: usize,
    element: usize,
    table: Arc<ShareTable>,
}

impl ShareTables {
    /// Returns the table of a buffer with uneven shares, written at the first call. Returns `None`
    /// for a buffer with equal shares.
    ///
    /// # Errors
    /// There is no room for the table.
    pub(super) fn get(
        &mut self,
        endpoint: &Endpoint,
        side: &OpBuffer<'_>,
        chunks_per_share: usize,
        element: usize,
    ) -> Result<Option<Arc<ShareTable>>> {
        let Some(places) = side.share_table else { return Ok(None) };
        let is_same = |known: &CachedTable| {
            known.places == places && (known.chunks_per_share, known.element) == (chunks_per_share, element)
        };
        if let Some(known) = self.0.iter().find(|known| is_same(known)) {
            return Ok(Some(Arc::clone(&known.table)));
        }
        let layout = Layout::new(Places::Table(places), chunks_per_share, element);
        let share = |&(start, bytes): &(usize, usize)| {
            let stride = layout.stride(bytes) as u64;
            Share { start: start as u64, bytes: bytes as u64, stride }
        };
        let shares: Vec<Share> = places.iter().map(share).collect();
        let table = Arc::new(ShareTable::new(endpoint, &shares)?);
        // The oldest table makes room. Its memory is used again only after the launches so far,
        // because those may still read it.
        self.0.truncate(SHARE_TABLES_MAX - 1);
        self.0.push_front(CachedTable {
            places: places.to_vec(),
            chunks_per_share,
            element,
            table: Arc::clone(&table),
        });
        Ok(Some(table))
    }
}

/// Maximum number of tables.
const SHARE_TABLES_MAX: usize = 64;
