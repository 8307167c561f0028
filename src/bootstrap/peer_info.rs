//! What ranks and root tell each other, as text lines: short, bounded, and parsed with care.

use crate::bootstrap::RankInfo;
use crate::bootstrap::connect::Listeners;
use crate::bootstrap::cpu_mask::CpuMask;
use crate::bootstrap::host;
use crate::config::{Config, Transport};
use crate::error::bootstrap::BootstrapError;
use crate::schedule::Rank;
use std::net::SocketAddr;
use std::time::Instant;
use unisono_transports::sys::socket::Stream;
use unisono_transports::{Error, Result};

/// One rank, as it presents itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerInfo {
    pub(crate) rank: Rank,
    pub(crate) ranks: usize,
    /// Name and process, for errors.
    pub(crate) host: String,
    /// Equal on ranks that can share memory.
    pub(crate) host_id: String,
    /// The cores that it may use.
    pub(crate) cpu_mask: CpuMask,
    /// Where it listens for TCP.
    pub(crate) tcp: SocketAddr,
    /// Where it listens within the host.
    pub(crate) unix: String,
    /// Everything that must be equal on all ranks.
    pub(crate) settings: String,
}

/// What the root says, or a rank reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RootReply {
    /// Everybody is here.
    Table {
        /// Number of this meeting.
        session: u64,
        /// All ranks, in order.
        peer_infos: Vec<PeerInfo>,
    },
    /// All is well.
    Ready,
    /// It will not be.
    Failed(BootstrapError),
}

impl PeerInfo {
    pub(crate) fn local(identity: &RankInfo, config: &Config, doors: &Listeners) -> Self {
        let transport = match config.transport {
            Transport::Auto => "auto",
            Transport::Shm => "shm",
            Transport::Tcp => "tcp",
        };
        Self {
            rank: identity.rank,
            ranks: identity.ranks,
            host: config.host.replace('\n', " "),
            host_id: host::identity(),
            cpu_mask: CpuMask::current(),
            tcp: doors.tcp_address(),
            unix: doors.unix_name().to_owned(),
            settings: format!(
                "{:?}, {} sockets, {} bytes of cache, transport {transport}, table {:x}",
                config.geometry(),
                config.sockets_per_peer,
                config.cache_bytes,
                config.tuning_table.digest()
            ),
        }
    }

    /// Whether these are the ranks of one host, and more than all of them together have cores. Quotas are not known, nor sets of
    /// cores too large to be told.
    pub(crate) fn are_oversubscribed(all: &[PeerInfo]) -> bool {
        let cores = all.iter().fold(CpuMask::default(), |all, record| all.union(record.cpu_mask));
        let one_host = all.iter().all(|record| record.host_id == all[0].host_id);
        one_host && (1..all.len()).contains(&cores.count())
    }

    pub(crate) fn encode(&self) -> String {
        let PeerInfo {
            rank,
            ranks,
            host,
            host_id: identity,
            cpu_mask: cores,
            tcp,
            unix,
            settings: agreement,
        } = self;
        format!("{rank}\n{ranks}\n{host}\n{identity}\n{}\n{tcp}\n{unix}\n{agreement}", cores.encode())
    }

    pub(crate) fn decode(text: &str) -> Option<Self> {
        let lines: Vec<&str> = text.split('\n').collect();
        let [rank, ranks, host, identity, cores, tcp, unix, agreement] = lines[..] else {
            return None;
        };
        Some(Self {
            rank: rank.parse().ok()?,
            ranks: ranks.parse().ok()?,
            host: host.to_owned(),
            host_id: identity.to_owned(),
            cpu_mask: CpuMask::decode(cores)?,
            tcp: tcp.parse().ok()?,
            unix: unix.to_owned(),
            settings: agreement.to_owned(),
        })
    }
}

/// What a rank says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JoinRequest {
    /// Who it is.
    Rank(PeerInfo),
    /// That it has no place where others could reach it.
    Failure(BootstrapError),
}

impl JoinRequest {
    pub(crate) fn decode(text: &str) -> Option<Self> {
        match RootReply::decode(text) {
            Some(RootReply::Failed(failure)) => Some(JoinRequest::Failure(failure)),
            Some(RootReply::Ready | RootReply::Table { .. }) => None,
            None => PeerInfo::decode(text).map(JoinRequest::Rank),
        }
    }
}

