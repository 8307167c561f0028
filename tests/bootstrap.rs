//! Ranks meet, or every rank gets an error in time, whatever else connects to the root.

use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};
use unisono::{BootstrapError, Communicator, Config, Error, ErrorKind, Sum, Transport, UniqueId};
use unisono_transports::testing::{HANG, NEVER};

fn id() -> UniqueId {
    UniqueId::new(IpAddr::V4(Ipv4Addr::LOCALHOST)).expect("a free port")
}

fn join_timeout_config(milliseconds: u64) -> Config {
    Config::default().with_join_timeout(Duration::from_millis(milliseconds))
}

/// Settings of ranks whose meeting an event must end.
fn patient() -> Config {
    Config::default().with_join_timeout(NEVER)
}

/// Arguments of one rank that joins: the id, the rank, the number of ranks, and the settings.
type JoinArgs = (UniqueId, usize, usize, Config);

/// Results of all ranks.
fn meet(joins: Vec<JoinArgs>) -> Vec<Result<String, Error>> {
    let begun = Instant::now();
    let join = |(id, rank, ranks, config): JoinArgs| {
        let comm = Communicator::join(&id, rank, ranks, &config)?;
        let mut sum = [comm.rank() as u64];
        comm.all_reduce(&mut sum, Sum)?;
        assert_eq!(sum[0] as usize, ranks * (ranks - 1) / 2);
        Ok(comm.transport().to_owned())
    };
    let ends = std::thread::scope(|scope| {
        let threads: Vec<_> = joins.into_iter().map(|args| scope.spawn(|| join(args))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert!(begun.elapsed() < HANG, "it took {:?}", begun.elapsed());
    ends
}

/// Checks that every rank fails with a typed error whose text contains all `parts`.
fn assert_all_fail(joins: Vec<JoinArgs>, is_it: fn(&BootstrapError) -> bool, parts: &[&str]) {
    for (index, end) in meet(joins).iter().enumerate() {
        let error = end.as_ref().expect_err("nobody should get in");
        let ErrorKind::Bootstrap(failure) = error.kind() else { panic!("join {index}: {error}") };
        assert!(is_it(failure), "join {index}: {failure:?}");
        let story = error.to_string();
        for part in parts {
            assert!(story.contains(part), "join {index}: `{part}` is not in: {story}");
        }
    }
}

#[test]
fn bootstrap_works_for_all_sizes_and_transports() {
    for (transport, name) in [(Transport::Shm, "shm"), (Transport::Tcp, "tcp"), (Transport::Auto, "shm")] {
        for ranks in [1, 2, 3, 4, 5, 8] {
            let (id, config) = (id(), patient().with_transport(transport));
            let ends = meet((0..ranks).map(|rank| (id.clone(), rank, ranks, config.clone())).collect());
            for end in ends {
                let transport = end.unwrap_or_else(|story| panic!("{ranks} ranks over {name}: {story}"));
                assert!(ranks == 1 || transport == name, "{ranks} ranks over {transport}");
            }
        }
    }
}

#[test]
fn missing_rank_is_named_to_all_at_deadline() {
    let id = id();
    let joins = [0, 1, 3].map(|rank| (id.clone(), rank, 4, join_timeout_config(400)));
    let is_it = |failure: &_| matches!(failure, BootstrapError::RanksMissing { missing, ranks: 4, .. } if *missing == [2]);
    assert_all_fail(joins.into(), is_it, &["did not come", "1 of 4", ": 2"]);
}

#[test]
fn duplicate_rank_is_named_to_all_early() {
    let id = id();
    let joins = [0, 1, 1].map(|rank| (id.clone(), rank, 3, patient()));
    let is_it = |failure: &_| matches!(failure, BootstrapError::DuplicateRank { rank: 1, .. });
    assert_all_fail(joins.into(), is_it, &["rank 1 is there twice"]);
}

#[test]
fn size_mismatch_names_both_sizes() {
    let id = id();
    let joins = [(0, 2), (1, 3)].map(|(rank, ranks)| (id.clone(), rank, ranks, patient()));
    let is_it = |failure: &_| {
        matches!(failure, BootstrapError::WorldSize { rank: 1, expects: 3, root_expects: 2, .. })
    };
    assert_all_fail(joins.into(), is_it, &["rank 1", "expects 3", "expects 2"]);
}

#[test]
fn config_mismatch_is_explained() {
    let id = id();
    let joins = [4096, 8192].map(|slot_bytes| patient().with_fifo_slot_bytes(slot_bytes));
    let joins = joins.into_iter().enumerate().map(|(rank, config)| (id.clone(), rank, 2, config));
    let is_it = |failure: &_| matches!(failure, BootstrapError::Settings { ranks: [0, 1] | [1, 0], .. });
    assert_all_fail(joins.collect(), is_it, &["4096", "8192", "rank 0", "rank 1"]);
}

#[test]
fn wrong_secret_is_refused_and_named() {
    let id = id();
    let (address, _) =
        id.to_string().split_once('/').map(|(a, b)| (a.to_owned(), b.to_owned())).expect("text");
    let forged: UniqueId = format!("{address}/{}", "00".repeat(32)).parse().expect("an id");
    let refused = std::thread::spawn(move || {
        let error = Communicator::join(&forged, 1, 2, &patient()).map(drop).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Bootstrap(BootstrapError::Secret { .. })), "{error}");
        error.to_string()
    });
    assert_all_fail(
        vec![(id, 0, 2, join_timeout_config(2000))],
        |failure| matches!(failure, BootstrapError::RanksMissing { rejected, .. } if !rejected.is_empty()),
        &["did not come", ": 1", "rejected connections"],
    );
    let story = refused.join().expect("no panic");
    assert!(story.contains("secret"), "{story}");
}

/// Connections that say nothing, or nonsense, must not keep those waiting who belong here.
#[test]
fn unauthenticated_peers_do_not_delay_bootstrap() {
    let id = id();
    let (address, stop) = (id.address(), std::sync::atomic::AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut silent = Vec::new();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                match TcpStream::connect(address) {
                    Ok(stream) if silent.len() < 40 => silent.push(stream),
                    _ => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        let late = |rank: usize| {
            let id = id.clone();
            // Rank 1 comes after all unauthenticated peers have connected.
            std::thread::sleep(Duration::from_millis(300 * rank as u64));
            Communicator::join(&id, rank, 2, &patient()).map(drop).map_err(|error| error.to_string())
        };
        let begun = Instant::now();
        let ranks = [0, 1].map(|rank| scope.spawn(move || late(rank)));
        let ends = ranks.map(|rank| rank.join().expect("no panic"));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(ends, [Ok(()), Ok(())]);
        assert!(begun.elapsed() < HANG, "forty silent peers cost {:?}", begun.elapsed());
    });
}
