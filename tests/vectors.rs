//! Collectives that return what they make: vectors of which each rank knows its own, and one value.

mod support;

use support::World;
use unisono::{Avg, Communicator, Config, Element, ErrorKind, Max, Min, Sum};
use unisono_transports::testing::NEVER;

/// Worlds over memory of the process, over shared memory and over TCP.
const WORLDS: [World; 3] = [World::Threads, World::Shm, World::Tcp];

/// Returns the vector of a rank, whose length no other rank knows.
fn own<T: Element>(rank: usize, scale: usize, element: impl Fn(usize) -> T) -> Vec<T> {
    (0..[3, 0, 1, 7][rank % 4] * scale).map(element).collect()
}

/// Asserts that the vectors of all ranks arrive, from and at every root.
fn assert_arrives<T: Element>(comm: &Communicator, scale: usize, element: impl Fn(usize) -> T) {
    let (rank, ranks) = (comm.rank(), comm.size());
    let vectors: Vec<Vec<T>> = (0..ranks).map(|rank| own(rank, scale, &element)).collect();
    assert!(comm.all_gather_vec(&vectors[rank]).unwrap() == vectors);
    for root in 0..ranks {
        let gathered = comm.gather_vec(&vectors[rank], root).unwrap();
        assert!(gathered == (rank == root).then(|| vectors.clone()));
        let given = (rank == root).then_some(&vectors[..]);
        assert!(comm.scatter_vec(given, root).unwrap() == vectors[rank]);
    }
}

#[test]
fn vectors_arrive_over_every_transport() {
    for world in WORLDS {
        for ranks in [1, 2, 3, 4] {
            world.run(ranks, &Config::default(), |comm| {
                assert_arrives(&comm, 1, |index| index as f32 + 0.5);
                assert_arrives(&comm, 1000, |index| index as u8);
                assert_arrives(&comm, 1, |index| index);
                assert_arrives(&comm, 0, |index| index as i64);
            });
        }
    }
}

/// Vectors longer than the parts in which they travel, of other lengths on each rank.
#[test]
fn long_vectors_arrive_whole() {
    for world in WORLDS {
        world.run(3, &Config::default(), |comm| {
            // Rank 0 has 24 MiB, and rank 2 has 8.
            assert_arrives(&comm, 1 << 20, |index| index as f64);
            assert_eq!(comm.all_reduce_value(1, Sum).unwrap(), 3);
        });
    }
}

/// The root keeps its own vector, which is checked like those that it sends.
#[test]
fn scattered_vector_of_the_root_is_checked() {
    let config = Config::default().with_check_finite(true).with_timeout(NEVER);
    World::Threads.run(2, &config, |comm| {
        let given = [vec![1.0, f32::NAN], vec![2.0]];
        let error = comm.scatter_vec((comm.rank() == 0).then_some(&given[..]), 0).unwrap_err();
        let is_found = matches!(error.kind(), ErrorKind::NotFinite { rank: 0, index: 1, .. });
        assert!(comm.rank() == 1 || is_found, "{error}");
    });
}

#[test]
fn single_values_are_reduced_over_every_transport() {
    for world in WORLDS {
        world.run(3, &Config::default(), |comm| {
            let rank = comm.rank();
            assert_eq!(comm.all_reduce_value(rank as u64, Min).unwrap(), 0);
            // Counts travel as u64, and may meet it.
            let count = if rank == 0 {
                comm.all_reduce_value(5usize, Sum)
            } else {
                comm.all_reduce_value(5u64, Sum).map(|sum| sum as usize)
            };
            assert_eq!(count.unwrap(), 15);
            assert_eq!(comm.all_reduce_value(rank as f32, Max).unwrap(), 2.0);
            assert_eq!(comm.all_reduce_value(rank as f64, Avg).unwrap(), 1.0);
            // It is an all_reduce of one element.
            let mut sum = [rank as i64];
            match rank {
                0 => sum[0] = comm.all_reduce_value(sum[0], Sum).unwrap(),
                _ => comm.all_reduce(&mut sum, Sum).unwrap(),
            }
            assert_eq!(sum, [3]);
        });
    }
}

