//! The environment of a job: memory, clocks, settings, names, files.

use crate::bootstrap::run_joins;
use crate::support::World;
use crate::table::{Evidence, Report, Row, long_timeout, sums};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};
use unisono::bootstrap::RankInfo;
use unisono::select::TuningTable;
use unisono::{Communicator, Config, UniqueId, parse_algorithms};

pub(crate) const ROWS: &[Row] = &[
    Row { number: 36, input: "another user's segment of the same name", evidence: Evidence::Here(no_names) },
    Row {
        number: 37,
        input: "a link, pipe, folder or short file for shared memory",
        evidence: Evidence::There(ATTACH),
    },
    Row { number: 38, input: "shared memory that its owner shortens", evidence: Evidence::There(SEALS) },
    Row {
        number: 39,
        input: "impossible counters and lengths in shared memory",
        evidence: Evidence::There(RINGS),
    },
    Row { number: 40, input: "a clock that jumps", evidence: Evidence::Here(clock) },
    Row { number: 41, input: "variables with impossible values", evidence: Evidence::Here(variables) },
    Row { number: 42, input: "an interface that is not there", evidence: Evidence::Here(interface) },
    Row { number: 43, input: "a malformed table or list of algorithms", evidence: Evidence::Here(tables) },
    Row { number: 44, input: "damaged and hostile checkpoints", evidence: Evidence::There(CHECKPOINTS) },
    Row { number: 45, input: "settings in code out of their ranges", evidence: Evidence::Here(settings) },
    Row { number: 46, input: "a retired name of a setting", evidence: Evidence::There(RENAMED) },
];

const ATTACH: &[(&str, &str)] = &[("transports/src/sys/segment.rs", "fn unsealed_memory_is_refused")];
const SEALS: &[(&str, &str)] = &[("transports/src/sys/segment.rs", "fn created_segment_is_sealed")];
const RINGS: &[(&str, &str)] = &[
    ("transports/src/shm/link.rs", "fn invalid_headers_blame_the_sender"),
    ("transports/src/shm/link.rs", "fn invalid_counters_blame_the_receiver"),
    ("transports/src/shm/seqlock.rs", "fn garbage_in_mailbox_is_tolerated"),
];
const CHECKPOINTS: &[(&str, &str)] =
    &[("trainer/src/checkpoint/corruption_tests.rs", "fn corrupt_checkpoints_are_rejected")];

const RENAMED: &[(&str, &str)] = &[("src/config/env.rs", "fn config_set_answers_old_names_with_new_ones")];

fn works(begun: Instant) -> Report {
    Report { messages: vec!["works".to_owned()], time: begun.elapsed() }
}

/// Shared memory has no name that anybody could have taken before, or find afterwards.
fn no_names() -> Report {
    let begun = Instant::now();
    World::Shm.run(2, &long_timeout(), |comm| {
        sums(&comm);
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let named = |line: &&str| line.contains(" rw-s ") && line.contains("/dev/shm/");
        assert_eq!(maps.lines().find(named), None);
        assert!(maps.contains("/memfd:unisono (deleted)"), "it shares memory");
    });
    works(begun)
}

/// No wait reads a clock that can be set. The library reads the monotonic clock, and for the start
/// of a trace the real-time clock.
fn clock() -> Report {
    let begun = Instant::now();
    let mut folders: Vec<_> = ["src", "transports/src"]
        .map(|name| std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(name))
        .into();
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            files += 1;
            if path.ends_with("src/engine/telemetry/trace.rs") {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("text");
            for clock in ["SystemTime", "UNIX_EPOCH", "ClockId::Realtime"] {
                assert!(!text.contains(clock), "{} reads {clock}", path.display());
            }
        }
    }
    assert!(files > 100);
    works(begun)
}

