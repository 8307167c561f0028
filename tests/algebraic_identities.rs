//! Examples with known answers, and operations that must equal others.

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use support::World;
use unisono::schedule::{Algorithm, Collective, GroupSpec, PeerAccess};
use unisono::{Avg, Communicator, Config, Max, ReductionOrder, Sum};

#[test]
fn worked_examples() {
    for world in World::ALL {
        world.run(2, &Config::default(), |comm| {
            let mut share = [0.0f32; 2];
            comm.reduce_scatter(&[1.0, 2.0, 3.0, 4.0], &mut share, Sum).unwrap();
            assert_eq!(share, [[2.0, 4.0], [6.0, 8.0]][comm.rank()]);
        });
        world.run(4, &Config::default(), |comm| {
            let (rank, is_root) = (comm.rank(), comm.rank() == 2);
            let mut counted = if is_root { [0, 1, 2, 3, 4, 5, 6, 7] } else { [9; 8] };
            comm.broadcast(&mut counted, 2).unwrap();
            assert_eq!(counted, [0, 1, 2, 3, 4, 5, 6, 7]);
            let mut ones = [rank as i32 + 1; 5];
            comm.reduce(&mut ones, Sum, 2).unwrap();
            assert_eq!(
                ones,
                if is_root { [10; 5] } else { [rank as i32 + 1; 5] },
                "1 + 2 + 3 + 4 at the root only"
            );
            let mut gathered = [0u8; 4];
            comm.gather(&[rank as u8], is_root.then_some(&mut gathered[..]), 2).unwrap();
            assert_eq!(gathered, if is_root { [0, 1, 2, 3] } else { [0; 4] });
            let mut received = [9u8];
            comm.scatter(is_root.then_some(&[0, 1, 2, 3][..]), &mut received, 2).unwrap();
            assert_eq!(received, [rank as u8]);
            comm.all_gather(&received, &mut gathered).unwrap();
            assert_eq!(gathered, [0, 1, 2, 3]);
        });
    }
}

const SPEC: GroupSpec = GroupSpec::new(4);

/// In the textbook ring, rank r ends the first phase with chunk r + 1. The library delivers chunk
/// r.
#[test]
fn reduce_scatter_gives_rank_r_share_r() {
    World::Threads.run(4, &Config::default(), |comm| {
        let input: Vec<i64> = (0..4).map(|index| index + comm.rank() as i64).collect();
        let rows = Algorithm::ALL.iter().filter(|row| row.collective == Collective::ReduceScatter);
        for row in rows.filter(|row| row.peer_access != PeerAccess::ZeroCopy && (row.supports)(&SPEC)) {
            comm.set_algorithm(row.collective, Some(row.name)).unwrap();
            let mut share = [0];
            comm.reduce_scatter(&input, &mut share, Sum).unwrap();
            assert_eq!(share, [[6], [10], [14], [18]][comm.rank()], "{row:?}");
        }
        let mut sums = input;
        comm.all_reduce(&mut sums, Sum).unwrap();
        assert_eq!(sums, [6, 10, 14, 18]);
    });
}

#[test]
fn all_to_all_twice_is_identity() {
    for world in World::ALL {
        for ranks in [2, 5] {
            world.run(ranks, &Config::default(), |comm| {
                let input: Vec<u64> =
                    (0..300 * ranks).map(|index| (comm.rank() << 20 | index) as u64).collect();
                let (mut there, mut back) = (vec![0; input.len()], vec![0; input.len()]);
                comm.all_to_all(&input, &mut there).unwrap();
                comm.all_to_all(&there, &mut back).unwrap();
                assert!(there != input && back == input);
            });
        }
    }
}

