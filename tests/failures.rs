//! Every failure becomes an error on every rank, soon, that names who and what.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::World;
use unisono::{AbortCause, Communicator, Config, Error, ErrorKind, Max, Sum};
use unisono_transports::testing::{HANG, NEVER};

fn long_timeout() -> Config {
    Config::default().with_timeout(NEVER)
}

/// The error of every rank, which a failure ends and no timeout.
fn errors(
    world: World,
    ranks: usize,
    body: impl Fn(&Communicator) -> unisono::Result<()> + Sync,
) -> Vec<Option<Error>> {
    let begun = Instant::now();
    let errors = world.run(ranks, &long_timeout(), |comm| {
        let error = body(&comm).err();
        // Ranks that completed before the news arrived get the error at their next call.
        let error = error.or_else(|| comm.barrier().err());
        std::thread::sleep(Duration::from_millis(300));
        error
    });
    assert!(begun.elapsed() < HANG, "{world:?}: took {:?}", begun.elapsed());
    errors
}

#[test]
fn count_mismatch_names_both_counts_on_every_rank() {
    for world in World::ALL {
        // Sizes on both sides of the limits of eager slots and windows.
        for base in [5usize, 7, 256, 2048, 4096, 300_000] {
            let errors = errors(world, 4, |comm| {
                let mut values = vec![1.0f32; if comm.rank() == 2 { base + 1 } else { base }];
                comm.all_reduce(&mut values, Sum)
            });
            for (rank, error) in errors.iter().enumerate() {
                let error = error.as_ref().unwrap_or_else(|| panic!("{world:?}: rank {rank} has no error"));
                assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{error}");
                let text = error.to_string();
                for part in
                    [format!("{base} x float"), format!("{} x float", base + 1), format!("rank {rank} on")]
                {
                    assert!(text.contains(&part), "`{part}` is not in: {text}");
                }
            }
        }
    }
}

#[test]
fn count_mismatch_is_found_around_every_slot_class() {
    for world in [World::Threads, World::Shm] {
        for base in [14usize, 512, 4096, 8192, 16_384, 32_768] {
            let errors = errors(world, 2, |comm| {
                let values = vec![1.0f32; base + comm.rank()];
                comm.all_gather(&values, &mut vec![0.0; 2 * values.len()])
            });
            for error in errors {
                let error = error.unwrap_or_else(|| panic!("{world:?}: no error for {base}"));
                assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{base}: {error}");
            }
        }
    }
}

#[test]
fn operation_mismatch_is_found_for_every_pair() {
    type Body = fn(&Communicator) -> unisono::Result<()>;
    let odd: [(&str, Body); 5] = [
        ("max", |comm| comm.all_reduce(&mut [1.0f32; 8], Max)),
        ("double", |comm| comm.all_reduce(&mut [1.0f64; 8], Sum)),
        ("broadcast", |comm| comm.broadcast(&mut [1.0f32; 8], 0)),
        ("barrier", |comm| comm.barrier()),
        ("all_gather", |comm| comm.all_gather(&[1.0f32; 2], &mut [0.0; 6])),
    ];
    for world in World::ALL {
        for (word, other) in odd {
            let errors = errors(world, 3, |comm| match comm.rank() {
                1 => other(comm),
                _ => comm.all_reduce(&mut [1.0f32; 8], Sum),
            });
            for (rank, error) in errors.iter().enumerate() {
                let text =
                    error.as_ref().unwrap_or_else(|| panic!("{world:?} {word}: rank {rank}")).to_string();
                assert!(text.contains("all_reduce #0") && text.contains(word), "{world:?} {word}: {text}");
            }
        }
    }
}

#[test]
fn waiting_ranks_with_own_counts_agree_on_error() {
    for world in World::ALL {
        world.run(3, &long_timeout(), |comm| {
            let rank = comm.rank();
            if rank == 2 {
                // Longer than it takes the others to say what they wait in.
                std::thread::sleep(Duration::from_millis(900));
            }
            let mut sends = [1; 3];
            sends[rank] = 5 + rank;
            let total: usize = sends.iter().sum();
            comm.all_to_all_v(&vec![1u8; total], &sends, &mut vec![0; total], &sends).unwrap();
        });
    }
}

