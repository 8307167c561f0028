//! Checks algorithms for every number of ranks, root and aggregation.

use crate::schedule::check::address_space::supports_in_place;
use crate::schedule::check::{Options, Report, Violation, check};
use crate::schedule::{Algorithm, Collective, GroupSpec};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The result of checking one algorithm.
#[derive(Clone, Debug)]
pub struct AlgorithmReport {
    /// The collective of the algorithm.
    pub collective: Collective,
    /// The name of the algorithm.
    pub name: &'static str,
    /// The number of specs checked.
    pub cases: usize,
    /// The largest number of ranks in these specs.
    pub ranks: usize,
    /// Steps for the largest number of ranks. The stated number and the found number are equal.
    pub steps: u64,
    /// Chunks that are moved for the largest number of ranks.
    pub chunks: u64,
    /// Scratch chunks for the largest number of ranks.
    pub scratch_chunks: u64,
    /// The number of messages that a link has to hold in any of the cases.
    pub min_fifo_slots: usize,
    /// The duration of the check.
    pub elapsed: Duration,
    /// The first violation, if there is one.
    pub violation: Option<(GroupSpec, Violation)>,
}

/// Returns all specs of `algorithm` from 1 to `max_ranks` ranks. If `big` is true, also returns a
/// few specs of up to 1024 ranks.
pub fn cases(algorithm: &Algorithm, max_ranks: usize, big: bool) -> Vec<GroupSpec> {
    let mut specs = Vec::new();
    for ranks in 1..=max_ranks {
        specs.extend(cases_of(algorithm, ranks));
    }
    for ranks in LARGE_RANKS.into_iter().filter(|&ranks| big && ranks > max_ranks) {
        let factors = aggregations(algorithm, ranks);
        let mut chosen = vec![factors[0], factors[factors.len() / 2], factors[factors.len() - 1]];
        chosen.dedup();
        let roots = if algorithm.collective.has_root() { vec![0, ranks / 3] } else { vec![0] };
        for root in roots {
            specs.extend(chosen.iter().map(|&aggregation| GroupSpec { ranks, root, aggregation }));
        }
    }
    specs.retain(algorithm.supports);
    specs
}

/// Returns all specs of `algorithm` for this number of ranks, with every root and aggregation.
pub(crate) fn cases_of(algorithm: &Algorithm, ranks: usize) -> Vec<GroupSpec> {
    let aggregations = aggregations(algorithm, ranks);
    let roots = 0..if algorithm.collective.has_root() { ranks } else { 1 };
    let of_root = |root| aggregations.iter().map(move |&aggregation| GroupSpec { ranks, root, aggregation });
    roots.flat_map(of_root).filter(algorithm.supports).collect()
}

/// Returns the aggregations that make a difference, which are powers of two up to half of the next
/// power of two.
fn aggregations(algorithm: &Algorithm, ranks: usize) -> Vec<usize> {
    let most = if algorithm.aggregates { ranks.next_power_of_two() / 2 } else { 1 };
    (0..usize::BITS).map(|bit| 1 << bit).take_while(|&factor| factor <= most.max(1)).collect()
}

/// Checks `algorithm` for all `specs`, in place and out of place, on every core.
pub fn sweep(algorithm: &Algorithm, specs: &[GroupSpec]) -> AlgorithmReport {
    let begun = Instant::now();
    let (next, found) = (AtomicUsize::new(0), Mutex::new(SweepState::default()));
    let work = || {
        // The largest specs come first, so that all cores finish at about the same time.
        while let Some(index) = specs.len().checked_sub(next.fetch_add(1, Ordering::Relaxed) + 1) {
            let checked = check_spec(algorithm, &specs[index]);
            let mut found = found.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            found.add(index, specs.len(), checked);
        }
    };
    std::thread::scope(|scope| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 1..cores {
            scope.spawn(work);
        }
        work();
    });
    let found = found.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    let (steps, chunks, scratch) =
        found.last.map_or((0, 0, 0), |last| (last.steps, last.chunks, last.scratch_chunks));
    AlgorithmReport {
        collective: algorithm.collective,
        name: algorithm.name,
        cases: specs.len(),
        ranks: specs.iter().map(|spec| spec.ranks).max().unwrap_or(0),
        steps,
        chunks,
        scratch_chunks: scratch,
        min_fifo_slots: found.min_fifo_slots,
        elapsed: begun.elapsed(),
        violation: found.violation.map(|(index, violation)| (specs[index], violation)),
    }
}

/// The results of the threads of a sweep so far.
#[derive(Default)]
struct SweepState {
    last: Option<Report>,
    min_fifo_slots: usize,
    violation: Option<(usize, Violation)>,
}

impl SweepState {
    fn add(&mut self, index: usize, cases: usize, checked: Result<Report, Violation>) {
        match checked {
            Ok(report) => {
                self.min_fifo_slots = self.min_fifo_slots.max(report.min_fifo_slots);
                if index + 1 == cases {
                    self.last = Some(report);
                }
            }
            // The report has the smallest case that fails.
            Err(violation) if self.violation.as_ref().is_none_or(|&(first, _)| index < first) => {
                self.violation = Some((index, violation));
            }
            Err(_) => {}
        }
    }
}

/// Checks one spec, in place if the collective has an in-place form.
///
/// The proof also covers the form out of place, because in place more chunks share memory. A run
/// without a violation still reads the given value of every input and the last stored value of
/// every output.
fn check_spec(algorithm: &Algorithm, spec: &GroupSpec) -> Result<Report, Violation> {
    let options = Options { in_place: supports_in_place(algorithm.collective), ..Options::default() };
    check(algorithm, spec, &options)
}

/// Checks every algorithm up to `max_ranks`, and calls `on_row` with each result.
pub fn run_all(max_ranks: usize, mut on_row: impl FnMut(&AlgorithmReport)) {
    for algorithm in Algorithm::ALL {
        on_row(&sweep(algorithm, &cases(algorithm, max_ranks, false)));
    }
}

/// Checks every algorithm up to `max_ranks` ranks. If `big` is true, also checks a few cases of up
/// to 1024 ranks.
pub fn sweep_all(max_ranks: usize, big: bool) -> Vec<AlgorithmReport> {
    Algorithm::ALL.iter().map(|algorithm| sweep(algorithm, &cases(algorithm, max_ranks, big))).collect()
}

const LARGE_RANKS: [usize; 6] = [192, 256, 384, 512, 1000, 1024];
