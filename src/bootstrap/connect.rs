//! Connects a rank to all other ranks, whose addresses are in the table of ranks.

use crate::bootstrap::RankInfo;
use crate::bootstrap::local_exchange::SharedFds;
use crate::bootstrap::peer_info::PeerInfo;
use crate::config::{Config, Interface, Transport};
use crate::error::bootstrap::BootstrapError as Failure;
use crate::schedule::Rank;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;
use unisono_transports::control::{CombinedControl, LocalControl, RemoteControl};
use unisono_transports::net::handshake::{self, HandshakeConfig, Hello, Purpose};
use unisono_transports::net::listener::Listener;
use unisono_transports::net::stream::Stream;
use unisono_transports::shm::liveness::{LivenessMonitor, LivenessPipe, liveness_pipe};
use unisono_transports::shm::{self, Connected, Layout};
use unisono_transports::sys::rlimit;
use unisono_transports::sys::segment::Segment;
use unisono_transports::sys::socket_calls::first_ready;
use unisono_transports::tcp::connect::acceptor::{Acceptor, Backoff, is_transient};
use unisono_transports::tcp::connect::lazy_link::{DialContext, LazyLink};
use unisono_transports::wait::AdaptiveWait;
use unisono_transports::{ControlChannel, Error as TransportError, Fabric, Geometry, Link};

type Result<T> = std::result::Result<T, Failure>;

/// The sockets at which this rank listens for others.
pub(crate) struct Listeners {
    tcp: Listener,
    tcp_address: SocketAddr,
    unix: Listener,
    unix_name: String,
}

