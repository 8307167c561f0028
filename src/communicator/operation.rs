//! Collectives whose kind and element type are values, for bindings to other languages.

use crate::communicator::Communicator;
use crate::engine::{Buffers, Job};
use crate::error::Result;
use crate::reduce_op::ReduceOp;
use crate::schedule::{Collective, Rank};
use unisono_cuda::DType;

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
    /// The root. Ignored by collectives without a root.
    pub root: Rank,
    /// Number of elements of one share; see [`Collective::shares`].
    pub count: usize,
}

/// The memory of an [`Operation`], as bytes. It need not be aligned to the elements.
#[derive(Debug)]
pub enum OpBuffers<'a> {
    /// Input and output do not overlap. A rank that has no input, or no output, may give any slice
    /// in its place.
    Separate {
        /// The shares of the input, one after the other.
        input: &'a [u8],
        /// The shares of the output, one after the other.
        output: &'a mut [u8],
    },
    /// The longer of input and output. The shorter one is this rank's share of it, as in NCCL.
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
        let root = if collective.has_root() { root } else { 0 };
        Job::even_of(collective, dtype, reduction, root, count, buffers)
    }
}

impl Communicator {
    /// Runs a collective that is described by values.
    ///
    /// The result is that of the typed method of the collective, such as
    /// [`Communicator::all_reduce`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUsage`](crate::ErrorKind::InvalidUsage) if a length is not that of the
    /// shares, if a reduction is missing or too much, or if there is no such root. Otherwise as
    /// the typed methods.
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
                if operation.collective == Collective::AllToAll {
                    return self.with_input_aside(buffer, |engine, buffers| {
                        engine.collective(&mut operation.job(buffers))
                    });
                }
                let own = self.rank() * share;
                let (input_at, output_at) = match inputs.cmp(&outputs) {
                    std::cmp::Ordering::Less if inputs > 0 => (own, 0),
                    std::cmp::Ordering::Greater if outputs > 0 => (0, own),
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
        if collective.reduces() != reduction.is_some() {
            let what = if reduction.is_some() { "it takes no reduction" } else { "it needs a reduction" };
            return Err(args.invalid(what.to_owned()));
        }
        if let Some(reduction) = reduction.filter(|_| collective.is_scan()) {
            args.require_prefix_op(reduction)?;
        }
        let fits =
            |share: &usize| share.checked_mul(self.size()).is_some_and(|all| all <= isize::MAX as usize);
        let share = count.checked_mul(dtype.size()).filter(fits);
        share
            .ok_or_else(|| args.invalid(format!("{count} elements of {dtype} are more than memory can hold")))
    }
}
