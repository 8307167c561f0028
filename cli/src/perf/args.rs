//! The flags of `perf`. They include the flags of nccl-tests, with the same meaning.

use super::device::{self, Device};
use super::json;
use crate::bind::Bind;
use crate::perf::op_case::{OpCase, OpKind};
use std::path::PathBuf;
use std::time::Duration;
use unisono::{Avg, Communicator, Config, DType, Max, Min, ReduceKind, Transport, parse_algorithms};
use unisono_bench_support::size;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Collective to measure.
    #[arg(value_enum)]
    pub(super) collective: OpKind,
    /// Smallest size in bytes; K, M and G are understood.
    #[arg(short = 'b', long = "minbytes", value_parser = size::parse, default_value = "8")]
    min_bytes: usize,
    /// Largest size in bytes.
    #[arg(short = 'e', long = "maxbytes", value_parser = size::parse, default_value = "64M")]
    max_bytes: usize,
    /// Add this many bytes to get from each size to the next, instead of multiplying.
    #[arg(short = 'i', long = "stepbytes", value_parser = size::parse)]
    step_bytes: Option<usize>,
    /// Multiply each size by this number to get the next size.
    #[arg(short = 'f', long = "stepfactor", default_value_t = 2)]
    step_factor: usize,
    /// List of sizes separated by commas, which replaces -b, -e, -i and -f.
    #[arg(long = "sizes", value_delimiter = ',', value_parser = size::parse)]
    list: Option<Vec<usize>>,
    /// For each size, take samples for this many milliseconds in total and report their median. A
    /// sample is a barrier and about 1 ms of back-to-back calls, and its time is that of the
    /// slowest rank. Operations run out of place, except broadcasts, which exist only in place.
    #[arg(long, value_name = "MILLISECONDS", conflicts_with_all = ["iterations", "per_iteration", "aggregate", "blocking"])]
    pub(super) samples: Option<u64>,
    /// Number of timed iterations of each size. By default, all iterations of a size together take
    /// some hundredths of a second.
    #[arg(short = 'n', long = "iters")]
    pub(super) iterations: Option<usize>,
    /// Number of warmup iterations.
    #[arg(short = 'w', long = "warmup_iters", default_value_t = 5)]
    pub(super) warmup: usize,
    /// Number of operations in one iteration.
    #[arg(short = 'm', long = "agg_iters", default_value_t = 1)]
    pub(super) aggregate: usize,
    /// Reduction: sum, prod, min, max, avg, mulsum or all.
    #[arg(short = 'o', long = "op", default_value = "sum")]
    op: String,
    /// Element type: float, half, bfloat16, double, int8 ... fp8_e5m2, or all.
    #[arg(short = 'd', long = "datatype", default_value = "float")]
    dtype: String,
    /// Root rank, or `all` to measure with each rank as the root.
    #[arg(short = 'r', long = "root", default_value = "0")]
    root: String,
    /// Verify the results, unless this number is 0.
    #[arg(short = 'c', long = "check", default_value_t = 1)]
    pub(super) check: usize,
    /// 1: make blocking calls. 0: run the iterations as one asynchronous operation.
    #[arg(short = 'z', long = "blocking", default_value_t = 1)]
    pub(super) blocking: usize,
    /// Time to report: 0 for the time of rank 0, 1 for the average over all ranks, 2 for the
    /// minimum and 3 for the maximum.
    #[arg(short = 'a', long = "average", default_value_t = 1)]
    pub(super) average: usize,
    /// Write the results to this file as JSON.
    #[arg(short = 'J', long = "json")]
    pub(super) json: Option<PathBuf>,
    /// Instead of a table, print each row as a JSON object on its own line as soon as it is
    /// measured.
    #[arg(long)]
    pub(super) jsonl: bool,
    /// Also time every iteration separately, and report the spread of these times.
    #[arg(short = 'I', long = "per-iteration")]
    pub(super) per_iteration: bool,
    /// On GPUs, capture the iterations in a graph and replay it this many times. 0 enqueues the
    /// iterations one by one.
    #[arg(short = 'G', long = "cudagraph", default_value_t = 0)]
    pub(super) graphs: usize,
    /// Number of ranks that run as threads of this process.
    #[arg(short = 't', long = "nthreads")]
    pub(super) threads: Option<usize>,
    /// Number of ranks that this command starts as processes.
    #[arg(short = 'N', long)]
    pub(super) ranks: Option<usize>,
    /// Kind of memory that holds the buffers.
    #[arg(long, value_enum, default_value = "cpu")]
    pub(super) device: Device,
    /// Name of an algorithm, `auto`, or a list such as all_reduce=ring.
    #[arg(long, default_value = "auto")]
    pub(super) algo: String,
    /// Measure each size with each of these algorithms, whose names are separated by commas.
    /// Without names, measure all algorithms that support this number of ranks.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "all",
        conflicts_with_all = ["algo", "memory"]
    )]
    pub(super) compare: Option<Vec<String>>,
    /// Transport: auto, shm or tcp.
    #[arg(long)]
    transport: Option<Transport>,
    /// Encrypt TCP connections.
    #[arg(long)]
    encrypt: bool,
    /// Time in milliseconds after which an operation fails if it makes no progress.
    #[arg(long)]
    timeout_ms: Option<u64>,
    /// Print the process id of each rank.
    #[arg(short, long)]
    pub(super) verbose: bool,
    /// Join the job that the environment describes.
    #[arg(long, hide = true)]
    pub(super) in_world: bool,
    /// Number of channels.
    #[arg(long)]
    channels: Option<usize>,
    /// Binding of CPU ranks to cores. If there are more ranks than cores, neighboring ranks share a
    /// core. [default: core]
    #[arg(long, value_enum)]
    pub(super) bind: Option<Bind>,
    /// Memory of the buffers: 0 and 1 for ordinary memory, 2 for symmetric memory (zero-copy).
    #[arg(short = 'R', long = "local_register", value_parser = clap::value_parser!(u8).range(0..=2), default_value = "0")]
    pub(super) register: u8,
    /// Report how close each row comes to the roofline.
    #[arg(long)]
    pub(super) report_roofline: bool,
    /// Skip the measurement of the roofline, which saves time in many short runs.
    #[arg(long, hide = true)]
    no_roofline: bool,
    /// With --samples, a shared page in which the first and the last rank measure the flag latency
    /// between their cores.
    #[arg(long, hide = true, requires = "samples")]
    pub(super) flag_page: Option<PathBuf>,
    /// Instead of times, report the memory of a communicator: when it is new, after an operation of
    /// 8 bytes, and after an operation of 16 MiB.
    #[arg(long, conflicts_with = "threads")]
    pub(super) memory: bool,
    /// Flip one element before verification, to test the verification.
    #[arg(long, hide = true)]
    pub(super) corrupt: bool,
    /// Give rank 1 one element more than the others, to test the detection.
    #[arg(long, hide = true)]
    pub(super) mismatch: bool,
}

