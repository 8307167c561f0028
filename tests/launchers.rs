//! Processes that launchers and containers start: MPI, other PID namespaces, limits of address
//! space.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use unisono::{Communicator, Config, Sum, UniqueId};
use unisono_transports::sys::user;
use unisono_transports::testing::HANG;

const LOOPBACK: std::net::IpAddr = std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
/// Names the role of a process that a test starts.
const ROLE: &str = "TEST_LAUNCHERS_ROLE";

/// Runs this test binary again in `role`, by way of `prefix`.
fn role(prefix: &[&str], role: &str) -> Command {
    let this_test = std::env::current_exe().expect("this test");
    let mut command = match prefix {
        [] => Command::new(this_test),
        [program, arguments @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments).arg(this_test);
            command
        }
    };
    for name in ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "UNISONO_SECRET"] {
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
        Ok("rank") => reduce(Communicator::from_env()),
        Ok("rank or alone") => reduce(Communicator::from_env_or_alone()),
        Ok("communicators") => make_communicators(1000, 8),
        Ok("heap") => print_heap_error(),
        _ => {}
    }
}

/// Prints the sum of all ranks plus one.
fn reduce(comm: unisono::Result<Communicator>) {
    let comm = comm.expect("a communicator");
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
fn process_without_a_launcher_is_alone() {
    let said = finish(role(&[], "rank or alone").spawn().expect("it starts"));
    assert!(said.contains("sum 1 of 1 over threads"), "{said}");
    let id = UniqueId::new(LOOPBACK).expect("an id").to_string();
    let ranks = [0, 1].map(|rank| {
        let mut command = role(&[], "rank or alone");
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", "2").env("UNISONO_ID", &id);
        command.spawn().expect("it starts")
    });
    for rank in ranks {
        let said = finish(rank);
        assert!(said.contains("sum 3 of 2 over shm"), "{said}");
    }
    // A part of the variables of a rank is an error.
    let Output { status, stderr, .. } =
        role(&[], "rank or alone").env("RANK", "0").output().expect("it runs");
    let said = String::from_utf8_lossy(&stderr);
    assert!(!status.success() && said.contains("WORLD_SIZE is not set"), "{said}");
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

/// A job of two ranks that meet at a port of loopback and have no secret.
struct LocalJob {
    id: UniqueId,
    folder: PathBuf,
}

impl LocalJob {
    /// Returns a job whose temporary folder is for all users, or `None`, and a note, if this user
    /// has no number of its own.
    fn new(name: &str) -> Option<Self> {
        if !user::own_is_distinct().expect("the users of this host") {
            println!("SKIPPED: this user has no number of its own");
            return None;
        }
        let folder = std::env::temp_dir().join(format!("unisono-launchers-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o1777)).expect("a folder for all");
        Some(Self { id: UniqueId::new(LOOPBACK).expect("a port"), folder })
    }

    fn rank(&self, rank: usize) -> Command {
        let mut command = role(&[], "rank");
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", "2").env("MASTER_ADDR", "127.0.0.1");
        command.env("MASTER_PORT", self.id.address().port().to_string()).env("TMPDIR", &self.folder);
        command.env_remove("XDG_RUNTIME_DIR");
        command
    }

    fn start(&self, rank: usize) -> Child {
        self.rank(rank).spawn().expect("it starts")
    }

    fn key(&self) -> PathBuf {
        self.folder.join(format!("unisono-{}", user::own())).join("key")
    }
}

impl Drop for LocalJob {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Asserts that rank 1, started like this, is refused and told what to do, while rank 0 waits on.
fn assert_refused(mut rank_1: Command, rank_0: &mut Child) {
    let Output { status, stdout, stderr } = rank_1.output().expect("it runs");
    let said = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    if status.success() || rank_0.try_wait().expect("a child").is_some() {
        let _ = rank_0.kill();
        panic!("rank 1 was admitted: {said}");
    }
    assert!(said.contains("the key of its user") && said.contains("need the same UNISONO_SECRET"), "{said}");
}

#[test]
fn loopback_without_a_secret_admits_its_user_only() {
    let Some(job) = LocalJob::new("users") else { return };
    let mut rank_0 = job.start(0);
    // As in a container with the same network and other files.
    let elsewhere = job.folder.join("elsewhere");
    fs::create_dir(&elsewhere).expect("a folder");
    let mut other_files = job.rank(1);
    other_files.env("TMPDIR", elsewhere);
    assert_refused(other_files, &mut rank_0);
    let can_run = |command: &mut Command| command.arg("--list").output().is_ok();
    match user::own() == 0 && can_run(job.rank(1).uid(OTHER_USER)) {
        true => {
            let mut other_user = job.rank(1);
            other_user.uid(OTHER_USER);
            assert_refused(other_user, &mut rank_0);
        }
        false => println!("SKIPPED: only root can be two users, of which both can run this test"),
    }
    for rank in [job.start(1), rank_0] {
        let said = finish(rank);
        assert!(said.contains("sum 3 of 2"), "{said}");
    }
}

/// Waits until a file is there.
fn wait_for(path: &Path) {
    let begun = Instant::now();
    while !path.exists() {
        assert!(begun.elapsed() < HANG, "{} does not appear", path.display());
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn job_on_loopback_meets_after_a_killed_one() {
    let Some(job) = LocalJob::new("killed") else { return };
    let mut killed = job.start(0);
    wait_for(&job.key());
    killed.kill().expect("it runs");
    killed.wait().expect("it ends");
    let ranks = [1, 0].map(|rank| job.start(rank));
    for rank in ranks {
        let said = finish(rank);
        assert!(said.contains("sum 3 of 2"), "{said}");
    }
}

#[test]
fn job_without_a_folder_for_a_key_meets_and_warns() {
    let Some(job) = LocalJob::new("folderless") else { return };
    let start = |rank| job.rank(rank).env("TMPDIR", "/proc/unisono").spawn().expect("it starts");
    for rank in [0, 1].map(start) {
        let output = rank.wait_with_output().expect("an output");
        let (printed, said) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(printed.contains("sum 3 of 2"), "{printed}{said}");
        assert!(said.contains("any process of this host could join the job"), "{said}");
    }
}

/// User `nobody`.
const OTHER_USER: u32 = 65_534;
