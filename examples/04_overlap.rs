//! Asynchronous collectives: compute while an all_reduce runs, with borrowed buffers, with owned
//! buffers, and with `.await`.
//!
//! `cargo run --release --example 04_overlap`

use std::time::Instant;
use unisono::{Communicator, Sum};

const ELEMENTS: usize = 4 << 20;

fn main() -> unisono::Result<()> {
    unisono::local(2, |comm| rank_main(&comm))?;
    Ok(())
}

fn rank_main(comm: &Communicator) -> unisono::Result<()> {
    let mut gradients = vec![1.0f32; ELEMENTS];
    let begun = Instant::now();

    // Borrowed buffers: the scope ends when every operation spawned in it has completed.
    let computed = comm.scope(|scope| {
        let pending = scope.all_reduce(&mut gradients, Sum);
        let launched = begun.elapsed();
        let computed = compute();
        pending.wait().map(|_| (launched, computed))
    })?;
    assert!(gradients.iter().all(|&gradient| gradient == 2.0));

    // Owned buffers: the buffer moves in and comes back. Many operations may be in flight; they
    // complete in order.
    let buckets: Vec<_> =
        (0..8).map(|bucket| comm.all_reduce_async(vec![bucket as f32; 10_000], Sum)).collect();
    for (bucket, pending) in buckets.into_iter().enumerate() {
        assert_eq!(pending.wait()?[0], 2.0 * bucket as f32);
    }

    // A handle is a future.
    let pending = comm.all_reduce_async(vec![comm.rank() as u64; 3], Sum);
    assert_eq!(block_on(pending)?, [1, 1, 1]);

    let (launched, computed) = computed;
    println!("rank {}: launched in {launched:?}, computed {computed:.3} meanwhile", comm.rank());
    Ok(())
}

fn compute() -> f64 {
    (1..2_000_000).map(|n| 1.0 / f64::from(n).powi(2)).sum()
}

/// A minimal executor; a program would use its own.
fn block_on<F: Future>(future: F) -> F::Output {
    use std::task::{Context, Poll, Wake, Waker};
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(std::sync::Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}
