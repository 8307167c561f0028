//! The engine over a network with injected faults, in virtual time; a seed replays a run.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Case, exercise};
use unisono::schedule::{Algorithm, Collective, GroupSpec, PeerAccess};
use unisono::{Communicator, Config, ErrorKind, ReduceKind, Sum};
use unisono_transports::sim::{self, Fault, FaultPlan, Observer, RankSet, Trigger};
use unisono_transports::testing::{HANG, NEVER};
use unisono_transports::{Fabric, Reconnect, RegroupRequest};

fn config() -> Config {
    Config::default().with_fifo_slot_bytes(4096).with_channels(2).with_timeout(Duration::from_secs(5))
}

/// Runs `body` on every rank; results by rank.
fn run<R: Send>(
    ranks: usize,
    fault_plan: FaultPlan,
    body: impl Fn(Communicator) -> R + Sync,
) -> (Vec<R>, Observer) {
    let (meshes, observer) = sim::observed_fabrics(ranks, config().geometry(), fault_plan);
    let results = std::thread::scope(|scope| {
        let rank = |mesh| {
            let (body, config) = (&body, config());
            scope.spawn(move || {
                body(Communicator::builder().config(&config).from_fabric(mesh).expect("valid settings"))
            })
        };
        let threads: Vec<_> = meshes.into_iter().map(rank).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    });
    (results, observer)
}

#[test]
fn algorithms_are_correct_under_any_fault_plan() {
    for seed in 0..6 {
        for ranks in [2, 3, 5] {
            run(ranks, FaultPlan::none(seed), |comm| {
                let spec = GroupSpec::new(ranks);
                for row in Algorithm::ALL
                    .iter()
                    .filter(|row| row.peer_access == PeerAccess::TwoSided && (row.supports)(&spec))
                {
                    comm.set_algorithm(row.collective, Some(row.name)).unwrap();
                    for (count, in_place) in [(1, true), (5000, false)] {
                        let root = if row.collective.has_root() { seed as usize % ranks } else { 0 };
                        exercise::<f32>(
                            &comm,
                            Case { collective: row.collective, op: ReduceKind::Sum, root, count, in_place },
                        );
                    }
                }
            });
        }
    }
}

#[test]
fn seed_replays_run() {
    let trace = |seed| {
        let (_, observer) = run(4, FaultPlan::none(seed), |comm| {
            let mut values = vec![comm.rank() as f32; 20_000];
            comm.all_reduce(&mut values, Sum).unwrap();
        });
        (observer.trace(), observer.now())
    };
    assert_eq!(trace(7), trace(7));
    assert_ne!(trace(7).0, trace(8).0);
}

/// A rank that died in the simulation is told so, and not that its peers were silent for hours.
#[test]
fn dead_rank_is_told_that_it_died() {
    for seed in 0..20 {
        let death = Fault::Death { rank: 1, at: Trigger::Time(Duration::from_millis(3)), announced: true };
        let fault_plan = FaultPlan { faults: vec![death], ..FaultPlan::none(seed) };
        let (errors, _) = run(3, fault_plan, |comm| {
            let mut values = vec![1.0f32; 20_000];
            loop {
                if let Err(error) = comm.all_reduce(&mut values, Sum) {
                    return error.to_string();
                }
            }
        });
        assert!(errors[1].contains("this rank died in the simulation"), "seed {seed}: {}", errors[1]);
    }
}

/// Returns the virtual time of 20 gathers or reductions of `count` elements for each of 8 ranks.
fn virtual_time(collective: Collective, algorithm: &str, count: usize, seed: u64) -> Duration {
    const RANKS: usize = 8;
    let (_, observer) = run(RANKS, FaultPlan::none(seed), |comm| {
        comm.set_algorithm(collective, Some(algorithm)).unwrap();
        let (mut share, mut gathered) = (vec![1.0f32; count], vec![1.0f32; RANKS * count]);
        for _ in 0..20 {
            match collective {
                Collective::AllGather => comm.all_gather(&share, &mut gathered).unwrap(),
                _ => comm.reduce_scatter(&gathered, &mut share, Sum).unwrap(),
            }
        }
    });
    observer.now()
}

