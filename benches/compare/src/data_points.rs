//! Data points: medians over rounds, the best setting and the roofline of each size.

use crate::case::{Case, Collective, Transport};
use crate::placement::Placement;
use crate::results::SourceKey;
use crate::rows::{Metric, ROOFLINE, Row, write_csv};
use crate::settings::DEFAULTS;
use crate::unisono;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use unisono_bench_support::stats::{geometric_mean, median};

/// A library in one setting.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Source {
    pub(crate) library: String,
    pub(crate) setting: String,
}

/// One size of one case.
#[derive(Clone, Debug)]
pub(crate) struct DataPoint {
    pub(crate) case: Case,
    pub(crate) bytes: usize,
    /// Placement of the cores of the first and the last rank.
    pub(crate) placement: Option<Placement>,
    /// Medians over the rounds that count, in microseconds.
    pub(crate) times: BTreeMap<Source, f64>,
    /// Least time that the machine allows, in microseconds: the minimum of all rounds, because
    /// noise only adds.
    pub(crate) roofline: Option<f64>,
}

/// The best of several.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Best<'a> {
    pub(crate) source: &'a Source,
    pub(crate) micros: f64,
}

/// Limits of the machine: the best of all rounds, because noise only lowers them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Limits {
    /// GB/s of copies past the cache by all cores, bytes read plus bytes written.
    pub(crate) copy_rate: f64,
    /// Microseconds of a flag from one core to another.
    pub(crate) flag_latency: f64,
}

/// Returns the limits, or `None` if nothing was measured.
pub(crate) fn limits(rows: &[Row]) -> Option<Limits> {
    let figures = |what: Metric| {
        rows.iter().filter(move |row| row.metric == what).filter_map(|row| row.outcome.as_ref().ok().copied())
    };
    let copy_rate = figures(Metric::CopyRate).reduce(f64::max)?;
    let flag_latency = figures(Metric::FlagLatency).reduce(f64::min)?;
    Some(Limits { copy_rate, flag_latency })
}

/// Returns all data points, by case and size.
///
/// Times of one core placement count: the placement with the most times of the case among those in
/// which unisono and a peer have times.
pub(crate) fn data_points<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Vec<DataPoint> {
    by_placement(rows).into_iter().filter_map(|states| states.into_iter().next()).collect()
}

/// Returns the data points of the other core placements.
pub(crate) fn data_points_of_other_placements<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Vec<DataPoint> {
    by_placement(rows).into_iter().flat_map(|states| states.into_iter().skip(1)).collect()
}

/// Returns each data point in every placement with times of unisono and a peer, the most frequent
/// first.
///
/// Without such a placement, all times count.
fn by_placement<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Vec<Vec<DataPoint>> {
    let samples = collect_samples(rows);
    let usual = placements_by_frequency(&samples);
    let states = |(&(case, bytes), rounds): (&(Case, usize), &Samples)| {
        let placements = usual[&case].into_iter().filter(|&cores| rounds.has_both(cores));
        let points: Vec<DataPoint> =
            placements.map(|cores| rounds.data_point(case, bytes, Some(cores))).collect();
        if points.is_empty() { vec![rounds.data_point(case, bytes, None)] } else { points }
    };
    samples.iter().map(states).collect()
}

/// Returns the placements of each case, the most frequent first.
fn placements_by_frequency(samples: &BTreeMap<(Case, usize), Samples>) -> BTreeMap<Case, [Placement; 3]> {
    let mut cases: BTreeMap<Case, BTreeMap<Placement, usize>> = BTreeMap::new();
    for ((case, _), rounds) in samples {
        let counts = cases.entry(*case).or_default();
        for cores in rounds.times.values().flatten().filter_map(|(cores, _)| *cores) {
            *counts.entry(cores).or_default() += 1;
        }
    }
    let sorted = |counts: BTreeMap<Placement, usize>| {
        let mut states = Placement::ALL;
        states.sort_by_key(|cores| std::cmp::Reverse(counts.get(cores).copied()));
        states
    };
    cases.into_iter().map(|(case, counts)| (case, sorted(counts))).collect()
}

fn collect_samples<'a>(rows: impl IntoIterator<Item = &'a Row>) -> BTreeMap<(Case, usize), Samples> {
    let mut points: BTreeMap<(Case, usize), Samples> = BTreeMap::new();
    for row in rows {
        let (Metric::Collective(case, bytes), &Ok(micros)) = (row.metric, &row.outcome) else {
            continue;
        };
        let rounds = points.entry((case, bytes)).or_default();
        if row.library == ROOFLINE {
            rounds.roofline = Some(rounds.roofline.map_or(micros, |least| least.min(micros)));
        } else {
            let who = Source { library: row.library.clone(), setting: row.setting.clone() };
            rounds.times.entry(who).or_default().push((row.flag_latency.map(Placement::of), micros));
        }
    }
    points
}

/// Samples of one data point: times with their core placement, where that is known.
#[derive(Default)]
struct Samples {
    times: BTreeMap<Source, Vec<(Option<Placement>, f64)>>,
    roofline: Option<f64>,
}

