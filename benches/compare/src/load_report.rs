//! The part of a record about loads: quiet and loaded times side by side.

use crate::case::{Case, Collective, Transport};
use crate::data_points::{DataPoint, is_unisono};
use crate::load::Load;
use crate::report::{format_figure, format_ratio, format_source};
use crate::rows::{Metric, ROOFLINE, Row};
use crate::unisono;
use std::collections::{BTreeMap, BTreeSet};
use unisono_bench_support::size;
use unisono_bench_support::stats::geometric_mean;

/// Ratio to the best peer below which a configuration is listed.
const RATIO_MIN: f64 = 0.8;
/// Ratio to the own quiet time above which a configuration is listed.
const SLOWDOWN_MAX: f64 = 4.0;

/// One size of a case: under load, and on the quiet machine if it was measured there.
struct Pair<'a> {
    loaded: &'a DataPoint,
    quiet: Option<&'a DataPoint>,
    /// Rounds in the load with a time of unisono and a peer, and those with a ratio below
    /// [`RATIO_MIN`].
    rounds: Rounds,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Rounds {
    all: usize,
    below: usize,
}

/// Returns a section for each load; empty without loads.
pub(crate) fn sections(points: &[DataPoint], rows: &[Row], shares: &str) -> String {
    let loads: BTreeSet<Load> = points.iter().map(|point| point.case.load).collect();
    let loads = loads.into_iter().filter(|load| !load.is_quiet());
    loads.map(|load| section(load, &pairs(load, points, rows), shares)).collect()
}

/// Returns the data points in one load, each with its quiet one.
fn pairs<'a>(load: Load, points: &'a [DataPoint], rows: &[Row]) -> Vec<Pair<'a>> {
    let loaded = points.iter().filter(|point| point.case.load == load);
    let pair = |loaded: &'a DataPoint| {
        let case = Case { load: Load::QUIET, ..loaded.case };
        let quiet = points.iter().find(|point| point.case == case && point.bytes == loaded.bytes);
        Pair { loaded, quiet, rounds: rounds(rows, Metric::Collective(loaded.case, loaded.bytes)) }
    };
    loaded.map(pair).collect()
}

/// Compares unisono with the best peer of the same round, round by round.
fn rounds(rows: &[Row], metric: Metric) -> Rounds {
    let mut best: BTreeMap<usize, [f64; 2]> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.metric == metric && row.library != ROOFLINE) {
        let side = match row.library.as_str() {
            unisono::NAME => 0,
            name if is_unisono(name) => continue,
            _ => 1,
        };
        if let Ok(micros) = row.outcome {
            let least = &mut best.entry(row.round).or_insert([f64::INFINITY; 2])[side];
            *least = least.min(micros);
        }
    }
    let ratios: Vec<f64> = best
        .into_values()
        .filter(|times| times.iter().all(|micros| micros.is_finite()))
        .map(|[ours, theirs]| theirs / ours)
        .collect();
    Rounds { all: ratios.len(), below: ratios.iter().filter(|&&ratio| ratio < RATIO_MIN).count() }
}

impl Pair<'_> {
    /// Returns the own time in the load over the own quiet time.
    fn slowdown(&self) -> Option<f64> {
        Some(self.loaded.unisono_micros()? / self.quiet?.unisono_micros()?)
    }

    fn quiet_speedup(&self) -> Option<f64> {
        self.quiet?.speedup()
    }
}

