//! The engine over a network with bad weather, in virtual time; a seed replays a run.

mod support;

use std::time::{Duration, Instant};
use support::{Case, exercise};
use unisono::schedule::{Algorithm, Reach, Spec};
use unisono::{Communicator, Config, ErrorKind, Op, Sum};
use unisono_transports::sim::{self, Death, Observer, Stall, Weather};

fn config() -> Config {
    Config { slot_bytes: 4096, channels: 2, timeout: Duration::from_secs(5), ..Config::default() }
}

/// Runs `body` on every rank; results by rank.
fn run<R: Send>(
    ranks: usize,
    weather: Weather,
    body: impl Fn(Communicator) -> R + Sync,
) -> (Vec<R>, Observer) {
    let (meshes, observer) = sim::observed(ranks, config().geometry(), weather);
    let results = std::thread::scope(|scope| {
        let rank = |mesh| {
            let (body, config) = (&body, config());
            scope.spawn(move || body(Communicator::over(mesh, &config)))
        };
        let threads: Vec<_> = meshes.into_iter().map(rank).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    });
    (results, observer)
}

#[test]
fn every_algorithm_over_links_is_right_in_any_weather() {
    for seed in 0..6 {
        for ranks in [2, 3, 5] {
            run(ranks, Weather::fair(seed), |comm| {
                let spec = Spec { ranks, root: 0, aggregation: 1 };
                for row in
                    Algorithm::ALL.iter().filter(|row| row.reach == Reach::Messages && (row.fits)(&spec))
                {
                    comm.use_algorithm(row).unwrap();
                    for (count, in_place) in [(1, true), (5000, false)] {
                        let root = if row.collective.has_root() { seed as usize % ranks } else { 0 };
                        exercise::<f32>(
                            &comm,
                            Case { collective: row.collective, op: Op::Sum, root, count, in_place },
                        );
                    }
                }
            });
        }
    }
}

#[test]
fn a_seed_replays_a_run() {
    let trace = |seed| {
        let (_, observer) = run(4, Weather::fair(seed), |comm| {
            let mut values = vec![comm.rank() as f32; 20_000];
            comm.all_reduce(&mut values, Sum).unwrap();
        });
        (observer.trace(), observer.now())
    };
    assert_eq!(trace(7), trace(7));
    assert_ne!(trace(7).0, trace(8).0);
}

#[test]
fn a_death_is_named_by_every_survivor_in_virtual_milliseconds() {
    for seed in 0..10 {
        let death = Some(Death { rank: 2, at: Duration::from_micros(200 + 100 * seed) });
        let (errors, observer) = run(4, Weather { death, ..Weather::fair(seed) }, |comm| {
            let mut values = vec![1.0f64; 1000];
            loop {
                if let Err(error) = comm.all_reduce(&mut values, Sum) {
                    return error;
                }
            }
        });
        for (rank, error) in errors.iter().enumerate().filter(|(rank, _)| *rank != 2) {
            let lost = matches!(error.kind(), ErrorKind::PeerLost { peer: 2, .. });
            assert!(lost, "seed {seed}: rank {rank} says: {error}");
        }
        assert!(observer.now() < Duration::from_secs(1), "seed {seed}: {:?}", observer.now());
    }
}

#[test]
fn a_stall_shorter_than_the_deadline_harms_nothing_and_a_longer_one_is_an_error() {
    let begun = Instant::now();
    for (lasts, survives) in [(Duration::from_secs(4), true), (Duration::from_secs(60), false)] {
        let stall = Some(Stall { rank: 1, from: Duration::from_micros(10), lasts });
        let (results, _) = run(3, Weather { stall, ..Weather::fair(1) }, |comm| {
            let mut values = vec![1.0f32; 30_000];
            comm.all_reduce(&mut values, Sum).map(|()| values[29_999])
        });
        if survives {
            assert!(results.iter().all(|result| *result.as_ref().unwrap() == 3.0));
        } else {
            let text = results[0].as_ref().unwrap_err().to_string();
            assert!(text.contains("nothing moved") || text.contains("aborted"), "{text}");
        }
    }
    assert!(begun.elapsed() < Duration::from_secs(20), "virtual time took {:?}", begun.elapsed());
}
