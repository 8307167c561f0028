//! What launchers put into the environment.

use crate::bootstrap::{RankInfo, UniqueId};
use crate::error::{Error, Result};
use std::net::{SocketAddr, ToSocketAddrs};
use unisono_transports::secure::handshake::Secret;

impl RankInfo {
    /// From `RANK` and `WORLD_SIZE`, and either `UNISONO_ID` (as `unisono run` gives it) or `MASTER_ADDR` and
    /// `MASTER_PORT` (as torchrun gives them) with the secret in `UNISONO_SECRET` or `UNISONO_SECRET_FILE`.
    ///
    /// On loopback the secret may be missing: the port and torchrun's run id then take its place, which keeps
    /// jobs apart but keeps nobody out, and is said in the log.
    ///
    /// # Errors
    /// Names the variable that is missing or cannot be understood.
    pub fn from_env() -> Result<Self> {
        Self::from_vars(|name| std::env::var(name).ok())
    }

    /// As [`RankInfo::from_env`], with variables that are had otherwise: another process's.
    ///
    /// # Errors
    /// As [`RankInfo::from_env`].
    pub fn from_vars(var: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let rank = parse_var(&var, "RANK")?;
        let ranks = parse_var(&var, "WORLD_SIZE")?;
        if rank >= ranks {
            return Err(Error::invalid_usage(format!("RANK={rank} is not below WORLD_SIZE={ranks}")));
        }
        let id = match var("UNISONO_ID") {
            Some(text) => {
                text.parse().map_err(|error| Error::invalid_usage(format!("UNISONO_ID: {error}")))?
            }
            None => id_from_parts(&var)?,
        };
        Ok(Self { rank, ranks, id })
    }
}

fn id_from_parts(var: &impl Fn(&str) -> Option<String>) -> Result<UniqueId> {
    let host = var("MASTER_ADDR").ok_or_else(|| missing_var("MASTER_ADDR"))?;
    let port = parse_var(var, "MASTER_PORT")?;
    let port =
        u16::try_from(port).map_err(|_| Error::invalid_usage(format!("MASTER_PORT={port} is no port")))?;
    let addresses = (host.as_str(), port).to_socket_addrs();
    let address = addresses.ok().and_then(|mut addresses| addresses.next());
    let address =
        address.ok_or_else(|| Error::invalid_usage(format!("MASTER_ADDR={host} is no known host")))?;
    // The launcher's own store listens on MASTER_PORT itself; ranks meet beside it.
    let own_port = var("TORCHELASTIC_RUN_ID").map_or(port, |_| adjacent_port(port));
    let address = SocketAddr::new(address.ip(), own_port);
    Ok(UniqueId::from_parts(address, secret(var, address)?))
}

fn secret(var: &impl Fn(&str) -> Option<String>, address: SocketAddr) -> Result<Secret> {
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
    let run = var("TORCHELASTIC_RUN_ID").unwrap_or_default();
    tracing::warn!("no UNISONO_SECRET: any process of this host could join the job");
    Ok(Secret::from_public(&format!("{address} {run}")))
}

fn parse_var(var: &impl Fn(&str) -> Option<String>, name: &str) -> Result<usize> {
    let text = var(name).ok_or_else(|| missing_var(name))?;
    text.parse().map_err(|_| Error::invalid_usage(format!("{name}={text} is not a whole number")))
}

fn missing_var(name: &str) -> Error {
    Error::invalid_usage(format!(
        "{name} is not set: start this program with `unisono run` or torchrun, or set it"
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
        for (name, value) in [("RANK", "one"), ("WORLD_SIZE", "-2"), ("MASTER_PORT", "70000"), ("RANK", "2")]
        {
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
}
