//! Tests of symmetric memory: collectives read and write it in place.

use crate::world::{config, run, staged_config};
use std::collections::HashSet;
use unisono::device::{Buffer, DeviceCommunicator, Stream};
use unisono::schedule::Collective;
use unisono::{ErrorKind, ReduceOp, Sum, bf16};

fn element(rank: usize, index: usize) -> i32 {
    (rank * 7919 + index * 31 % 1009) as i32
}

fn elements(rank: usize, range: std::ops::Range<usize>) -> Vec<i32> {
    range.map(|index| element(rank, index)).collect()
}

fn sum(ranks: usize, index: usize) -> i32 {
    (0..ranks).map(|rank| element(rank, index)).sum()
}

/// Elements of each rank between the guards. The prime number is no multiple of a slice or vector.
const COUNT: usize = 5003;
const GUARD: usize = 13;

#[test]
fn symmetric_buffers_are_accessed_in_place() {
    for ranks in 1..=4 {
        run(ranks, &config(), |comm, stream| {
            let rank = comm.rank();
            let mut memory = comm.alloc_symmetric::<i32>(ranks * COUNT + 2 * GUARD).unwrap();
            let mut source = comm.alloc_symmetric::<i32>(ranks * COUNT).unwrap();
            let inner = GUARD..GUARD + ranks * COUNT;
            let zerocopy = |collective| comm.set_algorithm(collective, Some("zero_copy")).unwrap();
            let read = |memory: &Buffer<i32>| {
                comm.synchronize(&stream).unwrap();
                let found = memory.to_vec(&stream).unwrap();
                assert!(found[..GUARD].iter().chain(&found[found.len() - GUARD..]).all(|guard| *guard == 0));
                found[inner.clone()].to_vec()
            };
            zerocopy(Collective::AllReduce);
            source.write(&stream, &elements(rank, 0..ranks * COUNT)).unwrap();
            comm.all_reduce_into(&stream, &source, &mut memory.view_mut(inner.clone()), Sum).unwrap();
            assert_eq!(comm.last_algorithm().map(|row| row.name), Some("zero_copy"));
            let sums: Vec<i32> = (0..ranks * COUNT).map(|index| sum(ranks, index)).collect();
            assert_eq!(read(&memory), sums);
            // The inputs in place are equal on all ranks.
            comm.all_reduce(&stream, &mut memory.view_mut(inner.clone()), Sum).unwrap();
            assert_eq!(read(&memory), sums.iter().map(|sum| sum * ranks as i32).collect::<Vec<_>>());

            zerocopy(Collective::AllGather);
            let length = memory.view(..).len();
            assert_eq!(length, ranks * COUNT + 2 * GUARD);
            let part = GUARD + rank * COUNT..GUARD + (rank + 1) * COUNT;
            memory.view_mut(part).write(&stream, &elements(rank, 0..COUNT)).unwrap();
            comm.all_gather_in_place(&stream, &mut memory.view_mut(inner.clone())).unwrap();
            let gathered: Vec<i32> = (0..ranks).flat_map(|sender| elements(sender, 0..COUNT)).collect();
            assert_eq!(read(&memory), gathered);

            zerocopy(Collective::ReduceScatter);
            let mut share = comm.gpu().alloc::<i32>(COUNT).unwrap();
            comm.reduce_scatter(&stream, &source, &mut share, Sum).unwrap();
            comm.synchronize(&stream).unwrap();
            assert_eq!(share.to_vec(&stream).unwrap(), sums[rank * COUNT..(rank + 1) * COUNT]);

            zerocopy(Collective::Broadcast);
            comm.broadcast(&stream, &mut source, ranks - 1).unwrap();
            comm.synchronize(&stream).unwrap();
            assert_eq!(source.to_vec(&stream).unwrap(), elements(ranks - 1, 0..ranks * COUNT));
        });
    }
}

