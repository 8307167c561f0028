//! Ten thousand seeds hold, and planted faults are found.

use super::*;
use judge::Invariant;

mod planted;
use planted::*;

#[test]
fn every_invariant_holds_for_ten_thousand_seeds() {
    let count = if cfg!(debug_assertions) { 500 } else { 10_000 };
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    assert_eq!(many(0..count, threads, violates), 0, "see the seeds above");
}

#[test]
fn a_seed_replays_its_run() {
    for seed in 0..30 {
        let run = || {
            let run = Run::of(seed);
            let entries = run.histories.iter().flat_map(|history| &history.entries);
            let told: Vec<String> = entries.map(ToString::to_string).collect();
            (run.observer.trace(), run.observer.now(), told)
        };
        assert_eq!(run(), run(), "seed {seed}");
    }
}

#[test]
#[should_panic(expected = "a scoped thread panicked")]
fn a_simulator_whose_workers_all_panicked_ends() {
    many(0..100, 2, |seed| panic!("of seed {seed}"));
}

#[test]
fn seeds_that_found_something_hold() {
    // Minorities that went on: ranks left out one after the other; a company whose majority had ended.
    for seed in [2648, 3308, 37_989, 38_002, 40_655, 8202] {
        for silence in [None, Some(scenario::TIMEOUT)] {
            let mut scenario = Scenario::drawn(seed);
            scenario.weather.silence = silence;
            let run = Run::over(scenario, |place| place);
            assert!(run.violations.is_empty(), "seed {seed}, {silence:?}: {:?}", run.violations);
        }
    }
}

/// The first seed below a thousand whose run violates something when `fit` is between library and network.
fn found(fit: impl Fn(Place) -> Place) -> Option<(u64, Vec<Invariant>)> {
    found_that(fit, |invariants| !invariants.is_empty())
}

/// The first one in which what is violated is as `wanted`.
fn found_that(
    fit: impl Fn(Place) -> Place,
    wanted: impl Fn(&[Invariant]) -> bool,
) -> Option<(u64, Vec<Invariant>)> {
    (0..1000).find_map(|seed| {
        let run = Run::over(Scenario::drawn(seed), &fit);
        let invariants: Vec<_> = run.violations.iter().map(|violation| violation.invariant).collect();
        wanted(&invariants).then_some((seed, invariants))
    })
}

#[test]
fn a_reset_taken_for_a_death_makes_two_groups_that_work() {
    let two_groups = |invariants: &[Invariant]| invariants.contains(&Invariant::Members);
    let found = found_that(everywhere(reset_for_death), two_groups);
    println!("{found:?}");
    assert!(found.is_some());
}

#[test]
fn planted_faults_are_found_within_a_thousand_seeds() {
    let all = [
        ("credit is given before a message is taken", found(everywhere(early_credit))),
        ("news of deaths get lost", found(everywhere(deaf_to_deaths))),
        ("a failure forgets its cause", found(everywhere(cause_forgotten))),
        ("the first answer is believed", found(everywhere(first_answer_believed))),
        ("messages come late", found(late_messages)),
    ];
    println!("{all:?}");
    assert!(all.iter().all(|(_, found)| found.is_some()), "{all:?}");
}
