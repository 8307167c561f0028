//! Every setting there is: one struct, read from the environment once.

use crate::error::{Error, Result};
use crate::schedule::{Algorithm, Collective};
use crate::tuning::TuningTable;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use unisono_transports::Geometry;

/// Which transport ranks use between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Transport {
    /// Shared memory between ranks of one host, TCP between hosts.
    #[default]
    Auto,
    /// Shared memory, or an error.
    Shm,
    /// TCP, also within a host.
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

/// In which order the operands of a reduction are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ReductionOrder {
    /// As suits the algorithm: fixed by the ranks, an element's place in its buffer, and what decides on the algorithm:
    /// sizes, transport, whether all ranks have lent their buffers, and whether they share cores.
    #[default]
    Unspecified,
    /// That of the ranks, from 0 on: the same bits for an element whatever the transport, the collective that
    /// reduces it, and the buffer it lies in.
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

/// The settings of a communicator. All ranks must agree on the sizes; they are compared when ranks meet.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long nothing may move before an operation fails. `UNISONO_TIMEOUT_MS`, 30 s.
    pub timeout: Duration,
    /// How long ranks wait for each other to appear. `UNISONO_JOIN_TIMEOUT_MS`, 30 s.
    pub join_timeout: Duration,
    /// Which transport to use. `UNISONO_TRANSPORT`: auto, shm or tcp.
    pub transport: Transport,
    /// Pieces of one operation in flight at once: while one waits, another goes on. Ranks that share cores have one
    /// mostly. `UNISONO_CHANNELS`, 2.
    pub channels: usize,
    /// Messages that a FIFO holds. `UNISONO_FIFO_DEPTH`, 4.
    pub fifo_depth: usize,
    /// Largest message, in bytes. `UNISONO_FIFO_SLOT_BYTES`, 512 KiB.
    pub fifo_slot_bytes: usize,
    /// Memory of one rank that direct algorithms stage data in. `UNISONO_SHM_WINDOW_BYTES`, 4 MiB.
    pub shm_window_bytes: usize,
    /// Most memory that [`Communicator::alloc_symmetric`](crate::Communicator::alloc_symmetric) gives one rank: address space, which
    /// costs nothing until it is used. `UNISONO_SYMMETRIC_HEAP_BYTES`, 64 GiB.
    pub symmetric_heap_bytes: usize,
    /// TCP connections for data between two ranks. `UNISONO_SOCKETS_PER_PEER`, 2.
    pub sockets_per_peer: usize,
    /// Whether everything that travels over TCP is encrypted, with keys of each connection's own; shared memory and
    /// local sockets, which do not leave the host, never are. All ranks must agree. `UNISONO_ENCRYPTION`: on or off.
    pub encryption: bool,
    /// Address that TCP listens on and is reached at. `UNISONO_BIND_ADDR`, loopback.
    pub bind_addr: Option<IpAddr>,
    /// In which order operands are combined; algorithms that combine them otherwise are not used. `UNISONO_REDUCTION_ORDER`:
    /// any or rank.
    pub reduction_order: ReductionOrder,
    /// Algorithms to use instead of the selector's choice: `ring` for every collective that has
    /// one, or `all_reduce=ring,broadcast=tree`. `UNISONO_ALGO`.
    pub algorithms: Vec<&'static Algorithm>,
    /// Thresholds between algorithms; what it does not cover, the built-in table does. `UNISONO_TUNING_FILE` names a
    /// file, as `unisono tune` writes it.
    pub tuning_table: TuningTable,
    /// Cache that what all ranks of a host have staged may fill: data is cut into slices and staged on so many
    /// channels that it stays there. All ranks must agree. `UNISONO_CACHE_BYTES`, 8 MiB.
    pub cache_bytes: usize,
    /// When the buffers of all ranks have this many bytes or more, results of direct algorithms bypass the cache.
    /// `UNISONO_NONTEMPORAL_MIN_BYTES`, 20 MiB.
    pub nontemporal_min_bytes: usize,
    /// The same of ranks on GPUs, which have FIFOs and windows of their own.
    pub gpu: DeviceConfig,
    /// Whether what ranks give in memory of the CPU is looked at before it is sent: NaN and infinities are then errors, on all
    /// ranks, that name the first. It costs a pass over the input. `UNISONO_CHECK_FINITE`: on or off, off.
    pub check_finite: bool,
    /// Folder into which every rank writes its flight record when an operation fails; `unisono analyze` reads
    /// them. `UNISONO_FLIGHT_RECORDER_DIR`, none.
    pub flight_recorder_dir: Option<PathBuf>,
    /// Folder into which every rank writes what it does when, as it goes on, for Perfetto; `unisono trace` puts the files
    /// together. Two readings of the clock and a line of text for each operation on memory of the CPU. `UNISONO_TRACE_DIR`, none.
    pub trace_dir: Option<PathBuf>,
    /// Whether `unisono status` may ask this process what it does. `UNISONO_STATUS_SERVER`: on or off; `unisono run` says on.
    pub status_server: bool,
    /// Name of this host in errors.
    pub host: String,
}