impl Samples {
    /// Medians over the rounds in one state, if there is a choice; in an unknown one in any case.
    fn data_point(&self, case: Case, bytes: usize, cores: Option<Placement>) -> DataPoint {
        let counts = |found: Option<Placement>| cores.is_none() || found.is_none() || found == cores;
        let counted = |times: &[(Option<Placement>, f64)]| {
            median(times.iter().filter(|(found, _)| counts(*found)).map(|&(_, micros)| micros))
        };
        let times = self.times.iter().filter_map(|(who, times)| Some((who.clone(), counted(times)?)));
        DataPoint { case, bytes, placement: cores, times: times.collect(), roofline: self.roofline }
    }

    /// Returns whether unisono and a peer were measured in this placement.
    fn has_both(&self, cores: Placement) -> bool {
        let has = |is_wanted: &dyn Fn(&str) -> bool| {
            let times = self.times.iter().filter(|(who, _)| is_wanted(&who.library));
            times.flat_map(|(_, times)| times).any(|(found, _)| *found == Some(cores))
        };
        has(&|name| name == unisono::NAME) && has(&|name| !is_unisono(name))
    }
}

impl DataPoint {
    /// Returns the best setting of one library.
    pub(crate) fn best_of(&self, library: &str) -> Option<Best<'_>> {
        self.best(|who| who.library == library)
    }

    /// The best of all that are not unisono.
    pub(crate) fn best_peer(&self) -> Option<Best<'_>> {
        self.best(|who| !is_unisono(&who.library))
    }

    /// Returns the default setting of one library; over TCP, its TCP setting.
    pub(crate) fn defaults_of(&self, library: &str) -> Option<Best<'_>> {
        let untuned = |who: &Source| [DEFAULTS, "TCP"].contains(&who.setting.as_str());
        self.best(|who| who.library == library && untuned(who))
    }

    pub(crate) fn unisono_micros(&self) -> Option<f64> {
        self.best_of(unisono::NAME).map(|best| best.micros)
    }

    /// Returns the best peer's time over unisono's: above one, unisono is faster.
    pub(crate) fn speedup(&self) -> Option<f64> {
        Some(self.best_peer()?.micros / self.unisono_micros()?)
    }

    /// Returns the median of one library in one setting.
    pub(crate) fn time_of(&self, (library, setting): SourceKey<'_>) -> Option<f64> {
        let is_it = |who: &Source| (who.library.as_str(), who.setting.as_str()) == (library, setting);
        self.best(is_it).map(|best| best.micros)
    }

    fn best(&self, counts: impl Fn(&Source) -> bool) -> Option<Best<'_>> {
        let those = self.times.iter().filter(|(who, _)| counts(who));
        those
            .map(|(who, &micros)| Best { source: who, micros })
            .min_by(|left, right| left.micros.total_cmp(&right.micros))
    }
}

/// Returns whether a library is unisono, with ordinary or with symmetric buffers.
pub(crate) fn is_unisono(library: &str) -> bool {
    [unisono::NAME, unisono::SYMMETRIC].contains(&library)
}

/// Returns the geometric mean of unisono's speedup over the data points that have both times.
pub(crate) fn geometric_mean_vs<'a>(
    points: impl IntoIterator<Item = &'a DataPoint>,
    least_bytes: usize,
    other: impl Fn(&'a DataPoint) -> Option<Best<'a>>,
) -> Option<f64> {
    let large = points.into_iter().filter(|point| point.bytes >= least_bytes);
    geometric_mean(large.filter_map(|point| Some(other(point)?.micros / point.unisono_micros()?)))
}

/// Returns the libraries with a time in any of the data points.
pub(crate) fn libraries(points: &[&DataPoint]) -> BTreeSet<String> {
    points.iter().flat_map(|point| point.times.keys()).map(|who| who.library.clone()).collect()
}

/// Groups data points by (transport, collective), in order.
pub(crate) fn grouped(points: &[DataPoint]) -> BTreeMap<(Transport, Collective), Vec<&DataPoint>> {
    let mut groups: BTreeMap<_, Vec<&DataPoint>> = BTreeMap::new();
    for point in points {
        groups.entry((point.case.transport, point.case.collective)).or_default().push(point);
    }
    groups
}

/// One line of `medians.csv`.
#[derive(Serialize)]
struct Line<'a> {
    transport: &'a str,
    collective: &'a str,
    ranks: usize,
    bytes: usize,
    library: &'a str,
    setting: &'a str,
    time_us: String,
    roofline_us: String,
    load: String,
}

