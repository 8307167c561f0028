//! Every collective, by every algorithm, over every transport, against the naive reference.

mod support;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use support::{Case, World, exercise};
use unisono::schedule::{Algorithm, Collective, GroupSpec, PeerAccess};
use unisono::{Communicator, Config, F8E4M3, F8E5M2, ReduceKind, ReduceOp, bf16, f16};

/// Small slots and windows, so that a few kilobytes already take many pieces.
fn small() -> Config {
    Config::default().with_fifo_slot_bytes(4096).with_shm_window_bytes(256 << 10)
}

fn supported_algorithms<'a>(
    world: World,
    spec: &'a GroupSpec,
) -> impl Iterator<Item = &'static Algorithm> + 'a {
    let rows = Algorithm::ALL.iter().filter(move |row| row.peer_access <= world.peer_access());
    rows.filter(|row| (row.supports)(spec))
}

/// Sizes that exceed the eager slots, where there are any.
fn counts(slice: usize, row: &Algorithm) -> impl Iterator<Item = usize> {
    let sizes = [0, 1, 3, 63, 257, slice - 1, slice, slice + 1, 5 * slice + 7, 34 * slice + 7, 64 * slice];
    let uses_cells = row.peer_access == PeerAccess::Window;
    sizes.into_iter().filter(move |&count| uses_cells || count < 34 * slice)
}

/// Runs all algorithms with f32 sums, in and out of place, at sizes around slice boundaries.
fn all_algorithms(world: World, ranks: usize) {
    let slice = 4096 / 4;
    world.run(ranks, &small(), |comm| {
        let spec = GroupSpec::new(ranks);
        for row in supported_algorithms(world, &spec) {
            comm.set_algorithm(row.collective, Some(row.name)).unwrap();
            for (turn, count) in counts(slice, row).enumerate() {
                let root = if row.collective.has_root() { turn % ranks } else { 0 };
                for in_place in [false, true] {
                    exercise::<f32>(
                        &comm,
                        Case { collective: row.collective, op: ReduceKind::Sum, root, count, in_place },
                    );
                }
            }
        }
    });
}

macro_rules! all_rows {
    ($($name:ident: $world:ident $ranks:literal;)*) => { $(
        #[test]
        fn $name() {
            all_algorithms(World::$world, $ranks);
        }
    )* };
}

all_rows! {
    threads_1: Threads 1;
    threads_2: Threads 2;
    threads_3: Threads 3;
    threads_4: Threads 4;
    threads_5: Threads 5;
    threads_7: Threads 7;
    threads_8: Threads 8;
    threads_16: Threads 16;
    shm_1: Shm 1;
    shm_2: Shm 2;
    shm_3: Shm 3;
    shm_4: Shm 4;
    shm_5: Shm 5;
    shm_7: Shm 7;
    shm_8: Shm 8;
    shm_16: Shm 16;
    tcp_1: Tcp 1;
    tcp_2: Tcp 2;
    tcp_3: Tcp 3;
    tcp_4: Tcp 4;
    tcp_5: Tcp 5;
    tcp_7: Tcp 7;
    tcp_8: Tcp 8;
    tcp_16: Tcp 16;
    encrypted_2: Encrypted 2;
    encrypted_3: Encrypted 3;
    encrypted_5: Encrypted 5;
}

fn with_every_type(comm: &Communicator, case: Case) {
    exercise::<i8>(comm, case);
    exercise::<u8>(comm, case);
    exercise::<i32>(comm, case);
    exercise::<u32>(comm, case);
    exercise::<i64>(comm, case);
    exercise::<u64>(comm, case);
    exercise::<f16>(comm, case);
    exercise::<bf16>(comm, case);
    exercise::<f32>(comm, case);
    exercise::<f64>(comm, case);
    exercise::<F8E4M3>(comm, case);
    exercise::<F8E5M2>(comm, case);
}

/// Every type and operation through every row that reduces.
fn all_types(world: World, ranks: usize) {
    world.run(ranks, &small(), |comm| {
        let spec = GroupSpec::new(ranks);
        for row in supported_algorithms(world, &spec).filter(|row| row.collective.reduces()) {
            comm.set_algorithm(row.collective, Some(row.name)).unwrap();
            // Sizes that exceed the eager slots, except for the shortest types.
            let long = (row.peer_access == PeerAccess::Window).then_some((40_003, false));
            let cases = [(1, true), (77, false), (1500, true), (1500, false)];
            for op in ReduceKind::ON_GPU {
                for (count, in_place) in cases.into_iter().chain(long) {
                    let root = if row.collective.has_root() { ranks - 1 } else { 0 };
                    with_every_type(&comm, Case { collective: row.collective, op, root, count, in_place });
                }
            }
        }
    });
}

#[test]
fn all_types_over_threads() {
    for ranks in [1, 3, 4] {
        all_types(World::Threads, ranks);
    }
}

#[test]
fn all_types_over_shm() {
    all_types(World::Shm, 5);
}

#[test]
fn all_types_over_tcp() {
    all_types(World::Tcp, 3);
}

/// Collectives that only move elements move elements of every type.
#[test]
fn data_movement_supports_every_dtype() {
    for world in World::ALL {
        world.run(3, &small(), |comm| {
            for collective in Collective::ALL.into_iter().filter(|collective| !collective.reduces()) {
                let root = if collective.has_root() { 2 } else { 0 };
                for (count, in_place) in [(1, true), (1501, false)] {
                    with_every_type(&comm, Case { collective, op: ReduceKind::Sum, root, count, in_place });
                }
            }
        });
    }
}

