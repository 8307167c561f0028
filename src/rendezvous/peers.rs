//! How a rank connects to all others, once it knows of them.

use super::Identity;
use super::failure::RendezvousError as Failure;
use super::neighbours::Gift;
use super::record::Record;
use crate::config::{Config, Transport};
use crate::schedule::Rank;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;
use unisono_transports::auth::{self, Claims, Purpose, Terms};
use unisono_transports::control::{Everybody, Neighbours, Sockets};
use unisono_transports::doorman::{Doorman, Pauses, is_crowded};
use unisono_transports::lazy::{Dialling, LazyLink};
use unisono_transports::lifeline::{Lifeline, Watch, lifeline};
use unisono_transports::listener::Listener;
use unisono_transports::pace::Patience;
use unisono_transports::segment::Segment;
use unisono_transports::shm::{self, Connected, Layout};
use unisono_transports::socket::{Stream, first_ready};
use unisono_transports::{Control, Error as TransportError, Geometry, Link, Mesh};

type Result<T> = std::result::Result<T, Failure>;

/// Where this rank can be reached by others.
pub(super) struct Doors {
    tcp: Listener,
    tcp_address: SocketAddr,
    unix: Listener,
    unix_name: String,
}

impl Doors {
    /// Listens on the configured address, or on the one that reaches the root.
    pub(super) fn open(rank: Rank, config: &Config, interface: Option<IpAddr>) -> Result<Self> {
        let interface = config.bind.or(interface).unwrap_or(Ipv4Addr::LOCALHOST.into());
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

    pub(super) fn tcp_address(&self) -> SocketAddr {
        self.tcp_address
    }

    pub(super) fn unix_name(&self) -> &str {
        &self.unix_name
    }
}

/// One rank's way from the table of all ranks to its mesh.
pub(super) struct Meeting<'m> {
    pub(super) identity: &'m Identity,
    config: &'m Config,
    pub(super) session: u64,
    pub(super) records: Vec<Record>,
    pub(super) root: &'m mut Stream,
    pub(super) deadline: Instant,
    /// Why there will be no meeting, as the root has said.
    heard: Option<Failure>,
}

/// What a rank and its neighbours share.
struct Neighbourhood {
    connected: Connected,
    lifeline: Lifeline,
    watch: Watch,
}

impl<'m> Meeting<'m> {
    pub(super) fn new(
        identity: &'m Identity,
        config: &'m Config,
        session: u64,
        records: Vec<Record>,
        root: &'m mut Stream,
        deadline: Instant,
    ) -> Result<Self> {
        if records.len() != identity.ranks {
            let what = format!("a table of {} ranks instead of {}", records.len(), identity.ranks);
            return Err(Failure::Other { what });
        }
        Ok(Self { identity, config, session, records, root, deadline, heard: None })
    }

    /// Why there will be no meeting, if the root has said so.
    pub(super) fn heard(&mut self) -> Option<Failure> {
        self.heard.take()
    }

    pub(super) fn rank(&self) -> Rank {
        self.identity.rank
    }

    fn ranks(&self) -> usize {
        self.identity.ranks
    }

    /// Connects to every other rank.
    pub(super) fn connect(&mut self, doors: Doors) -> Result<Mesh> {
        let (members, strangers) = self.divide()?;
        let doorman = match strangers.is_empty() {
            true => None,
            false => Some(self.hire(doors.tcp)?),
        };
        let neighbours = match members.len() {
            1 if !strangers.is_empty() => None,
            _ => Some(self.meet_neighbours(&members, doors.unix)?),
        };
        let notes = match &doorman {
            Some(doorman) => Some(self.connect_notes(doorman, &strangers)?),
            None => None,
        };
        Ok(self.mesh(&members, neighbours, doorman.zip(notes))?)
    }

    /// The ranks that this one shares memory with, itself included, and the others.
    fn divide(&self) -> Result<(Vec<Rank>, Vec<Rank>)> {
        let (own, transport) = (&self.records[self.rank()], self.config.transport);
        let shares = |rank: &Rank| {
            *rank == self.rank()
                || transport != Transport::Tcp && self.records[*rank].identity == own.identity
        };
        let (members, strangers): (Vec<Rank>, Vec<Rank>) = (0..self.ranks()).partition(shares);
        match strangers.first() {
            Some(&peer) if transport == Transport::Shm => {
                let what = format!(
                    "transport shm: they are on different hosts, {} and {}",
                    own.host, self.records[peer].host
                );
                Err(Failure::Unreachable { rank: self.rank(), peer, what })
            }
            _ => Ok((members, strangers)),
        }
    }

