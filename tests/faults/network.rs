//! Networks that are cut without a word to anybody, between two namespaces of this host.

use super::process::Process;
use super::worker::{micros, next_order, say};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};
use unisono::{Communicator, Config, Sum, UniqueId};
use unisono_transports::testing::HANG;

const TIMEOUT: Duration = Duration::from_secs(2);
/// Duration of a computation that is long enough for the system to notice the fault.
const COMPUTING: Duration = Duration::from_secs(5);
const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];

/// Two namespaces and a cable between them, gone with this value.
struct Network {
    names: [String; 2],
}

fn ip(words: &str) -> bool {
    Command::new("ip").args(words.split(' ')).output().is_ok_and(|output| output.status.success())
}

impl Network {
    /// Returns a network, or `None` if this process may not create one.
    fn make(name: &str) -> Option<Self> {
        let names = [0, 1].map(|end| format!("u{name}{}{end}", std::process::id()));
        if !ip(&format!("netns add {}", names[0])) {
            println!("SKIPPED: a network of one's own needs root, `ip`, and a system that allows it");
            return None;
        }
        let network = Self { names };
        let [local, remote] = &network.names;
        assert!(ip(&format!("netns add {remote}")));
        assert!(ip(&format!("-n {local} link add cable type veth peer name cable netns {remote}")));
        for (name, address) in network.names.iter().zip(ADDRESSES) {
            assert!(ip(&format!("-n {name} address add {address}/24 dev cable")));
            assert!(ip(&format!("-n {name} link set cable up")) && ip(&format!("-n {name} link set lo up")));
        }
        Some(network)
    }

    /// Two ranks that have met, one at each end.
    fn ranks(&self, what: &str) -> [Process; 2] {
        let start_in = |name: &String| Process::start_by(&["ip", "netns", "exec", name], "remote");
        let mut ranks = self.names.each_ref().map(start_in);
        ranks[0].order(&format!("listen {} {what}", ADDRESSES[0]));
        let id = ranks[0].read_line();
        ranks[1].order(&format!("dial {id} {what}"));
        ranks.iter().for_each(|rank| assert_eq!(rank.read_line(), "there"));
        ranks
    }

    fn pull_cable(&self) {
        assert!(ip(&format!("-n {} link set cable down", self.names[0])));
    }

    /// Starts three ranks that have met, two of them at the near end, with the keepalive timeouts
    /// of each end.
    fn three_ranks(&self, bear: [Duration; 2]) -> [Process; 3] {
        let ends = [0, 0, 1];
        let mut ranks =
            ends.map(|end: usize| Process::start_by(&["ip", "netns", "exec", &self.names[end]], "parted"));
        let millis = ends.map(|end| bear[end].as_millis());
        ranks[0].order(&format!("{} 0 {}", ADDRESSES[0], millis[0]));
        let id = ranks[0].read_line();
        (1..3).for_each(|rank| ranks[rank].order(&format!("{id} {rank} {}", millis[rank])));
        ranks.iter().for_each(|rank| assert_eq!(rank.read_line(), "there"));
        ranks
    }

    /// Drops the packets of the near end; the link and the other direction work.
    fn drop_packets(&self) {
        assert!(ip(&format!("-n {} route add blackhole {}/32", self.names[0], ADDRESSES[1])));
    }

    /// Lets the packets arrive again.
    fn heal(&self) {
        assert!(ip(&format!("-n {} route delete blackhole {}/32", self.names[0], ADDRESSES[1])));
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns delete {name}"));
        }
    }
}

/// A rank of two on different networks; it works until that fails, and tries to go on.
pub(crate) fn run_worker(order: &[&str]) {
    let [role, place, what] = order[..] else { panic!("{order:?}") };
    let (id, rank): (UniqueId, _) = match role {
        "listen" => (UniqueId::new(place.parse().expect("an address")).expect("an id"), 0),
        _ => (place.parse().expect("an id"), 1),
    };
    if rank == 0 {
        say(&id);
    }
    let config = Config::default().with_timeout(TIMEOUT);
    let comm = Communicator::join(&id, rank, 2, &config).expect("both come");
    comm.all_reduce(&mut vec![1.0f32; 5000], Sum).expect("the network is sound");
    say("there");
    if what == "computing" {
        sleep(COMPUTING);
    }
    let (error, took) = loop {
        let begun = Instant::now();
        let ended = match (what, rank) {
            ("receiving", 0) => comm.send(&[1u8; 100], 1).map(|()| sleep(Duration::from_millis(1))),
            ("receiving", _) => comm.recv(&mut [0u8; 100], 0),
            _ => comm.all_reduce(&mut vec![1.0f32; 50_000], Sum),
        };
        if let Err(error) = ended {
            break (error, begun.elapsed());
        }
    };
    say(format!("failed {} {} {error}", micros(), took.as_micros()));
    say(match comm.shrink() {
        Ok(_) => "shrunk".to_owned(),
        Err(error) => format!("refused {error}"),
    });
}

