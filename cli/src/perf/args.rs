//! The flags: those of nccl-tests with their meaning, and further ones.

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
    /// Add this many bytes from size to size, instead of multiplying.
    #[arg(short = 'i', long = "stepbytes", value_parser = size::parse)]
    step_bytes: Option<usize>,
    /// Multiply by this from size to size.
    #[arg(short = 'f', long = "stepfactor", default_value_t = 2)]
    step_factor: usize,
    /// Sizes separated by commas, in place of -b, -e, -i and -f.
    #[arg(long = "sizes", value_delimiter = ',', value_parser = size::parse)]
    list: Option<Vec<usize>>,
    /// Report the median over samples that last this many milliseconds for each size. A sample is a
    /// barrier and about 1 ms of back-to-back calls; the slowest rank counts. Out of place only,
    /// broadcasts in place.
    #[arg(long, value_name = "MILLISECONDS", conflicts_with_all = ["iterations", "per_iteration", "aggregate", "blocking"])]
    pub(super) samples: Option<u64>,
    /// Timed iterations of each size; without it, as many as take some hundredths of a second.
    #[arg(short = 'n', long = "iters")]
    pub(super) iterations: Option<usize>,
    /// Warmup iterations.
    #[arg(short = 'w', long = "warmup_iters", default_value_t = 5)]
    pub(super) warmup: usize,
    /// Operations in one iteration.
    #[arg(short = 'm', long = "agg_iters", default_value_t = 1)]
    pub(super) aggregate: usize,
    /// Reduction: sum, prod, min, max, avg, mulsum or all.
    #[arg(short = 'o', long = "op", default_value = "sum")]
    op: String,
    /// Element type: float, half, bfloat16, double, int8 ... fp8_e5m2, or all.
    #[arg(short = 'd', long = "datatype", default_value = "float")]
    dtype: String,
    /// Root rank, or all.
    #[arg(short = 'r', long = "root", default_value = "0")]
    root: String,
    /// Verify results (0: do not).
    #[arg(short = 'c', long = "check", default_value_t = 1)]
    pub(super) check: usize,
    /// 1: blocking calls; 0: the iterations run as one asynchronous operation.
    #[arg(short = 'z', long = "blocking", default_value_t = 1)]
    pub(super) blocking: usize,
    /// Time reported: 0 rank 0's, 1 average, 2 minimum, 3 maximum over ranks.
    #[arg(short = 'a', long = "average", default_value_t = 1)]
    pub(super) average: usize,
    /// Write the results to this file as JSON.
    #[arg(short = 'J', long = "json")]
    pub(super) json: Option<PathBuf>,
    /// Print each row as a JSON object on a line of its own as soon as it is measured, in place of
    /// the table.
    #[arg(long)]
    pub(super) jsonl: bool,
    /// Also time every iteration by itself, and report the spread.
    #[arg(short = 'I', long = "per-iteration")]
    pub(super) per_iteration: bool,
    /// On GPUs: replay a graph of the captured iterations this many times; 0 enqueues them one by
    /// one.
    #[arg(short = 'G', long = "cudagraph", default_value_t = 0)]
    pub(super) graphs: usize,
    /// Ranks as threads of this process.
    #[arg(short = 't', long = "nthreads")]
    pub(super) threads: Option<usize>,
    /// Ranks as processes that this command starts.
    #[arg(short = 'N', long)]
    pub(super) ranks: Option<usize>,
    /// Memory of the buffers.
    #[arg(long, value_enum, default_value = "cpu")]
    pub(super) device: Device,
    /// Algorithm by name, `auto`, or a list such as all_reduce=ring.
    #[arg(long, default_value = "auto")]
    pub(super) algo: String,
    /// Measure each size with each of these algorithms, separated by commas, or with all that run
    /// here.
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
    /// auto, shm or tcp.
    #[arg(long)]
    transport: Option<Transport>,
    /// Encrypt TCP connections.
    #[arg(long)]
    encrypt: bool,
    /// Milliseconds without progress after which an operation fails.
    #[arg(long)]
    timeout_ms: Option<u64>,
    /// Print the process of each rank.
    #[arg(short, long)]
    pub(super) verbose: bool,
    /// Join the world that the environment describes.
    #[arg(long, hide = true)]
    pub(super) in_world: bool,
    /// Number of channels.
    #[arg(long)]
    channels: Option<usize>,
    /// Binding of CPU ranks: to cores in order (neighbors share a core when there are more ranks
    /// than cores), or none. [default: core]
    #[arg(long, value_enum)]
    pub(super) bind: Option<Bind>,
    /// Memory of the buffers: 0 and 1 ordinary, 2 symmetric memory (zero-copy).
    #[arg(short = 'R', long = "local_register", value_parser = clap::value_parser!(u8).range(0..=2), default_value = "0")]
    pub(super) register: u8,
    /// Report each row's share of the roofline.
    #[arg(long)]
    pub(super) report_roofline: bool,
    /// Skip the roofline, for many short runs in a row.
    #[arg(long, hide = true)]
    no_roofline: bool,
    /// With --samples: shared page on which the first and the last rank measure the flag latency
    /// between their cores.
    #[arg(long, hide = true, requires = "samples")]
    pub(super) flag_page: Option<PathBuf>,
    /// Report the memory of a communicator instead of times: idle, after 8 bytes, after 16 MiB.
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

    /// Refuses arguments that cannot be measured, before any rank is started.
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