#[test]
fn all_to_all_v_twice_is_identity_with_zero_counts() {
    // Nothing for oneself, nothing for the next rank, and one rank that gets nothing at all.
    let counts = |sender: usize, receiver: usize| {
        if receiver == sender || receiver == (sender + 1) % 4 || receiver == 3 { 0 } else { 10 + receiver }
    };
    for world in World::ALL {
        world.run(4, &Config::default(), |comm| {
            let rank = comm.rank();
            let sends: Vec<usize> = (0..4).map(|receiver| counts(rank, receiver)).collect();
            let receives: Vec<usize> = (0..4).map(|sender| counts(sender, rank)).collect();
            let input: Vec<u64> = (0..sends.iter().sum()).map(|index| (rank << 20 | index) as u64).collect();
            let (mut there, mut back) = (vec![0; receives.iter().sum()], vec![0; input.len()]);
            comm.all_to_all_v(&input, &sends, &mut there, &receives).unwrap();
            comm.all_to_all_v(&there, &receives, &mut back, &sends).unwrap();
            assert_eq!(back, input);
            assert_eq!(there.is_empty(), rank == 3);
        });
    }
}

/// Values whose sums are rounded.
fn inexact_value(rank: usize, index: usize) -> f32 {
    let hash = (rank as u64 * 7919 + index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash >> 40) as f32 / (1 << 23) as f32 - 1.0
}

#[test]
fn all_reduce_equals_reduce_scatter_plus_all_gather() {
    let config = Config::default().with_reduction_order(ReductionOrder::RankOrder);
    for world in World::ALL {
        for (ranks, share) in [(2, 30_000), (3, 11_111), (5, 40_000)] {
            let moved = world.run(ranks, &config, |comm| {
                let input: Vec<f32> =
                    (0..ranks * share).map(|index| inexact_value(comm.rank(), index)).collect();
                let moved = || comm.traffic_stats().unwrap().bytes;
                let (mut at_once, start) = (input.clone(), moved());
                comm.all_reduce(&mut at_once, Sum).unwrap();
                let (mut shard, mut in_two, middle) = (vec![0.0; share], vec![0.0; ranks * share], moved());
                comm.reduce_scatter(&input, &mut shard, Sum).unwrap();
                comm.all_gather(&shard, &mut in_two).unwrap();
                assert!(at_once == in_two, "{ranks} ranks over {world:?}");
                [middle - start, moved() - middle]
            });
            let total = |index: usize| moved.iter().map(|bytes| bytes[index]).sum::<u64>();
            assert_eq!(total(0), total(1), "{ranks} ranks over {world:?}");
        }
    }
}

#[test]
fn reductions_match_f64_reference() {
    let ranks = 5;
    for world in World::ALL {
        world.run(ranks, &Config::default(), |comm| {
            let input: Vec<f32> = (0..10_007).map(|index| inexact_value(comm.rank(), index)).collect();
            let [mut sum, mut mean, mut largest] = [input.clone(), input.clone(), input];
            comm.all_reduce(&mut sum, Sum).unwrap();
            comm.all_reduce(&mut mean, Avg).unwrap();
            comm.all_reduce(&mut largest, Max).unwrap();
            for (index, &sum) in sum.iter().enumerate() {
                let exact: f64 = (0..ranks).map(|rank| f64::from(inexact_value(rank, index))).sum();
                let greatest = (0..ranks).map(|rank| inexact_value(rank, index)).fold(f32::MIN, f32::max);
                // Four additions of numbers below 5, rounded to 24 bits each.
                let bound = 4.0 * 5.0 * f64::from(f32::EPSILON) / 2.0;
                assert!((f64::from(sum) - exact).abs() <= bound, "element {index}: {sum}, not {exact}");
                assert!((f64::from(mean[index]) - exact / 5.0).abs() <= bound, "element {index}");
                assert_eq!(largest[index], greatest);
            }
        });
    }
}

#[test]
fn barrier_releases_nobody_before_last_arrival() {
    for world in World::ALL {
        let entered = AtomicUsize::new(0);
        let ranks = 4;
        world.run(ranks, &Config::default(), |comm: Communicator| {
            for turn in 0..12 {
                if comm.rank() == turn % ranks {
                    std::thread::sleep(Duration::from_millis(5));
                }
                entered.fetch_add(1, Ordering::SeqCst);
                comm.barrier().unwrap();
                assert!(entered.load(Ordering::SeqCst) >= (turn + 1) * ranks, "{world:?}, barrier {turn}");
            }
        });
    }
}
