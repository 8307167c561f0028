//! How a rank connects to all others, once it knows of them.

use crate::bootstrap::RankInfo;
use crate::bootstrap::local_exchange::SharedFds;
use crate::bootstrap::peer_info::PeerInfo;
use crate::config::{Config, Transport};
use crate::error::bootstrap::BootstrapError as Failure;
use crate::schedule::Rank;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;
use unisono_transports::control::{CombinedControl, LocalControl, RemoteControl};
use unisono_transports::secure::handshake::{self, HandshakeConfig, Hello, Purpose};
use unisono_transports::shm::liveness::{LivenessMonitor, LivenessPipe, liveness_pipe};
use unisono_transports::shm::segment::Segment;
use unisono_transports::shm::{self, Connected, Layout};
use unisono_transports::sys::listener::Listener;
use unisono_transports::sys::socket::{Stream, first_ready};
use unisono_transports::tcp::connect::acceptor::{Acceptor, Backoff, is_transient};
use unisono_transports::tcp::connect::lazy_link::{DialContext, LazyLink};
use unisono_transports::wait::AdaptiveWait;
use unisono_transports::{ControlChannel, Error as TransportError, Fabric, Geometry, Link};

type Result<T> = std::result::Result<T, Failure>;

/// Where this rank can be reached by others.
pub(crate) struct Listeners {
    tcp: Listener,
    tcp_address: SocketAddr,
    unix: Listener,
    unix_name: String,
}

impl Listeners {
    /// Listens on the configured address, or on the one that reaches the root.
    pub(crate) fn bind(rank: Rank, config: &Config, interface: Option<IpAddr>) -> Result<Self> {
        let interface = config.bind_addr.or(interface).unwrap_or(Ipv4Addr::LOCALHOST.into());
        let failed = |what: String| {
            let address = format!("{interface} for rank {rank} on {}", config.host);
            Failure::Listen { address, what }
        };
        let tcp = Listener::tcp((interface, 0).into()).map_err(|error| failed(error.to_string()))?;
        let tcp_address = tcp.address().ok_or_else(|| failed("it has no address".to_owned()))?;
        let (unix, unix_name) = Listener::unix()?;
        tracing::info!(%tcp_address, "listening for peers");
        Ok(Self { tcp, tcp_address, unix, unix_name })
    }

    pub(crate) fn tcp_address(&self) -> SocketAddr {
        self.tcp_address
    }

    pub(crate) fn unix_name(&self) -> &str {
        &self.unix_name
    }
}

/// One rank's way from the table of all ranks to its mesh.
pub(crate) struct PeerConnector<'m> {
    pub(crate) identity: &'m RankInfo,
    config: &'m Config,
    pub(crate) session: u64,
    pub(crate) peer_infos: Vec<PeerInfo>,
    pub(crate) root: &'m mut Stream,
    pub(crate) deadline: Instant,
    /// Why there will be no meeting, as the root has said.
    take_root_failure: Option<Failure>,
}

/// What a rank and its neighbours share.
struct LocalGroup {
    connected: Connected,
    liveness: LivenessPipe,
    monitor: LivenessMonitor,
}

impl<'m> PeerConnector<'m> {
    pub(crate) fn new(
        identity: &'m RankInfo,
        config: &'m Config,
        session: u64,
        records: Vec<PeerInfo>,
        root: &'m mut Stream,
        deadline: Instant,
    ) -> Result<Self> {
        if records.len() != identity.ranks {
            let what = format!("a table of {} ranks instead of {}", records.len(), identity.ranks);
            return Err(Failure::Other { what });
        }
        Ok(Self { identity, config, session, peer_infos: records, root, deadline, take_root_failure: None })
    }

    /// Why there will be no meeting, if the root has said so.
    pub(crate) fn heard(&mut self) -> Option<Failure> {
        self.take_root_failure.take()
    }

    pub(crate) fn rank(&self) -> Rank {
        self.identity.rank
    }

    fn ranks(&self) -> usize {
        self.identity.ranks
    }

    /// Connects to every other rank.
    pub(crate) fn connect(&mut self, doors: Listeners) -> Result<Fabric> {
        let (members, strangers) = self.partition_ranks()?;
        let doorman = match strangers.is_empty() {
            true => None,
            false => Some(self.start_acceptor(doors.tcp)?),
        };
        let neighbours = match members.len() {
            1 if !strangers.is_empty() => None,
            _ => Some(self.connect_local(&members, doors.unix)?),
        };
        let notes = match &doorman {
            Some(doorman) => Some(self.connect_control(doorman, &strangers)?),
            None => None,
        };
        Ok(self.build_fabric(&members, neighbours, doorman.zip(notes))?)
    }

