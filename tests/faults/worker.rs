//! The processes of the other tests: their work and their reports.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Not a test of its own: the processes of the others begin here.
#[test]
fn worker_entry() {
    let Ok(part) = std::env::var("TEST_PART") else { return };
    let play = match &*part {
        "survivor" => super::kill_and_shrink::run_worker,
        "mortal" => super::kill_random::run_worker,
        "patient" => super::stopped::run_worker,
        "ender" => super::exits::run_worker,
        "leaver" => super::endings::run_worker,
        "limited" => super::limits::run_worker,
        "remote" => super::network::run_worker,
        "parted" => super::network::run_partitioned,
        "member" => super::grow::run_worker,
        "stepper" => super::recovery::run_worker,
        "relative" => super::related::run_worker,
        "exposed" => super::late_stores::run_worker,
        "forking" => super::late_stores::run_parent,
        "runner" => super::soak::run_worker,
        "trainer" => super::training_loop::run_worker,
        other => panic!("no part is called {other}"),
    };
    while let Some(order) = next_order() {
        play(&order.split(' ').collect::<Vec<_>>());
    }
}

/// The next order; none when there are no more.
pub(crate) fn next_order() -> Option<String> {
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line).expect("orders");
    (read > 0).then(|| line.trim_end().to_owned())
}

/// Says a line to the test.
pub(crate) fn say(line: impl std::fmt::Display) {
    println!("> {line}");
}

/// The time by the clock that all processes share, in microseconds.
pub(crate) fn micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros() as u64
}

/// Returns the descriptors, threads and resident KiB of this process without a communicator.
///
/// The last acceptor thread is told to exit but not joined, so the function waits for it.
pub(crate) fn resources_after_acceptor_exit() -> String {
    let begun = Instant::now();
    while field("Threads:").parse::<usize>().expect("a number") > THREADS
        && begun.elapsed() < ACCEPTOR_EXIT_TIMEOUT
    {
        std::thread::sleep(Duration::from_millis(5));
    }
    resources()
}

/// The process's own and that of the test.
const THREADS: usize = 2;
const ACCEPTOR_EXIT_TIMEOUT: Duration = Duration::from_secs(20);

fn field(name: &str) -> String {
    let status = std::fs::read_to_string("/proc/self/status").expect("proc");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
    line.trim_end_matches("kB").trim().to_owned()
}

/// Descriptors, threads and resident KiB of this process.
pub(crate) fn resources() -> String {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("proc").count();
    format!("{descriptors} {} {}", field("Threads:"), field("VmRSS:"))
}