/// Runs one of three ranks: works until a failure and goes on with the survivors, if requested,
/// until it is told to end.
pub(crate) fn run_partitioned(words: &[&str]) {
    let [place, rank, millis] = words[..] else { panic!("{words:?}") };
    let (rank, millis) = (rank.parse().expect("a rank"), millis.parse().expect("milliseconds"));
    let id: UniqueId = match rank {
        0 => UniqueId::new(place.parse().expect("an address")).expect("an id"),
        _ => place.parse().expect("an id"),
    };
    if rank == 0 {
        say(&id);
    }
    let config = Config::default().with_timeout(Duration::from_millis(millis));
    let mut comm = Communicator::join(&id, rank, 3, &config).expect("all come");
    let sum = |comm: &Communicator| {
        let mut values = vec![1.0f32; 50_000];
        comm.all_reduce(&mut values, Sum).map(|()| values[0])
    };
    sum(&comm).expect("the network is sound");
    say("there");
    let error = loop {
        if let Err(error) = sum(&comm) {
            break error;
        }
    };
    say(format!("failed {error}"));
    match comm.shrink() {
        // The previous communicator is gone by then.
        Ok(left) => comm = left,
        Err(error) => return say(format!("refused {error}")),
    }
    say(format!("on with {}", sum(&comm).expect("those that are left are sound")));
    assert_eq!(next_order().as_deref(), Some("enough"));
}

/// Checks the reports of both ranks about a cut: the time, the duration of the operation, and a
/// cause that names the other rank.
fn failures(ranks: &[Process; 2], cut: u64) -> Vec<(f64, f64, String)> {
    let failure = |(rank, process): (usize, &Process)| {
        let line = process.read_until("failed");
        let words: Vec<&str> = line.splitn(3, ' ').collect();
        let [when, took] = [0, 1].map(|index: usize| words[index].parse::<u64>().expect("a time"));
        assert!(words[2].contains(&format!("rank {}", 1 - rank)), "rank {rank}: {line}");
        (when.saturating_sub(cut) as f64 / 1e6, took as f64 / 1e6, words[2].to_owned())
    };
    ranks.iter().enumerate().map(failure).collect()
}

/// Checks that the timeout ended the waits: the system would notice the cut after minutes.
fn assert_in_time(failures: &[(f64, f64, String)]) {
    let set = TIMEOUT.as_secs_f64();
    for (elapsed, _, what) in failures {
        assert!((0.9 * set..HANG.as_secs_f64()).contains(elapsed), "after {elapsed} s: {what}");
    }
}

#[test]
fn link_down_fails_both_ranks_in_time() {
    let Some(network) = Network::make("p") else { return };
    let ranks = network.ranks("summing");
    let cut = micros();
    network.pull_cable();
    assert_in_time(&failures(&ranks, cut));
    for rank in &ranks {
        let refused = rank.read_line();
        assert!(refused.starts_with("refused"), "half of two ranks goes on: {refused}");
    }
}

#[test]
fn receiver_detects_blackhole() {
    let Some(network) = Network::make("r") else { return };
    let ranks = network.ranks("receiving");
    let cut = micros();
    network.drop_packets();
    assert_in_time(&failures(&ranks, cut));
}

#[test]
fn partition_during_compute_is_known_at_once() {
    let Some(network) = Network::make("c") else { return };
    let ranks = network.ranks("computing");
    network.pull_cable();
    for (_, _, what) in failures(&ranks, micros()) {
        assert!(what.contains("its host has answered nothing for 2.0 s"), "{what}");
    }
}

#[test]
fn reset_by_survivors_is_not_reported_as_death() {
    let Some(network) = Network::make("h") else { return };
    let mut ranks = network.three_ranks([Duration::from_secs(1), Duration::from_secs(10)]);
    network.drop_packets();
    for rank in [0, 1] {
        assert_eq!(ranks[rank].read_until("on with"), "2", "two of three go on without the third");
    }
    // The two ranks have dropped their connections with the third one, which gets the reset now.
    network.heal();
    let failed = ranks[2].read_until("failed");
    assert!(
        failed.contains("its connection was reset, and nothing shows that its process ended"),
        "{failed}"
    );
    let ended = ranks[2].read_line();
    assert!(ended.starts_with("refused"), "there are two groups: {ended}");
    (0..2).for_each(|rank| ranks[rank].order("enough"));
}
