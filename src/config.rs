//! The settings of a communicator, in one struct that code or the environment fills.

mod check;
mod env;
pub(crate) mod interface;
mod setters;
pub(crate) mod shown;

pub use env::parse_algorithms;
pub use interface::Interface;

use crate::schedule::{Algorithm, Collective};
use crate::tuning::TuningTable;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use unisono_transports::{Geometry, WaitMode};

/// Selects the transport between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Transport {
    /// Shared memory between ranks of one host, TCP between hosts.
    #[default]
    Auto,
    /// Shared memory between all ranks. If that is not possible, connecting fails.
    Shm,
    /// TCP between all ranks, even within a host.
    Tcp,
}

impl FromStr for Transport {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "auto" => Ok(Transport::Auto),
            "shm" => Ok(Transport::Shm),
            "tcp" => Ok(Transport::Tcp),
            other => Err(format!("`{other}` is none of auto, shm, tcp")),
        }
    }
}

/// Selects the order in which the operands of a reduction are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ReductionOrder {
    /// The order that suits the algorithm. It depends only on the number of ranks, on an element's
    /// index in its buffer, and on the facts that select the algorithm. These are sizes, the
    /// transport, symmetric or ordinary memory, and ranks that share cores.
    #[default]
    Unspecified,
    /// The order of the ranks, from 0 up. The result of an element then has the same bits over
    /// every transport, in every collective that reduces it, and at every index of a buffer.
    RankOrder,
}

impl FromStr for ReductionOrder {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "any" => Ok(ReductionOrder::Unspecified),
            "rank" => Ok(ReductionOrder::RankOrder),
            other => Err(format!("`{other}` is none of any, rank")),
        }
    }
}

