//! Groups of ranks as threads over every transport, and a naive reference for every collective.

#![allow(dead_code)] // each test crate uses only a part

pub(crate) mod mutants;

use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr};
use unisono::schedule::{Collective, PeerAccess};
use unisono::{Communicator, Config, Element, ReduceKind, ReduceOp, Scalar, Transport, UniqueId};

/// Connection between the ranks of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum World {
    Threads,
    Shm,
    Tcp,
    /// Connections over TCP, with encryption.
    Encrypted,
}

impl World {
    /// Transports that all tests run over; encryption has tests of its own.
    pub(crate) const ALL: [World; 3] = [World::Threads, World::Shm, World::Tcp];

    /// Runs `body` on every rank of a new world. Returns the results by rank.
    pub(crate) fn run<R: Send>(
        self,
        ranks: usize,
        config: &Config,
        body: impl Fn(Communicator) -> R + Sync,
    ) -> Vec<R> {
        let comms = self.communicators(ranks, config);
        std::thread::scope(|scope| {
            let body = &body;
            let threads: Vec<_> = comms.into_iter().map(|comm| scope.spawn(move || body(comm))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
        })
    }

    /// Returns the kinds of access that ranks have with ordinary buffers.
    pub(crate) fn peer_access(self) -> PeerAccess {
        if matches!(self, World::Tcp | World::Encrypted) { PeerAccess::TwoSided } else { PeerAccess::Window }
    }

    /// Returns the communicators of a new world, by rank.
    pub(crate) fn communicators(self, ranks: usize, config: &Config) -> Vec<Communicator> {
        let transport = match self {
            World::Threads => return Communicator::builder().config(config).local(ranks).expect("threads"),
            World::Shm => Transport::Shm,
            World::Tcp | World::Encrypted => Transport::Tcp,
        };
        let encryption = self == World::Encrypted;
        let config = config.clone().with_transport(transport).with_encryption(encryption);
        let id = UniqueId::new(IpAddr::V4(Ipv4Addr::LOCALHOST)).expect("an id");
        std::thread::scope(|scope| {
            let (id, config) = (&id, &config);
            let join = |rank| scope.spawn(move || Communicator::join(id, rank, ranks, config));
            let threads: Vec<_> = (0..ranks).map(join).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic").expect("join")).collect()
        })
    }
}

/// Returns the input of `rank` at `index`: small enough that every reduction is exact in every type
/// and order.
pub(crate) fn contribution(op: Option<ReduceKind>, ranks: usize, rank: usize, index: usize) -> f64 {
    let turn = (index + rank) % ranks;
    match op {
        Some(ReduceKind::Prod) if turn < 3 => 2.0,
        Some(ReduceKind::Prod) => 1.0,
        Some(ReduceKind::Min | ReduceKind::Max) => ((index * 5 + rank * 7) % 13) as f64,
        // Two ranks contribute, so that even eight bits hold the sum.
        Some(ReduceKind::Avg) if turn < 2 => ranks as f64,
        Some(_) if turn < 2 => 1.0 + ((index / 3 + rank) % 3) as f64,
        Some(_) => 0.0,
        None => ((index * 3 + rank * 11) % 16) as f64,
    }
}

/// Returns the factor of a pre-multiplied sum at `rank`.
pub(crate) fn factor(rank: usize) -> f64 {
    1.0 + (rank % 2) as f64
}

/// Returns the reduction of `op` as `rank` gives it.
pub(crate) fn reduction(op: ReduceKind, is_float: bool, rank: usize) -> ReduceOp {
    match op {
        ReduceKind::PreMulSum if is_float => ReduceOp::PreMulSum(Scalar::Float(factor(rank))),
        ReduceKind::PreMulSum => ReduceOp::PreMulSum(Scalar::Int(factor(rank) as i64)),
        op => ReduceOp::of_kind(op).expect("own functions have tests of their own"),
    }
}

/// Returns the reduced value at `index`.
pub(crate) fn reduced(op: ReduceKind, ranks: usize, index: usize) -> f64 {
    combined(op, ranks, 0..ranks, index)
}

/// Returns the value at `index` that the ranks of `among` make together.
fn combined(op: ReduceKind, ranks: usize, among: std::ops::Range<usize>, index: usize) -> f64 {
    let contributions = among.map(|rank| (rank, contribution(Some(op), ranks, rank, index)));
    match op {
        ReduceKind::Sum => contributions.map(|(_, value)| value).sum(),
        ReduceKind::Prod => contributions.map(|(_, value)| value).product(),
        ReduceKind::Min => contributions.map(|(_, value)| value).fold(f64::INFINITY, f64::min),
        ReduceKind::Max => contributions.map(|(_, value)| value).fold(f64::NEG_INFINITY, f64::max),
        ReduceKind::Avg => contributions.map(|(_, value)| value).sum::<f64>() / ranks as f64,
        ReduceKind::PreMulSum => contributions.map(|(rank, value)| value * factor(rank)).sum(),
        _ => unreachable!("{op} has tests of its own"),
    }
}

/// One collective call to check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) collective: Collective,
    pub(crate) op: ReduceKind,
    pub(crate) root: usize,
    pub(crate) count: usize,
    pub(crate) in_place: bool,
}

