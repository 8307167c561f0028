//! Errors while ranks connect. All ranks get the same error.

use crate::schedule::Rank;
use std::fmt;
use unisono_transports::sys::rlimit::is_fd_exhausted;
use unisono_transports::text::printable;

/// The reason why ranks could not connect.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BootstrapError {
    /// Some ranks did not join in time.
    RanksMissing {
        /// The missing ranks.
        missing: Vec<Rank>,
        /// The number of ranks of the world.
        ranks: usize,
        /// Descriptions of connections that were rejected, for example because of a wrong secret or
        /// another version.
        rejected: Vec<String>,
        /// The addresses of rank 0, if only its own host can reach them.
        only_loopback: Option<String>,
    },
    /// Two processes have the same rank.
    DuplicateRank {
        /// The rank.
        rank: Rank,
        /// Their hosts.
        hosts: [String; 2],
    },
    /// A rank expects another number of ranks than rank 0.
    WorldSize {
        /// The rank.
        rank: Rank,
        /// Its host.
        host: String,
        /// The number of ranks that it expects.
        expects: usize,
        /// The number of ranks that rank 0 expects.
        root_expects: usize,
    },
    /// Two ranks have different settings that must be equal.
    Settings {
        /// The two ranks.
        ranks: [Rank; 2],
        /// Their hosts.
        hosts: [String; 2],
        /// The settings that differ, as a text for each rank.
        settings: [String; 2],
    },
    /// A rank ended or lost its connection after it had joined, and before all ranks were
    /// connected.
    Died {
        /// The rank.
        rank: Rank,
        /// Its host.
        host: String,
        /// The observation.
        what: String,
    },
    /// Two ranks could not connect to each other.
    Unreachable {
        /// The rank that tried.
        rank: Rank,
        /// The rank that it tried to reach.
        peer: Rank,
        /// The observation.
        what: String,
    },
    /// Two ranks of one host cannot share memory.
    SharedMemory {
        /// The rank that noticed.
        rank: Rank,
        /// The rank that owns the memory or should take it.
        peer: Rank,
        /// Message of the system.
        what: String,
    },
    /// A process has reached its limit of open files.
    OpenFiles {
        /// Its rank, if it is known.
        rank: Option<Rank>,
        /// Message of the system.
        what: String,
    },
    /// The other side of a connection did not prove that it knows this rank's secret.
    Secret {
        /// Its address.
        address: String,
        /// The observation.
        what: String,
    },
    /// The other side speaks another version of the protocol.
    Version {
        /// Its address.
        address: String,
        /// The version of the other side.
        theirs: u32,
        /// The version of this side.
        ours: u32,
    },
    /// Rank 0 could not be reached in time.
    RootUnreachable {
        /// Its address.
        address: String,
        /// The observation.
        what: String,
    },
    /// This rank cannot listen at the address where the others should find it.
    Listen {
        /// The address.
        address: String,
        /// The observation.
        what: String,
    },
    /// Any other failure.
    Other {
        /// The observation.
        what: String,
    },
}

use BootstrapError as Failure;

impl BootstrapError {
    /// Adds the reporting rank to a failure that names none.
    pub(crate) fn with_rank(self, rank: Rank) -> Self {
        match self {
            Failure::Other { what } => Failure::Other { what: format!("rank {rank}: {what}") },
            Failure::OpenFiles { rank: None, what } => Failure::OpenFiles { rank: Some(rank), what },
            named => named,
        }
    }

    /// Adds the origin of rank 0's address to a failure that a wrong address would explain.
    pub(crate) fn with_origin(self, origin: &str) -> Self {
        let explained = |what: &str| format!("{what}; {origin}");
        match self {
            Failure::RootUnreachable { address, what } => {
                Failure::RootUnreachable { address, what: explained(&what) }
            }
            Failure::Secret { address, what } => Failure::Secret { address, what: explained(&what) },
            Failure::Died { rank: 0, host, what } => Failure::Died { rank: 0, host, what: explained(&what) },
            Failure::DuplicateRank { .. } | Failure::WorldSize { .. } | Failure::Version { .. } => {
                Failure::Other { what: explained(&self.to_string()) }
            }
            other => other,
        }
    }