/// The settings of a communicator.
///
/// All ranks must use the same sizes, and compare them when they connect. Every call that makes a
/// communicator [checks](Config::check) its settings first.
///
/// ```
/// use std::time::Duration;
/// use unisono::{Communicator, Config, Transport};
///
/// let config = Config::default()
///     .with_timeout(Duration::from_secs(5))
///     .with_transport(Transport::Tcp);
/// let comm = Communicator::builder().config(&config).local(1)?.remove(0);
/// assert_eq!(comm.config().timeout, Duration::from_secs(5));
/// # Ok::<(), unisono::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The time without any data movement after which an operation fails. [`Duration::MAX`] means
    /// no limit. `UNISONO_TIMEOUT_MS` sets this value, and the default is 30 s.
    pub timeout: Duration,
    /// The time for which ranks wait until all others have joined. [`Duration::MAX`] means no
    /// limit. `UNISONO_JOIN_TIMEOUT_MS` sets this value, and the default is 30 s.
    pub join_timeout: Duration,
    /// The transport between ranks. `UNISONO_TRANSPORT` is `auto`, `shm` or `tcp`, and the default
    /// is `auto`.
    pub transport: Transport,
    /// The number of slices of one operation that move at the same time. With two or more, a rank
    /// goes on with another slice while one slice waits for a peer. Ranks that share cores usually
    /// use only one channel. `UNISONO_CHANNELS` sets this value, and the default is 2.
    pub channels: usize,
    /// The number of messages that a FIFO holds. `UNISONO_FIFO_DEPTH` sets this value, and the
    /// default is 4.
    pub fifo_depth: usize,
    /// The largest message, in bytes. `UNISONO_FIFO_SLOT_BYTES` sets this value, and the default is
    /// 512 KiB.
    pub fifo_slot_bytes: usize,
    /// The shared memory of one rank in which direct algorithms stage data, in bytes.
    /// `UNISONO_SHM_WINDOW_BYTES` sets this value, and the default is 4 MiB.
    pub shm_window_bytes: usize,
    /// The most memory that [`Communicator::alloc_symmetric`](crate::Communicator::alloc_symmetric)
    /// gives one rank, in bytes. It takes only address space until it is used.
    /// `UNISONO_SYMMETRIC_HEAP_BYTES` sets this value, and the default is 64 GiB.
    pub symmetric_heap_bytes: usize,
    /// The way in which operations wait for other ranks. `UNISONO_WAIT` is `auto`, `spin`, `yield`
    /// or `block`, and the default is `auto`.
    pub wait: WaitMode,
    /// The number of TCP connections for data between two ranks. `UNISONO_SOCKETS_PER_PEER` sets
    /// this value, and the default is 2.
    pub sockets_per_peer: usize,
    /// Encrypts all TCP traffic. Each connection has its own keys. Shared memory and local sockets
    /// are never encrypted, because their data does not leave the host. All ranks must use the same
    /// value. `UNISONO_ENCRYPTION` is `on` or `off`, and the default is `off`.
    pub encryption: bool,
    /// The address on which TCP listens and to which peers connect. The other ranks also meet rank
    /// 0 at this address, at the port of `MASTER_PORT` or of the id. `UNISONO_BIND_ADDR` sets this
    /// value, and the default is the address from which this rank reaches rank 0.
    pub bind_addr: Option<Interface>,
    /// The order in which operands are combined. Algorithms with another order are not used.
    /// `UNISONO_REDUCTION_ORDER` is `any` or `rank`, and the default is `any`.
    pub reduction_order: ReductionOrder,
    /// The algorithms to use instead of the library's choice. `UNISONO_ALGO` is a name such as
    /// `ring`, which applies to every collective that has such an algorithm, or a list such as
    /// `all_reduce=ring,broadcast=tree`. The default is none.
    pub algorithms: Vec<&'static Algorithm>,
    /// The thresholds between algorithms. The built-in table covers all other cases.
    /// `UNISONO_TUNING_FILE` names a file that `unisono tune` wrote.
    pub tuning_table: TuningTable,
    /// The cache, in bytes, that the staged data of all ranks of a host may fill. Slices and
    /// channels are chosen so that the data fits. All ranks must use the same value.
    /// `UNISONO_CACHE_BYTES` sets this value, and the default is 8 MiB.
    pub cache_bytes: usize,
    /// The smallest size of all ranks' buffers together, in bytes, for which results of direct
    /// algorithms bypass the cache. `UNISONO_NONTEMPORAL_MIN_BYTES` sets this value, and the
    /// default is 20 MiB.
    pub nontemporal_min_bytes: usize,
    /// The settings of ranks on GPUs, which have separate FIFOs and windows.
    pub gpu: DeviceConfig,
    /// Checks inputs in CPU memory before they are sent. If an input has a NaN or an infinity, all
    /// ranks get an error that names the first such element. The check reads the whole input once.
    /// `UNISONO_CHECK_FINITE` is `on` or `off`, and the default is `off`.
    pub check_finite: bool,
    /// The folder into which every rank writes its flight record when an operation fails, for
    /// `unisono analyze`. `UNISONO_FLIGHT_RECORDER_DIR` sets this value, and the default is none.
    pub flight_recorder_dir: Option<PathBuf>,
    /// The folder into which every rank writes a trace of its operations, for Perfetto. `unisono
    /// trace` merges the files. Each operation on CPU memory then reads the clock twice and writes
    /// a line of text. `UNISONO_TRACE_DIR` sets this value, and the default is none.
    pub trace_dir: Option<PathBuf>,
    /// Answers `unisono status` from this process. `UNISONO_STATUS_SERVER` is `on` or `off`, and
    /// the default is `off`. `unisono run` sets it to `on`.
    pub status_server: bool,
    /// The name of this host and process in errors.
    pub host: String,
}

/// The settings of ranks on GPUs. All ranks must use the same sizes, which are memory of the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceConfig {
    /// The number of slices of one operation that move at the same time. Each has one or two thread
    /// blocks. Fewer are used if not all blocks can run at once. A communicator on a GPU that
    /// already has other communicators gets at most half of the free blocks. `UNISONO_GPU_CHANNELS`
    /// sets this value, and the default is 8.
    pub channels: usize,
    /// The number of messages that a FIFO holds. `UNISONO_GPU_FIFO_DEPTH` sets this value, and the
    /// default is 4.
    pub fifo_depth: usize,
    /// The largest message, in bytes. Messages are shorter if the FIFOs between all ranks would
    /// take more than 128 MiB of a GPU. `UNISONO_GPU_FIFO_SLOT_BYTES` sets this value, and the
    /// default is 128 KiB.
    pub fifo_slot_bytes: usize,
    /// The memory of one rank in which direct algorithms stage data, in bytes.
    /// `UNISONO_GPU_WINDOW_BYTES` sets this value, and the default is 4 MiB.
    pub window_bytes: usize,
    /// Lets GPUs access each other's memory if they can. Otherwise all data goes through the host.
    /// `UNISONO_GPU_P2P` is `on` or `off`, and the default is `on`.
    pub peer_to_peer: bool,
    /// Sends the smallest messages in lines of 16 bytes, of which 12 bytes are data. This needs
    /// GPUs that store such a line at once, so all ranks must be on one GPU or be connected by
    /// NVLinks. Otherwise half of every line is flags. `UNISONO_GPU_LL128` is `on` or `off`, and
    /// the default is `on`.
    pub ll128: bool,
    /// The time after which a kernel stops waiting for a peer that is alive. It is long, because a
    /// rank can be late for good reasons, such as a checkpoint or a compilation. If a peer has
    /// left, the wait ends at once. `UNISONO_GPU_TIMEOUT_MS` sets this value, and the default is 10
    /// minutes.
    pub timeout: Duration,
    /// The way in which kernels are launched. `UNISONO_GPU_LAUNCH` is `plain` or `cooperative`, and
    /// the default is `plain`.
    pub launch: LaunchMode,
}