    fn hire(&self, door: Listener) -> Result<Doorman> {
        let (terms, place) = (self.terms(), (self.rank(), self.ranks()));
        Ok(Doorman::hire(door, &terms, self.session, place, self.config.sockets)?)
    }

    /// Shares memory and lifelines with the ranks of this host.
    fn meet_neighbours(&mut self, members: &[Rank], door: Listener) -> Result<Neighbourhood> {
        let (rank, ranks, geometry) = (self.rank(), self.ranks(), self.config.geometry());
        let own = Segment::create(Layout::new(ranks, &geometry)?.bytes())?;
        let (held, end) = lifeline()?;
        let gift = Gift { segment: own.duplicate_fd()?, lifeline: end };
        let gifts = self.exchange(members, gift, door)?;
        let mut segments: Vec<Option<Segment>> = (0..ranks).map(|_| None).collect();
        let mut lines: Vec<_> = (0..ranks).map(|_| None).collect();
        for (&peer, gift) in members.iter().zip(gifts).filter(|(peer, _)| **peer != rank) {
            let segment = Segment::attach(gift.segment, own.bytes());
            segments[peer] = Some(segment.map_err(|error| unreachable(rank, peer, &error))?);
            lines[peer] = Some(gift.lifeline);
        }
        let connected = shm::connect(rank, ranks, &geometry, own, segments)?;
        Ok(Neighbourhood { connected, lifeline: held, watch: Watch::new(lines)? })
    }

    /// One connection for notes with each rank of another host: the higher rank dials.
    fn connect_notes(&mut self, doorman: &Doorman, strangers: &[Rank]) -> Result<Vec<Option<Stream>>> {
        let rank = self.rank();
        let mut streams: Vec<Option<Stream>> = (0..self.ranks()).map(|_| None).collect();
        for &peer in strangers.iter().filter(|&&peer| peer < rank) {
            streams[peer] = Some(self.dial(peer, |record, deadline| Stream::dial(record.tcp, deadline))?);
        }
        while let Some(&late) = strangers.iter().find(|&&peer| streams[peer].is_none()) {
            match doorman.control() {
                Some((peer, stream)) => streams[peer] = Some(stream),
                None => self.await_ready(doorman.bell(), late)?,
            }
        }
        Ok(streams)
    }

    /// A connection to `peer`, tried again while its door is crowded; fails as soon as the root says something.
    pub(super) fn dial(
        &mut self,
        peer: Rank,
        reach: impl Fn(&Record, Instant) -> std::result::Result<Stream, TransportError>,
    ) -> Result<Stream> {
        let mut pauses = Pauses::default();
        loop {
            let reached = reach(&self.records[peer], self.deadline).and_then(|mut stream| {
                auth::connect(&mut stream, &self.terms(), &self.claims(), self.deadline)?;
                Ok(stream)
            });
            let resumes = Instant::now() + pauses.take();
            match reached {
                Ok(stream) => return Ok(stream),
                Err(ref error) if is_crowded(error) && resumes < self.deadline => {
                    if first_ready(&[self.root.as_fd()], resumes)?.is_some() {
                        return Err(self.hear_root());
                    }
                }
                Err(error) => return Err(unreachable(self.rank(), peer, &error)),
            }
        }
    }

    pub(super) fn terms(&self) -> Terms {
        self.identity.terms(self.config)
    }

    /// What this rank says when it connects to another for notes, or to share memory.
    pub(super) fn claims(&self) -> Claims {
        let (rank, ranks) = (self.rank() as u32, self.ranks() as u32);
        Claims { purpose: Purpose::Control, rank, ranks, index: 0, session: self.session }
    }

