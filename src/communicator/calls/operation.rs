//! Collectives whose kind and element type are given as values, for bindings to other languages.

use crate::communicator::Communicator;
use crate::communicator::calls::counts::{digest_words, displacements};
use crate::engine::{Buffers, Job, UnevenCall};
use crate::error::Result;
use crate::op_desc::OpKind;
use crate::reduce_op::ReduceOp;
use crate::schedule::{Collective, Rank};
use unisono_reducers::DType;

/// Describes a collective by values instead of by a method and a type.
///
/// All ranks must run equal operations, as with the typed methods.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Operation {
    /// The collective.
    pub collective: Collective,
    /// The type of the elements.
    pub dtype: DType,
    /// The reduction, if the collective reduces.
    pub reduction: Option<ReduceOp>,
    /// The root. Collectives without a root ignore it.
    pub root: Rank,
    /// Number of elements of one share. See [`Collective::shares`].
    pub count: usize,
}

/// The memory of an [`Operation`], as bytes. It need not be aligned to the elements.
#[derive(Debug)]
pub enum OpBuffers<'a> {
    /// Input and output do not overlap. A rank that needs no input, or no output, may give any
    /// slice for it.
    Separate {
        /// The shares of the input, one after the other.
        input: &'a [u8],
        /// The shares of the output, one after the other.
        output: &'a mut [u8],
    },
    /// The longer of input and output. The shorter one is this rank's share of this buffer, as in
    /// NCCL.
    InPlace(&'a mut [u8]),
}

impl Operation {
    /// Creates an operation on `count` elements a share, without a reduction and with root 0.
    pub fn new(collective: Collective, dtype: DType, count: usize) -> Self {
        Self { collective, dtype, reduction: None, root: 0, count }
    }

    /// Returns the same operation with a reduction.
    pub fn with_reduction(self, reduction: ReduceOp) -> Self {
        Self { reduction: Some(reduction), ..self }
    }

    /// Returns the same operation with another root.
    pub fn with_root(self, root: Rank) -> Self {
        Self { root, ..self }
    }

    /// Returns the operation with its memory.
    fn job<'b>(&self, buffers: Buffers<'b>) -> Job<'b> {
        let Self { collective, dtype, reduction, root, count } = *self;
        // Ranks compare the root, and a caller may leave any number in a field that the collective
        // ignores.
        let root = if collective.has_root() { root } else { 0 };
        Job::even_of(collective, dtype, reduction, root, count, buffers)
    }
}

/// Describes an all_gather or a reduce_scatter whose shares have different lengths.
///
/// All ranks must run equal operations with equal counts, as with the typed methods.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct UnevenOperation<'c> {
    /// [`Collective::AllGather`] or [`Collective::ReduceScatter`].
    pub collective: Collective,
    /// The type of the elements.
    pub dtype: DType,
    /// The reduction of a reduce_scatter.
    pub reduction: Option<ReduceOp>,
    /// Number of elements of each rank's share.
    pub counts: &'c [usize],
}

impl<'c> UnevenOperation<'c> {
    /// Creates an all_gather to which rank i gives `counts[i]` elements.
    pub fn all_gather(dtype: DType, counts: &'c [usize]) -> Self {
        Self { collective: Collective::AllGather, dtype, reduction: None, counts }
    }

    /// Creates a reduce_scatter from which rank i gets `counts[i]` elements.
    pub fn reduce_scatter(dtype: DType, counts: &'c [usize], reduction: ReduceOp) -> Self {
        Self { collective: Collective::ReduceScatter, dtype, reduction: Some(reduction), counts }
    }

    /// Returns the kind of the call, or `None` if the collective has no uneven form.
    fn kind(&self) -> Option<OpKind> {
        match self.collective {
            Collective::AllGather => Some(OpKind::AllGatherV),
            Collective::ReduceScatter => Some(OpKind::ReduceScatterV),
            _ => None,
        }
    }
}