#[test]
fn a_different_root_is_noticed() {
    for world in World::ALL {
        let errors =
            errors(world, 3, |comm| comm.broadcast(&mut [0u8; 100], if comm.rank() == 2 { 1 } else { 2 }));
        for error in errors {
            let text = error.expect("every rank fails").to_string();
            assert!(text.contains("root 1") && text.contains("root 2"), "{text}");
        }
    }
}

/// Ranks 0 and 1 of four do one thing, ranks 2 and 3 another, and no data passes between the two.
#[test]
fn calls_that_divide_ranks_are_found_in_the_next_call() {
    type Body = fn(&Communicator, usize) -> unisono::Result<()>;
    let roots = ["root 0", "root 2"];
    let divided: [(&str, [&str; 2], Body); 8] = [
        ("broadcast", roots, |comm, root| comm.broadcast(&mut [1.0f32; 8], root)),
        ("long broadcast", roots, |comm, root| comm.broadcast(&mut vec![1.0f32; 300_000], root)),
        ("reduce", roots, |comm, root| comm.reduce(&mut [1.0f32; 8], Sum, root)),
        ("gather", roots, |comm, root| {
            let mut gathered = [0u8; 16];
            comm.gather(&[1u8; 4], (comm.rank() == root).then_some(&mut gathered[..]), root)
        }),
        ("scatter", roots, |comm, root| {
            comm.scatter((comm.rank() == root).then_some(&[1u8; 16][..]), &mut [0u8; 4], root)
        }),
        ("broadcast_object", roots, |comm, root| {
            comm.broadcast_object((comm.rank() == root).then_some("text".to_owned()), root).map(drop)
        }),
        ("all_to_all_v of nothing", ["all_to_all_v", "gather_v"], |comm, root| match root {
            0 => comm.all_to_all_v(&[0u8; 0], &[0; 4], &mut [], &[0; 4]),
            _ => comm.gather_v(&[0u8; 0], (comm.rank() == root).then_some((&mut [][..], &[0; 4])), root),
        }),
        ("gather_v of nothing", roots, |comm, root| {
            comm.gather_v(&[0u8; 0], (comm.rank() == root).then_some((&mut [][..], &[0; 4])), root)
        }),
    ];
    for world in World::ALL {
        for (name, words, call) in &divided {
            let errors = errors(world, 4, |comm| call(comm, comm.rank() / 2 * 2));
            for (rank, error) in errors.iter().enumerate() {
                let error =
                    error.as_ref().unwrap_or_else(|| panic!("{world:?}: {name}: rank {rank} hears nothing"));
                let text = error.to_string();
                assert!(words.iter().all(|word| text.contains(word)), "{world:?}: {name}: {text}");
            }
        }
    }
}

#[test]
fn every_operation_finds_an_earlier_difference() {
    type Body = fn(&Communicator) -> unisono::Result<()>;
    let next: [Body; 6] = [
        |comm| comm.all_reduce(&mut [1.0f32; 8], Sum),
        |comm| comm.all_reduce(&mut vec![1.0f32; 300_000], Sum),
        |comm| comm.all_gather(&[1u8; 8], &mut [0; 32]),
        |comm| comm.all_to_all_v(&[1u8; 4], &[1; 4], &mut [0; 4], &[1; 4]),
        |comm| comm.barrier_timeout(HANG),
        |comm| comm.all_gather_object(&comm.rank()).map(drop),
    ];
    for world in World::ALL {
        for (index, next) in next.iter().enumerate() {
            let errors = errors(world, 4, |comm| {
                comm.barrier()?;
                // Every rank keeps its own data, again and again.
                (0..5).try_for_each(|_| comm.broadcast(&mut [1.0f32; 8], comm.rank()))?;
                next(comm)
            });
            for error in errors {
                let text = error.unwrap_or_else(|| panic!("{world:?}: {index}")).to_string();
                assert!(text.contains("broadcast #1") && !text.contains("#2"), "{world:?}: {index}: {text}");
            }
        }
    }
}

