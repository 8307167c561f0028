//! Tests of every collective on GPUs: every algorithm, type and operation, in place and out of
//! place.

use crate::support::{Case, World, input_and_expected, reduction};
use crate::world::{config, ll_config, run, staged_config};
use std::fmt::Debug;
use unisono::device::{DeviceCommunicator, Stream};
use unisono::schedule::{Algorithm, Collective, GroupSpec, PeerAccess, find};
use unisono::{Avg, Config, Element, F8E4M3, F8E5M2, ReduceKind, Sum, bf16, f16};

/// Calls the collective of `case` and compares every element of the result, guard elements
/// included.
pub(crate) fn exercise<T: Element + Debug>(comm: &DeviceCommunicator, stream: &Stream, case: Case) {
    let (rank, ranks) = (comm.rank(), comm.size());
    let (input, wanted) = input_and_expected::<T>(case, ranks, rank);
    let poison = T::from_f64(5.0);
    let length = wanted.len().max(input.len());
    let mut buffer = vec![poison; length + 2 * GUARD];
    let (input_offset, output_offset) =
        if case.in_place { in_place_offsets(&case, ranks, rank) } else { (0, 0) };
    if case.in_place {
        buffer[GUARD + input_offset..][..input.len()].copy_from_slice(&input);
    }
    let mut memory = comm.gpu().upload(&buffer).unwrap();
    let inner = GUARD..GUARD + if case.in_place { length } else { wanted.len() };
    let called = call(comm, stream, case, &input, &mut memory, inner);
    called.unwrap_or_else(|error| panic!("{case:?} at rank {rank}: {error}"));
    comm.synchronize(stream).unwrap_or_else(|error| panic!("{case:?} at rank {rank}: {error}"));
    let found = memory.to_vec(stream).unwrap();
    for (index, &wanted) in wanted.iter().enumerate() {
        let found = found[GUARD + output_offset + index];
        assert_eq!(found, T::from_f64(wanted), "{case:?} at rank {rank} of {ranks}, element {index}");
    }
    let guards = found[..GUARD].iter().chain(&found[GUARD + length..]);
    assert!(guards.into_iter().all(|guard| *guard == poison), "{case:?} at rank {rank} wrote outside");
}

/// Number of guard elements on either side of a buffer.
const GUARD: usize = 17;

/// Returns the offsets of (input, output) in a buffer for both.
fn in_place_offsets(case: &Case, ranks: usize, rank: usize) -> (usize, usize) {
    let own_offset = if ranks > rank { rank * case.count } else { 0 };
    match case.collective {
        Collective::AllGather => (own_offset, 0),
        Collective::ReduceScatter => (0, own_offset),
        Collective::Gather if rank == case.root => (own_offset, 0),
        Collective::Scatter if rank == case.root => (0, own_offset),
        _ => (0, 0),
    }
}

fn call<T: Element>(
    comm: &DeviceCommunicator,
    stream: &Stream,
    case: Case,
    input: &[T],
    memory: &mut unisono::device::Buffer<T>,
    inner: std::ops::Range<usize>,
) -> unisono::Result<()> {
    let (root, at_root) = (case.root, comm.rank() == case.root);
    let reduction = reduction(case.op, T::DTYPE.is_float(), comm.rank());
    let output = &mut memory.view_mut(inner);
    if case.in_place {
        return match case.collective {
            Collective::AllReduce => comm.all_reduce(stream, output, reduction),
            Collective::AllGather => comm.all_gather_in_place(stream, output),
            Collective::ReduceScatter => comm.reduce_scatter_in_place(stream, output, reduction),
            Collective::Broadcast => comm.broadcast(stream, output, root),
            Collective::Reduce => comm.reduce(stream, output, reduction, root),
            Collective::Gather => comm.gather_in_place(stream, output, root),
            Collective::Scatter => comm.scatter_in_place(stream, output, root),
            Collective::AllToAll => comm.all_to_all_in_place(stream, output),
            Collective::Barrier => comm.barrier(stream),
            Collective::Scan | Collective::ExScan => unreachable!("scans run on CPU ranks"),
        };
    }
    let input = &comm.gpu().upload(input).unwrap();
    match case.collective {
        Collective::AllReduce => comm.all_reduce_into(stream, input, output, reduction),
        Collective::AllGather => comm.all_gather(stream, input, output),
        Collective::ReduceScatter => comm.reduce_scatter(stream, input, output, reduction),
        Collective::Broadcast => comm.broadcast_into(stream, at_root.then_some(input), output, root),
        Collective::Reduce => comm.reduce_into(stream, input, at_root.then_some(output), reduction, root),
        Collective::Gather => comm.gather(stream, input, at_root.then_some(output), root),
        Collective::Scatter => comm.scatter(stream, at_root.then_some(input), output, root),
        Collective::AllToAll => comm.all_to_all(stream, input, output),
        Collective::Barrier => comm.barrier(stream),
        Collective::Scan | Collective::ExScan => unreachable!("scans run on CPU ranks"),
    }
}