impl Arguments {
    /// Reduces the times of all ranks as `-a` requests.
    pub(super) fn reduce_time(&self, comm: &Communicator, micros: f64) -> unisono::Result<f64> {
        let mut value = [micros];
        match self.average {
            0 => comm.broadcast(&mut value, 0)?,
            1 => comm.all_reduce(&mut value, Avg)?,
            2 => comm.all_reduce(&mut value, Min)?,
            _ => comm.all_reduce(&mut value, Max)?,
        }
        Ok(value[0])
    }

    /// Refuses arguments that cannot be measured. This happens before any rank is started.
    pub(super) fn check(&self) -> Result<(), String> {
        self.config()?;
        device::check(self)?;
        if self.min_bytes > self.max_bytes || self.min_bytes == 0 {
            return Err(format!(
                "there is no size from {} to {}; raise -e, or lower -b to at least 1",
                self.min_bytes, self.max_bytes
            ));
        }
        if self.step_factor < 2 && self.step_bytes.is_none() || self.step_bytes == Some(0) {
            return Err("sizes must grow: -f 2 or more, or -i".to_owned());
        }
        if self.ranks == Some(0)
            || self.threads == Some(0)
            || self.iterations == Some(0)
            || self.aggregate == 0
        {
            return Err("ranks, threads, iterations and operations must be at least one".to_owned());
        }
        if self.memory && self.collective != OpKind::AllReduce {
            return Err("--memory goes with all_reduce".to_owned());
        }
        if self.average > 3 || self.blocking > 1 {
            return Err("-a goes from 0 to 3 and -z is 0 or 1".to_owned());
        }
        if self.op != "all" && self.ops().is_empty() {
            return Err(format!(
                "`{}` is not a reduction; known are {}",
                self.op,
                join_names(&ReduceKind::ON_GPU.map(ReduceKind::name))
            ));
        }
        if Dtypes::of(self).is_empty() {
            return Err(format!(
                "`{}` is not an element type; known are {}",
                self.dtype,
                join_names(&DType::ON_GPU.map(DType::name))
            ));
        }
        if self.root != "all" && self.root.parse::<usize>().is_err() {
            return Err(format!("`{}` is not a rank; --root takes a number or all", self.root));
        }
        // An unwritable file is reported before hours of measuring, not after.
        self.json.as_deref().map_or(Ok(()), json::check_writable)
    }

