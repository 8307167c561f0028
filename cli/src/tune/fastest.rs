//! The fastest algorithm for each size, as tuning rules.

use super::measure::{Case, Timing};
use std::collections::BTreeMap;
use unisono::schedule::Algorithm;
use unisono::select::{Topology, TuningRule, UNLIMITED};
use unisono_bench_support::stats::median;

/// Microseconds by bytes of a share, for each algorithm.
type Times = BTreeMap<usize, Vec<(&'static Algorithm, f64)>>;

/// Measures a field so many times, and makes its lines of the medians.
pub(super) fn measure(
    field: &Case,
    max_bytes: usize,
    rounds: u16,
    ranks_max: usize,
) -> Result<Vec<TuningRule>, String> {
    let rows = field.algorithms();
    let mut samples: BTreeMap<(usize, usize), Vec<f64>> = BTreeMap::new();
    // Round after round, so that what disturbs the machine for a while disturbs all alike.
    for round in 1..=rounds {
        for (index, row) in rows.iter().enumerate() {
            eprintln!("{field}, round {round}: {}", row.name);
            for Timing { bytes, micros, .. } in field.perf(row.name, &field.sizes(max_bytes))? {
                samples.entry((field.share_bytes(bytes), index)).or_default().push(micros);
            }
        }
    }
    let mut times = Times::new();
    for ((share, index), micros) in samples {
        times.entry(share).or_default().push((rows[index], median(micros).unwrap_or_default()));
    }
    Ok(fastest(&times, field.topology(), ranks_max))
}

/// Returns rules for the fastest algorithm at each size, adjacent sizes merged.
///
/// The previous algorithm keeps its range where it is within [`TIE_FACTOR`] of the best.
fn fastest(times: &Times, medium: Topology, ranks_max: usize) -> Vec<TuningRule> {
    let mut choices: Vec<TuningRule> = Vec::new();
    for (&bytes, rows) in times {
        let best = rows.iter().map(|&(_, micros)| micros).fold(f64::INFINITY, f64::min);
        let good = |algorithm: &Algorithm| {
            rows.iter().any(|&(row, micros)| std::ptr::eq(row, algorithm) && micros <= best * TIE_FACTOR)
        };
        let Some(&(winner, _)) = rows.iter().find(|&&(_, micros)| micros == best) else {
            continue;
        };
        match choices.last_mut() {
            Some(last) if good(last.algorithm) => last.bytes_max = bytes,
            Some(last) => {
                // Between two sizes the change is half way, as factors go.
                last.bytes_max = last.bytes_max.saturating_mul(2).min(bytes);
                choices.push(TuningRule { topology: medium, ranks_max, bytes_max: bytes, algorithm: winner });
            }
            None => {
                choices.push(TuningRule { topology: medium, ranks_max, bytes_max: bytes, algorithm: winner })
            }
        }
    }
    if let Some(last) = choices.last_mut() {
        last.bytes_max = UNLIMITED;
    }
    choices
}

/// Times so close are equal: repetitions of one measurement differ by more.
const TIE_FACTOR: f64 = 1.08;

#[cfg(test)]
mod tests {
    use super::*;
    use unisono::schedule::{Collective, find};
    use unisono::select::TuningTable;

    #[test]
    fn thresholds_lie_between_sizes_and_ties_keep_previous() {
        let row = |name| find(Collective::AllReduce, name).unwrap();
        let times: Times = [
            (8, vec![(row("ring"), 9.0), (row("tree"), 1.0)]),
            (32, vec![(row("ring"), 1.0), (row("tree"), 1.04)]),
            (128, vec![(row("ring"), 1.0), (row("tree"), 2.0)]),
            (512, vec![(row("ring"), 1.0), (row("tree"), 2.0)]),
        ]
        .into();
        let found = TuningTable::new(fastest(&times, Topology::Network, 4)).to_string();
        assert_eq!(found, "all_reduce tcp 4 64 tree\nall_reduce tcp 4 any ring\n");
    }
}