    /// The ranks that this one shares memory with, itself included, and the others.
    fn partition_ranks(&self) -> Result<(Vec<Rank>, Vec<Rank>)> {
        let (own, transport) = (&self.peer_infos[self.rank()], self.config.transport);
        let shares = |rank: &Rank| {
            *rank == self.rank()
                || transport != Transport::Tcp && self.peer_infos[*rank].host_id == own.host_id
        };
        let (members, strangers): (Vec<Rank>, Vec<Rank>) = (0..self.ranks()).partition(shares);
        match strangers.first() {
            Some(&peer) if transport == Transport::Shm => {
                let what = format!(
                    "transport shm: they are on different hosts, {} and {}",
                    own.host, self.peer_infos[peer].host
                );
                Err(Failure::Unreachable { rank: self.rank(), peer, what })
            }
            _ => Ok((members, strangers)),
        }
    }

    fn start_acceptor(&self, door: Listener) -> Result<Acceptor> {
        let (terms, place) = (self.handshake_config(), (self.rank(), self.ranks()));
        Ok(Acceptor::spawn(door, &terms, self.session, place, self.config.sockets_per_peer)?)
    }

    /// Shares memory and lifelines with the ranks of this host.
    fn connect_local(&mut self, members: &[Rank], door: Listener) -> Result<LocalGroup> {
        let (rank, ranks, geometry) = (self.rank(), self.ranks(), self.config.geometry());
        let own = Segment::create(Layout::new(ranks, &geometry)?.bytes())?;
        let (held, end) = liveness_pipe()?;
        let gift = SharedFds { segment: own.duplicate_fd()?, liveness: end };
        let gifts = self.exchange_local(members, gift, door)?;
        let mut segments: Vec<Option<Segment>> = (0..ranks).map(|_| None).collect();
        let mut lines: Vec<_> = (0..ranks).map(|_| None).collect();
        for (&peer, gift) in members.iter().zip(gifts).filter(|(peer, _)| **peer != rank) {
            let segment = Segment::attach(gift.segment, own.bytes());
            segments[peer] = Some(segment.map_err(|error| unreachable(rank, peer, &error))?);
            lines[peer] = Some(gift.liveness);
        }
        let connected = shm::connect(rank, ranks, &geometry, own, segments)?;
        Ok(LocalGroup { connected, liveness: held, monitor: LivenessMonitor::new(lines)? })
    }

    /// One connection for notes with each rank of another host: the higher rank dials.
    fn connect_control(&mut self, doorman: &Acceptor, strangers: &[Rank]) -> Result<Vec<Option<Stream>>> {
        let rank = self.rank();
        let mut streams: Vec<Option<Stream>> = (0..self.ranks()).map(|_| None).collect();
        for &peer in strangers.iter().filter(|&&peer| peer < rank) {
            streams[peer] =
                Some(self.dial_peer(peer, |record, deadline| Stream::connect(record.tcp, deadline))?);
        }
        while let Some(&late) = strangers.iter().find(|&&peer| streams[peer].is_none()) {
            match doorman.next_control() {
                Some((peer, stream)) => streams[peer] = Some(stream),
                None => self.wait_readable(doorman.event_fd(), late)?,
            }
        }
        Ok(streams)
    }

    /// A connection to `peer`, tried again while its door is crowded; fails as soon as the root says something.
    pub(crate) fn dial_peer(
        &mut self,
        peer: Rank,
        reach: impl Fn(&PeerInfo, Instant) -> std::result::Result<Stream, TransportError>,
    ) -> Result<Stream> {
        let mut pauses = Backoff::default();
        loop {
            let reached = reach(&self.peer_infos[peer], self.deadline).and_then(|mut stream| {
                handshake::connect(&mut stream, &self.handshake_config(), &self.hello(), self.deadline)?;
                Ok(stream)
            });
            let resumes = Instant::now() + pauses.next_delay();
            match reached {
                Ok(stream) => return Ok(stream),
                Err(ref error) if is_transient(error) && resumes < self.deadline => {
                    if first_ready(&[self.root.as_fd()], resumes)?.is_some() {
                        return Err(self.recv_root_failure());
                    }
                }
                Err(error) => return Err(unreachable(self.rank(), peer, &error)),
            }
        }
    }

    pub(crate) fn handshake_config(&self) -> HandshakeConfig {
        self.identity.handshake_config(self.config)
    }

    /// What this rank says when it connects to another for notes, or to share memory.
    pub(crate) fn hello(&self) -> Hello {
        let (rank, ranks) = (self.rank() as u32, self.ranks() as u32);
        Hello { purpose: Purpose::Control, rank, ranks, index: 0, session: self.session }
    }