fn section(load: Load, pairs: &[Pair<'_>], shares: &str) -> String {
    let mut groups: BTreeMap<(Transport, Collective), Vec<&Pair<'_>>> = BTreeMap::new();
    for pair in pairs {
        groups.entry((pair.loaded.case.transport, pair.loaded.case.collective)).or_default().push(pair);
    }
    let mut text = format!("\n## Under load: {load}\n\n{shares}") + &summary(&groups);
    for ((transport, collective), pairs) in &groups {
        text += &table(*transport, *collective, pairs);
    }
    text + &slow(pairs)
}

fn summary(groups: &BTreeMap<(Transport, Collective), Vec<&Pair<'_>>>) -> String {
    let mut text = format!(
        "Geometric means of the best peer's time over unisono's, quiet and loaded, and of unisono's own time under \
         load over its quiet time.\n\n\
         | transport | collective | data points | ratio, quiet | ratio, loaded | least | below {RATIO_MIN} \
         | loaded / quiet | greatest |\n|---|---|--:|--:|--:|--:|--:|--:|--:|\n"
    );
    for ((transport, collective), pairs) in groups {
        let ratios: Vec<f64> = pairs.iter().filter_map(|pair| pair.loaded.speedup()).collect();
        let slowdowns: Vec<f64> = pairs.iter().filter_map(|pair| pair.slowdown()).collect();
        text += &format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
            transport.name(),
            collective.name(),
            pairs.len(),
            format_ratio(geometric_mean(pairs.iter().filter_map(|pair| pair.quiet_speedup()))),
            format_ratio(geometric_mean(ratios.iter().copied())),
            format_ratio(ratios.iter().copied().reduce(f64::min)),
            ratios.iter().filter(|&&ratio| ratio < RATIO_MIN).count(),
            format_figure(geometric_mean(slowdowns.iter().copied())),
            format_figure(slowdowns.iter().copied().reduce(f64::max)),
        );
    }
    text
}

fn table(transport: Transport, collective: Collective, pairs: &[&Pair<'_>]) -> String {
    let mut text = format!(
        "\n### {}, {}\n\n| ranks | size | quiet: unisono, µs | best peer, µs | ratio | loaded: unisono, µs \
         | best peer, µs | who | ratio | loaded / quiet |\n|--:|--:|--:|--:|--:|--:|--:|---|--:|--:|\n",
        collective.name(),
        transport.name()
    );
    for pair in pairs {
        let (quiet, loaded) = (pair.quiet, pair.loaded);
        let peer = |point: Option<&DataPoint>| Some(point?.best_peer()?.micros);
        text += &format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
            loaded.case.ranks,
            size::show(loaded.bytes),
            format_figure(quiet.and_then(DataPoint::unisono_micros)),
            format_figure(peer(quiet)),
            format_ratio(pair.quiet_speedup()),
            format_figure(loaded.unisono_micros()),
            format_figure(peer(Some(loaded))),
            format_source(loaded.best_peer()),
            format_ratio(loaded.speedup()),
            format_figure(pair.slowdown()),
        );
    }
    text
}

