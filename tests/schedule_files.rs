//! Schedules from files, as a solver writes them: each is proved and gives right results, or it is
//! refused with a reason. Nothing that a file says ends the process.

mod support;

use std::time::Duration;
use support::mutants::{Random, mutate};
use support::{Case, World, exercise};
use unisono::schedule::check::{Options, check_schedule};
use unisono::schedule::{Algorithm, Collective, GroupSpec, PeerAccess, Schedule, draw};
use unisono::{Config, ReduceKind};

/// Schedules of each kind: as they are, changed, and as damaged text.
const SCHEDULES: usize = if cfg!(debug_assertions) { 40 } else { 350 };

#[test]
fn schedules_of_files_are_proved_and_run_or_refused() {
    let mut random = Random(0xf11e);
    let (mut run, mut refused, mut unreadable) = (0, 0, 0);
    for number in 0..3 * SCHEDULES {
        let mut schedule = any_schedule(&mut random);
        if number % 3 == 1 {
            (0..1 + random.below(3)).for_each(|_| _ = mutate(&mut schedule, &mut random));
        }
        let mut text = serde_json::to_string(&schedule).expect("a schedule is written");
        if number % 3 == 2 {
            damage(&mut text, &mut random);
        }
        let Ok(read) = serde_json::from_str::<Schedule>(&text) else {
            unreadable += 1;
            continue;
        };
        if number % 3 < 2 {
            assert_eq!(read, schedule, "what was written is read");
        }
        let proof = check_schedule(&read, &Options { in_place: true, ..Options::default() });
        match proof {
            Ok(_) => {
                println!("runs {text}");
                run_schedule(read);
                run += 1;
            }
            Err(violation) => {
                assert!(number % 3 > 0, "{violation}: {text}");
                assert!(draw::explain(&read).contains("wrong: ") && draw::svg(&read).ends_with("</svg>\n"));
                refused += 1;
            }
        }
    }
    println!("{run} run, {refused} refused, {unreadable} unreadable");
    assert!(run >= SCHEDULES && refused > SCHEDULES / 2 && unreadable > SCHEDULES / 2);
}

/// Numbers of a file for which no memory may be reserved.
#[test]
fn huge_numbers_are_refused_before_memory_is_reserved() {
    let text = |ranks: &str, parts: &str, scratch: &str, index: &str| {
        let program = format!(
            r#"{{"lane_programs":[{{"steps":[{{"send":{{"peer":1,"chunks":["in{index}"]}}}}]}}],"scratch":{scratch}}}"#
        );
        format!(
            r#"{{"collective":"all_reduce","spec":{{"ranks":{ranks}}},"chunks_per_share":{parts},"programs":[{program},{program}]}}"#
        )
    };
    let most = usize::MAX.to_string();
    for [ranks, parts, scratch, index] in [
        [most.as_str(), "1", "0", "0"],
        ["2", most.as_str(), "0", "0"],
        ["2", "1", most.as_str(), "0"],
        ["2", "1", "9000000", "0"],
        ["2", "5000000", "0", "4294967295"],
    ] {
        let schedule: Schedule =
            serde_json::from_str(&text(ranks, parts, scratch, index)).expect("a schedule");
        let violation = check_schedule(&schedule, &Options::default()).expect_err("it is wrong");
        assert!(draw::explain(&schedule).contains("wrong: "), "{violation}");
    }
    let ranks: Vec<&str> = vec!["{\"lane_programs\":[]}"; 5000];
    let many = format!(
        r#"{{"collective":"barrier","spec":{{"ranks":5000}},"chunks_per_share":1,"programs":[{}]}}"#,
        ranks.join(",")
    );
    let schedule: Schedule = serde_json::from_str(&many).expect("a schedule");
    let violation = check_schedule(&schedule, &Options::default()).expect_err("too many ranks");
    assert!(violation.to_string().contains("more than 4096 ranks"), "{violation}");
}

/// Returns the schedule of some algorithm for some group.
fn any_schedule(random: &mut Random) -> Schedule {
    let rows: Vec<&Algorithm> =
        Algorithm::ALL.iter().filter(|row| row.peer_access < PeerAccess::ZeroCopy).collect();
    loop {
        let (row, ranks) = (rows[random.below(rows.len())], 2 + random.below(4));
        let root = if row.collective.has_root() { random.below(ranks) } else { 0 };
        let spec = GroupSpec::new(ranks).with_root(root);
        if (row.supports)(&spec) {
            return row.schedule(&spec);
        }
    }
}

/// Changes some bytes of a text, cuts it, or exchanges a number.
fn damage(text: &mut String, random: &mut Random) {
    let mut bytes = std::mem::take(text).into_bytes();
    for _ in 0..1 + random.below(3) {
        let index = random.below(bytes.len());
        match random.below(4) {
            0 => bytes[index] = 32 + random.below(95) as u8,
            1 => bytes.truncate(index + 1),
            2 => {
                bytes.remove(index);
                bytes.push(b' ');
            }
            _ => {
                // Digits only, so that the text is still one of a schedule.
                if let Some(digit) = bytes.iter_mut().skip(index).find(|byte| byte.is_ascii_digit()) {
                    *digit = b'0' + random.below(10) as u8;
                }
            }
        }
    }
    *text = String::from_utf8_lossy(&bytes).into_owned();
}

/// Runs a proved schedule on its ranks, and compares every element.
fn run_schedule(schedule: Schedule) {
    let GroupSpec { ranks, root, .. } = schedule.spec;
    if ranks > 8 {
        return;
    }
    let collective = schedule.collective;
    let algorithm = Algorithm::of_schedule("from_a_file", schedule).leak();
    let config = Config::default().with_timeout(Duration::from_secs(20));
    World::Threads.run(ranks, &config, |comm| {
        comm.set_custom_algorithm(algorithm).expect("a proved schedule");
        for (count, in_place) in [(1, false), (1000, true), (40_001, false)] {
            let op = if collective.is_scan() { ReduceKind::Sum } else { ReduceKind::Avg };
            let in_place = in_place && collective != Collective::AllToAll;
            exercise::<f64>(&comm, Case { collective, op, root, count, in_place });
        }
        assert_eq!(comm.last_algorithm().expect("healthy").expect("it ran").name, "from_a_file");
    });
}