/// Formats the medians as comma-separated values.
pub(crate) fn to_csv(points: &[DataPoint]) -> Result<String, String> {
    let lines = points.iter().flat_map(|point| {
        let Case { transport, collective, ranks, load } = point.case;
        point.times.iter().map(move |(source, micros)| Line {
            transport: transport.name(),
            collective: collective.name(),
            ranks,
            bytes: point.bytes,
            library: &source.library,
            setting: &source.setting,
            time_us: format!("{micros:.4}"),
            roofline_us: point.roofline.map_or_else(String::new, |micros| format!("{micros:.4}")),
            load: load.key(),
        })
    });
    write_csv(lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Load;

    const CASE: Case =
        Case { transport: Transport::Shm, collective: Collective::AllReduce, ranks: 2, load: Load::QUIET };

    fn row(round: usize, library: &str, setting: &str, bytes: usize, outcome: Result<f64, String>) -> Row {
        let (library, setting) = (library.to_owned(), setting.to_owned());
        Row { round, metric: Metric::Collective(CASE, bytes), library, setting, outcome, flag_latency: None }
    }

    fn rows() -> Vec<Row> {
        let mut rows = vec![
            row(1, "unisono", "auto", 1 << 20, Ok(100.0)),
            row(2, "unisono", "auto", 1 << 20, Ok(500.0)),
            row(3, "unisono", "auto", 1 << 20, Ok(110.0)),
            row(1, "unisono symmetric", "auto", 1 << 20, Ok(1.0)),
            row(1, "Open MPI 5", "defaults", 1 << 20, Ok(330.0)),
            row(1, "Open MPI 5", "UCX", 1 << 20, Ok(220.0)),
            row(1, "Gloo", "defaults", 1 << 20, Ok(880.0)),
            row(1, "MPICH 5", "defaults", 0, Err("did not end".into())),
            row(1, "unisono", "auto", 8, Ok(0.4)),
            row(1, "Open MPI 5", "defaults", 8, Ok(0.2)),
        ];
        rows.extend([105.0, 104.0].map(|micros| row(1, ROOFLINE, "", 1 << 20, Ok(micros))));
        let figure = |what, value| Row { metric: what, ..row(1, ROOFLINE, "", 0, Ok(value)) };
        let figures = [(Metric::CopyRate, 20.0), (Metric::CopyRate, 40.0), (Metric::FlagLatency, 0.2)];
        rows.extend(figures.map(|(what, value)| figure(what, value)));
        rows
    }

    #[test]
    fn data_point_has_medians_and_best_setting() {
        let points = data_points(&rows());
        assert_eq!(points.iter().map(|point| point.bytes).collect::<Vec<_>>(), [8, 1 << 20]);
        let point = &points[1];
        assert_eq!((point.unisono_micros(), point.speedup()), (Some(110.0), Some(2.0)));
        let best = point.best_peer().expect("three");
        assert_eq!((best.source.library.as_str(), best.source.setting.as_str()), ("Open MPI 5", "UCX"));
        assert_eq!(point.defaults_of("Open MPI 5").map(|best| best.micros), Some(330.0));
        assert!(point.best_of("MPICH 5").is_none());
    }

    #[test]
    fn data_points_use_most_frequent_placement() {
        let row_at = |flag_latency, library, micros| Row {
            flag_latency: Some(flag_latency),
            ..row(1, library, "auto", 8, Ok(micros))
        };
        let mut rows = vec![row_at(0.05, "unisono", 0.2), row_at(0.3, "unisono", 0.4)];
        assert_eq!(data_points(&rows)[0].unisono_micros(), median([0.2, 0.4]));
        rows.push(row_at(0.3, "MPICH 5", 0.6));
        assert_eq!(
            (data_points(&rows)[0].speedup(), data_points_of_other_placements(&rows).len()),
            (Some(0.6 / 0.4), 0)
        );
        let near_row = |micros| row_at(0.05, "MPICH 5", micros);
        rows.extend([near_row(0.3), near_row(0.5), row(1, "Gloo", "defaults", 8, Ok(90.0))]);
        let usual = &data_points(&rows)[0];
        assert_eq!(
            (usual.placement, usual.unisono_micros(), usual.speedup()),
            (Some(Placement::SharedCache), Some(0.2), Some(0.4 / 0.2))
        );
        assert!(usual.best_of("Gloo").is_some());
        let otherwise = data_points_of_other_placements(&rows);
        assert_eq!((otherwise.len(), otherwise[0].speedup()), (1, Some(0.6 / 0.4)));
    }

    #[test]
    fn limits_are_the_best_of_all_rounds() {
        let points = data_points(&rows());
        assert_eq!((points[0].roofline, points[1].roofline), (None, Some(104.0)));
        assert_eq!(limits(&rows()), Some(Limits { copy_rate: 40.0, flag_latency: 0.2 }));
        assert_eq!(limits(&[]), None);
    }

    #[test]
    fn means_cover_large_data_points_with_both() {
        let points = data_points(&rows());
        let against = |least, who| geometric_mean_vs(&points, least, move |point| point.best_of(who));
        let close = |found: Option<f64>, value: f64| (found.expect("points") - value).abs() < 1e-9;
        assert!(close(against(1 << 20, "Open MPI 5"), 2.0));
        assert!(close(against(0, "Open MPI 5"), 1.0));
        assert!(close(against(0, "Gloo"), 8.0));
        assert_eq!(against(0, "oneCCL"), None);
    }
}
