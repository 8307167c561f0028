//! The messages between ranks and root, which are text lines of bounded length.

use crate::bootstrap::RankInfo;
use crate::bootstrap::connect::Listeners;
use crate::bootstrap::cpu_mask::CpuMask;
use crate::bootstrap::host;
use crate::config::interface::on_own_link;
use crate::config::{Config, Transport};
use crate::error::bootstrap::BootstrapError;
use crate::schedule::Rank;
use std::net::SocketAddr;
use std::time::Instant;
use unisono_transports::net::stream::Stream;
use unisono_transports::text::printable;
use unisono_transports::{Error, Result};

/// The description of a rank that the rank sends to the root, and the root to all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerInfo {
    pub(crate) rank: Rank,
    pub(crate) ranks: usize,
    /// Host name and process, for errors.
    pub(crate) host: String,
    /// Equal on ranks that can share memory.
    pub(crate) host_id: String,
    /// The cores that the rank may use.
    pub(crate) cpu_mask: CpuMask,
    /// The address where the rank listens for TCP.
    pub(crate) tcp: SocketAddr,
    /// The name of the local socket where the rank listens.
    pub(crate) unix: String,
    /// The settings that must be equal on all ranks.
    pub(crate) settings: String,
}

/// The root's reply to a rank, or a rank's report to the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RootReply {
    /// All ranks have joined.
    Table {
        /// The number of this meeting.
        session: u64,
        /// All ranks, in rank order.
        peer_infos: Vec<PeerInfo>,
    },
    /// All connections are made.
    Ready,
    /// The ranks cannot be connected.
    Failed(BootstrapError),
}

impl PeerInfo {
    pub(crate) fn local(identity: &RankInfo, config: &Config, listeners: &Listeners) -> Self {
        let transport = match config.transport {
            Transport::Auto => "auto",
            Transport::Shm => "shm",
            Transport::Tcp => "tcp",
        };
        Self {
            rank: identity.rank,
            ranks: identity.ranks,
            // Fields are lines, so a line break in the name would shift all fields after it.
            host: config.host.replace('\n', " "),
            host_id: host::identity(),
            cpu_mask: CpuMask::current(),
            tcp: listeners.tcp_address(),
            unix: listeners.unix_name().to_owned(),
            settings: settings_text(config, transport),
        }
    }

    /// Returns true if these are ranks of one host, and there are more ranks than cores for them.
    /// Quotas, and sets of cores that are too large to send, are not known.
    pub(crate) fn are_oversubscribed(infos: &[PeerInfo]) -> bool {
        let cores = infos.iter().fold(CpuMask::default(), |cores, info| cores.union(info.cpu_mask));
        let one_host = infos.iter().all(|info| info.host_id == infos[0].host_id);
        one_host && (1..infos.len()).contains(&cores.count())
    }

    /// Returns this description, with the scope of the connection to `root`, over which it came.
    pub(crate) fn seen_from(self, root: SocketAddr) -> Self {
        Self { tcp: on_own_link(self.tcp, root), ..self }
    }

    pub(crate) fn encode(&self) -> String {
        let PeerInfo { rank, ranks, host, host_id: identity, cpu_mask: cores, tcp, unix, settings } = self;
        format!("{rank}\n{ranks}\n{host}\n{identity}\n{}\n{tcp}\n{unix}\n{settings}", cores.encode())
    }

    pub(crate) fn decode(text: &str) -> Option<Self> {
        let lines: Vec<&str> = text.split('\n').collect();
        let [rank, ranks, host, identity, cores, tcp, unix, settings] = lines[..] else {
            return None;
        };
        Some(Self {
            rank: rank.parse().ok()?,
            ranks: ranks.parse().ok()?,
            // Errors show these texts, and those of a peer must not steer a terminal.
            host: printable(host).into_owned(),
            host_id: printable(identity).into_owned(),
            cpu_mask: CpuMask::decode(cores)?,
            tcp: tcp.parse().ok()?,
            unix: unix.to_owned(),
            settings: printable(settings).into_owned(),
        })
    }
}

/// The first message of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JoinRequest {
    /// The description of the rank, with its addresses.
    Rank(PeerInfo),
    /// The rank cannot listen for others.
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
            RootReply::Table { session, peer_infos: infos } => {
                let infos: Vec<String> = infos.iter().map(PeerInfo::encode).collect();
                format!("table {session}\0{}", infos.join("\0"))
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
        let infos = parts.map(PeerInfo::decode).collect::<Option<Vec<_>>>()?;
        (!infos.is_empty()).then_some(RootReply::Table { session, peer_infos: infos })
    }
}

