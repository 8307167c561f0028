//! Reads the rank, the world and the meeting point from the environment.

use crate::bootstrap::endpoint::Endpoint;
use crate::bootstrap::launcher::{Placement, port_of};
use crate::bootstrap::unique_id::LOOKUP_TIME;
use crate::bootstrap::user_key::UserKey;
use crate::bootstrap::{RankInfo, UniqueId};
use crate::config::Interface;
use crate::config::shown::assignment;
use crate::error::{Error, Result};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Instant;
use unisono_transports::net::handshake::Secret;
use unisono_transports::sys::private_file;
use unisono_transports::text::without_secrets;

impl RankInfo {
    /// Reads the rank, the number of ranks and the meeting point of this process from its
    /// environment.
    ///
    /// `RANK` and `WORLD_SIZE`, which `unisono run` and torchrun set, are read first. If neither is
    /// set, the variables of Open MPI, Cray PALS, MPICH and Intel MPI, Flux, or `srun` give the
    /// rank and the number of ranks. `UNISONO_ID` gives the meeting point and the secret. Otherwise
    /// `MASTER_ADDR` and `MASTER_PORT` give the meeting point. The secret is then in
    /// `UNISONO_SECRET`, or in the file that `UNISONO_SECRET_FILE` names. Other users must not be
    /// able to read or write this file. Ranks that an MPI launcher started on one host need no
    /// meeting point, because they meet on loopback, at a port derived from the job name.
    ///
    /// On loopback, the secret can be left out. It is then derived from the address, the name of
    /// the run and a key of this user. The first rank makes the key, which no other user can read.
    /// The key is the file `key` in `$XDG_RUNTIME_DIR/unisono`, or in `unisono-UID` among the
    /// temporary files. If neither folder can be used, any process of the host can join, and a
    /// warning says so.
    ///
    /// # Errors
    /// The error names the variable that is missing or has an impossible value.
    pub fn from_env() -> Result<Self> {
        Self::from_vars(|name| std::env::var(name).ok())
    }

    /// Reads the same facts as [`RankInfo::from_env`], from the variables of another process.
    ///
    /// # Errors
    /// As [`RankInfo::from_env`].
    pub fn from_vars(var: impl Fn(&str) -> Option<String>) -> Result<Self> {
        // One of the two is enough, so that the error below names the one that is missing.
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
            Some(text) => parse_id(&text)?,
            None => id_from_parts(&var, placement.as_ref())?,
        };
        let is_one_host = match &placement {
            Some(placement) => placement.is_one_host,
            None => var("LOCAL_WORLD_SIZE").map(|local| local == ranks.to_string()),
        };
        Ok(Self { rank, ranks, id: id.with_hosts(is_one_host == Some(false)) })
    }
}

/// Returns the address of `MASTER_ADDR` and `MASTER_PORT`, or else that of the launcher, with the
/// secret.
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
    // The launcher's store listens on MASTER_PORT, so ranks meet at the next port.
    let own_port = var("TORCHELASTIC_RUN_ID").map_or(port, |_| adjacent_port(port));
    let endpoint = Endpoint::new(&host, own_port).ok_or_else(|| {
        let pair = assignment("MASTER_ADDR", &host);
        Error::invalid_usage(format!("{pair} is neither a host name nor an IP address"))
    })?;
    let run = var("TORCHELASTIC_RUN_ID").or_else(|| placement.map(|placement| placement.job.clone()));
    let (secret, origin) = secret(var, &endpoint, &run.unwrap_or_default())?;
    Ok(UniqueId::at(endpoint, secret).with_secret_origin(origin))
}

/// Refuses port 0, because every rank would get a different port and could not find rank 0.
fn parse_port(port: usize) -> Result<u16> {
    match u16::try_from(port) {
        Ok(0) => Err(Error::invalid_usage(
            "MASTER_PORT=0 names no port that the other ranks could find: give all ranks the same free port",
        )),
        Ok(port) => Ok(port),
        Err(_) => Err(Error::invalid_usage(format!("MASTER_PORT={port} is no port"))),
    }
}

fn parse_id(text: &str) -> Result<UniqueId> {
    text.parse().map_err(|error: Error| Error::invalid_usage(format!("UNISONO_ID: {}", error.kind())))
}

/// Returns the secret that all ranks of the job have in their environment, if there is one. It is
/// in `UNISONO_SECRET`, in the file of `UNISONO_SECRET_FILE`, or in the id that a launcher has set.
///
/// # Errors
/// The error names the variable whose value is not a secret.
pub(super) fn shared_secret(var: &impl Fn(&str) -> Option<String>) -> Result<Option<Secret>> {
    if let Some(secret) = given_secret(var)? {
        return Ok(Some(secret));
    }
    let id = var("UNISONO_ID").map(|text| parse_id(&text)).transpose()?;
    Ok(id.map(|id| id.secret().clone()))
}