#[test]
fn many_calls_that_divide_ranks_are_found() {
    for world in World::ALL {
        let errors =
            errors(world, 2, |comm| (0..100).try_for_each(|_| comm.broadcast(&mut [1.0f32; 8], comm.rank())));
        for error in errors {
            let text = error.expect("both ranks fail").to_string();
            // Over TCP, each rank finds the message of the other's first broadcast.
            let is_first = text.contains(" called broadcast #0 (8 x float, root ");
            let recorded = ["broadcast #94 (8 x float, root 0", "broadcast #94 (8 x float, root 1"];
            assert!(is_first || recorded.iter().all(|part| text.contains(part)), "{text}");
        }
    }
}

#[test]
fn missing_rank_is_named_at_deadline() {
    let config = Config::default().with_timeout(Duration::from_millis(400));
    for world in World::ALL {
        let begun = Instant::now();
        let reported = std::sync::Barrier::new(3);
        let results = world.run(3, &config, |comm| {
            let error = (comm.rank() != 1).then(|| comm.all_reduce(&mut [1.0f32; 1000], Sum).unwrap_err());
            let elapsed = begun.elapsed();
            reported.wait();
            error.map(|error| (error, elapsed))
        });
        for (error, elapsed) in results.into_iter().flatten() {
            assert!(error.to_string().contains("rank 1"), "{error}");
            assert!(elapsed > Duration::from_millis(390), "{elapsed:?}");
        }
    }
}

#[test]
fn finalized_rank_is_named_before_deadline() {
    for world in World::ALL {
        let errors = world.run(3, &long_timeout(), |comm| {
            if comm.rank() == 2 {
                return None;
            }
            let begun = Instant::now();
            let error = comm.all_reduce(&mut [1.0f32; 1000], Sum).unwrap_err();
            assert!(begun.elapsed() < HANG);
            Some(error)
        });
        for error in errors.into_iter().flatten() {
            assert!(error.to_string().contains("rank 2"), "{world:?}: {error}");
        }
    }
}

/// Returns the error of rank 2, which waits for rank 0 in a group that rank 0 drops. Rank 1 leaves
/// the world, and rank 0 gets an error there before it drops the group. If `shrinks` is true, ranks
/// 0 and 2 shrink the world before the drop.
fn error_in_dropped_group(world: World, shrinks: bool) -> Error {
    let reported = std::sync::Barrier::new(2);
    let errors = world.run(3, &long_timeout(), |comm| {
        if comm.rank() == 1 {
            return None;
        }
        let pair = comm.create_group(&[0, 2], 0).expect("both members are here");
        if comm.rank() == 0 || shrinks {
            comm.recv(&mut [0u8], 1).expect_err("rank 1 has left");
        }
        let left = shrinks.then(|| comm.shrink().expect("two ranks are left"));
        let error = if comm.rank() == 0 {
            drop(pair);
            None
        } else {
            Some(pair.recv(&mut [0u8], 0).expect_err("rank 0 has left"))
        };
        // The other communicators of rank 0 end only now.
        reported.wait();
        drop(left);
        error
    });
    errors.into_iter().flatten().next().expect("the error of rank 2")
}

#[test]
fn failure_is_told_to_ranks_of_other_groups() {
    for world in World::ALL {
        let error = error_in_dropped_group(world, false);
        let text = error.to_string();
        let told = "rank 0 has left the communicator after a failure: a related communicator of 3 ranks failed: rank 1 ";
        assert!(text.contains(told), "{world:?}: {text}");
        assert_eq!((error.peer(), error.is_recoverable()), (Some(0), true), "{world:?}: {text}");
    }
}

