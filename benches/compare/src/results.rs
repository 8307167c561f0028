//! Rows in a file, and what they say about who still has to run.

use crate::case::Case;
use crate::data_points::{DataPoint, data_points, is_unisono};
use crate::placement::Placement;
use crate::rows::{Metric, ROOFLINE, Row, save};
use crate::unisono;
use std::path::PathBuf;

/// Something that was measured, or why it was not.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) metric: Metric,
    pub(crate) value: Result<f64, String>,
    /// One-way flag latency between the first and the last rank's core in microseconds, where it is
    /// known.
    pub(crate) flag_latency: Option<f64>,
}

impl From<(Metric, Result<f64, String>)> for Outcome {
    fn from((what, value): (Metric, Result<f64, String>)) -> Self {
        Self { metric: what, value, flag_latency: None }
    }
}

/// Contender and setting.
pub(crate) type SourceKey<'a> = (&'a str, &'a str);

/// Rows, kept in a file from the first one on.
pub(crate) struct Results {
    pub(crate) rows: Vec<Row>,
    pub(crate) path: PathBuf,
}

impl Results {
    /// Returns the sizes without a result of a source in a round.
    pub(crate) fn missing(
        &self,
        round: usize,
        case: Case,
        names: SourceKey<'_>,
        sizes: &[usize],
    ) -> Vec<usize> {
        let has = |bytes| self.row(round, Metric::Collective(case, bytes), names).is_some();
        // Zero bytes: a run that failed there.
        let lacks = |bytes: &usize| !has(0) && !has(case.stated(*bytes));
        sizes.iter().copied().filter(lacks).collect()
    }

    /// Returns whether a source should run in rounds after the first.
    ///
    /// A source runs again in three cases:
    ///
    /// - Its first round took at most `factor` times as long as that of the best peer in the same
    ///   core placement.
    /// - Its first run failed.
    /// - It has no time in the placement that counts.
    ///
    /// A size that it skipped once stays skipped.
    pub(crate) fn deserves_round(&self, case: Case, bytes: usize, names: SourceKey<'_>, factor: f64) -> bool {
        let point = Metric::Collective(case, case.stated(bytes));
        let cores = |row: &Row| row.flag_latency.map(Placement::of);
        match self.row(1, point, names) {
            _ if is_unisono(names.0) => true,
            None => true,
            Some(Row { outcome: Err(_), .. }) => false,
            Some(row @ Row { outcome: Ok(micros), .. }) => {
                let is_alike = |other: &&Row| {
                    cores(other).zip(cores(row)).is_none_or(|(placement, wanted)| placement == wanted)
                };
                let alike = self.first_round_peers(point).filter(is_alike);
                let best = alike.filter_map(|other| other.outcome.as_ref().ok()).copied();
                *micros <= factor * best.fold(f64::INFINITY, f64::min)
                    || self.data_point(point).is_some_and(|point| point.time_of(names).is_none())
            }
        }
    }

    /// Returns whether a source should have further rounds of a data point.
    ///
    /// The medians of unisono and the best peer must be close, and the source must be close to the
    /// best peer, or have no time that counts.
    pub(crate) fn needs_more_rounds(
        &self,
        case: Case,
        bytes: usize,
        names: SourceKey<'_>,
        factor: f64,
    ) -> bool {
        let what = Metric::Collective(case, case.stated(bytes));
        let Some(point) = self.data_point(what) else { return false };
        let Some(micros) = point.time_of(names) else {
            return self.row(1, what, names).is_some_and(|row| row.outcome.is_ok());
        };
        point.best_peer().zip(point.speedup()).is_some_and(|(best, ratio)| {
            let decides = names.0 == unisono::NAME || !is_unisono(names.0) && micros <= factor * best.micros;
            decides && ratio.max(ratio.recip()) <= factor
        })
    }

    /// Returns the data point as far as it is known.
    fn data_point(&self, what: Metric) -> Option<DataPoint> {
        data_points(self.rows.iter().filter(|row| row.metric == what)).pop()
    }

    pub(crate) fn has_startup(&self, round: usize, name: &str) -> bool {
        let is_it = |row: &&Row| matches!(row.metric, Metric::Startup(_)) && row.round == round;
        self.rows.iter().filter(is_it).any(|row| row.library == name)
    }

    /// Adds rows of one source.
    pub(crate) fn add(
        &mut self,
        round: usize,
        names: SourceKey<'_>,
        outcomes: impl IntoIterator<Item = impl Into<Outcome>>,
    ) -> Result<(), String> {
        let (library, setting) = (names.0.to_owned(), names.1.to_owned());
        let row = |Outcome { metric: what, value, flag_latency }| Row {
            round,
            metric: what,
            library: library.clone(),
            setting: setting.clone(),
            outcome: value,
            flag_latency,
        };
        self.rows.extend(outcomes.into_iter().map(Into::into).map(row));
        save(&self.path, &self.rows)
    }

    fn row(&self, round: usize, what: Metric, names: SourceKey<'_>) -> Option<&Row> {
        let is_named = |row: &&Row| (row.library.as_str(), row.setting.as_str()) == names;
        let rows = self.rows.iter().filter(is_named);
        rows.rev().find(|row| (row.round, row.metric) == (round, what))
    }

