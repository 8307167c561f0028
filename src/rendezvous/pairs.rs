//! Connections between every two ranks, once all know of each other.

use super::Identity;
use super::failure;
use super::porch::Porch;
use super::record::Record;
use crate::config::{Config, Transport};
use crate::error::Result;
use crate::schedule::Rank;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};
use unisono_transports::auth::{self, Claims, Purpose};
use unisono_transports::control::Sockets;
use unisono_transports::pace::Patience;
use unisono_transports::segment::Segment;
use unisono_transports::shm::{self, Layout};
use unisono_transports::socket::Stream;
use unisono_transports::tcp::TcpLink;
use unisono_transports::{Error as TransportError, Link, Mesh, unix};

/// Where this rank can be reached by others.
pub(super) struct Doors {
    tcp: TcpListener,
    tcp_address: SocketAddr,
    unix: UnixListener,
    unix_name: String,
}

impl Doors {
    /// Listens on the configured address, or on the one that reaches the root.
    pub(super) fn open(config: &Config, interface: Option<IpAddr>) -> Result<Self> {
        let interface = config.bind.or(interface).unwrap_or(Ipv4Addr::LOCALHOST.into());
        let system = |error: std::io::Error| failure(format!("cannot listen on {interface}: {error}"));
        let tcp = TcpListener::bind((interface, 0)).map_err(system)?;
        tcp.set_nonblocking(true).map_err(system)?;
        let tcp_address = tcp.local_addr().map_err(system)?;
        let (unix, unix_name) = unix::listen()?;
        unix.set_nonblocking(true).map_err(system)?;
        tracing::info!(%tcp_address, "listening for peers");
        Ok(Self { tcp, tcp_address, unix, unix_name })
    }

    pub(super) fn tcp_address(&self) -> SocketAddr {
        self.tcp_address
    }

    pub(super) fn unix_name(&self) -> &str {
        &self.unix_name
    }

    fn accept(&self) -> Option<Stream> {
        if let Ok((stream, _)) = self.unix.accept() {
            return unix::same_user(&stream).is_ok().then_some(Stream::Unix(stream));
        }
        let (stream, _) = self.tcp.accept().ok()?;
        stream.set_nodelay(true).ok()?;
        Some(Stream::Tcp(stream))
    }
}

/// What connects this rank to one peer.
#[derive(Default)]
struct Pair {
    control: Option<Stream>,
    data: Vec<Option<Stream>>,
}

/// Everything that connecting needs to know.
struct Meeting<'m> {
    identity: &'m Identity,
    session: u64,
    deadline: Instant,
    /// For each rank, whether memory is shared with it.
    shared: Vec<bool>,
    sockets: usize,
}

/// Connects to every rank in `records`.
pub(super) fn connect(
    identity: &Identity,
    config: &Config,
    doors: Doors,
    session: u64,
    records: &[Record],
    deadline: Instant,
) -> Result<Mesh> {
    let own = &records[identity.rank];
    let same_host = |record: &Record| record.identity == own.identity;
    let shared: Vec<bool> =
        records.iter().map(|record| config.transport != Transport::Tcp && same_host(record)).collect();
    if let (Transport::Shm, Some(other)) = (config.transport, shared.iter().position(|&shared| !shared)) {
        let text = format!(
            "transport shm: rank {} on {} and rank {other} on {} are on different hosts",
            own.rank, own.host, records[other].host
        );
        return Err(failure(text));
    }
    let meeting = Meeting { identity, session, deadline, shared, sockets: config.sockets };
    let streams = std::thread::scope(|scope| -> Result<Vec<_>> {
        let accepting = scope.spawn(|| meeting.accept_all(&doors));
        let dialled = meeting.dial_all(records);
        let accepted =
            accepting.join().unwrap_or_else(|_| Err(failure("accepting connections panicked".to_owned())));
        let mut streams = dialled?;
        streams.extend(accepted?);
        Ok(streams)
    });
    meeting.mesh(config, streams?)
}

