//! `unisono simulate` runs ranks under random faults, in virtual time.
//!
//! Everything in a run follows from its seed, so every violation can be replayed. FoundationDB's
//! simulation and TigerBeetle's VOPR use the same method.

mod history;
mod host;
mod invariants;
mod scenario;
#[cfg(test)]
mod tests;

use crate::bind::bind_thread;
use crate::perf::op_case::OpKind;
use crate::simulate::invariants::{Checker, Violation};
use history::History;
use host::Host;
use scenario::Scenario;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};
use unisono::schedule::{Algorithm, PeerAccess};
use unisono_transports::sim::{self, Node, Observer};
use unisono_transports::text::printable;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Run these seeds. The end of the range is excluded.
    #[arg(long, default_value = "0..10000", value_parser = seeds)]
    seeds: Range<u64>,
    /// Run one seed and print every event.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Number of runs at the same time. The default is the number of cores.
    #[arg(long)]
    threads: Option<usize>,
    /// Run every operation with this algorithm, on a number of ranks that it supports.
    #[arg(long, value_name = "NAME")]
    algo: Option<String>,
}

impl Arguments {
    /// Returns the algorithm that every operation uses, if the user names one.
    fn algorithm(&self) -> Result<Option<&'static Algorithm>, String> {
        let Some(name) = &self.algo else { return Ok(None) };
        let is_run = |row: &&'static Algorithm| {
            row.peer_access == PeerAccess::TwoSided && OpKind::of(row.collective).is_some()
        };
        let mut rows = Algorithm::all().into_iter().filter(is_run);
        let found = rows.find(|row| row.name == name);
        found.map(Some).ok_or_else(|| {
            format!(
                "no algorithm `{}` that simulated ranks can run: they have messages only, and no scans; \
                 `list` shows all",
                printable(name)
            )
        })
    }
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let ends = text.split_once("..").and_then(|(first, end)| Some(first.parse().ok()?..end.parse().ok()?));
    ends.filter(|seeds| !seeds.is_empty()).ok_or_else(|| "two whole numbers, as in 0..10000".to_owned())
}

/// A completed run.
struct Run {
    scenario: Scenario,
    histories: Vec<History>,
    observer: Observer,
    violations: Vec<Violation>,
}

impl Run {
    /// Runs the scenario of `seed`.
    fn from_seed(seed: u64, algorithm: Option<&'static Algorithm>) -> Self {
        Self::with_network(Scenario::random(seed).with_algorithm(algorithm), |place| place)
    }

    /// Runs a scenario over a network, after `fit` has changed its nodes.
    fn with_network(scenario: Scenario, fit: impl Fn(Node) -> Node) -> Self {
        let geometry = scenario.config.geometry();
        let (places, observer) = sim::world(scenario.ranks, geometry, scenario.fault_plan.clone());
        let places: Vec<Node> = places.into_iter().map(fit).collect();
        let histories = std::thread::scope(|scope| {
            let panicked = || History { panicked: true, ..History::default() };
            let live = |(host, place)| {
                let (scenario, observer) = (&scenario, &observer);
                scope.spawn(move || Host::run(host, place, scenario, observer))
            };
            let hosts: Vec<_> = places.into_iter().enumerate().map(live).collect();
            hosts.into_iter().map(|host| host.join().unwrap_or_else(|_| panicked())).collect::<Vec<_>>()
        });
        let violations =
            Checker { scenario: &scenario, histories: &histories, observer: &observer }.violations();
        Self { scenario, histories, observer, violations }
    }