pub(crate) fn case(collective: Collective, count: usize, in_place: bool) -> Case {
    Case { collective, op: ReduceKind::Sum, root: 0, count, in_place }
}

#[test]
fn ranks_on_one_gpu_reduce() {
    run(2, &config(), |comm, stream| {
        let mut values = comm.gpu().upload(&vec![comm.rank() as f32 + 1.0; 5000]).unwrap();
        comm.all_reduce(&stream, &mut values, Sum).unwrap();
        comm.synchronize(&stream).unwrap();
        assert_eq!(values.to_vec(&stream).unwrap(), vec![3.0; 5000]);
    });
}

#[test]
fn algorithms_are_correct() {
    for (ranks, config) in [(1, config()), (2, config()), (3, config()), (3, ll_config()), (4, config())] {
        run(ranks, &config, |comm, stream| {
            for algorithm in Algorithm::ALL.iter().filter(|row| row.peer_access != PeerAccess::ZeroCopy) {
                if algorithm.collective.is_scan() {
                    let refused = comm.set_algorithm(algorithm.collective, Some(algorithm.name)).unwrap_err();
                    assert!(refused.to_string().contains("on CPU ranks only"), "{refused}");
                    continue;
                }
                let root = if algorithm.collective.has_root() { ranks - 1 } else { 0 };
                let spec = GroupSpec { ranks, root, aggregation: 2 };
                if !(algorithm.supports)(&spec) {
                    continue;
                }
                comm.set_algorithm(algorithm.collective, Some(algorithm.name)).unwrap();
                for (count, in_place) in [(70, true), (9001, false)] {
                    let alone = algorithm.collective == Collective::Barrier;
                    let case = case(algorithm.collective, count, in_place && !alone);
                    exercise::<f32>(&comm, &stream, Case { root, ..case });
                }
                assert_eq!(comm.last_algorithm().map(|row| row.name), Some(algorithm.name));
            }
        });
    }
}

/// Returns the algorithms of all_reduce for ordinary buffers.
fn all_reduce_rows(ranks: usize) -> impl Iterator<Item = &'static Algorithm> {
    let spec = GroupSpec::new(ranks);
    Algorithm::ALL.iter().filter(move |row| {
        row.collective == Collective::AllReduce
            && row.peer_access != PeerAccess::ZeroCopy
            && (row.supports)(&spec)
    })
}

/// Returns numbers of which some are the largest finite one on every rank.
fn at_top_of_range<T: Element>(largest: f64, rank: usize) -> Vec<T> {
    let part = |index: usize| if index.is_multiple_of(3) { 1.0 } else { 1.0 / (1 + rank + index % 7) as f64 };
    (0..301).map(|index| T::from_f64(largest * part(index))).collect()
}

fn averages_at_top_of_range<T: Element + Debug>(ranks: usize, largest: f64, config: &Config) {
    let on_cpu = World::Threads.run(ranks, &Config::default(), |comm| {
        let averages = all_reduce_rows(ranks).map(|row| {
            comm.set_algorithm(row.collective, Some(row.name)).unwrap();
            let mut values = at_top_of_range::<T>(largest, comm.rank());
            comm.all_reduce(&mut values, Avg).unwrap();
            values
        });
        averages.collect::<Vec<_>>()
    });
    run(ranks, config, |comm, stream| {
        for (row, expected) in all_reduce_rows(ranks).zip(&on_cpu[comm.rank()]) {
            comm.set_algorithm(row.collective, Some(row.name)).unwrap();
            let mut values = comm.gpu().upload(&at_top_of_range::<T>(largest, comm.rank())).unwrap();
            comm.all_reduce(&stream, &mut values, Avg).unwrap();
            comm.synchronize(&stream).unwrap();
            let values = values.to_vec(&stream).unwrap();
            assert!(values.iter().all(|value| value.to_f64().is_finite()), "{row:?} of {}", T::DTYPE);
            assert_eq!(&values, expected, "{row:?} of {}", T::DTYPE);
        }
    });
}

/// Partial sums of narrow floats that travel stay in range, with the bits that CPU ranks give.
#[test]
fn averages_at_top_of_range_match_cpu_bits() {
    for (ranks, config) in [(3, config()), (3, ll_config()), (4, config())] {
        averages_at_top_of_range::<f16>(ranks, 65504.0, &config);
        averages_at_top_of_range::<F8E4M3>(ranks, 448.0, &config);
        averages_at_top_of_range::<F8E5M2>(ranks, 57344.0, &config);
    }
}

