//! Sends, receives, groups, uneven collectives, split and asynchronous operations.

mod support;

use support::World;
use unisono::schedule::{Algorithm, Collective, PeerAccess};
use unisono::{Communicator, Config, Max, Sum};

#[test]
fn messages_keep_order_at_any_length() {
    let lengths = [0usize, 1, 5, 1000, 32_768, 32_769, 400_001];
    for world in World::ALL {
        world.run(2, &Config::default(), |comm| {
            for (turn, &length) in lengths.iter().enumerate() {
                let message =
                    |rank: usize| (0..length).map(|i| (i * 7 + rank + turn) as u32).collect::<Vec<_>>();
                if comm.rank() == 0 {
                    comm.send(&message(0), 1).unwrap();
                } else {
                    let mut found = vec![0u32; length];
                    comm.recv(&mut found, 0).unwrap();
                    assert_eq!(found, message(0));
                }
            }
        });
    }
}

#[test]
fn group_exchanges_with_all_peers() {
    let count = 50_000;
    for world in World::ALL {
        world.run(4, &Config::default(), |comm| {
            let rank = comm.rank();
            let outgoing: Vec<Vec<u32>> = (0..4).map(|peer| vec![(rank * 10 + peer) as u32; count]).collect();
            let mut incoming = vec![vec![0u32; count]; 4];
            comm.group(|group| {
                for (peer, buffer) in incoming.iter_mut().enumerate() {
                    group.recv(buffer, peer);
                }
                for (peer, buffer) in outgoing.iter().enumerate() {
                    group.send(buffer, peer);
                }
            })
            .unwrap();
            for (peer, buffer) in incoming.iter().enumerate() {
                assert!(buffer.iter().all(|&value| value == (peer * 10 + rank) as u32));
            }
        });
    }
}

#[test]
fn uneven_all_to_all_transposes() {
    let counts = |sender: usize, receiver: usize| (sender * 3 + receiver * 5) % 7 * 1000;
    for world in World::ALL {
        for ranks in [1, 2, 3, 5] {
            world.run(ranks, &Config::default(), |comm| {
                let rank = comm.rank();
                let sends: Vec<usize> = (0..ranks).map(|receiver| counts(rank, receiver)).collect();
                let receives: Vec<usize> = (0..ranks).map(|sender| counts(sender, rank)).collect();
                let cell = |sender: usize, receiver: usize| {
                    vec![(sender * 100 + receiver) as i64; counts(sender, receiver)]
                };
                let input: Vec<i64> = (0..ranks).flat_map(|receiver| cell(rank, receiver)).collect();
                let expected: Vec<i64> = (0..ranks).flat_map(|sender| cell(sender, rank)).collect();
                let mut output = vec![0i64; expected.len()];
                comm.all_to_all_v(&input, &sends, &mut output, &receives).unwrap();
                assert_eq!(output, expected);
            });
        }
    }
}

#[test]
fn uneven_all_gather_concatenates() {
    for world in World::ALL {
        for counts in [vec![3usize, 0, 5], vec![0, 0, 0], vec![1, 70_000, 2]] {
            world.run(3, &Config::default(), |comm| {
                let part = |rank: usize| vec![rank as u32 + 1; counts[rank]];
                let mut output = vec![0u32; counts.iter().sum()];
                comm.all_gather_v(&part(comm.rank()), &mut output, &counts).unwrap();
                assert_eq!(output, (0..3).flat_map(part).collect::<Vec<_>>());
            });
        }
    }
}

#[test]
fn uneven_reduce_scatter_gives_parts_by_every_algorithm() {
    let algorithms = Algorithm::ALL.iter().filter(|row| row.collective == Collective::ReduceScatter);
    let algorithms: Vec<_> = algorithms.filter(|row| row.peer_access != PeerAccess::ZeroCopy).collect();
    for world in World::ALL {
        let usable = algorithms.iter().filter(|row| row.peer_access <= world.peer_access());
        let names: Vec<_> = usable.map(|row| Some(row.name)).chain([None]).collect();
        for counts in
            [vec![3usize, 0, 5, 1], vec![0, 0, 0, 0], vec![1, 70_000, 2, 300], vec![900, 900, 900, 900]]
        {
            world.run(4, &Config::default(), |comm| {
                let total: usize = counts.iter().sum();
                let input: Vec<i64> = (0..total).map(|index| (comm.rank() * 7 + index) as i64).collect();
                let begin: usize = counts[..comm.rank()].iter().sum();
                let range = begin..begin + counts[comm.rank()];
                for name in &names {
                    comm.set_algorithm(Collective::ReduceScatter, *name).unwrap();
                    for (op, factor, added) in [(Sum, 4, 42), (Max, 1, 21)] {
                        let mut output = vec![-1i64; range.len()];
                        comm.reduce_scatter_v(&input, &mut output, &counts, op).unwrap();
                        let expected: Vec<i64> =
                            range.clone().map(|index| index as i64 * factor + added).collect();
                        assert_eq!(output, expected, "{world:?} {name:?} {counts:?} {op:?}");
                    }
                }
            });
        }
    }
}

