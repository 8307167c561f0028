//! Whole operations of communicators whose ranks share one thread.
//!
//! A waiting rank lets the next rank execute the same operation, nested in its wait. Every
//! algorithm in which ranks meet only once can be driven in this way, and no rank waits in vain.

use super::{Iteration, PageAligned};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use unisono::schedule::{Collective, find};
use unisono::{Communicator, Config, Sum};
use unisono_transports::{Fabric, WaitStrategy, threads};

/// all_reduce of `COUNT` f32 over `ranks` ranks by the algorithm of this name.
pub(super) fn all_reduce<const COUNT: usize>(ranks: usize, algorithm: &str) -> Iteration {
    let algorithm = find(Collective::AllReduce, algorithm).expect("a row of the table");
    let turns = Arc::new(AtomicU64::new(0));
    let first = fabrics(ranks).into_iter().rev().fold(None, |next, mut mesh| {
        let member = next.map(RankState::<COUNT>::new);
        mesh.wait =
            Box::new(CooperativeWait { next: member, iterations_done: 0, iterations: Arc::clone(&turns) });
        let comm = Communicator::builder().config(&config()).from_fabric(mesh).expect("valid settings");
        comm.set_algorithm(algorithm.collective, Some(algorithm.name)).expect("a fresh communicator");
        Some(comm)
    });
    let mut first = RankState::<COUNT>::new(first.expect("at least one rank"));
    Box::new(move || {
        turns.fetch_add(1, Ordering::Relaxed);
        first.run_once();
        assert_eq!(first.output.0[COUNT - 1], ranks as f32);
    })
}

/// A message of `COUNT` f32 between two ranks.
pub(super) fn send_recv<const COUNT: usize>() -> Iteration {
    let comms: Vec<_> = fabrics(2)
        .into_iter()
        .map(|mesh| Communicator::builder().config(&config()).from_fabric(mesh).expect("valid settings"))
        .collect();
    let (sent, mut received) = (PageAligned::<f32, COUNT>::of(1.0), PageAligned::<f32, COUNT>::of(0.0));
    Box::new(move || {
        comms[0].send(&sent.0, 1).expect("a free slot");
        comms[1].recv(&mut received.0, 0).expect("a message");
    })
}

/// A message of `COUNT` f32 with a tag between two ranks, which arrives before its receive.
pub(super) fn message<const COUNT: usize>() -> Iteration {
    let comms: Vec<_> = fabrics(2)
        .into_iter()
        .map(|mesh| Communicator::builder().config(&config()).from_fabric(mesh).expect("valid settings"))
        .collect();
    let mut buffers = Some((vec![1f32; COUNT], vec![0f32; COUNT]));
    Box::new(move || {
        let (sent, received) = buffers.take().expect("the buffers of the last iteration");
        let sent = comms[0].isend(sent, 1, 5).wait().expect("a free slot");
        let (received, _) = comms[1].irecv(received, 0, 5).wait().expect("a message");
        buffers = Some((sent, received));
    })
}

/// A rank and its buffers.
struct RankState<const COUNT: usize> {
    comm: Communicator,
    input: Box<PageAligned<f32, COUNT>>,
    output: Box<PageAligned<f32, COUNT>>,
}

impl<const COUNT: usize> RankState<COUNT> {
    fn new(comm: Communicator) -> Self {
        Self { comm, input: PageAligned::of(1.0), output: PageAligned::of(0.0) }
    }

    fn run_once(&mut self) {
        self.comm.all_reduce_into(&self.input.0, &mut self.output.0, Sum).expect("sound");
    }
}

/// Waits by letting the next rank take part, once an iteration.
struct CooperativeWait<const COUNT: usize> {
    next: Option<RankState<COUNT>>,
    iterations_done: u64,
    iterations: Arc<AtomicU64>,
}

impl<const COUNT: usize> WaitStrategy for CooperativeWait<COUNT> {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn pause(&mut self, _: u32) {
        let turn = self.iterations.load(Ordering::Relaxed);
        let next = self.next.as_mut().filter(|_| self.iterations_done < turn).expect("no rank waits in vain");
        self.iterations_done = turn;
        next.run_once();
    }
}

fn fabrics(ranks: usize) -> Vec<Fabric> {
    threads::fabrics(ranks, config().geometry()).expect("little memory")
}

/// The defaults, but for addresses, of which valgrind has few.
fn config() -> Config {
    Config::default().with_symmetric_heap_bytes(0)
}
