//! Models of the interaction between the threads of a rank.
//!
//! They cover calls, started operations, aborts at any moment, and the drop of the last owner.
//! Ranks communicate as threads do, and wait by the clock of the model.

use crate::communicator::*;
use crate::sync::{AtomicBool, AtomicU64};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use unisono_transports::sync::shuttle::TICK;
use unisono_transports::testing::shuttle::{Clock, block_on, explore};

/// Returns `count` connected ranks, with little memory.
fn ranks(count: usize) -> Vec<Communicator> {
    related(&(0..count).map(|_| Arc::default()).collect::<Vec<_>>())
}

/// Returns one rank for each registry of related communicators.
fn related(registries: &[Arc<CommRegistry>]) -> Vec<Communicator> {
    let sizes = Config { channels: 1, fifo_depth: 2, fifo_slot_bytes: 4096, ..Config::default() };
    let config =
        Config { shm_window_bytes: 1 << 16, symmetric_heap_bytes: 4096, host: "here".to_owned(), ..sizes };
    let meshes = unisono_transports::threads::fabrics(registries.len(), config.geometry()).unwrap();
    let communicator = |(mesh, registry)| {
        let mesh = Fabric { wait: Box::new(Clock), ..mesh };
        Communicator::with_registry(registry, (0, Vec::new()), mesh, &config, Origin::Custom(None, 0))
    };
    meshes.into_iter().zip(registries).map(communicator).collect()
}

fn two() -> [Communicator; 2] {
    let mut ranks = ranks(2).into_iter();
    [(); 2].map(|()| ranks.next().unwrap())
}

/// Returns the error of an abort by rank `aborter` for `reason`.
fn aborted(aborter: Rank, reason: &str) -> ErrorKind {
    ErrorKind::abort_request(aborter, reason)
}

/// Asserts that the communicator is poisoned and returns the same error again and again. Returns
/// that error.
fn assert_poisoned(comm: &Communicator) -> ErrorKind {
    let errors = [(); 2].map(|()| comm.barrier().unwrap_err());
    assert_eq!(errors[0].kind(), errors[1].kind());
    assert_eq!(
        comm.flight_record().error,
        Some(errors[0].to_string()),
        "the record tells of another failure"
    );
    errors[0].kind().clone()
}

/// Aborts rank 0 twice, at any moment of a call on both ranks. The call must return, and all later
/// calls must report the first reason on both ranks.
fn check_abort_during(call: fn(&Communicator) -> Result<()>) {
    let ranks = two();
    let calls = ranks.clone().map(|comm| thread::spawn(move || call(&comm)));
    let aborting = ranks[0].clone();
    let abort = thread::spawn(move || ["enough", "too late"].map(|reason| aborting.abort(reason)));
    for ended in calls.map(|call| call.join().unwrap()) {
        let kind = ended.as_ref().map_err(|error| error.kind()).err();
        assert!(kind.is_none_or(|kind| *kind == aborted(0, "enough")), "{ended:?}");
    }
    abort.join().unwrap();
    assert_eq!(ranks.each_ref().map(assert_poisoned), [aborted(0, "enough"), aborted(0, "enough")]);
}

#[test]
fn shuttle_abort_during_collective_reaches_all_ranks() {
    explore(|| check_abort_during(Communicator::barrier));
}

#[test]
fn shuttle_abort_during_group_reaches_all_ranks() {
    explore(|| {
        check_abort_during(|comm| {
            let peer = 1 - comm.rank();
            comm.send_recv(&[comm.rank() as u64; 3], peer, &mut [0; 3], peer)
        });
    });
}

#[test]
fn shuttle_abort_during_spawned_op_reaches_all_ranks() {
    explore(|| check_abort_during(|comm| comm.spawn(|comm| comm.barrier()).wait()));
}

