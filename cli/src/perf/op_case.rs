//! The operations that can be measured: their shares, factors and calls.

use clap::ValueEnum;
use unisono::schedule::Collective;
use unisono::{Communicator, Element, ReduceKind, ReduceOp, Result, Scalar};

/// Kind of operation to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum OpKind {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    Reduce,
    Gather,
    Scatter,
    #[value(alias = "alltoall")]
    AllToAll,
    #[value(name = "sendrecv")]
    SendRecv,
    Barrier,
}

impl OpKind {
    /// Returns the kind that measures a collective, if there is one.
    pub(crate) fn of(collective: Collective) -> Option<Self> {
        Self::value_variants().iter().copied().find(|kind| kind.collective() == Some(collective))
    }

    pub(crate) fn collective(self) -> Option<Collective> {
        Some(match self {
            OpKind::AllReduce => Collective::AllReduce,
            OpKind::AllGather => Collective::AllGather,
            OpKind::ReduceScatter => Collective::ReduceScatter,
            OpKind::Broadcast => Collective::Broadcast,
            OpKind::Reduce => Collective::Reduce,
            OpKind::Gather => Collective::Gather,
            OpKind::Scatter => Collective::Scatter,
            OpKind::AllToAll => Collective::AllToAll,
            OpKind::Barrier => Collective::Barrier,
            OpKind::SendRecv => return None,
        })
    }

    pub(crate) fn name(self) -> &'static str {
        self.collective().map_or("sendrecv", Collective::name)
    }

    pub(crate) fn reduces(self) -> bool {
        self.collective().is_some_and(Collective::reduces)
    }

    pub(crate) fn has_root(self) -> bool {
        self.collective().is_some_and(Collective::has_root)
    }

    /// Returns whether `size` counts the buffers of all ranks together, as nccl-tests does.
    fn size_is_total(self) -> bool {
        matches!(
            self,
            OpKind::AllGather | OpKind::ReduceScatter | OpKind::Gather | OpKind::Scatter | OpKind::AllToAll
        )
    }

    /// Elements of one share for a message of `size` bytes.
    pub(super) fn count(self, size: usize, element: usize, ranks: usize) -> usize {
        match self {
            OpKind::Barrier => 0,
            _ if self.size_is_total() => (size / ranks / element).max(1),
            _ => (size / element).max(1),
        }
    }

    /// The size that nccl-tests states for shares of `count` elements.
    pub(super) fn size(self, count: usize, element: usize, ranks: usize) -> usize {
        count * element * if self.size_is_total() { ranks } else { 1 }
    }

    /// Bus bandwidth over algorithm bandwidth.
    pub(super) fn bus_factor(self, ranks: usize) -> f64 {
        let ranks = ranks as f64;
        match self {
            OpKind::AllReduce => 2.0 * (ranks - 1.0) / ranks,
            _ if self.size_is_total() => (ranks - 1.0) / ranks,
            _ => 1.0,
        }
    }

    /// Returns the least bytes that all ranks together read and write: every input once, every
    /// output once.
    pub(super) fn min_memory_bytes(self, size: usize, ranks: usize, in_place: bool) -> usize {
        match self {
            OpKind::AllReduce | OpKind::SendRecv => 2 * ranks * size,
            OpKind::AllGather | OpKind::ReduceScatter => (ranks + 1) * size,
            OpKind::AllToAll => 2 * ranks * size,
            // In place, the root already holds the result.
            OpKind::Broadcast => (ranks + usize::from(!in_place)) * size,
            OpKind::Reduce => (ranks + 1) * size,
            OpKind::Gather | OpKind::Scatter => 2 * size,
            OpKind::Barrier => 0,
        }
    }

    /// Returns the least bytes that all ranks together send where no rank reaches another rank's
    /// memory.
    pub(super) fn min_bytes_sent(self, size: usize, ranks: usize) -> usize {
        match self {
            OpKind::AllReduce => 2 * (ranks - 1) * size,
            OpKind::AllGather | OpKind::ReduceScatter | OpKind::AllToAll => (ranks - 1) * size,
            OpKind::Broadcast | OpKind::Reduce => (ranks - 1) * size,
            OpKind::Gather | OpKind::Scatter => (ranks - 1) * size / ranks,
            OpKind::SendRecv => ranks * size,
            OpKind::Barrier => 0,
        }
    }

    /// Returns whether an in-place result differs from the input of the next operation.
    pub(super) fn overwrites_input(self) -> bool {
        self.reduces() || self == OpKind::AllToAll
    }

    /// Returns whether an in-place form exists.
    pub(crate) fn has_in_place(self) -> bool {
        !matches!(self, OpKind::SendRecv | OpKind::Barrier)
    }
}

