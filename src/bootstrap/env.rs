//! Reads the rank, the world and the meeting point from the environment.

use crate::bootstrap::launcher::{Placement, port_of};
use crate::bootstrap::{RankInfo, UniqueId};
use crate::error::{Error, Result};
use std::net::{SocketAddr, ToSocketAddrs};
use unisono_transports::secure::handshake::Secret;

impl RankInfo {
    /// Reads this process's place from its environment.
    ///
    /// `RANK` and `WORLD_SIZE` come first, as `unisono run` and torchrun set them. Without both,
    /// the variables of Open MPI, of MPICH and Intel MPI, or of `srun` give the rank and the number
    /// of ranks. The meeting point is `UNISONO_ID`, or `MASTER_ADDR` and `MASTER_PORT` with the
    /// secret in `UNISONO_SECRET` or `UNISONO_SECRET_FILE`. Ranks that an MPI launcher started on
    /// one host need no meeting point: they meet on loopback, at a port derived from the job name.
    ///
    /// On loopback the secret may be missing. The port and the name of the run then take its place.
    /// They keep jobs apart but let any process of the host join, which a warning says.
    ///
    /// # Errors
    /// Names the variable that is missing or has an impossible value.
    pub fn from_env() -> Result<Self> {
        Self::from_vars(|name| std::env::var(name).ok())
    }

    /// Returns true if the environment names a rank, so that [`RankInfo::from_env`] applies.
    pub fn is_in_env() -> bool {
        let var = |name: &str| std::env::var(name).ok();
        var("RANK").is_some() && var("WORLD_SIZE").is_some()
            || !matches!(Placement::from_vars(&var), Ok(None))
    }

    /// Reads another process's place, as [`RankInfo::from_env`] reads this one's, by its variables.
    ///
    /// # Errors
    /// As [`RankInfo::from_env`].
    pub fn from_vars(var: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let explicit = var("RANK").is_some() || var("WORLD_SIZE").is_some();
        let placement = if explicit { None } else { Placement::from_vars(&var)? };
        let (rank, ranks, names) = match &placement {
            Some(placement) => (placement.rank, placement.ranks, ["the launcher's rank ", "its size "]),
            None => (parse_var(&var, "RANK")?, parse_var(&var, "WORLD_SIZE")?, ["RANK=", "WORLD_SIZE="]),
        };
        if rank >= ranks {
            let [rank_name, ranks_name] = names;
            let text = format!("{rank_name}{rank} is not below {ranks_name}{ranks}");
            return Err(Error::invalid_usage(text));
        }
        let id = match var("UNISONO_ID") {
            Some(text) => text
                .parse()
                .map_err(|error: Error| Error::invalid_usage(format!("UNISONO_ID: {}", error.kind())))?,
            None => id_from_parts(&var, placement.as_ref())?,
        };
        Ok(Self { rank, ranks, id })
    }
}

/// The address of `MASTER_ADDR` and `MASTER_PORT`, or else of the launcher, with the secret.
fn id_from_parts(var: &impl Fn(&str) -> Option<String>, placement: Option<&Placement>) -> Result<UniqueId> {
    let host = match (var("MASTER_ADDR"), placement) {
        (Some(host), _) => host,
        (None, Some(placement)) => placement.root_host.clone().ok_or_else(|| {
            let example = placement.example;
            Error::invalid_usage(format!(
                "MASTER_ADDR is not set and the launcher does not say where rank 0 runs: give it to all ranks, \
                 `{example}`"
            ))
        })?,
        (None, None) => return Err(missing_var("MASTER_ADDR")),
    };
    let port = match (var("MASTER_PORT"), placement) {
        (None, Some(placement)) => port_of(&placement.job),
        _ => parse_port(parse_var(var, "MASTER_PORT")?)?,
    };
    let addresses = (host.as_str(), port).to_socket_addrs();
    let address = addresses.ok().and_then(|mut addresses| addresses.next());
    let address =
        address.ok_or_else(|| Error::invalid_usage(format!("MASTER_ADDR={host} is no known host")))?;
    // The launcher's own store listens on MASTER_PORT itself; ranks meet beside it.
    let own_port = var("TORCHELASTIC_RUN_ID").map_or(port, |_| adjacent_port(port));
    let address = SocketAddr::new(address.ip(), own_port);
    let run = var("TORCHELASTIC_RUN_ID").or_else(|| placement.map(|placement| placement.job.clone()));
    Ok(UniqueId::from_parts(address, secret(var, address, &run.unwrap_or_default())?))
}

/// Port 0 is refused: every rank would be given another one, and none would find rank 0.
fn parse_port(port: usize) -> Result<u16> {
    match u16::try_from(port) {
        Ok(0) => Err(Error::invalid_usage(
            "MASTER_PORT=0 names no port that the other ranks could find: give all ranks the same free port",
        )),
        Ok(port) => Ok(port),
        Err(_) => Err(Error::invalid_usage(format!("MASTER_PORT={port} is no port"))),
    }
}