/// Returns the input of `rank` in `case`, and its expected output.
pub(crate) fn input_and_expected<T: Element>(case: Case, ranks: usize, rank: usize) -> (Vec<T>, Vec<f64>) {
    let Case { collective, root, count, .. } = case;
    let (input_shares, output_shares) = collective.shares(ranks, root, rank);
    let op = collective.reduces().then_some(case.op);
    let value = |index| T::from_f64(contribution(op, ranks, rank, index));
    let input = (0..input_shares * count).map(value).collect();
    (input, (0..output_shares * count).map(|index| expected(case, ranks, rank, index)).collect())
}

/// Calls the collective of `case` and compares every element of the result, guard elements
/// included.
pub(crate) fn exercise<T: Element + Debug>(comm: &Communicator, case: Case) {
    let (rank, ranks) = (comm.rank(), comm.size());
    let (input, expected) = input_and_expected::<T>(case, ranks, rank);
    if case.collective.is_scan() && case.op == ReduceKind::Avg {
        let refused = call(comm, case, &input, &mut vec![T::default(); expected.len()]).unwrap_err();
        return assert!(
            refused.is_invalid_usage() && refused.to_string().contains("no average"),
            "{refused}"
        );
    }
    let poison = T::from_f64(5.0);
    let mut buffer = vec![poison; expected.len().max(input.len()) + 2 * GUARD];
    let inner = GUARD..buffer.len() - GUARD;
    let (result, offset) = if case.in_place {
        call_in_place(comm, case, &input, &mut buffer[inner.clone()])
    } else {
        (call(comm, case, &input, &mut buffer[GUARD..GUARD + expected.len()]), 0)
    };
    result.unwrap_or_else(|error| panic!("{case:?} at rank {rank}: {error}"));
    for (index, &expected) in expected.iter().enumerate() {
        let found = buffer[GUARD + offset + index];
        assert_eq!(found, T::from_f64(expected), "{case:?} at rank {rank} of {ranks}, element {index}");
    }
    let guards = buffer[..GUARD].iter().chain(&buffer[inner.end..]);
    assert!(guards.into_iter().all(|guard| *guard == poison), "{case:?} at rank {rank} wrote outside");
}

/// Number of guard elements on either side of a buffer.
const GUARD: usize = 17;

/// Returns the value at `index` of the output of `rank`.
pub(crate) fn expected(case: Case, ranks: usize, rank: usize, index: usize) -> f64 {
    let (share, offset) = (index / case.count.max(1), index % case.count.max(1));
    let input_of = |rank, index| contribution(None, ranks, rank, index);
    match case.collective {
        Collective::AllReduce | Collective::Reduce => reduced(case.op, ranks, index),
        Collective::ReduceScatter => reduced(case.op, ranks, rank * case.count + index),
        Collective::AllGather | Collective::Gather => input_of(share, offset),
        Collective::Broadcast => input_of(case.root, index),
        Collective::Scatter => input_of(case.root, rank * case.count + index),
        Collective::AllToAll => input_of(share, rank * case.count + offset),
        Collective::Barrier => 0.0,
        Collective::Scan => combined(case.op, ranks, 0..rank + 1, index),
        Collective::ExScan => combined(case.op, ranks, 0..rank, index),
    }
}

