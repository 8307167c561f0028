//! Handles under an executor: one thread awaits all ranks, and what a dropped handle leaves.

mod support;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;
use support::World;
use unisono::{Communicator, Config, ErrorKind, Result, Sum};
use unisono_transports::testing::HANG;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

type Task<R> = Pin<Box<dyn Future<Output = R>>>;

/// Runs tasks on this thread alone until all are ready. Returns their results in order.
fn run_all<R>(tasks: Vec<Task<R>>) -> Vec<R> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut slots: Vec<(Task<R>, Option<R>)> = tasks.into_iter().map(|task| (task, None)).collect();
    loop {
        for (task, result) in slots.iter_mut().filter(|(_, result)| result.is_none()) {
            if let Poll::Ready(value) = task.as_mut().poll(&mut context) {
                *result = Some(value);
            }
        }
        if slots.iter().all(|(_, result)| result.is_some()) {
            return slots.into_iter().filter_map(|(_, result)| result).collect();
        }
        std::thread::park();
    }
}

/// Polls once, with a waker that does nothing.
fn is_pending(future: impl Future) -> bool {
    pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// Calls of every kind, of which those without a form of their own run in `spawn`.
async fn train(comm: Communicator) -> Result<[usize; 3]> {
    let (rank, handle) = (comm.rank(), comm.clone());
    let sum = comm.all_reduce_async(vec![rank], Sum).await?[0];
    let gathered = comm.spawn(move |comm| comm.all_gather_vec(&vec![1u8; rank])).await?;
    let half = comm.spawn(move |comm| comm.split(Some(rank as u32 % 2), 0)).await?;
    let half = half.expect("a color was given");
    let size = half.all_reduce_async(vec![1usize], Sum).await?[0];
    handle.isend(vec![rank], (rank + 1) % handle.size(), 3).await?;
    let (left, _) = handle.irecv(vec![0usize], None, 3).await?;
    assert_eq!(left, [(rank + handle.size() - 1) % handle.size()]);
    Ok([sum, gathered.concat().len(), size])
}

#[test]
fn one_thread_awaits_all_ranks() {
    for world in World::ALL {
        let comms = world.communicators(4, &Config::default());
        let tasks = comms.into_iter().map(|comm| Box::pin(train(comm)) as Task<Result<[usize; 3]>>);
        for result in run_all(tasks.collect()) {
            assert_eq!(result.unwrap(), [6, 6, 2], "{world:?}");
        }
    }
}

/// Returns the number of survivors and the step on which they agree.
async fn survive(comm: Communicator) -> Result<(usize, u64)> {
    assert!(comm.barrier_async().await.is_err());
    let step = comm.rank() as u64 + 5;
    let (left, step) = comm.spawn(move |comm| comm.shrink_and_agree(step)).await?;
    left.barrier_async().await?;
    Ok((left.size(), step))
}

#[test]
fn one_thread_awaits_a_shrink_of_all_survivors() {
    for world in World::ALL {
        let mut comms = world.communicators(3, &Config::default());
        drop(comms.remove(1));
        let tasks = comms.into_iter().map(|comm| Box::pin(survive(comm)) as Task<Result<(usize, u64)>>);
        for result in run_all(tasks.collect()) {
            assert_eq!(result.unwrap(), (2, 5), "{world:?}");
        }
    }
}

/// Sets a flag when it is dropped, as a buffer is freed.
struct Freed(Arc<AtomicBool>);

impl Drop for Freed {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn dropped_handle_leaves_the_operation_its_buffer() {
    for world in World::ALL {
        let [first, second] =
            <[Communicator; 2]>::try_from(world.communicators(2, &Config::default())).unwrap();
        let freed = Arc::new(AtomicBool::new(false));
        let buffer = (vec![1.0f32; 50_000], Freed(Arc::clone(&freed)));
        let mut work = first.spawn(move |comm| {
            let mut buffer = buffer;
            comm.all_reduce(&mut buffer.0, Sum).map(|()| buffer)
        });
        assert!(is_pending(&mut work), "the peer has not come");
        drop(work);
        assert!(!freed.load(Ordering::SeqCst), "the operation uses the buffer");
        let mut sums = vec![2.0f32; 50_000];
        second.all_reduce(&mut sums, Sum).unwrap();
        assert!(sums.iter().all(|&sum| sum == 3.0), "{world:?}");
        let barriers = [first.barrier_async(), second.barrier_async()];
        barriers.into_iter().for_each(|work| work.wait().unwrap());
        assert!(freed.load(Ordering::SeqCst), "{world:?}: nobody takes the buffer");
    }
}

#[test]
fn error_of_a_dropped_handle_comes_out_of_later_calls() {
    World::Threads.run(2, &Config::default(), |comm| {
        drop(comm.all_reduce_async(vec![0u8; 1 + comm.rank()], Sum));
        let error = comm.barrier_async().wait().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{error}");
    });
}

/// The turn of the operation around the scope ends after the scope.
#[test]
fn scope_inside_an_operation_ends() {
    World::Threads.run(2, &Config::default(), |comm| {
        let handle = comm.clone();
        let work = comm.spawn(move |comm| {
            let mut sums = [comm.rank() as u32, 5];
            let [left, right] = &mut sums;
            comm.scope(|scope| {
                let first = scope.all_reduce(std::slice::from_mut(left), Sum);
                drop(scope.all_reduce(std::slice::from_mut(right), Sum));
                first.wait().map(drop)
            })?;
            // A handle without the turn is refused, because its operation would come later.
            let refused = handle.scope(|scope| scope.spawn(|comm| comm.barrier()).wait()).unwrap_err();
            assert!(refused.to_string().contains("waits for one that comes later"), "{refused}");
            Ok(sums)
        });
        let sums = work.wait_timeout(HANG).expect("it ends").unwrap();
        assert_eq!(sums, [1, 10]);
        // A group is refused whether or not its messages have arrived, or are needed at all.
        for members in [vec![0, 1], vec![comm.rank()]] {
            let group = comm.spawn(move |comm| comm.create_group(&members, 1)).wait();
            assert!(group.unwrap_err().is_invalid_usage(), "it waits for messages of the same communicator");
        }
        comm.barrier().unwrap();
    });
}

/// A thread that waits in a call keeps the task of a peer from running until the timeout.
#[test]
fn blocking_call_keeps_tasks_of_peers_from_running() {
    let config = Config::default().with_timeout(Duration::from_millis(100));
    let mut comms = World::Threads.communicators(2, &config);
    let (second, first) = (comms.remove(1), comms.remove(0));
    let blocks = async move { first.barrier().map_err(|error| error.kind().clone()) };
    let comes_late = async move { second.barrier_async().await.map_err(|error| error.kind().clone()) };
    let results = run_all(vec![Box::pin(blocks) as Task<_>, Box::pin(comes_late)]);
    assert!(matches!(results[0], Err(ErrorKind::Timeout { .. })), "{results:?}");
}

/// The deadline of a message runs while a thread waits for it.
#[test]
fn awaited_message_has_no_deadline() {
    let timeout = Duration::from_millis(50);
    let comms = World::Threads.communicators(2, &Config::default().with_timeout(timeout));
    let mut received = comms[1].irecv(vec![0u8], 0, 7);
    assert!(is_pending(&mut received));
    std::thread::sleep(6 * timeout);
    assert!(is_pending(&mut received));
    comms[0].isend(vec![9u8], 1, 7).wait().unwrap();
    let results = run_all(vec![Box::pin(received.map(|(buffer, _)| buffer)) as Task<Result<Vec<u8>>>]);
    assert_eq!(*results[0].as_ref().unwrap(), [9]);
}
