//! Times one message, and one signal, between two ranks: `cargo bench -p unisono-transports --bench
//! links`.
//!
//! Ranks are threads. A measurement covers a round trip, and counts half of it. Each case first
//! verifies what arrives.

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::iter::once;
use std::time::{Duration, Instant};
use unisono_reducers::Source;
use unisono_transports::{Fabric, Geometry, Link, Result, Tag, Window, loopback, threads};

const SIZES: [usize; 2] = [8, 1 << 20];
const GEOMETRY: Geometry = Geometry {
    lanes: 1,
    slots: 4,
    slot_bytes: 1 << 20,
    signal_lanes: 1,
    window_bytes: 1 << 16,
    heap_bytes: 0,
};

fn messages(criterion: &mut Criterion) {
    bench_transport(criterion, "message, shm", || threads::fabrics(2, GEOMETRY));
    bench_transport(criterion, "message, tcp", || loopback::local_fabrics(2, GEOMETRY, 2, false));
    bench_transport(criterion, "message, tcp, encrypted", || loopback::local_fabrics(2, GEOMETRY, 2, true));
}

fn bench_transport(criterion: &mut Criterion, name: &str, make: impl Fn() -> Result<Vec<Fabric>>) {
    let group = &mut criterion.benchmark_group(name);
    for bytes in SIZES {
        group.throughput(Throughput::Bytes(bytes as u64));
        verify_and_measure(group, &bytes.to_string(), &mut endpoints(make(), bytes), Endpoint::message);
    }
}

fn signals(criterion: &mut Criterion) {
    let ends = &mut endpoints(threads::fabrics(2, GEOMETRY), 0);
    verify_and_measure(&mut criterion.benchmark_group("signal"), "window", ends, Endpoint::signal);
}

/// One rank, the data that it sends, and the data that it received.
struct Endpoint {
    fabric: Fabric,
    body: Vec<u8>,
    found: Vec<u8>,
    signals: u64,
}

fn endpoints(fabrics: Result<Vec<Fabric>>, bytes: usize) -> [Endpoint; 2] {
    let end = |fabric: Fabric| {
        let body = (0..bytes).map(|index| (index * 7 + fabric.rank) as u8).collect();
        Endpoint { fabric, body, found: vec![0xee; bytes], signals: 0 }
    };
    let ends: Vec<_> = fabrics.expect("two ranks").into_iter().map(end).collect();
    ends.try_into().ok().expect("two ranks")
}

impl Endpoint {
    /// Sends a message to the other rank and receives one back, from one rank's side.
    fn message(&mut self) {
        let Self { fabric, body, found, .. } = self;
        if fabric.rank == 0 {
            send(fabric, body);
        }
        until(fabric, |fabric| Ok(link(fabric).header(0)?.is_some()));
        until(fabric, |fabric| link(fabric).recv_into(0, found[..].as_mut().into()));
        if fabric.rank == 1 {
            send(fabric, body);
        }
    }

    /// Sends a signal to the other rank and receives one back.
    fn signal(&mut self) {
        self.signals += 1;
        let (peer, signals) = (1 - self.fabric.rank, self.signals);
        if peer == 1 {
            window(&mut self.fabric).signal(0, signals);
        }
        until(&mut self.fabric, |fabric| Ok(window(fabric).last_signal(peer, 0) >= signals));
        if peer == 0 {
            window(&mut self.fabric).signal(0, signals);
        }
    }
}

fn send(fabric: &mut Fabric, body: &[u8]) {
    until(fabric, |fabric| {
        link(fabric).try_send(0, &Tag::default(), body.len(), &mut once(Source::from(body)))
    });
}

/// Tries until it succeeds, and waits as an engine does.
fn until(fabric: &mut Fabric, mut attempt: impl FnMut(&mut Fabric) -> Result<bool>) {
    for rounds in 1.. {
        if attempt(fabric).expect("a peer that is alive") {
            return;
        }
        for link in fabric.links.iter_mut().flatten() {
            link.progress().expect("a peer that is alive");
        }
        fabric.wait.pause(rounds);
    }
}

fn link(fabric: &mut Fabric) -> &mut dyn Link {
    &mut **fabric.links[1 - fabric.rank].as_mut().expect("a link to the other rank")
}

fn window(fabric: &mut Fabric) -> &mut Window {
    fabric.window.as_mut().expect("shared memory")
}

/// Verifies the result of one turn at both ends, then measures turns.
fn verify_and_measure(
    group: &mut BenchmarkGroup<'_, WallTime>,
    id: &str,
    ends: &mut [Endpoint; 2],
    turn: fn(&mut Endpoint),
) {
    time(ends, 0, turn);
    let [local, remote] = ends;
    assert!(local.found == remote.body && remote.found == local.body, "{id}: another message");
    assert_eq!(local.signals, remote.signals, "{id}");
    group.bench_function(BenchmarkId::from_parameter(id), |bencher| {
        bencher.iter_custom(|turns| time(ends, turns, turn));
    });
}

/// Returns the time of this many turns in one direction. One more turn comes first, which waits for
/// the other thread to begin.
fn time([near, far]: &mut [Endpoint; 2], turns: u64, turn: fn(&mut Endpoint)) -> Duration {
    std::thread::scope(|scope| {
        scope.spawn(|| (0..=turns).for_each(|_| turn(far)));
        turn(near);
        let begun = Instant::now();
        (0..turns).for_each(|_| turn(near));
        begun.elapsed() / 2
    })
}

/// Configures short rounds, so that the whole run takes less than a minute.
fn short_rounds() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(50))
        .measurement_time(Duration::from_millis(200))
        .sample_size(15)
}

criterion_group! {
    name = benches;
    config = short_rounds();
    targets = messages, signals
}
criterion_main!(benches);
