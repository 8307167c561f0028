//! Says what has changed.

use crate::baseline::Baseline;
use std::process::ExitCode;

/// Change of a path against the baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Same,
    Grew,
    Shrank,
    /// Only one side knows it.
    Unmatched,
}

impl Change {
    fn of(before: Option<u64>, now: Option<u64>) -> Self {
        match change(before, now) {
            None => Change::Unmatched,
            Some(change) if change > TOLERANCE => Change::Grew,
            Some(change) if change < -TOLERANCE => Change::Shrank,
            Some(_) => Change::Same,
        }
    }

    fn remark(self) -> &'static str {
        match self {
            Change::Same => "",
            Change::Grew => "  GREW",
            Change::Shrank => "  shrank: renew the baseline",
            Change::Unmatched => "  UNMATCHED: renew the baseline",
        }
    }
}

/// The paths that grew.
pub(crate) fn regressions(before: &Baseline, now: &Baseline) -> Vec<String> {
    let grew = |path: &&String| {
        Change::of(before.counts.get(*path).copied(), now.counts.get(*path).copied()) == Change::Grew
    };
    now.counts.keys().filter(grew).cloned().collect()
}

/// Prints the table and how it ends: a failure if a path grew, unless under other conditions.
pub(crate) fn print(before: &Baseline, now: &Baseline) -> ExitCode {
    println!("{:<31} {:>12} {:>12} {:>9}", "path", "instructions", "baseline", "change");
    let mut verdicts = Vec::new();
    let gone = before.counts.keys().filter(|path| !now.counts.contains_key(*path));
    for path in now.counts.keys().chain(gone) {
        let (before, now) = (before.counts.get(path).copied(), now.counts.get(path).copied());
        let verdict = Change::of(before, now);
        let change = change(before, now).map_or("-".to_owned(), |change| format!("{change:+.1} %"));
        println!("{path:<31} {:>12} {:>12} {change:>9}{}", shown(now), shown(before), verdict.remark());
        verdicts.push(verdict);
    }
    end(before, now, &verdicts)
}

fn end(before: &Baseline, now: &Baseline, verdicts: &[Change]) -> ExitCode {
    let alike = before.conditions == now.conditions;
    if !alike {
        println!("WARNING: the baseline is of other conditions, so that growth does not count");
        println!("baseline: {}\nnow:      {}", before.conditions, now.conditions);
    }
    if verdicts.contains(&Change::Unmatched) {
        println!("paths and baseline do not match: `cargo xtask bench instructions --renew` and commit it");
        return ExitCode::FAILURE;
    }
    if verdicts.contains(&Change::Grew) && alike {
        println!("hot paths grew by more than {TOLERANCE} %: see docs/notebook/regressions.md");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn shown(count: Option<u64>) -> String {
    count.map_or("-".to_owned(), |count| count.to_string())
}

/// Returns the change in percent of the baseline.
fn change(before: Option<u64>, now: Option<u64>) -> Option<f64> {
    let (before, now) = (before? as f64, now? as f64);
    Some((now - before) / before.max(1.0) * 100.0)
}

/// Percent. Counts of one compiler repeat to a few in a thousand.
const TOLERANCE: f64 = 5.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_within_tolerance_is_not_regression() {
        let of = |now| Change::of(Some(1000), now);
        assert_eq!([of(Some(1050)), of(Some(950))], [Change::Same; 2]);
        assert_eq!([of(Some(1051)), of(Some(949))], [Change::Grew, Change::Shrank]);
        assert_eq!([of(None), Change::of(None, Some(1))], [Change::Unmatched; 2]);
    }
}
