//! Why ranks could not meet, as every one of them hears it.

use crate::schedule::Rank;
use std::fmt;

/// Why ranks could not meet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BootstrapError {
    /// Some ranks did not come in time.
    RanksMissing {
        /// Which.
        missing: Vec<Rank>,
        /// How many there should be.
        ranks: usize,
        /// Who came instead and was sent away: a wrong secret, another version.
        rejected: Vec<String>,
    },
    /// Two processes say that they are the same rank.
    DuplicateRank {
        /// Which.
        rank: Rank,
        /// Where they are.
        hosts: [String; 2],
    },
    /// A rank expects another number of ranks than rank 0.
    WorldSize {
        /// Which.
        rank: Rank,
        /// Where it is.
        host: String,
        /// How many it expects.
        expects: usize,
        /// How many rank 0 expects.
        root_expects: usize,
    },
    /// Two ranks have settings that must be equal and are not.
    Settings {
        /// The two.
        ranks: [Rank; 2],
        /// Where they are.
        hosts: [String; 2],
        /// What each is set to.
        settings: [String; 2],
    },
    /// A rank ended, or was cut off, after it had come and before all were connected.
    Died {
        /// Which.
        rank: Rank,
        /// Where it was.
        host: String,
        /// What was seen.
        what: String,
    },
    /// Two ranks could not connect to each other.
    Unreachable {
        /// The one that tried.
        rank: Rank,
        /// The one it tried to reach.
        peer: Rank,
        /// What was seen.
        what: String,
    },
    /// The other side of this rank's connection does not prove the same secret.
    Secret {
        /// Its address.
        address: String,
        /// What was seen.
        what: String,
    },
    /// The other side speaks another version of the protocol.
    Version {
        /// Its address.
        address: String,
        /// Its version.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// Rank 0 was not to be reached in time.
    RootUnreachable {
        /// Where it should be.
        address: String,
        /// What was seen.
        what: String,
    },
    /// This rank cannot listen where the others should find it.
    Listen {
        /// Where.
        address: String,
        /// What was seen.
        what: String,
    },
    /// Anything else.
    Other {
        /// What was seen.
        what: String,
    },
}

use BootstrapError as Failure;

impl BootstrapError {
    /// Says which rank told of it, where it does not name one itself.
    pub(crate) fn with_rank(self, rank: Rank) -> Self {
        match self {
            Failure::Other { what } => Failure::Other { what: format!("rank {rank}: {what}") },
            named => named,
        }
    }