/// Sizes of what ranks on GPUs have between them, in memory of the GPU. All ranks must agree on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceConfig {
    /// Pieces of one operation in flight at once, each of them one or two blocks of threads; fewer where not all
    /// blocks could run at once. `UNISONO_GPU_CHANNELS`, 8.
    pub channels: usize,
    /// Messages that a FIFO holds. `UNISONO_GPU_FIFO_DEPTH`, 4.
    pub fifo_depth: usize,
    /// Largest message, in bytes. `UNISONO_GPU_FIFO_SLOT_BYTES`, 128 KiB.
    pub fifo_slot_bytes: usize,
    /// Memory of one rank that direct algorithms stage data in. `UNISONO_GPU_WINDOW_BYTES`, 4 MiB.
    pub window_bytes: usize,
    /// Whether GPUs reach each other's memory where they can; else all goes by way of the host. `UNISONO_GPU_P2P`:
    /// on or off.
    pub peer_to_peer: bool,
    /// Whether the smallest messages go in lines of 16 bytes that are stored whole, of which 12 are data, where the GPUs of all
    /// ranks know how; else half of every line is flags. `UNISONO_GPU_LL128`: on or off.
    pub ll128: bool,
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
    /// The defaults, changed by `UNISONO_*` variables of the environment.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUsage`](crate::ErrorKind::InvalidUsage) names a variable that is unknown or has an impossible value.
    pub fn from_env() -> Result<Self> {
        let mut config = Self::default();
        for (name, value) in std::env::vars_os() {
            let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
            if let Some(setting) = name.strip_prefix(ENV_PREFIX) {
                config
                    .set(setting, &value)
                    .map_err(|why| Error::invalid_usage(format!("{name}={value}: {why}")))?;
            }
        }
        tracing::debug!(?config, "settings");
        Ok(config)
    }

    /// Sets one value by its name in the environment, without the prefix.
    pub(crate) fn set(&mut self, setting: &str, value: &str) -> std::result::Result<(), String> {
        match setting {
            "TIMEOUT_MS" => {
                self.timeout = Duration::from_millis(parse_number(value, 100..=TIMEOUT_MS_MAX)? as u64)
            }
            "JOIN_TIMEOUT_MS" => {
                self.join_timeout = Duration::from_millis(parse_number(value, 100..=TIMEOUT_MS_MAX)? as u64)
            }
            "TRANSPORT" => self.transport = value.parse()?,
            "CHANNELS" => self.channels = parse_number(value, 1..=usize::MAX)?.min(CHANNELS_MAX),
            "FIFO_DEPTH" => self.fifo_depth = parse_number(value, 2..=FIFO_DEPTH_MAX)?,
            "FIFO_SLOT_BYTES" => {
                self.fifo_slot_bytes = parse_number(value, 4096..=FIFO_SLOT_BYTES_MAX)?.next_multiple_of(4096)
            }
            "SYMMETRIC_HEAP_BYTES" => {
                self.symmetric_heap_bytes = parse_number(value, 0..=BYTES_MAX)?.next_multiple_of(4096)
            }
            "SHM_WINDOW_BYTES" => {
                self.shm_window_bytes = parse_number(value, 1 << 16..=BYTES_MAX)?.next_multiple_of(4096)
            }
            "SOCKETS_PER_PEER" => self.sockets_per_peer = parse_number(value, 1..=SOCKETS_MAX)?,
            "ENCRYPTION" => self.encryption = parse_switch(value)?,
            "BIND_ADDR" => self.bind_addr = Some(value.parse().map_err(|_| "not an IP address".to_owned())?),
            "REDUCTION_ORDER" => self.reduction_order = value.parse()?,
            "ALGO" => self.algorithms = parse_algorithms(value)?,
            "TUNING_FILE" => {
                let text = std::fs::read_to_string(value).map_err(|error| error.to_string())?;
                self.tuning_table = TuningTable::parse(&text)?;
            }
            "NONTEMPORAL_MIN_BYTES" => self.nontemporal_min_bytes = parse_number(value, 0..=usize::MAX)?,
            "GPU_CHANNELS" => self.gpu.channels = parse_number(value, 1..=usize::MAX)?.min(CHANNELS_MAX),
            "GPU_FIFO_DEPTH" => {
                self.gpu.fifo_depth = parse_number(value, 3..=usize::MAX)?.min(FIFO_DEPTH_MAX)
            }
            "GPU_FIFO_SLOT_BYTES" => {
                self.gpu.fifo_slot_bytes = parse_number(value, 4096..=BYTES_MAX)?.next_multiple_of(4096)
            }
            "GPU_WINDOW_BYTES" => {
                self.gpu.window_bytes = parse_number(value, 1 << 16..=BYTES_MAX)?.next_multiple_of(4096)
            }
            "GPU_P2P" => self.gpu.peer_to_peer = parse_switch(value)?,
            "GPU_LL128" => self.gpu.ll128 = parse_switch(value)?,
            "CACHE_BYTES" => self.cache_bytes = parse_number(value, 1 << 16..=BYTES_MAX)?,
            "FLIGHT_RECORDER_DIR" => self.flight_recorder_dir = Some(PathBuf::from(value)),
            "TRACE_DIR" => self.trace_dir = Some(PathBuf::from(value)),
            "CHECK_FINITE" => self.check_finite = parse_switch(value)?,
            "STATUS_SERVER" => self.status_server = parse_switch(value)?,
            "LOG" | "ID" | "SECRET" | "SECRET_FILE" => {}
            _ => return Err("no such setting".to_owned()),
        }
        Ok(())
    }

    /// The algorithm asked for by name for `collective`.
    pub(crate) fn algorithm_override(&self, collective: Collective) -> Option<&'static Algorithm> {
        self.algorithms.iter().copied().find(|row| row.collective == collective)
    }

    /// The sizes that ranks must agree on, for those who make meshes themselves.
    pub fn geometry(&self) -> Geometry {
        let lanes = lanes_for(self.channels);
        Geometry {
            lanes,
            slots: self.fifo_depth,
            slot_bytes: self.fifo_slot_bytes,
            signal_lanes: lanes,
            window_bytes: self.shm_window_bytes,
            heap_bytes: self.symmetric_heap_bytes,
        }
    }
}

