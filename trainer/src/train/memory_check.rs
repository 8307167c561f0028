//! Refuses a run that does not fit in the memory of a host, before anything large is allocated.

use crate::available_memory::{available_addresses, available_memory};
use crate::config::{Config, DeviceKind};
use unisono::Communicator;
use unisono_nn::counted;
use unisono_nn::error::{Error, Result};
use unisono_parallel::data_parallel::ParallelKind;
use unisono_parallel::mesh::HostId;
use unisono_plan::cost::{CostModel, classes_in_memory, in_memory};

const GIB: f64 = (1 << 30) as f64;

/// Checks that the ranks of each host fit in its memory, and those of each process in its
/// addresses, if each needs the bytes `memory` by the formulas. All ranks must call this.
///
/// # Errors
/// [`Error::Invalid`] on every rank, with the numbers of the first host that is too small and the
/// settings that would fit.
pub(super) fn check_fits(
    world: &Communicator,
    config: &Config,
    plan: &CostModel<'_>,
    memory: [usize; 5],
) -> Result<()> {
    // With a GPU, the formulas count its memory and not that of the host.
    if !config.check_memory || config.device == DeviceKind::Cuda {
        return Ok(());
    }
    let or_unlimited = |bytes: Option<usize>| bytes.map_or(u64::MAX, |bytes| bytes as u64);
    let (host, process) = (HostId::current().0, u64::from(std::process::id()));
    let numbers = [host, process, or_unlimited(available_memory()), or_unlimited(available_addresses())];
    let mut gathered = vec![0; numbers.len() * world.size()];
    // Every rank gets the numbers of all hosts, so that all ranks refuse together.
    world.all_gather(&numbers, &mut gathered)?;
    let ranks: Vec<[u64; 4]> = gathered.as_chunks().0.to_vec();
    for rank in &ranks {
        let of_host =
            Room::of(Place::Host, ranks.iter().filter(|other| other[0] == rank[0]).map(|other| other[2]));
        let of_process = ranks.iter().filter(|other| other[..2] == rank[..2]).map(|other| other[3]);
        for room in [of_host, Room::of(Place::Process, of_process)] {
            if let Some(what) = room.refusal(config, plan, memory) {
                return Err(Error::invalid(what));
            }
        }
    }
    Ok(())
}

/// Ranks that share memory, and the part of it that is left.
struct Room {
    place: Place,
    ranks: usize,
    available: usize,
}

/// Owner of shared memory.
#[derive(Clone, Copy)]
enum Place {
    Host,
    Process,
}

impl Room {
    /// Returns the room of ranks that have seen these numbers of bytes.
    fn of(place: Place, available: impl Iterator<Item = u64> + Clone) -> Self {
        let least = available.clone().min().unwrap_or(u64::MAX);
        Self { place, ranks: available.count(), available: usize::try_from(least).unwrap_or(usize::MAX) }
    }

    fn fits(&self, bytes: usize) -> bool {
        bytes.saturating_mul(self.ranks) <= self.available
    }

    /// Returns the reason why the ranks do not fit, with numbers and remedies.
    fn refusal(&self, config: &Config, plan: &CostModel<'_>, memory: [usize; 5]) -> Option<String> {
        let bytes = in_memory(memory);
        if self.fits(bytes) {
            return None;
        }
        let (available, ranks, classes) = (gib(self.available), self.ranks, classes_in_memory(memory, gib));
        let need = format!("{} of {} each ({classes})", counted(ranks, "rank"), gib(bytes));
        let remedy = match self.remedies(config, plan) {
            fitting if fitting.is_empty() => {
                "a smaller model, or fewer ranks on this host, would fit".to_owned()
            }
            fitting => format!("what would fit: {}", fitting.join("; ")),
        };
        let has = match self.place {
            Place::Host => format!("this host has {available} of memory available"),
            Place::Process => format!("this process may use {available} more of addresses (`ulimit -v`)"),
        };
        Some(format!("{has}, and the run needs {need}; {remedy}; check_memory=false starts all the same"))
    }

    /// Returns the changes of the configuration that fit, each with the bytes of a rank. Changes
    /// are combined only if no single one fits.
    fn remedies(&self, config: &Config, plan: &CostModel<'_>) -> Vec<String> {
        let fitting = |changes: &[Change]| {
            let bytes = with_changes(config, plan, changes)?;
            let words: Vec<_> = changes.iter().map(|change| change.words()).collect();
            self.fits(bytes).then(|| format!("{} ({} each)", words.join(" "), gib(bytes)))
        };
        let kinds = ParallelKind::ALL.into_iter().filter(|kind| kind.shards_state()).map(Change::Strategy);
        let kinds = kinds.filter(|_| plan.mesh.data_size() > 1);
        let single: Vec<_> = kinds.chain([Change::Recompute, Change::SingleSamples]).collect();
        let found: Vec<_> = single.iter().filter_map(|&change| fitting(&[change])).collect();
        match found.is_empty() {
            true => {
                let combined =
                    [Change::Strategy(ParallelKind::Zero3), Change::Recompute, Change::SingleSamples];
                fitting(&combined).into_iter().collect()
            }
            false => found,
        }
    }
}

/// Change of a configuration that saves memory.
#[derive(Clone, Copy)]
enum Change {
    Strategy(ParallelKind),
    Recompute,
    SingleSamples,
}

impl Change {
    fn words(self) -> String {
        match self {
            Self::Strategy(kind) => format!("strategy.kind={}", kind.name()),
            Self::Recompute => "model.activation_checkpointing=true".to_owned(),
            Self::SingleSamples => "data.micro_batch=1".to_owned(),
        }
    }

    fn apply(self, config: &mut Config) {
        match self {
            Self::Strategy(kind) => config.strategy.kind = kind,
            Self::Recompute => config.model.activation_checkpointing = true,
            Self::SingleSamples => {
                config.data.micro_batch = 1;
                config.data.breadth_first = 1;
            }
        }
    }
}

/// Returns the bytes of a rank with these changes; `None` if its batch cannot be divided.
fn with_changes(config: &Config, plan: &CostModel<'_>, changes: &[Change]) -> Option<usize> {
    let mut config = config.clone();
    changes.iter().for_each(|change| change.apply(&mut config));
    let (batch, run) = (config.batch(&plan.mesh).ok()?, config.run_shape());
    let plan = CostModel { run: &run, batch, ..*plan };
    let units = config.strategy.unit_kinds(plan.inventory).ok()?;
    Some(in_memory(plan.memory_at_peak(&units)))
}

fn gib(bytes: usize) -> String {
    format!("{:.2} GiB", bytes as f64 / GIB)
}
