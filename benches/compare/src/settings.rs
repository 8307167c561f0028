//! Settings of every library, as a table.
//!
//! A library may have several settings; the best one counts for each data point. With at most as
//! many ranks as cores, all ranks are bound to cores. With more, or under load, ranks are unbound
//! and yield as far as they can. If a load shares the cores with at most as many ranks, settings of
//! both kinds take part.

use crate::case::{Case, Collective, Transport, World};
use crate::library::{InstalledLibrary, Library};
use Library::{Gloo, IntelMpi, Mpich4, Mpich5, OneCcl, OpenMpi4, OpenMpi5};
use Subscription::{Any, Dedicated, Oversubscribed};
use Transport::{Shm, Tcp};
use std::process::Command;
use std::time::Duration;
use unisono_bench_support::size;

/// A library in one setting.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) library: Library,
    pub(crate) name: &'static str,
    transports: &'static [Transport],
    subscription: Subscription,
    /// Nothing: all.
    collectives: &'static [Collective],
    /// Workloads, one group after the other.
    flags: &'static [&'static [&'static str]],
    environment: &'static [(&'static str, &'static str)],
}

/// Numbers of ranks that a setting is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subscription {
    /// At most as many ranks as cores.
    Dedicated,
    /// More than cores, or under load.
    Oversubscribed,
    Any,
}

/// Name of the untuned setting.
pub(crate) const DEFAULTS: &str = "defaults";

const EVERYTHING: &[Collective] = &[];
const UCX: &[&str] = &[
    "--mca",
    "pml",
    "ucx",
    "--mca",
    "pml_ucx_tls",
    "any",
    "--mca",
    "pml_ucx_devices",
    "any",
    "-x",
    "UCX_TLS=posix,cma,self",
];
const OVER_TCP: &[&str] =
    &["--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"];

/// Binds ranks to the cores in order. If there are two binding options, Open MPI 4 takes the last
/// and Open MPI 5 none.
const BOUND: &[&str] = &["--bind-to", "core:overload-allowed", "--map-by", "node"];

type Environment = &'static [(&'static str, &'static str)];

