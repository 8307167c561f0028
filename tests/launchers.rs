//! Processes that launchers and containers start: MPI, other PID namespaces, limits of address
//! space.

use std::process::{Child, Command, Output, Stdio};
use unisono::{Communicator, Config, Sum, UniqueId};

const LOOPBACK: std::net::IpAddr = std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
/// Names the role of a process that a test starts.
const ROLE: &str = "TEST_LAUNCHERS_ROLE";

/// Runs this test binary again in `role`, by way of `prefix`.
fn role(prefix: &[&str], role: &str) -> Command {
    let own = std::env::current_exe().expect("this test");
    let mut command = match prefix {
        [] => Command::new(own),
        [program, arguments @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments).arg(own);
            command
        }
    };
    for name in ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"] {
        command.env_remove(name);
    }
    command.args(["--exact", "--nocapture", "started_process"]).env(ROLE, role);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Not a test of its own: the processes that the others start.
#[test]
fn started_process() {
    match std::env::var(ROLE).as_deref() {
        Ok("rank") => reduce_from_env(),
        Ok("communicators") => make_communicators(1000, 8),
        Ok("heap") => print_heap_error(),
        _ => {}
    }
}

/// Joins as the environment says, and prints the sum of all ranks plus one.
fn reduce_from_env() {
    let comm = Communicator::from_env().expect("a communicator");
    let mut value = [comm.rank() as u64 + 1];
    comm.all_reduce(&mut value, Sum).expect("a sum");
    println!("sum {} of {} over {}", value[0], comm.size(), comm.transport());
}

/// Makes so many communicators of so many threads, all alive at once, and uses each.
fn make_communicators(count: usize, ranks: usize) {
    let worlds: Vec<Vec<Communicator>> =
        (0..count).map(|_| Communicator::local(ranks).expect("a communicator")).collect();
    let mut by_rank: Vec<Vec<Communicator>> = (0..ranks).map(|_| Vec::new()).collect();
    for comm in worlds.into_iter().flatten() {
        by_rank[comm.rank()].push(comm);
    }
    std::thread::scope(|scope| {
        for comms in &by_rank {
            scope.spawn(move || {
                for comm in comms {
                    let mut value = [1u64];
                    comm.all_reduce(&mut value, Sum).expect("a sum");
                    assert_eq!(value, [comm.size() as u64]);
                }
            });
        }
    });
    println!("{count} communicators of {ranks} ranks");
}

/// Prints why the symmetric heap cannot be had.
fn print_heap_error() {
    let comm = Communicator::local(1).expect("a communicator").remove(0);
    println!("heap: {}", comm.alloc_symmetric::<f32>(100).map(drop).expect_err("no address space"));
}

fn finish(child: Child) -> String {
    let Output { status, stdout, stderr } = child.wait_with_output().expect("an output");
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&stdout), text(&stderr));
    assert!(status.success(), "{status}: {stdout}{stderr}");
    stdout
}

fn is_runnable(command: &[&str]) -> bool {
    let mut started = Command::new(command[0]);
    let tried = started.args(&command[1..]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    tried.is_ok_and(|status| status.success())
}

#[test]
fn ranks_of_two_pid_namespaces_share_memory() {
    let unshare = ["unshare", "--pid", "--fork"];
    if !is_runnable(&[&unshare[..], &["true"]].concat()) {
        // The fallback to TCP has a test of its own, which injects the failure: `bootstrap::tests`.
        return println!(
            "SKIPPED: `unshare --pid --fork` needs root or user namespaces, which are not permitted"
        );
    }
    let id = UniqueId::new(LOOPBACK).expect("an id").to_string();
    let ranks: Vec<Child> = [&[][..], &unshare[..], &unshare[..]]
        .iter()
        .enumerate()
        .map(|(rank, prefix)| {
            let mut command = role(prefix, "rank");
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", "3").env("UNISONO_ID", &id);
            command.spawn().expect("it starts")
        })
        .collect();
    for rank in ranks {
        let said = finish(rank);
        assert!(said.contains("sum 6 of 3 over shm"), "{said}");
    }
}

#[test]
fn mpirun_starts_one_world() {
    let mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "4"];
    if !is_runnable(&[&mpirun[..], &["true"]].concat()) {
        // The recorded environments of `bootstrap::launcher` are always tested.
        return println!("SKIPPED: there is no `mpirun` that starts four processes here");
    }
    let said = finish(role(&mpirun, "rank").spawn().expect("it starts"));
    assert_eq!(said.matches("sum 10 of 4 over shm").count(), 4, "{said}");
}

#[test]
fn thousand_communicators_of_8_ranks_fit_in_8_gib() {
    for limit in [&[][..], &["prlimit", "--as=8589934592"]] {
        let said = finish(role(limit, "communicators").spawn().expect("it starts"));
        assert!(said.contains("1000 communicators of 8 ranks"), "{limit:?}: {said}");
    }
}

#[test]
fn heap_beyond_address_space_names_remedy() {
    assert_eq!(Config::default().symmetric_heap_bytes, 64 << 30);
    let said = finish(role(&["prlimit", "--as=8589934592"], "heap").spawn().expect("it starts"));
    for part in ["ulimit -v", "UNISONO_SYMMETRIC_HEAP_BYTES"] {
        assert!(said.contains(part), "`{part}` is not in: {said}");
    }
}