/// Each rank is aborted by a thread of its own, while another thread calls.
#[test]
fn shuttle_concurrent_aborts_end_both_ranks() {
    explore(|| {
        let ranks = two();
        let ends = ranks.clone().map(|comm| thread::spawn(move || comm.abort("enough")));
        let calling = ranks[0].clone();
        let call = thread::spawn(move || calling.barrier());
        ends.into_iter().for_each(|end| end.join().unwrap());
        assert!(call.join().unwrap().is_err(), "the other rank has not called");
        for kind in ranks.each_ref().map(assert_poisoned) {
            assert!([0, 1].map(|rank| aborted(rank, "enough")).contains(&kind), "{kind:?}");
        }
    });
}

/// Waits for operations that run or are queued when the communicator ends must return. Their
/// callbacks must not run.
#[test]
fn shuttle_abort_releases_waiters_of_spawned_ops() {
    explore(|| {
        let [first_rank, second_rank] = two();
        let followed = Arc::new(AtomicBool::new(false));
        let follow = Arc::clone(&followed);
        let first = first_rank.spawn(|comm| comm.barrier());
        let then = first_rank.spawn(|comm| comm.barrier()).and_then(move |()| {
            follow.store(true, Ordering::SeqCst);
            Ok(())
        });
        let abort = thread::spawn(move || first_rank.abort("enough"));
        let waits = [first, then].map(|pending| thread::spawn(move || pending.wait()));
        for ended in waits.map(|wait| wait.join().unwrap()) {
            assert_eq!(ended.unwrap_err().kind(), &aborted(0, "enough"));
        }
        assert!(!followed.load(Ordering::SeqCst));
        abort.join().unwrap();
        // Rank 0 may have entered the first of these barriers.
        let _ = second_rank.barrier();
        assert_eq!(assert_poisoned(&second_rank), aborted(0, "enough"));
    });
}

/// A rank that waits in one communicator announces this in a related one, which is aborted at that
/// moment. The other rank of the related communicator must learn of the abort.
#[test]
fn shuttle_abort_reaches_ranks_while_related_comm_announces() {
    explore(|| {
        let registries = [Arc::default(), Arc::default()];
        let [waiting, ending] = [(); 2].map(|()| related(&registries));
        let comm = waiting[0].clone();
        let wait = thread::spawn(move || comm.barrier());
        let comm = ending[0].clone();
        let abort = thread::spawn(move || {
            let begun = Instant::now();
            while begun.elapsed() < LONGER_THAN_ANNOUNCE_INTERVAL && comm.shared.engine.try_lock().is_ok() {
                thread::sleep(TICK);
            }
            comm.abort("enough");
        });
        let begun = Instant::now();
        while begun.elapsed() < LONGER_THAN_ANNOUNCE_INTERVAL {
            thread::sleep(TICK);
        }
        waiting[1].barrier().unwrap();
        wait.join().unwrap().unwrap();
        abort.join().unwrap();
        assert_eq!(assert_poisoned(&ending[1]), aborted(0, "enough"));
    });
}

/// Records if operations overlap, and the order in which they run.
#[derive(Default)]
struct Log {
    busy: AtomicBool,
    overlapped: AtomicBool,
    entries: std::sync::Mutex<Vec<(usize, usize)>>,
}

impl Log {
    fn enter(&self, who: usize, index: usize) -> Result<()> {
        let overlaps = self.busy.swap(true, Ordering::SeqCst);
        self.overlapped.fetch_or(overlaps, Ordering::SeqCst);
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).push((who, index));
        thread::sleep(TICK);
        self.busy.store(false, Ordering::SeqCst);
        Ok(())
    }
}