    /// What the reader can do.
    pub(crate) fn help(&self) -> &'static str {
        match self {
            Failure::RanksMissing { .. } => {
                "look at those ranks' own output, and whether they can reach rank 0; UNISONO_JOIN_TIMEOUT_MS is \
                 how long they may take"
            }
            Failure::DuplicateRank { .. } => {
                "give every process a RANK of its own, and every job an address of its own"
            }
            Failure::WorldSize { .. } => {
                "give all ranks the same WORLD_SIZE, and every job an address of its own"
            }
            Failure::Settings { .. } => "give all ranks the same UNISONO_* settings",
            Failure::Died { .. } => "look at that rank's own output and exit code, then restart the job",
            Failure::Unreachable { .. } => {
                "check names, routes and firewalls between the two, or set UNISONO_BIND_ADDR"
            }
            Failure::Secret { .. } => {
                "give all ranks the same UNISONO_ID or UNISONO_SECRET, and look whether the other side still runs"
            }
            Failure::Version { .. } => "run the same build of unisono on all ranks",
            Failure::RootUnreachable { .. } => {
                "check that rank 0 runs, at this address, and that no firewall is in between"
            }
            Failure::Listen { .. } => "choose another address or port, or end the job that uses it",
            Failure::Other { .. } => "check the launch parameters of the ranks named",
        }
    }

    /// Whether this is how another failure came to be: an end explains why nobody could connect.
    pub(crate) fn is_cause_of(&self, other: &Self) -> bool {
        matches!(self, Failure::Died { .. })
            && matches!(other, Failure::Unreachable { .. } | Failure::Other { .. })
    }

    /// As the fields of one line.
    pub(crate) fn encode(&self) -> String {
        let list = |ranks: &[Rank]| ranks.iter().map(Rank::to_string).collect::<Vec<_>>().join(",");
        let fields = match self {
            Failure::RanksMissing { missing, ranks, rejected: strangers } => {
                let head = ["missing".to_owned(), list(missing), ranks.to_string()];
                head.into_iter().chain(strangers.iter().cloned()).collect()
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
        let own = |text: &str| text.to_owned();
        Some(match fields[..] {
            ["missing", missing, ranks, ref strangers @ ..] => Failure::RanksMissing {
                missing: list(missing)?,
                ranks: ranks.parse().ok()?,
                rejected: strangers.iter().copied().map(own).collect(),
            },
            ["twice", rank, one, other] => {
                Failure::DuplicateRank { rank: rank.parse().ok()?, hosts: [own(one), own(other)] }
            }
            ["world", rank, host, expects, root_expects] => Failure::WorldSize {
                rank: rank.parse().ok()?,
                host: own(host),
                expects: expects.parse().ok()?,
                root_expects: root_expects.parse().ok()?,
            },
            ["settings", ranks, one, other, setting, other_setting] => Failure::Settings {
                ranks: list(ranks)?.try_into().ok()?,
                hosts: [own(one), own(other)],
                settings: [own(setting), own(other_setting)],
            },
            ["died", rank, host, what] => {
                Failure::Died { rank: rank.parse().ok()?, host: own(host), what: own(what) }
            }
            ["unreachable", ranks, what] => {
                let [rank, peer] = list(ranks)?.try_into().ok()?;
                Failure::Unreachable { rank, peer, what: own(what) }
            }
            ["secret", address, what] => Failure::Secret { address: own(address), what: own(what) },
            ["version", address, theirs, ours] => Failure::Version {
                address: own(address),
                theirs: theirs.parse().ok()?,
                ours: ours.parse().ok()?,
            },
            ["no root", address, what] => Failure::RootUnreachable { address: own(address), what: own(what) },
            ["listen", address, what] => Failure::Listen { address: own(address), what: own(what) },
            ["other", what] => Failure::Other { what: own(what) },
            _ => return None,
        })
    }
}

impl fmt::Display for BootstrapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::RanksMissing { missing, ranks, rejected: strangers } => {
                let names: Vec<String> = missing.iter().map(Rank::to_string).collect();
                write!(f, "{} of {ranks} ranks did not come in time: {}", missing.len(), names.join(", "))?;
                if !strangers.is_empty() {
                    write!(f, " (somebody else did: {})", strangers.join("; "))?;
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
                write!(f, "rank {rank} on {host} was lost while ranks were meeting ({what})")
            }
            Failure::Unreachable { rank, peer, what } => {
                write!(f, "rank {rank} could not connect to rank {peer}: {what}")
            }
            Failure::Secret { address, what } => {
                write!(f, "{address} did not prove the job's secret: {what}")
            }
            Failure::Version { address, theirs, ours } => {
                write!(f, "{address} speaks protocol version {theirs}, this is {ours}")
            }
            Failure::RootUnreachable { address, what } => {
                write!(f, "rank 0 was not to be reached at {address} in time ({what})")
            }
            Failure::Listen { address, what } => write!(f, "cannot listen at {address}: {what}"),
            Failure::Other { what } => f.write_str(what),
        }
    }
}

impl From<unisono_transports::Error> for BootstrapError {
    fn from(error: unisono_transports::Error) -> Self {
        use unisono_transports::Error as From;
        match error {
            From::AuthFailed { peer, what } => Failure::Secret { address: peer, what },
            From::VersionMismatch { peer, theirs, ours } => Failure::Version { address: peer, theirs, ours },
            other => Failure::Other { what: other.to_string() },
        }
    }
}

/// Between fields; no name has it.
const SEPARATOR: char = '\x1f';

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bootstrap_error_round_trips_and_has_help() {
        let own = |text: &str| text.to_owned();
        let failures = [
            Failure::RanksMissing { missing: vec![2, 5], ranks: 6, rejected: Vec::new() },
            Failure::RanksMissing { missing: vec![0], ranks: 6, rejected: vec![own("one"), own("two")] },
            Failure::DuplicateRank { rank: 3, hosts: [own("a (pid 1)"), own("b (pid 2)")] },
            Failure::WorldSize { rank: 1, host: own("a"), expects: 3, root_expects: 2 },
            Failure::Settings { ranks: [1, 0], hosts: [own("a"), own("b")], settings: [own("x"), own("y")] },
            Failure::Died { rank: 7, host: own("a"), what: own("closed") },
            Failure::Unreachable { rank: 7, peer: 1, what: own("refused") },
            Failure::Secret { address: own("[::1]:7"), what: own("wrong") },
            Failure::Version { address: own("[::1]:7"), theirs: 2, ours: 1 },
            Failure::RootUnreachable { address: own("[::1]:7"), what: own("refused") },
            Failure::Listen { address: own("[::1]:7"), what: own("in use") },
            Failure::Other { what: own("who knows") },
        ];
        for failure in failures {
            assert!(!failure.to_string().is_empty() && !failure.help().is_empty());
            assert_eq!(Failure::decode(&failure.encode()), Some(failure));
        }
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
