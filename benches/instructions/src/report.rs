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
    fn of(baseline: Option<u64>, now: Option<u64>) -> Self {
        match change(baseline, now) {
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
pub(crate) fn regressions(baseline: &Baseline, now: &Baseline) -> Vec<String> {
    let grew = |path: &&String| {
        Change::of(baseline.counts.get(*path).copied(), now.counts.get(*path).copied()) == Change::Grew
    };
    now.counts.keys().filter(grew).cloned().collect()
}

/// Prints the table and how it ends: a failure if a path grew, unless under other conditions.
pub(crate) fn print(baseline: &Baseline, now: &Baseline) -> ExitCode {
    println!("{:<31} {:>12} {:>12} {:>9}", "path", "instructions", "baseline", "change");
    let mut verdicts = Vec::new();
    let gone = baseline.counts.keys().filter(|path| !now.counts.contains_key(*path));
    for path in now.counts.keys().chain(gone) {
        let (baseline, now) = (baseline.counts.get(path).copied(), now.counts.get(path).copied());
        let verdict = Change::of(baseline, now);
        let change = change(baseline, now).map_or("-".to_owned(), |change| format!("{change:+.1} %"));
        println!("{path:<31} {:>12} {:>12} {change:>9}{}", shown(now), shown(baseline), verdict.remark());
        verdicts.push(verdict);
    }
    end(baseline, now, &verdicts)
}

fn end(baseline: &Baseline, now: &Baseline, verdicts: &[Change]) -> ExitCode {
    let alike = baseline.conditions == now.conditions;
    if !alike {
        println!("WARNING: the baseline is of other conditions, so that growth does not count");
        println!("baseline: {}\nnow:      {}", baseline.conditions, now.conditions);
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
fn change(baseline: Option<u64>, now: Option<u64>) -> Option<f64> {
    let (baseline, now) = (baseline? as f64, now? as f64);
    Some((now - baseline) / baseline.max(1.0) * 100.0)
}

/// Percent. Counts of one compiler repeat to a few in a thousand.
const TOLERANCE: f64 = 5.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_within_tolerance_is_not_regression() {
        let change_to = |now| Change::of(Some(1000), now);
        assert_eq!([change_to(Some(1050)), change_to(Some(950))], [Change::Same; 2]);
        assert_eq!([change_to(Some(1051)), change_to(Some(949))], [Change::Grew, Change::Shrank]);
        assert_eq!([change_to(None), Change::of(None, Some(1))], [Change::Unmatched; 2]);
    }
}
