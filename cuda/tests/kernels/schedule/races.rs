//! Concurrent programs, under a race detector.

use crate::race_program::RaceProgram;

const PROGRAMS: [&str; 8] =
    ["messages", "fused", "lines", "wide_lines", "two_shot", "one_way", "one_shot", "wide_one_shot"];

/// Bugs, and the programs in which they must be noticed.
const PLANTED: [(&str, &[&str]); 8] = [
    ("relaxed_release", &["messages", "fused", "two_shot", "one_way"]),
    ("missing_barrier", &["messages", "fused", "lines", "wide_lines", "two_shot"]),
    ("early_credit", &["messages", "lines", "wide_lines"]),
    ("too_many_slots", &["messages", "lines", "wide_lines"]),
    ("same_flags", &["lines", "wide_lines", "one_shot", "wide_one_shot"]),
    ("torn_lines", &["wide_lines", "wide_one_shot"]),
    ("unfree_banks", &["one_way"]),
    ("one_area", &["one_shot", "wide_one_shot"]),
];

/// Seeds to try. With the variable of this name set, as many as it says, and each must find the
/// bug.
fn seeds() -> (u32, bool) {
    let wanted = std::env::var("UNISONO_TEST_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    (wanted.unwrap_or(3), wanted.is_some())
}

#[test]
fn a_race_detector_finds_planted_bugs_and_no_other() {
    let Some(right) = RaceProgram::schedules("schedule_right") else { return };
    let (seeds, each_finds) = seeds();
    for program in PROGRAMS {
        let caught = |seed| right.finds_race_with(seed, &[program, "60000", ""]);
        (0..seeds).for_each(|seed| assert!(!caught(seed), "{program}, seed {seed}"));
    }
    let wrong = RaceProgram::schedules("schedule_planted").expect("a compiler");
    for (planted, programs) in PLANTED {
        for program in programs {
            // A race shows in some orders of threads. Most show in the first run.
            let mut tries = (0..if each_finds { seeds } else { 20 })
                .map(|seed| wrong.finds_race_with(seed, &[program, "1000", planted]));
            let found = if each_finds { tries.all(|found| found) } else { tries.any(|found| found) };
            assert!(found, "{planted} in {program}");
        }
    }
}
