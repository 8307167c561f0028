//! Building schedules.

use super::Iteration;
use std::hint::black_box;
use unisono::schedule::{Collective, GroupSpec, find};

/// The program of one rank of 64.
pub(super) fn program(collective: Collective, name: &str) -> Iteration {
    let algorithm = find(collective, name).expect("a row of the table");
    let spec = GroupSpec { ranks: 64, root: 0, aggregation: 8 };
    Box::new(move || drop(black_box((algorithm.build)(black_box(&spec), 5))))
}