#[test]
fn no_peer_access_falls_back_to_host_staging() {
    run(3, &staged_config(), |comm, stream| {
        for algorithm in Algorithm::ALL.iter().filter(|row| row.peer_access == PeerAccess::TwoSided) {
            let runs = !algorithm.collective.is_scan();
            if runs && (algorithm.supports)(&GroupSpec::new(3)) {
                comm.set_algorithm(algorithm.collective, Some(algorithm.name)).unwrap();
                exercise::<f32>(&comm, &stream, case(algorithm.collective, 3001, false));
            }
        }
        let error = comm.set_algorithm(Collective::AllReduce, Some("oneshot")).unwrap_err();
        assert!(error.is_invalid_usage(), "windows are out of reach, and that harms nothing: {error}");
        comm.barrier(&stream).unwrap();
    });
}

#[test]
fn every_type_and_operation_is_reduced() {
    types_and_operations(&config(), true);
}

#[test]
fn every_type_and_operation_is_reduced_with_ll() {
    types_and_operations(&ll_config(), false);
}

fn types_and_operations(config: &Config, wide: bool) {
    run(3, config, |comm, stream| {
        assert_eq!(comm.uses_ll128(), wide && comm.gpu().has_ll128());
        for (op, name) in
            ReduceKind::ON_GPU.into_iter().flat_map(|op| ["ring", "oneshot"].map(|name| (op, name)))
        {
            comm.set_algorithm(Collective::AllReduce, Some(name)).unwrap();
            let case = Case { op, ..case(Collective::AllReduce, 300, op == ReduceKind::Sum) };
            exercise::<i8>(&comm, &stream, case);
            exercise::<u8>(&comm, &stream, case);
            exercise::<i32>(&comm, &stream, case);
            exercise::<u32>(&comm, &stream, case);
            exercise::<i64>(&comm, &stream, case);
            exercise::<u64>(&comm, &stream, case);
            exercise::<f16>(&comm, &stream, case);
            exercise::<bf16>(&comm, &stream, case);
            exercise::<f64>(&comm, &stream, case);
            exercise::<F8E4M3>(&comm, &stream, case);
            exercise::<F8E5M2>(&comm, &stream, case);
        }
    });
}

#[test]
fn long_byte_slices_are_summed_once() {
    run(3, &config(), |comm, stream| {
        for name in ["recursive_halving", "ring"] {
            comm.set_algorithm(Collective::ReduceScatter, Some(name)).unwrap();
            for in_place in [true, false] {
                exercise::<u8>(&comm, &stream, case(Collective::ReduceScatter, 3000, in_place));
            }
        }
    });
}

#[test]
fn uneven_shares_are_correct() {
    run(3, &config(), |comm, stream| {
        let counts = [5, 0, 2000];
        let values = vec![comm.rank() as i32; counts[comm.rank()]];
        let input = comm.gpu().upload(&values).unwrap();
        let mut output = comm.gpu().alloc::<i32>(2005).unwrap();
        comm.all_gather_v(&stream, &input, &mut output, &counts).unwrap();
        comm.synchronize(&stream).unwrap();
        let found = output.to_vec(&stream).unwrap();
        assert!(found[..5].iter().all(|&value| value == 0) && found[5..].iter().all(|&value| value == 2));
    });
}

#[test]
fn results_match_cpu_bits() {
    let config = config();
    let value = |rank: usize, index: usize| ((index * 37 + rank * 101) % 97) as f32 * 0.37 - 11.0;
    for name in ["ring", "tree", "twoshot", "oneshot", "inplace_ring"] {
        let row = find(Collective::AllReduce, name).unwrap();
        let input = |rank| (0..999).map(|index| value(rank, index)).collect::<Vec<f32>>();
        let on_gpus = run(3, &config, |comm, stream| {
            comm.set_algorithm(row.collective, Some(row.name)).unwrap();
            let mut values = comm.gpu().upload(&input(comm.rank())).unwrap();
            comm.all_reduce(&stream, &mut values, Sum).unwrap();
            comm.synchronize(&stream).unwrap();
            values.to_vec(&stream).unwrap()
        });
        let on_cpus = crate::support::World::Threads.run(3, &config, |comm| {
            comm.set_algorithm(row.collective, Some(row.name)).unwrap();
            let mut values = input(comm.rank());
            comm.all_reduce(&mut values, Sum).unwrap();
            values
        });
        let bits = |ranks: Vec<Vec<f32>>| ranks.concat().into_iter().map(f32::to_bits).collect::<Vec<_>>();
        assert!(on_gpus.is_none_or(|found| bits(found) == bits(on_cpus)), "{name}");
    }
}