    /// The remedy, as advice to the user.
    pub(crate) fn help(&self) -> &'static str {
        match self {
            Failure::RanksMissing { only_loopback: Some(_), .. } => {
                "check the output of those ranks, or raise UNISONO_JOIN_TIMEOUT_MS; if they are on other hosts, set \
                 UNISONO_BIND_ADDR on rank 0 to its address in their network, or let MASTER_ADDR name that address"
            }
            Failure::RanksMissing { .. } => {
                "check the output of those ranks and whether they can reach rank 0, or raise \
                 UNISONO_JOIN_TIMEOUT_MS"
            }
            Failure::DuplicateRank { .. } => {
                "give every process a RANK of its own, and every job an address of its own"
            }
            Failure::WorldSize { .. } => {
                "give all ranks the same WORLD_SIZE, and every job an address of its own"
            }
            Failure::Settings { .. } => "give all ranks the same UNISONO_* settings",
            Failure::Died { .. } => "check the output and the exit code of that rank, then restart the job",
            Failure::Unreachable { .. } => {
                "check names, routes and firewalls between the two, or set UNISONO_BIND_ADDR"
            }
            Failure::SharedMemory { .. } => {
                "start the ranks of a host as one user with the same limits, or set UNISONO_TRANSPORT=tcp"
            }
            Failure::OpenFiles { .. } => {
                "raise `ulimit -n`, the limit of open files: while ranks connect, rank 0 needs three for \
                 each rank and 192 more"
            }
            Failure::Secret { .. } => {
                "give all ranks the same UNISONO_ID or UNISONO_SECRET, and check that the other side still runs"
            }
            Failure::Version { .. } => "run the same build of unisono on all ranks",
            Failure::RootUnreachable { what, .. } if what.contains("has no address") => {
                "check the name for typing errors and that the name servers know it, or raise UNISONO_JOIN_TIMEOUT_MS"
            }
            Failure::RootUnreachable { .. } => {
                "check that rank 0 runs, at this address, and that no firewall is in between"
            }
            Failure::Listen { what, .. } if what.contains("in use") => {
                "choose another port, or end the job that uses it"
            }
            Failure::Listen { .. } => "choose another address or port",
            Failure::Other { .. } => "check the launch parameters of the ranks named",
        }
    }

    /// Returns true if this failure explains `other`. A rank that ended explains failed
    /// connections, and so does a rank that has reached its limit of open files.
    pub(crate) fn is_cause_of(&self, other: &Self) -> bool {
        match self {
            Failure::OpenFiles { .. } => matches!(
                other,
                Failure::Died { .. }
                    | Failure::Unreachable { .. }
                    | Failure::SharedMemory { .. }
                    | Failure::Other { .. }
            ),
            Failure::Died { .. } => matches!(
                other,
                Failure::Unreachable { .. } | Failure::SharedMemory { .. } | Failure::Other { .. }
            ),
            Failure::SharedMemory { .. } => matches!(other, Failure::Unreachable { .. }),
            _ => false,
        }
    }

    /// Returns the failure as text, with all fields in one line.
    pub(crate) fn encode(&self) -> String {
        let list = |ranks: &[Rank]| ranks.iter().map(Rank::to_string).collect::<Vec<_>>().join(",");
        let fields = match self {
            Failure::RanksMissing { missing, ranks, rejected, only_loopback } => {
                let loopback = only_loopback.clone().unwrap_or_default();
                let head = ["missing".to_owned(), list(missing), ranks.to_string(), loopback];
                head.into_iter().chain(rejected.iter().cloned()).collect()
            }
            Failure::DuplicateRank { rank, hosts: [one, other] } => {
                vec!["twice".to_owned(), rank.to_string(), one.clone(), other.clone()]
            }
            Failure::WorldSize { rank, host, expects, root_expects } => {
                vec![
                    "world".to_owned(),
                    rank.to_string(),
                    host.clone(),
                    expects.to_string(),
                    root_expects.to_string(),
                ]
            }
            Failure::Settings { ranks, hosts, settings } => {
                let texts = hosts.iter().chain(settings).cloned();
                ["settings".to_owned(), list(ranks)].into_iter().chain(texts).collect()
            }
            Failure::Died { rank, host, what } => {
                vec!["died".to_owned(), rank.to_string(), host.clone(), what.clone()]
            }
            Failure::Unreachable { rank, peer, what } => {
                vec!["unreachable".to_owned(), list(&[*rank, *peer]), what.clone()]
            }
            Failure::SharedMemory { rank, peer, what } => {
                vec!["memory".to_owned(), list(&[*rank, *peer]), what.clone()]
            }
            Failure::OpenFiles { rank, what } => {
                vec!["files".to_owned(), rank.map_or_else(String::new, |rank| rank.to_string()), what.clone()]
            }
            Failure::Secret { address, what } => vec!["secret".to_owned(), address.clone(), what.clone()],
            Failure::Version { address, theirs, ours } => {
                vec!["version".to_owned(), address.clone(), theirs.to_string(), ours.to_string()]
            }
            Failure::RootUnreachable { address, what } => {
                vec!["no root".to_owned(), address.clone(), what.clone()]
            }
            Failure::Listen { address, what } => vec!["listen".to_owned(), address.clone(), what.clone()],
            Failure::Other { what } => vec!["other".to_owned(), what.clone()],
        };
        let clean: Vec<String> =
            fields.iter().map(|field: &String| field.replace([SEPARATOR, '\0'], " ")).collect();
        clean.join(&SEPARATOR.to_string())
    }

    pub(crate) fn decode(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.split(SEPARATOR).collect();
        let list =
            |text: &str| -> Option<Vec<Rank>> { text.split(',').map(|rank| rank.parse().ok()).collect() };
        let owned = |text: &str| printable(text).into_owned();
        Some(match fields[..] {
            ["missing", missing, ranks, only_loopback, ref rejected @ ..] => Failure::RanksMissing {
                missing: list(missing)?,
                ranks: ranks.parse().ok()?,
                rejected: rejected.iter().copied().map(owned).collect(),
                only_loopback: Some(owned(only_loopback)).filter(|text| !text.is_empty()),
            },
            ["twice", rank, first, second] => {
                Failure::DuplicateRank { rank: rank.parse().ok()?, hosts: [owned(first), owned(second)] }
            }
            ["world", rank, host, expects, root_expects] => Failure::WorldSize {
                rank: rank.parse().ok()?,
                host: owned(host),
                expects: expects.parse().ok()?,
                root_expects: root_expects.parse().ok()?,
            },
            ["settings", ranks, first, second, setting, other_setting] => Failure::Settings {
                ranks: list(ranks)?.try_into().ok()?,
                hosts: [owned(first), owned(second)],
                settings: [owned(setting), owned(other_setting)],
            },
            ["died", rank, host, what] => {
                Failure::Died { rank: rank.parse().ok()?, host: owned(host), what: owned(what) }
            }
            ["unreachable", ranks, what] => {
                let [rank, peer] = list(ranks)?.try_into().ok()?;
                Failure::Unreachable { rank, peer, what: owned(what) }
            }
            ["memory", ranks, what] => {
                let [rank, peer] = list(ranks)?.try_into().ok()?;
                Failure::SharedMemory { rank, peer, what: owned(what) }
            }
            ["files", rank, what] => {
                let rank = if rank.is_empty() { None } else { Some(rank.parse().ok()?) };
                Failure::OpenFiles { rank, what: owned(what) }
            }
            ["secret", address, what] => Failure::Secret { address: owned(address), what: owned(what) },
            ["version", address, theirs, ours] => Failure::Version {
                address: owned(address),
                theirs: theirs.parse().ok()?,
                ours: ours.parse().ok()?,
            },
            ["no root", address, what] => {
                Failure::RootUnreachable { address: owned(address), what: owned(what) }
            }
            ["listen", address, what] => Failure::Listen { address: owned(address), what: owned(what) },
            ["other", what] => Failure::Other { what: owned(what) },
            _ => return None,
        })
    }
}

