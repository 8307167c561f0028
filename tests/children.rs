//! Communicators inherit from the one they are made of: every setting, and the algorithms that were
//! set on it.

mod support;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::LazyLock;
use std::time::Duration;
use support::World;
use unisono::WaitMode;
use unisono::schedule::{
    Algorithm, Collective, CombineOrder, Complexity, GroupSpec, PeerAccess, Program, ProgramBuilder, Rank,
    find, input, output, scratch,
};
use unisono::select::TuningTable;
use unisono::{Communicator, Config, DeviceConfig, ErrorKind, ReductionOrder, Sum, Transport, UniqueId};

/// Rank 0 collects all inputs and sends the sum back. Runs on any number of ranks but 4.
static COLLECT: LazyLock<Algorithm> = LazyLock::new(|| collect_as("collect"));

fn collect_as(name: &'static str) -> Algorithm {
    Algorithm::new(name, Collective::AllReduce, collect)
        .with_combine_order(CombineOrder::RankOrder)
        .with_supports(|spec| spec.ranks > 1 && spec.ranks != 4)
        .with_complexity(|spec| {
            let peers = spec.ranks as u64 - 1;
            Complexity { steps: 2 * peers, chunks: 2 * peers, scratch_chunks: u64::from(peers > 1) }
        })
}

fn collect(spec: &GroupSpec, rank: Rank) -> Program {
    let mut program = ProgramBuilder::new(rank);
    if rank > 0 {
        program.send(0, [input(0)]).recv(0, [output(0)]);
        return program.finish(0, 0);
    }
    for peer in 1..spec.ranks {
        let operand = if peer == 1 { input(0) } else { scratch(0) };
        let target = if peer == spec.ranks - 1 { output(0) } else { scratch(0) };
        program.recv_reduce(peer, [operand], [target], peer == spec.ranks - 1);
    }
    (1..spec.ranks).for_each(|peer| {
        program.send(peer, [output(0)]);
    });
    program.finish(usize::from(spec.ranks > 2), 0)
}

/// Returns the fields of settings with their values.
fn fields(config: &Config) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::new();
    let mut field = String::new();
    for line in format!("{config:#?}").lines() {
        let is_field = line.starts_with("    ") && !line.starts_with("     ") && line.contains(": ");
        if let Some((name, value)) = line.split_once(": ").filter(|_| is_field) {
            field = name.trim().to_owned();
            fields.insert(field.clone(), value.to_owned());
        } else if let Some(value) = fields.get_mut(&field) {
            value.push_str(line.trim());
        }
    }
    fields
}

/// Returns settings none of which has its default.
fn unusual(folder: &std::path::Path) -> Config {
    let plain = DeviceConfig::default();
    let config = Config::default()
        .with_timeout(Duration::from_secs(19))
        .with_join_timeout(Duration::from_secs(18))
        .with_transport(Transport::Tcp)
        .with_channels(3)
        .with_fifo_depth(5)
        .with_fifo_slot_bytes(64 << 10)
        .with_shm_window_bytes(1 << 20)
        .with_symmetric_heap_bytes(1 << 30)
        .with_wait(WaitMode::Block)
        .with_sockets_per_peer(1)
        .with_encryption(true)
        .with_bind_addr(Some(IpAddr::from(Ipv4Addr::LOCALHOST).into()))
        .with_reduction_order(ReductionOrder::RankOrder)
        .with_algorithms(vec![find(Collective::Broadcast, "binomial").expect("built in")])
        .with_tuning_table(TuningTable::parse("broadcast tcp any any binomial\n").expect("a table"))
        .with_cache_bytes(4 << 20)
        .with_nontemporal_min_bytes(10 << 20)
        .with_check_finite(true)
        .with_flight_recorder_dir(Some(folder.to_owned()))
        .with_trace_dir(Some(folder.to_owned()))
        .with_status_server(true)
        .with_gpu(plain.with_channels(2));
    let (usual, unusual) = (fields(&Config::default()), fields(&config));
    assert!(usual.len() > 20, "{usual:?}");
    let same: Vec<_> = usual.iter().filter(|(name, value)| unusual[*name] == **value).collect();
    assert!(same.len() == 1 && same[0].0 == "host", "give these another value here: {same:?}");
    config
}

