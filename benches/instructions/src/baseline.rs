//! Counts of all paths, and under what conditions they were made.

use crate::{count, paths};
use std::collections::BTreeMap;
use std::fmt;
use std::process::Command;

/// A file of counts: a comment with the conditions, then one line for each path, sorted.
pub(crate) struct Baseline {
    pub(crate) conditions: String,
    pub(crate) counts: BTreeMap<String, u64>,
}

impl Baseline {
    /// Counts now.
    pub(crate) fn count() -> Result<Self, String> {
        let counted = |path: &paths::Path| Ok((path.name.to_owned(), count::instructions(path.name)?));
        let counts = paths::ALL.iter().map(counted).collect::<Result<_, String>>()?;
        Ok(Self { conditions: conditions()?, counts })
    }

    /// Counts these paths once more; the lower count of each stays.
    pub(crate) fn recount(&mut self, paths: &[String]) -> Result<(), String> {
        for path in paths {
            let again = count::instructions(path)?;
            self.counts.entry(path.clone()).and_modify(|count| *count = again.min(*count));
        }
        Ok(())
    }

    /// The committed one.
    pub(crate) fn read() -> Result<Self, String> {
        Self::parse(&std::fs::read_to_string(FILE).map_err(|error| format!("{FILE}: {error}"))?)
    }

    /// Commits to these counts.
    pub(crate) fn write(&self) -> Result<(), String> {
        std::fs::write(FILE, self.to_string()).map_err(|error| format!("{FILE}: {error}"))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let (conditions, lines) = text.split_once('\n').unwrap_or((text, ""));
        let count = |line: &str| {
            let (count, path) = line.trim().split_once(' ')?;
            Some((path.to_owned(), count.parse().ok()?))
        };
        let counts = lines.lines().map(|line| count(line).ok_or_else(|| format!("{FILE}: `{line}`")));
        let conditions = conditions.trim_start_matches("# ").to_owned();
        Ok(Self { conditions, counts: counts.collect::<Result<_, _>>()? })
    }
}

impl fmt::Display for Baseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# {}", self.conditions)?;
        self.counts.iter().try_for_each(|(path, count)| writeln!(f, "{count:>8} {path}"))
    }
}

/// Conditions that counts depend on beside the source: compiler, target, and the processor that
/// valgrind emulates.
fn conditions() -> Result<String, String> {
    let output = Command::new("rustc").arg("-vV").output().map_err(|error| format!("rustc: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let version = said.lines().next().unwrap_or("an unknown rustc");
    let host = said.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or("an unknown target");
    Ok(format!("{version}, {host}, {}", vectors()))
}

#[cfg(target_arch = "x86_64")]
fn vectors() -> &'static str {
    if is_x86_feature_detected!("avx2") { "AVX2" } else { "no AVX2" }
}

#[cfg(not(target_arch = "x86_64"))]
fn vectors() -> &'static str {
    "its vectors"
}

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/baseline");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let counts = [("link/shm_8B".to_owned(), 123), ("tag".to_owned(), 1_234_567_890)].into();
        let text = Baseline { conditions: "rustc 1".to_owned(), counts }.to_string();
        let read = Baseline::parse(&text).unwrap();
        assert_eq!((read.to_string(), read.counts.len()), (text, 2));
    }
}
