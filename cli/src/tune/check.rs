//! `tune --check`: compares the automatic choice with every fixed algorithm.

use super::measure::{Case, Timing};
use std::collections::BTreeMap;
use std::fmt;
use unisono_bench_support::stats::median;

/// Times of `auto` at one size, and its ratios to other algorithms.
#[derive(Debug, Default)]
struct SizeResult {
    chosen: String,
    micros: Vec<f64>,
    /// Times of `auto`, in those of the algorithm, one for each round.
    ratios: BTreeMap<&'static str, Vec<f64>>,
}

/// Largest accepted slowdown of `auto` against the best fixed algorithm.
const SLOWDOWN_MAX: f64 = 1.1;
/// Factor of rounds in the second measurement: a slow size must be slow on a noisy machine, too.
const RETRY_FACTOR: u16 = 3;

/// Cells seen, and how many of them are slower.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Summary {
    pub(super) sizes: usize,
    pub(super) slower: usize,
}

/// Compares `auto` with every algorithm of a field, and prints a line for each size.
pub(super) fn compare(field: &Case, max_bytes: usize, rounds: u16) -> Result<Summary, String> {
    let names: Vec<_> = field.algorithms().iter().map(|row| row.name).collect();
    let mut cells: BTreeMap<usize, SizeResult> = BTreeMap::new();
    measure_rounds(field, &names, &field.sizes(max_bytes), rounds, &mut cells)?;
    for name in names {
        let slower = |cell: &SizeResult| cell.ratio(name).is_some_and(|ratio| ratio > SLOWDOWN_MAX);
        let again: Vec<_> = cells.iter().filter(|(_, cell)| slower(cell)).map(|(&bytes, _)| bytes).collect();
        if !again.is_empty() {
            for (_, cell) in cells.iter_mut().filter(|(bytes, _)| again.contains(bytes)) {
                // The ratios of the first measurement are in doubt, and must not count beside the
                // new ones.
                cell.ratios.remove(name);
            }
            measure_rounds(field, &[name], &again, rounds * RETRY_FACTOR, &mut cells)?;
        }
    }
    for (bytes, cell) in &cells {
        println!("{:<16} {:>4} {:>5} {bytes:>10} {cell}", field.collective, field.transport, field.ranks);
    }
    Ok(Summary { sizes: cells.len(), slower: cells.values().filter(|cell| cell.is_slower()).count() })
}

/// The names of the columns.
pub(super) fn head() -> String {
    format!(
        "# {:<14} {:>4} {:>5} {:>10} {:<14} {:>10} {:<14} {:>6}",
        "collective", "over", "ranks", "bytes", "auto", "us", "fastest", "ratio"
    )
}

/// Rounds in which `auto` runs before each of the others.
fn measure_rounds(
    field: &Case,
    names: &[&'static str],
    sizes: &[usize],
    rounds: u16,
    cells: &mut BTreeMap<usize, SizeResult>,
) -> Result<(), String> {
    for round in 1..=rounds {
        for &name in names {
            eprintln!("{field}, round {round}: auto and {name}, {} sizes", sizes.len());
            // The two run one after the other, so that a slow change of the load hardly changes
            // their ratio.
            let auto = field.perf("auto", sizes)?;
            let other = field.perf(name, sizes)?;
            for (auto, other) in auto.iter().zip(&other) {
                cells.entry(auto.bytes).or_default().add(auto, name, other);
            }
        }
    }
    Ok(())
}

impl SizeResult {
    fn add(&mut self, auto: &Timing, name: &'static str, other: &Timing) {
        self.chosen.clone_from(&auto.algorithm);
        self.micros.push(auto.micros);
        self.ratios.entry(name).or_default().push(auto.micros / other.micros);
    }

    /// The time of `auto` in that of `name`; none where that is the same.
    fn ratio(&self, name: &str) -> Option<f64> {
        let ratios = self.ratios.get(name).filter(|_| name != self.chosen);
        median(ratios?.iter().copied())
    }

    /// The fastest, and the time of `auto` in its.
    fn fastest(&self) -> (&str, f64) {
        let others = self.ratios.keys().filter_map(|&name| Some((name, self.ratio(name)?)));
        others
            .filter(|&(_, ratio)| ratio > 1.0)
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .unwrap_or((&self.chosen, 1.0))
    }

    fn is_slower(&self) -> bool {
        self.fastest().1 > SLOWDOWN_MAX
    }
}

impl fmt::Display for SizeResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (fastest, ratio) = self.fastest();
        let mark = if self.is_slower() { " slower" } else { "" };
        write!(
            f,
            "{:<14} {:>10.2} {fastest:<14} {ratio:>6.2}{mark}",
            self.chosen,
            median(self.micros.iter().copied()).unwrap_or_default()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_result(rounds: &[(f64, f64)]) -> SizeResult {
        let timing = |micros, name: &str| Timing { bytes: 8, micros, algorithm: name.to_owned() };
        let mut cell = SizeResult::default();
        for &(auto, tree) in rounds {
            cell.add(&timing(auto, "ring"), "tree", &timing(tree, "tree"));
            cell.add(&timing(auto, "ring"), "ring", &timing(auto / 9.0, "ring"));
        }
        cell
    }

    #[test]
    fn slower_needs_two_of_three_rounds() {
        assert!(!size_result(&[(10.0, 10.0), (30.0, 10.0), (10.5, 10.0)]).is_slower());
        let slower = size_result(&[(10.0, 10.0), (30.0, 10.0), (11.5, 10.0)]);
        assert_eq!(slower.fastest(), ("tree", 1.15));
        assert!(
            slower.is_slower() && slower.to_string().ends_with("tree             1.15 slower"),
            "{slower}"
        );
    }

    #[test]
    fn chosen_algorithm_is_never_slower_than_itself() {
        assert_eq!(size_result(&[(10.0, 20.0)]).fastest(), ("ring", 1.0));
    }
}