#[test]
fn broadcast_over_64_mib_reaches_every_rank() {
    let count = (64 << 20) + 3;
    for world in World::ALL {
        world.run(2, &Config::default(), |comm| {
            let mut buffer = vec![comm.rank() as u8; count];
            comm.broadcast(&mut buffer, 1).unwrap();
            assert!(buffer == vec![1; count], "rank {} over {world:?}", comm.rank());
        });
    }
}

/// The default sizes and the selector's own choice, up to several MiB.
#[test]
fn large_messages_use_selected_algorithm() {
    for world in World::ALL {
        for ranks in [2, 4] {
            world.run(ranks, &Config::default(), |comm| {
                for collective in Collective::ALL {
                    for count in [100_003, 1 << 20, (5 << 20) / 4 + 1] {
                        for in_place in [false, true] {
                            let root = if collective.has_root() { 1 } else { 0 };
                            exercise::<f32>(
                                &comm,
                                Case { collective, op: ReduceKind::Sum, root, count, in_place },
                            );
                        }
                    }
                }
            });
        }
    }
}

/// Ranks acknowledge read slots in batches: a writer must get through, whatever came before.
#[test]
fn broadcast_changing_roots_and_lengths_never_stalls() {
    const COUNTS: [usize; 6] = [2, 128, 4 << 10, 8 << 10, 16 << 10, 32 << 10];
    for ranks in [2, 3, 8] {
        World::Threads.run(ranks, &Config::default(), |comm| {
            // Runs of 1 to 200 operations of one root and length: over laps of one slot class, and
            // into another class in the middle of a lap.
            for run in 0..60_usize {
                let (root, count) = (run * 7 % ranks, COUNTS[run * 5 % COUNTS.len()]);
                for turn in 0..1 + run * 37 % 200 {
                    let value = (run * 1000 + turn) as f32;
                    let given = if comm.rank() == root { value } else { -1.0 };
                    let mut buffer = vec![given; count];
                    comm.broadcast(&mut buffer, root).unwrap();
                    assert!(buffer.iter().all(|&found| found == value), "run {run}, turn {turn}");
                }
            }
        });
    }
}

/// A root runs ahead of a rank that computes, whatever they did before.
#[test]
fn broadcast_root_does_not_wait_for_busy_rank() {
    let (ahead, through) = std::sync::mpsc::channel();
    let through = std::sync::Mutex::new(through);
    let config = Config::default().with_timeout(std::time::Duration::from_secs(5));
    World::Threads.run(2, &config, |comm| {
        let broadcasts = |times, count| {
            (0..times).for_each(|_| comm.broadcast(&mut vec![comm.rank() as u8; count], 0).unwrap());
            // Rank 1 computes until the root is through.
            if comm.rank() == 0 {
                ahead.send(()).unwrap();
            }
        };
        let computes = || through.lock().unwrap().recv().unwrap();
        // Use the slot class with the fewest slots, then so many that some are not acknowledged,
        // because rank 1 waits for none.
        for (times, count) in [(1, 128 << 10), (20, 8), (8, 128 << 10)] {
            if comm.rank() == 1 {
                computes();
            }
            broadcasts(times, count);
        }
    });
}

/// Any sequence of operations on one communicator, at random.
#[test]
fn random_sequences_of_operations() {
    let step = (
        0..Collective::ALL.len(),
        0..ReduceKind::ON_GPU.len(),
        0usize..8,
        0usize..4000,
        any::<bool>(),
        any::<bool>(),
    );
    let steps = proptest::collection::vec(step, 1..24);
    let plan = (2usize..=6, 0..World::ALL.len(), steps);
    let config = ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new(config)
        .run(&plan, |(ranks, world, steps)| {
            World::ALL[world].run(ranks, &small(), |comm| {
                for &(collective, op, root, count, in_place, wide) in &steps {
                    let (collective, op) = (Collective::ALL[collective], ReduceKind::ON_GPU[op]);
                    let root = if collective.has_root() { root % ranks } else { 0 };
                    let case = Case { collective, op, root, count, in_place };
                    match wide {
                        true => exercise::<f64>(&comm, case),
                        false => exercise::<bf16>(&comm, case),
                    }
                }
            });
            Ok(())
        })
        .unwrap();
}

#[test]
fn pre_mul_sum_is_exact_for_64_bit_integers() {
    for world in World::ALL {
        world.run(2, &small(), |comm| {
            for count in [1, 3000] {
                let (signed, unsigned) = (i64::MAX - 4, u64::MAX / 3 - comm.rank() as u64);
                let mut values = vec![1i64; count];
                comm.all_reduce(&mut values, ReduceOp::pre_mul_sum(signed)).unwrap();
                assert_eq!(values, vec![signed.wrapping_add(signed); count], "{world:?}");
                let mut values = vec![1u64; count];
                comm.all_reduce(&mut values, ReduceOp::pre_mul_sum(unsigned)).unwrap();
                assert_eq!(values, vec![2 * (u64::MAX / 3) - 1; count], "{world:?}");
            }
        });
    }
}

#[test]
fn pre_mul_sum_refuses_factors_the_type_lacks() {
    World::Threads.run(2, &small(), |comm| {
        let refused = |op| comm.all_reduce(&mut [3u8, 4], op).unwrap_err();
        let parts = ["all_reduce #0", "the factor 0.5", "from 0 to 255, as uint8"];
        let error = refused(ReduceOp::pre_mul_sum(0.5f32));
        assert!(
            error.is_invalid_usage() && parts.iter().all(|part| error.to_string().contains(part)),
            "{error}"
        );
        assert!(refused(ReduceOp::pre_mul_sum(256i32)).to_string().contains("the factor 256"));
        let mut values = [3u8, 4];
        comm.all_reduce(&mut values, ReduceOp::pre_mul_sum(2.0f64)).unwrap();
        assert_eq!(values, [12, 16]);
    });
}