/// Small buffers cost rounds: PAT has 3 of them on 8 ranks, and the ring 7.
#[test]
fn pat_is_faster_than_the_ring_for_small_buffers() {
    for collective in [Collective::AllGather, Collective::ReduceScatter] {
        for seed in 0..4 {
            let [pat, ring] = ["pat", "ring"].map(|name| virtual_time(collective, name, 16, seed));
            assert!(pat.mul_f64(1.5) < ring, "{collective}, seed {seed}: {pat:?}, the ring {ring:?}");
        }
    }
}

#[test]
fn death_is_named_by_every_survivor() {
    for seed in 0..10 {
        let trigger = Trigger::Time(Duration::from_micros(200 + 100 * seed));
        let faults = vec![Fault::Death { rank: 2, at: trigger, announced: true }];
        let (errors, observer) = run(4, FaultPlan { faults, ..FaultPlan::none(seed) }, |comm| {
            let mut values = vec![1.0f64; 1000];
            loop {
                if let Err(error) = comm.all_reduce(&mut values, Sum) {
                    return error;
                }
            }
        });
        for (rank, error) in errors.iter().enumerate().filter(|(rank, _)| *rank != 2) {
            let lost = matches!(error.kind(), ErrorKind::PeerFailed { peer: 2, .. });
            assert!(lost, "seed {seed}: rank {rank} says: {error}");
        }
        assert!(observer.now() < Duration::from_secs(1), "seed {seed}: {:?}", observer.now());
    }
}