/// The way in which the kernels of collectives are launched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LaunchMode {
    /// Ordinary launches. Before them, ranks reserve the resources that their blocks need.
    #[default]
    Plain,
    /// Cooperative launches, for which the driver checks again that all blocks can run at once.
    /// They take longer, and help to find the cause of a hang.
    Cooperative,
}

impl FromStr for LaunchMode {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "plain" => Ok(LaunchMode::Plain),
            "cooperative" => Ok(LaunchMode::Cooperative),
            other => Err(format!("`{other}` is none of plain, cooperative")),
        }
    }
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self {
            channels: 8,
            fifo_depth: 4,
            fifo_slot_bytes: 128 << 10,
            window_bytes: 4 << 20,
            peer_to_peer: true,
            ll128: true,
            timeout: Duration::from_secs(600),
            launch: LaunchMode::Plain,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            join_timeout: Duration::from_secs(30),
            transport: Transport::Auto,
            channels: 2,
            fifo_depth: 4,
            fifo_slot_bytes: 512 << 10,
            shm_window_bytes: 4 << 20,
            symmetric_heap_bytes: 64 << 30,
            wait: WaitMode::Auto,
            sockets_per_peer: 2,
            encryption: false,
            bind_addr: None,
            reduction_order: ReductionOrder::Unspecified,
            algorithms: Vec::new(),
            tuning_table: TuningTable::default(),
            cache_bytes: 8 << 20,
            nontemporal_min_bytes: 20 << 20,
            gpu: DeviceConfig::default(),
            check_finite: false,
            flight_recorder_dir: None,
            trace_dir: None,
            status_server: false,
            host: host_name(),
        }
    }
}

impl Config {
    /// Returns the algorithm that these settings name for `collective`.
    pub(crate) fn algorithm_override(&self, collective: Collective) -> Option<&'static Algorithm> {
        self.algorithms.iter().copied().find(|row| row.collective == collective)
    }

    /// Returns the sizes that must be equal on all ranks, for callers that make fabrics themselves.
    pub fn geometry(&self) -> Geometry {
        let lanes = lanes_for(self.channels);
        Geometry {
            lanes,
            slots: self.fifo_depth,
            slot_bytes: self.fifo_slot_bytes,
            signal_lanes: self.channels * LANES_PER_CHANNEL + 1,
            window_bytes: self.shm_window_bytes,
            heap_bytes: self.symmetric_heap_bytes,
        }
    }
}

/// Number of lanes of each channel. There are two because a program can use two.
pub(crate) const LANES_PER_CHANNEL: usize = 2;

/// Returns the number of lanes of a fabric with `channels` channels. Each channel has two lanes,
/// sends and receives have one, and messages with tags have one.
pub(crate) const fn lanes_for(channels: usize) -> usize {
    channels * LANES_PER_CHANNEL + 2
}

/// Returns the number of channels that have room in `lanes` lanes.
pub(crate) const fn channels_of(lanes: usize) -> usize {
    (lanes - 2) / LANES_PER_CHANNEL
}

/// Returns the lane of sends and receives.
pub(crate) const fn send_recv_lane(channels: usize) -> usize {
    channels * LANES_PER_CHANNEL
}

/// Returns the lane of messages with tags.
pub(crate) const fn message_lane(channels: usize) -> usize {
    channels * LANES_PER_CHANNEL + 1
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{} (pid {})", name.trim(), std::process::id())
}
