//! Reads the rank, the world and the meeting point from the environment of MPI, Slurm and other
//! launchers.
//!
//! These launchers do not set `RANK`. Each sets variables with other names, two of which give the
//! rank and the number of ranks. Some variables are set by several launchers, and some are also set
//! in shells of a job that are not ranks. So a launcher is recognized by variables that no other
//! launcher sets, and that it sets only for ranks.

use crate::bootstrap::env::parse_var;
use crate::error::{Error, Result};
use crate::hash::fnv1a;

/// The variables of one launcher.
struct Launcher {
    /// The name of the launcher, for errors.
    name: &'static str,
    /// If one of these variables is set, the launcher started this process.
    markers: &'static [&'static str],
    rank: &'static str,
    ranks: &'static str,
    /// The variable that shows whether all ranks are on this host.
    extent: Extent,
    /// Variables that identify the job and are the same on all its ranks.
    job: &'static [&'static str],
    /// The variable with the hosts of the ranks. The host of rank 0 comes first.
    hosts: Option<&'static str>,
    /// The command line that passes the meeting point to all ranks. The secret comes from the
    /// environment or from a file, because all users of a host can read command lines.
    example: &'static str,
}

/// A variable that shows if all ranks of a job are on one host.
enum Extent {
    /// The number of ranks of this host. Slurm lists the numbers of all hosts, as in `2(x3)`.
    LocalRanks(&'static str),
    /// The number of hosts.
    Hosts(&'static str),
}

/// The launchers whose variables are read, in this order. The order matters because a launcher that
/// runs within a job of another launcher passes on the variables of both.
///
/// For Slurm, the counts of the step are read. `SLURM_NTASKS` may be the count of the job, although
/// a shell of `salloc` is a single process. Any launcher with a PMI server may set `PMI_RANK` and
/// `PMI_SIZE`, and Slurm does so with `--mpi=pmi2`. So these variables come last.
const LAUNCHERS: [Launcher; 6] = [
    Launcher {
        name: "Open MPI",
        markers: &["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"],
        rank: "OMPI_COMM_WORLD_RANK",
        ranks: "OMPI_COMM_WORLD_SIZE",
        extent: Extent::LocalRanks("OMPI_COMM_WORLD_LOCAL_SIZE"),
        job: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"],
        hosts: None,
        example: "mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500 -x UNISONO_SECRET ...",
    },
    Launcher {
        name: "Cray PALS",
        markers: &["PALS_RANKID"],
        rank: "PALS_RANKID",
        ranks: "PMI_SIZE",
        extent: Extent::LocalRanks("PMI_LOCAL_SIZE"),
        job: &["PALS_APID"],
        hosts: None,
        example: "mpiexec --env MASTER_ADDR=HOST --env MASTER_PORT=29500 --env UNISONO_SECRET_FILE=... ...",
    },
    Launcher {
        name: "MPICH or Intel MPI",
        markers: &["MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
        rank: "PMI_RANK",
        ranks: "PMI_SIZE",
        extent: Extent::LocalRanks("MPI_LOCALNRANKS"),
        job: &["PMI_PORT", "I_MPI_HYDRA_UUID", "PMI_ID_STRING"],
        hosts: None,
        example: "mpiexec -genv MASTER_ADDR HOST -genv MASTER_PORT 29500 -genvlist UNISONO_SECRET ...",
    },
    Launcher {
        name: "Flux",
        markers: &["FLUX_TASK_RANK"],
        rank: "FLUX_TASK_RANK",
        ranks: "FLUX_JOB_SIZE",
        extent: Extent::Hosts("FLUX_JOB_NNODES"),
        job: &["FLUX_JOB_ID"],
        hosts: None,
        example: "flux run --env=MASTER_ADDR=HOST --env=MASTER_PORT=29500 --env=UNISONO_SECRET_FILE=... ...",
    },
    Launcher {
        name: "Slurm",
        markers: &["SLURM_STEP_ID"],
        rank: "SLURM_PROCID",
        ranks: "SLURM_STEP_NUM_TASKS",
        extent: Extent::LocalRanks("SLURM_STEP_TASKS_PER_NODE"),
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
        hosts: Some("SLURM_STEP_NODELIST"),
        example: "MASTER_ADDR=HOST MASTER_PORT=29500 UNISONO_SECRET=... srun --export=ALL ...",
    },
    Launcher {
        name: "PMI",
        markers: &["PMI_RANK"],
        rank: "PMI_RANK",
        ranks: "PMI_SIZE",
        extent: Extent::LocalRanks("PMI_LOCAL_SIZE"),
        job: &["PMI_JOBID"],
        hosts: None,
        example: "MASTER_ADDR=HOST MASTER_PORT=29500 UNISONO_SECRET=... mpiexec ...",
    },
];

/// The place of a process in a job, as its launcher describes it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Placement {
    pub(super) rank: usize,
    pub(super) ranks: usize,
    /// True if all ranks are on this host, and false if they are not. `None` if the launcher does
    /// not say.
    pub(super) is_one_host: Option<bool>,
    /// The host of rank 0, if the launcher names it.
    pub(super) root_host: Option<String>,
    /// A text that identifies the job on all its ranks. It is empty if the launcher gives none.
    pub(super) job: String,
    /// The command line that passes the meeting point to all ranks.
    pub(super) example: &'static str,
}

impl Placement {
    /// Reads the variables of the first launcher that started this process. Returns `None` if no
    /// launcher did.
    ///
    /// # Errors
    /// If only some of the variables are set, the error names the missing one.
    pub(super) fn from_vars(var: &impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let started = |launcher: &&Launcher| launcher.markers.iter().any(|name| var(name).is_some());
        LAUNCHERS.iter().find(started).map(|launcher| launcher.placement(var)).transpose()
    }
}

impl Launcher {
    fn placement(&self, var: &impl Fn(&str) -> Option<String>) -> Result<Placement> {
        let number = |name: &'static str| match var(name) {
            Some(_) => parse_var(var, name),
            None => Err(self.incomplete(name)),
        };
        let (rank, ranks) = (number(self.rank)?, number(self.ranks)?);
        let job: Vec<String> = self.job.iter().filter_map(|name| var(name)).collect();
        let is_one_host = match self.extent {
            // A single rank is on one host, even if its launcher does not say so.
            _ if ranks == 1 => Some(true),
            Extent::LocalRanks(name) => var(name).map(|local| local == ranks.to_string()),
            Extent::Hosts(name) => var(name).map(|hosts| hosts == "1"),
        };
        let root_host = match is_one_host {
            Some(true) => Some("127.0.0.1".to_owned()),
            _ => self.hosts.and_then(var).as_deref().and_then(first_node),
        };
        Ok(Placement { rank, ranks, is_one_host, root_host, job: job.join("."), example: self.example })
    }

    fn incomplete(&self, missing: &str) -> Error {
        let Launcher { name, rank, ranks, .. } = self;
        Error::invalid_usage(format!(
            "{missing} is not set beside the other variables of {name}: set it, or map what there is in the \
             started shell: export RANK=${rank} WORLD_SIZE=${ranks}"
        ))
    }
}

/// Returns the first host of a Slurm node list, for example `node01` of `node[01-04,07],other`.
fn first_node(list: &str) -> Option<String> {
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (name, tail) = list.split_at(end);
    let first = match tail.strip_prefix('[') {
        Some(numbers) => {
            let digits: String = numbers.chars().take_while(char::is_ascii_digit).collect();
            let suffix: &str = numbers.split_once(']').map_or("", |(_, tail)| tail);
            let suffix = &suffix[..suffix.find(',').unwrap_or(suffix.len())];
            format!("{name}{digits}{suffix}")
        }
        None => name.to_owned(),
    };
    (!first.is_empty()).then_some(first)
}

/// Returns a port for a job that has none. The port is the same on all its ranks, and is not an
/// ephemeral port.
pub(super) fn port_of(job: &str) -> u16 {
    let hash = fnv1a(job.bytes().map(u64::from));
    FIRST_PORT + ((hash ^ hash >> 32) % u64::from(PORTS)) as u16
}

const FIRST_PORT: u16 = 20_000;
const PORTS: u16 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(set: &[(&str, &str)]) -> Result<Option<Placement>> {
        Placement::from_vars(&|name: &str| {
            set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string())
        })
    }

    /// As `mpirun -np 4` of Open MPI 4.1 sets them.
    const OPEN_MPI: &[(&str, &str)] = &[
        ("OMPI_COMM_WORLD_RANK", "3"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "3"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
        ("OMPI_COMM_WORLD_NODE_RANK", "3"),
        ("OMPI_UNIVERSE_SIZE", "4"),
        ("PMIX_RANK", "3"),
        ("PMIX_NAMESPACE", "2467889153"),
    ];
    /// As `mpiexec -n 2` of MPICH and Intel MPI (Hydra) sets them.
    const HYDRA: &[(&str, &str)] = &[
        ("PMI_RANK", "1"),
        ("PMI_SIZE", "2"),
        ("PMI_FD", "9"),
        ("MPI_LOCALNRANKS", "2"),
        ("MPI_LOCALRANKID", "1"),
    ];
    /// As `srun -N 2 -n 4` sets them.
    const SLURM: &[(&str, &str)] = &[
        ("SLURM_PROCID", "2"),
        ("SLURM_STEP_NUM_TASKS", "4"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_JOB_ID", "4711"),
        ("SLURM_STEP_TASKS_PER_NODE", "2(x2)"),
        ("SLURM_STEP_NODELIST", "node[07-08]"),
        ("SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1"),
    ];
    /// Added by `srun --mpi=pmi2`.
    const SLURM_PMI2: &[(&str, &str)] =
        &[("PMI_RANK", "2"), ("PMI_SIZE", "4"), ("PMI_FD", "9"), ("PMI_JOBID", "4711.0")];
    /// As `flux run -N 1 -n 4` sets them.
    const FLUX: &[(&str, &str)] = &[
        ("FLUX_TASK_RANK", "3"),
        ("FLUX_TASK_LOCAL_ID", "3"),
        ("FLUX_JOB_SIZE", "4"),
        ("FLUX_JOB_NNODES", "1"),
        ("FLUX_JOB_ID", "f9B2xyz"),
        ("PMI_RANK", "3"),
        ("PMI_SIZE", "4"),
        ("PMI_FD", "9"),
    ];
    /// As `mpiexec -n 4` of Cray PALS sets them.
    const PALS: &[(&str, &str)] = &[
        ("PALS_RANKID", "1"),
        ("PALS_LOCAL_RANKID", "1"),
        ("PALS_APID", "6a1b"),
        ("PMI_RANK", "1"),
        ("PMI_SIZE", "4"),
        ("PMI_LOCAL_RANK", "1"),
        ("PMI_LOCAL_SIZE", "4"),
    ];

    #[test]
    fn recorded_environments_give_rank_size_and_root() {
        let pmi2 = [SLURM, SLURM_PMI2].concat();
        let flux_within_slurm = [FLUX, SLURM].concat();
        let (mpirun_within_slurm, hydra_within_slurm) = ([OPEN_MPI, SLURM].concat(), [HYDRA, SLURM].concat());
        let here = Some("127.0.0.1");
        let expected: [(&[_], _, _, _); 10] = [
            (OPEN_MPI, (3, 4), here, "2467889153"),
            (HYDRA, (1, 2), here, ""),
            (SLURM, (2, 4), Some("node07"), "4711.0"),
            (&pmi2, (2, 4), Some("node07"), "4711.0"),
            (FLUX, (3, 4), here, "f9B2xyz"),
            (PALS, (1, 4), here, "6a1b"),
            (&flux_within_slurm, (3, 4), here, "f9B2xyz"),
            (&mpirun_within_slurm, (3, 4), here, "2467889153"),
            (&hydra_within_slurm, (1, 2), here, ""),
            (SLURM_PMI2, (2, 4), None, "4711.0"),
        ];
        for (set, numbers, root, job) in expected {
            let found = placement(set).unwrap().unwrap();
            assert_eq!((found.rank, found.ranks), numbers, "{set:?}");
            assert_eq!((found.root_host.as_deref(), &*found.job), (root, job), "{set:?}");
        }
    }

    #[test]
    fn incomplete_environment_is_refused_with_mapping() {
        for (set, rank) in [(OPEN_MPI, "OMPI_COMM_WORLD_RANK"), (HYDRA, "PMI_RANK"), (SLURM, "SLURM_PROCID")]
        {
            for missing in [0, 1] {
                let left: Vec<_> = set.iter().copied().filter(|pair| *pair != set[missing]).collect();
                let error = placement(&left).unwrap_err().to_string();
                assert!(error.contains(&format!("{} is not set", set[missing].0)), "{error}");
                assert!(error.contains(&format!("export RANK=${rank} WORLD_SIZE=$")), "{error}");
            }
        }
    }

    #[test]
    fn variables_that_nobody_needs_are_not_demanded() {
        let needless = ["LOCAL_RANK", "LOCALID", "LOCALRANKID", "LOCAL_ID", "LOCAL_RANKID", "SLURM_NTASKS"];
        for set in [OPEN_MPI, HYDRA, SLURM, FLUX, PALS] {
            let is_needed = |name: &str| !needless.iter().any(|end| name.ends_with(end));
            let left: Vec<_> = set.iter().copied().filter(|(name, _)| is_needed(name)).collect();
            assert_eq!(placement(&left).unwrap(), placement(set).unwrap());
        }
    }

    #[test]
    fn slurm_batch_script_is_no_task() {
        let is_of_step = |name: &str| name.starts_with("SLURM_STEP_");
        let batch: Vec<_> = SLURM.iter().copied().filter(|(name, _)| !is_of_step(name)).collect();
        assert_eq!(placement(&batch).unwrap(), None);
        assert_eq!(placement(&[]).unwrap(), None);
    }

    /// `salloc -n 3` runs the shell as a step of one task, but sets the number of tasks of the job,
    /// as `srun --preserve-env` does.
    #[test]
    fn interactive_shell_of_salloc_is_a_single_process() {
        let shell = [
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "3"),
            ("SLURM_STEP_NUM_TASKS", "1"),
            ("SLURM_STEP_ID", "4294967290"),
            ("SLURM_JOB_ID", "4711"),
            ("SLURM_STEP_TASKS_PER_NODE", "1"),
            ("SLURM_STEP_NODELIST", "node07"),
            ("SLURM_NODELIST", "node[07-08]"),
        ];
        let found = placement(&shell).unwrap().unwrap();
        assert_eq!((found.rank, found.ranks, found.root_host.as_deref()), (0, 1, Some("127.0.0.1")));
    }

    /// Only a launcher within the job starts ranks.
    #[test]
    fn shells_of_pbs_flux_and_lsf_jobs_are_no_rank() {
        let pbs = [("PBS_JOBID", "1.host"), ("PBS_NODENUM", "0"), ("PBS_TASKNUM", "1"), ("NCPUS", "4")];
        let flux = [("FLUX_URI", "local:///run/flux/local-0"), ("FLUX_JOB_ID", "f9B2xyz")];
        let lsf = [("LSB_JOBID", "1"), ("LSB_DJOB_NUMPROC", "4")];
        for shell in [&pbs[..], &flux, &lsf] {
            assert_eq!(placement(shell).unwrap(), None);
        }
    }

    #[test]
    fn mpirun_spread_over_hosts_has_no_root() {
        let spread: Vec<_> = OPEN_MPI
            .iter()
            .map(|&(name, value)| (name, if name == "OMPI_COMM_WORLD_LOCAL_SIZE" { "2" } else { value }))
            .collect();
        assert_eq!(placement(&spread).unwrap().unwrap().root_host, None);
    }

    #[test]
    fn first_node_of_slurm_list_is_expanded() {
        for (list, first) in [
            ("node07", "node07"),
            ("a,b", "a"),
            ("node[01-04,07],other", "node01"),
            ("gpu[3,5]-ib", "gpu3-ib"),
        ] {
            assert_eq!(first_node(list).as_deref(), Some(first));
        }
        assert_eq!(first_node(""), None);
    }

    #[test]
    fn no_example_has_the_secret_on_a_command_line() {
        for Launcher { name, example, .. } in LAUNCHERS {
            let is_assignment = |word: &&str| word.contains('=') && !word.starts_with('-');
            let mut arguments = example.split(' ').skip_while(is_assignment);
            assert!(arguments.all(|word| !word.contains("UNISONO_SECRET=")), "{name}: {example}");
            assert!(example.contains("UNISONO_SECRET"), "{name}: {example}");
        }
    }

    #[test]
    fn port_depends_on_job_and_stays_in_range() {
        let ports: Vec<u16> = (0..100).map(|job| port_of(&job.to_string())).collect();
        assert!(ports.iter().all(|port| (FIRST_PORT..FIRST_PORT + PORTS).contains(port)));
        assert!(ports.iter().any(|port| *port != ports[0]) && port_of("a") == port_of("a"));
    }
}
