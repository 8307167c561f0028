//! What ranks and root tell each other, as text lines: short, bounded, and parsed with care.

use super::Identity;
use super::cores::Cores;
use super::failure::RendezvousError;
use super::host;
use super::peers::Doors;
use crate::config::{Config, Transport};
use crate::schedule::Rank;
use std::net::SocketAddr;
use std::time::Instant;
use unisono_transports::socket::Stream;
use unisono_transports::{Error, Result};

/// One rank, as it presents itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) rank: Rank,
    pub(super) ranks: usize,
    /// Name and process, for errors.
    pub(super) host: String,
    /// Equal on ranks that can share memory.
    pub(super) identity: String,
    /// The cores that it may use.
    pub(super) cores: Cores,
    /// Where it listens for TCP.
    pub(super) tcp: SocketAddr,
    /// Where it listens within the host.
    pub(super) unix: String,
    /// Everything that must be equal on all ranks.
    pub(super) agreement: String,
}

/// What the root says, or a rank reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Everybody is here.
    Table {
        /// Number of this meeting.
        session: u64,
        /// All ranks, in order.
        records: Vec<Record>,
    },
    /// All is well.
    Ready,
    /// It will not be.
    Failed(RendezvousError),
}

impl Record {
    pub(super) fn own(identity: &Identity, config: &Config, doors: &Doors) -> Self {
        let transport = match config.transport {
            Transport::Auto => "auto",
            Transport::Shm => "shm",
            Transport::Tcp => "tcp",
        };
        Self {
            rank: identity.rank,
            ranks: identity.ranks,
            host: config.host.replace('\n', " "),
            identity: host::identity(),
            cores: Cores::own(),
            tcp: doors.tcp_address(),
            unix: doors.unix_name().to_owned(),
            agreement: format!(
                "{:?}, {} sockets, {} bytes of cache, transport {transport}, table {:x}",
                config.geometry(),
                config.sockets,
                config.cache_bytes,
                config.table.digest()
            ),
        }
    }

    /// Whether these are the ranks of one host, and more than all of them together have cores. Quotas are not known, nor sets of
    /// cores too large to be told.
    pub(super) fn share_cores(all: &[Record]) -> bool {
        let cores = all.iter().fold(Cores::default(), |all, record| all.with(record.cores));
        let one_host = all.iter().all(|record| record.identity == all[0].identity);
        one_host && (1..all.len()).contains(&cores.count())
    }

    pub(super) fn encode(&self) -> String {
        let Record { rank, ranks, host, identity, cores, tcp, unix, agreement } = self;
        format!("{rank}\n{ranks}\n{host}\n{identity}\n{}\n{tcp}\n{unix}\n{agreement}", cores.encode())
    }

    pub(super) fn decode(text: &str) -> Option<Self> {
        let lines: Vec<&str> = text.split('\n').collect();
        let [rank, ranks, host, identity, cores, tcp, unix, agreement] = lines[..] else {
            return None;
        };
        Some(Self {
            rank: rank.parse().ok()?,
            ranks: ranks.parse().ok()?,
            host: host.to_owned(),
            identity: identity.to_owned(),
            cores: Cores::decode(cores)?,
            tcp: tcp.parse().ok()?,
            unix: unix.to_owned(),
            agreement: agreement.to_owned(),
        })
    }
}

/// What a rank says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Introduction {
    /// Who it is.
    Rank(Record),
    /// That it has no place where others could reach it.
    Failure(RendezvousError),
}

impl Introduction {
    pub(super) fn decode(text: &str) -> Option<Self> {
        match Verdict::decode(text) {
            Some(Verdict::Failed(failure)) => Some(Introduction::Failure(failure)),
            Some(Verdict::Ready | Verdict::Table { .. }) => None,
            None => Record::decode(text).map(Introduction::Rank),
        }
    }
}

impl Verdict {
    pub(super) fn encode(&self) -> String {
        match self {
            Verdict::Table { session, records } => {
                let records: Vec<String> = records.iter().map(Record::encode).collect();
                format!("table {session}\0{}", records.join("\0"))
            }
            Verdict::Ready => "ready".to_owned(),
            Verdict::Failed(failure) => format!("failed {}", failure.encode()),
        }
    }