    fn print(&self) {
        let Scenario { seed, ranks, config, fault_plan, steps } = &self.scenario;
        println!(
            "seed {seed}: {ranks} ranks, {} channels, {} slots of {} bytes; {} to {} µs, up to {} times as long",
            config.channels,
            config.fifo_depth,
            config.fifo_slot_bytes,
            fault_plan.delay_min.as_micros(),
            fault_plan.delay_max.as_micros(),
            fault_plan.max_slowdown
        );
        fault_plan.faults.iter().for_each(|fault| println!("  {fault:?}"));
        steps.iter().enumerate().for_each(|(number, step)| println!("  step {number}: {step:?}"));
        for (host, history) in self.histories.iter().enumerate() {
            let died =
                self.observer.died_at(host).map_or_else(String::new, |died| format!(", died at {died:?}"));
            println!("host {host}{died}");
            history.entries.iter().for_each(|entry| println!("  {entry}"));
        }
        println!(
            "{:?}, {} deliveries, trace {:x}",
            self.observer.now(),
            self.observer.delivered(),
            self.observer.trace()
        );
    }

    fn print_violations(&self) {
        let seed = self.scenario.seed;
        for Violation { invariant, what } in &self.violations {
            println!("seed {seed} violates {invariant:?}: {what}");
        }
        if !self.violations.is_empty() {
            let wanted = self.scenario.steps.iter().find_map(|step| step.wanted);
            let algorithm = wanted.map_or_else(String::new, |row| format!(" --algo {}", row.name));
            println!("  unisono simulate --seed {seed}{algorithm}");
        }
    }
}

/// Runs the seeds; fails if an invariant does not hold.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, String> {
    let algorithm = arguments.algorithm()?;
    if let Some(seed) = arguments.seed {
        let run = Run::from_seed(seed, algorithm);
        run.print();
        run.print_violations();
        return Ok(u8::from(!run.violations.is_empty()));
    }
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let violated = run_seeds(arguments.seeds.clone(), arguments.threads.unwrap_or(cores), |seed| {
        violates(seed, algorithm)
    });
    Ok(u8::from(violated > 0))
}

/// Returns whether the run of `seed` violates an invariant, and prints the violations.
fn violates(seed: u64, algorithm: Option<&'static Algorithm>) -> bool {
    let run = Run::from_seed(seed, algorithm);
    run.print_violations();
    !run.violations.is_empty()
}

/// Runs the seeds on `threads` threads and returns the number of violating runs.
fn run_seeds(seeds: Range<u64>, threads: usize, violates: impl Fn(u64) -> bool + Sync) -> usize {
    let (next, violated, begun) = (AtomicU64::new(seeds.start), AtomicUsize::new(0), Instant::now());
    let worker = |thread: usize| {
        // A run has one rank at work at most times: on one core, ranks hand over faster.
        bind_thread(thread, threads);
        loop {
            // Relaxed is enough, because the counter only hands out seeds and publishes no other
            // data.
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            if violates(seed) {
                violated.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        let worker = &worker;
        let workers: Vec<_> = (0..threads.max(1)).map(|thread| scope.spawn(move || worker(thread))).collect();
        // Also if they panicked, which ends this scope in the same way.
        report_progress(&seeds, &next, begun, || workers.iter().all(ScopedJoinHandle::is_finished));
    });
    let (count, seconds) = (seeds.end - seeds.start, begun.elapsed().as_secs_f64());
    let violated = violated.into_inner();
    println!(
        "{count} runs in {seconds:.1} s, {:.0} a second; {violated} violate something",
        count as f64 / seconds
    );
    violated
}

/// Prints the progress at intervals until all runs are over.
fn report_progress(seeds: &Range<u64>, next: &AtomicU64, begun: Instant, is_over: impl Fn() -> bool) {
    let mut told = begun;
    while !is_over() {
        std::thread::sleep(Duration::from_millis(20));
        let done = next.load(Ordering::Relaxed).min(seeds.end) - seeds.start;
        if told.elapsed() > REPORT_INTERVAL {
            told = Instant::now();
            let rate = done as f64 / begun.elapsed().as_secs_f64();
            eprintln!("{done} of {} runs, {rate:.0} a second", seeds.end - seeds.start);
        }
    }
}

const REPORT_INTERVAL: Duration = Duration::from_secs(10);
