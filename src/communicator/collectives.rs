//! The blocking operations, typed.
//!
//! `input` and `output` of every operation are cut into shares as NCCL and MPI
//! cut them; a wrong length is [`ErrorKind::InvalidUsage`](crate::ErrorKind::InvalidUsage)
//! and leaves the communicator unharmed. Errors of the world poison it.

use super::Communicator;
use crate::engine::{Buffers, Job, Shares};
use crate::error::{ErrorKind, Result};
use crate::op_desc::OpKind;
use crate::reduce_op::ReduceOp;
use crate::schedule::{Collective, Rank};
use unisono_cuda::{Element, as_bytes, as_bytes_mut};

impl Communicator {
    /// Reduces `buffer` over all ranks; every rank gets the result in place.
    ///
    /// # Errors
    /// See the module: misuse leaves the communicator good, all else poisons it.
    pub fn all_reduce<T: Element>(&self, buffer: &mut [T], reduction: ReduceOp) -> Result<()> {
        let count = buffer.len();
        let buffers = Buffers::in_place(as_bytes_mut(buffer), 0, 0);
        self.run(Job::even::<T>(Collective::AllReduce, Some(reduction), 0, count, buffers))
    }

    /// Reduces `input` over all ranks; every rank gets the result in `output`, equally long. The two do not overlap:
    ///
    /// ```compile_fail,E0502
    /// # use unisono::{Communicator, Sum};
    /// # let comm = Communicator::local(1).unwrap().remove(0);
    /// let mut gradients = vec![1.0f32; 1000];
    /// comm.all_reduce_into(&gradients, &mut gradients, Sum);
    /// ```
    ///
    /// # Errors
    /// See [`Communicator::all_reduce`].
    pub fn all_reduce_into<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        reduction: ReduceOp,
    ) -> Result<()> {
        let count = output.len();
        self.arg_check(Collective::AllReduce).require_length("input", input.len(), count)?;
        let buffers = Buffers::separate(as_bytes(input), as_bytes_mut(output));
        self.run(Job::even::<T>(Collective::AllReduce, Some(reduction), 0, count, buffers))
    }

    /// Puts the inputs of all ranks, equally long, one after the other into every rank's `output`.
    ///
    /// # Errors
    /// See [`Communicator::all_reduce`].
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let count = input.len();
        self.arg_check(Collective::AllGather).require_length("output", output.len(), count * self.size())?;
        let buffers = Buffers::separate(as_bytes(input), as_bytes_mut(output));
        self.run(Job::even::<T>(Collective::AllGather, None, 0, count, buffers))
    }

    /// Gathers what ranks must know of each other to split. Errors name the split, which is the call
    /// that the user made.
    pub(super) fn all_gather_for_split<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let count = input.len();
        let shape = ShareLayout { kind: Some(OpKind::Split), ..even_shares::<T>(count, count) };
        let buffers = Buffers::separate(as_bytes(input), as_bytes_mut(output));
        self.execute(Collective::AllGather, None, 0, shape, buffers)
    }

    /// As [`Communicator::all_gather`] with this rank's input already in its place in `buffer`.
    ///
    /// # Errors
    /// See [`Communicator::all_reduce`].
    pub fn all_gather_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<()> {
        let count = self.arg_check(Collective::AllGather).share_count(buffer.len())?;
        let buffers = Buffers::in_place(as_bytes_mut(buffer), self.rank() * count * size_of::<T>(), 0);
        self.run(Job::even::<T>(Collective::AllGather, None, 0, count, buffers))
    }

    /// Reduces `input` over all ranks; rank i gets the i-th share of the result in `output`.
    ///
    /// # Errors
    /// See [`Communicator::all_reduce`].
    pub fn reduce_scatter<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        reduction: ReduceOp,
    ) -> Result<()> {
        let count = output.len();
        self.arg_check(Collective::ReduceScatter).require_length(
            "input",
            input.len(),
            count * self.size(),
        )?;
        let buffers = Buffers::separate(as_bytes(input), as_bytes_mut(output));
        self.run(Job::even::<T>(Collective::ReduceScatter, Some(reduction), 0, count, buffers))
    }

    /// As [`Communicator::reduce_scatter`]; the result replaces this rank's share of `buffer`.
    /// The other shares are left as they were.
    ///
    /// # Errors
    /// See [`Communicator::all_reduce`].
    pub fn reduce_scatter_in_place<T: Element>(&self, buffer: &mut [T], reduction: ReduceOp) -> Result<()> {
        let count = self.arg_check(Collective::ReduceScatter).share_count(buffer.len())?;
        let buffers = Buffers::in_place(as_bytes_mut(buffer), 0, self.rank() * count * size_of::<T>());
        self.run(Job::even::<T>(Collective::ReduceScatter, Some(reduction), 0, count, buffers))
    }

    /// Gives every rank the contents of `root`'s `buffer`.
    ///
    /// # Errors
    /// See [`Communicator::all_reduce`].
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: Rank) -> Result<()> {
        self.arg_check(Collective::Broadcast).require_rank("root", root)?;
        let count = buffer.len();
        let buffers = Buffers::in_place(as_bytes_mut(buffer), 0, 0);
        self.run(Job::even::<T>(Collective::Broadcast, None, root, count, buffers))
    }

    /// As [`Communicator::broadcast`] from `input`, which only the root gives, into everybody's `output`.
    ///
    /// # Errors
    /// See [`Communicator::all_reduce`].
    pub fn broadcast_into<T: Element>(
        &self,
        input: Option<&[T]>,
        output: &mut [T],
        root: Rank,
    ) -> Result<()> {
        let asked = self.arg_check(Collective::Broadcast);
        asked.require_rank("root", root)?;
        let count = output.len();
        let input = asked.root_input("input", root, input)?;
        asked.require_length_if(self.rank() == root, "input", input.len(), count)?;
        let buffers = Buffers::separate(as_bytes(input), as_bytes_mut(output));
        self.run(Job::even::<T>(Collective::Broadcast, None, root, count, buffers))
    }

    /// Reduces `buffer` over all ranks; the root gets the result in place, the others keep what they have.
    ///
    /// # Errors
    /// See [`Communicator::all_reduce`].
    pub fn reduce<T: Element>(&self, buffer: &mut [T], reduction: ReduceOp, root: Rank) -> Result<()> {
        self.arg_check(Collective::Reduce).require_rank("root", root)?;
        let count = buffer.len();
        let buffers = Buffers::in_place(as_bytes_mut(buffer), 0, 0);
        self.run(Job::even::<T>(Collective::Reduce, Some(reduction), root, count, buffers))
    }

    /// Reduces `input` over all ranks into `output`, which only the root gives.
    ///
    /// # Errors
    /// See [`Communicator::all_reduce`].
    pub fn reduce_into<T: Element>(
        &self,
        input: &[T],
        output: Option<&mut [T]>,
        reduction: ReduceOp,
        root: Rank,
    ) -> Result<()> {
        let asked = self.arg_check(Collective::Reduce);
        asked.require_rank("root", root)?;
        let output = asked.root_output("output", root, output)?;
        asked.require_length_if(self.rank() == root, "output", output.len(), input.len())?;
        let count = input.len();
        let buffers = Buffers::separate(as_bytes(input), as_bytes_mut(output));
        self.run(Job::even::<T>(Collective::Reduce, Some(reduction), root, count, buffers))
    }

    /// Puts the inputs of all ranks, equally long, one after the other into `output`, which only the root gives.
    ///
    /// # Errors
    /// See [`Communicator::all_reduce`].
    pub fn gather<T: Element>(&self, input: &[T], output: Option<&mut [T]>, root: Rank) -> Result<()> {
        let asked = self.arg_check(Collective::Gather);
        asked.require_rank("root", root)?;
        let count = input.len();
        let output = asked.root_output("output", root, output)?;
        asked.require_length_if(self.rank() == root, "output", output.len(), count * self.size())?;
        let buffers = Buffers::separate(as_bytes(input), as_bytes_mut(output));
        self.run(Job::even::<T>(Collective::Gather, None, root, count, buffers))
    }

    /// As [`Communicator::gather`] with the root's own input already in its place in the output. The
    /// root gives the whole `buffer`, the others their share.
    ///
    /// # Errors
    /// See [`Communicator::all_reduce`].
    pub fn gather_in_place<T: Element>(&self, buffer: &mut [T], root: Rank) -> Result<()> {
        let asked = self.arg_check(Collective::Gather);
        asked.require_rank("root", root)?;
        let at_root = self.rank() == root;
        let count = if at_root { asked.share_count(buffer.len())? } else { buffer.len() };
        let own = if at_root { root * count * size_of::<T>() } else { 0 };
        let buffers = Buffers::in_place(as_bytes_mut(buffer), own, 0);
        self.run(Job::even::<T>(Collective::Gather, None, root, count, buffers))
    }

    /// Gives rank i the i-th share of `input`, which only the root gives.
    ///
    /// # Errors
    /// See [`Communicator::all_reduce`].
    pub fn scatter<T: Element>(&self, input: Option<&[T]>, output: &mut [T], root: Rank) -> Result<()> {
        let asked = self.arg_check(Collective::Scatter);
        asked.require_rank("root", root)?;
        let count = output.len();
        let input = asked.root_input("input", root, input)?;
        asked.require_length_if(self.rank() == root, "input", input.len(), count * self.size())?;
        let buffers = Buffers::separate(as_bytes(input), as_bytes_mut(output));
        self.run(Job::even::<T>(Collective::Scatter, None, root, count, buffers))
    }

    /// As [`Communicator::scatter`]; the root gives the whole `buffer` and keeps its share in place, the
    /// others give room for theirs.
    ///
    /// # Errors
    /// See [`Communicator::all_reduce`].
    pub fn scatter_in_place<T: Element>(&self, buffer: &mut [T], root: Rank) -> Result<()> {
        let asked = self.arg_check(Collective::Scatter);
        asked.require_rank("root", root)?;
        let at_root = self.rank() == root;
        let count = if at_root { asked.share_count(buffer.len())? } else { buffer.len() };
        let own = if at_root { root * count * size_of::<T>() } else { 0 };
        let buffers = Buffers::in_place(as_bytes_mut(buffer), 0, own);
        self.run(Job::even::<T>(Collective::Scatter, None, root, count, buffers))
    }

    /// Gives rank i the i-th share of `input`; `output` gets this rank's share from every rank, in order.
    ///
    /// # Errors
    /// See [`Communicator::all_reduce`].
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let asked = self.arg_check(Collective::AllToAll);
        let count = asked.share_count(input.len())?;
        asked.require_length("output", output.len(), input.len())?;
        let buffers = Buffers::separate(as_bytes(input), as_bytes_mut(output));
        self.run(Job::even::<T>(Collective::AllToAll, None, 0, count, buffers))
    }

    /// As [`Communicator::all_to_all`] within one buffer; its contents are copied aside first.
    ///
    /// # Errors
    /// See [`Communicator::all_reduce`].
    pub fn all_to_all_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<()> {
        let count = self.arg_check(Collective::AllToAll).share_count(buffer.len())?;
        let buffer = as_bytes_mut(buffer);
        self.with_engine(|engine| {
            let mut aside = engine.take_temp();
            aside.clear();
            aside.extend_from_slice(buffer);
            let buffers = Buffers::separate(&aside, buffer);
            let ended = engine.collective(&mut Job::even::<T>(Collective::AllToAll, None, 0, count, buffers));
            engine.return_temp(aside);
            ended
        })
    }

    /// Puts the inputs of all ranks one after the other into every rank's `output`; rank i gives `counts[i]`.
    ///
    /// # Errors
    /// See [`Communicator::all_reduce`].
    pub fn all_gather_v<T: Element>(&self, input: &[T], output: &mut [T], counts: &[usize]) -> Result<()> {
        let asked = self.arg_check(OpKind::AllGatherV);
        asked.require_length("counts", counts.len(), self.size())?;
        asked.require_length("input", input.len(), counts[self.rank()])?;
        asked.require_length("output", output.len(), asked.total_count(counts)?)?;
        let table = displacements(counts, size_of::<T>());
        let job = Job {
            kind: OpKind::AllGatherV,
            collective: Collective::AllGather,
            dtype: T::DTYPE,
            reduction: None,
            root: 0,
            count: digest_words(counts),
            input: Shares::Even { bytes: size_of_val(input) },
            output: Shares::Table(&table),
            share_bytes_max: counts.iter().max().map_or(0, |count| count * size_of::<T>()),
            buffers: Buffers::separate(as_bytes(input), as_bytes_mut(output)),
        };
        self.run(job)
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// See [`Communicator::all_reduce`].
    pub fn barrier(&self) -> Result<()> {
        let buffers = Buffers::separate(&[], &mut []);
        self.run(Job::even::<u8>(Collective::Barrier, None, 0, 0, buffers))
    }

    /// Runs one collective when it is this call's turn.
    #[inline]
    fn run(&self, mut job: Job<'_>) -> Result<()> {
        if let Some(op @ ReduceOp::PreMulSum(_)) = job.reduction {
            job.reduction = Some(self.checked_factor(op, job.collective, job.dtype)?);
        }
        self.with_engine(|engine| engine.collective(&mut job))
    }

    /// Returns a pre-multiplied sum with its factor as a number of the elements' type.
    #[cold]
    fn checked_factor(
        &self,
        op: ReduceOp,
        collective: Collective,
        dtype: unisono_cuda::DType,
    ) -> Result<ReduceOp> {
        op.for_dtype(dtype).map_err(|error| match error.kind() {
            ErrorKind::InvalidUsage(what) => self.arg_check(collective).invalid(what.clone()),
            _ => self.attach_rank(error),
        })
    }
}

/// (offset, bytes) of shares that lie one after the other.
pub(crate) fn displacements(counts: &[usize], element: usize) -> Vec<(usize, usize)> {
    let mut offset = 0;
    let place = |&count: &usize| {
        let place = (offset, count * element);
        offset += count * element;
        place
    };
    counts.iter().map(place).collect()
}

/// Many counts as one number that differs when any of them does (FNV-1a over words).
pub(crate) fn digest_words(counts: &[usize]) -> u64 {
    counts
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &count| (hash ^ count as u64).wrapping_mul(0x0100_0000_01b3))
}
