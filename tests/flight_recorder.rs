//! The flight recorder: what a rank is doing, asked from elsewhere.

mod support;

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::World;
use unisono::{Communicator, Config, FlightRecord, OpState, Sum};
use unisono_transports::testing::HANG;

#[test]
fn record_keeps_last_operations_in_order() {
    for world in World::ALL {
        world.run(3, &Config::default(), |comm| {
            for round in 0..40 {
                comm.all_reduce(&mut vec![1.0f32; if round == 39 { 100_000 } else { 1 + 100 * round }], Sum)
                    .unwrap();
                comm.barrier().unwrap();
            }
            let next = (comm.rank() + 1) % 3;
            comm.send_recv(&[1u8; 9], next, &mut [0u8; 9], (comm.rank() + 2) % 3).unwrap();
            let flight = comm.flight_record();
            assert_eq!((flight.rank, flight.ranks, flight.operations.len()), (comm.rank(), 3, 64));
            assert!(flight.operations.is_sorted_by_key(|operation| operation.number));
            assert!(flight.operations.iter().all(|operation| operation.state == OpState::Done));
            let [.., large, _, send, recv] = &flight.operations[..] else { panic!("{flight:?}") };
            assert_eq!((large.op.name(), large.op.count), ("all_reduce", 100_000));
            assert!(large.started < large.ended && large.ended.is_some(), "{large:?}");
            assert_eq!((send.peer, recv.peer), (Some(next), Some((comm.rank() + 2) % 3)));
        });
    }
}

#[test]
fn waiting_operation_is_visible_to_other_threads() {
    for world in World::ALL {
        let seen = AtomicBool::new(false);
        world.run(2, &Config::default(), |comm| {
            if comm.rank() == 1 {
                let begun = Instant::now();
                while !seen.load(Ordering::Relaxed) {
                    assert!(begun.elapsed() < HANG, "{world:?}: rank 0 has failed");
                    std::thread::sleep(Duration::from_millis(1));
                }
                return comm.barrier().unwrap();
            }
            let waiting = comm.spawn(Communicator::barrier);
            let second = comm.spawn(Communicator::barrier);
            let begun = Instant::now();
            let waits =
                |flight: &FlightRecord| flight.operations.first().is_some_and(|first| first.peer == Some(1));
            while !waits(&comm.flight_record()) {
                assert!(begun.elapsed() < HANG, "{world:?}: {:?}", comm.flight_record());
                std::thread::sleep(Duration::from_millis(1));
            }
            let flight = comm.flight_record();
            let first = &flight.operations[0];
            assert_eq!((first.state, flight.enqueued), (OpState::Started, 1), "{world:?}");
            let json: serde_json::Value = serde_json::from_str(&flight.to_json()).unwrap();
            assert!(first.started.is_some() && json["operations"][0]["state"] == "started", "{json}");
            seen.store(true, Ordering::Relaxed);
            waiting.wait().unwrap();
            assert!(second.wait().is_err(), "the other one has left");
            let flight = comm.flight_record();
            assert_eq!(flight.operations[1].state, OpState::Failed);
            assert!(flight.error.expect("it is kept").contains("rank 1 has left"));
        });
    }
}

/// A communicator that is over is asked again and again; its record is of what ended it.
#[test]
fn failure_dumps_one_record_per_rank() {
    let folder = std::env::temp_dir().join(format!("unisono-once-{}", std::process::id()));
    let config = Config::default().with_flight_recorder_dir(Some(folder.clone()));
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
            // One of the two ranks reports the mismatch.
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

/// Errors in records quote what programs say, and other users of the host are not meant to read it.
#[test]
fn records_and_traces_are_for_their_user_only() {
    use std::os::unix::fs::MetadataExt;
    let folder = std::env::temp_dir().join(format!("unisono-modes-{}", std::process::id()));
    let dir = Some(folder.clone());
    let config = Config::default().with_flight_recorder_dir(dir.clone()).with_trace_dir(dir);
    let together = Barrier::new(2);
    World::Threads.run(2, &config, |comm| {
        comm.barrier().expect("both come");
        // The other rank may still be on its way out of the barrier, and an abort would make
        // that fail.
        together.wait();
        comm.abort("enough");
    });
    let files: Vec<_> = std::fs::read_dir(&folder).expect("a folder").map(Result::unwrap).collect();
    let modes: Vec<u32> = files.iter().map(|file| file.metadata().unwrap().mode() & 0o777).collect();
    assert_eq!(modes, [0o600; 4], "{files:?}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn communicator_id_is_shared_and_unique() {
    for world in World::ALL {
        let names = world.run(2, &Config::default(), |comm| {
            let child = comm.duplicate().unwrap();
            [
                comm.flight_record().communicator,
                child.flight_record().communicator,
                child.shrink().unwrap().flight_record().communicator,
            ]
        });
        let [parent, child, grandchild] = names[0];
        assert_eq!(names[0], names[1], "{world:?}");
        assert!(parent != child && child != grandchild && parent != grandchild);
    }
}