/// Lanes that each channel has: a program may use two.
pub(crate) const LANES_PER_CHANNEL: usize = 2;

/// Lanes of a fabric for `channels` channels: two for each, and one for sends and receives.
pub(crate) const fn lanes_for(channels: usize) -> usize {
    channels * LANES_PER_CHANNEL + 1
}

/// Algorithms by name, as `--algo` and `UNISONO_ALGO` give them.
///
/// # Errors
/// Says which name is unknown, and which there are.
pub fn parse_algorithms(text: &str) -> std::result::Result<Vec<&'static Algorithm>, String> {
    let mut chosen = Vec::new();
    for item in text.split(',').filter(|item| !item.is_empty() && *item != "auto") {
        let (collective, name) = item.split_once('=').unwrap_or(("", item));
        let before = chosen.len();
        let rows = Algorithm::ALL.iter().filter(|row| row.name == name);
        chosen.extend(rows.filter(|row| collective.is_empty() || row.collective.name() == collective));
        if chosen.len() == before {
            let names: std::collections::BTreeSet<_> = Algorithm::ALL.iter().map(|row| row.name).collect();
            return Err(format!("no algorithm `{item}`; there are {names:?}"));
        }
    }
    Ok(chosen)
}

fn parse_number(text: &str, allowed: RangeInclusive<usize>) -> std::result::Result<usize, String> {
    match text.parse() {
        Ok(number) if allowed.contains(&number) => Ok(number),
        Ok(number) if number < *allowed.start() => Err(format!("must be at least {}", allowed.start())),
        Ok(_) => Err(format!("must be at most {}", allowed.end())),
        Err(_) => Err("not a whole number".to_owned()),
    }
}

fn parse_switch(text: &str) -> std::result::Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("neither on nor off".to_owned()),
    }
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{} (pid {})", name.trim(), std::process::id())
}

const ENV_PREFIX: &str = "UNISONO_";
/// More channels than this have never helped and cost memory.
const CHANNELS_MAX: usize = 32;
const FIFO_DEPTH_MAX: usize = 1024;
/// A year.
const TIMEOUT_MS_MAX: usize = 365 * 24 * 3600 * 1000;
/// More is more than there are addresses.
const BYTES_MAX: usize = 1 << 46;
/// Frames count the bytes of a message in 32 bits.
const FIFO_SLOT_BYTES_MAX: usize = 1 << 30;
const SOCKETS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_set_accepts_known_and_rejects_unknown() {
        let mut config = Config::default();
        config.set("TIMEOUT_MS", "250").unwrap();
        config.set("TRANSPORT", "tcp").unwrap();
        assert_eq!((config.timeout.as_millis(), config.transport), (250, Transport::Tcp));
        config.set("ENCRYPTION", "on").unwrap();
        assert!(config.encryption);
        assert_eq!(config.set("ENCRYPTION", "yes").unwrap_err(), "neither on nor off");
        assert_eq!(config.set("CHANELS", "4").unwrap_err(), "no such setting");
        assert_eq!(config.set("CHANNELS", "many").unwrap_err(), "not a whole number");
        assert_eq!(config.set("TIMEOUT_MS", "1").unwrap_err(), "must be at least 100");
        assert!(
            config
                .set("FIFO_SLOT_BYTES", &usize::MAX.to_string())
                .unwrap_err()
                .starts_with("must be at most")
        );
        assert!(config.set("ALGO", "rign").unwrap_err().contains("no algorithm `rign`"));
    }
}