#[test]
fn failure_that_a_shrink_handled_is_not_told() {
    for world in World::ALL {
        let error = error_in_dropped_group(world, true);
        let text = error.to_string();
        assert!(error.peer() == Some(0) && !text.contains("related"), "{world:?}: {text}");
    }
}

#[test]
fn abort_from_other_thread_ends_waits_on_every_rank() {
    for world in World::ALL {
        let begun = Instant::now();
        let errors = world.run(3, &long_timeout(), |comm| {
            if comm.rank() == 0 {
                let remote = comm.clone();
                let aborter = std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(100));
                    remote.abort("enough of this");
                    remote.abort("twice is once");
                });
                let error = comm.recv(&mut [0u8; 10], 1).unwrap_err();
                aborter.join().unwrap();
                return error;
            }
            comm.recv(&mut [0u8; 10], 0).unwrap_err()
        });
        assert!(begun.elapsed() < HANG);
        for error in errors {
            let kind =
                ErrorKind::Aborted { by: 0, reason: "enough of this".to_owned(), cause: AbortCause::Request };
            assert_eq!(error.kind(), &kind, "{world:?}");
        }
    }
}

#[test]
fn abort_reaches_all_ranks_during_success() {
    for _ in 0..300 {
        let is_over = AtomicBool::new(false);
        let [local, remote] =
            Communicator::builder().config(&long_timeout()).local(2).unwrap().try_into().expect("two");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_micros(50));
                is_over.store(true, Ordering::Release);
                local.abort("enough");
            });
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    if local.send(&[1u8], 1).is_err() {
                        break;
                    }
                }
            });
            let begun = Instant::now();
            let error = (0..).find_map(|_| remote.recv(&mut [0u8], 0).err()).expect("an end");
            assert!(matches!(error.kind(), ErrorKind::Aborted { by: 0, .. }), "{error}");
            assert!(begun.elapsed() < HANG, "after {:?}", begun.elapsed());
        });
    }
}

#[test]
fn poisoned_communicator_repeats_its_error() {
    let errors = errors(World::Threads, 2, |comm| {
        let first = comm.all_reduce(&mut vec![0u8; comm.rank() + 1], Sum).unwrap_err();
        let second = comm.barrier().unwrap_err();
        assert_eq!(first.kind(), second.kind());
        Err(second)
    });
    assert!(errors.iter().all(Option::is_some));
}

#[test]
fn invalid_usage_is_refused_without_harm() {
    let world = World::Threads.run(2, &long_timeout(), |comm| {
        let refusals = [
            comm.broadcast(&mut [0u8], 2),
            comm.all_gather(&[1u8, 2], &mut [0u8; 3]),
            comm.all_reduce_into(&[1u8], &mut [0u8; 2], Sum),
            comm.reduce_scatter_in_place(&mut [0u8; 3], Sum),
            comm.send(&[1u8], comm.rank()),
            comm.recv(&mut [1u8], 7),
            comm.all_to_all_v(&[1u8], &[1], &mut [0u8], &[1]),
            comm.all_to_all_v(&[1u8], &[usize::MAX, 2], &mut [0u8], &[0, 1]),
        ];
        for refusal in refusals {
            assert!(matches!(refusal.unwrap_err().kind(), ErrorKind::InvalidUsage(_)));
        }
        let mut values = [comm.rank() as u8];
        comm.all_reduce(&mut values, Sum).unwrap();
        values[0]
    });
    assert_eq!(world, [1, 1]);
}

#[test]
fn uneven_counts_that_disagree_name_both() {
    for world in World::ALL {
        let errors = errors(world, 2, |comm| {
            let (sends, receives) = if comm.rank() == 0 { ([0, 3], [0, 2]) } else { ([2, 0], [4, 0]) };
            let input = vec![1u32; sends.iter().sum()];
            let mut output = vec![0u32; receives.iter().sum()];
            comm.all_to_all_v(&input, &sends, &mut output, &receives)
        });
        for error in errors {
            let text = error.expect("both ranks fail").to_string();
            assert!(text.contains("3 x uint32") && text.contains("4 x uint32"), "{text}");
        }
    }
}
