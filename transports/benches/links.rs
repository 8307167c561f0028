//! `cargo bench -p unisono-transports --bench links`: one message, and one signal, from a rank to another.
//!
//! Ranks are threads. What is measured goes there and back, and counts half. Each case first proves
//! what arrives.

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::iter::once;
use std::time::{Duration, Instant};
use unisono_cuda::Source;
use unisono_transports::{Geometry, Link, Mesh, Result, Tag, Window, tcp, threads};

const SIZES: [usize; 2] = [8, 1 << 20];
const GEOMETRY: Geometry =
    Geometry { lanes: 1, slots: 4, slot_bytes: 1 << 20, channels: 1, window_bytes: 1 << 16, heap_bytes: 0 };

fn messages(criterion: &mut Criterion) {
    over(criterion, "message, shm", || threads::mesh(2, GEOMETRY));
    over(criterion, "message, tcp", || tcp::local_mesh(2, GEOMETRY, 2, false));
    over(criterion, "message, tcp, encrypted", || tcp::local_mesh(2, GEOMETRY, 2, true));
}

fn over(criterion: &mut Criterion, name: &str, make: impl Fn() -> Result<Vec<Mesh>>) {
    let group = &mut criterion.benchmark_group(name);
    for bytes in SIZES {
        group.throughput(Throughput::Bytes(bytes as u64));
        proven(group, &bytes.to_string(), &mut ends(make(), bytes), End::message);
    }
}

fn signals(criterion: &mut Criterion) {
    let ends = &mut ends(threads::mesh(2, GEOMETRY), 0);
    proven(&mut criterion.benchmark_group("signal"), "window", ends, End::signal);
}

/// One rank, what it sends, and what it got.
struct End {
    mesh: Mesh,
    body: Vec<u8>,
    found: Vec<u8>,
    signals: u64,
}

fn ends(meshes: Result<Vec<Mesh>>, bytes: usize) -> [End; 2] {
    let end = |mesh: Mesh| {
        let body = (0..bytes).map(|at| (at * 7 + mesh.rank) as u8).collect();
        End { mesh, body, found: vec![0xee; bytes], signals: 0 }
    };
    let ends: Vec<_> = meshes.expect("two ranks").into_iter().map(end).collect();
    ends.try_into().ok().expect("two ranks")
}

impl End {
    /// A message to the other rank and one back, as its rank sees them.
    fn message(&mut self) {
        let Self { mesh, body, found, .. } = self;
        if mesh.rank == 0 {
            send(mesh, body);
        }
        until(mesh, |mesh| Ok(link(mesh).head(0)?.is_some()));
        until(mesh, |mesh| link(mesh).take(0, found[..].as_mut().into()));
        if mesh.rank == 1 {
            send(mesh, body);
        }
    }

    /// A signal to the other rank and one back.
    fn signal(&mut self) {
        self.signals += 1;
        let (peer, signals) = (1 - self.mesh.rank, self.signals);
        if peer == 1 {
            window(&mut self.mesh).signal(0, signals);
        }
        until(&mut self.mesh, |mesh| Ok(window(mesh).signals(peer, 0) >= signals));
        if peer == 0 {
            window(&mut self.mesh).signal(0, signals);
        }
    }
}

fn send(mesh: &mut Mesh, body: &[u8]) {
    until(mesh, |mesh| link(mesh).try_send(0, &Tag::default(), body.len(), &mut once(Source::from(body))));
}

/// Tries until it succeeds, and waits as an engine does.
fn until(mesh: &mut Mesh, mut attempt: impl FnMut(&mut Mesh) -> Result<bool>) {
    for rounds in 1.. {
        if attempt(mesh).expect("a peer that is alive") {
            return;
        }
        for link in mesh.links.iter_mut().flatten() {
            link.progress().expect("a peer that is alive");
        }
        mesh.pace.pause(rounds);
    }
}

fn link(mesh: &mut Mesh) -> &mut dyn Link {
    &mut **mesh.links[1 - mesh.rank].as_mut().expect("a link to the other rank")
}

fn window(mesh: &mut Mesh) -> &mut Window {
    mesh.window.as_mut().expect("shared memory")
}

/// Proves what one turn leaves at both ends, then measures turns.
fn proven(group: &mut BenchmarkGroup<'_, WallTime>, id: &str, ends: &mut [End; 2], turn: fn(&mut End)) {
    time(ends, 0, turn);
    let [near, far] = ends;
    assert!(near.found == far.body && far.found == near.body, "{id}: another message");
    assert_eq!(near.signals, far.signals, "{id}");
    group.bench_function(BenchmarkId::from_parameter(id), |bencher| {
        bencher.iter_custom(|turns| time(ends, turns, turn));
    });
}

/// What so many turns take one way; one more comes first, which waits for the other thread to begin.
fn time([near, far]: &mut [End; 2], turns: u64, turn: fn(&mut End)) -> Duration {
    std::thread::scope(|scope| {
        scope.spawn(|| (0..=turns).for_each(|_| turn(far)));
        turn(near);
        let begun = Instant::now();
        (0..turns).for_each(|_| turn(near));
        begun.elapsed() / 2
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
    targets = messages, signals
}
criterion_main!(benches);