/// Threads share a communicator: each starts an operation, calls one and starts another.
#[test]
fn shuttle_ops_of_threads_never_overlap_and_keep_order() {
    explore(|| {
        let (comm, log) = (ranks(1).remove(0), Arc::new(Log::default()));
        let threads = (0..3).map(|who| {
            let (comm, log) = (comm.clone(), Arc::clone(&log));
            thread::spawn(move || {
                let start = |index| {
                    let log = Arc::clone(&log);
                    comm.spawn(move |comm| comm.with_engine(|_| log.enter(who, index)))
                };
                let first = start(0);
                comm.with_engine(|_| log.enter(who, 1)).unwrap();
                start(2).wait().unwrap();
                first.wait().unwrap();
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(!log.overlapped.load(Ordering::SeqCst), "two operations at once");
        let entries = log.entries.lock().unwrap();
        for who in 0..3 {
            let order: Vec<_> = entries.iter().filter(|entry| entry.0 == who).map(|entry| entry.1).collect();
            assert_eq!(order, [0, 1, 2], "thread {who}");
        }
    });
}

/// A result is delivered exactly once: to a waiting thread, a future or a callback.
#[test]
fn shuttle_result_is_delivered_exactly_once() {
    explore(|| {
        let (comm, calls) = (ranks(1).remove(0), Arc::new(AtomicU64::new(0)));
        let [waited, awaited, followed] = [1, 2, 3].map(|number| comm.spawn(move |_| Ok(number)));
        let wait = thread::spawn(move || waited.wait().unwrap());
        let await_it = thread::spawn(move || block_on(awaited).unwrap());
        let counted = Arc::clone(&calls);
        let followed = followed.and_then(move |number| {
            counted.fetch_add(1, Ordering::SeqCst);
            Ok(number + 1)
        });
        assert_eq!(followed.wait().unwrap(), 4);
        assert_eq!((wait.join().unwrap(), await_it.join().unwrap()), (1, 2));
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    });
}

/// A started operation continues when its communicator is dropped. The communicator and its thread
/// end after it.
#[test]
fn shuttle_spawned_op_may_be_last_owner() {
    explore(|| {
        let ranks = two().map(|comm| {
            thread::spawn(move || {
                let pending = comm.spawn(|comm| comm.barrier());
                let shared = Arc::downgrade(&comm.shared);
                drop(comm);
                (pending.wait(), shared)
            })
        });
        let ranks = ranks.map(|rank| rank.join().unwrap());
        ranks.iter().for_each(|(ended, _)| assert!(ended.is_ok(), "{ended:?}"));
        while ranks.iter().any(|(_, shared)| shared.strong_count() > 0) {
            thread::sleep(TICK); // a remaining owner exhausts the step limit
        }
    });
}

/// A wait for a rank that leaves must return an error.
#[test]
fn shuttle_wait_for_finalized_rank_fails() {
    explore(|| {
        let [first_rank, second_rank] = two();
        let first_rank_clone = first_rank.clone();
        let leaving = [first_rank, first_rank_clone].map(|comm| thread::spawn(move || drop(comm)));
        assert_eq!(second_rank.barrier().unwrap_err().kind(), &ErrorKind::PeerFinalized { peer: 0 });
        leaving.into_iter().for_each(|leaving| leaving.join().unwrap());
    });
}

/// A scope ends when all operations started in it have ended, waited for or not.
#[test]
fn shuttle_scope_waits_for_spawned_ops() {
    explore(|| {
        let (comm, mut numbers) = (ranks(1).remove(0), [0; 2]);
        let other = comm.clone();
        let barrier = thread::spawn(move || other.barrier());
        let [left, right] = &mut numbers;
        comm.scope(|scope| {
            drop(scope.spawn(|_| {
                *left = 1;
                Ok(())
            }));
            let last = scope.spawn(|_| {
                *right = 2;
                Ok(())
            });
            last.wait()
        })
        .unwrap();
        assert_eq!(numbers, [1, 2]);
        barrier.join().unwrap().unwrap();
    });
}

/// Longer than the time after which a waiting rank announces its wait.
const LONGER_THAN_ANNOUNCE_INTERVAL: Duration = Duration::from_millis(500);