    pub(super) fn config(&self) -> Result<Config, String> {
        let mut config = Config::from_env().map_err(|error| error.to_string())?;
        if self.algo != "auto" {
            config.algorithms = parse_algorithms(&self.algo)?;
        }
        config.transport = self.transport.unwrap_or(config.transport);
        config.encryption |= self.encrypt;
        config.timeout = self.timeout_ms.map_or(config.timeout, Duration::from_millis);
        config.gpu.timeout = self.timeout_ms.map_or(config.gpu.timeout, Duration::from_millis);
        config.channels = self.channels.unwrap_or(config.channels).max(1);
        config.gpu.channels = self.channels.unwrap_or(config.gpu.channels).max(1);
        Ok(config)
    }

    pub(super) fn wants_roofline(&self) -> bool {
        self.report_roofline || self.json.is_some() && !self.no_roofline
    }

    /// Returns the sizes in the order of the table. There may be more than memory holds.
    pub(super) fn sizes(&self) -> impl Iterator<Item = usize> + '_ {
        let (step, factor, last) = (self.step_bytes, self.step_factor, self.max_bytes);
        let next =
            move |size: &usize| step.map_or_else(|| size.checked_mul(factor), |step| size.checked_add(step));
        let first = self.list.is_none().then_some(self.min_bytes);
        let steps = std::iter::successors(first, next).take_while(move |&size| size <= last);
        let sizes = self.list.iter().flatten().copied().chain(steps);
        sizes.take(if self.collective == OpKind::Barrier { 1 } else { usize::MAX })
    }

    pub(super) fn ops(&self) -> Vec<ReduceKind> {
        if !self.collective.reduces() {
            return vec![ReduceKind::Sum];
        }
        ReduceKind::ON_GPU.into_iter().filter(|op| self.op == "all" || op.name() == self.op).collect()
    }

    pub(super) fn roots(&self, ranks: usize) -> Vec<usize> {
        match self.root.parse() {
            _ if !self.collective.has_root() => vec![0],
            Ok(root) => vec![root],
            Err(_) => (0..ranks).collect(),
        }
    }

    /// Types, operations, roots and sizes, in the order of the table.
    pub(super) fn cases(&self, ranks: usize) -> impl Iterator<Item = (DType, OpCase, usize)> + '_ {
        let tests = move || {
            let ops = self.ops().into_iter();
            ops.flat_map(move |op: ReduceKind| {
                self.roots(ranks).into_iter().map(move |root| OpCase::new(self.collective, op, root))
            })
        };
        let dtypes = Dtypes::of(self).into_iter();
        dtypes.flat_map(move |dtype| {
            tests().flat_map(move |test| self.sizes().map(move |size| (dtype, test, size)))
        })
    }
}

/// Element types of the arguments.
pub(super) struct Dtypes;

impl Dtypes {
    pub(super) fn of(arguments: &Arguments) -> Vec<DType> {
        let alias = match arguments.dtype.as_str() {
            "f16" | "float16" => "half",
            "bf16" => "bfloat16",
            "f32" | "float32" => "float",
            "f64" | "float64" => "double",
            other => other,
        };
        DType::ON_GPU.into_iter().filter(|dtype| alias == "all" || dtype.name() == alias).collect()
    }
}

fn join_names(names: &[&str]) -> String {
    names.join(", ")
}