impl Meeting<'_> {
    fn ranks(&self) -> usize {
        self.identity.ranks
    }

    /// Connections that rank `peer` and this one have: control first, then data.
    fn streams_with(&self, peer: Rank) -> usize {
        if self.shared[peer] { 1 } else { 1 + self.sockets }
    }

    fn claims(&self, index: usize) -> Claims {
        let purpose = if index == 0 { Purpose::Control } else { Purpose::Data };
        let (rank, ranks) = (self.identity.rank as u32, self.ranks() as u32);
        Claims { purpose, rank, ranks, index: index as u32, session: self.session }
    }

    /// Connects to every lower rank.
    fn dial_all(&self, records: &[Record]) -> Result<Vec<(Rank, usize, Stream)>> {
        let mut streams = Vec::new();
        for record in &records[..self.identity.rank] {
            for index in 0..self.streams_with(record.rank) {
                let stream = self.dial(record, index).map_err(|error| self.explain(record.rank, &error))?;
                streams.push((record.rank, index, stream));
            }
        }
        Ok(streams)
    }

    fn dial(&self, record: &Record, index: usize) -> std::result::Result<Stream, TransportError> {
        let mut stream = match self.shared[record.rank] {
            true => unix::dial(&record.unix)?,
            false => Stream::dial(record.tcp, self.deadline)?,
        };
        auth::connect(&mut stream, self.identity.id.secret(), &self.claims(index), self.deadline)?;
        Ok(stream)
    }

    /// Waits for the connections of every higher rank.
    fn accept_all(&self, doors: &Doors) -> Result<Vec<(Rank, usize, Stream)>> {
        let higher = self.identity.rank + 1..self.ranks();
        let mut expected: Vec<(Rank, usize)> =
            higher.flat_map(|peer| (0..self.streams_with(peer)).map(move |index| (peer, index))).collect();
        let (porch, mut streams) = (Porch::new(), Vec::new());
        while !expected.is_empty() {
            if Instant::now() >= self.deadline {
                let (peer, _) = expected[0];
                return Err(failure(format!(
                    "rank {peer} did not connect to rank {} in time",
                    self.identity.rank
                )));
            }
            while porch.has_room()
                && let Some(mut stream) = doors.accept()
            {
                let secret = self.identity.id.secret().clone();
                porch.enter(self.deadline, move |patience| {
                    auth::accept(&mut stream, &secret, patience).ok().map(|claims| (stream, claims))
                });
            }
            // Whoever is not expected is a stranger, and strangers do not end a meeting.
            if let Some(Some((stream, claims))) = porch.next(ACCEPT_EVERY)
                && claims.session == self.session
                && let key = (claims.rank as Rank, claims.index as usize)
                && let Some(place) = expected.iter().position(|&expected| expected == key)
            {
                expected.swap_remove(place);
                streams.push((key.0, key.1, stream));
            }
        }
        Ok(streams)
    }

    fn mesh(&self, config: &Config, streams: Vec<(Rank, usize, Stream)>) -> Result<Mesh> {
        let (rank, ranks, geometry) = (self.identity.rank, self.ranks(), config.geometry());
        let mut pairs: Vec<Pair> = (0..ranks).map(|_| Pair::default()).collect();
        for (peer, index, stream) in streams {
            match index {
                0 => pairs[peer].control = Some(stream),
                _ => pairs[peer].data.push(Some(stream)),
            }
        }
        let own = Segment::create(Layout::new(ranks, &geometry)?.bytes())?;
        let segments = self.exchange_memory(&pairs, &own)?;
        let shm::Connected { mut links, window, .. } = shm::connect(rank, ranks, &geometry, own, segments)?;
        let mut watched: Vec<OwnedFd> = Vec::new();
        for (peer, pair) in
            pairs.iter_mut().enumerate().filter(|(peer, _)| *peer != rank && !self.shared[*peer])
        {
            let link =
                TcpLink::new(peer, &geometry, pair.data.iter_mut().filter_map(Option::take).collect())?;
            watched.extend(link.watch()?);
            links[peer] = Some(Box::new(link) as Box<dyn Link>);
        }
        let control = Sockets::new(pairs.into_iter().map(|pair| pair.control).collect())?;
        watched.extend(control.watch()?);
        let local = self.shared.iter().filter(|&&shared| shared).count().max(1);
        let transport = match local {
            _ if window.is_some() => "shm",
            1 => "tcp",
            _ => "mixed",
        };
        let mut pace = Patience::new(ranks).watching(watched);
        if transport == "tcp" {
            // A socket wakes its reader, so sleep comes early.
            pace = pace.sleeping_after(TCP_YIELDS);
        }
        let (control, pace) = (Box::new(control), Box::new(pace));
        Ok(Mesh { rank, ranks, geometry, links, window, control, pace, transport })
    }

    /// Gives every rank of this host this rank's memory, and gets theirs.
    fn exchange_memory(&self, pairs: &[Pair], own: &Segment) -> Result<Vec<Option<Segment>>> {
        let local =
            |(peer, pair): (Rank, &Pair)| pair.control.as_ref().filter(|_| self.shared[peer]).map(|_| peer);
        let peers: Vec<Rank> = pairs.iter().enumerate().filter_map(local).collect();
        for &peer in &peers {
            if let (Some(stream), Some(fd)) = (&pairs[peer].control, own.fd()) {
                unix::send_fds(stream, &[fd], self.deadline).map_err(|error| self.explain(peer, &error))?;
            }
        }
        let mut segments: Vec<Option<Segment>> = (0..self.ranks()).map(|_| None).collect();
        for peer in peers {
            let Some(stream) = &pairs[peer].control else { continue };
            let segment = unix::recv_fds(stream, 1, self.deadline)
                .and_then(|mut fds| Segment::attach(fds.remove(0), own.bytes()));
            segments[peer] = Some(segment.map_err(|error| self.explain(peer, &error))?);
        }
        Ok(segments)
    }

    fn explain(&self, peer: Rank, error: &TransportError) -> crate::Error {
        failure(format!("rank {} could not connect to rank {peer}: {error}", self.identity.rank))
    }
}

const ACCEPT_EVERY: Duration = Duration::from_micros(200);
/// Rounds of waiting over TCP before sleeping until something arrives.
const TCP_YIELDS: u32 = 50;