/// Makes a child of every kind of the ranks of `comm`, which leaves it unusable.
fn children(comm: &Communicator, larger: &UniqueId) -> Vec<(&'static str, Communicator)> {
    let members: Vec<Rank> = (0..comm.size()).rev().collect();
    let mut made = vec![
        ("duplicate", comm.duplicate().expect("all are here")),
        ("split", comm.split(Some(0), 0).expect("all are here").expect("a group")),
        ("child", comm.child().duplicate().expect("all are here")),
        ("create_group", comm.create_group(&members, 3).expect("all are here")),
    ];
    if comm.transport() != "threads" {
        made.push(("grow", comm.grow(larger, 0).expect("all are here")));
    }
    made.push(("shrink", comm.shrink().expect("all are here")));
    made
}

#[test]
fn every_setting_travels_to_every_child() {
    let folder = std::env::temp_dir().join(format!("unisono-children-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("writable");
    let config = unusual(&folder);
    let larger = UniqueId::new(Ipv4Addr::LOCALHOST.into()).expect("an id");
    World::Encrypted.run(2, &config, |comm| {
        let expected = fields(comm.config());
        for (kind, child) in children(&comm, &larger) {
            assert_eq!(fields(child.config()), expected, "{kind}");
            let grandchild = child.duplicate().expect("all are here");
            assert_eq!(fields(grandchild.config()), expected, "{kind}, again");
        }
    });
    std::fs::remove_dir_all(folder).expect("it is there");
}

/// Returns the algorithm of an all_reduce, whose result is checked.
fn algorithm_of(comm: &Communicator) -> &'static str {
    let mut values = vec![1.0f32; 5000];
    comm.all_reduce(&mut values, Sum).expect("a sound communicator");
    assert_eq!(values, vec![comm.size() as f32; 5000]);
    comm.last_algorithm().expect("no error").expect("an operation").name
}

/// Returns the algorithm that the library chooses for the sum of [`algorithm_of`] among `ranks`
/// ranks.
fn choice_of_library(world: World, ranks: usize, config: &Config) -> &'static str {
    let names = world.run(ranks, config, |comm| algorithm_of(&comm));
    assert_eq!(names, vec![names[0]; ranks], "{world:?}");
    names[0]
}

#[test]
fn set_algorithms_travel_to_every_child_but_grown_ones() {
    let config = Config::default().with_timeout(Duration::from_secs(20));
    for world in World::ALL {
        for name in ["collect", "ring"] {
            let larger = UniqueId::new(Ipv4Addr::LOCALHOST.into()).expect("an id");
            world.run(3, &config, |comm| {
                match name {
                    "ring" => comm.set_algorithm(Collective::AllReduce, Some("ring")).expect("built in"),
                    _ => comm.set_custom_algorithm(&COLLECT).expect("a right schedule"),
                }
                for (kind, child) in children(&comm, &larger) {
                    assert_eq!(algorithm_of(&child) == name, kind != "grow", "{world:?}: {name} by {kind}");
                }
            });
        }
    }
}

#[test]
fn child_with_other_settings_begins_without_algorithms() {
    let config = Config::default().with_timeout(Duration::from_secs(20));
    let choice = choice_of_library(World::Threads, 3, &config);
    assert_ne!(choice, "ring", "the test needs another one");
    World::Threads.run(3, &config, |comm| {
        comm.set_algorithm(Collective::AllReduce, Some("ring")).expect("built in");
        let other = comm.child().config(&config.clone().with_check_finite(true)).duplicate().expect("all");
        assert_eq!(algorithm_of(&other), choice);
    });
}