impl fmt::Display for BootstrapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::RanksMissing { missing, ranks, rejected, only_loopback } => {
                let names: Vec<String> = missing.iter().map(Rank::to_string).collect();
                write!(f, "{} of {ranks} ranks did not come in time: {}", missing.len(), names.join(", "))?;
                if !rejected.is_empty() {
                    write!(f, " (rejected connections: {})", rejected.join("; "))?;
                }
                if let Some(addresses) = only_loopback {
                    write!(f, "; rank 0 listened at {addresses}, which no other host reaches")?;
                }
                Ok(())
            }
            Failure::DuplicateRank { rank, hosts: [one, other] } => {
                write!(f, "rank {rank} is there twice: on {one} and on {other}")
            }
            Failure::WorldSize { rank, host, expects, root_expects } => {
                write!(f, "rank {rank} on {host} expects {expects} ranks, but rank 0 expects {root_expects}")
            }
            Failure::Settings { ranks: [one, other], hosts, settings } => {
                let ([host, other_host], [setting, other_setting]) = (hosts, settings);
                write!(f, "ranks are set up differently: rank {one} on {host} has {setting}, ")?;
                write!(f, "rank {other} on {other_host} has {other_setting}")
            }
            Failure::Died { rank, host, what } => {
                write!(f, "rank {rank} on {host} was lost while ranks were connecting ({what})")
            }
            Failure::Unreachable { rank, peer, what } => {
                write!(f, "rank {rank} could not connect to rank {peer}: {what}")
            }
            Failure::SharedMemory { rank, peer, what } if rank == peer => {
                write!(f, "rank {rank} has no memory that other ranks could map: {what}")
            }
            Failure::SharedMemory { rank, peer, what } => {
                write!(f, "ranks {rank} and {peer} of one host cannot share memory: {what}")
            }
            Failure::OpenFiles { rank, what } => {
                let who = rank.map_or_else(|| "this process".to_owned(), |rank| format!("rank {rank}"));
                write!(f, "{who} may have no more descriptors while ranks are connecting: {what}")
            }
            Failure::Secret { address, what } => {
                write!(f, "{address} did not prove the job's secret: {what}")
            }
            Failure::Version { address, theirs, ours } => {
                write!(f, "{address} speaks protocol version {theirs}, this is {ours}")
            }
            Failure::RootUnreachable { address, what } => {
                write!(f, "rank 0 could not be reached at {address} in time ({what})")
            }
            Failure::Listen { address, what } => write!(f, "cannot listen at {address}: {what}"),
            Failure::Other { what } => f.write_str(what),
        }
    }
}