    /// Returns the peers' results of the first round.
    fn first_round_peers(&self, point: Metric) -> impl Iterator<Item = &Row> {
        let theirs = |row: &&Row| !is_unisono(&row.library) && row.library != ROOFLINE;
        let there = move |row: &&Row| (row.round, row.metric) == (1, point);
        self.rows.iter().filter(there).filter(theirs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Collective, Transport};
    use crate::load::Load;

    const CASE: Case =
        Case { transport: Transport::Shm, collective: Collective::AllGather, ranks: 4, load: Load::QUIET };
    const RING: SourceKey<'_> = ("Intel MPI", "yield ring");
    const UCX: SourceKey<'_> = ("Open MPI 5", "UCX");
    const OURS: SourceKey<'_> = ("unisono", "auto");

    fn results(name: &str, rows: &[(SourceKey<'_>, usize, Result<f64, &str>)]) -> Results {
        let name = format!("unisono-compare-{name}-{}.csv", std::process::id());
        let mut results = Results { rows: Vec::new(), path: std::env::temp_dir().join(name) };
        for &(names, bytes, outcome) in rows {
            let outcome = outcome.map_err(str::to_owned);
            results.add(1, names, [(Metric::Collective(CASE, bytes), outcome)]).expect("writable");
        }
        results
    }

    #[test]
    fn results_present_are_not_rerun() {
        let results =
            results("missing", &[(RING, 16, Ok(1.0)), (UCX, 16, Ok(1.0)), (UCX, 0, Err("it hung"))]);
        // 8 bytes of four ranks are stated as 16.
        assert_eq!(results.missing(1, CASE, RING, &[8, 1024]), [1024]);
        assert_eq!(results.missing(2, CASE, RING, &[8, 1024]), [8, 1024]);
        assert!(results.missing(1, CASE, UCX, &[8, 1024]).is_empty());
        let read = std::fs::read_to_string(&results.path).expect("written");
        assert_eq!(crate::rows::from_csv(&read), Ok(results.rows));
        std::fs::remove_file(results.path).expect("removed");
    }

    #[test]
    fn later_rounds_go_to_close_or_failed() {
        let rows = [
            ((ROOFLINE, ""), 16, Ok(0.1)),
            (OURS, 16, Ok(9.0)),
            (UCX, 16, Ok(2.0)),
            (RING, 16, Ok(3.1)),
            (RING, 1024, Err("skipped")),
            (UCX, 2048, Ok(5.0)),
            (RING, 2048, Ok(7.0)),
        ];
        let results = results("worth", &rows);
        let worth = |bytes, names| results.deserves_round(CASE, bytes, names, 1.5);
        assert!(worth(8, OURS) && worth(8, UCX) && !worth(8, RING));
        assert!(worth(1024, UCX) && !worth(1024, RING));
        assert!(worth(2048, RING) && results.deserves_round(CASE, 8, RING, f64::INFINITY));
        std::fs::remove_file(results.path).expect("removed");
    }

    #[test]
    fn extra_rounds_go_to_close_data_points() {
        let rows = [
            (OURS, 16, Ok(2.0)),
            (("unisono symmetric", "auto"), 16, Ok(1.9)),
            (UCX, 16, Ok(2.1)),
            (RING, 16, Ok(2.8)),
            (OURS, 1024, Ok(3.0)),
            (UCX, 1024, Ok(2.0)),
            (OURS, 2048, Err("it hung")),
            (UCX, 2048, Ok(2.0)),
        ];
        let mut results = results("close", &rows);
        let close = |results: &Results, bytes, names| results.needs_more_rounds(CASE, bytes, names, 1.3);
        assert!(close(&results, 8, OURS) && close(&results, 8, UCX));
        assert!(!close(&results, 8, RING) && !close(&results, 8, ("unisono symmetric", "auto")));
        assert!(!close(&results, 1024, OURS) && !close(&results, 2048, UCX) && !close(&results, 4096, OURS));
        // Medians, not the first round: of 2.8, 2.1 and 2.2 it is 2.2.
        for (round, micros) in [(2, 2.1), (3, 2.2)] {
            results.add(round, RING, [(Metric::Collective(CASE, 16), Ok(micros))]).expect("writable");
        }
        assert!(close(&results, 8, RING));
        std::fs::remove_file(results.path).expect("removed");
    }

    #[test]
    fn results_are_compared_within_a_placement() {
        let mut results = results("far", &[]);
        for (names, micros, flag_latency) in [(UCX, 2.0, 0.05), (RING, 4.0, 0.3), (("Gloo", ""), 9.0, 0.3)] {
            let what = Metric::Collective(CASE, 16);
            let outcome = Outcome { metric: what, value: Ok(micros), flag_latency: Some(flag_latency) };
            results.add(1, names, [outcome]).expect("writable");
        }
        assert!(
            results.deserves_round(CASE, 8, RING, 1.5) && !results.deserves_round(CASE, 8, ("Gloo", ""), 1.5)
        );
        let ours = Outcome { metric: Metric::Collective(CASE, 16), value: Ok(2.0), flag_latency: Some(0.05) };
        results.add(1, OURS, [ours]).expect("writable");
        // Now times with the cores near count, of which these two have none.
        for names in [RING, ("Gloo", "")] {
            assert!(
                results.deserves_round(CASE, 8, names, 1.5) && results.needs_more_rounds(CASE, 8, names, 1.5)
            );
        }
        assert!(
            results.needs_more_rounds(CASE, 8, OURS, 1.5)
                && !results.needs_more_rounds(CASE, 8, ("MPICH 5", ""), 1.5)
        );
        std::fs::remove_file(results.path).expect("removed");
    }
}
