//! The same bits on every rank, in every run, over every transport.

mod support;

use std::collections::HashMap;
use support::World;
use unisono::schedule::{Algorithm, Collective, GroupSpec};
use unisono::{Communicator, Config, ReductionOrder, Sum};

/// Values whose sum depends on its order.
fn inexact_value(rank: usize, index: usize) -> f32 {
    let hash = (rank as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index as u64);
    let hash = (hash ^ hash >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((hash >> 40) as f32 - 8e6) * 10f32.powi((hash % 7) as i32 - 3)
}

fn bits(world: World, ranks: usize, count: usize, config: &Config) -> HashMap<&'static str, Vec<u32>> {
    let mut by_rank = world.run(ranks, config, |comm| {
        let spec = GroupSpec::new(ranks);
        let rows = Algorithm::ALL
            .iter()
            .filter(|row| row.collective == Collective::AllReduce && (row.supports)(&spec));
        let rows = rows.filter(|row| row.peer_access <= world.peer_access());
        let mut found = HashMap::new();
        for row in rows {
            comm.set_algorithm(row.collective, Some(row.name)).unwrap();
            let mut values: Vec<f32> = (0..count).map(|index| inexact_value(comm.rank(), index)).collect();
            comm.all_reduce(&mut values, Sum).unwrap();
            found.insert(row.name, values.iter().map(|value| value.to_bits()).collect::<Vec<_>>());
        }
        found
    });
    for (rank, found) in by_rank.iter().enumerate() {
        for (name, bits) in found {
            assert_eq!(
                bits, &by_rank[0][name],
                "{name} over {world:?}: rank {rank} of {ranks} differs from rank 0"
            );
        }
    }
    by_rank.swap_remove(0)
}

#[test]
fn results_are_bitwise_equal_across_ranks_and_transports() {
    let coarse = Config::default();
    let fine = Config::default().with_fifo_slot_bytes(4096).with_shm_window_bytes(256 << 10).with_channels(2);
    for ranks in [2, 3, 5, 8] {
        for count in [7, 6001, 40_001] {
            let reference = bits(World::Threads, ranks, count, &coarse);
            for (world, config) in [
                (World::Threads, &coarse),
                (World::Threads, &fine),
                (World::Shm, &coarse),
                (World::Tcp, &coarse),
                (World::Tcp, &fine),
            ] {
                for (name, bits) in bits(world, ranks, count, config) {
                    assert!(
                        bits == reference[name],
                        "{name}, {ranks} ranks, {count} elements over {world:?}"
                    );
                }
            }
        }
    }
}

/// The sum over all ranks, in their order.
fn rank_order_sum(ranks: usize, index: usize) -> u32 {
    (1..ranks).fold(inexact_value(0, index), |sum, rank| sum + inexact_value(rank, index)).to_bits()
}

/// Returns the result of the reducing collectives for each element of one rank: (index, bits).
///
/// The bits are equal for each of the collectives, however the buffer is cut.
fn reduced(comm: &Communicator, count: usize) -> Vec<(usize, u32)> {
    let (rank, ranks) = (comm.rank(), comm.size());
    let input: Vec<f32> = (0..count * ranks).map(|index| inexact_value(rank, index)).collect();
    let mut sums = input.clone();
    comm.all_reduce(&mut sums, Sum).unwrap();
    let mut share = vec![0.0; count];
    comm.reduce_scatter(&input, &mut share, Sum).unwrap();
    let mut in_place = input.clone();
    comm.reduce_scatter_in_place(&mut in_place, Sum).unwrap();
    assert_eq!(in_place[rank * count..][..count], share, "in place");
    let mut root = vec![0.0; count * ranks];
    comm.reduce_into(&input, (rank == 0).then_some(&mut root[..]), Sum, 0).unwrap();
    let mut in_place = input.clone();
    comm.reduce(&mut in_place, Sum, 0).unwrap();
    assert!(rank != 0 || in_place == root, "in place");
    let at_root = root.iter().enumerate().filter(|_| rank == 0);
    let in_share = share.iter().enumerate().map(|(index, sum)| (rank * count + index, sum));
    let found = sums.iter().enumerate().chain(at_root).chain(in_share);
    found.map(|(index, sum)| (index, sum.to_bits())).collect()
}

#[test]
fn rank_order_is_bitwise_equal_across_transports() {
    let coarse = Config::default().with_reduction_order(ReductionOrder::RankOrder);
    let fine = coarse.clone().with_fifo_slot_bytes(4096).with_shm_window_bytes(256 << 10).with_channels(2);
    for (world, config) in
        [(World::Threads, &coarse), (World::Shm, &fine), (World::Tcp, &coarse), (World::Tcp, &fine)]
    {
        for (ranks, count) in [(2, 5), (3, 2001), (4, 4096), (5, 1)] {
            for found in world.run(ranks, config, |comm| reduced(&comm, count)) {
                for (index, bits) in found {
                    assert_eq!(
                        bits,
                        rank_order_sum(ranks, index),
                        "element {index}, {ranks} ranks over {world:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn window_algorithms_reduce_in_rank_order() {
    let ranks = 5;
    let found = bits(World::Threads, ranks, 1000, &Config::default());
    let expected: Vec<u32> = (0..1000).map(|index| rank_order_sum(ranks, index)).collect();
    for name in ["oneshot", "twoshot"] {
        assert_eq!(found[name], expected);
    }
}