fn secret(var: &impl Fn(&str) -> Option<String>, address: SocketAddr, run: &str) -> Result<Secret> {
    let malformed = |name: &str| Error::invalid_usage(format!("{name} must hold 64 hexadecimal digits"));
    if let Some(text) = var("UNISONO_SECRET") {
        return Secret::from_hex(text.trim()).ok_or_else(|| malformed("UNISONO_SECRET"));
    }
    if let Some(path) = var("UNISONO_SECRET_FILE") {
        let text = std::fs::read_to_string(&path)
            .map_err(|error| Error::invalid_usage(format!("UNISONO_SECRET_FILE={path}: {error}")))?;
        return Secret::from_hex(text.trim())
            .ok_or_else(|| malformed("the file named by UNISONO_SECRET_FILE"));
    }
    if !address.ip().is_loopback() {
        let text = format!(
            "ranks that meet at {address} need a secret: set UNISONO_SECRET to the same 64 hexadecimal digits on \
             all of them (for example from `openssl rand -hex 32`)"
        );
        return Err(Error::invalid_usage(text));
    }
    crate::log::warn_user("no UNISONO_SECRET: any process of this host could join the job");
    Ok(Secret::from_public(&format!("{address} {run}")))
}

/// A whole number from the environment.
///
/// # Errors
/// Names the variable if it is missing or not a number.
pub(super) fn parse_var(var: &impl Fn(&str) -> Option<String>, name: &str) -> Result<usize> {
    let text = var(name).ok_or_else(|| missing_var(name))?;
    text.parse().map_err(|_| Error::invalid_usage(format!("{name}={text} is not a whole number")))
}

fn missing_var(name: &str) -> Error {
    Error::invalid_usage(format!(
        "{name} is not set: start this program with `unisono run`, torchrun, mpirun or srun, or set it"
    ))
}

/// The port next to a launcher's own.
fn adjacent_port(port: u16) -> u16 {
    port.checked_add(1).unwrap_or(port - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(set: &[(&str, &str)]) -> Result<RankInfo> {
        RankInfo::from_vars(|name| {
            set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string())
        })
    }

    const GOOD: [(&str, &str); 4] =
        [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")];

    #[test]
    fn from_vars_torchrun_on_loopback_succeeds() {
        let found = identity(&GOOD).unwrap();
        assert_eq!((found.rank, found.ranks, found.id.address().port()), (1, 2, 29500));
    }

    #[test]
    fn from_vars_names_missing_or_invalid_variable() {
        for (index, (name, _)) in GOOD.iter().enumerate() {
            let mut set = GOOD.to_vec();
            set.remove(index);
            assert!(identity(&set).unwrap_err().to_string().contains(name));
        }
        for (name, value) in [
            ("RANK", "one"),
            ("WORLD_SIZE", "-2"),
            ("MASTER_PORT", "70000"),
            ("MASTER_PORT", "0"),
            ("RANK", "2"),
        ] {
            let mut set = vec![(name, value)];
            set.extend(GOOD);
            assert!(
                identity(&set).unwrap_err().to_string().contains(&format!("{name}={value}")),
                "{name}={value}"
            );
        }
    }

    #[test]
    fn from_vars_beyond_loopback_requires_secret() {
        let mut set = vec![("MASTER_ADDR", "192.0.2.1")];
        set.extend(GOOD);
        assert!(identity(&set).unwrap_err().to_string().contains("UNISONO_SECRET"));
        let secret = "5a".repeat(32);
        set.push(("UNISONO_SECRET", &secret));
        assert!(identity(&set).is_ok());
    }

    #[test]
    fn from_vars_mpirun_on_one_host_needs_nothing_else() {
        let mpirun = |rank| {
            identity(&[
                ("OMPI_COMM_WORLD_RANK", rank),
                ("OMPI_COMM_WORLD_SIZE", "4"),
                ("OMPI_COMM_WORLD_LOCAL_RANK", rank),
                ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
                ("PMIX_NAMESPACE", "job"),
            ])
        };
        let (first, last) = (mpirun("0").unwrap(), mpirun("3").unwrap());
        assert_eq!((first.rank, last.rank, last.ranks), (0, 3, 4));
        assert_eq!(first.id.to_string(), last.id.to_string());
        assert!(first.id.address().ip().is_loopback() && mpirun("4").is_err());
    }

    #[test]
    fn from_vars_mpirun_over_hosts_asks_for_master_addr() {
        let spread = [
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ];
        let error = identity(&spread).unwrap_err().to_string();
        assert!(error.contains("MASTER_ADDR") && error.contains("mpirun -x MASTER_ADDR="), "{error}");
    }

    #[test]
    fn from_vars_rank_takes_precedence_over_launcher() {
        let mut set = GOOD.to_vec();
        set.extend([("OMPI_COMM_WORLD_RANK", "7"), ("OMPI_COMM_WORLD_SIZE", "8")]);
        assert_eq!(identity(&set).unwrap().rank, 1);
    }
}
