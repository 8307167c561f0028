//! The load: what shares the cores with the measured ranks.

use std::fmt::{Display, Formatter};
use std::str::FromStr;

/// Load beside the measured ranks, and the share of the cores that the ranks may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Load {
    /// Processes that compute and never sleep.
    pub(crate) busy: usize,
    /// Niceness of those processes: above zero they yield to the ranks, below zero they go first.
    pub(crate) nice: i32,
    /// Jobs of unisono beside the measured one.
    pub(crate) jobs: usize,
    /// Percentage of the time of all cores that the measured ranks may use, if it is limited.
    pub(crate) quota: Option<u8>,
}

impl Load {
    /// The machine without a load.
    pub(crate) const QUIET: Self = Self { busy: 0, nice: 0, jobs: 0, quota: None };

    pub(crate) fn is_quiet(self) -> bool {
        self == Self::QUIET
    }

    /// Returns whether more is to run than the cores can run at one time.
    pub(crate) fn is_oversubscribed(self, ranks: usize, cores: usize) -> bool {
        ranks * (1 + self.jobs) + self.busy > cores || self.quota.is_some()
    }

    /// Fields with their values; those of a quiet machine are left out.
    fn fields(self) -> impl Iterator<Item = (&'static str, i32)> {
        let numbers = [
            (BUSY, self.busy as i32),
            (NICE, self.nice),
            (JOBS, self.jobs as i32),
            (QUOTA, self.quota.unwrap_or(0).into()),
        ];
        numbers.into_iter().filter(|(_, value)| *value != 0)
    }

    /// Returns the text that [`FromStr`] parses: `busy=2 nice=10`; empty for a quiet machine.
    pub(crate) fn key(self) -> String {
        self.fields().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    }
}

/// Returns every combination of these values, each once and the quietest first.
///
/// A niceness counts only where there are loops. A quota of 100 is none.
pub(crate) fn combinations(busy: &[usize], nice: &[i32], jobs: &[usize], quotas: &[u8]) -> Vec<Load> {
    let mut loads = Vec::new();
    for &busy in or_default(busy, &[0]) {
        for &nice in or_default(nice, &[0]) {
            for &jobs in or_default(jobs, &[1]) {
                for &quota in or_default(quotas, &[100]) {
                    let nice = if busy == 0 { 0 } else { nice };
                    let quota = (quota < 100).then_some(quota);
                    loads.push(Load { busy, nice, jobs: jobs.saturating_sub(1), quota });
                }
            }
        }
    }
    loads.sort_unstable();
    loads.dedup();
    loads
}

fn or_default<'a, T>(values: &'a [T], default: &'a [T]) -> &'a [T] {
    if values.is_empty() { default } else { values }
}

impl Display for Load {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let words = self.fields().map(|(name, value)| match name {
            BUSY if value == 1 => "1 busy loop".to_owned(),
            BUSY => format!("{value} busy loops"),
            NICE => format!("niceness {value}"),
            JOBS => format!("{} jobs", value + 1),
            _ => format!("a quota of {value} %"),
        });
        let words = words.collect::<Vec<_>>().join(", ");
        f.write_str(if words.is_empty() { "quiet" } else { &words })
    }
}

impl FromStr for Load {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut load = Self::QUIET;
        for word in text.split_whitespace() {
            let unknown = || format!("`{word}` is no load; there are {BUSY}, {NICE}, {JOBS} and {QUOTA}");
            let (name, value) = word.split_once('=').ok_or_else(unknown)?;
            let parsed = match name {
                BUSY => value.parse().ok().map(|busy| load.busy = busy),
                NICE => value.parse().ok().map(|nice| load.nice = nice),
                JOBS => value.parse().ok().map(|jobs| load.jobs = jobs),
                QUOTA => value.parse().ok().map(|quota| load.quota = Some(quota)),
                _ => None,
            };
            parsed.ok_or_else(unknown)?;
        }
        Ok(load)
    }
}

const BUSY: &str = "busy";
const NICE: &str = "nice";
const JOBS: &str = "jobs";
const QUOTA: &str = "quota";

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: Load = Load { busy: 2, nice: -5, jobs: 1, quota: Some(50) };

    #[test]
    fn loads_survive_their_key() {
        for load in [Load::QUIET, LOAD, Load { busy: 4, ..Load::QUIET }] {
            assert_eq!(load.key().parse(), Ok(load));
        }
        assert_eq!((LOAD.key().as_str(), Load::QUIET.key().as_str()), ("busy=2 nice=-5 jobs=1 quota=50", ""));
        for bad in ["busy", "busy=two", "idle=1"] {
            assert!(bad.parse::<Load>().expect_err("no load").contains(bad));
        }
    }

    #[test]
    fn loads_are_named_for_readers() {
        assert_eq!(LOAD.to_string(), "2 busy loops, niceness -5, 2 jobs, a quota of 50 %");
        assert_eq!(Load { busy: 1, ..Load::QUIET }.to_string(), "1 busy loop");
        assert_eq!(Load::QUIET.to_string(), "quiet");
    }

    #[test]
    fn combinations_are_unique_and_quiet_comes_first() {
        assert_eq!(combinations(&[], &[], &[], &[]), [Load::QUIET]);
        let loops = |busy, nice| Load { busy, nice, ..Load::QUIET };
        assert_eq!(combinations(&[2, 0], &[0, 10], &[], &[100]), [Load::QUIET, loops(2, 0), loops(2, 10)]);
        let found = combinations(&[0], &[], &[1, 2], &[100, 50]);
        let more = |jobs, quota| Load { jobs, quota, ..Load::QUIET };
        assert_eq!(found, [Load::QUIET, more(0, Some(50)), more(1, None), more(1, Some(50))]);
    }

    #[test]
    fn loops_jobs_and_quotas_oversubscribe() {
        let busy = Load { busy: 1, ..Load::QUIET };
        assert!(!Load::QUIET.is_oversubscribed(2, 2) && busy.is_oversubscribed(2, 2));
        assert!(!busy.is_oversubscribed(2, 4) && Load { jobs: 1, ..busy }.is_oversubscribed(2, 4));
        assert!(Load { quota: Some(50), ..Load::QUIET }.is_oversubscribed(2, 64));
    }
}
