//! What programs do at once, under a race detector.

use crate::watched::Watched;
use std::time::Duration;

const PROGRAMS: [&str; 4] = ["messages", "lines", "two_shot", "one_way"];

/// Bugs, and the programs in which they must be noticed.
const PLANTED: [(&str, &[&str]); 6] = [
    ("relaxed_release", &["messages", "two_shot", "one_way"]),
    ("missing_barrier", &["messages", "lines", "two_shot"]),
    ("early_credit", &["messages", "lines"]),
    ("too_many_slots", &["messages", "lines"]),
    ("same_flags", &["lines"]),
    ("unfree_banks", &["one_way"]),
];

/// Seeds that are tried; with a variable of this name set as many as it says, and every one must tell.
fn seeds() -> (u32, bool) {
    let wanted = std::env::var("UNISONO_TEST_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    (wanted.unwrap_or(3), wanted.is_some())
}

#[test]
fn a_race_detector_finds_planted_bugs_and_no_other() {
    let Some(right) = Watched::schedule("right") else { return };
    let (seeds, all) = seeds();
    for program in PROGRAMS {
        let caught = |seed| right.catches_in(seed, program, Duration::from_secs(60));
        (0..seeds).for_each(|seed| assert!(!caught(seed), "{program}, seed {seed}"));
    }
    for (planted, programs) in PLANTED {
        let variant = Watched::schedule(planted).expect("a compiler");
        for program in programs {
            let mut tries = (0..seeds).map(|seed| variant.catches_in(seed, program, Duration::from_secs(1)));
            let found = if all { tries.all(|found| found) } else { tries.any(|found| found) };
            assert!(found, "{planted} in {program}");
        }
    }
}