impl Listeners {
    /// Listens at the configured address, or else at `interface`, through which this rank reaches
    /// the root.
    pub(crate) fn bind(rank: Rank, config: &Config, interface: Interface) -> Result<Self> {
        let interface = config.bind_addr.unwrap_or(interface);
        let failed = |what: String| {
            let address = format!("{interface} for rank {rank} on {}", config.host);
            Failure::Listen { address, what }
        };
        let tcp = Listener::tcp(interface.at_port(0)).map_err(|error| {
            Failure::open_files_of_listener(rank, &error).unwrap_or_else(|| failed(error.to_string()))
        })?;
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

/// Makes the fabric of one rank from the table of all ranks.
pub(crate) struct PeerConnector<'m> {
    pub(crate) identity: &'m RankInfo,
    config: &'m Config,
    pub(crate) session: u64,
    pub(crate) peer_infos: Vec<PeerInfo>,
    pub(crate) root: &'m mut Stream,
    pub(crate) deadline: Instant,
    /// The failure that the root has sent.
    take_root_failure: Option<Failure>,
}

/// The shared memory and the liveness pipes of the ranks of one host.
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
        peer_infos: Vec<PeerInfo>,
        root: &'m mut Stream,
        deadline: Instant,
    ) -> Result<Self> {
        if peer_infos.len() != identity.ranks {
            let what =
                format!("the root sent a table of {} ranks instead of {}", peer_infos.len(), identity.ranks);
            return Err(Failure::Other { what });
        }
        Ok(Self { identity, config, session, peer_infos, root, deadline, take_root_failure: None })
    }

    /// Takes the failure that the root has sent, if there is one.
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
    pub(crate) fn connect(&mut self, listeners: Listeners) -> Result<Fabric> {
        let (members, remote_ranks) = self.partition_ranks()?;
        let acceptor = match remote_ranks.is_empty() {
            true => None,
            // The acceptor runs first, so that ranks of other hosts need not wait until this rank
            // has shared its memory.
            false => Some(self.start_acceptor(listeners.tcp)?),
        };
        let local_group = match members.len() {
            1 if !remote_ranks.is_empty() => None,
            _ => Some(self.connect_local(&members, listeners.unix)?),
        };
        let control_streams = match &acceptor {
            Some(acceptor) => Some(self.connect_control(acceptor, &remote_ranks)?),
            None => None,
        };
        Ok(self.build_fabric(&members, local_group, acceptor.zip(control_streams))?)
    }

    /// Divides the ranks into those that share memory with this one, itself included, and the
    /// others.
    fn partition_ranks(&self) -> Result<(Vec<Rank>, Vec<Rank>)> {
        let (own_info, transport) = (&self.peer_infos[self.rank()], self.config.transport);
        let shares = |rank: &Rank| {
            *rank == self.rank()
                || transport != Transport::Tcp && self.peer_infos[*rank].host_id == own_info.host_id
        };
        let (members, remote_ranks): (Vec<Rank>, Vec<Rank>) = (0..self.ranks()).partition(shares);
        match remote_ranks.first() {
            Some(&peer) if transport == Transport::Shm => {
                let what = format!(
                    "transport shm needs one host, one user and one network namespace, but they differ: {} ({}) \
                     and {} ({})",
                    own_info.host,
                    own_info.host_id,
                    self.peer_infos[peer].host,
                    self.peer_infos[peer].host_id
                );
                Err(Failure::Unreachable { rank: self.rank(), peer, what })
            }
            _ => Ok((members, remote_ranks)),
        }
    }

    fn start_acceptor(&self, listener: Listener) -> Result<Acceptor> {
        let (terms, place) = (self.handshake_config(), (self.rank(), self.ranks()));
        Ok(Acceptor::spawn(listener, &terms, self.session, place, self.config.sockets_per_peer)?)
    }

    /// Shares memory and liveness pipes with the ranks of this host.
    fn connect_local(&mut self, members: &[Rank], listener: Listener) -> Result<LocalGroup> {
        let (rank, ranks, geometry) = (self.rank(), self.ranks(), self.config.geometry());
        let extents = Layout::new(ranks, &geometry)?.extents();
        let segment = Segment::create_parts(&extents).map_err(|error| no_shared_memory(rank, rank, error))?;
        #[cfg(test)]
        testing::check_sharing(rank)?;
        let (held, end) = liveness_pipe()?;
        let fds = SharedFds { segment: segment.duplicate_fd()?, liveness: end };
        let mut segments: Vec<Option<Segment>> = (0..ranks).map(|_| None).collect();
        let mut lines: Vec<_> = (0..ranks).map(|_| None).collect();
        self.exchange_local(members, fds, listener, &mut |peer, fds| {
            let attached = Segment::attach_parts(fds.segment, &extents);
            // The memory of a peer stays mapped without its descriptor, and descriptors are scarce.
            let attached = attached.and_then(|mut segment| segment.close_fd().map(|()| segment));
            segments[peer] = Some(attached.map_err(|error| no_shared_memory(rank, peer, error))?);
            lines[peer] = Some(fds.liveness);
            Ok(())
        })?;
        let connected = shm::connect(rank, ranks, &geometry, segment, segments)?;
        Ok(LocalGroup { connected, liveness: held, monitor: LivenessMonitor::new(lines)? })
    }

    /// Makes one control connection with each rank of another host. The rank with the higher number
    /// dials.
    fn connect_control(&mut self, acceptor: &Acceptor, remote_ranks: &[Rank]) -> Result<Vec<Option<Stream>>> {
        let rank = self.rank();
        let mut streams: Vec<Option<Stream>> = (0..self.ranks()).map(|_| None).collect();
        for &peer in remote_ranks.iter().filter(|&&peer| peer < rank) {
            streams[peer] =
                Some(self.dial_peer(peer, |record, deadline| Stream::connect(record.tcp, deadline))?);
        }
        while let Some(&late) = remote_ranks.iter().find(|&&peer| streams[peer].is_none()) {
            match acceptor.next_control() {
                Some((peer, stream)) => streams[peer] = Some(stream),
                None => self.wait_readable(acceptor.event_fd(), late)?,
            }
        }
        Ok(streams)
    }

    /// Connects to `peer`, and tries again while its backlog is full. Fails as soon as the root
    /// sends a failure.
    pub(crate) fn dial_peer(
        &mut self,
        peer: Rank,
        reach: impl Fn(&PeerInfo, Instant) -> std::result::Result<Stream, TransportError>,
    ) -> Result<Stream> {
        let mut backoff = Backoff::default();
        loop {
            let reached = reach(&self.peer_infos[peer], self.deadline).and_then(|mut stream| {
                handshake::connect(&mut stream, &self.handshake_config(), &self.hello(), self.deadline)?;
                Ok(stream)
            });
            let resumes = Instant::now() + backoff.next_delay();
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

    /// The first message of this rank's control connections and of its connections to share memory.
    pub(crate) fn hello(&self) -> Hello {
        let (rank, ranks) = (self.rank() as u32, self.ranks() as u32);
        Hello { purpose: Purpose::Control, rank, ranks, index: 0, session: self.session }
    }

    fn build_fabric(
        &self,
        members: &[Rank],
        local_group: Option<LocalGroup>,
        remote_ranks: Option<(Acceptor, Vec<Option<Stream>>)>,
    ) -> std::result::Result<Fabric, TransportError> {
        let (rank, ranks, geometry) = (self.rank(), self.ranks(), self.config.geometry());
        let host_id = &self.peer_infos[rank].host_id;
        let mut pace =
            AdaptiveWait::new(self.peer_infos.iter().filter(|record| record.host_id == *host_id).count());
        if local_group.is_none() {
            // A socket wakes its reader, so the wait sleeps after a few rounds.
            pace = pace.sleep_after_yields(TCP_YIELDS);
        }
        let mut pace = pace.wake_on(Vec::new());
        let watcher = pace.watcher();
        let watch = |stream: &dyn AsFd| watcher.iter().for_each(|watcher| watcher.add(&stream.as_fd()));
        let mut links: Vec<Option<Box<dyn Link>>> = (0..ranks).map(|_| None).collect();
        let (mut window, mut local, mut remote) = (None, None, None);
        if let Some(LocalGroup { connected, liveness: lifeline, monitor }) = local_group {
            watch(&monitor.fd());
            (links, window) = (connected.links, connected.window);
            pace = pace.woken_by(connected.sleepers);
            local = Some(LocalControl::new(connected.mailboxes, lifeline, monitor));
        }
        if let Some((acceptor, control_streams)) = remote_ranks {
            control_streams.iter().flatten().for_each(|stream| watch(stream));
            let context = self.dial_context(acceptor, watcher.clone());
            let elsewhere = (0..ranks).filter(|peer| control_streams[*peer].is_some());
            for peer in elsewhere {
                let link = LazyLink::new(Arc::clone(&context), peer, self.peer_infos[peer].tcp);
                links[peer] = Some(Box::new(link));
            }
            let listeners: Vec<SocketAddr> = self.peer_infos.iter().map(|record| record.tcp).collect();
            // Only control connections have a timeout of the system. It would also end a data
            // connection whose receiver computes for long:
            // docs/decisions/0016-failure-detection-without-a-heartbeat-thread.md.
            let sockets = RemoteControl::new(control_streams)?.with_keepalive(self.config.timeout)?;
            remote = Some(sockets.with_probe(context, &listeners));
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
            (None, None) => {
                return Err(TransportError::InvalidUsage("a group of one rank has no fabric".to_owned()));
            }
        };
        Ok(Fabric {
            rank,
            ranks,
            geometry,
            links,
            window,
            control,
            wait: Box::new(pace),
            transport,
            oversubscribed: PeerInfo::are_oversubscribed(&self.peer_infos),
        })
    }

    /// The state that the links to ranks of other hosts share.
    fn dial_context(
        &self,
        acceptor: Acceptor,
        watcher: Option<unisono_transports::wait::Watcher>,
    ) -> Arc<DialContext> {
        watcher.iter().for_each(|watcher| acceptor.set_watcher(watcher.clone()));
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
            acceptor,
            watcher,
        })
    }

    /// Waits until `fd`, on which data of `peer` is expected, can be read. Fails as soon as the
    /// root sends a failure.
    pub(crate) fn wait_readable(&mut self, fd: BorrowedFd<'_>, peer: Rank) -> Result<()> {
        match first_ready(&[self.root.as_fd(), fd], self.deadline)? {
            Some(0) => Err(self.recv_root_failure()),
            Some(_) => Ok(()),
            None => self.check_deadline(peer),
        }
    }

    /// Fails if the deadline has passed while `peer` is awaited.
    pub(crate) fn check_deadline(&self, peer: Rank) -> Result<()> {
        if Instant::now() < self.deadline {
            return Ok(());
        }
        let what = "it did not connect in time".to_owned();
        Err(Failure::Unreachable { rank: self.rank(), peer, what })
    }

    /// Receives the failure of another rank, if the root sends it before this rank has reported.
    pub(crate) fn recv_root_failure(&mut self) -> Failure {
        let failure = match crate::bootstrap::recv_from_root(self.root, self.deadline) {
            Err(failure) => failure,
            Ok(_) => Failure::Other { what: "the root sent an unexpected reply".to_owned() },
        };
        self.take_root_failure.insert(failure).clone()
    }
}