    pub(super) fn decode(text: &str) -> Option<Self> {
        if text == "ready" {
            return Some(Verdict::Ready);
        }
        if let Some(failure) = text.strip_prefix("failed ") {
            return RendezvousError::decode(failure).map(Verdict::Failed);
        }
        let mut parts = text.strip_prefix("table ")?.split('\0');
        let session = parts.next()?.parse().ok()?;
        let records = parts.map(Record::decode).collect::<Option<Vec<_>>>()?;
        (!records.is_empty()).then_some(Verdict::Table { session, records })
    }
}

/// Sends a text with its length.
pub(crate) fn send_text(stream: &mut Stream, text: &str, deadline: Instant) -> Result<()> {
    stream.write_all(&(text.len() as u32).to_le_bytes(), deadline)?;
    stream.write_all(text.as_bytes(), deadline)
}

/// Receives a text of bounded length.
pub(crate) fn recv_text(stream: &mut Stream, deadline: Instant) -> Result<String> {
    let mut length = [0; 4];
    stream.read_exact(&mut length, deadline)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > TEXT_BYTES_MAX {
        let what = format!("it announces a text of {length} bytes");
        return Err(Error::Refused { peer: stream.peer(), what });
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes, deadline)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Texts as they come from ranks and from the root.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing {
    use super::{Introduction, Verdict};

    /// What a rank says first, to the root.
    pub(crate) fn introduction(text: &str) {
        if let Some(Introduction::Rank(record)) = Introduction::decode(text) {
            let again = Introduction::decode(&record.encode());
            assert_eq!(again, Some(Introduction::Rank(record)));
        }
    }

    /// What the root says.
    pub(crate) fn verdict(text: &str) {
        let verdict = Verdict::decode(text);
        if verdict.is_some() && (!text.starts_with("failed") || !text.contains('\0')) {
            assert_eq!(verdict.as_ref().and_then(|verdict| Verdict::decode(&verdict.encode())), verdict);
        }
    }
}

/// A table of tens of thousands of ranks fits.
const TEXT_BYTES_MAX: usize = 16 << 20;

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(rank: Rank) -> Record {
        Record {
            rank,
            ranks: 2,
            host: "host (pid 7)".to_owned(),
            identity: "a b c".to_owned(),
            cores: Cores::of(&[0, 70]),
            tcp: "[::1]:80".parse().unwrap(),
            unix: "0af".to_owned(),
            agreement: "same".to_owned(),
        }
    }

    #[test]
    fn ranks_share_cores_where_one_host_has_fewer() {
        let ranks = |count| (0..count).map(record).collect::<Vec<_>>();
        assert!(Record::share_cores(&ranks(3)) && !Record::share_cores(&ranks(2)));
        let alter = |alteration: fn(&mut Record)| {
            let mut records = ranks(3);
            alteration(&mut records[1]);
            Record::share_cores(&records)
        };
        assert!(alter(|record| record.cores = Cores::of(&[70])), "a part of the others'");
        assert!(!alter(|record| record.cores = Cores::of(&[1])), "one of its own");
        assert!(!alter(|record| record.identity.push('d')), "one is elsewhere");
        let unknown = Record { cores: Cores::default(), ..record(0) };
        assert!(!Record::share_cores(&[unknown.clone(), unknown]));
    }

    #[test]
    fn verdicts_survive_the_wire() {
        let table = Verdict::Table { session: u64::MAX, records: vec![record(0), record(1)] };
        let failure = RendezvousError::Other { what: "why\nnot".to_owned() };
        for verdict in [table, Verdict::Ready, Verdict::Failed(failure)] {
            assert_eq!(Verdict::decode(&verdict.encode()), Some(verdict));
        }
    }

    proptest! {
        #[test]
        fn garbage_is_refused_without_panic(text: String) {
            let _ = Verdict::decode(&text);
            let _ = Record::decode(&text);
        }
    }
}
