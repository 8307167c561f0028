//! Argument checks of a call, before anything is sent.

use crate::communicator::Communicator;
use crate::error::{Error, ErrorKind, Result};
use crate::op_desc::OpKind;
use crate::reduce_op::ReduceOp;
use crate::schedule::{Collective, Rank};
use unisono_reducers::DType;

/// A call whose arguments are being checked. A refusal names the operation and both values.
#[derive(Clone, Copy)]
pub(crate) struct ArgCheck<'c> {
    comm: &'c Communicator,
    /// `None` for operations that another communicator numbers.
    kind: Option<OpKind>,
}

impl Communicator {
    /// Starts the checks of an operation of this kind.
    #[inline]
    pub(crate) fn arg_check(&self, kind: impl Into<OpKind>) -> ArgCheck<'_> {
        ArgCheck { comm: self, kind: Some(kind.into()) }
    }

    /// Returns an operator that is defined for the elements' type, with its factor as a number of
    /// that type.
    #[cold]
    pub(in crate::communicator) fn checked_op(
        &self,
        op: ReduceOp,
        kind: OpKind,
        dtype: DType,
    ) -> Result<ReduceOp> {
        op.for_dtype(dtype).map_err(|error| match error.kind() {
            ErrorKind::InvalidUsage(what) => self.arg_check(kind).invalid(what.clone()),
            _ => self.attach_rank(error),
        })
    }

    /// Starts the checks of an operation that this communicator does not run itself.
    #[cfg(feature = "gpu")]
    pub(crate) fn arg_check_unnumbered(&self) -> ArgCheck<'_> {
        ArgCheck { comm: self, kind: None }
    }
}

impl ArgCheck<'_> {
    pub(crate) fn require_rank(self, what: &str, rank: Rank) -> Result<()> {
        if rank < self.comm.size() {
            return Ok(());
        }
        Err(self.invalid(format!("{what} is rank {rank}, but there are only {} ranks", self.comm.size())))
    }

    #[inline]
    pub(crate) fn require_length(self, what: &str, found: usize, expected: usize) -> Result<()> {
        if found == expected { Ok(()) } else { self.length_error(what, found, expected) }
    }

    /// Requires a buffer of `expected` bytes.
    #[inline]
    pub(in crate::communicator) fn require_bytes(
        self,
        what: &str,
        found: usize,
        expected: usize,
    ) -> Result<()> {
        if found == expected { Ok(()) } else { self.bytes_error(what, found, expected) }
    }

    #[cold]
    fn bytes_error(self, what: &str, found: usize, expected: usize) -> Result<()> {
        let ranks = self.comm.size();
        Err(self.invalid(format!("{what} has {found} bytes, but {expected} are needed with {ranks} ranks")))
    }

    #[cold]
    fn length_error(self, what: &str, found: usize, expected: usize) -> Result<()> {
        let ranks = self.comm.size();
        Err(self.invalid(format!("{what} has length {found}, but {expected} is needed with {ranks} ranks")))
    }

    pub(crate) fn require_length_if(
        self,
        applies: bool,
        what: &str,
        found: usize,
        expected: usize,
    ) -> Result<()> {
        if applies { self.require_length(what, found, expected) } else { Ok(()) }
    }

    /// Returns the number of elements in one rank's share of a buffer.
    pub(crate) fn share_count(self, elements: usize) -> Result<usize> {
        let ranks = self.comm.size();
        if elements.is_multiple_of(ranks) {
            return Ok(elements / ranks);
        }
        Err(self.invalid(format!("{elements} elements cannot be cut into {ranks} equal shares")))
    }

    /// Returns the sum of the counts.
    pub(crate) fn total_count(self, counts: &[usize]) -> Result<usize> {
        let sum: u128 = counts.iter().map(|&count| count as u128).sum();
        usize::try_from(sum)
            .ok()
            .filter(|&sum| sum <= isize::MAX as usize)
            .ok_or_else(|| self.invalid(format!("the counts add up to {sum}, more than memory can hold")))
    }

    /// Returns the bytes of all shares.
    pub(in crate::communicator) fn total_bytes(self, counts: &[usize], dtype: DType) -> Result<usize> {
        let count = self.total_count(counts)?;
        let bytes = count.checked_mul(dtype.size()).filter(|&bytes| bytes <= isize::MAX as usize);
        bytes.ok_or_else(|| self.too_many(count, dtype))
    }

    #[cold]
    pub(in crate::communicator) fn too_many(self, count: usize, dtype: DType) -> Error {
        self.invalid(format!("{count} elements of {dtype} are more than memory can hold"))
    }

    /// Refuses a call in which a reduction is missing or not allowed.
    pub(in crate::communicator) fn require_reduction(
        self,
        collective: Collective,
        reduction: Option<ReduceOp>,
    ) -> Result<()> {
        match (collective.reduces(), reduction.is_some()) {
            (true, false) => Err(self.invalid("it needs a reduction".to_owned())),
            (false, true) => Err(self.invalid("it takes no reduction".to_owned())),
            _ => Ok(()),
        }
    }

    pub(crate) fn require_at_root(self, what: &str, root: Rank, given: bool) -> Result<()> {
        if given || self.comm.rank() != root {
            return Ok(());
        }
        let article = if what.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
        Err(self.invalid(format!("the root, rank {root}, must give {article} {what}")))
    }

    pub(in crate::communicator) fn root_input<'b, T>(
        self,
        what: &str,
        root: Rank,
        buffer: Option<&'b [T]>,
    ) -> Result<&'b [T]> {
        self.require_at_root(what, root, buffer.is_some())?;
        Ok(buffer.filter(|_| self.comm.rank() == root).unwrap_or(&[]))
    }

    pub(in crate::communicator) fn root_output<'b, T>(
        self,
        what: &str,
        root: Rank,
        buffer: Option<&'b mut [T]>,
    ) -> Result<&'b mut [T]> {
        self.require_at_root(what, root, buffer.is_some())?;
        Ok(buffer.filter(|_| self.comm.rank() == root).unwrap_or(&mut []))
    }

    /// Returns the error of a refused call, with its name and the number that it would have had.
    ///
    /// Messages between two ranks are numbered separately, and a refused call uses no such number.
    /// Earlier operations may still be queued, so the number is known only when the call's ticket
    /// is admitted. An accepted call would have waited for its ticket, too.
    #[cold]
    pub(crate) fn invalid(self, what: String) -> Error {
        let Some(kind) = self.kind else { return self.comm.attach_rank(Error::invalid_usage(what)) };
        let number = self.comm.with_engine(|engine| Ok(engine.peek_sequence())).ok();
        let number = number.filter(|_| kind != OpKind::SendRecv);
        let number = number.map_or_else(String::new, |number| format!(" #{number}"));
        self.comm.attach_rank(Error::invalid_usage(format!("{}{number}: {what}", kind.name())))
    }
}
