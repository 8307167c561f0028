//! Memory of a communicator, with real processes: little before use, and equal to its own count.

use std::process::Command;

const UNISONO: &str = env!("CARGO_BIN_EXE_unisono");

/// The values of the most expensive rank at a stage, by column.
struct Snapshot {
    names: Vec<String>,
    values: Vec<f64>,
}

impl Snapshot {
    fn get(&self, name: &str) -> f64 {
        let place = self.names.iter().position(|column| column == name).expect("a column");
        self.values[place]
    }
}

/// The most of every column: idle, after 8 bytes, after 16 MiB.
fn snapshots(ranks: usize, transport: &str) -> Vec<Snapshot> {
    let arguments = ["perf", "all_reduce", "--memory", "--transport", transport, "-N", &ranks.to_string()];
    let mut command = Command::new(UNISONO);
    // With more ranks than cores, the first ones wait long until the last have filled their
    // buffers.
    let output = command.args(arguments).env("UNISONO_TIMEOUT_MS", "600000").output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let head = text.lines().find(|line| line.contains("stage")).expect("a head");
    let names: Vec<String> = head.split_whitespace().skip(2).map(str::to_owned).collect();
    let most = text.lines().filter(|line| line.contains(" most "));
    let stage = |line: &str| {
        let (_, values) = line.split_once(" most ").expect("it has");
        let values: Vec<f64> =
            values.split_whitespace().map(|value| value.parse().expect("a number")).collect();
        assert_eq!(values.len(), names.len() - 1, "{line}");
        Snapshot { names: names[1..].to_vec(), values }
    };
    most.map(stage).collect()
}

const KIB_IDLE_MAX: f64 = 1024.0;
/// Kernel memory of an idle socket.
const KIB_PER_SOCKET: f64 = 4.5;

fn idle_cost(idle: &Snapshot) -> f64 {
    idle.get("anon") + idle.get("resident") + idle.get("tables") + idle.get("sockets") * KIB_PER_SOCKET
}

#[test]
fn idle_rank_among_32_costs_under_1_mib() {
    for transport in ["shm", "tcp"] {
        let [idle, ..] = &snapshots(32, transport)[..] else { panic!("no stages") };
        assert!(idle_cost(idle) < KIB_IDLE_MAX, "{transport}: {:?}", idle.values);
        assert!(idle.get("resident") < 64.0, "{transport}: pages are touched before they are used");
        assert_eq!(idle.get("staging"), 0.0, "{transport}");
    }
}

#[test]
fn shm_needs_no_sockets_and_grows_with_use() {
    let [idle, small, large] = &snapshots(4, "shm")[..] else { panic!("three stages") };
    for stage in [idle, small, large] {
        assert_eq!(stage.get("sockets"), 0.0);
    }
    assert!(small.get("resident") < 128.0, "8 bytes cost {} KiB", small.get("resident"));
    // The window is used, and no page beyond it and a few more.
    assert!((256.0..8192.0).contains(&large.get("resident")), "{:?}", large.values);
    // The part for large messages is mapped when the first of them is sent, the heap never.
    assert!(idle.get("mapped") < 4.0 * 1024.0 && small.get("mapped") == idle.get("mapped"));
    assert!(large.get("mapped") > 4.0 * 4096.0 && large.get("mapped") < 4.0 * 1048576.0);
}

#[test]
fn tcp_connects_on_first_message() {
    let [idle, small, large] = &snapshots(8, "tcp")[..] else { panic!("three stages") };
    assert_eq!(idle.get("sockets"), 7.0, "one for notes to each peer");
    assert!(small.get("sockets") > 7.0, "{:?}", small.values);
    assert!(large.get("sockets") <= 7.0 * 3.0, "{:?}", large.values);
    assert!(small.get("staging") > 0.0 && small.get("resident") == 0.0);
}
