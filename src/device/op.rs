//! One operation on a GPU, in the form in which the public calls pass it on.

use crate::engine::{Layout, Shares as Places};
use crate::error::{Error, ErrorKind};
use crate::op_desc::OpKind;
use crate::reduce_op::ReduceOp;
use crate::schedule::{Collective, Rank};
use unisono_cuda::device::UserOpKernels;
use unisono_reducers::DType;
use unisono_transports::gpu::{Operand, OperandMemory, Region, ShareTable};

/// One of the two buffers of an operation.
#[derive(Clone, Copy)]
pub(super) struct OpBuffer<'a> {
    pub(super) region: Option<&'a dyn Region>,
    /// Start of the buffer in its memory region, in bytes.
    pub(super) offset: usize,
    /// Bytes of one share, or of the longest share if there is a table.
    pub(super) share_bytes: usize,
    /// (offset, bytes) of each share, if shares are uneven.
    pub(super) share_table: Option<&'a [(usize, usize)]>,
    /// Memory that the launch first copies to the beginning of the region.
    pub(super) copied_from: Option<&'a dyn Region>,
}

/// One collective operation.
pub(super) struct DeviceOp<'a> {
    pub(super) kind: OpKind,
    pub(super) collective: Collective,
    pub(super) dtype: DType,
    pub(super) op: Option<ReduceOp>,
    /// Kernels of a user-defined operation, used instead of the sum.
    pub(super) user_op: Option<&'a UserOpKernels>,
    pub(super) root: Rank,
    /// Elements in one share, or a digest of several counts.
    pub(super) count: u64,
    pub(super) input: OpBuffer<'a>,
    pub(super) output: OpBuffer<'a>,
}

impl<'a> OpBuffer<'a> {
    /// Returns a buffer of equal shares of `share_bytes` bytes, which begins at `offset`.
    pub(super) fn even(region: Option<&'a dyn Region>, offset: usize, share_bytes: usize) -> Self {
        Self { region, offset, share_bytes, share_table: None, copied_from: None }
    }

    /// Converts the buffer to an operand of a launch: `shares` equal shares, or those of the table.
    pub(super) fn operand<'o>(
        &'o self,
        shares: usize,
        blocks: usize,
        element: usize,
        table: Option<&'o ShareTable>,
    ) -> Operand<'o> {
        let (bytes, offset) = (self.share_bytes, self.offset);
        let stride = Layout::new(Places::Even { bytes }, blocks, element).stride(bytes);
        let memory = match (self.region, table) {
            (None, _) => OperandMemory::None,
            (Some(region), None) => OperandMemory::EvenShares { region, offset, shares, bytes, stride },
            (Some(region), Some(shares)) => OperandMemory::UnevenShares { region, offset, shares },
        };
        Operand { memory, chunks_per_share: blocks, copied_from: self.copied_from }
    }
}

impl DeviceOp<'_> {
    /// Returns whether there are kernels for the type and the reduction.
    pub(super) fn has_kernels(&self) -> bool {
        self.dtype.is_on_gpu() && self.op.is_none_or(|op| op.kind().is_on_gpu())
    }

    /// Returns the error of an operation without kernels.
    #[cold]
    pub(super) fn cpu_only_error(&self) -> Error {
        let what = match self.op {
            Some(op) if self.dtype.is_on_gpu() => op.kind().name(),
            _ => self.dtype.name(),
        };
        let text = format!("{} of {what} runs on CPU ranks only", self.kind.name());
        Error::new(ErrorKind::Unsupported(text))
    }
}