#[test]
fn uneven_gather_and_scatter_match_counts_at_every_root() {
    let all_counts = [vec![3usize, 0, 5, 1], vec![0, 0, 0, 0], vec![1, 70_000, 2, 300]];
    for world in World::ALL {
        world.run(4, &Config::default(), |comm| {
            let rank = comm.rank();
            for (counts, root) in all_counts.iter().flat_map(|counts| (0..4).map(move |root| (counts, root)))
            {
                let begin: usize = counts[..rank].iter().sum();
                let values: Vec<u32> = (0..counts.iter().sum::<usize>() as u32).collect();
                let share = &values[begin..begin + counts[rank]];
                let mut gathered = vec![u32::MAX; values.len()];
                let output = (rank == root).then_some((&mut gathered[..], &counts[..]));
                comm.gather_v(share, output, root).unwrap();
                assert_eq!(
                    gathered,
                    if rank == root { values.clone() } else { vec![u32::MAX; values.len()] }
                );
                let mut part = vec![u32::MAX; share.len()];
                let input = (rank == root).then_some((&values[..], &counts[..]));
                comm.scatter_v(input, &mut part, root).unwrap();
                assert_eq!(part, share, "{world:?} {counts:?} root {root}");
            }
        });
    }
}

#[test]
fn uneven_gather_refuses_counts_that_do_not_add_up() {
    World::Threads.run(2, &Config::default(), |comm| {
        let mut gathered = [0u8; 3];
        if comm.rank() == 0 {
            for counts in [&[1usize][..], &[1, 1], &[2, 1]] {
                let error = comm.gather_v(&[1u8], Some((&mut gathered, counts)), 0).unwrap_err();
                assert!(error.is_invalid_usage() && error.to_string().contains("gather_v #0"), "{error}");
            }
            let error = comm.scatter_v::<u8>(None, &mut gathered, 0).unwrap_err();
            assert!(error.to_string().contains("rank 0, must give an input"), "{error}");
        }
        let output = (comm.rank() == 0).then_some((&mut gathered[..], &[1, 2][..]));
        comm.gather_v(&[7u8, 8][..comm.rank() + 1], output, 0).unwrap();
        assert!(comm.rank() > 0 || gathered == [7, 7, 8]);
    });
}

#[test]
fn uneven_gather_with_another_count_names_both() {
    for world in World::ALL {
        let results = world.run(3, &Config::default(), |comm| {
            let mut gathered = [0u32; 6];
            let output = (comm.rank() == 0).then_some((&mut gathered[..], &[2, 2, 2][..]));
            let given = if comm.rank() == 2 { 3 } else { 2 };
            comm.gather_v(&[1u32; 3][..given], output, 0)
        });
        let error = results[0].as_ref().unwrap_err().to_string();
        assert!(error.contains("gather_v #0 (2 x uint32, ") && error.contains("(3 x uint32, "), "{error}");
    }
}

#[test]
fn split_by_color_and_key() {
    for world in World::ALL {
        world.run(5, &Config::default(), |comm| {
            let color = [Some(7), Some(9), None, Some(7), Some(7)][comm.rank()];
            let part = comm.split(color, -(comm.rank() as i32)).unwrap();
            let Some(part) = part else {
                assert_eq!(comm.rank(), 2);
                return;
            };
            let expected = match comm.rank() {
                4 => (0, 3),
                3 => (1, 3),
                0 => (2, 3),
                _ => (0, 1),
            };
            assert_eq!((part.rank(), part.size()), expected);
            let mut sum = [comm.rank() as u32];
            part.all_reduce(&mut sum, Sum).unwrap();
            assert_eq!(sum[0], if color == Some(9) { 1 } else { 7 });
        });
    }
}

