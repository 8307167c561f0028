//! Survivors shrink a communicator: the same members on every rank, in the old order, with right
//! sums.

mod support;

use std::net::Ipv4Addr;
use std::sync::Barrier;
use std::time::{Duration, Instant};
use support::World;
use unisono::{BootstrapError, Communicator, Config, Error, ErrorKind, Sum, Transport, UniqueId};
use unisono_transports::testing::{HANG, NEVER};

fn config() -> Config {
    Config::default().with_timeout(NEVER)
}

/// The sum of what ranks give, each its number in the first world and one.
fn sum(comm: &Communicator, number: usize) -> f32 {
    let mut values = vec![number as f32 + 1.0; 3000];
    comm.all_reduce(&mut values, Sum).expect("a sound communicator");
    assert!(values.iter().all(|value| *value == values[0]));
    values[0]
}

#[test]
fn shrink_without_failures_keeps_ranks() {
    for world in World::ALL {
        world.run(3, &config(), |comm| {
            let again = comm.shrink().expect("everybody is here");
            assert_eq!((again.rank(), again.size(), again.epoch()), (comm.rank(), 3, comm.epoch() + 1));
            assert_eq!(again.transport(), comm.transport());
            assert_eq!(sum(&again, comm.rank()), 6.0);
            assert!(
                matches!(comm.barrier().unwrap_err().kind(), ErrorKind::Aborted { .. }),
                "the old one is over"
            );
            assert!(comm.shrink().unwrap_err().is_invalid_usage());
        });
    }
}

#[test]
fn survivors_keep_order_down_to_one() {
    for world in World::ALL {
        let begun = Instant::now();
        world.run(5, &config(), |first| {
            let (number, mut comm) = (first.rank(), first);
            // The first rank, a middle one, the last one, and the first of the survivors.
            for (leaver, total) in [(0, 14.0), (2, 11.0), (4, 6.0), (1, 4.0)] {
                if number == leaver {
                    return;
                }
                let error = comm.all_reduce(&mut [0.0f32; 3000], Sum).unwrap_err();
                assert!(!error.is_invalid_usage(), "{error}");
                let old_rank = comm.rank();
                comm = comm.shrink().unwrap_or_else(|error| panic!("{world:?}, rank {number}: {error}"));
                assert!(comm.rank() == old_rank || comm.rank() + 1 == old_rank);
                assert_eq!(sum(&comm, number), total, "{world:?}");
            }
            assert_eq!((comm.rank(), comm.size(), comm.epoch()), (0, 1, 4));
        });
        assert!(begun.elapsed() < HANG, "{world:?}: {:?}", begun.elapsed());
    }
}

#[test]
fn survivors_agree_on_the_smallest_value() {
    for world in World::ALL {
        world.run(5, &config(), |first| {
            let (number, mut comm) = (first.rank(), first);
            // The rank that leaves has a smaller value than those that are left, or a larger one.
            for (leaver, values, smallest) in [(1, [30, 10, 20, 40, 50], 20), (4, [7, 0, 9, 8, 99], 7)] {
                if number == leaver {
                    return;
                }
                assert!(comm.all_reduce(&mut [0.0f32; 3000], Sum).is_err());
                let (left, value) = comm.shrink_and_agree(values[number]).expect("the others are left");
                assert_eq!((left.size(), value), (comm.size() - 1, smallest), "{world:?}, rank {number}");
                comm = left;
            }
            // A rank that only shrinks gives no value.
            let left = match number {
                0 => comm.shrink(),
                _ => comm.shrink_and_agree(number as u64).map(|(left, value)| {
                    assert_eq!(value, 2, "{world:?}");
                    left
                }),
            };
            assert_eq!(left.expect("all are here").size(), 3);
        });
    }
}

#[test]
fn recovery_repeats_an_attempt_without_the_dead() {
    for world in World::ALL {
        world.run(4, &config(), |comm| {
            let number = comm.rank();
            let mut attempts = Vec::new();
            let outcome = comm.run_with_recovery(
                || 10 + number as u64,
                |comm, value| {
                    attempts.push((comm.size(), value));
                    match number {
                        0 => Err("no data".into()),
                        _ => Ok(comm.all_reduce_value(number, Sum)?),
                    }
                },
            );
            let expected: &[_] = match number {
                0 => &[(4, 10)],
                _ => &[(4, 10), (3, 11)],
            };
            assert_eq!(attempts, expected, "{world:?}, rank {number}");
            match number {
                0 => assert_eq!(outcome.unwrap_err().to_string(), "no data"),
                _ => assert_eq!(outcome.expect("three are left"), 6, "{world:?}, rank {number}"),
            }
        });
    }
}