impl Communicator {
    /// Runs a collective that is described by values and whose shares have different lengths.
    ///
    /// The result is the same as that of [`Communicator::all_gather_v`] or
    /// [`Communicator::reduce_scatter_v`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUsage`](crate::ErrorKind::InvalidUsage) for any other collective, if a
    /// buffer does not have the length of its shares, or if a reduction is missing or not allowed.
    /// Other errors are those of the typed method. After an error, the output or the buffer in
    /// place is [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```
    /// # use unisono::{Communicator, DType, OpBuffers, ReduceOp, UnevenOperation};
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let mut buffer = vec![1u8, 2, 3];
    /// let sum = UnevenOperation::reduce_scatter(DType::U8, &[1, 2], ReduceOp::Sum);
    /// comm.run_uneven_operation(&sum, OpBuffers::InPlace(&mut buffer)).unwrap();
    /// match comm.rank() {
    ///     0 => assert_eq!(buffer[..1], [2]),
    ///     _ => assert_eq!(buffer[1..], [4, 6]),
    /// }
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn run_uneven_operation(
        &self,
        operation: &UnevenOperation<'_>,
        buffers: OpBuffers<'_>,
    ) -> Result<()> {
        let UnevenOperation { collective, dtype, reduction, counts } = *operation;
        let Some(kind) = operation.kind() else {
            let what = "shares of different lengths by values are for all_gather and reduce_scatter";
            return Err(self.arg_check(collective).invalid(what.to_owned()));
        };
        let args = self.arg_check(kind);
        args.require_reduction(collective, reduction)?;
        args.require_length("counts", counts.len(), self.size())?;
        let total = args.total_bytes(counts, dtype)?;
        let places = displacements(counts, dtype.size());
        let (own_offset, own_bytes) = places[self.rank()];
        let gathers = collective == Collective::AllGather;
        let buffers = match buffers {
            OpBuffers::Separate { input, output } => {
                let (input_bytes, output_bytes) =
                    if gathers { (own_bytes, total) } else { (total, own_bytes) };
                args.require_bytes("input", input.len(), input_bytes)?;
                args.require_bytes("output", output.len(), output_bytes)?;
                Buffers::separate(input, output)
            }
            OpBuffers::InPlace(buffer) => {
                args.require_bytes("buffer", buffer.len(), total)?;
                let (input_at, output_at) = if gathers { (own_offset, 0) } else { (0, own_offset) };
                Buffers::in_place(buffer, input_at, output_at)
            }
        };
        let (rank, digest, places) = (self.rank(), digest_words(counts), &places);
        let call = UnevenCall { kind, collective, dtype, reduction, places, rank, digest };
        self.run(Job::uneven(call, buffers))
    }

    /// Runs a collective that is described by values.
    ///
    /// The result is the same as that of the typed method of the collective, such as
    /// [`Communicator::all_reduce`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUsage`](crate::ErrorKind::InvalidUsage) if a buffer does not have the
    /// length of its shares, if a reduction is missing or not allowed, or if there is no such root.
    /// Other errors are those of the typed method. After an error, the output or the buffer in
    /// place is [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```
    /// use unisono::schedule::Collective;
    /// use unisono::{Communicator, DType, OpBuffers, Operation, Sum};
    ///
    /// # for comm in Communicator::local(1)? {
    /// let operation = Operation::new(Collective::AllReduce, DType::I32, 3).with_reduction(Sum);
    /// let mut bytes = [1i32, 2, 3].map(i32::to_ne_bytes).concat();
    /// comm.run_operation(&operation, OpBuffers::InPlace(&mut bytes))?;
    /// # }
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn run_operation(&self, operation: &Operation, buffers: OpBuffers<'_>) -> Result<()> {
        let share = self.checked_share_bytes(operation)?;
        let args = self.arg_check(operation.collective);
        let (inputs, outputs) = operation.collective.shares(self.size(), operation.root, self.rank());
        match buffers {
            OpBuffers::Separate { input, output } => {
                let (input, output) =
                    (if inputs > 0 { input } else { &[] }, if outputs > 0 { output } else { &mut [] });
                args.require_bytes("input", input.len(), inputs * share)?;
                args.require_bytes("output", output.len(), outputs * share)?;
                self.run(operation.job(Buffers::separate(input, output)))
            }
            OpBuffers::InPlace(buffer) => {
                args.require_bytes("buffer", buffer.len(), inputs.max(outputs) * share)?;
                // Every share of the buffer is input and output, so the output would overwrite
                // shares that are not sent yet.
                if operation.collective == Collective::AllToAll {
                    return self.with_input_aside(buffer, |engine, buffers| {
                        engine.collective(&mut operation.job(buffers))
                    });
                }
                let own_offset = self.rank() * share;
                let (input_at, output_at) = match inputs.cmp(&outputs) {
                    std::cmp::Ordering::Less if inputs > 0 => (own_offset, 0),
                    std::cmp::Ordering::Greater if outputs > 0 => (0, own_offset),
                    _ => (0, 0),
                };
                self.run(operation.job(Buffers::in_place(buffer, input_at, output_at)))
            }
        }
    }

    /// Returns the bytes of one share of an operation that this communicator can run.
    fn checked_share_bytes(&self, operation: &Operation) -> Result<usize> {
        let Operation { collective, dtype, reduction, root, count } = *operation;
        let args = self.arg_check(collective);
        if collective.has_root() {
            args.require_rank("root", root)?;
        }
        args.require_reduction(collective, reduction)?;
        if let Some(reduction) = reduction.filter(|_| collective.is_scan()) {
            args.require_prefix_op(reduction)?;
        }
        let fits =
            |share: &usize| share.checked_mul(self.size()).is_some_and(|bytes| bytes <= isize::MAX as usize);
        let share = count.checked_mul(dtype.size()).filter(fits);
        share.ok_or_else(|| args.too_many(count, dtype))
    }
}