/// Returns the secret that the user has set.
fn given_secret(var: &impl Fn(&str) -> Option<String>) -> Result<Option<Secret>> {
    let parse = |text: &str, name: &str| {
        let malformed = || Error::invalid_usage(format!("{name} must hold 64 hexadecimal digits"));
        Secret::from_hex(text.trim()).map(Some).ok_or_else(malformed)
    };
    if let Some(text) = var("UNISONO_SECRET") {
        return parse(&text, "UNISONO_SECRET");
    }
    let Some(path) = var("UNISONO_SECRET_FILE") else { return Ok(None) };
    // The name of the file is not shown, because a user may have put the secret itself into this
    // variable.
    let text = private_file::read_secret(Path::new(&path)).map_err(|error| {
        Error::invalid_usage(format!("the file named by UNISONO_SECRET_FILE cannot be used: {error}"))
    })?;
    parse(&text, "the file named by UNISONO_SECRET_FILE")
}

/// Returns the secret of a job. If the user has not set it, also returns its origin.
fn secret(
    var: &impl Fn(&str) -> Option<String>,
    endpoint: &Endpoint,
    run: &str,
) -> Result<(Secret, Option<String>)> {
    if let Some(secret) = given_secret(var)? {
        return Ok((secret, None));
    }
    let address = loopback_address(var, endpoint).map_err(|where_else| {
        Error::invalid_usage(format!(
            "ranks that meet at {} need a secret: set UNISONO_SECRET to the same 64 hexadecimal digits on all of them \
             (for example from `openssl rand -hex 32`)",
            without_secrets(&where_else)
        ))
    })?;
    let job = format!("{address} {run}");
    if let Some(key) = UserKey::find(var)? {
        return Ok((key.secret_of(&job), Some(key.to_string())));
    }
    crate::log::warn_user(
        "no UNISONO_SECRET, and no folder for a key of this user (XDG_RUNTIME_DIR, TMPDIR): any process of this host \
         could join the job",
    );
    Ok((Secret::from_public(&job), None))
}

/// Returns the first address of an endpoint that only this host can reach. If other hosts can reach
/// the endpoint, the error describes it.
fn loopback_address(
    var: &impl Fn(&str) -> Option<String>,
    endpoint: &Endpoint,
) -> std::result::Result<SocketAddr, String> {
    let bind = var("UNISONO_BIND_ADDR").and_then(|text| text.parse::<Interface>().ok());
    if let Some(bind) = bind.filter(|bind| !bind.ip().is_loopback()) {
        return Err(format!("UNISONO_BIND_ADDR={bind}"));
    }
    // Names of loopback come from a file. If the address of a name takes time, it is not a name of
    // loopback.
    let addresses = endpoint.look_up(Instant::now() + LOOKUP_TIME);
    let addresses =
        addresses.map_err(|error| format!("{endpoint}, whose name has no address yet ({error}),"))?;
    match addresses.iter().find(|address| !address.ip().is_loopback()) {
        Some(address) if endpoint.is_name() => Err(format!("{endpoint} ({})", address.ip())),
        Some(address) => Err(address.to_string()),
        None => Ok(addresses[0]),
    }
}

/// Reads a whole number from the environment.
///
/// # Errors
/// The error names the variable if it is missing or not a number.
pub(super) fn parse_var(var: &impl Fn(&str) -> Option<String>, name: &str) -> Result<usize> {
    let text = var(name).ok_or_else(|| missing_var(name))?;
    let wrong = |_| Error::invalid_usage(format!("{} is not a whole number", assignment(name, &text)));
    text.parse().map_err(wrong)
}

fn missing_var(name: &str) -> Error {
    Error::invalid_usage(format!(
        "{name} is not set: start this program with `unisono run`, torchrun, mpirun or srun, or set it"
    ))
}