/// Lists configurations far behind the best peer, and those far behind their own quiet time.
fn slow(pairs: &[Pair<'_>]) -> String {
    let mut slower: Vec<(f64, &Pair<'_>)> =
        pairs.iter().filter_map(|pair| Some((pair.loaded.speedup()?, pair))).collect();
    let compared = slower.len();
    slower.retain(|(ratio, _)| *ratio < RATIO_MIN);
    slower.sort_by(|pair, other| pair.0.total_cmp(&other.0));
    let mut text = format!(
        "\n### Below {RATIO_MIN} of the best peer\n\n{} of {compared}, the worst first. A round has its own ratio, to the \
         best peer of that round.\n",
        slower.len()
    );
    if !slower.is_empty() {
        text +=
            &format!("\n| case | size | ratio | than | rounds below {RATIO_MIN} |\n|---|--:|--:|---|--:|\n");
    }
    for (ratio, Pair { loaded, rounds, .. }) in slower {
        let (size, who) = (size::show(loaded.bytes), format_source(loaded.best_peer()));
        let Rounds { all, below } = rounds;
        text += &format!("| {} | {size} | {ratio:.2} | {who} | {below} of {all} |\n", loaded.case.place());
    }
    let mut slowed: Vec<(f64, &Pair<'_>)> =
        pairs.iter().filter_map(|pair| Some((pair.slowdown()?, pair))).collect();
    let compared = slowed.len();
    slowed.retain(|(slowdown, _)| *slowdown > SLOWDOWN_MAX);
    slowed.sort_by(|pair, other| other.0.total_cmp(&pair.0));
    text += &format!(
        "\n### More than {SLOWDOWN_MAX} times the own quiet time\n\n{} of {compared}, the worst first.\n",
        slowed.len()
    );
    if !slowed.is_empty() {
        text += "\n| case | size | loaded / quiet |\n|---|--:|--:|\n";
    }
    for (slowdown, Pair { loaded, .. }) in slowed {
        let (case, size) = (loaded.case.place(), size::show(loaded.bytes));
        text += &format!("| {case} | {size} | {} |\n", format_figure(Some(slowdown)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_points::data_points;

    const QUIET: Case =
        Case { transport: Transport::Shm, collective: Collective::AllReduce, ranks: 3, load: Load::QUIET };
    const LOADED: Case = Case { load: Load { busy: 2, ..Load::QUIET }, ..QUIET };

    fn row(round: usize, case: Case, bytes: usize, library: &str, micros: f64) -> Row {
        let (library, setting) = (library.to_owned(), "yield".to_owned());
        let metric = Metric::Collective(case, bytes);
        Row { round, metric, library, setting, outcome: Ok(micros), flag_latency: None }
    }

    /// Two sizes; in the load the first one is slow, the second one fast.
    fn rows() -> Vec<Row> {
        let mut rows = vec![
            row(1, QUIET, 24, "unisono", 2.0),
            row(1, QUIET, 24, "MPICH 5", 4.0),
            row(1, QUIET, 3000, "unisono", 4.0),
            row(1, QUIET, 3000, "MPICH 5", 4.0),
            row(1, LOADED, 3000, "unisono", 16.0),
            row(1, LOADED, 3000, "MPICH 5", 32.0),
        ];
        for (round, ours) in [(1, 100.0), (2, 200.0), (3, 10.0)] {
            rows.push(row(round, LOADED, 24, "unisono", ours));
            rows.push(row(round, LOADED, 24, "MPICH 5", 50.0));
            rows.push(row(round, LOADED, 24, "Gloo", 900.0));
            rows.push(row(round, LOADED, 24, "unisono symmetric", 0.1));
        }
        rows
    }

    fn report(rows: &[Row]) -> String {
        sections(&data_points(rows), rows, "Equal. ")
    }

    #[test]
    fn quiet_and_loaded_stand_side_by_side() {
        let text = report(&rows());
        assert!(text.contains("## Under load: 2 busy loops"), "{text}");
        let line = "| 3 | 24 B | 2.00 | 4.00 | 2.00 | 100 | 50.0 | MPICH 5, yield | **0.50** | 50.0 |";
        assert!(text.contains(line), "{text}");
        let line = "| 3 | 3000 B | 4.00 | 4.00 | 1.00 | 16.0 | 32.0 | MPICH 5, yield | 2.00 | 4.00 |";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn means_are_geometric_and_extremes_are_named() {
        let text = report(&rows());
        // The means of 2 and 1, of 0.5 and 2, and of 50 and 4.
        let line = "| shm | all_reduce | 2 | 1.41 | 1.00 | **0.50** | 1 | 14.1 | 50.0 |";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn slow_configurations_are_listed_with_rounds() {
        let text = report(&rows());
        assert!(text.contains("1 of 2, the worst first. A round"), "{text}");
        let line = "| all_reduce, 3 ranks, shm | 24 B | 0.50 | MPICH 5, yield | 2 of 3 |";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("### More than 4 times the own quiet time\n\n1 of 2"), "{text}");
        assert!(text.contains("| all_reduce, 3 ranks, shm | 24 B | 50.0 |"), "{text}");
    }

    #[test]
    fn load_without_quiet_times_has_no_slowdown() {
        let rows: Vec<Row> = rows().into_iter().filter(|row| row.round == 1).collect();
        let loaded: Vec<Row> =
            rows.into_iter().filter(|row| matches!(row.metric, Metric::Collective(LOADED, _))).collect();
        let text = report(&loaded);
        assert!(
            text.contains("| 3 | 24 B | – | – | – | 100 | 50.0 | MPICH 5, yield | **0.50** | – |"),
            "{text}"
        );
        assert!(text.contains("0 of 0, the worst first"), "{text}");
        assert_eq!(sections(&[], &[], "Equal. "), "");
    }
}