const fn setting(
    library: Library,
    name: &'static str,
    transports: &'static [Transport],
    subscription: Subscription,
    flags: &'static [&'static [&'static str]],
    environment: Environment,
) -> Setting {
    Setting { library, name, transports, subscription, collectives: EVERYTHING, flags, environment }
}

impl Setting {
    const fn for_collectives(mut self, collectives: &'static [Collective]) -> Self {
        self.collectives = collectives;
        self
    }
}

const SHM_FABRIC: (&str, &str) = ("I_MPI_FABRICS", "shm");
const OFI_FABRIC: (&str, &str) = ("I_MPI_FABRICS", "ofi");
/// Without it small collectives go through shared memory, whatever the fabric.
const NO_SHORTCUT: (&str, &str) = ("I_MPI_COLL_INTRANODE", "pt2pt");
const CCL_OVER_MPI: (&str, &str) = ("CCL_ATL_TRANSPORT", "mpi");
const RING: (&str, &str) = ("CCL_ALLREDUCE", "ring");
const OFI_TCP: (&str, &str) = ("FI_PROVIDER", "tcp");
const YIELD: (&str, &str) = ("I_MPI_THREAD_YIELD", "2");
const OFFLOAD: (&str, &str) = ("CCL_WORKER_OFFLOAD", "1");

/// One row for each setting.
#[rustfmt::skip]
pub(crate) const SETTINGS: &[Setting] = &[
    setting(OpenMpi4, DEFAULTS,          &[Shm], Any,     &[],      &[]),
    setting(OpenMpi4, "UCX",             &[Shm], Any,     &[UCX],   &[]),
    setting(OpenMpi4, "bound",           &[Shm], Oversubscribed, &[BOUND], &[]),
    setting(OpenMpi4, "TCP",             &[Tcp], Any,     &[OVER_TCP], &[]),
    setting(OpenMpi4, "TCP bound",       &[Tcp], Oversubscribed, &[OVER_TCP, BOUND], &[]),
    setting(OpenMpi5, DEFAULTS,          &[Shm], Any,     &[],      &[]),
    setting(OpenMpi5, "coll/sm",         &[Shm], Dedicated,   &[&["--mca", "coll_sm_priority", "90"]], &[]),
    setting(OpenMpi5, "UCX",             &[Shm], Any,     &[UCX],   &[]),
    setting(OpenMpi5, "TCP",             &[Tcp], Any,     &[OVER_TCP], &[]),
    setting(Mpich4,   DEFAULTS,          &[Shm], Dedicated,   &[],      &[]),
    setting(Mpich4,   "yielding",        &[Shm], Oversubscribed, &[],      &[("MPIR_CVAR_POLLS_BEFORE_YIELD", "1")]),
    setting(Mpich5,   DEFAULTS,          &[Shm], Dedicated,   &[],      &[]),
    setting(Mpich5,   "host collectives", &[Shm], Any,    &[],      &[("MPIR_CVAR_DEVICE_COLLECTIVES", "none")]),
    setting(Mpich5,   "TCP",             &[Tcp], Any,     &[],      &[("MPIR_CVAR_NOLOCAL", "1"),
                                                                 ("MPIR_CVAR_DEVICE_COLLECTIVES", "none"),
                                                                 ("UCX_TLS", "tcp,self")]),
    setting(IntelMpi, DEFAULTS,          &[Shm], Dedicated,   &[],      &[SHM_FABRIC]),
    setting(IntelMpi, "yield",           &[Shm], Oversubscribed, &[],      &[SHM_FABRIC, YIELD]),
    setting(IntelMpi, "wait",            &[Shm], Oversubscribed, &[],      &[SHM_FABRIC, ("I_MPI_WAIT_MODE", "1")]),
    setting(IntelMpi, "ring",            &[Shm], Dedicated,   &[],      &[SHM_FABRIC, ("I_MPI_ADJUST_ALLREDUCE", "8")])
        .for_collectives(&[Collective::AllReduce]),
    setting(IntelMpi, "yield ring",      &[Shm], Oversubscribed, &[],      &[SHM_FABRIC, YIELD,
                                                                 ("I_MPI_ADJUST_ALLREDUCE", "8")])
        .for_collectives(&[Collective::AllReduce]),
    setting(IntelMpi, "TCP",             &[Tcp], Dedicated,   &[],      &[OFI_FABRIC, NO_SHORTCUT, OFI_TCP]),
    setting(IntelMpi, "TCP yield",       &[Tcp], Oversubscribed, &[],      &[OFI_FABRIC, NO_SHORTCUT, OFI_TCP, YIELD]),
    setting(OneCcl,   DEFAULTS,          &[Shm], Dedicated,   &[],      &[SHM_FABRIC, CCL_OVER_MPI]),
    setting(OneCcl,   "yield",           &[Shm], Oversubscribed, &[],      &[SHM_FABRIC, CCL_OVER_MPI, YIELD, OFFLOAD]),
    setting(OneCcl,   "ring",            &[Shm], Dedicated,   &[],      &[SHM_FABRIC, CCL_OVER_MPI, RING])
        .for_collectives(&[Collective::AllReduce]),
    setting(OneCcl,   "yield ring",      &[Shm], Oversubscribed, &[],      &[SHM_FABRIC, CCL_OVER_MPI, YIELD, OFFLOAD, RING])
        .for_collectives(&[Collective::AllReduce]),
    setting(OneCcl,   "TCP",             &[Tcp], Any,     &[],      &[SHM_FABRIC, ("CCL_ATL_TRANSPORT", "ofi"),
                                                                 ("CCL_ATL_SHM", "0"), OFI_TCP, YIELD]),
    // Gloo knows TCP only.
    setting(Gloo,     DEFAULTS,          &[Shm, Tcp], Any, &[],     &[]),
];

/// Parameters of every benchmark run.
pub(crate) struct Task {
    pub(crate) world: World,
    /// Collectives in the order of measurement.
    pub(crate) workloads: Vec<Workload>,
    pub(crate) time_limits: TimeLimits,
    /// True if the limits of the machine are measured too.
    pub(crate) measure_roofline: bool,
}

/// Sizes of one collective.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Workload {
    pub(crate) collective: Collective,
    pub(crate) sizes: Vec<usize>,
}

/// Time limits of each size.
#[derive(Clone, Copy)]
pub(crate) struct TimeLimits {
    /// Duration of the samples; at least three are taken.
    pub(crate) budget: Duration,
    /// Limit for three samples: a size that needs more is skipped.
    pub(crate) limit: Duration,
}

impl TimeLimits {
    /// Returns the time without output after which a run counts as hung.
    pub(crate) fn silence(self) -> Duration {
        self.limit * 3
    }
}

impl Workload {
    /// Formats the workload as benchmarks read it.
    fn argument(&self) -> String {
        format!("{}={}", self.collective.name(), size::list(&self.sizes))
    }
}

impl Setting {
    /// Returns whether this setting takes part.
    pub(crate) fn supports(&self, case: Case, cores: usize) -> bool {
        let takes_part = match self.subscription {
            Any => true,
            Dedicated => case.ranks <= cores,
            Oversubscribed => case.load.is_oversubscribed(case.ranks, cores),
        };
        self.transports.contains(&case.transport)
            && takes_part
            && (self.collectives.is_empty() || self.collectives.contains(&case.collective))
    }