/// Returns the settings that must be equal on all ranks, each as `NAME=value` with its name in the
/// environment.
fn settings_text(config: &Config, transport: &str) -> String {
    let sizes = [
        ("UNISONO_CHANNELS", config.channels),
        ("UNISONO_FIFO_DEPTH", config.fifo_depth),
        ("UNISONO_FIFO_SLOT_BYTES", config.fifo_slot_bytes),
        ("UNISONO_SHM_WINDOW_BYTES", config.shm_window_bytes),
        ("UNISONO_SYMMETRIC_HEAP_BYTES", config.symmetric_heap_bytes),
        ("UNISONO_SOCKETS_PER_PEER", config.sockets_per_peer),
        ("UNISONO_CACHE_BYTES", config.cache_bytes),
    ];
    let mut text: Vec<String> = sizes.iter().map(|(name, value)| format!("{name}={value}")).collect();
    text.push(format!("UNISONO_TRANSPORT={transport}"));
    text.push(format!("UNISONO_TUNING_FILE=(digest {:x})", config.tuning_table.digest()));
    text.join(", ")
}

/// Returns the settings that differ between two ranks, as a text for each rank.
pub(crate) fn differing_settings(settings: &str, other: &str) -> [String; 2] {
    let (settings, other): (Vec<&str>, Vec<&str>) =
        (settings.split(", ").collect(), other.split(", ").collect());
    let only = |these: &[&str], those: &[&str]| {
        let differing: Vec<&str> = these.iter().copied().filter(|setting| !those.contains(setting)).collect();
        differing.join(", ")
    };
    [only(&settings, &other), only(&other, &settings)]
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

/// Parsers of messages from ranks and from the root.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing {
    use super::{JoinRequest, RootReply};

    /// Parses the first message of a rank.
    pub(crate) fn join_request(text: &str) {
        if let Some(JoinRequest::Rank(info)) = JoinRequest::decode(text) {
            let again = JoinRequest::decode(&info.encode());
            assert_eq!(again, Some(JoinRequest::Rank(info)));
        }
    }

    /// Parses a reply of the root.
    pub(crate) fn root_reply(text: &str) {
        let reply = RootReply::decode(text);
        if reply.is_some() && (!text.starts_with("failed") || !text.contains('\0')) {
            assert_eq!(reply.as_ref().and_then(|reply| RootReply::decode(&reply.encode())), reply);
        }
    }
}

/// The longest text that is accepted. A table of tens of thousands of ranks fits.
const TEXT_BYTES_MAX: usize = 16 << 20;

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn info(rank: Rank) -> PeerInfo {
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
        let ranks = |count| (0..count).map(info).collect::<Vec<_>>();
        assert!(PeerInfo::are_oversubscribed(&ranks(3)) && !PeerInfo::are_oversubscribed(&ranks(2)));
        let alter = |alteration: fn(&mut PeerInfo)| {
            let mut infos = ranks(3);
            alteration(&mut infos[1]);
            PeerInfo::are_oversubscribed(&infos)
        };
        assert!(alter(|info| info.cpu_mask = CpuMask::from_cores(&[70])), "a part of the others'");
        assert!(!alter(|info| info.cpu_mask = CpuMask::from_cores(&[1])), "one of its own");
        assert!(!alter(|info| info.host_id.push('d')), "one is elsewhere");
        let unknown = PeerInfo { cpu_mask: CpuMask::default(), ..info(0) };
        assert!(!PeerInfo::are_oversubscribed(&[unknown.clone(), unknown]));
    }

    #[test]
    fn differing_settings_names_only_what_differs() {
        let config = Config::default();
        let other = Config { fifo_depth: 9, ..config.clone() };
        let [text, other_text] = [&config, &other].map(|config| settings_text(config, "auto"));
        assert_eq!(
            differing_settings(&text, &other_text),
            ["UNISONO_FIFO_DEPTH=4".to_owned(), "UNISONO_FIFO_DEPTH=9".to_owned()]
        );
        assert_eq!(differing_settings(&text, &text), [String::new(), String::new()]);
    }

    #[test]
    fn texts_of_peers_steer_no_terminal() {
        let info = PeerInfo { host: "\x1b[2Jhost".to_owned(), settings: "a\rb".to_owned(), ..info(1) };
        let decoded = PeerInfo::decode(&info.encode()).unwrap();
        assert_eq!((&*decoded.host, &*decoded.settings), ("\\u{1b}[2Jhost", "a\\u{d}b"));
        let failure = BootstrapError::Died { rank: 1, host: "h\x07".to_owned(), what: "\x1b]0;x".to_owned() };
        let Some(RootReply::Failed(failure)) = RootReply::decode(&RootReply::Failed(failure).encode()) else {
            panic!("it is a failure")
        };
        assert_eq!(failure.to_string().find(char::is_control), None, "{failure}");
        assert!(failure.to_string().contains("\\u{1b}]0;x"), "{failure}");
    }

    #[test]
    fn root_reply_round_trips() {
        let table = RootReply::Table { session: u64::MAX, peer_infos: vec![info(0), info(1)] };
        let failure = BootstrapError::Other { what: "why\nnot".to_owned() };
        for reply in [table, RootReply::Ready, RootReply::Failed(failure)] {
            assert_eq!(RootReply::decode(&reply.encode()), Some(reply));
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