impl BootstrapError {
    /// Returns the failure of a process that has reached its limit of open files, if this is the
    /// error.
    pub(crate) fn open_files(rank: Option<Rank>, error: &unisono_transports::Error) -> Option<Self> {
        match error {
            unisono_transports::Error::System { what, source } if is_fd_exhausted(source) => {
                Some(Failure::OpenFiles { rank, what: format!("{what}: {source}") })
            }
            _ => None,
        }
    }

    /// Works as [`BootstrapError::open_files`], for the error of a rank that wanted to listen.
    pub(crate) fn open_files_of_listener(rank: Rank, error: &std::io::Error) -> Option<Self> {
        let failure = || Failure::OpenFiles { rank: Some(rank), what: format!("cannot listen: {error}") };
        is_fd_exhausted(error).then(failure)
    }
}

impl From<unisono_transports::Error> for BootstrapError {
    fn from(error: unisono_transports::Error) -> Self {
        use unisono_transports::Error as From;
        if let Some(failure) = Self::open_files(None, &error) {
            return failure;
        }
        match error {
            From::AuthFailed { peer, what } => Failure::Secret { address: peer, what },
            From::VersionMismatch { peer, theirs, ours } => Failure::Version { address: peer, theirs, ours },
            other => Failure::Other { what: other.to_string() },
        }
    }
}

/// The character between fields, which no name contains.
const SEPARATOR: char = '\x1f';

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bootstrap_error_round_trips_and_has_help() {
        let owned = |text: &str| text.to_owned();
        let failures = [
            Failure::RanksMissing {
                missing: vec![2, 5],
                ranks: 6,
                rejected: Vec::new(),
                only_loopback: Some(owned("127.0.1.1:5")),
            },
            Failure::RanksMissing {
                missing: vec![0],
                ranks: 6,
                rejected: vec![owned("one"), owned("two")],
                only_loopback: None,
            },
            Failure::DuplicateRank { rank: 3, hosts: [owned("a (pid 1)"), owned("b (pid 2)")] },
            Failure::WorldSize { rank: 1, host: owned("a"), expects: 3, root_expects: 2 },
            Failure::Settings {
                ranks: [1, 0],
                hosts: [owned("a"), owned("b")],
                settings: [owned("x"), owned("y")],
            },
            Failure::Died { rank: 7, host: owned("a"), what: owned("closed") },
            Failure::Unreachable { rank: 7, peer: 1, what: owned("refused") },
            Failure::SharedMemory { rank: 7, peer: 1, what: owned("another user") },
            Failure::OpenFiles { rank: Some(3), what: owned("too many") },
            Failure::OpenFiles { rank: None, what: owned("too many") },
            Failure::Secret { address: owned("[::1]:7"), what: owned("wrong") },
            Failure::Version { address: owned("[::1]:7"), theirs: 2, ours: 1 },
            Failure::RootUnreachable { address: owned("[::1]:7"), what: owned("refused") },
            Failure::Listen { address: owned("[::1]:7"), what: owned("in use") },
            Failure::Other { what: owned("who knows") },
        ];
        for failure in failures {
            assert!(!failure.to_string().is_empty() && !failure.help().is_empty());
            assert_eq!(Failure::decode(&failure.encode()), Some(failure));
        }
    }

    #[test]
    fn missing_descriptors_explain_closed_connections() {
        let what = "closed".to_owned();
        let files = Failure::OpenFiles { rank: Some(0), what: what.clone() };
        let closed = Failure::Unreachable { rank: 5, peer: 0, what: what.clone() };
        let unshared = Failure::SharedMemory { rank: 5, peer: 0, what };
        assert!(files.is_cause_of(&closed) && files.is_cause_of(&unshared));
        assert!(!closed.is_cause_of(&files) && !unshared.is_cause_of(&files));
        assert!(files.help().contains("ulimit -n"));
    }

    #[test]
    fn bootstrap_error_with_separators_decodes() {
        let nasty = Failure::Died { rank: 7, host: "a\x1fb\0c".to_owned(), what: "x".to_owned() };
        assert!(matches!(Failure::decode(&nasty.encode()), Some(Failure::Died { rank: 7, .. })));
    }

    proptest! {
        #[test]
        fn bootstrap_error_decode_of_garbage_never_panics(text: String) {
            let _ = Failure::decode(&text);
        }
    }
}
