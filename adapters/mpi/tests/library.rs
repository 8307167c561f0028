//! The library as MPItrampoline uses it: opened by its path, symbols found by name, one process a
//! rank.

#[path = "library/mpi.rs"]
mod mpi;
#[path = "library/rank.rs"]
mod rank;
#[path = "library/requests.rs"]
mod requests;

use mpi::{Mpi, library};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

/// Names the role of a process that a test starts.
const ROLE: &str = "TEST_LIBRARY_ROLE";

/// Returns this test binary in `role`, without a launcher's variables.
fn role(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    for name in ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "UNISONO_ID"] {
        command.env_remove(name);
    }
    command.args(["--exact", "--nocapture", "started_process"]).env(ROLE, role).env(mpi::PATH, mpi::path());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Not a test of its own: the processes that the others start.
#[test]
fn started_process() {
    match std::env::var(ROLE).as_deref() {
        Ok("collectives") => rank::collectives(),
        Ok("messages") => rank::messages(),
        Ok("requests") => requests::requests(),
        Ok("threads") => rank::threads(),
        Ok("missing") => rank::missing(),
        Ok("missing, closed") => {
            // SAFETY: nothing in this program owns standard error.
            unsafe { rustix::io::close(2) };
            rank::missing();
        }
        Ok("errors") => rank::errors(),
        Ok("leaves") => rank::leaves(),
        Ok(other) => panic!("no process does `{other}`"),
        Err(_) => {}
    }
}

/// Runs ranks in `name` and returns what they printed.
fn ranks(name: &str, size: usize) -> Vec<Output> {
    let port =
        TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
    let start = |rank: usize| {
        let mut command = role(name);
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", size.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.env("UNISONO_TIMEOUT_MS", "20000").spawn().expect("it starts")
    };
    let children: Vec<_> = (0..size).map(start).collect();
    children.into_iter().map(|child| child.wait_with_output().expect("it ends")).collect()
}

/// Asserts that a process got to its end: it says so itself, because a role that is not run passes.
fn assert_done(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (printed, said) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && printed.contains("done"), "{printed}\n{said}");
    said
}

#[test]
fn every_symbol_of_the_abi_exists() {
    let library = library();
    let names: Vec<&str> = include_str!("symbols.txt").lines().collect();
    assert_eq!(names.len(), 638);
    // SAFETY: the symbols are looked up, and not used.
    let absent = names.iter().filter(|name| unsafe { library.get::<*const ()>(name.as_bytes()).is_err() });
    assert_eq!(absent.collect::<Vec<_>>(), Vec::<&&str>::new());
}

#[test]
fn collectives_are_right_on_1_to_4_ranks() {
    for size in 1..=4 {
        ranks("collectives", size).iter().for_each(|output| drop(assert_done(output)));
    }
}

#[test]
fn messages_arrive_on_2_and_3_ranks() {
    for size in 2..=3 {
        ranks("messages", size).iter().for_each(|output| drop(assert_done(output)));
    }
}

#[test]
fn requests_have_tags_and_any_source_on_2_to_4_ranks() {
    for size in 2..=4 {
        for output in ranks("requests", size) {
            let said = assert_done(&output);
            assert_eq!(said.matches("nobody waited for it before MPI_Finalize: ").count(), 1, "{said}");
        }
    }
}

#[test]
fn threads_may_use_communicators_of_their_own() {
    ranks("threads", 2).iter().for_each(|output| drop(assert_done(output)));
}

#[test]
fn missing_functions_say_their_name_once() {
    let said = assert_done(&role("missing").output().expect("it runs"));
    assert_eq!(said.matches("MPI_Win_create is not implemented").count(), 1, "{said}");
}

/// A panic in a function that C calls ends the program.
#[test]
fn calls_without_a_reader_of_standard_error_return() {
    for name in ["missing", "missing, closed"] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        assert_done(&role(name).stderr(writer).output().expect("it runs"));
    }
}

#[test]
fn wrong_arguments_are_errors_with_a_text() {
    ranks("errors", 2).iter().for_each(|output| drop(assert_done(output)));
}

#[test]
fn error_names_the_rank_that_has_left() {
    let outputs = ranks("leaves", 2);
    assert_eq!(outputs[1].status.code(), Some(3));
    assert_done(&outputs[0]);
}

#[test]
fn ranks_that_cannot_meet_are_an_error_that_is_printed() {
    let mut command = role("errors");
    command.env("RANK", "0");
    let output = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("MPI_Init: WORLD_SIZE is not set"), "{said}");
}

#[test]
fn functions_before_init_are_errors() {
    let mpi = Mpi::open();
    let (mut rank, comm) = (-1, mpi.handle("MPIABI_COMM_WORLD"));
    // SAFETY: the signature is that of the standard.
    let code =
        unsafe { mpi.function::<extern "C" fn(usize, *mut i32) -> i32>("MPIABI_Comm_rank")(comm, &mut rank) };
    assert_eq!((code, rank), (mpi.int("MPIABI_ERR_COMM"), -1));
    assert!(mpi.error_text(code).contains("MPI is not initialized"), "{}", mpi.error_text(code));
}
