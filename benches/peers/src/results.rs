//! Rows in a file, and what they say about who still has to run.

use crate::case::Case;
use crate::cells::{Cell, cells, is_ours};
use crate::cores::Cores;
use crate::ours;
use crate::rows::{FLOOR, Row, What, save};
use std::path::PathBuf;

/// Something that was measured, or why it was not.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) what: What,
    pub(crate) value: Result<f64, String>,
    /// Microseconds from the first rank's core to the last one's meanwhile, where that is known.
    pub(crate) hand_over: Option<f64>,
}

impl From<(What, Result<f64, String>)> for Outcome {
    fn from((what, value): (What, Result<f64, String>)) -> Self {
        Self { what, value, hand_over: None }
    }
}

/// Contender and setting.
pub(crate) type Names<'a> = (&'a str, &'a str);

/// Rows, kept in a file from the first one on.
pub(crate) struct Results {
    pub(crate) rows: Vec<Row>,
    pub(crate) path: PathBuf,
}

impl Results {
    /// The sizes of which a contender has said nothing in a round.
    pub(crate) fn missing(&self, round: usize, case: Case, names: Names<'_>, sizes: &[usize]) -> Vec<usize> {
        let has = |bytes| self.row(round, What::Cell(case, bytes), names).is_some();
        // Zero bytes: a run that failed there.
        let lacks = |bytes: &usize| !has(0) && !has(case.stated(*bytes));
        sizes.iter().copied().filter(lacks).collect()
    }

    /// Whether rounds after the first are worth the time of a contender: in the first it came within so many
    /// times the time of the best peer with cores as far apart, or failed, and may have had bad luck; or it has no time that
    /// counts, because it never found the cores so. What it skipped it would skip again.
    pub(crate) fn is_worth(&self, case: Case, bytes: usize, names: Names<'_>, within: f64) -> bool {
        let cell = What::Cell(case, case.stated(bytes));
        let cores = |row: &Row| row.hand_over.map(Cores::of);
        match self.row(1, cell, names) {
            _ if is_ours(names.0) => true,
            None => true,
            Some(Row { outcome: Err(_), .. }) => false,
            Some(row @ Row { outcome: Ok(micros), .. }) => {
                let is_alike =
                    |other: &&Row| cores(other).zip(cores(row)).is_none_or(|(one, two)| one == two);
                let alike = self.peers(cell).filter(is_alike);
                let best = alike.filter_map(|other| other.outcome.as_ref().ok()).copied();
                *micros <= within * best.fold(f64::INFINITY, f64::min)
                    || self.cell(cell).is_some_and(|cell| cell.time_of(names).is_none())
            }
        }
    }

    /// Whether a contender should have further rounds of a cell: unisono and the best peer are within so many times
    /// of each other, by the medians so far, and so are it and the best peer. Or it has no time that counts.
    pub(crate) fn is_close(&self, case: Case, bytes: usize, names: Names<'_>, within: f64) -> bool {
        let what = What::Cell(case, case.stated(bytes));
        let Some(cell) = self.cell(what) else { return false };
        let Some(micros) = cell.time_of(names) else {
            return self.row(1, what, names).is_some_and(|row| row.outcome.is_ok());
        };
        cell.best_peer().zip(cell.ratio()).is_some_and(|(best, ratio)| {
            let decides = names.0 == ours::NAME || !is_ours(names.0) && micros <= within * best.micros;
            decides && ratio.max(ratio.recip()) <= within
        })
    }

    /// What is known of a cell.
    fn cell(&self, what: What) -> Option<Cell> {
        cells(self.rows.iter().filter(|row| row.what == what)).pop()
    }

    pub(crate) fn has_startup(&self, round: usize, name: &str) -> bool {
        let is_it = |row: &&Row| matches!(row.what, What::Startup(_)) && row.round == round;
        self.rows.iter().filter(is_it).any(|row| row.contender == name)
    }

    /// Adds rows of one contender.
    pub(crate) fn add(
        &mut self,
        round: usize,
        names: Names<'_>,
        outcomes: impl IntoIterator<Item = impl Into<Outcome>>,
    ) -> Result<(), String> {
        let (contender, setting) = (names.0.to_owned(), names.1.to_owned());
        let row = |Outcome { what, value, hand_over }| Row {
            round,
            what,
            contender: contender.clone(),
            setting: setting.clone(),
            outcome: value,
            hand_over,
        };
        self.rows.extend(outcomes.into_iter().map(Into::into).map(row));
        save(&self.path, &self.rows)
    }

    fn row(&self, round: usize, what: What, names: Names<'_>) -> Option<&Row> {
        let by = |row: &&Row| (row.contender.as_str(), row.setting.as_str()) == names;
        let rows = self.rows.iter().filter(by);
        rows.rev().find(|row| (row.round, row.what) == (round, what))
    }

