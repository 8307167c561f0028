//! C programs that call every function of the header, with right and with random arguments, and the
//! header's numbers.

use std::path::{Path, PathBuf};
use std::process::Command;
use unisono_core::schedule::Collective;
use unisono_core::{DType, ReduceKind};
use unisono_transports::testing::nested_cargo;

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Builds `libunisono.so` in the profile of this test, and returns its folder.
fn libraries() -> PathBuf {
    let libraries = nested_cargo::build_shared_library(env!("CARGO"), "unisono-capi");
    // Programs look for the name of the interface, under which `make install` links the library.
    let name =
        format!("libunisono.so.{}.{}", env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"));
    match std::os::unix::fs::symlink("libunisono.so", libraries.join(name)) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => panic!("{error}"),
        _ => libraries,
    }
}

/// Compiles a program of this folder with warnings as errors, and returns its path.
fn compile(source: &str, libraries: &Path) -> PathBuf {
    let program = libraries.join(format!("unisono-c-{source}"));
    let output = Command::new("cc")
        .args(["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-I"])
        .arg(folder().join("include"))
        .arg(folder().join("tests").join(format!("{source}.c")))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(libraries)
        .arg(format!("-Wl,-rpath,{}", libraries.display()))
        .args(["-lunisono", "-lpthread"])
        .output()
        .expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    for name in ["RANK", "WORLD_SIZE", "UNISONO_ID", "MASTER_ADDR", "MASTER_PORT"] {
        command.env_remove(name);
    }
    command
}

/// Runs a program that must succeed, and returns its standard output.
fn output_of(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {} {}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// Returns a command that runs a program under valgrind, where each error of memory is a failure.
/// `None`, and a note, on a machine without it.
fn under_valgrind(program: &Path) -> Option<Command> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("NOTE: valgrind is not installed, so {} runs only without it", program.display());
        return None;
    }
    let mut valgrind = command(Path::new("valgrind"));
    let checks = ["-q", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite"];
    let suppressions = concat!("--suppressions=", env!("CARGO_MANIFEST_DIR"), "/tests/valgrind.supp");
    valgrind.args(checks).args(["--show-leak-kinds=definite", "--fair-sched=yes", suppressions]).arg(program);
    Some(valgrind)
}

#[test]
fn c_program_calls_every_function() {
    let libraries = libraries();
    for source in ["collectives", "messages", "point_to_point"] {
        let program = compile(source, &libraries);
        assert_eq!(output_of(&mut command(&program)), "all right\n");
        if let Some(mut valgrind) = under_valgrind(&program) {
            assert_eq!(output_of(&mut valgrind), "all right\n");
        }
    }
}

/// Text that such a program prints must not go into a socket or a shared segment.
#[test]
fn closed_standard_descriptors_are_given_to_no_file() {
    let program = compile("closed_descriptors", &libraries());
    for settings in ["transport=shm", "transport=tcp", "transport=tcp\nencryption=on\nstatus_server=on"] {
        output_of(command(&program).arg(settings));
    }
    let folder = std::env::temp_dir();
    output_of(command(&program).arg(format!("trace_dir={}", folder.join("unisono-closed").display())));
}

/// Returns a seed that differs between runs, and prints it.
fn new_seed() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let seed = now.as_nanos() % 1_000_000_007;
    println!("seed {seed}");
    seed.to_string()
}

/// Ranks that call differently wait for each other only so long.
const SHORT_TIMEOUT: (&str, &str) = ("UNISONO_TIMEOUT_MS", "300");

#[test]
fn random_arguments_crash_no_function() {
    let program = compile("fuzz", &libraries());
    for seed in ["1".to_owned(), new_seed()] {
        let (name, value) = SHORT_TIMEOUT;
        output_of(command(&program).args(["3", &seed]).env(name, value));
        if let Some(mut valgrind) = under_valgrind(&program) {
            output_of(valgrind.args(["3", &seed]).env(name, value));
        }
    }
}

#[test]
fn random_collectives_match_naive_results() {
    let program = compile("results", &libraries());
    for seed in ["1".to_owned(), new_seed()] {
        output_of(command(&program).args(["2", &seed]));
        if let Some(mut valgrind) = under_valgrind(&program) {
            output_of(valgrind.args(["2", &seed]));
        }
    }
}

/// Starts a rank of a program, which reads its place from the environment.
fn start_rank(program: &Path, rank: usize, ranks: usize, port: &str) -> Command {
    let mut process = command(program);
    process
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", ranks.to_string())
        .env("LOCAL_RANK", rank.to_string());
    process.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port);
    process
}

/// Returns a port that nobody listens at.
fn free_port() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port().to_string()
}

/// Processes that destroy their communicator and end, or only end, are not taken for dead.
#[test]
fn processes_may_end_after_their_last_message() {
    let program = compile("endings", &libraries());
    for transport in ["shm", "tcp"] {
        for end in ["destroy", "return", "exit"] {
            for _ in 0..3 {
                let port = free_port();
                let start = |rank| {
                    let mut process = start_rank(&program, rank, 4, &port);
                    process.arg(end).env("UNISONO_TRANSPORT", transport);
                    std::thread::spawn(move || output_of(&mut process))
                };
                let ranks: Vec<_> = (0..4).map(start).collect();
                ranks.into_iter().for_each(|rank| drop(rank.join().expect("it ends well")));
            }
        }
    }
}

