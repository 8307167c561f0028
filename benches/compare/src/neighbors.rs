//! Background load of the measured ranks: loops that compute, and other jobs of unisono.

use crate::case::World;
use crate::control_group::{ControlGroup, GroupError, Membership};
use crate::load::Load;
use rustix::process::{Pid, Signal};
use std::cell::Cell;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// First argument with which this program runs as a neighbor.
pub(crate) const ARGUMENT: &str = "neighbor";
/// Line that a neighbor prints before it begins.
const READY: &str = "ready";

/// Starts the background loads of a comparison.
pub(crate) struct LoadControl {
    base: Result<ControlGroup, GroupError>,
    cores: usize,
    /// True if the ranks and the load are put into one control group.
    shared: bool,
    /// True once a load was started.
    started: Cell<bool>,
}

/// The load of one world, while the value lives.
pub(crate) struct RunningLoad {
    // Dropped in this order: this process leaves the quota, the load ends, its group is left.
    _quota: Option<Membership>,
    _neighbors: Neighbors,
    _shared: Option<Membership>,
}

impl LoadControl {
    /// Checks that all loads can be started, before anything is measured; an error is a quota that
    /// cannot be set.
    pub(crate) fn new(loads: &[Load], cores: usize) -> Result<Self, String> {
        let base = ControlGroup::here();
        let mut control = Self { base, cores, shared: false, started: Cell::new(false) };
        for percent in loads.iter().filter_map(|load| load.quota) {
            let entered = control.base().and_then(|base| refused(base.enter_quota(percent, cores)));
            entered.map_err(|why| format!("--cpu-quota: {why}"))?;
        }
        if loads.iter().any(|load| !load.is_quiet()) {
            let entered = control.base().and_then(|base| refused(base.enter_shared()));
            control.shared = entered.inspect_err(|why| eprintln!("no group for all: {why}")).is_ok();
        }
        Ok(control)
    }

    fn base(&self) -> Result<&ControlGroup, String> {
        self.base.as_ref().map_err(ToString::to_string)
    }

    /// Starts the load of a world, and puts this process where the ranks belong.
    pub(crate) fn begin(&self, world: World, unisono: &Path) -> Result<RunningLoad, String> {
        let load = world.load;
        self.started.set(self.started.get() || !load.is_quiet());
        let shares = self.shared && !load.is_quiet();
        let shared = shares.then(|| refused(self.base()?.enter_shared())).transpose()?;
        let neighbors = Neighbors::start(world, unisono)?;
        let quota = |percent| refused(self.base()?.enter_quota(percent, self.cores));
        let quota = load.quota.map(quota).transpose()?;
        Ok(RunningLoad { _quota: quota, _neighbors: neighbors, _shared: shared })
    }

    /// Returns a sentence about the shares of ranks and load; empty if no load was started.
    pub(crate) fn note(&self) -> &'static str {
        let automatic = std::fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled");
        match (self.shared, automatic.is_ok_and(|text| text.trim() == "1")) {
            _ if !self.started.get() => "",
            (true, _) => {
                "Ranks without a quota and the load are in one control group, where all processes are equal. "
            }
            (false, false) => "All processes are equal, whatever their session. ",
            (false, true) => {
                "Each session has its own share of a core (`sched_autogroup_enabled` is 1), and some launchers give \
                 every rank a session: the figures favor them. "
            }
        }
    }
}

fn refused<T>(entered: Result<T, GroupError>) -> Result<T, String> {
    entered.map_err(|error| error.to_string())
}

/// Processes of a load. They end with this value, and with this program however it ends.
struct Neighbors(Vec<Child>);

impl Neighbors {
    /// Starts the loops and the jobs of a world's load, and waits until they run.
    fn start(world: World, unisono: &Path) -> Result<Self, String> {
        let mut neighbors = Self(Vec::new());
        for _ in 0..world.load.busy {
            neighbors.add(world.load.nice, &mut Vec::new())?;
        }
        for _ in 0..world.load.jobs {
            neighbors.add(0, &mut job(world, unisono))?;
        }
        Ok(neighbors)
    }

    fn add(&mut self, nice: i32, program: &mut Vec<OsString>) -> Result<(), String> {
        // This path stays valid when the file on disk is replaced.
        let mut command = Command::new("/proc/self/exe");
        command.args([ARGUMENT, &std::process::id().to_string(), &nice.to_string()]).args(program.drain(..));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child =
            command.spawn().map_err(|error| format!("no process beside the ranks starts: {error}"))?;
        self.0.push(child);
        let child = self.0.last_mut();
        let pipes = child.and_then(|child| Some((child.stdout.take()?, child.stderr.take()?)));
        let (stdout, mut stderr) = pipes.ok_or("a process beside the ranks has no output")?;
        let mut line = String::new();
        if BufReader::new(stdout).read_line(&mut line).is_ok() && line.trim() == READY {
            return Ok(());
        }
        let mut reason = String::new();
        // There is no other source of a reason than its output.
        let _ = stderr.read_to_string(&mut reason);
        Err(format!("a process beside the ranks did not begin: {}", reason.trim()))
    }
}

impl Drop for Neighbors {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // One that has ended already is what was wanted.
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}

/// Command of a job that lasts longer than any measurement: as many ranks, which reduce a few
/// kilobytes over the same transport.
fn job(world: World, unisono: &Path) -> Vec<OsString> {
    let ranks = world.ranks.to_string();
    let arguments = ["perf", "all_reduce", "--ranks", &ranks, "--transport", world.transport.name()];
    let endless = ["--sizes", "3000", "-n", "1000000000", "-c", "0"];
    std::iter::once(unisono.as_os_str().to_owned())
        .chain(arguments.into_iter().chain(endless).map(OsString::from))
        .collect()
}

/// Runs as a neighbor of the process `parent`: executes a program, or computes until it is killed.
///
/// Returns only on failure, with the reason.
pub(crate) fn serve(arguments: &[OsString]) -> String {
    let [parent, nice, program @ ..] = arguments else {
        return format!("{ARGUMENT} takes the process beside which it runs, a niceness, and a program");
    };
    let number = |text: &OsString| text.to_str().and_then(|text| text.parse::<i32>().ok());
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        return format!("cannot tie this process to its parent: {error}");
    }
    // The parent may have died before the call above.
    if number(parent).is_none() || rustix::process::getppid().map(Pid::as_raw_pid) != number(parent) {
        return format!("process {} is not the parent", parent.to_string_lossy());
    }
    let Some(nice) = number(nice) else { return format!("{} is no niceness", nice.to_string_lossy()) };
    if let Err(error) = rustix::process::nice(nice) {
        return format!("cannot get the niceness {nice}: {error}; below 0 it takes CAP_SYS_NICE");
    }
    let mut stdout = std::io::stdout();
    if let Err(error) = writeln!(stdout, "{READY}").and_then(|()| stdout.flush()) {
        return format!("nobody waits for this process: {error}");
    }
    match program.split_first() {
        None => compute(),
        Some((name, arguments)) => {
            let mut command = Command::new(name);
            // Nobody reads its output.
            command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
            format!("cannot start {}: {}", name.to_string_lossy(), command.exec())
        }
    }
}

/// Computes without an end.
fn compute() -> ! {
    let mut value = 1_u64;
    loop {
        value = std::hint::black_box(value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
}