#[test]
fn stall_is_an_error_only_beyond_deadline() {
    let begun = Instant::now();
    for (lasts, survives) in [(Duration::from_secs(4), true), (NEVER, false)] {
        let faults = vec![Fault::Stall { rank: 1, from: Duration::from_micros(10), duration: lasts }];
        let (results, _) = run(3, FaultPlan { faults, ..FaultPlan::none(1) }, |comm| {
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
    assert!(begun.elapsed() < HANG, "virtual time took {:?}", begun.elapsed());
}

#[test]
fn survivors_continue_after_two_deaths() {
    for seed in 0..20 {
        // The second death falls into the recovery from the first.
        let death = |rank, time| Fault::Death { rank, at: Trigger::Time(time), announced: true };
        let faults =
            vec![death(1, Duration::from_micros(300)), death(0, Duration::from_micros(400 + 20 * seed))];
        let (places, observer) =
            sim::world(5, config().geometry(), FaultPlan { faults, ..FaultPlan::none(seed) });
        let sums: Vec<_> = std::thread::scope(|scope| {
            let rank = |(rank, (mesh, reconnect))| {
                let observer = &observer;
                scope.spawn(move || {
                    let mut comm = Communicator::builder()
                        .config(&config())
                        .reconnect(reconnect)
                        .from_fabric(mesh)
                        .expect("valid settings");
                    while observer.died_at(rank).is_none() {
                        let mut values = vec![1.0f32; 500];
                        match comm.all_reduce(&mut values, Sum) {
                            Ok(()) if comm.size() == 3 => return Some((values[499], comm.size())),
                            Ok(()) => {}
                            Err(_) if observer.died_at(rank).is_some() => {}
                            Err(_) => {
                                comm = comm.shrink().unwrap_or_else(|error| panic!("seed {seed}, {error}"))
                            }
                        }
                    }
                    None
                })
            };
            let ranks: Vec<_> = places.into_iter().enumerate().map(rank).collect();
            ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
        });
        let left = Some((3.0, 3));
        assert_eq!(sums, [None, None, left, left, left], "seed {seed}");
        assert!(observer.now() < Duration::from_secs(5), "seed {seed}: {:?}", observer.now());
    }
}

/// Two of three ranks give up the third one and drop their connections with it. When it hears of
/// that, it does not go on alone.
#[test]
fn excluded_rank_does_not_report_survivors_dead() {
    let (cut, stall) = (Duration::from_secs(12), Duration::from_millis(12_100));
    let (start, third) = (Duration::from_millis(1), RankSet(1 << 2));
    let faults = vec![
        Fault::Partition { from: third, to: RankSet(3), both_ways: true, at: start, duration: Some(cut) },
        Fault::Stall { rank: 2, from: start, duration: stall },
    ];
    let fault_plan = FaultPlan {
        keepalive_timeout: Some(config().timeout),
        long_timeout_ranks: third,
        faults,
        ..FaultPlan::none(3)
    };
    let (places, observer) = sim::world(3, config().geometry(), fault_plan);
    let went_on: Vec<_> = std::thread::scope(|scope| {
        let rank = |(mesh, reconnect)| {
            let observer = &observer;
            scope.spawn(move || {
                let comm = Communicator::builder()
                    .config(&config())
                    .reconnect(reconnect)
                    .from_fabric(mesh)
                    .expect("valid settings");
                let error = std::iter::repeat_with(|| comm.all_reduce(&mut vec![1.0f32; 500], Sum))
                    .find_map(Result::err)
                    .expect("the cut is noticed");
                let left = comm.shrink().map_err(|refused| format!("{error}, {refused}"))?;
                drop(comm);
                let went_on = observer.now();
                // Until after the cut.
                assert!(left.size() == 1 || left.recv(&mut [0u8], 1 - left.rank()).is_err());
                Ok((left.size(), went_on))
            })
        };
        let ranks: Vec<_> = places.into_iter().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
    });
    let two = |went_on: &Result<(usize, Duration), String>| {
        went_on.as_ref().is_ok_and(|(ranks, when)| *ranks == 2 && *when < cut)
    };
    assert!(went_on[..2].iter().all(two), "{went_on:?}");
    assert!(went_on[2].as_ref().is_err_and(|what| what.contains("its connection was reset")), "{went_on:?}");
}

/// Reconnects through another, and always reports the same endpoint.
struct FixedEndpoint {
    reconnect: Arc<dyn Reconnect>,
    endpoint: String,
}

impl Reconnect for FixedEndpoint {
    fn endpoint(&self) -> unisono_transports::Result<String> {
        Ok(self.endpoint.clone())
    }

    fn connect(&self, request: RegroupRequest<'_>, patience: Duration) -> unisono_transports::Result<Fabric> {
        self.reconnect.connect(request, patience)
    }
}

/// Runs `body` on three ranks whose reconnect reports this endpoint.
fn run_at_endpoint<R: Send>(endpoint: &str, body: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    let (places, _) = sim::world(3, config().geometry(), FaultPlan::none(1));
    std::thread::scope(|scope| {
        let rank = |(mesh, reconnect)| {
            let (body, reconnect) =
                (&body, Arc::new(FixedEndpoint { reconnect, endpoint: endpoint.to_owned() }));
            scope.spawn(move || {
                body(
                    Communicator::builder()
                        .config(&config())
                        .reconnect(reconnect)
                        .from_fabric(mesh)
                        .expect("valid settings"),
                )
            })
        };
        let ranks: Vec<_> = places.into_iter().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
    })
}

#[test]
fn invalid_endpoint_is_an_error_on_every_rank() {
    for place in [String::new(), "x".repeat(65)] {
        let splits = run_at_endpoint(&place, |comm| comm.split(Some(0), 0).expect_err("nowhere to meet"));
        assert!(matches!(splits[0].kind(), ErrorKind::Unsupported(_)), "{}", splits[0]);
        assert!(splits[0].to_string().contains(&format!("has {}", place.len())), "{}", splits[0]);
        for error in &splits[1..] {
            assert!(error.to_string().contains("the first rank of the group"), "{error}");
        }
        let shrunk = run_at_endpoint(&place, |comm| comm.shrink().expect_err("nowhere to meet"));
        assert!(shrunk.iter().all(|error| matches!(error.kind(), ErrorKind::Unsupported(_))), "{shrunk:?}");
    }
}

#[test]
fn regrouped_ranks_have_a_unique_id() {
    let names = run_at_endpoint("here", |comm| {
        let group = comm.split(Some(0), 0).expect("met").expect("in it");
        let name = group.flight_record().communicator;
        (name, comm.shrink().expect("met").flight_record().communicator)
    });
    assert!(names.iter().all(|&name| name == names[0] && name.0 != 0 && name.1 != 0), "{names:?}");
    assert_ne!(names[0].0, names[0].1);
}
