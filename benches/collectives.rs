//! `cargo bench -p unisono --bench collectives`: whole operations, over shared memory and TCP.
//!
//! Ranks are threads of this process that reach each other as processes do. Sizes are those of one
//! share; the slowest rank's time counts. Each case first proves its result at every rank.

#[path = "../tests/support/mod.rs"]
mod support;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::time::{Duration, Instant};
use support::{Case, World, call, exercise};
use unisono::schedule::Collective;
use unisono::{Communicator, Config, ReduceKind};

const RANKS: [usize; 2] = [2, 4];
const SIZES: [usize; 3] = [8, 32 << 10, 1 << 20];
const OVER_SHM: [Collective; 5] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::AllToAll,
];

fn shm(criterion: &mut Criterion) {
    measure(criterion, World::Shm, &OVER_SHM);
}

fn tcp(criterion: &mut Criterion) {
    measure(criterion, World::Tcp, &[Collective::AllReduce]);
}

fn measure(criterion: &mut Criterion, world: World, collectives: &[Collective]) {
    for ranks in RANKS {
        let comms = world.communicators(ranks, &Config::default());
        for collective in collectives {
            let group = &mut criterion.benchmark_group(format!("{collective}, {world:?}, {ranks} ranks"));
            for bytes in SIZES {
                group.throughput(Throughput::Bytes(bytes as u64));
                let count = bytes / size_of::<f32>();
                let case =
                    Case { collective: *collective, op: ReduceKind::Sum, root: 0, count, in_place: false };
                verify_and_measure(group, bytes, &comms, case);
            }
        }
    }
}

/// Proves the result at every rank, then measures.
fn verify_and_measure(
    group: &mut BenchmarkGroup<'_, WallTime>,
    bytes: usize,
    comms: &[Communicator],
    case: Case,
) {
    on_all(comms, |comm| exercise::<f32>(comm, case));
    group.bench_function(BenchmarkId::from_parameter(bytes), |bencher| {
        bencher.iter_custom(|calls| {
            on_all(comms, |comm| time(comm, case, calls)).into_iter().max().expect("a rank")
        });
    });
}

/// Returns the time of so many calls on this rank.
fn time(comm: &Communicator, case: Case, calls: u64) -> Duration {
    let (input, output) = case.collective.shares(comm.size(), case.root, comm.rank());
    let [input, mut output] = [input, output].map(|shares| vec![1f32; shares * case.count]);
    comm.barrier().expect("all ranks");
    let begun = Instant::now();
    for _ in 0..calls {
        call(comm, case, &input, &mut output).expect("all ranks");
    }
    begun.elapsed()
}

/// Runs `body` at every rank; results by rank.
fn on_all<R: Send>(comms: &[Communicator], body: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = comms.iter().map(|comm| scope.spawn(move || body(comm))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    })
}

/// Short rounds, so that all of it takes less than a minute.
fn short_rounds() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(50))
        .measurement_time(Duration::from_millis(200))
        .sample_size(15)
}

criterion_group! {
    name = benches;
    config = short_rounds();
    targets = shm, tcp
}
criterion_main!(benches);