/// A warning of the library does not end a program whose standard error has no reader, though C
/// programs do not ignore `SIGPIPE`.
#[test]
fn warning_that_nobody_reads_ends_no_program() {
    let (program, port) = (compile("endings", &libraries()), free_port());
    let start = |rank| {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut process = start_rank(&program, rank, 4, &port);
        // Without a folder for the key of the user, ranks on loopback warn.
        process.arg("destroy").env("TMPDIR", "/proc/unisono").env_remove("XDG_RUNTIME_DIR").stderr(writer);
        process.spawn().expect("it starts")
    };
    let ranks = [0, 1, 2, 3].map(start);
    let ended = ranks.map(|mut rank| rank.wait().expect("it ends"));
    assert!(ended.iter().all(|status| status.success()), "{ended:?}");
}

/// A program that does not look at a code does not compile with warnings as errors.
#[test]
fn ignored_code_is_a_compiler_warning() {
    let folder_of_test = libraries();
    let source = folder_of_test.join("unisono-c-ignored.c");
    std::fs::write(
        &source,
        "#include \"unisono.h\"\nvoid sum(unisono_comm *comm) { unisono_barrier(comm); }\n",
    )
    .expect("a source");
    let compiled = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Werror", "-c", "-o", "/dev/null", "-I"])
        .arg(folder().join("include"))
        .arg(&source)
        .output()
        .expect("a C compiler");
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(!compiled.status.success() && said.contains("unused-result"), "{said}");
}

#[test]
fn makefile_builds_the_example_with_pkg_config() {
    let libraries = libraries();
    // Folders of users have spaces and letters of any language.
    let out = libraries.join("unisono C, exämple");
    let variable = |name: &str, path: &Path| format!("{name}={}", path.display());
    let mut make = Command::new("make");
    make.arg("-C").arg(folder()).args([variable("LIBRARY_DIR", &libraries), variable("OUT", &out)]);
    output_of(nested_cargo::as_from_shell(make.arg("example")));
    let program = out.join("pipeline");
    assert_eq!(output_of(&mut command(&program)), "sum 10, message from rank 3\n");
    let port = free_port();
    let ranks: Vec<_> = (0..4)
        .map(|rank| {
            let mut process = start_rank(&program, rank, 4, &port);
            std::thread::spawn(move || output_of(&mut process))
        })
        .collect();
    let outputs: String = ranks.into_iter().map(|rank| rank.join().expect("a rank fails")).collect();
    assert_eq!(outputs, "sum 10, message from rank 3\n");
}

/// A program finds the library in the home where it was installed, as the manual of the C interface
/// says: without a variable, without the link for compilers, and with a space in the path.
#[test]
fn program_of_the_readme_starts_from_a_home() {
    let libraries = libraries();
    let out = libraries.join(format!("unisono-c-homes-{}", std::process::id()));
    let variable = |name: &str, path: &Path| format!("{name}={}", path.display());
    let mut make = Command::new("make");
    make.args(["--silent", "-C"]).arg(folder()).arg("check");
    make.args([variable("LIBRARY_DIR", &libraries), variable("OUT", &out)]);
    let printed = output_of(nested_cargo::as_from_shell(&mut make));
    let skipped = printed.lines().find(|line| line.starts_with("SKIPPED"));
    if let Some(line) = skipped {
        println!("{line}");
    }
    let starts = printed.lines().filter(|line| line.ends_with("/sum: sum 10")).count();
    assert_eq!(starts, if skipped.is_some() { 3 } else { 4 }, "{printed}");
    std::fs::remove_dir_all(&out).expect("a folder of this test");
}

#[test]
fn folders_that_flags_cannot_name_are_refused() {
    for (prefix, why) in [("lib", "no absolute path"), ("/tmp/a,b", "flags of the linker")] {
        let mut make = Command::new("make");
        make.arg("-C").arg(folder()).args(["install", "LIBRARY_DIR=/nonexistent"]);
        let refused = make.arg(format!("PREFIX={prefix}")).output().expect("it starts");
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains(why), "{prefix}: {said}");
    }
}

/// Returns the value of a constant of the header.
fn constant(header: &str, name: &str) -> u32 {
    let line = header.lines().find_map(|line| line.trim().strip_prefix(&format!("{name} = ")));
    let digits: String = line.unwrap_or("").chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("{name} is not in the header"))
}

#[test]
fn header_has_the_numbers_of_the_library() {
    let header = std::fs::read_to_string(folder().join("include/unisono.h")).expect("readable");
    for (code, dtype) in DType::ALL.into_iter().enumerate() {
        assert_eq!(
            constant(&header, &format!("UNISONO_{}", format!("{dtype:?}").to_uppercase())),
            code as u32
        );
    }
    let ops = ReduceKind::ALL.into_iter().enumerate();
    for (code, op) in ops.filter(|(_, op)| *op != ReduceKind::PreMulSum) {
        assert_eq!(constant(&header, &format!("UNISONO_{}", format!("{op:?}").to_uppercase())), code as u32);
    }
    for (code, collective) in Collective::ALL.into_iter().enumerate() {
        let name = collective.name().to_uppercase();
        assert_eq!(constant(&header, &format!("UNISONO_{name}")), code as u32);
    }
    let invalid = unisono_core::Communicator::local(0).unwrap_err();
    assert_eq!(constant(&header, "UNISONO_INVALID_USAGE"), invalid.code());
}