#[test]
fn large_ops_select_zero_copy_automatically() {
    run(2, &config(), |comm, stream| {
        let name = || comm.last_algorithm().map(|row| row.name);
        let mut symmetric = comm.alloc_symmetric::<f32>(20_000).unwrap();
        let mut ordinary = comm.gpu().alloc::<f32>(20_000).unwrap();
        symmetric.write(&stream, &vec![comm.rank() as f32 + 0.5; 20_000]).unwrap();
        let graph = stream.capture(|stream| comm.all_reduce(stream, &mut symmetric, ReduceOp::Avg)).unwrap();
        assert_eq!(name(), Some("zero_copy"));
        graph.launch(&stream).unwrap();
        comm.all_reduce(&stream, &mut ordinary, Sum).unwrap();
        assert_ne!(name(), Some("zero_copy"), "ordinary memory");
        comm.all_reduce(&stream, &mut symmetric, ReduceOp::pre_mul_sum(2.0f32)).unwrap();
        assert_eq!(name(), Some("zero_copy_scaled"), "factors are each rank's own");
        comm.all_reduce(&stream, &mut symmetric.view_mut(..100), Sum).unwrap();
        assert_ne!(name(), Some("zero_copy"), "short");
        comm.synchronize(&stream).unwrap();
        let found = symmetric.to_vec(&stream).unwrap();
        assert_eq!((found[0], found[100]), (8.0, 4.0));
    });
}

/// Returns a value with many significant digits.
fn fraction(rank: usize, index: usize) -> f32 {
    element(rank, index) as f32 * 0.37 - 11.0
}

/// Each rank multiplies by its own factor, in place or out of place, in ordinary memory (through
/// windows) and in symmetric memory.
#[test]
fn pre_mul_sum_zero_copy_is_bit_identical() {
    const COUNT: usize = 17_003;
    for ranks in 1..=4 {
        run(ranks, &config(), |comm, stream| {
            let (rank, name) = (comm.rank(), || comm.last_algorithm().map(|row| row.name));
            let factor = ReduceOp::pre_mul_sum(0.1f32 * (rank + 1) as f32);
            let values: Vec<f32> = (0..COUNT).map(|index| fraction(rank, index)).collect();
            let mut ordinary = comm.gpu().upload(&values).unwrap();
            comm.all_reduce(&stream, &mut ordinary, factor).unwrap();
            assert_eq!(name(), Some("twoshot"));
            let (mut symmetric, mut other) = (
                comm.alloc_symmetric::<f32>(COUNT).unwrap(),
                comm.alloc_symmetric::<f32>(COUNT + GUARD).unwrap(),
            );
            symmetric.write(&stream, &values).unwrap();
            let inner = &mut other.view_mut(..COUNT);
            comm.all_reduce_into(&stream, &symmetric, inner, factor).unwrap();
            assert_eq!(
                (name(), symmetric.to_vec(&stream).unwrap() == values),
                (Some("zero_copy_scaled"), true)
            );
            comm.all_reduce(&stream, &mut symmetric, factor).unwrap();
            comm.synchronize(&stream).unwrap();
            let bits = |found: Vec<f32>| found.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            let expected = bits(ordinary.to_vec(&stream).unwrap());
            assert!(bits(symmetric.to_vec(&stream).unwrap()) == expected, "in place, {ranks} ranks");
            let other = other.to_vec(&stream).unwrap();
            assert!(other[COUNT..].iter().all(|guard| *guard == 0.0), "{ranks} ranks");
            assert!(bits(other[..COUNT].to_vec()) == expected, "into another, {ranks} ranks");
        });
    }
}

