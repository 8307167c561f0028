//! Who runs, in which settings, for what: a table.
//!
//! Several settings of a library are allowed: in each cell its best one counts. With ranks up to cores
//! everybody is bound to cores; with more, everybody may wander and yields, as far as it can.

use crate::case::{Case, Collective, Transport, World};
use crate::library::{Library, Peer};
use crate::size;
use Crowd::{Any, Crowded, Roomy};
use Library::{Gloo, IntelMpi, Mpich4, Mpich5, OneCcl, OpenMpi4, OpenMpi5};
use Transport::{Shm, Tcp};
use std::process::Command;
use std::time::Duration;

/// A library in one setting.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) library: Library,
    pub(crate) name: &'static str,
    transports: &'static [Transport],
    crowd: Crowd,
    /// Nothing: all.
    collectives: &'static [Collective],
    /// One group after the other.
    flags: &'static [&'static [&'static str]],
    environment: &'static [(&'static str, &'static str)],
}

/// For how many ranks a setting is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crowd {
    /// As many as cores or fewer.
    Roomy,
    /// More than cores.
    Crowded,
    Any,
}

/// The name of the setting that nobody tuned.
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

/// Ranks on the cores in turn; of two bindings that are asked for Open MPI 4 takes the last, and Open MPI 5 none.
const BOUND: &[&str] = &["--bind-to", "core:overload-allowed", "--map-by", "node"];

type Environment = &'static [(&'static str, &'static str)];

const fn of(
    library: Library,
    name: &'static str,
    transports: &'static [Transport],
    crowd: Crowd,
    flags: &'static [&'static [&'static str]],
    environment: Environment,
) -> Setting {
    Setting { library, name, transports, crowd, collectives: EVERYTHING, flags, environment }
}

impl Setting {
    const fn only(mut self, collectives: &'static [Collective]) -> Self {
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
    of(OpenMpi4, DEFAULTS,          &[Shm], Any,     &[],      &[]),
    of(OpenMpi4, "UCX",             &[Shm], Any,     &[UCX],   &[]),
    of(OpenMpi4, "bound",           &[Shm], Crowded, &[BOUND], &[]),
    of(OpenMpi4, "TCP",             &[Tcp], Any,     &[OVER_TCP], &[]),
    of(OpenMpi4, "TCP bound",       &[Tcp], Crowded, &[OVER_TCP, BOUND], &[]),
    of(OpenMpi5, DEFAULTS,          &[Shm], Any,     &[],      &[]),
    of(OpenMpi5, "coll/sm",         &[Shm], Roomy,   &[&["--mca", "coll_sm_priority", "90"]], &[]),
    of(OpenMpi5, "UCX",             &[Shm], Any,     &[UCX],   &[]),
    of(OpenMpi5, "TCP",             &[Tcp], Any,     &[OVER_TCP], &[]),
    of(Mpich4,   DEFAULTS,          &[Shm], Roomy,   &[],      &[]),
    of(Mpich4,   "yielding",        &[Shm], Crowded, &[],      &[("MPIR_CVAR_POLLS_BEFORE_YIELD", "1")]),
    of(Mpich5,   DEFAULTS,          &[Shm], Roomy,   &[],      &[]),
    of(Mpich5,   "host collectives", &[Shm], Any,    &[],      &[("MPIR_CVAR_DEVICE_COLLECTIVES", "none")]),
    of(Mpich5,   "TCP",             &[Tcp], Any,     &[],      &[("MPIR_CVAR_NOLOCAL", "1"),
                                                                 ("MPIR_CVAR_DEVICE_COLLECTIVES", "none"),
                                                                 ("UCX_TLS", "tcp,self")]),
    of(IntelMpi, DEFAULTS,          &[Shm], Roomy,   &[],      &[SHM_FABRIC]),
    of(IntelMpi, "yield",           &[Shm], Crowded, &[],      &[SHM_FABRIC, YIELD]),
    of(IntelMpi, "wait",            &[Shm], Crowded, &[],      &[SHM_FABRIC, ("I_MPI_WAIT_MODE", "1")]),
    of(IntelMpi, "ring",            &[Shm], Roomy,   &[],      &[SHM_FABRIC, ("I_MPI_ADJUST_ALLREDUCE", "8")])
        .only(&[Collective::AllReduce]),
    of(IntelMpi, "yield ring",      &[Shm], Crowded, &[],      &[SHM_FABRIC, YIELD,
                                                                 ("I_MPI_ADJUST_ALLREDUCE", "8")])
        .only(&[Collective::AllReduce]),
    of(IntelMpi, "TCP",             &[Tcp], Roomy,   &[],      &[OFI_FABRIC, NO_SHORTCUT, OFI_TCP]),
    of(IntelMpi, "TCP yield",       &[Tcp], Crowded, &[],      &[OFI_FABRIC, NO_SHORTCUT, OFI_TCP, YIELD]),
    of(OneCcl,   DEFAULTS,          &[Shm], Roomy,   &[],      &[SHM_FABRIC, CCL_OVER_MPI]),
    of(OneCcl,   "yield",           &[Shm], Crowded, &[],      &[SHM_FABRIC, CCL_OVER_MPI, YIELD, OFFLOAD]),
    of(OneCcl,   "ring",            &[Shm], Roomy,   &[],      &[SHM_FABRIC, CCL_OVER_MPI, RING])
        .only(&[Collective::AllReduce]),
    of(OneCcl,   "yield ring",      &[Shm], Crowded, &[],      &[SHM_FABRIC, CCL_OVER_MPI, YIELD, OFFLOAD, RING])
        .only(&[Collective::AllReduce]),
    of(OneCcl,   "TCP",             &[Tcp], Any,     &[],      &[SHM_FABRIC, ("CCL_ATL_TRANSPORT", "ofi"),
                                                                 ("CCL_ATL_SHM", "0"), OFI_TCP, YIELD]),
    // Gloo knows TCP only.
    of(Gloo,     DEFAULTS,          &[Shm, Tcp], Any, &[],     &[]),
];

/// What every run of a benchmark gets.
pub(crate) struct Task {
    pub(crate) world: World,
    /// In the order in which it is measured.
    pub(crate) wanted: Vec<Wanted>,
    pub(crate) patience: Patience,
    /// Whether what the machine allows is measured too.
    pub(crate) floor: bool,
}

/// Sizes of one collective.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wanted {
    pub(crate) collective: Collective,
    pub(crate) sizes: Vec<usize>,
}

/// What each size may take.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    /// Of samples, but there are always three.
    pub(crate) budget: Duration,
    /// Of three samples: a size that needs more is skipped.
    pub(crate) limit: Duration,
}

