//! One operation, as the calls hand it over.

use crate::call::Kind;
use crate::engine::{Layout, Shares as Places};
use crate::error::Error;
use crate::reduction::Reduction;
use crate::schedule::{Collective, Rank};
use unisono_cuda::DType;
use unisono_cuda::device::{Gpu, OwnKernels, Share};
use unisono_transports::p2p::{Memory, Operand, Region, Shares};

/// One of the two buffers of an operation.
#[derive(Clone, Copy)]
pub(super) struct Side<'a> {
    pub(super) region: Option<&'a dyn Region>,
    /// Where in the memory it begins, in bytes.
    pub(super) offset: usize,
    /// Of one share, in bytes; where there is a table, of the longest.
    pub(super) share_bytes: usize,
    /// (offset, bytes) of each share, where they are uneven.
    pub(super) table: Option<&'a [(usize, usize)]>,
}

/// One collective operation.
pub(super) struct Job<'a> {
    pub(super) kind: Kind,
    pub(super) collective: Collective,
    pub(super) dtype: DType,
    pub(super) reduction: Option<Reduction>,
    /// Kernels of the caller's, in the place of the sum.
    pub(super) own: Option<&'a OwnKernels>,
    pub(super) root: Rank,
    /// Elements in one share, or a digest of many counts.
    pub(super) count: u64,
    pub(super) input: Side<'a>,
    pub(super) output: Side<'a>,
}

impl<'a> Side<'a> {
    /// Equal shares of `share_bytes`, from `offset` on.
    pub(super) fn even(region: Option<&'a dyn Region>, offset: usize, share_bytes: usize) -> Self {
        Self { region, offset, share_bytes, table: None }
    }

    /// Its table on the GPU, if it has one.
    pub(super) fn shares(&self, gpu: &Gpu, parts: usize, element: usize) -> Result<Option<Shares>, Error> {
        let Some(table) = self.table else { return Ok(None) };
        let layout = Layout::new(Places::Table(table), parts, element);
        let share = |&(start, bytes): &(usize, usize)| {
            let stride = layout.stride(bytes) as u64;
            Share { start: start as u64, bytes: bytes as u64, stride }
        };
        Ok(Some(Shares::new(gpu, &table.iter().map(share).collect::<Vec<_>>())?))
    }

    /// As a launch takes it: `shares` equal ones, or those of the table.
    pub(super) fn operand<'o>(
        &'o self,
        shares: usize,
        blocks: usize,
        element: usize,
        table: Option<&'o Shares>,
    ) -> Operand<'o> {
        let (bytes, offset) = (self.share_bytes, self.offset);
        let stride = Layout::new(Places::Even { bytes }, blocks, element).stride(bytes);
        let memory = match (self.region, table) {
            (None, _) => Memory::None,
            (Some(region), None) => Memory::Even { region, offset, shares, bytes, stride },
            (Some(region), Some(shares)) => Memory::Uneven { region, offset, shares },
        };
        Operand { memory, blocks }
    }
}
