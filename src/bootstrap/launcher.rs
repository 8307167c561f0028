//! Reads the rank, the world and the meeting point from the environment of MPI and Slurm launchers.
//!
//! `mpirun`, `mpiexec` and `srun` set no `RANK`. They set variables of their own, of which three
//! say the same: the rank, the number of ranks, and the rank among those of its host.

use crate::bootstrap::env::parse_var;
use crate::error::{Error, Result};
use crate::hash::fnv1a;

/// One launcher's variables.
struct Launcher {
    /// Name, for errors.
    name: &'static str,
    rank: &'static str,
    ranks: &'static str,
    local_rank: &'static str,
    /// The number of ranks of this host.
    local_ranks: &'static str,
    /// A variable that is set only within a started task, where `rank` alone would not show that.
    marker: Option<&'static str>,
    /// Variables that name the job, the same on all its ranks.
    job: &'static [&'static str],
    /// The command line that passes the meeting point to all ranks.
    example: &'static str,
}

/// The launchers whose variables are read, in this order.
///
/// Slurm comes last: an `mpirun` within an allocation sees its variables as well.
const LAUNCHERS: [Launcher; 3] = [
    Launcher {
        name: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        ranks: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_ranks: "OMPI_COMM_WORLD_LOCAL_SIZE",
        marker: None,
        job: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"],
        example: "mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500 -x UNISONO_SECRET ...",
    },
    Launcher {
        name: "MPICH or Intel MPI",
        rank: "PMI_RANK",
        ranks: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_ranks: "MPI_LOCALNRANKS",
        marker: None,
        job: &["PMI_PORT", "I_MPI_HYDRA_UUID", "PMI_ID_STRING"],
        example: "mpiexec -genv MASTER_ADDR HOST -genv MASTER_PORT 29500 -genvlist UNISONO_SECRET ...",
    },
    Launcher {
        name: "Slurm",
        rank: "SLURM_PROCID",
        ranks: "SLURM_NTASKS",
        local_rank: "SLURM_LOCALID",
        local_ranks: "SLURM_STEP_TASKS_PER_NODE",
        marker: Some("SLURM_STEP_ID"),
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
        example: "MASTER_ADDR=HOST MASTER_PORT=29500 UNISONO_SECRET=... srun --export=ALL ...",
    },
];

/// A process's place in a job, as its launcher gives it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Placement {
    pub(super) rank: usize,
    pub(super) ranks: usize,
    pub(super) local_rank: usize,
    /// The host of rank 0, if the launcher names it.
    pub(super) root_host: Option<String>,
    /// Text that names the job on all its ranks; empty if the launcher gives none.
    pub(super) job: String,
    /// The command line that passes the meeting point to all ranks.
    pub(super) example: &'static str,
}

impl Placement {
    /// Reads the variables of the first launcher that set any. `None` if there is none.
    ///
    /// # Errors
    /// Names the variable that is missing beside those that are set.
    pub(super) fn from_vars(var: &impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let is_set = |name: &str| var(name).is_some();
        let started = |launcher: &&Launcher| match launcher.marker {
            Some(marker) => is_set(marker),
            None => is_set(launcher.rank) || is_set(launcher.ranks),
        };
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
        let local_rank = number(self.local_rank)?;
        let job: Vec<String> = self.job.iter().filter_map(|name| var(name)).collect();
        Ok(Placement {
            rank,
            ranks,
            local_rank,
            root_host: self.root_host(var, ranks),
            job: job.join("."),
            example: self.example,
        })
    }

    /// The host of rank 0: loopback if all ranks are here, else the first node of a Slurm step.
    fn root_host(&self, var: &impl Fn(&str) -> Option<String>, ranks: usize) -> Option<String> {
        if var(self.local_ranks).is_some_and(|local| local == ranks.to_string()) {
            return Some("127.0.0.1".to_owned());
        }
        let nodes = var("SLURM_STEP_NODELIST").or_else(|| var("SLURM_NODELIST"));
        let first = nodes.as_deref().and_then(first_node).or_else(|| var("SLURM_LAUNCH_NODE_IPADDR"));
        first.filter(|_| self.marker.is_some())
    }

    fn incomplete(&self, missing: &str) -> Error {
        let Launcher { name, rank, ranks, local_rank, .. } = self;
        Error::invalid_usage(format!(
            "{missing} is not set beside the other variables of {name}: set it, or map what there is in the \
             started shell: export RANK=${rank} WORLD_SIZE=${ranks} LOCAL_RANK=${local_rank}"
        ))
    }
}

/// The first host of a Slurm node list: `node01` of `node[01-04,07],other`.
fn first_node(list: &str) -> Option<String> {
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (name, rest) = list.split_at(end);
    let first = match rest.strip_prefix('[') {
        Some(numbers) => {
            let digits: String = numbers.chars().take_while(char::is_ascii_digit).collect();
            let suffix: &str = numbers.split_once(']').map_or("", |(_, rest)| rest);
            let suffix = &suffix[..suffix.find(',').unwrap_or(suffix.len())];
            format!("{name}{digits}{suffix}")
        }
        None => name.to_owned(),
    };
    (!first.is_empty()).then_some(first)
}

/// A port for a job that was given none, the same on all its ranks. It is no ephemeral port.
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
        ("SLURM_NTASKS", "4"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_JOB_ID", "4711"),
        ("SLURM_STEP_TASKS_PER_NODE", "2(x2)"),
        ("SLURM_STEP_NODELIST", "node[07-08]"),
        ("SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1"),
    ];

    #[test]
    fn recorded_environments_give_rank_size_and_root() {
        let expected = [
            (OPEN_MPI, (3, 4, 3), "127.0.0.1", "2467889153"),
            (HYDRA, (1, 2, 1), "127.0.0.1", ""),
            (SLURM, (2, 4, 0), "node07", "4711.0"),
        ];
        for (set, numbers, root, job) in expected {
            let found = placement(set).unwrap().unwrap();
            assert_eq!((found.rank, found.ranks, found.local_rank), numbers);
            assert_eq!((found.root_host.as_deref(), &*found.job), (Some(root), job));
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
    fn slurm_batch_script_is_no_task() {
        let batch: Vec<_> = SLURM.iter().copied().filter(|(name, _)| *name != "SLURM_STEP_ID").collect();
        assert_eq!(placement(&batch).unwrap(), None);
        assert_eq!(placement(&[]).unwrap(), None);
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
    fn port_depends_on_job_and_stays_in_range() {
        let ports: Vec<u16> = (0..100).map(|job| port_of(&job.to_string())).collect();
        assert!(ports.iter().all(|port| (FIRST_PORT..FIRST_PORT + PORTS).contains(port)));
        assert!(ports.iter().any(|port| *port != ports[0]) && port_of("a") == port_of("a"));
    }
}