fn variables() -> Report {
    let begun = Instant::now();
    let good = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")];
    let wrong = [
        ("RANK", "-1"),
        ("RANK", "2"),
        ("WORLD_SIZE", "two"),
        ("MASTER_PORT", "70000"),
        ("MASTER_ADDR", "no host"),
    ];
    let tell = |(name, value): (&str, &str)| {
        let vars = |variable: &str| {
            let replaced = (variable == name).then_some(value);
            replaced
                .or_else(|| good.iter().find(|(key, _)| *key == variable).map(|(_, value)| *value))
                .map(str::to_owned)
        };
        let story = RankInfo::from_vars(vars).expect_err(name).to_string();
        assert!(story.contains(&format!("{name}={value}")), "{story}");
        story
    };
    Report { messages: wrong.map(tell).into(), time: begun.elapsed() }
}

/// One rank cannot listen at its address: all ranks get the error at once.
fn interface() -> Report {
    for (address, reason) in [("fe80::1", "rgument"), ("192.0.2.1", "assign")] {
        let id = UniqueId::new(IpAddr::V4(Ipv4Addr::LOCALHOST)).expect("a free port");
        let bind = Some(address.parse().expect("an address"));
        let joins = (0..3).map(|rank| {
            let config = long_timeout().with_bind_addr(bind.filter(|_| rank == 2));
            ((id.clone(), rank, 3, config), [address, "rank 2 on", reason])
        });
        let joins: Vec<_> = joins.collect();
        let last = run_joins(joins.iter().map(|(args, parts)| (args.clone(), &parts[..])).collect());
        if address.starts_with("192") {
            return last;
        }
    }
    unreachable!("the last one returns")
}

fn tables() -> Report {
    let begun = Instant::now();
    let mut stories =
        vec![parse_algorithms("all_reduce=ring,broadcast=rong").expect_err("no such algorithm")];
    for line in ["all_reduce shm 2 8192", "all_reduce shm two 8192 ring", "\u{0}\u{ffff}", "a b c d e"] {
        let error = TuningTable::parse(&format!("# measured\n{line}")).expect_err(line);
        assert!(error.starts_with("line 2: "), "{error}");
        stories.push(error);
    }
    Report { messages: stories, time: begun.elapsed() }
}

/// Every way to make a communicator refuses settings out of range, and names them. `Duration::MAX`
/// means no limit and is accepted.
fn settings() -> Report {
    let begun = Instant::now();
    let base = Config::default();
    let refused = [
        (base.clone().with_fifo_slot_bytes(0), "Config::fifo_slot_bytes (UNISONO_FIFO_SLOT_BYTES) is 0"),
        (base.clone().with_fifo_slot_bytes(usize::MAX), "must be from 1024 to 1073741824"),
        (base.clone().with_channels(0), "Config::channels (UNISONO_CHANNELS) is 0, but must be from 1 to 32"),
        (base.clone().with_fifo_depth(0), "Config::fifo_depth (UNISONO_FIFO_DEPTH) is 0"),
        (base.clone().with_sockets_per_peer(1_000_000), "is 1000000, but must be from 1 to 256"),
        (base.clone().with_shm_window_bytes(0), "Config::shm_window_bytes (UNISONO_SHM_WINDOW_BYTES) is 0"),
        (base.clone().with_timeout(Duration::ZERO), "Config::timeout (UNISONO_TIMEOUT_MS) is 0ns"),
    ];
    let comm = Communicator::builder().config(&long_timeout()).local(1).expect("one").remove(0);
    let mut messages = Vec::new();
    for (config, part) in &refused {
        let id = UniqueId::new(Ipv4Addr::LOCALHOST.into()).expect("a port");
        let errors = [
            Communicator::builder().config(config).local(2).map(drop),
            Communicator::builder().config(config).join(&id, 0, 1).map(drop),
            Communicator::join(&id, 0, 2, config).map(drop),
            comm.child().config(config).split(Some(0), 0).map(drop),
            comm.child().config(config).duplicate().map(drop),
        ];
        for error in errors {
            let error = error.expect_err("refused");
            assert!(error.is_invalid_usage() && error.to_string().contains(part), "{error}");
            messages.push(error.to_string());
        }
    }
    assert!(!comm.is_poisoned());
    let unlimited = long_timeout().with_timeout(Duration::MAX).with_join_timeout(Duration::MAX);
    for world in [World::Threads, World::Shm, World::Tcp] {
        world.run(2, &unlimited, |comm| sums(&comm));
    }
    messages.dedup();
    Report { messages, time: begun.elapsed() }
}
