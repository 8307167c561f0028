//! The process of one rank: its environment, and its death together with the launcher.

use super::{JobEndpoint, Launch};
use crate::bind::Bind;
use rustix::process::{Pid, Signal};
use std::ffi::OsString;
use std::io::{ErrorKind, IsTerminal};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Builds the command of rank `number`: this program, which then executes the requested one.
pub(super) fn command(launch: &Launch, number: usize, meeting: &JobEndpoint) -> Result<Command, String> {
    // This path stays valid when the file on disk is replaced.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("unisono").arg("exec-rank").arg(std::process::id().to_string());
    if launch.bind == Bind::Core {
        command.args(["--core-of", &number.to_string(), &launch.ranks.to_string()]);
    }
    command.arg("--").args(&launch.program);
    // In a group of its own, a rank gets signals together with the processes that it has started,
    // and the terminal's Ctrl-C goes to the launcher alone.
    command.process_group(0);
    launch.hosts.set_rank(&mut command, number, launch.ranks);
    match launch.hosts.master() {
        Some((host, port)) => {
            // An inherited id would take precedence over this address.
            command.env("MASTER_ADDR", host).env("MASTER_PORT", port.to_string()).env_remove("UNISONO_ID");
        }
        None => {
            command.env("MASTER_ADDR", meeting.id.address().ip().to_string());
            command.env("MASTER_PORT", meeting.master_port.to_string());
            command.env("UNISONO_ID", meeting.id.to_string());
        }
    }
    command.envs(USUALLY.into_iter().filter(|(name, _)| std::env::var_os(name).is_none()));
    if launch.prefix {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    // Ranks are not in the terminal's foreground group; reading from the terminal would stop them.
    if number > 0 || std::io::stdin().is_terminal() {
        command.stdin(Stdio::null());
    }
    Ok(command)
}

/// Executes `program` after tying this process to the life of its launcher.
///
/// Returns only on failure, with the exit code that shells use and the reason.
pub(crate) fn exec_program(launcher: i32, program: &[OsString]) -> (u8, String) {
    let Some((name, arguments)) = program.split_first() else {
        return (CANNOT_RUN, "no program was given".to_owned());
    };
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        return (CANNOT_RUN, format!("cannot tie this rank to its launcher: {error}"));
    }
    // The launcher may have died before the call above.
    let parent = rustix::process::getppid().map(Pid::as_raw_pid);
    if parent != Some(launcher) {
        return (CANNOT_RUN, "the launcher is already gone".to_owned());
    }
    let error = Command::new(name).args(arguments).exec();
    let code = if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN };
    (code, format!("cannot start {}: {error}", name.to_string_lossy()))
}

/// Defaults that ranks get unless the environment of the launcher sets them.
///
/// CUDA reads the last two once. Streams of ranks that wait for each other must not share a queue,
/// and lazy loading of a kernel may wait until no other kernel runs.
const USUALLY: [(&str, &str); 3] = [
    ("UNISONO_STATUS_SERVER", "on"),
    ("CUDA_DEVICE_MAX_CONNECTIONS", "32"),
    ("CUDA_MODULE_LOADING", "EAGER"),
];
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;
