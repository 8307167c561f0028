//! The commands of each stage.

use super::pack::NCCL_LIBRARY;
use super::{Setting, nccl};
use serde_json::Value;
use std::path::PathBuf;

/// A command of a stage.
pub(super) struct Step {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
    pub(super) variables: Vec<(String, String)>,
    /// Fields that its rows get.
    pub(super) fields: Vec<(&'static str, Value)>,
    /// Its longest time in a run of full length, so that a command that hangs leaves time for the
    /// next one.
    pub(super) seconds: u64,
}

impl Step {
    pub(super) fn new(program: impl Into<PathBuf>, seconds: u64, arguments: &str) -> Self {
        let arguments = arguments.split_whitespace().map(str::to_owned).collect();
        Self { program: program.into(), arguments, variables: Vec::new(), fields: Vec::new(), seconds }
    }

    fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    /// Adds a field to all of its rows.
    pub(super) fn field(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    /// Adds an argument that may contain spaces.
    pub(super) fn arg(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Returns the command in one line, without the end of a long one.
    pub(super) fn line(&self) -> String {
        let name = self.program.file_name().map(|name| name.to_string_lossy().into_owned());
        let words = self.arguments.iter().map(|word| word.lines().next().unwrap_or_default().to_owned());
        let line = name.into_iter().chain(words).collect::<Vec<_>>().join(" ");
        let end = line.char_indices().nth(LINE_MAX).map_or(line.len(), |(offset, _)| offset);
        line[..end].to_owned()
    }
}

/// Characters of a command in the summary and the log.
const LINE_MAX: usize = 140;

/// Prints a row that says why something was left out.
pub(super) fn skipped(what: &str, why: &str) -> Step {
    let row = serde_json::json!({ "skipped": what, "why": why });
    Step::new("echo", 5, "").arg(row.to_string())
}

/// A script, for tests of the runner.
#[cfg(test)]
pub(super) fn shell(script: &str) -> Step {
    Step::new("sh", 600, "-c").arg(script)
}

impl Setting {
    pub(super) fn program(&self, name: &str, seconds: u64, arguments: &str) -> Step {
        Step::new(self.folder.join(name), seconds, arguments)
    }

    /// The suite's own program, for a task of it.
    fn task(&self, seconds: u64, arguments: &str) -> Step {
        let program = std::env::current_exe().unwrap_or_else(|_| self.folder.join("xtask"));
        let mut step = Step::new(program, seconds, "gpu-suite");
        step.arguments.extend(arguments.split_whitespace().map(str::to_owned));
        step
    }

    fn experiments(&self, seconds: u64, names: &str) -> Step {
        let quick = if self.rehearsal { "--quick " } else { "" };
        let launch = if self.gate.needs_plain_launches() { "--launch plain " } else { "" };
        self.program("experiments", seconds, &format!("--device cuda {quick}{launch}{names}"))
    }

    /// `unisono perf` on the GPU; ranks are threads unless the arguments say otherwise.
    fn perf(&self, seconds: u64, arguments: &str) -> Step {
        // The emulator on few cores is slow, and says nothing for longer.
        let timeout = self.either(5_000, 30_000);
        let common = format!("--device cuda --jsonl --timeout-ms {timeout}");
        let step = self.program("unisono", seconds, &format!("perf {arguments} {common}"));
        match self.gate.needs_cooperative_launches() {
            true => step.with("UNISONO_GPU_LAUNCH", "cooperative"),
            false => step,
        }
    }

    fn tests(&self, seconds: u64, executable: &str, arguments: &str) -> Step {
        let rehearsal = if self.rehearsal { "--rehearsal" } else { "" };
        let path = self.folder.join(executable);
        self.task(seconds, &format!("tests {} {rehearsal} {arguments}", path.display()))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.folder.join(name).is_file()
    }

    /// The first on a GPU, the second in a rehearsal.
    pub(super) fn either<T>(&self, real: T, rehearsed: T) -> T {
        if self.rehearsal { rehearsed } else { real }
    }
}

pub(super) fn machine(setting: &Setting) -> Vec<Step> {
    let mut steps = vec![setting.task(5, "machine")];
    if setting.gpu {
        steps.push(setting.experiments(5, "machine"));
    }
    steps
}

pub(super) fn start(setting: &Setting) -> Vec<Step> {
    let one_thread = |label: &str| {
        let mut step = setting.experiments(10, &format!("--label {label} start"));
        let program = std::mem::replace(&mut step.program, "taskset".into());
        step.arguments.splice(0..0, ["-c".to_owned(), "0".to_owned(), program.display().to_string()]);
        step
    };
    vec![
        setting.experiments(8, "--label first start"),
        setting.experiments(4, "--label again start"),
        one_thread("one-loader"),
        // The driver compiles the PTX, and its cache is empty.
        setting.experiments(12, "--label PTX start").with("CUDA_FORCE_PTX_JIT", "1"),
    ]
}

pub(super) fn driver_rules(setting: &Setting) -> Vec<Step> {
    let queues = |count: &str| {
        let streams = setting.experiments(6, "rules-streams");
        streams.with("CUDA_DEVICE_MAX_CONNECTIONS", count).field("queues", count)
    };
    vec![setting.experiments(22, "rules"), queues("8"), queues("32")]
}

/// Tests that tell most, of ranks on one GPU.
const SMOKE: &str = "collectives::ranks_on_one_gpu_reduce,collectives::results_match_cpu_bits,\
    collectives::uneven_shares_are_correct,all_to_all::all_to_all_v_allows_any_lengths,\
    send_recv::groups_match_in_any_order,streams::a_graph_repeats_an_operation,\
    streams::many_operations_are_enqueued_at_once,symmetric_memory::symmetric_buffers_are_accessed_in_place,\
    symmetric_memory::narrow_floats_are_rounded_once,teardown::enqueued_work_completes_after_drop,\
    failures::abort_ends_operations_on_all_ranks,links::misrouted_link_is_detected";

pub(super) fn smoke(setting: &Setting) -> Vec<Step> {
    let each = setting.either(3, 20);
    let mut steps =
        vec![setting.tests(18, "test-collectives", &format!("--only {SMOKE} --each {each} --timeouts 3"))];
    let sizes = setting.either("8,64K,1M", "8,4K");
    steps.extend(
        [2, 4, 8].map(|ranks| setting.perf(6, &format!("all_reduce -t {ranks} --sizes {sizes} -n 2 -w 1"))),
    );
    steps
}

pub(super) fn primitives(setting: &Setting) -> Vec<Step> {
    let experiments = ["residents", "launches", "handover", "copies", "reductions", "events", "page-locked"];
    experiments.map(|name| setting.experiments(12, name)).into()
}

/// Ranks on one GPU, in the order of their value.
pub(super) const RANKS: [usize; 3] = [2, 8, 4];
/// Sizes of all_reduce; results of the small ones are checked.
pub(super) const ALL_REDUCE_SMALL: &str = "8,1K,16K,64K,256K,1M,4M,16M";
pub(super) const ALL_REDUCE_LARGE: &str = "64M,256M";
/// Sizes of the other collectives.
pub(super) const OTHER_SMALL: &str = "8,64K,16M";
pub(super) const OTHER_LARGE: &str = "128M";

pub(super) fn all_reduce(setting: &Setting) -> Vec<Step> {
    let (small, large) = setting.either((ALL_REDUCE_SMALL, ALL_REDUCE_LARGE), ("8,4K", "32K"));
    let mut steps = Vec::new();
    for ranks in RANKS {
        // Checking takes longer than measuring where buffers are large; the tests check those.
        for (sizes, check) in [(small, "-n 20"), (large, "-n 10 -w 2 -c 0")] {
            let check = setting.either(check, "-n 2 -w 1");
            steps.push(setting.perf(10, &format!("all_reduce -t {ranks} --sizes {sizes} {check}")));
            steps.push(setting.perf(10, &format!("all_reduce -t {ranks} --sizes {sizes} {check} -R 2")));
        }
        if setting.gate.replays() {
            let replays = setting.either("-n 20 -G 5", "-n 2 -w 1 -G 2");
            for memory in ["", "-R 2"] {
                let step = format!("all_reduce -t {ranks} --sizes {small} {replays} -c 0 {memory}");
                steps.push(setting.perf(10, &step));
            }
        }
        let size = setting.either("64M", "4K");
        for dtype in ["bfloat16", "fp8_e4m3"] {
            steps.push(
                setting.perf(6, &format!("all_reduce -t {ranks} --sizes {size} -d {dtype} -n 5 -w 1 -c 0")),
            );
        }
    }
    let lines =
        setting.perf(6, &format!("all_reduce -t 8 --sizes {} -n 20", setting.either("8,1K,16K", "8")));
    // The low-latency lines of 8 bytes beside those of 16, which are the default.
    steps.push(lines.with("UNISONO_GPU_LL128", "off"));
    steps
}

pub(super) fn nccl_all_reduce(setting: &Setting) -> Vec<Step> {
    let sizes =
        setting.either("8,1024,16384,65536,262144,1048576,4194304,16777216,67108864,268435456", "8,65536");
    let cells = RANKS.map(|ranks| (ranks, "all_reduce".to_owned(), sizes, "float"));
    let types = RANKS.map(|ranks| (ranks, "all_reduce".to_owned(), "67108864", "bfloat16"));
    nccl_steps(setting, cells.into_iter().chain(types))
}

/// Runs NCCL's benchmark, which prints a row for each cell, in a process for each number of ranks.
fn nccl_steps<'a>(
    setting: &Setting,
    cells: impl IntoIterator<Item = (usize, String, &'a str, &'a str)>,
) -> Vec<Step> {
    if !setting.has(nccl::BENCH) || !setting.has(NCCL_LIBRARY) {
        return vec![skipped("NCCL", "target/gpu-suite has no NCCL")];
    }
    let library = setting.folder.join(NCCL_LIBRARY);
    let step = |(ranks, collectives, bytes, dtype): (usize, String, &str, &str)| {
        let arguments = format!(
            "--ranks {ranks} --collective {collectives} --bytes {bytes} --dtype {dtype} --in-place no --library {}",
            library.display()
        );
        let step = setting.program(nccl::BENCH, 14, &arguments);
        // Several ranks on one GPU share its multiprocessors.
        step.with("NCCL_MULTI_RANK_GPU_ENABLE", "1").with("NCCL_MAX_CTAS", "16")
    };
    cells.into_iter().map(step).collect()
}

pub(super) fn local_peers(setting: &Setting) -> Vec<Step> {
    if !crate::cargo::is_installed("python3") {
        return vec![skipped("local peers", "there is no python3")];
    }
    let quick = setting.either("", "--quick");
    vec![Step::new("python3", 25, "-c").arg(include_str!("local_peers.py")).arg(quick)]
}

pub(super) const OTHERS: [&str; 5] = ["all_gather", "reduce_scatter", "broadcast", "all_to_all", "sendrecv"];

pub(super) fn others(setting: &Setting) -> Vec<Step> {
    let (small, large) = setting.either((OTHER_SMALL, OTHER_LARGE), ("8,4K", "32K"));
    let ranks = setting.either(RANKS.as_slice(), &[2, 4]);
    let mut steps = Vec::new();
    for ranks in ranks {
        for name in OTHERS {
            let counts = setting.either("-n 20", "-n 2 -w 1");
            steps.push(setting.perf(6, &format!("{name} -t {ranks} --sizes {small} {counts}")));
            let counts = setting.either("-n 5 -w 1 -c 0", "-n 2 -w 1");
            steps.push(setting.perf(6, &format!("{name} -t {ranks} --sizes {large} {counts}")));
        }
    }
    let cells = ranks.iter().map(|&ranks| (ranks, OTHERS.join(","), "8,65536,16777216,134217728", "float"));
    steps.extend(nccl_steps(setting, cells));
    steps
}

pub(super) fn all_tests(setting: &Setting) -> Vec<Step> {
    let each = setting.either(8, 60);
    let tests = |seconds: u64, executable: &str, arguments: &str| {
        setting.tests(setting.either(seconds, 200), executable, &format!("{arguments} --each {each}"))
    };
    vec![
        tests(20, "test-driver", ""),
        tests(40, "test-collectives", &format!("--without {SMOKE}")),
        // Modules that use a device.
        tests(20, "test-parallel", "--only tensor_parallel::tests::failures::"),
        tests(60, "test-trainer", "--only train::tests::device::"),
    ]
}

pub(super) fn processes(setting: &Setting) -> Vec<Step> {
    let sizes = setting.either("8,64K,16M", "8,64K");
    let mut steps = vec![
        setting.experiments(6, "sharing"),
        setting.perf(12, &format!("all_reduce -N 2 --sizes {sizes} -n 10 -w 2")),
    ];
    if crate::cargo::is_installed("nvidia-cuda-mps-control") {
        let unisono = setting.folder.join("unisono").display().to_string();
        steps.push(Step::new("sh", 15, "-c").arg(include_str!("mps.sh")).arg(unisono).arg(sizes));
    } else {
        steps.push(skipped("MPS", "there is no nvidia-cuda-mps-control"));
    }
    steps
}

pub(super) fn tools(setting: &Setting) -> Vec<Step> {
    let driver = setting.folder.join("test-driver").display().to_string();
    let experiments = setting.folder.join("experiments").display().to_string();
    let mut steps = Vec::new();
    match crate::cargo::is_installed("compute-sanitizer") {
        // The tool runs one grid at a time, so tests with one grid only.
        true => steps.push(Step::new(
            "compute-sanitizer",
            15,
            &format!(
                "--tool memcheck --error-exitcode 9 {driver} launches::reductions_are_as_on_the_host --exact"
            ),
        )),
        false => steps.push(skipped("memcheck", "there is no compute-sanitizer")),
    }
    match crate::cargo::is_installed("ncu") {
        true => steps.push(Step::new(
            "ncu",
            15,
            &format!(
                "--csv --launch-count 1 --kernel-name regex:reduce_copy --metrics \
                 dram__bytes.sum,lts__t_sector_hit_rate.pct,gpu__time_duration.sum {experiments} --device cuda reductions"
            ),
        )),
        false => steps.push(skipped("ncu", "there is no ncu")),
    }
    steps
}