#[test]
fn errors_that_would_come_again_end_a_recovery() {
    for world in World::ALL {
        let ended = Barrier::new(2);
        world.run(2, &config(), |comm| {
            let (handle, mut attempts) = (comm.clone(), 0);
            let outcome = comm.run_with_recovery(
                || 0,
                |comm, _| {
                    attempts += 1;
                    // Ranks disagree on the count.
                    Ok(comm.all_reduce(&mut vec![0.0f32; 8 + comm.rank()], Sum)?)
                },
            );
            // No rank leaves before the other has its error.
            ended.wait();
            drop(handle);
            let error = outcome.unwrap_err();
            let error: &Error = error.downcast_ref().expect("an error of the library");
            assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{world:?}: {error}");
            assert_eq!(attempts, 1, "{world:?}");
        });
    }
}

#[test]
fn shrink_ends_waits_of_other_ranks() {
    for world in World::ALL {
        world.run(3, &config(), |comm| {
            if comm.rank() != 1 {
                let error = comm.recv(&mut [0u8], 1).unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::Aborted { .. }), "{error}");
            }
            assert_eq!(sum(&comm.shrink().expect("all are here"), comm.rank()), 6.0);
        });
    }
}

#[test]
fn aborted_communicators_shrink_and_so_do_groups() {
    for world in World::ALL {
        world.run(4, &config(), |comm| {
            let group = comm.split(Some(comm.rank() as u32 / 2), 0).expect("two groups").expect("one each");
            if comm.rank() == 3 {
                return;
            }
            if comm.rank() == 0 {
                comm.abort("enough");
            }
            assert_eq!(sum(&comm.shrink().expect("three are left"), comm.rank()), 6.0);
            let left = group.shrink().expect("of each group somebody is left").size();
            assert_eq!(left, if comm.rank() == 2 { 1 } else { 2 });
        });
    }
}

#[test]
fn silent_rank_is_excluded_and_harmless_when_late() {
    let config = Config::default().with_timeout(Duration::from_millis(200));
    for world in World::ALL {
        world.run(3, &config, |comm| {
            if comm.rank() == 1 {
                std::thread::sleep(Duration::from_millis(3000));
                assert!(comm.all_reduce(&mut [9.0f32; 3000], Sum).is_err());
                let error = comm.shrink().unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::Excluded { .. }), "{world:?}: {error}");
                return;
            }
            assert!(comm.barrier().is_err());
            let two = comm.shrink().expect("two of three");
            // Until the late one has come.
            for _ in 0..100 {
                assert_eq!(sum(&two, comm.rank()), 4.0);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
    }
}

#[test]
fn grow_reuses_freed_ranks() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let config = config().with_transport(transport);
        let ids: Vec<UniqueId> =
            (0..4).map(|_| UniqueId::new(Ipv4Addr::LOCALHOST.into()).expect("an id")).collect();
        let stays = |rank| {
            let mut comm = Communicator::join(&ids[0], rank, 3, &config).expect("three come");
            assert_eq!(sum(&comm, rank), 6.0);
            for id in &ids[1..] {
                while comm.all_reduce(&mut [1.0f32; 3000], Sum).is_ok() {}
                let two = comm.shrink().expect("two are left");
                comm = two.grow(id, 1).expect("one comes");
                assert_eq!((comm.rank(), comm.size(), sum(&two, rank)), (rank, 3, 3.0), "the two go on, too");
                assert_eq!(sum(&comm, rank), 6.0);
            }
        };
        let comes = |id| {
            let comm = Communicator::join(id, 2, 3, &config).expect("it is expected");
            assert_eq!(sum(&comm, 2), 6.0);
        };
        std::thread::scope(|scope| {
            let stays = &stays;
            (0..2).for_each(|rank| drop(scope.spawn(move || stays(rank))));
            ids.iter().for_each(comes);
        });
    }
}

#[test]
fn grow_is_refused_on_all_ranks_without_harm() {
    World::Shm.run(2, &config().with_join_timeout(Duration::from_millis(500)), |comm| {
        let id = UniqueId::new(Ipv4Addr::LOCALHOST.into()).expect("an id");
        assert!(comm.grow(&id, 1).unwrap_err().is_invalid_usage(), "each has an id of its own");
        let mut text = [0u8; 128];
        let own_id = id.to_string();
        text[..own_id.len()].copy_from_slice(own_id.as_bytes());
        comm.broadcast(&mut text, 0).expect("sound");
        let shared: UniqueId =
            std::str::from_utf8(&text[..own_id.len()]).expect("text").parse().expect("an id");
        let error = comm.grow(&shared, 1).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Bootstrap(BootstrapError::RanksMissing { .. })), "{error}");
        assert_eq!(sum(&comm, comm.rank()), 3.0);
    });
    let alone = Communicator::local(1).expect("a thread").remove(0);
    let id = UniqueId::new(Ipv4Addr::LOCALHOST.into()).expect("an id");
    assert!(matches!(alone.grow(&id, 1).unwrap_err().kind(), ErrorKind::Unsupported(_)));
}
