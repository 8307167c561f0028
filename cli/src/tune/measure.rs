//! Times of one algorithm: `perf`, in processes of its own.

use crate::given;
use serde_json::Value;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use unisono::schedule::{Algorithm, Collective, GroupSpec};
use unisono::select::Topology;
use unisono_transports::sys::affinity::available_cpus;
use unisono_transports::sys::private_file;
use unisono_transports::sys::random::random_hex;

/// One collective with so many ranks, over shared memory (`shm`) or sockets (`tcp`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Case<'a> {
    pub(super) collective: Collective,
    pub(super) transport: &'a str,
    pub(super) ranks: usize,
}

/// Time of one size.
#[derive(Clone, Debug)]
pub(super) struct Timing {
    pub(super) bytes: usize,
    pub(super) micros: f64,
    /// Name of the algorithm that ran.
    pub(super) algorithm: String,
}

impl fmt::Display for Case<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} over {}, {} ranks", self.collective, self.transport, self.ranks)
    }
}

impl Case<'_> {
    /// Returns the topology class between the ranks.
    pub(super) fn topology(&self) -> Topology {
        match (self.transport, self.ranks > available_cpus().len()) {
            ("shm", false) => Topology::SharedMemory,
            ("shm", true) => Topology::SharedMemoryOversubscribed,
            (_, false) => Topology::Network,
            (_, true) => Topology::NetworkOversubscribed,
        }
    }

    /// Whatever can run.
    pub(super) fn algorithms(&self) -> Vec<&'static Algorithm> {
        let spec = GroupSpec::new(self.ranks);
        let reach = self.topology().peer_access();
        let of_it = |row: &&Algorithm| row.collective == self.collective && row.peer_access <= reach;
        Algorithm::all().into_iter().filter(of_it).filter(|row| (row.supports)(&spec)).collect()
    }

    /// Sizes in steps of four, from shares of eight bytes on.
    pub(super) fn sizes(&self, max_bytes: usize) -> Vec<usize> {
        let first = 8 * self.shares();
        std::iter::successors(Some(first), |size| size.checked_mul(4))
            .take_while(|&size| size <= max_bytes)
            .collect()
    }

    /// Bytes of a share of so many.
    pub(super) fn share_bytes(&self, bytes: usize) -> usize {
        bytes / self.shares()
    }

    /// Returns the number of shares of a size; some sizes count all shares together.
    fn shares(&self) -> usize {
        use Collective::{AllReduce, Broadcast, Reduce};
        if matches!(self.collective, AllReduce | Broadcast | Reduce) { 1 } else { self.ranks }
    }

    /// Times of an algorithm, or of `auto`.
    pub(super) fn perf(&self, algo: &str, sizes: &[usize]) -> Result<Vec<Timing>, String> {
        if sizes.is_empty() {
            return Ok(Vec::new());
        }
        let file = temporary_file()?;
        let sizes = sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let given = given::files().iter().flat_map(|file| [OsStr::new("--schedule"), file.as_os_str()]);
        // Each run is short, so it leaves out the verification and the roofline, which `-J` would
        // measure.
        let ended = Command::new("/proc/self/exe")
            .args([
                "perf",
                self.collective.name(),
                "--no-roofline",
                "-c",
                "0",
                "--samples",
                SAMPLES,
                "--sizes",
                &sizes,
            ])
            .args(["--transport", self.transport, "--algo", algo, "-N", &self.ranks.to_string(), "-J"])
            .arg(&file)
            .args(given)
            .stdout(Stdio::null())
            .status()
            .map_err(|error| error.to_string())?;
        if !ended.success() {
            return Err(format!("{self}: {algo} failed"));
        }
        let times = read(&file);
        // A leftover would be one small file.
        let _ = std::fs::remove_file(&file);
        times
    }
}

/// Creates an empty file among those of all users. Nobody can guess its name and take it
/// beforehand.
fn temporary_file() -> Result<PathBuf, String> {
    let random = random_hex::<8>().map_err(|error| error.to_string())?;
    let file = std::env::temp_dir().join(format!("unisono-tune-{random}.json"));
    private_file::create_new(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(file)
}

/// Milliseconds of samples for each size.
const SAMPLES: &str = "20";

fn read(file: &Path) -> Result<Vec<Timing>, String> {
    parse(&std::fs::read_to_string(file).map_err(|error| error.to_string())?)
}

/// Reads the results that `perf` writes.
pub(super) fn parse(text: &str) -> Result<Vec<Timing>, String> {
    let document: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let results = document["results"].as_array().ok_or("no results")?;
    results.iter().map(|result| timing(result).ok_or_else(|| format!("no time in {result}"))).collect()
}

fn timing(result: &Value) -> Option<Timing> {
    let mut halves = ["out_of_place", "in_place"].into_iter();
    Some(Timing {
        bytes: result["size"].as_u64()? as usize,
        micros: halves.find_map(|half| result[half]["time"].as_f64())?,
        algorithm: result["algo"].as_str()?.to_owned(),
    })
}
