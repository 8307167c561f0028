//! A resource that the system refuses during bootstrap is an error on both sides that names it.
//! Nothing of the attempt is kept.

use super::process::{Process, new_id, numbers};
use super::worker::{resources_after_acceptor_exit, say};
use std::process::Command;
use std::time::{Duration, Instant};
use unisono::{Communicator, Config, Sum};
use unisono_transports::testing::HANG;

/// A rank of two that may be refused something.
pub(crate) fn run_worker(order: &[&str]) {
    let [id, rank, transport, heap_bytes] = order[..] else { panic!("{order:?}") };
    let transport = transport.parse().expect("a transport");
    let heap_bytes = heap_bytes.parse().expect("bytes");
    let config = Config::default()
        .with_transport(transport)
        .with_symmetric_heap_bytes(heap_bytes)
        .with_join_timeout(Duration::from_secs(4));
    let resources = resources_after_acceptor_exit();
    let met = Communicator::join(&id.parse().expect("an id"), rank.parse().expect("a rank"), 2, &config);
    say(match met.and_then(|comm| comm.all_reduce(&mut vec![1.0f32; 5000], Sum)) {
        Ok(()) => "fine".to_owned(),
        Err(error) => format!("failed {error}"),
    });
    say(format!("kept {resources} {}", resources_after_acceptor_exit()));
}

/// Bootstraps a free and a limited rank, and returns their outcomes. Both must keep as many
/// resources as before.
fn meet([free, limited]: [&mut Process; 2], transport: &str, heap_bytes: usize) -> [String; 2] {
    let (id, begun) = (new_id(), Instant::now());
    free.order(&format!("{id} 0 {transport} {heap_bytes}"));
    limited.order(&format!("{id} 1 {transport} {heap_bytes}"));
    let said = [&*free, &*limited].map(Process::read_line);
    assert!(begun.elapsed() < HANG, "{transport}: {said:?} after {:?}", begun.elapsed());
    for (process, said) in [&*free, &*limited].into_iter().zip(&said) {
        let kept = numbers(&process.read_until("kept"));
        assert_eq!(kept[..2], kept[3..5], "{transport}, after `{said}`: descriptors, threads");
    }
    said
}

fn limit(process: &Process, limit: &str) {
    let set = Command::new("prlimit").args(["--pid", &process.id(), limit]).status().expect("prlimit");
    assert!(set.success(), "{limit}");
}

fn two() -> [Process; 2] {
    [Process::start("limited"), Process::start("limited")]
}

const HEAP_BYTES: usize = 64 << 30;
const HEAP_BYTES_SMALL: usize = 1 << 20;

#[test]
fn fd_limit_is_named_without_leaks() {
    for transport in ["shm", "tcp"] {
        let [mut free, mut limited] = two();
        let (mut refused, mut hinted) = (0, 0);
        // From more than enough to hardly any. One less, and a rank cannot read the name of its
        // host.
        for most in (7..28).rev() {
            limit(&limited, &format!("--nofile={most}:{most}"));
            let [free, limited] = meet([&mut free, &mut limited], transport, HEAP_BYTES);
            // Both ranks dial, and threads of the last bootstrap may still hold descriptors. So the
            // same limit may be enough or not.
            if limited == "fine" && free == "fine" {
                continue;
            }
            refused += 1;
            hinted += usize::from(limited.contains("ulimit -n"));
            assert!(limited.contains("open files"), "{transport}, {most} descriptors: {limited}");
            let named = ["rank 1", "did not come in time: 1"].iter().any(|name| free.contains(name));
            assert!(named, "{transport}, {most} descriptors: {free}");
        }
        assert!((1..20).contains(&refused), "{transport}: refused {refused} times");
        assert!(hinted > 0, "{transport}: no error names `ulimit -n`");
    }
}

#[test]
fn memory_limit_error_names_remedy() {
    let [mut free, mut limited] = two();
    limit(&limited, "--fsize=1073741824");
    let [told, why] = meet([&mut free, &mut limited], "shm", HEAP_BYTES);
    assert!(why.contains("ulimit -f") && why.contains("UNISONO_SYMMETRIC_HEAP_BYTES"), "{why}");
    assert!(told.contains("rank 1"), "{told}");
    // It does help.
    assert_eq!(meet([&mut free, &mut limited], "shm", HEAP_BYTES_SMALL), ["fine", "fine"]);
    // Without shared memory ranks that may choose use TCP.
    assert_eq!(meet([&mut free, &mut limited], "auto", HEAP_BYTES), ["fine", "fine"]);
}

#[test]
fn unused_heap_takes_no_address_space() {
    let [mut free, mut limited] = two();
    limit(&limited, "--as=8589934592");
    assert_eq!(meet([&mut free, &mut limited], "shm", HEAP_BYTES), ["fine", "fine"]);
}

#[test]
fn thread_limit_is_named() {
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "prlimit", "--nproc=1:1"];
    let program = std::env::current_exe().expect("this test");
    let try_out = Command::new(nobody[0]).args(&nobody[1..]).args(["test", "-x"]).arg(program).status();
    if !try_out.is_ok_and(|tried| tried.success()) {
        return println!(
            "SKIPPED: limits of threads need root, who can become nobody, and a test that nobody can run"
        );
    }
    let (mut free, mut limited) = (Process::start("limited"), Process::start_by(&nobody, "limited"));
    let [told, why] = meet([&mut free, &mut limited], "tcp", HEAP_BYTES_SMALL);
    assert!(why.contains("cannot start the accept thread"), "{why}");
    assert!(told.contains("rank 1"), "{told}");
}