impl Patience {
    /// Who says nothing for so long hangs.
    pub(crate) fn silence(self) -> Duration {
        self.limit * 3
    }
}

impl Wanted {
    /// As benchmarks read it.
    fn argument(&self) -> String {
        format!("{}={}", self.collective.name(), size::list(&self.sizes))
    }
}

impl Setting {
    /// Whether this setting takes part.
    pub(crate) fn is_for(&self, case: Case, cores: usize) -> bool {
        let crowd = if case.ranks > cores { Crowded } else { Roomy };
        self.transports.contains(&case.transport)
            && (self.crowd == Any || self.crowd == crowd)
            && (self.collectives.is_empty() || self.collectives.contains(&case.collective))
    }

    /// The command that benchmarks `peer` in this setting.
    pub(crate) fn command(&self, peer: &Peer, task: &Task, cores: usize) -> Command {
        let ranks = task.world.ranks;
        let mut command = launch(peer, ranks, cores);
        command.args(self.flags.concat()).envs(self.environment.iter().copied()).arg(&peer.program);
        if !peer.library.is_mpi() {
            command.arg(ranks.to_string());
        }
        let Patience { budget, limit } = task.patience;
        command.args([budget.as_millis().to_string(), limit.as_secs().to_string()]);
        command.args(task.wanted.iter().map(Wanted::argument));
        command
    }
}

/// The launcher for `ranks` ranks, without the program.
pub(crate) fn launch(peer: &Peer, ranks: usize, cores: usize) -> Command {
    let crowded = ranks > cores;
    let mut command = Command::new(&peer.launcher);
    command.envs(peer.environment.iter().map(|(name, value)| (name, value)));
    if peer.library.is_mpi() {
        command.arg("-np").arg(ranks.to_string());
    }
    match peer.library {
        OpenMpi4 | OpenMpi5 if crowded => {
            command.args(["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]);
        }
        OpenMpi4 | OpenMpi5 => {
            command.args(["--bind-to", "core"]);
        }
        Mpich4 | Mpich5 if !crowded => {
            command.args(["-bind-to", "core"]);
        }
        IntelMpi | OneCcl if crowded => {
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

    #[test]
    fn no_setting_is_there_twice_for_one_case() {
        for transport in [Shm, Tcp] {
            for collective in Collective::ALL {
                for ranks in [2, 8] {
                    let case = Case { transport, collective, ranks };
                    let names: Vec<_> = SETTINGS.iter().filter(|setting| setting.is_for(case, 2)).collect();
                    for (at, one) in names.iter().enumerate() {
                        let same = |other: &&&Setting| (one.library, one.name) == (other.library, other.name);
                        assert_eq!(names.iter().skip(at).filter(same).count(), 1, "{one:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn names_can_stand_in_a_line_of_a_record() {
        assert!(SETTINGS.iter().all(|setting| !setting.name.contains([',', '|', '\n'])));
    }

    #[test]
    fn a_command_says_where_what_and_for_how_long() {
        let peer = Peer {
            library: OpenMpi5,
            version: "5".into(),
            launcher: "/m/mpirun".into(),
            program: "/b".into(),
            environment: vec![("A".into(), "1".into())],
        };
        let world = World { transport: Tcp, ranks: 4 };
        let wanted = [(Collective::Broadcast, vec![8, 1024]), (Collective::AllToAll, vec![8])];
        let wanted = wanted.map(|(collective, sizes)| Wanted { collective, sizes }).to_vec();
        let setting = SETTINGS.iter().find(|setting| setting.library == OpenMpi5 && setting.name == "TCP");
        let patience = Patience { budget: Duration::from_millis(100), limit: Duration::from_secs(9) };
        let task = Task { world, wanted, patience, floor: false };
        let command = setting.expect("it is in the table").command(&peer, &task, 2);
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        let line = words.join(" ");
        assert!(line.starts_with("-np 4 --oversubscribe --bind-to none"), "{line}");
        assert!(line.ends_with("btl_tcp_if_include lo /b 100 9 broadcast=8,1024 all_to_all=8"), "{line}");
    }
}