/// One operation with its parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpCase {
    pub(crate) kind: OpKind,
    pub(crate) op: ReduceKind,
    pub(crate) root: usize,
}

impl OpCase {
    pub(crate) fn new(kind: OpKind, op: ReduceKind, root: usize) -> Self {
        Self { kind, op, root }
    }

    /// Shares of (input, output) at `rank`.
    pub(crate) fn shares(&self, ranks: usize, rank: usize) -> (usize, usize) {
        self.kind.collective().map_or((1, 1), |collective| collective.shares(ranks, self.root, rank))
    }

    /// The last rank that has a result.
    pub(super) fn checked_rank(&self, ranks: usize) -> usize {
        let last = (0..ranks).rev().find(|&rank| self.shares(ranks, rank).1 > 0);
        last.unwrap_or(ranks - 1)
    }

    /// Factor of a pre-multiplied sum at `rank`.
    pub(super) fn factor(rank: usize) -> i64 {
        1 + rank as i64 % 2
    }

    /// The reduction as `rank` gives it.
    pub(crate) fn reduction<T: Element>(&self, rank: usize) -> ReduceOp {
        let factor = Self::factor(rank);
        match self.op {
            ReduceKind::PreMulSum if T::DTYPE.is_float() => ReduceOp::PreMulSum(Scalar::Float(factor as f64)),
            ReduceKind::PreMulSum => ReduceOp::PreMulSum(Scalar::Int(factor)),
            op => ReduceOp::of_kind(op).expect("the arguments name operations that GPUs know"),
        }
    }

    /// Calls it from `input` into `output`.
    pub(crate) fn call<T: Element>(&self, comm: &Communicator, input: &[T], output: &mut [T]) -> Result<()> {
        let (rank, ranks, root) = (comm.rank(), comm.size(), self.root);
        let (at_root, reduction) = (rank == root, self.reduction::<T>(rank));
        match self.kind {
            OpKind::AllReduce => comm.all_reduce_into(input, output, reduction),
            OpKind::AllGather => comm.all_gather(input, output),
            OpKind::ReduceScatter => comm.reduce_scatter(input, output, reduction),
            OpKind::Broadcast => comm.broadcast_into(at_root.then_some(input), output, root),
            OpKind::Reduce => comm.reduce_into(input, at_root.then_some(output), reduction, root),
            OpKind::Gather => comm.gather(input, at_root.then_some(output), root),
            OpKind::Scatter => comm.scatter(at_root.then_some(input), output, root),
            OpKind::AllToAll => comm.all_to_all(input, output),
            OpKind::SendRecv => comm.send_recv(input, (rank + 1) % ranks, output, (rank + ranks - 1) % ranks),
            OpKind::Barrier => comm.barrier(),
        }
    }

    /// Calls it in place: the input lies at [`OpCase::in_place_offsets`] of `buffer`.
    pub(crate) fn call_in_place<T: Element>(&self, comm: &Communicator, buffer: &mut [T]) -> Result<()> {
        let reduction = self.reduction::<T>(comm.rank());
        match self.kind {
            OpKind::AllReduce => comm.all_reduce(buffer, reduction),
            OpKind::AllGather => comm.all_gather_in_place(buffer),
            OpKind::ReduceScatter => comm.reduce_scatter_in_place(buffer, reduction),
            OpKind::Broadcast => comm.broadcast(buffer, self.root),
            OpKind::Reduce => comm.reduce(buffer, reduction, self.root),
            OpKind::Gather => comm.gather_in_place(buffer, self.root),
            OpKind::Scatter => comm.scatter_in_place(buffer, self.root),
            OpKind::AllToAll => comm.all_to_all_in_place(buffer),
            OpKind::SendRecv | OpKind::Barrier => Ok(()),
        }
    }

    /// Returns the offsets of (input, output) in an in-place buffer, in shares.
    pub(crate) fn in_place_offsets(&self, rank: usize) -> (usize, usize) {
        let at_root = rank == self.root;
        match self.kind {
            OpKind::AllGather => (rank, 0),
            OpKind::Gather if at_root => (rank, 0),
            OpKind::ReduceScatter => (0, rank),
            OpKind::Scatter if at_root => (0, rank),
            _ => (0, 0),
        }
    }
}