    fn build_fabric(
        &self,
        members: &[Rank],
        neighbours: Option<LocalGroup>,
        strangers: Option<(Acceptor, Vec<Option<Stream>>)>,
    ) -> std::result::Result<Fabric, TransportError> {
        let (rank, ranks, geometry) = (self.rank(), self.ranks(), self.config.geometry());
        let own = &self.peer_infos[rank].host_id;
        let mut pace =
            AdaptiveWait::new(self.peer_infos.iter().filter(|record| record.host_id == *own).count());
        if neighbours.is_none() {
            // A socket wakes its reader, so sleep comes early.
            pace = pace.sleep_after_yields(TCP_YIELDS);
        }
        let pace = pace.wake_on(Vec::new());
        let watcher = pace.watcher();
        let watch = |stream: &dyn AsFd| watcher.iter().for_each(|watcher| watcher.add(&stream.as_fd()));
        let mut links: Vec<Option<Box<dyn Link>>> = (0..ranks).map(|_| None).collect();
        let (mut window, mut local, mut remote) = (None, None, None);
        if let Some(LocalGroup { connected, liveness: lifeline, monitor: ends }) = neighbours {
            watch(&ends.fd());
            (links, window) = (connected.links, connected.window);
            local = Some(LocalControl::new(connected.mailboxes, lifeline, ends));
        }
        if let Some((doorman, notes)) = strangers {
            notes.iter().flatten().for_each(|stream| watch(stream));
            let common = self.dial_context(doorman, watcher.clone());
            let elsewhere = (0..ranks).filter(|peer| notes[*peer].is_some());
            for peer in elsewhere {
                let link = LazyLink::new(Arc::clone(&common), peer, self.peer_infos[peer].tcp);
                links[peer] = Some(Box::new(link));
            }
            let doors: Vec<SocketAddr> = self.peer_infos.iter().map(|record| record.tcp).collect();
            let sockets = RemoteControl::new(notes)?.with_keepalive(self.config.timeout)?;
            remote = Some(sockets.with_probe(common, &doors));
        }
        let transport = match members.len() {
            _ if window.is_some() => "shm",
            1 => "tcp",
            _ => "mixed",
        };
        let control: Box<dyn ControlChannel> = match (local, remote) {
            (Some(local), Some(remote)) => Box::new(CombinedControl(local, remote)),
            (Some(local), None) => Box::new(local),
            (None, Some(remote)) => Box::new(remote),
            (None, None) => return Err(TransportError::InvalidUsage("a rank without others".to_owned())),
        };
        let crowded = PeerInfo::are_oversubscribed(&self.peer_infos);
        Ok(Fabric {
            rank,
            ranks,
            geometry,
            links,
            window,
            control,
            wait: Box::new(pace),
            transport,
            oversubscribed: crowded,
        })
    }

    /// What the links to ranks of other hosts have in common.
    fn dial_context(
        &self,
        doorman: Acceptor,
        watcher: Option<unisono_transports::wait::Watcher>,
    ) -> Arc<DialContext> {
        watcher.iter().for_each(|watcher| doorman.set_watcher(watcher.clone()));
        Arc::new(DialContext {
            rank: self.rank(),
            ranks: self.ranks(),
            session: self.session,
            terms: self.handshake_config(),
            sockets: self.config.sockets_per_peer,
            geometry: Geometry {
                slots: self.config.fifo_depth * TCP_FIFO_DEPTH_FACTOR,
                ..self.config.geometry()
            },
            timeout: self.config.timeout,
            acceptor: doorman,
            watcher,
        })
    }

    /// Waits until `fd`, which waits for `peer`, can be read; fails as soon as the root says something.
    pub(crate) fn wait_readable(&mut self, fd: BorrowedFd<'_>, peer: Rank) -> Result<()> {
        match first_ready(&[self.root.as_fd(), fd], self.deadline)? {
            Some(0) => Err(self.recv_root_failure()),
            Some(_) => Ok(()),
            None => self.check_deadline(peer),
        }
    }

    /// Fails if it is too late to wait for `peer`.
    pub(crate) fn check_deadline(&self, peer: Rank) -> Result<()> {
        if Instant::now() < self.deadline {
            return Ok(());
        }
        let what = "it did not come in time".to_owned();
        Err(Failure::Unreachable { rank: self.rank(), peer, what })
    }

    /// The root speaks before this rank has reported: somebody else has failed.
    pub(crate) fn recv_root_failure(&mut self) -> Failure {
        let failure = match crate::bootstrap::recv_from_root(self.root, self.deadline) {
            Err(failure) => failure,
            Ok(_) => Failure::Other { what: "the root spoke out of turn".to_owned() },
        };
        self.take_root_failure.insert(failure).clone()
    }
}

pub(crate) fn unreachable(rank: Rank, peer: Rank, error: &TransportError) -> Failure {
    Failure::Unreachable { rank, peer, what: error.to_string() }
}

/// Rounds of waiting over TCP before sleeping until something arrives.
const TCP_YIELDS: u32 = 50;
/// Messages on their way for each slot of a FIFO: a slot costs memory only when one waits in it, and whoever
/// shares a core with its peers sends more before it has to give way.
const TCP_FIFO_DEPTH_FACTOR: usize = 4;