    /// What the first round has of others than unisono.
    fn peers(&self, cell: What) -> impl Iterator<Item = &Row> {
        let theirs = |row: &&Row| !is_ours(&row.contender) && row.contender != FLOOR;
        let there = move |row: &&Row| (row.round, row.what) == (1, cell);
        self.rows.iter().filter(there).filter(theirs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Collective, Transport};

    const CASE: Case = Case { transport: Transport::Shm, collective: Collective::AllGather, ranks: 4 };
    const RING: Names<'_> = ("Intel MPI", "yield ring");
    const UCX: Names<'_> = ("Open MPI 5", "UCX");
    const OURS: Names<'_> = ("unisono", "auto");

    fn results(name: &str, rows: &[(Names<'_>, usize, Result<f64, &str>)]) -> Results {
        let name = format!("unisono-peers-{name}-{}.csv", std::process::id());
        let mut results = Results { rows: Vec::new(), path: std::env::temp_dir().join(name) };
        for &(names, bytes, outcome) in rows {
            let outcome = outcome.map_err(str::to_owned);
            results.add(1, names, [(What::Cell(CASE, bytes), outcome)]).expect("writable");
        }
        results
    }

    #[test]
    fn what_is_there_is_not_run_again() {
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
    fn later_rounds_are_for_who_was_close_or_failed() {
        let rows = [
            ((FLOOR, ""), 16, Ok(0.1)),
            (OURS, 16, Ok(9.0)),
            (UCX, 16, Ok(2.0)),
            (RING, 16, Ok(3.1)),
            (RING, 1024, Err("skipped")),
            (UCX, 2048, Ok(5.0)),
            (RING, 2048, Ok(7.0)),
        ];
        let results = results("worth", &rows);
        let worth = |bytes, names| results.is_worth(CASE, bytes, names, 1.5);
        assert!(worth(8, OURS) && worth(8, UCX) && !worth(8, RING));
        assert!(worth(1024, UCX) && !worth(1024, RING));
        assert!(worth(2048, RING) && results.is_worth(CASE, 8, RING, f64::INFINITY));
        std::fs::remove_file(results.path).expect("removed");
    }

    #[test]
    fn further_rounds_are_for_cells_and_peers_that_are_close() {
        let rows = [
            (OURS, 16, Ok(2.0)),
            (("unisono window", "auto"), 16, Ok(1.9)),
            (UCX, 16, Ok(2.1)),
            (RING, 16, Ok(2.8)),
            (OURS, 1024, Ok(3.0)),
            (UCX, 1024, Ok(2.0)),
            (OURS, 2048, Err("it hung")),
            (UCX, 2048, Ok(2.0)),
        ];
        let mut results = results("close", &rows);
        let close = |results: &Results, bytes, names| results.is_close(CASE, bytes, names, 1.3);
        assert!(close(&results, 8, OURS) && close(&results, 8, UCX));
        assert!(!close(&results, 8, RING) && !close(&results, 8, ("unisono window", "auto")));
        assert!(!close(&results, 1024, OURS) && !close(&results, 2048, UCX) && !close(&results, 4096, OURS));
        // Medians, not the first round: of 2.8, 2.1 and 2.2 it is 2.2.
        for (round, micros) in [(2, 2.1), (3, 2.2)] {
            results.add(round, RING, [(What::Cell(CASE, 16), Ok(micros))]).expect("writable");
        }
        assert!(close(&results, 8, RING));
        std::fs::remove_file(results.path).expect("removed");
    }

    #[test]
    fn whoever_found_the_cores_far_apart_is_judged_among_its_like() {
        let mut results = results("far", &[]);
        for (names, micros, hand_over) in [(UCX, 2.0, 0.05), (RING, 4.0, 0.3), (("Gloo", ""), 9.0, 0.3)] {
            let what = What::Cell(CASE, 16);
            let outcome = Outcome { what, value: Ok(micros), hand_over: Some(hand_over) };
            results.add(1, names, [outcome]).expect("writable");
        }
        assert!(results.is_worth(CASE, 8, RING, 1.5) && !results.is_worth(CASE, 8, ("Gloo", ""), 1.5));
        let ours = Outcome { what: What::Cell(CASE, 16), value: Ok(2.0), hand_over: Some(0.05) };
        results.add(1, OURS, [ours]).expect("writable");
        // Now times with the cores near count, of which these two have none.
        for names in [RING, ("Gloo", "")] {
            assert!(results.is_worth(CASE, 8, names, 1.5) && results.is_close(CASE, 8, names, 1.5));
        }
        assert!(results.is_close(CASE, 8, OURS, 1.5) && !results.is_close(CASE, 8, ("MPICH 5", ""), 1.5));
        std::fs::remove_file(results.path).expect("removed");
    }
}