/// Five ranks run it, four do not: their communicator works by the library's choice.
#[test]
fn survivors_that_cannot_run_an_algorithm_choose_another() {
    let config = Config::default().with_timeout(Duration::from_secs(20));
    for world in World::ALL {
        let choice = choice_of_library(world, 4, &config);
        world.run(5, &config, |comm| {
            comm.set_custom_algorithm(&COLLECT).expect("a right schedule");
            assert_eq!(algorithm_of(&comm), "collect");
            if comm.rank() == 1 {
                return;
            }
            while comm.barrier().is_ok() {}
            let left = comm.shrink().expect("four are left");
            assert_eq!((left.size(), algorithm_of(&left)), (4, choice), "{world:?}");
        });
    }
}

/// A failure ended some ranks before a call of `set_algorithm`, and others after it.
#[test]
fn survivors_with_different_algorithms_choose_another() {
    let config = Config::default().with_timeout(Duration::from_secs(20));
    for world in World::ALL {
        let choice = choice_of_library(world, 3, &config);
        assert_ne!(choice, "ring", "the test needs another one");
        world.run(4, &config, |comm| {
            if comm.rank() == 3 {
                return;
            }
            while comm.barrier().is_ok() {}
            if comm.rank() == 0 {
                comm.set_algorithm(Collective::AllReduce, Some("ring")).expect("built in");
            }
            let left = comm.shrink().expect("three are left");
            assert_eq!((left.size(), algorithm_of(&left)), (3, choice), "{world:?}");
        });
    }
}

#[test]
fn algorithm_for_other_ranks_or_transport_is_refused_when_set() {
    let config = Config::default().with_timeout(Duration::from_secs(20));
    for world in World::ALL {
        let choice = choice_of_library(world, 4, &config);
        world.run(4, &config, |comm| {
            for error in [comm.set_custom_algorithm(&COLLECT), comm.set_custom_algorithm_unchecked(&COLLECT)]
            {
                let error = error.unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::Unsupported(_)), "{error}");
                let text =
                    "all_reduce collect needs 2, 3, 5, 6, 7, 8 or some other number of ranks: these are 4";
                assert!(error.to_string().contains(text), "{error}");
            }
            let windowed = comm.set_algorithm(Collective::AllReduce, Some("twoshot"));
            let name = match world.peer_access() {
                PeerAccess::TwoSided => {
                    let error = windowed.unwrap_err().to_string();
                    assert!(error.contains("needs memory that all ranks reach"), "{error}");
                    choice
                }
                _ => {
                    windowed.expect("shared memory");
                    "twoshot"
                }
            };
            assert_eq!(algorithm_of(&comm), name, "a refused algorithm is not set");
        });
    }
}

/// Two ranks set different programs under one name, which is a mismatch and no wrong result.
#[test]
fn different_programs_under_one_name_are_a_mismatch() {
    let other = collect_as("collect").with_chunks_per_share(|_| 2).leak();
    let config = Config::default().with_timeout(Duration::from_secs(20));
    for world in World::ALL {
        world.run(2, &config, |comm| {
            let algorithm: &'static Algorithm = if comm.rank() == 0 { &COLLECT } else { other };
            comm.set_custom_algorithm_unchecked(algorithm).expect("two ranks are supported");
            let error = comm.all_reduce(&mut [1.0f32; 5000], Sum).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{world:?}: {error}");
        });
    }
}

/// Names that differ in the last digit, as those of a series do.
#[test]
fn series_of_algorithms_can_be_set_in_one_process() {
    let config = Config::default().with_timeout(Duration::from_secs(20));
    let names = ["two_level_2", "two_level_4", "two_level_8", "two_level_16", "tree_1", "tree_2", "tree_3"];
    let series = names.map(|name| collect_as(name).leak());
    World::Threads.run(3, &config, |comm| {
        for algorithm in &series {
            comm.set_custom_algorithm(algorithm).expect("a name of its own");
            assert_eq!(algorithm_of(&comm), algorithm.name);
        }
    });
}