#[test]
fn narrow_floats_are_rounded_once() {
    run(2, &config(), |comm, stream| {
        let mut symmetric = comm.alloc_symmetric::<bf16>(40_000).unwrap();
        comm.all_reduce(&stream, &mut symmetric, ReduceOp::pre_mul_sum(bf16::from_f32(0.1))).unwrap();
        assert_eq!(comm.last_algorithm().map(|row| row.name), Some("twoshot"));
        let mut share = comm.gpu().alloc::<f32>(20_000).unwrap();
        let source = comm.alloc_symmetric::<f32>(40_000).unwrap();
        comm.reduce_scatter(&stream, &source, &mut share, ReduceOp::pre_mul_sum(0.1f32)).unwrap();
        assert_ne!(comm.last_algorithm().map(|row| row.name), Some("zero_copy"), "inputs are left alone");
        comm.synchronize(&stream).unwrap();
    });
}

#[test]
fn broadcast_root_buffer_need_not_be_symmetric() {
    const COUNT: usize = 20_011;
    for ranks in 1..=4 {
        run(ranks, &config(), |comm, stream| {
            let (gpu, rank) = (comm.gpu(), comm.rank());
            let mut target = comm.alloc_symmetric::<i32>(COUNT + 2 * GUARD).unwrap();
            let values = gpu.upload(&elements(rank, 0..COUNT)).unwrap();
            for root in 0..ranks {
                let input = (rank == root).then_some(&values);
                let inner = &mut target.view_mut(GUARD..GUARD + COUNT);
                comm.broadcast_into(&stream, input, inner, root).unwrap();
                assert_eq!(comm.last_algorithm().map(|row| row.name), Some("zero_copy_push"));
                comm.synchronize(&stream).unwrap();
                let found = target.to_vec(&stream).unwrap();
                assert!(found[GUARD..GUARD + COUNT] == elements(root, 0..COUNT), "from {root} to {rank}");
                assert!(found[..GUARD].iter().chain(&found[GUARD + COUNT..]).all(|guard| *guard == 0));
            }
            // The root broadcasts in place and the others do not. Each rank may choose freely.
            let inner = &mut target.view_mut(GUARD..GUARD + COUNT);
            inner.write(&stream, &elements(rank + 7, 0..COUNT)).unwrap();
            let called = match rank {
                0 => comm.broadcast(&stream, inner, 0),
                _ => comm.broadcast_into(&stream, None::<&Buffer<i32>>, inner, 0),
            };
            called.and_then(|()| comm.synchronize(&stream)).unwrap();
            assert!(target.to_vec(&stream).unwrap()[GUARD..GUARD + COUNT] == elements(7, 0..COUNT));
        });
    }
}

#[test]
fn uneven_shares_are_written_in_place() {
    let counts = [20_003, 0, 517, 3];
    for ranks in 1..=4 {
        run(ranks, &config(), |comm, stream| {
            let (rank, counts) = (comm.rank(), &counts[..ranks]);
            let total: usize = counts.iter().sum();
            let mut symmetric = comm.alloc_symmetric::<i32>(total + 2 * GUARD).unwrap();
            let share = comm.gpu().upload(&elements(rank, 0..counts[rank])).unwrap();
            let inner = &mut symmetric.view_mut(GUARD..GUARD + total);
            let graph = stream.capture(|stream| comm.all_gather_v(stream, &share, inner, counts)).unwrap();
            assert_eq!(comm.last_algorithm().map(|row| row.name), Some("zero_copy"));
            for _ in 0..2 {
                graph.launch(&stream).unwrap();
            }
            comm.synchronize(&stream).unwrap();
            let found = symmetric.to_vec(&stream).unwrap();
            let gathered: Vec<i32> = (0..ranks).flat_map(|rank| elements(rank, 0..counts[rank])).collect();
            assert!(found[GUARD..GUARD + total] == gathered, "{ranks} ranks");
            assert!(found[..GUARD].iter().chain(&found[GUARD + total..]).all(|guard| *guard == 0));
        });
    }
}