#[test]
fn two_communicators_make_progress_independently() {
    for world in World::ALL {
        world.run(3, &Config::default(), |comm| {
            let twin = comm.duplicate().unwrap();
            // Opposite orders on odd and even ranks: each communicator has its own thread.
            std::thread::scope(|scope| {
                let work = |comm: Communicator| {
                    move || {
                        for turn in 0..50u64 {
                            let mut values = vec![turn; 3000];
                            comm.all_reduce(&mut values, Sum).unwrap();
                            assert_eq!(values[2999], 3 * turn);
                        }
                    }
                };
                scope.spawn(work(comm.clone()));
                scope.spawn(work(twin.clone()));
            });
        });
    }
}

#[test]
fn a_thousand_operations_in_flight_complete_in_order() {
    for world in World::ALL {
        world.run(2, &Config::default(), |comm| {
            let pending: Vec<_> = (0..1000u32)
                .map(|turn| comm.all_reduce_async(vec![turn; 1 + turn as usize % 50], Sum))
                .collect();
            for (turn, pending) in pending.into_iter().enumerate() {
                assert_eq!(pending.wait().unwrap()[0], 2 * turn as u32);
            }
            // Blocking calls take their place behind what was started.
            let started = comm.all_gather_async(vec![comm.rank() as u8]);
            let mut sum = [1u8];
            comm.all_reduce(&mut sum, Sum).unwrap();
            assert!(started.is_finished());
            assert_eq!((started.wait().unwrap(), sum), (vec![0, 1], [2]));
        });
    }
}

#[test]
fn scoped_operations_borrow_buffers() {
    World::Threads.run(3, &Config::default(), |comm| {
        let mut values = vec![comm.rank() as f64; 100_000];
        let input = vec![comm.rank() as i8; 10];
        let mut gathered = vec![0i8; 30];
        comm.scope(|scope| {
            let reduced = scope.all_reduce(&mut values, Sum);
            let gathered = scope.all_gather(&input, &mut gathered);
            assert_eq!(reduced.wait().unwrap()[99_999], 3.0);
            assert_eq!(gathered.wait().unwrap()[25], 2);
            Ok(())
        })
        .unwrap();
        assert_eq!((values[0], gathered[10]), (3.0, 1));
    });
}

/// A caller that looks at no handle gets the first error. One that took an error gets it once.
#[test]
fn scope_returns_first_error_that_no_handle_returned() {
    let failing = |root: usize| move |comm: &Communicator| comm.broadcast(&mut [0u8], root);
    let comm = Communicator::local(1).unwrap().remove(0);
    let dropped = comm.scope(|scope| {
        let taken = scope.spawn(failing(70));
        drop((scope.spawn(failing(71)), scope.spawn(failing(72)), scope.spawn(|_| Ok(()))));
        assert!(taken.wait().unwrap_err().to_string().contains("70"));
        Ok(())
    });
    assert!(dropped.unwrap_err().to_string().contains("71"));
    let taken = comm.scope(|scope| {
        assert!(scope.spawn(failing(70)).wait().is_err());
        Ok(7)
    });
    assert_eq!(taken.unwrap(), 7);
    let ended = comm.scope(|scope| {
        drop(scope.spawn(failing(71)));
        failing(70)(&comm)
    });
    assert!(ended.unwrap_err().to_string().contains("70"));
}

/// Ranks that disagree do not go on with what they had before.
#[test]
fn scope_returns_mismatch_of_dropped_handle() {
    let errors = World::Threads.run(2, &Config::default(), |comm| {
        let mut gradients = vec![1.0f32; 10 + comm.rank()];
        comm.scope(|scope| {
            drop(scope.all_reduce(&mut gradients, Sum));
            Ok(())
        })
        .unwrap_err()
    });
    assert!(errors.iter().all(|error| error.to_string().contains("all_reduce")), "{errors:?}");
}

#[test]
fn a_panic_inside_an_operation_aborts_every_rank() {
    let errors = World::Threads.run(2, &Config::default(), |comm| {
        if comm.rank() == 0 {
            return comm.spawn(|_| -> unisono::Result<()> { panic!("on purpose") }).wait().unwrap_err();
        }
        comm.barrier().unwrap_err()
    });
    for error in errors {
        assert!(error.to_string().contains("rank 0 aborted: an operation panicked"), "{error}");
    }
}