    fn mesh(
        &self,
        members: &[Rank],
        neighbours: Option<Neighbourhood>,
        strangers: Option<(Doorman, Vec<Option<Stream>>)>,
    ) -> std::result::Result<Mesh, TransportError> {
        let (rank, ranks, geometry) = (self.rank(), self.ranks(), self.config.geometry());
        let own = &self.records[rank].identity;
        let mut pace = Patience::new(self.records.iter().filter(|record| record.identity == *own).count());
        if neighbours.is_none() {
            // A socket wakes its reader, so sleep comes early.
            pace = pace.sleeping_after(TCP_YIELDS);
        }
        let pace = pace.watching(Vec::new());
        let watcher = pace.watcher();
        let watch = |stream: &dyn AsFd| watcher.iter().for_each(|watcher| watcher.add(&stream.as_fd()));
        let mut links: Vec<Option<Box<dyn Link>>> = (0..ranks).map(|_| None).collect();
        let (mut window, mut local, mut remote) = (None, None, None);
        if let Some(Neighbourhood { connected, lifeline, watch: ends }) = neighbours {
            watch(&ends.fd());
            (links, window) = (connected.links, connected.window);
            local = Some(Neighbours::new(connected.notes, lifeline, ends));
        }
        if let Some((doorman, notes)) = strangers {
            notes.iter().flatten().for_each(|stream| watch(stream));
            let common = self.dialling(doorman, watcher.clone());
            let elsewhere = (0..ranks).filter(|peer| notes[*peer].is_some());
            for peer in elsewhere {
                let link = LazyLink::new(Arc::clone(&common), peer, self.records[peer].tcp);
                links[peer] = Some(Box::new(link));
            }
            let doors: Vec<SocketAddr> = self.records.iter().map(|record| record.tcp).collect();
            let sockets = Sockets::new(notes)?.telling_of_silence(self.config.timeout)?;
            remote = Some(sockets.knocking(common, &doors));
        }
        let transport = match members.len() {
            _ if window.is_some() => "shm",
            1 => "tcp",
            _ => "mixed",
        };
        let control: Box<dyn Control> = match (local, remote) {
            (Some(local), Some(remote)) => Box::new(Everybody(local, remote)),
            (Some(local), None) => Box::new(local),
            (None, Some(remote)) => Box::new(remote),
            (None, None) => return Err(TransportError::Misuse("a rank without others".to_owned())),
        };
        let crowded = Record::share_cores(&self.records);
        Ok(Mesh { rank, ranks, geometry, links, window, control, pace: Box::new(pace), transport, crowded })
    }

    /// What the links to ranks of other hosts have in common.
    fn dialling(
        &self,
        doorman: Doorman,
        watcher: Option<unisono_transports::pace::Watcher>,
    ) -> Arc<Dialling> {
        watcher.iter().for_each(|watcher| doorman.wake(watcher.clone()));
        Arc::new(Dialling {
            rank: self.rank(),
            ranks: self.ranks(),
            session: self.session,
            terms: self.terms(),
            sockets: self.config.sockets,
            geometry: Geometry { slots: self.config.slots * TCP_SLOTS, ..self.config.geometry() },
            patience: self.config.timeout,
            doorman,
            watcher,
        })
    }

    /// Waits until `fd`, which waits for `peer`, can be read; fails as soon as the root says something.
    pub(super) fn await_ready(&mut self, fd: BorrowedFd<'_>, peer: Rank) -> Result<()> {
        match first_ready(&[self.root.as_fd(), fd], self.deadline)? {
            Some(0) => Err(self.hear_root()),
            Some(_) => Ok(()),
            None => self.check_time(peer),
        }
    }

    /// Fails if it is too late to wait for `peer`.
    pub(super) fn check_time(&self, peer: Rank) -> Result<()> {
        if Instant::now() < self.deadline {
            return Ok(());
        }
        let what = "it did not come in time".to_owned();
        Err(Failure::Unreachable { rank: self.rank(), peer, what })
    }

    /// The root speaks before this rank has reported: somebody else has failed.
    pub(super) fn hear_root(&mut self) -> Failure {
        let failure = match super::hear(self.root, self.deadline) {
            Err(failure) => failure,
            Ok(_) => Failure::Other { what: "the root spoke out of turn".to_owned() },
        };
        self.heard.insert(failure).clone()
    }
}

pub(super) fn unreachable(rank: Rank, peer: Rank, error: &TransportError) -> Failure {
    Failure::Unreachable { rank, peer, what: error.to_string() }
}

/// Rounds of waiting over TCP before sleeping until something arrives.
const TCP_YIELDS: u32 = 50;
/// Messages on their way for each slot of a FIFO: a slot costs memory only when one waits in it, and whoever
/// shares a core with its peers sends more before it has to give way.
const TCP_SLOTS: usize = 4;
