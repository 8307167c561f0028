//! `unisono status` sees what the ranks of a running job wait for.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const UNISONO: &str = env!("CARGO_BIN_EXE_unisono");

fn status() -> String {
    let output = Command::new(UNISONO).arg("status").output().expect("it starts");
    assert!(output.status.success());
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn status_shows_ranks_waiting_for_stopped_rank() {
    for transport in ["shm", "tcp"] {
        // Sizes that no other test has.
        let sizes = ["-b", "3084", "-e", "3084", "-n", "100000000", "-c", "0", "--transport", transport];
        let mut job = Command::new(UNISONO)
            .args(["run", "-n", "3", "--verbose", "--", UNISONO, "perf", "all_reduce"])
            .args(sizes)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let errors = std::io::BufReader::new(job.stderr.take().expect("piped"));
        let mut lines = std::io::BufRead::lines(errors).map_while(Result::ok);
        let stopped =
            lines.find_map(|line| Some(line.strip_prefix("# rank 1 pid ")?.to_owned())).expect("a pid");
        let begun = Instant::now();
        let wait_for = |words: &[&str]| {
            loop {
                let text = status();
                if words.iter().all(|word| text.contains(word)) {
                    return text;
                }
                assert!(begun.elapsed() < Duration::from_secs(100), "{transport}: not {words:?} in {text}");
                std::thread::sleep(Duration::from_millis(50));
            }
        };
        wait_for(&["771 x float"]);
        let signal = |name: &str| Command::new("kill").args([name, &stopped]).status().unwrap();
        signal("-STOP");
        // The stopped rank cannot answer; the others name it as the rank that they wait for. Both
        // may also wait for it before it stops.
        let text = wait_for(&["waiting for rank 1", "nothing of rank 1"]);
        assert!(text.contains(&format!("3 ranks over {transport}")), "{text}");
        signal("-CONT");
        job.kill().expect("it runs");
        job.wait().expect("it ends");
    }
}