/// Returns the port next to the port of a launcher.
fn adjacent_port(port: u16) -> u16 {
    port.checked_add(1).unwrap_or(port - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::user_key::tests::{Folder, has_key};

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
    fn from_vars_on_loopback_needs_the_key_of_the_user() {
        if !has_key() {
            return;
        }
        let folders = [Folder::new("env-key-one"), Folder::new("env-key-other")];
        let secret = |folder: usize, pair: (&str, &str)| {
            let mut set = vec![pair];
            set.extend(GOOD);
            let variables =
                |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string());
            let env = folders[folder].env();
            let id = RankInfo::from_vars(|name| env(name).or_else(|| variables(name))).unwrap().id;
            (id.secret().to_hex(), id.secret_origin().map(str::to_owned))
        };
        let (hex, origin) = secret(0, ("RANK", "0"));
        assert_eq!(secret(0, ("RANK", "1")).0, hex);
        let origin = origin.expect("not the user's");
        assert!(origin.contains("unisono-env-key-one") && origin.contains("UNISONO_SECRET"), "{origin}");
        // Other jobs, other users, and what all can compute.
        assert_ne!(secret(0, ("MASTER_PORT", "29501")).0, hex);
        assert_ne!(secret(0, ("TORCHELASTIC_RUN_ID", "run")).0, hex);
        assert_ne!(secret(1, ("RANK", "0")).0, hex);
        assert_ne!(Secret::from_public("127.0.0.1:29500 ").to_hex(), hex);
        let given = "5a".repeat(32);
        assert_eq!(secret(0, ("UNISONO_SECRET", &given)), (given.clone(), None));
    }

    #[test]
    fn no_error_of_the_environment_shows_a_secret() {
        let secret = "5a".repeat(32);
        let id = format!("127.0.0.1:5/{secret}");
        for name in [
            "RANK",
            "WORLD_SIZE",
            "MASTER_PORT",
            "MASTER_ADDR",
            "UNISONO_ID",
            "UNISONO_SECRET",
            "UNISONO_SECRET_FILE",
        ] {
            for value in [&*id, &format!("{}/", &secret[..63]), &format!("{secret}/g")] {
                let mut set = vec![(name, value)];
                set.extend(GOOD);
                let Err(error) = identity(&set) else {
                    assert_eq!((name, value), ("UNISONO_ID", &*id), "only that is a right value");
                    continue;
                };
                let text = error.to_string();
                assert!(text.contains(name) && !text.contains("5a5a5a"), "{text}");
            }
        }
    }

    #[test]
    fn secret_file_of_all_users_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("unisono-secret-file-{}", std::process::id()));
        let secret = "5a".repeat(32);
        std::fs::write(&path, format!("{secret}\n")).unwrap();
        let name = path.display().to_string();
        let mut set = vec![("UNISONO_SECRET_FILE", &*name)];
        set.extend(GOOD);
        let with_mode = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            identity(&set).map(|found| found.id.secret().to_hex())
        };
        assert_eq!(with_mode(0o600).unwrap(), secret);
        let refused = with_mode(0o644).unwrap_err().to_string();
        assert!(refused.contains("UNISONO_SECRET_FILE") && refused.contains("mode 644"), "{refused}");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn shared_secret_comes_from_the_user_or_the_launcher() {
        let [user_key, other] = ["5a", "a5"].map(|digits| digits.repeat(32));
        let id = format!("127.0.0.1:5/{other}");
        let secret = |set: &[(&str, &str)]| {
            let value =
                |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string());
            shared_secret(&value).unwrap().map(|secret| secret.to_hex())
        };
        assert_eq!(secret(&[]), None);
        assert_eq!(secret(&[("UNISONO_ID", &id)]), Some(other));
        assert_eq!(secret(&[("UNISONO_ID", &id), ("UNISONO_SECRET", &user_key)]), Some(user_key));
    }

    #[test]
    fn from_vars_keeps_names_and_scopes_for_the_meeting() {
        let secret = "5a".repeat(32);
        let id = |host| {
            let mut set = vec![("MASTER_ADDR", host), ("UNISONO_SECRET", &*secret)];
            set.extend(GOOD);
            identity(&set).unwrap().id.to_string()
        };
        // Nobody has this name yet; ranks wait for it when they meet.
        assert_eq!(id("rank-0.invalid"), format!("rank-0.invalid:29500/{secret}"));
        assert_eq!(id("fe80::1%lo"), format!("[fe80::1%1]:29500/{secret}"));
        assert_eq!(id("::1"), format!("[::1]:29500/{secret}"));
    }

    #[test]
    fn from_vars_without_secret_says_where_ranks_would_meet() {
        for (name, value, place) in [
            ("MASTER_ADDR", "rank-0.invalid", "rank-0.invalid:29500, whose name has no address yet"),
            ("UNISONO_BIND_ADDR", "192.0.2.7", "UNISONO_BIND_ADDR=192.0.2.7"),
        ] {
            let mut set = vec![(name, value)];
            set.extend(GOOD);
            let error = identity(&set).unwrap_err().to_string();
            assert!(error.contains(place) && error.contains("set UNISONO_SECRET"), "{error}");
        }
    }

    #[test]
    fn from_vars_knows_jobs_of_several_hosts() {
        for (local, several) in [("1", true), ("2", false)] {
            let mut set = vec![("LOCAL_WORLD_SIZE", local)];
            set.extend(GOOD);
            assert_eq!(identity(&set).unwrap().id.spans_hosts(), several);
        }
        assert!(!identity(&GOOD).unwrap().id.spans_hosts(), "nobody says so");
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
