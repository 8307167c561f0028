//! Handles of operations under way: one has them before anything is done, and what follows from
//! their results.

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};
use support::World;
use unisono::{Communicator, Config, ErrorKind, Sum};
use unisono_transports::testing::HANG;

#[test]
fn async_start_waits_for_no_peer() {
    for world in World::ALL {
        let started = Barrier::new(2);
        world.run(2, &Config::default(), |comm| {
            if comm.rank() == 1 {
                started.wait();
            }
            let start = |_| comm.all_reduce_async(vec![1.0f32; 50_000], Sum);
            let pending: Vec<_> = (0..100).map(start).collect();
            if comm.rank() == 0 {
                // The peer has started nothing yet.
                assert!(!pending.iter().any(|pending| pending.is_finished()), "{world:?}");
                started.wait();
            }
            pending.into_iter().for_each(|pending| assert_eq!(pending.wait().unwrap()[49_999], 2.0));
        });
    }
}

#[test]
fn callbacks_run_once_in_order_after_completion() {
    for world in World::ALL {
        world.run(2, &Config::default(), |comm| {
            let (calls, order) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
            let follow = |turn: usize| {
                let (calls, order) = (Arc::clone(&calls), Arc::clone(&order));
                comm.all_reduce_async(vec![turn as u32; 1000], Sum).and_then(move |sums| {
                    calls.fetch_add(1, Ordering::Relaxed);
                    order.lock().unwrap().push(turn);
                    Ok(sums.iter().sum::<u32>())
                })
            };
            let pending: Vec<_> = (0..50).map(follow).collect();
            for (turn, pending) in pending.into_iter().enumerate() {
                assert_eq!(pending.wait().unwrap(), 2000 * turn as u32);
            }
            let late = comm.all_gather_async(vec![comm.rank() as u8]);
            comm.barrier().unwrap();
            assert_eq!(late.and_then(|gathered| Ok(gathered.len())).wait().unwrap(), 2);
            assert_eq!(calls.load(Ordering::Relaxed), 50);
            assert!(order.lock().unwrap().iter().copied().eq(0..50));
        });
    }
}

#[test]
fn callback_may_start_but_not_wait() {
    World::Threads.run(2, &Config::default(), |comm| {
        let handle = comm.clone();
        let next =
            comm.all_reduce_async(vec![1u8], Sum).and_then(move |sum| Ok(handle.all_reduce_async(sum, Sum)));
        assert_eq!(next.wait().unwrap().wait().unwrap(), [4]);
        let waits = |wait: fn(&Communicator) -> unisono::Result<()>| {
            let ((go, gate), handle) = (channel(), comm.clone());
            let held = comm.spawn(move |comm| {
                gate.recv().unwrap();
                comm.barrier()
            });
            // A completed operation calls back at once, in a place where blocking is allowed.
            let waiting = held.and_then(move |()| wait(&handle));
            go.send(()).unwrap();
            waiting.wait().unwrap_err()
        };
        let blocked = waits(|comm| comm.barrier());
        let started = waits(|comm| comm.spawn(|_| Ok(())).wait());
        let panicked = waits(|_| panic!("on purpose"));
        for error in [&blocked, &started, &panicked] {
            assert!(matches!(error.kind(), ErrorKind::InvalidUsage(_)), "{error}");
        }
        assert!(blocked.to_string().contains("waits for one that comes later"), "{blocked}");
        comm.barrier().unwrap();
    });
}

#[test]
fn callback_does_not_run_after_error() {
    World::Threads.run(2, &Config::default(), |comm| {
        let pending = comm.all_reduce_async(vec![0u8; 1 + comm.rank()], Sum);
        let error =
            pending.and_then(|_| -> unisono::Result<()> { panic!("nothing to see") }).wait().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{error}");
    });
}

/// Started operations of communicators that are idle again share a few threads.
#[test]
fn idle_communicators_have_no_threads() {
    let comms: Vec<_> = (0..64).map(|_| Communicator::local(1).unwrap().remove(0)).collect();
    for comm in &comms {
        comm.all_reduce_async(vec![1u32; 10], Sum).wait().unwrap();
    }
    let workers = || {
        let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let names = threads.map(|thread| std::fs::read_to_string(thread.path().join("comm")));
        names.filter(|name| name.as_ref().is_ok_and(|name| name.trim() == "unisono-worker")).count()
    };
    // A call may return before its thread waits for the next one, which then gets another thread. A
    // thread that has nothing to do ends. Other tests of this process have workers too.
    let start = Instant::now();
    while workers() >= 32 {
        assert!(start.elapsed() < HANG, "{} threads for 64 idle communicators", workers());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Started operations allocate their outputs, whose lengths users choose.
#[test]
fn outputs_beyond_memory_are_errors_of_this_rank() {
    let comm = Communicator::local(1).expect("one").remove(0);
    for count in [1usize << 47, 1 << 58] {
        let works = [
            comm.all_gather_v_async::<u8>(Vec::new(), vec![count]),
            comm.all_to_all_v_async::<u8>(Vec::new(), vec![0], vec![count]),
            comm.scatter_async::<u8>(None, count, 0),
        ];
        for work in works {
            let error = work.wait().unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::System(_)), "{error}");
            assert!(error.to_string().contains(&format!(": no memory for {count} elements of ")), "{error}");
        }
    }
    comm.barrier().expect("the communicator stays usable");
}

/// Over TCP, symmetric memory is ordinary memory.
#[test]
fn symmetric_memory_beyond_memory_is_an_error() {
    World::Tcp.run(2, &Config::default(), |comm| {
        let error = comm.alloc_symmetric::<u8>(1 << 47).map(drop).unwrap_err();
        assert!(error.to_string().contains("are more than memory holds"), "{error}");
        comm.barrier().expect("the communicator stays usable");
    });
}