#[test]
fn wrong_roots_and_lists_are_refused() {
    World::Threads.run(2, &Config::default(), |comm| {
        let at_root = comm.rank() == 0;
        let refusals = [
            comm.gather_vec(&[1u8], 2).map(drop).unwrap_err(),
            comm.scatter_vec(Some(&[vec![1u8], vec![2]]), 7).map(drop).unwrap_err(),
        ];
        for (refused, call) in refusals.iter().zip(["gather_vec #0", "scatter_vec #0"]) {
            let text = refused.to_string();
            assert!(refused.is_invalid_usage() && text.contains(call), "{text}");
            assert!(text.contains("there are only 2 ranks"), "{text}");
        }
        if at_root {
            let short = comm.scatter_vec(Some(&[vec![1u8]]), 0).unwrap_err().to_string();
            assert!(short.contains("has length 1, but 2 is needed"), "{short}");
            let none = comm.scatter_vec::<u8>(None, 0).unwrap_err().to_string();
            assert!(none.contains("the root, rank 0, must give a list of vectors"), "{none}");
        }
        assert_eq!(comm.all_gather_vec(&[comm.rank() as u8]).unwrap(), [[0], [1]]);
    });
}

/// Both calls are named on every rank, also where the ranks differ in the type alone.
#[test]
fn calls_that_differ_are_mismatches_with_their_names() {
    type Call = fn(&Communicator) -> unisono::Result<()>;
    let calls: [(Call, Call, &str, &str); 5] = [
        (
            |comm| comm.all_gather_vec(&[1u64]).map(drop),
            |comm| comm.all_gather(&[1u64], &mut [0; 2]),
            "all_gather_vec #0",
            "all_gather #0",
        ),
        (
            |comm| comm.all_gather_vec(&[1.0f32]).map(drop),
            |comm| comm.all_gather_vec(&[1u8]).map(drop),
            "x float",
            "uint8",
        ),
        (
            |comm| comm.gather_vec(&[1.0f32], 0).map(drop),
            |comm| comm.gather_vec(&[1u8, 2, 3, 4], 0).map(drop),
            "gather_vec #1",
            "uint8",
        ),
        (
            |comm| comm.gather_vec(&[1u8], 0).map(drop),
            |comm| comm.gather_vec(&[1u8], 1).map(drop),
            "root 0",
            "root 1",
        ),
        (
            |comm| comm.scatter_vec(Some(&[vec![1u8], vec![2]]), 0).map(drop),
            |comm| comm.gather_vec(&[1u8], 0).map(drop),
            "scatter_vec #0",
            "gather_vec #0",
        ),
    ];
    for world in WORLDS {
        for (call, other_call, name, other_name) in calls {
            let errors = world.run(2, &Config::default().with_timeout(NEVER), |comm| {
                let called = if comm.rank() == 0 { call(&comm) } else { other_call(&comm) };
                // Ranks that exchange nothing in the call find the difference in the next one.
                called.and_then(|()| comm.barrier()).unwrap_err()
            });
            for error in errors {
                let text = error.to_string();
                assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{world:?}: {text}");
                assert!(text.contains(name) && text.contains(other_name), "{world:?}: {text}");
            }
        }
    }
}

#[test]
fn vectors_of_several_threads_do_not_mix() {
    World::Threads.run(2, &Config::default(), |comm| {
        let start = |turn: u32| comm.spawn(move |comm| comm.all_gather_vec(&vec![turn; comm.rank() + 1]));
        let works: Vec<_> = (0..20).map(start).collect();
        for (turn, work) in (0..).zip(works) {
            assert_eq!(work.wait().unwrap(), [vec![turn], vec![turn; 2]]);
        }
    });
}
