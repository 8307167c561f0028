//! Filters of test names: a filter that matches no test is an error, because it would test or skip
//! nothing.

use crate::{Result, cargo};
use std::process::Command;

/// Checks that every filter is part of the name of a test that `command` lists.
///
/// `command` starts a test executable, or `cargo test` with everything before `--`.
pub(crate) fn check(command: &mut Command, filters: &[&str]) -> Result {
    let listed = cargo::output(command.args(["--list"]))?;
    let unmatched: Vec<&str> =
        filters.iter().copied().filter(|filter| !matches_a_test(&listed, filter)).collect();
    match unmatched.is_empty() {
        true => Ok(()),
        false => Err(format!("no test matches {}; correct the filter in xtask/src", unmatched.join(", "))),
    }
}

fn matches_a_test(listed: &str, filter: &str) -> bool {
    listed.lines().filter_map(|line| line.strip_suffix(": test")).any(|name| name.contains(filter))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: &str = "sim::tests::a: test\nwait::tests::b: test\nbench_c: benchmark\n";

    #[test]
    fn filter_matches_part_of_a_test_name() {
        assert!(matches_a_test(LISTED, "sim::") && matches_a_test(LISTED, "b"));
        assert!(!matches_a_test(LISTED, "pace::") && !matches_a_test(LISTED, "bench_c"));
    }

    #[test]
    fn unmatched_filters_are_named() {
        let list = || {
            let mut command = Command::new("sh");
            command.args(["-c", "echo 'a::b: test'"]);
            command
        };
        assert_eq!(check(&mut list(), &["a::"]), Ok(()));
        let error = check(&mut list(), &["a::", "c::", "d::"]).expect_err("two match nothing");
        assert!(error.contains("c::, d::"), "{error}");
    }
}
