//! Hands the job of a collective to the engine.

use super::Communicator;
use crate::engine::Job;
use crate::error::{ErrorKind, Result};
use crate::hash::fnv1a;
use crate::reduce_op::ReduceOp;
use crate::schedule::Collective;
use unisono_cuda::DType;

impl Communicator {
    /// Runs one collective when it is this call's turn.
    #[inline]
    pub(super) fn run(&self, mut job: Job<'_>) -> Result<()> {
        if let Some(op @ ReduceOp::PreMulSum(_)) = job.reduction {
            job.reduction = Some(self.checked_factor(op, job.collective, job.dtype)?);
        }
        self.with_engine(|engine| engine.collective(&mut job))
    }

    /// Returns a pre-multiplied sum with its factor as a number of the elements' type.
    #[cold]
    fn checked_factor(&self, op: ReduceOp, collective: Collective, dtype: DType) -> Result<ReduceOp> {
        op.for_dtype(dtype).map_err(|error| match error.kind() {
            ErrorKind::InvalidUsage(what) => self.arg_check(collective).invalid(what.clone()),
            _ => self.attach_rank(error),
        })
    }
}

/// Returns the (offset, bytes) of consecutive shares.
pub(crate) fn displacements(counts: &[usize], element: usize) -> Vec<(usize, usize)> {
    let mut offset = 0;
    let place = |&count: &usize| {
        let place = (offset, count * element);
        offset += count * element;
        place
    };
    counts.iter().map(place).collect()
}

/// Returns a digest of the counts.
pub(crate) fn digest_words(counts: &[usize]) -> u64 {
    fnv1a(counts.iter().map(|&count| count as u64))
}