/// Calls the collective of `case`, out of place.
pub(crate) fn call<T: Element>(
    comm: &Communicator,
    case: Case,
    input: &[T],
    output: &mut [T],
) -> unisono::Result<()> {
    let (root, at_root) = (case.root, comm.rank() == case.root);
    let reduction = reduction(case.op, T::DTYPE.is_float(), comm.rank());
    match case.collective {
        Collective::AllReduce => comm.all_reduce_into(input, output, reduction),
        Collective::AllGather => comm.all_gather(input, output),
        Collective::ReduceScatter => comm.reduce_scatter(input, output, reduction),
        Collective::Broadcast => comm.broadcast_into(at_root.then_some(input), output, root),
        Collective::Reduce => comm.reduce_into(input, at_root.then_some(output), reduction, root),
        Collective::Gather => comm.gather(input, at_root.then_some(output), root),
        Collective::Scatter => comm.scatter(at_root.then_some(input), output, root),
        Collective::AllToAll => comm.all_to_all(input, output),
        Collective::Barrier => comm.barrier(),
        Collective::Scan => comm.scan_into(input, output, reduction),
        Collective::ExScan => comm.exscan_into(input, output, reduction),
    }
}

/// Calls the collective in place. Returns the outcome, and the offset of the output in the buffer.
fn call_in_place<T: Element>(
    comm: &Communicator,
    case: Case,
    input: &[T],
    buffer: &mut [T],
) -> (unisono::Result<()>, usize) {
    let (rank, root, count) = (comm.rank(), case.root, case.count);
    let reduction = reduction(case.op, T::DTYPE.is_float(), rank);
    let own_offset = rank * count;
    match case.collective {
        Collective::AllReduce => {
            buffer.copy_from_slice(input);
            (comm.all_reduce(buffer, reduction), 0)
        }
        Collective::AllGather => {
            buffer[own_offset..own_offset + count].copy_from_slice(input);
            (comm.all_gather_in_place(buffer), 0)
        }
        Collective::ReduceScatter => {
            buffer.copy_from_slice(input);
            (comm.reduce_scatter_in_place(buffer, reduction), own_offset)
        }
        Collective::Broadcast => {
            buffer[..input.len()].copy_from_slice(input);
            (comm.broadcast(buffer, root), 0)
        }
        Collective::Reduce => {
            buffer.copy_from_slice(input);
            let ended = comm.reduce(buffer, reduction, root);
            assert!(rank == root || buffer[..] == *input, "reduce changed the buffer of rank {rank}");
            (ended, 0)
        }
        Collective::Gather => {
            let offset = if rank == root { own_offset } else { 0 };
            buffer[offset..offset + count].copy_from_slice(input);
            (comm.gather_in_place(buffer, root), 0)
        }
        Collective::Scatter => {
            buffer[..input.len()].copy_from_slice(input);
            (comm.scatter_in_place(buffer, root), if rank == root { own_offset } else { 0 })
        }
        Collective::AllToAll => {
            buffer.copy_from_slice(input);
            (comm.all_to_all_in_place(buffer), 0)
        }
        Collective::Barrier => (comm.barrier(), 0),
        Collective::Scan => {
            buffer.copy_from_slice(input);
            (comm.scan(buffer, reduction), 0)
        }
        Collective::ExScan => {
            buffer.copy_from_slice(input);
            let ended = comm.exscan(buffer, reduction);
            assert!(rank > 0 || buffer[..] == *input, "exscan changed the buffer of rank 0");
            (ended, 0)
        }
    }
}
