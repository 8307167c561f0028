//! The flight recorder: what a rank is doing, asked from elsewhere.

mod support;

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::World;
use unisono::{Communicator, Config, Flight, Progress, Sum};

#[test]
fn the_last_operations_are_there_in_order_whatever_carried_them_out() {
    for world in World::ALL {
        world.run(3, &Config::default(), |comm| {
            for round in 0..40 {
                comm.all_reduce(&mut vec![1.0f32; if round == 39 { 100_000 } else { 1 + 100 * round }], Sum)
                    .unwrap();
                comm.barrier().unwrap();
            }
            let next = (comm.rank() + 1) % 3;
            comm.send_recv(&[1u8; 9], next, &mut [0u8; 9], (comm.rank() + 2) % 3).unwrap();
            let flight = comm.flight();
            assert_eq!((flight.rank, flight.ranks, flight.operations.len()), (comm.rank(), 3, 64));
            assert!(flight.operations.is_sorted_by_key(|operation| operation.number));
            assert!(flight.operations.iter().all(|operation| operation.progress == Progress::Done));
            let [.., large, _, send, recv] = &flight.operations[..] else { panic!("{flight:?}") };
            assert_eq!((large.call.name(), large.call.count), ("all_reduce", 100_000));
            assert!(large.started < large.ended && large.ended.is_some(), "{large:?}");
            assert_eq!((send.peer, recv.peer), (Some(next), Some((comm.rank() + 2) % 3)));
        });
    }
}

#[test]
fn an_operation_that_waits_is_seen_from_another_thread() {
    for world in World::ALL {
        let seen = AtomicBool::new(false);
        world.run(2, &Config::default(), |comm| {
            if comm.rank() == 1 {
                while !seen.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                return comm.barrier().unwrap();
            }
            let waiting = comm.start(Communicator::barrier);
            let behind = comm.start(Communicator::barrier);
            let begun = Instant::now();
            let waits =
                |flight: &Flight| flight.operations.first().is_some_and(|first| first.peer == Some(1));
            while !waits(&comm.flight()) {
                assert!(begun.elapsed() < Duration::from_secs(5), "{world:?}: {:?}", comm.flight());
                std::thread::sleep(Duration::from_millis(1));
            }
            let flight = comm.flight();
            let first = &flight.operations[0];
            assert_eq!((first.progress, flight.enqueued), (Progress::Started, 1), "{world:?}");
            assert!(first.started.is_some() && flight.json().contains("\"state\": \"started\""));
            seen.store(true, Ordering::Relaxed);
            waiting.wait().unwrap();
            assert!(behind.wait().is_err(), "the other one has left");
            let flight = comm.flight();
            assert_eq!(flight.operations[1].progress, Progress::Failed);
            assert!(flight.error.expect("it is kept").contains("rank 1 has left"));
        });
    }
}

/// A communicator that is over is asked again and again; its record is of what ended it.
#[test]
fn a_failure_leaves_one_record_of_each_rank() {
    let folder = std::env::temp_dir().join(format!("unisono-once-{}", std::process::id()));
    let config = Config { dump: Some(folder.clone()), ..Config::default() };
    let files = || std::fs::read_dir(&folder).map_or(0, Iterator::count);
    let ends: [fn(&Communicator) -> unisono::Result<()>; 2] = [
        |comm| {
            if comm.rank() == 1 {
                comm.abort("enough");
            }
            comm.barrier()
        },
        |comm| comm.all_reduce(&mut vec![1.0f32; 1 + comm.rank()], Sum),
    ];
    for end in ends {
        let together = Barrier::new(2);
        World::Threads.run(2, &config, |comm| {
            end(&comm).expect_err("it ends");
            together.wait();
            let written = files();
            together.wait();
            // One of the two does it.
            let _ = std::fs::remove_dir_all(&folder);
            together.wait();
            comm.barrier().expect_err("it is over");
            comm.abort("again");
            comm.barrier().expect_err("it is over");
            together.wait();
            assert_eq!((written, files()), (2, 0), "rank {}", comm.rank());
        });
    }
}

#[test]
fn ranks_of_one_communicator_have_one_name_for_it_and_no_other_has() {
    for world in World::ALL {
        let names = world.run(2, &Config::default(), |comm| {
            let child = comm.duplicate().unwrap();
            [
                comm.flight().communicator,
                child.flight().communicator,
                child.shrink().unwrap().flight().communicator,
            ]
        });
        let [parent, child, grandchild] = names[0];
        assert_eq!(names[0], names[1], "{world:?}");
        assert!(parent != child && child != grandchild && parent != grandchild);
    }
}