#[test]
fn mismatched_shares_fail_before_any_write() {
    let errors = run(2, &config(), |comm, stream| {
        let counts = [[30_000, 10_000], [10_000, 30_000]][comm.rank()];
        let mut symmetric = comm.alloc_symmetric::<i32>(40_000).unwrap();
        let share = comm.gpu().upload(&vec![7; counts[comm.rank()]]).unwrap();
        let called = comm.all_gather_v(&stream, &share, &mut symmetric, &counts);
        let error = called.and_then(|()| comm.synchronize(&stream)).unwrap_err();
        assert_eq!(symmetric.to_vec(&stream).unwrap(), vec![0; 40_000]);
        error
    });
    for error in errors.iter().flatten() {
        assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{error}");
    }
}

#[test]
fn symmetric_memory_is_ordinary_without_peer_access() {
    run(2, &staged_config(), |comm, stream| {
        let mut symmetric = comm.alloc_symmetric::<i32>(40_000).unwrap();
        symmetric.write(&stream, &vec![3; 40_000]).unwrap();
        comm.all_reduce(&stream, &mut symmetric, Sum).unwrap();
        comm.synchronize(&stream).unwrap();
        assert_ne!(comm.last_algorithm().map(|row| row.name), Some("zero_copy"));
        assert_eq!(symmetric.to_vec(&stream).unwrap(), vec![6; 40_000]);
    });
}

#[test]
fn symmetric_memory_is_reused_after_all_drop() {
    run(2, &config(), |comm, stream| {
        comm.set_algorithm(Collective::AllReduce, Some("zero_copy")).unwrap();
        // Rank 0 keeps a buffer that the other rank drops.
        let kept = comm.alloc_symmetric::<i32>(40_000).unwrap();
        let address = kept.address();
        let _kept = (comm.rank() == 0).then_some(kept);
        let addresses: HashSet<u64> = (0..12).map(|_| repeated(&comm, &stream)).collect();
        assert!(addresses.len() < 12, "memory piles up: {addresses:?}");
        assert!(!addresses.contains(&address), "given away while rank 0 has its own");
    });
}

/// Returns a sum in symmetric memory, and the address of that memory.
fn repeated(comm: &DeviceCommunicator, stream: &Stream) -> u64 {
    let mut symmetric = comm.alloc_symmetric::<i32>(40_000).unwrap();
    symmetric.write(stream, &elements(comm.rank(), 0..40_000)).unwrap();
    comm.all_reduce(stream, &mut symmetric, Sum).unwrap();
    comm.synchronize(stream).unwrap();
    assert_eq!(
        symmetric.view(..9).to_vec(stream).unwrap(),
        (0..9).map(|index| sum(2, index)).collect::<Vec<_>>()
    );
    symmetric.address()
}

#[test]
fn different_buffer_offsets_are_a_mismatch() {
    let errors = run(2, &config(), |comm, stream| {
        let mut symmetric = comm.alloc_symmetric::<i32>(40_000).unwrap();
        let mut part = symmetric.view_mut(comm.rank() * 64..20_000 + comm.rank() * 64);
        let called = comm.all_reduce(&stream, &mut part, Sum);
        called.and_then(|()| comm.synchronize(&stream)).unwrap_err()
    });
    for error in errors.iter().flatten() {
        assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{error}");
        assert!(error.to_string().matches("of symmetric memory").count() >= 2, "both places: {error}");
    }
}

#[test]
fn symmetric_sizes_must_agree() {
    run(2, &config(), |comm, stream| {
        let error = comm.alloc_symmetric::<u8>(100 + comm.rank()).map(drop).unwrap_err();
        assert!(error.is_invalid_usage() && error.to_string().contains("asks for 10"), "{error}");
        comm.set_algorithm(Collective::AllReduce, Some("zero_copy")).unwrap();
        let mut ordinary = comm.gpu().alloc::<u8>(100).unwrap();
        let error = comm.all_reduce(&stream, &mut ordinary, Sum).unwrap_err();
        assert!(
            error.is_invalid_usage() && error.to_string().contains("needs buffers from `alloc_symmetric`"),
            "{error}"
        );
        comm.barrier(&stream).unwrap();
        comm.synchronize(&stream).unwrap();
    });
}
