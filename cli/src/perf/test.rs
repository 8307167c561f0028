//! The operations that can be measured: their shares, factors and calls.

use unisono::schedule::Collective;
use unisono::{Communicator, Element, Op, Reduction, Result, Scalar};

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Kind {
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

impl Kind {
    pub(crate) fn collective(self) -> Option<Collective> {
        Some(match self {
            Kind::AllReduce => Collective::AllReduce,
            Kind::AllGather => Collective::AllGather,
            Kind::ReduceScatter => Collective::ReduceScatter,
            Kind::Broadcast => Collective::Broadcast,
            Kind::Reduce => Collective::Reduce,
            Kind::Gather => Collective::Gather,
            Kind::Scatter => Collective::Scatter,
            Kind::AllToAll => Collective::AllToAll,
            Kind::Barrier => Collective::Barrier,
            Kind::SendRecv => return None,
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

    /// Whether `size` counts the buffers of all ranks together, as nccl-tests does.
    fn counts_all_ranks(self) -> bool {
        matches!(self, Kind::AllGather | Kind::ReduceScatter | Kind::Gather | Kind::Scatter | Kind::AllToAll)
    }

    /// Elements of one share for a message of `size` bytes.
    pub(super) fn count(self, size: usize, element: usize, ranks: usize) -> usize {
        match self {
            Kind::Barrier => 0,
            _ if self.counts_all_ranks() => (size / ranks / element).max(1),
            _ => (size / element).max(1),
        }
    }

    /// The size that nccl-tests states for shares of `count` elements.
    pub(super) fn size(self, count: usize, element: usize, ranks: usize) -> usize {
        count * element * if self.counts_all_ranks() { ranks } else { 1 }
    }

    /// Bus bandwidth over algorithm bandwidth.
    pub(super) fn bus_factor(self, ranks: usize) -> f64 {
        let ranks = ranks as f64;
        match self {
            Kind::AllReduce => 2.0 * (ranks - 1.0) / ranks,
            _ if self.counts_all_ranks() => (ranks - 1.0) / ranks,
            _ => 1.0,
        }
    }

    /// Bytes that all ranks together must read from and write to memory at least, for a size of `size`
    /// bytes, when every input is read once and every output written once.
    pub(super) fn fewest_bytes(self, size: usize, ranks: usize, in_place: bool) -> usize {
        match self {
            Kind::AllReduce | Kind::SendRecv => 2 * ranks * size,
            Kind::AllGather | Kind::ReduceScatter => (ranks + 1) * size,
            Kind::AllToAll => 2 * ranks * size,
            // In place, the root has it already.
            Kind::Broadcast => (ranks + usize::from(!in_place)) * size,
            Kind::Reduce => (ranks + 1) * size,
            Kind::Gather | Kind::Scatter => 2 * size,
            Kind::Barrier => 0,
        }
    }

    /// Bytes that must travel between ranks at least, all of them together, where none reaches the memory of
    /// another.
    pub(super) fn fewest_bytes_sent(self, size: usize, ranks: usize) -> usize {
        match self {
            Kind::AllReduce => 2 * (ranks - 1) * size,
            Kind::AllGather | Kind::ReduceScatter | Kind::AllToAll => (ranks - 1) * size,
            Kind::Broadcast | Kind::Reduce => (ranks - 1) * size,
            Kind::Gather | Kind::Scatter => (ranks - 1) * size / ranks,
            Kind::SendRecv => ranks * size,
            Kind::Barrier => 0,
        }
    }

    /// Whether the results of an operation in place are not the inputs of the same operation again.
    pub(super) fn consumes(self) -> bool {
        self.reduces() || self == Kind::AllToAll
    }

    /// Whether an in-place form exists.
    pub(crate) fn has_in_place(self) -> bool {
        !matches!(self, Kind::SendRecv | Kind::Barrier)
    }
}

/// One operation with its parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Test {
    pub(crate) kind: Kind,
    pub(crate) op: Op,
    pub(crate) root: usize,
}

impl Test {
    pub(crate) fn new(kind: Kind, op: Op, root: usize) -> Self {
        Self { kind, op, root }
    }

    /// Shares of (input, output) at `rank`.
    pub(crate) fn shares(&self, ranks: usize, rank: usize) -> (usize, usize) {
        self.kind.collective().map_or((1, 1), |collective| collective.shares(ranks, self.root, rank))
    }

    /// The last rank that has a result.
    pub(super) fn witness(&self, ranks: usize) -> usize {
        let last = (0..ranks).rev().find(|&rank| self.shares(ranks, rank).1 > 0);
        last.unwrap_or(ranks - 1)
    }

    /// Factor of a pre-multiplied sum at `rank`.
    pub(super) fn factor(rank: usize) -> i64 {
        1 + rank as i64 % 2
    }

    /// The reduction as `rank` gives it.
    pub(crate) fn reduction<T: Element>(&self, rank: usize) -> Reduction {
        let factor = Self::factor(rank);
        match self.op {
            Op::Sum => Reduction::Sum,
            Op::Prod => Reduction::Prod,
            Op::Min => Reduction::Min,
            Op::Max => Reduction::Max,
            Op::Avg => Reduction::Avg,
            Op::PreMulSum if T::DTYPE.is_float() => Reduction::PreMulSum(Scalar::Float(factor as f64)),
            Op::PreMulSum => Reduction::PreMulSum(Scalar::Int(factor)),
        }
    }

    /// Calls it from `input` into `output`.
    pub(crate) fn call<T: Element>(&self, comm: &Communicator, input: &[T], output: &mut [T]) -> Result<()> {
        let (rank, ranks, root) = (comm.rank(), comm.ranks(), self.root);
        let (at_root, reduction) = (rank == root, self.reduction::<T>(rank));
        match self.kind {
            Kind::AllReduce => comm.all_reduce_into(input, output, reduction),
            Kind::AllGather => comm.all_gather(input, output),
            Kind::ReduceScatter => comm.reduce_scatter(input, output, reduction),
            Kind::Broadcast => comm.broadcast_into(at_root.then_some(input), output, root),
            Kind::Reduce => comm.reduce_into(input, at_root.then_some(output), reduction, root),
            Kind::Gather => comm.gather(input, at_root.then_some(output), root),
            Kind::Scatter => comm.scatter(at_root.then_some(input), output, root),
            Kind::AllToAll => comm.all_to_all(input, output),
            Kind::SendRecv => comm.send_recv(input, (rank + 1) % ranks, output, (rank + ranks - 1) % ranks),
            Kind::Barrier => comm.barrier(),
        }
    }

    /// Calls it in place: the input lies at [`Test::own_place`] of `buffer`.
    pub(crate) fn call_in_place<T: Element>(&self, comm: &Communicator, buffer: &mut [T]) -> Result<()> {
        let reduction = self.reduction::<T>(comm.rank());
        match self.kind {
            Kind::AllReduce => comm.all_reduce(buffer, reduction),
            Kind::AllGather => comm.all_gather_in_place(buffer),
            Kind::ReduceScatter => comm.reduce_scatter_in_place(buffer, reduction),
            Kind::Broadcast => comm.broadcast(buffer, self.root),
            Kind::Reduce => comm.reduce(buffer, reduction, self.root),
            Kind::Gather => comm.gather_in_place(buffer, self.root),
            Kind::Scatter => comm.scatter_in_place(buffer, self.root),
            Kind::AllToAll => comm.all_to_all_in_place(buffer),
            Kind::SendRecv | Kind::Barrier => Ok(()),
        }
    }

    /// Where in an in-place buffer (input, output) begin, in shares.
    pub(crate) fn own_place(&self, rank: usize) -> (usize, usize) {
        let at_root = rank == self.root;
        match self.kind {
            Kind::AllGather => (rank, 0),
            Kind::Gather if at_root => (rank, 0),
            Kind::ReduceScatter => (0, rank),
            Kind::Scatter if at_root => (0, rank),
            _ => (0, 0),
        }
    }
}