/// Returns the failure of two ranks of one host that cannot share memory. If descriptors ran out,
/// or a rank is silent or gone, the cause is not the memory, and TCP would not help.
pub(crate) fn no_shared_memory(rank: Rank, peer: Rank, error: TransportError) -> Failure {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
    match &error {
        TransportError::System { source, .. }
            if rlimit::is_fd_exhausted(source)
                || [BrokenPipe, ConnectionAborted, ConnectionReset].contains(&source.kind()) =>
        {
            unreachable(rank, peer, &error)
        }
        TransportError::System { .. } | TransportError::InvalidUsage(_) => {
            Failure::SharedMemory { rank, peer, what: error.to_string() }
        }
        _ => unreachable(rank, peer, &error),
    }
}

pub(crate) fn unreachable(rank: Rank, peer: Rank, error: &TransportError) -> Failure {
    let unreachable = || Failure::Unreachable { rank, peer, what: error.to_string() };
    Failure::open_files(Some(rank), error).unwrap_or_else(unreachable)
}

/// Rounds of waiting over TCP before a rank sleeps until something arrives.
const TCP_YIELDS: u32 = 50;
/// Messages in flight over TCP for each slot of a FIFO. A slot costs memory only while a message
/// waits in it, and a rank that shares a core with its peers can send more before it must yield.
const TCP_FIFO_DEPTH_FACTOR: usize = 4;

/// Failures that tests inject.
#[cfg(test)]
pub(crate) mod testing {
    use super::{Failure, Rank};
    use std::cell::Cell;

    thread_local! {
        /// This thread's rank cannot share memory.
        pub(crate) static DENY_SHARING: Cell<bool> = const { Cell::new(false) };
    }

    pub(super) fn check_sharing(rank: Rank) -> Result<(), Failure> {
        match DENY_SHARING.get() {
            true => Err(Failure::SharedMemory { rank, peer: rank, what: "denied by the test".to_owned() }),
            false => Ok(()),
        }
    }
}