    /// The command that benchmarks `peer` in this setting.
    pub(crate) fn command(&self, peer: &InstalledLibrary, task: &Task, cores: usize) -> Command {
        let World { ranks, load, .. } = task.world;
        // Under load, the settings for cores of their own run beside those for too few cores.
        let oversubscribed = self.subscription != Dedicated && load.is_oversubscribed(ranks, cores);
        let mut command = launch(peer, ranks, oversubscribed);
        command.args(self.flags.concat()).envs(self.environment.iter().copied()).arg(&peer.program);
        if !peer.library.is_mpi() {
            command.arg(ranks.to_string());
        }
        let TimeLimits { budget, limit } = task.time_limits;
        command.args([budget.as_millis().to_string(), limit.as_secs().to_string()]);
        command.args(task.workloads.iter().map(Workload::argument));
        command
    }
}

/// The launcher for `ranks` ranks, without the program. Ranks that are not oversubscribed are bound
/// to cores.
pub(crate) fn launch(peer: &InstalledLibrary, ranks: usize, oversubscribed: bool) -> Command {
    let mut command = Command::new(&peer.launcher);
    command.envs(peer.environment.iter().map(|(name, value)| (name, value)));
    if peer.library.is_mpi() {
        command.arg("-np").arg(ranks.to_string());
    }
    match peer.library {
        OpenMpi4 | OpenMpi5 if oversubscribed => {
            command.args(["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]);
        }
        OpenMpi4 | OpenMpi5 => {
            command.args(["--bind-to", "core"]);
        }
        Mpich4 | Mpich5 if !oversubscribed => {
            command.args(["-bind-to", "core"]);
        }
        IntelMpi | OneCcl if oversubscribed => {
            command.env("I_MPI_PIN", "0");
        }
        IntelMpi | OneCcl => {
            command.env("I_MPI_PIN_DOMAIN", "core");
        }
        Mpich4 | Mpich5 | Gloo => {}
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Load;

    #[test]
    fn settings_of_both_kinds_run_in_a_load() {
        let names = |busy| {
            let load = Load { busy, ..Load::QUIET };
            let case = Case { transport: Shm, collective: Collective::AllGather, ranks: 2, load };
            let its = |setting: &&Setting| setting.library == IntelMpi && setting.supports(case, 2);
            SETTINGS.iter().filter(its).map(|setting| setting.name).collect::<Vec<_>>()
        };
        assert_eq!((names(0), names(2)), (vec![DEFAULTS], vec![DEFAULTS, "yield", "wait"]));
    }

    #[test]
    fn settings_are_unique_per_case() {
        for transport in [Shm, Tcp] {
            for collective in Collective::ALL {
                for (ranks, busy) in [(2, 0), (8, 0), (2, 2), (8, 2)] {
                    let load = Load { busy, ..Load::QUIET };
                    let case = Case { transport, collective, ranks, load };
                    let names: Vec<_> = SETTINGS.iter().filter(|setting| setting.supports(case, 2)).collect();
                    for (index, setting) in names.iter().enumerate() {
                        let same = |other: &&&Setting| {
                            (setting.library, setting.name) == (other.library, other.name)
                        };
                        assert_eq!(names.iter().skip(index).filter(same).count(), 1, "{setting:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn setting_names_have_no_separators() {
        assert!(SETTINGS.iter().all(|setting| !setting.name.contains([',', '|', '\n'])));
    }

    #[test]
    fn command_has_launcher_workload_and_limits() {
        let peer = InstalledLibrary {
            library: OpenMpi5,
            version: "5".into(),
            launcher: "/m/mpirun".into(),
            program: "/b".into(),
            environment: vec![("A".into(), "1".into())],
        };
        let world = World { transport: Tcp, ranks: 4, load: Load::QUIET };
        let wanted = [(Collective::Broadcast, vec![8, 1024]), (Collective::AllToAll, vec![8])];
        let wanted = wanted.map(|(collective, sizes)| Workload { collective, sizes }).to_vec();
        let setting = SETTINGS.iter().find(|setting| setting.library == OpenMpi5 && setting.name == "TCP");
        let limits = TimeLimits { budget: Duration::from_millis(100), limit: Duration::from_secs(9) };
        let task = Task { world, workloads: wanted, time_limits: limits, measure_roofline: false };
        let command = setting.expect("it is in the table").command(&peer, &task, 2);
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        let line = words.join(" ");
        assert!(line.starts_with("-np 4 --oversubscribe --bind-to none"), "{line}");
        assert!(line.ends_with("btl_tcp_if_include lo /b 100 9 broadcast=8,1024 all_to_all=8"), "{line}");
    }
}