impl RootReply {
    pub(crate) fn encode(&self) -> String {
        match self {
            RootReply::Table { session, peer_infos: records } => {
                let records: Vec<String> = records.iter().map(PeerInfo::encode).collect();
                format!("table {session}\0{}", records.join("\0"))
            }
            RootReply::Ready => "ready".to_owned(),
            RootReply::Failed(failure) => format!("failed {}", failure.encode()),
        }
    }

    pub(crate) fn decode(text: &str) -> Option<Self> {
        if text == "ready" {
            return Some(RootReply::Ready);
        }
        if let Some(failure) = text.strip_prefix("failed ") {
            return BootstrapError::decode(failure).map(RootReply::Failed);
        }
        let mut parts = text.strip_prefix("table ")?.split('\0');
        let session = parts.next()?.parse().ok()?;
        let records = parts.map(PeerInfo::decode).collect::<Option<Vec<_>>>()?;
        (!records.is_empty()).then_some(RootReply::Table { session, peer_infos: records })
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
        return Err(Error::AuthFailed { peer: stream.peer(), what });
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes, deadline)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Texts as they come from ranks and from the root.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing {
    use super::{JoinRequest, RootReply};

    /// What a rank says first, to the root.
    pub(crate) fn join_request(text: &str) {
        if let Some(JoinRequest::Rank(record)) = JoinRequest::decode(text) {
            let again = JoinRequest::decode(&record.encode());
            assert_eq!(again, Some(JoinRequest::Rank(record)));
        }
    }

    /// What the root says.
    pub(crate) fn root_reply(text: &str) {
        let verdict = RootReply::decode(text);
        if verdict.is_some() && (!text.starts_with("failed") || !text.contains('\0')) {
            assert_eq!(verdict.as_ref().and_then(|verdict| RootReply::decode(&verdict.encode())), verdict);
        }
    }
}

/// A table of tens of thousands of ranks fits.
const TEXT_BYTES_MAX: usize = 16 << 20;

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(rank: Rank) -> PeerInfo {
        PeerInfo {
            rank,
            ranks: 2,
            host: "host (pid 7)".to_owned(),
            host_id: "a b c".to_owned(),
            cpu_mask: CpuMask::from_cores(&[0, 70]),
            tcp: "[::1]:80".parse().unwrap(),
            unix: "0af".to_owned(),
            settings: "same".to_owned(),
        }
    }

    #[test]
    fn oversubscribed_when_one_host_has_fewer_cores() {
        let ranks = |count| (0..count).map(record).collect::<Vec<_>>();
        assert!(PeerInfo::are_oversubscribed(&ranks(3)) && !PeerInfo::are_oversubscribed(&ranks(2)));
        let alter = |alteration: fn(&mut PeerInfo)| {
            let mut records = ranks(3);
            alteration(&mut records[1]);
            PeerInfo::are_oversubscribed(&records)
        };
        assert!(alter(|record| record.cpu_mask = CpuMask::from_cores(&[70])), "a part of the others'");
        assert!(!alter(|record| record.cpu_mask = CpuMask::from_cores(&[1])), "one of its own");
        assert!(!alter(|record| record.host_id.push('d')), "one is elsewhere");
        let unknown = PeerInfo { cpu_mask: CpuMask::default(), ..record(0) };
        assert!(!PeerInfo::are_oversubscribed(&[unknown.clone(), unknown]));
    }

    #[test]
    fn root_reply_round_trips() {
        let table = RootReply::Table { session: u64::MAX, peer_infos: vec![record(0), record(1)] };
        let failure = BootstrapError::Other { what: "why\nnot".to_owned() };
        for verdict in [table, RootReply::Ready, RootReply::Failed(failure)] {
            assert_eq!(RootReply::decode(&verdict.encode()), Some(verdict));
        }
    }

    proptest! {
        #[test]
        fn decode_of_garbage_never_panics(text: String) {
            let _ = RootReply::decode(&text);
            let _ = PeerInfo::decode(&text);
        }
    }
}
