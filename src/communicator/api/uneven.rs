//! The blocking collectives whose shares have different lengths.
//!
//! [`Communicator::all_gather_v`] and [`Communicator::reduce_scatter_v`] use the algorithms of
//! all_gather and reduce_scatter. Every rank gives all counts to these two.
//!
//! [`Communicator::gather_v`] and [`Communicator::scatter_v`] send one message between the root and
//! each other rank. Only the root gives counts to these two.

use crate::communicator::Communicator;
use crate::communicator::calls::counts::{split, split_mut};
use crate::communicator::calls::operation::{OpBuffers, UnevenOperation};
use crate::error::Result;
use crate::op_desc::OpKind;
use crate::reduce_op::ReduceOp;
use crate::schedule::{Collective, Rank};
use unisono_reducers::{Element, as_bytes, as_bytes_mut};

impl Communicator {
    /// Concatenates inputs of different lengths, by rank, into every rank's `output`.
    ///
    /// Rank i gives `counts[i]` elements. `counts` is equal on all ranks, and `output` is as long
    /// as the sum of all counts.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]. After an error, `output` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```
    /// # use unisono::Communicator;
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let (input, mut output) = ([1u8, 2], [0; 3]);
    /// comm.all_gather_v(&input[..comm.rank() + 1], &mut output, &[1, 2]).unwrap();
    /// assert_eq!(output, [1, 1, 2]);
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn all_gather_v<T: Element>(&self, input: &[T], output: &mut [T], counts: &[usize]) -> Result<()> {
        let args = self.arg_check(OpKind::AllGatherV);
        args.require_length("counts", counts.len(), self.size())?;
        args.require_length("input", input.len(), counts[self.rank()])?;
        args.require_length("output", output.len(), args.total_count(counts)?)?;
        let buffers = OpBuffers::Separate { input: as_bytes(input), output: as_bytes_mut(output) };
        self.run_uneven_operation(&UnevenOperation::all_gather(T::DTYPE, counts), buffers)
    }

    /// Reduces the inputs of all ranks, and gives each rank a part of the result. The parts can
    /// have different lengths.
    ///
    /// Rank i receives `counts[i]` elements. `counts` is equal on all ranks. Every `input` is as
    /// long as the sum of all counts, and holds the parts one after the other.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]. After an error, `output` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```
    /// # use unisono::{Communicator, Sum};
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let counts = [1, 2];
    /// let mut output = vec![0; counts[comm.rank()]];
    /// comm.reduce_scatter_v(&[5i32, 6, 7], &mut output, &counts, Sum).unwrap();
    /// assert_eq!(output, [vec![10], vec![12, 14]][comm.rank()]);
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn reduce_scatter_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        reduction: ReduceOp,
    ) -> Result<()> {
        let args = self.arg_check(OpKind::ReduceScatterV);
        args.require_length("counts", counts.len(), self.size())?;
        args.require_length("output", output.len(), counts[self.rank()])?;
        args.require_length("input", input.len(), args.total_count(counts)?)?;
        let buffers = OpBuffers::Separate { input: as_bytes(input), output: as_bytes_mut(output) };
        self.run_uneven_operation(&UnevenOperation::reduce_scatter(T::DTYPE, counts, reduction), buffers)
    }

    /// Concatenates inputs of different lengths, by rank, into the root's `output`.
    ///
    /// The root gives its `output` together with the counts, where `counts[i]` is the length of
    /// rank i's `input`. Other ranks give `None`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUsage`](crate::ErrorKind::InvalidUsage) if the sum of the counts is not
    /// the length of the buffer. If the root and a rank give different counts,
    /// [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch) shows both. Other errors are those of
    /// [`Communicator::all_reduce`]. After an error, `output` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```
    /// # use unisono::Communicator;
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let (input, mut all) = ([7u8, 8], [0; 3]);
    /// let output = (comm.rank() == 0).then_some((&mut all[..], &[1, 2][..]));
    /// comm.gather_v(&input[..comm.rank() + 1], output, 0).unwrap();
    /// assert_eq!(all, [[7, 7, 8], [0; 3]][comm.rank()]);
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn gather_v<T: Element>(
        &self,
        input: &[T],
        output: Option<(&mut [T], &[usize])>,
        root: Rank,
    ) -> Result<()> {
        let args = self.arg_check(OpKind::GatherV);
        args.require_rank("root", root)?;
        args.require_at_root("output", root, output.is_some())?;
        let (output, counts) = output.filter(|_| self.rank() == root).unwrap_or((&mut [], &[]));
        if self.rank() == root {
            args.require_length("counts", counts.len(), self.size())?;
            args.require_length("output", output.len(), args.total_count(counts)?)?;
            args.require_length("input", input.len(), counts[root])?;
        }
        self.gather_bytes::<T>(OpKind::GatherV, as_bytes(input), (as_bytes_mut(output), counts), root)
    }

    /// Copies the next `counts[i]` elements of the root's input to rank i's `output`.
    ///
    /// The root gives its input together with a count for each rank. Other ranks give `None`. Rank
    /// i's `output` has `counts[i]` elements.
    ///
    /// # Errors
    /// As [`Communicator::gather_v`]. After an error, `output` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```
    /// # use unisono::Communicator;
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let mut output = vec![0; comm.rank() + 1];
    /// let input = (comm.rank() == 0).then_some((&[7u8, 8, 9][..], &[1, 2][..]));
    /// comm.scatter_v(input, &mut output, 0).unwrap();
    /// assert_eq!(output, [vec![7], vec![8, 9]][comm.rank()]);
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn scatter_v<T: Element>(
        &self,
        input: Option<(&[T], &[usize])>,
        output: &mut [T],
        root: Rank,
    ) -> Result<()> {
        let args = self.arg_check(OpKind::ScatterV);
        args.require_rank("root", root)?;
        args.require_at_root("input", root, input.is_some())?;
        let (input, counts) = input.filter(|_| self.rank() == root).unwrap_or((&[], &[]));
        if self.rank() == root {
            args.require_length("counts", counts.len(), self.size())?;
            args.require_length("input", input.len(), args.total_count(counts)?)?;
            args.require_length("output", output.len(), counts[root])?;
        }
        self.scatter_bytes::<T>(OpKind::ScatterV, (as_bytes(input), counts), as_bytes_mut(output), root)
    }

    /// Gathers messages at the root. The counts have been checked already.
    pub(in crate::communicator) fn gather_bytes<T: Element>(
        &self,
        kind: OpKind,
        input: &[u8],
        (output, counts): (&mut [u8], &[usize]),
        root: Rank,
    ) -> Result<()> {
        // Every rank sends its share to the root itself. In a tree, ranks would have to know the
        // lengths of the shares that they forward:
        // docs/decisions/0021-uneven-gathers-count-at-the-root.md.
        let outputs = split_mut(output, counts, size_of::<T>());
        self.move_shares((kind, Collective::Gather), (T::DTYPE, root), &[(0, input)], outputs)
    }

    /// Scatters messages from the root. The counts have been checked already.
    pub(in crate::communicator) fn scatter_bytes<T: Element>(
        &self,
        kind: OpKind,
        (input, counts): (&[u8], &[usize]),
        output: &mut [u8],
        root: Rank,
    ) -> Result<()> {
        let inputs = split(input, counts, size_of::<T>());
        self.move_shares((kind, Collective::Scatter), (T::DTYPE, root), &inputs, vec![output])
    }
}
