//! Whole operations of communicators whose ranks share one thread.
//!
//! A rank that waits lets the next rank carry out the same operation, nested in its pause. So every
//! algorithm in which ranks meet only once can be driven, and no rank waits in vain.

use super::{Paged, Turn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use unisono::schedule::{Collective, find};
use unisono::{Communicator, Config, Sum};
use unisono_transports::{Mesh, Pace, threads};

/// all_reduce of `COUNT` f32 over `ranks` ranks by the algorithm of this name.
pub(super) fn all_reduce<const COUNT: usize>(ranks: usize, algorithm: &str) -> Turn {
    let algorithm = find(Collective::AllReduce, algorithm).expect("a row of the table");
    let turns = Arc::new(AtomicU64::new(0));
    let first = meshes(ranks).into_iter().rev().fold(None, |next, mut mesh| {
        let member = next.map(Member::<COUNT>::new);
        mesh.pace = Box::new(Relay { next: member, taken: 0, turns: Arc::clone(&turns) });
        let comm = Communicator::over(mesh, &config());
        comm.use_algorithm(algorithm).expect("a fresh communicator");
        Some(comm)
    });
    let mut first = Member::<COUNT>::new(first.expect("at least one rank"));
    Box::new(move || {
        turns.fetch_add(1, Ordering::Relaxed);
        first.take_part();
        assert_eq!(first.output.0[COUNT - 1], ranks as f32);
    })
}

/// A message of `COUNT` f32 between two ranks.
pub(super) fn send_recv<const COUNT: usize>() -> Turn {
    let comms: Vec<_> = meshes(2).into_iter().map(|mesh| Communicator::over(mesh, &config())).collect();
    let (from, mut into) = (Paged::<f32, COUNT>::of(1.0), Paged::<f32, COUNT>::of(0.0));
    Box::new(move || {
        comms[0].send(&from.0, 1).expect("a free slot");
        comms[1].recv(&mut into.0, 0).expect("a message");
    })
}

/// A rank and its buffers.
struct Member<const COUNT: usize> {
    comm: Communicator,
    input: Box<Paged<f32, COUNT>>,
    output: Box<Paged<f32, COUNT>>,
}

impl<const COUNT: usize> Member<COUNT> {
    fn new(comm: Communicator) -> Self {
        Self { comm, input: Paged::of(1.0), output: Paged::of(0.0) }
    }

    fn take_part(&mut self) {
        self.comm.all_reduce_into(&self.input.0, &mut self.output.0, Sum).expect("sound");
    }
}

/// Waits by letting the next rank take part, once a turn.
struct Relay<const COUNT: usize> {
    next: Option<Member<COUNT>>,
    taken: u64,
    turns: Arc<AtomicU64>,
}

impl<const COUNT: usize> Pace for Relay<COUNT> {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn pause(&mut self, _: u32) {
        let turn = self.turns.load(Ordering::Relaxed);
        let next = self.next.as_mut().filter(|_| self.taken < turn).expect("no rank waits in vain");
        self.taken = turn;
        next.take_part();
    }
}

fn meshes(ranks: usize) -> Vec<Mesh> {
    threads::mesh(ranks, config().geometry()).expect("little memory")
}

/// The defaults, but for addresses, of which valgrind has few.
fn config() -> Config {
    Config { heap_bytes: 0, ..Config::default() }
}
