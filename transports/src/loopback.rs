//! TCP links between threads of one process, for tests and for measurements.

use crate::control::RemoteControl;
use crate::net::handshake;
use crate::net::handshake::{HandshakeConfig, Hello, Purpose, Secret};
use crate::net::stream::Stream;
use crate::sys::descriptors::off_stdio;
use crate::tcp::TcpLink;
use crate::wait::AdaptiveWait;
use crate::{Error, Fabric, Geometry, Link, Result};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Connects the fabrics of `ranks` ranks of this process over loopback, and returns them by rank.
///
/// Each pair of ranks gets `sockets` connections for messages and one more for control messages.
/// The connections are encrypted if `encrypted` is set.
///
/// # Errors
/// Returns the system's error, such as too few descriptors.
pub fn local_fabrics(
    ranks: usize,
    geometry: Geometry,
    sockets: usize,
    encrypted: bool,
) -> Result<Vec<Fabric>> {
    let failed = |source| Error::System { what: "cannot connect over loopback".to_owned(), source };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(off_stdio).map_err(failed)?;
    let terms = HandshakeConfig { secret: Secret::random()?, encrypt: encrypted };
    let nobody = || (0..ranks).map(|_| Vec::new()).collect();
    let mut ends: Vec<Vec<Vec<Stream>>> = (0..ranks).map(|_| nobody()).collect();
    for (rank, peer) in (0..ranks).flat_map(|rank| (0..rank).map(move |peer| (rank, peer))) {
        for _ in 0..=sockets {
            let (local, remote) = connected_pair(&listener).map_err(failed)?;
            let (mut local, mut remote) = (Stream::from(local), Stream::from(remote));
            if encrypted {
                handshake(&mut local, &mut remote, &terms)?;
            }
            ends[rank][peer].push(local);
            ends[peer][rank].push(remote);
        }
    }
    ends.into_iter().enumerate().map(|(rank, streams)| fabric(rank, geometry, streams)).collect()
}

/// Makes the fabric of one rank over its connections to each peer: one for control messages, the
/// others for messages.
fn fabric(rank: usize, geometry: Geometry, streams: Vec<Vec<Stream>>) -> Result<Fabric> {
    let ranks = streams.len();
    let mut links: Vec<Option<Box<dyn Link>>> = Vec::new();
    let mut notes = Vec::new();
    let mut watched: Vec<OwnedFd> = Vec::new();
    for (peer, mut streams) in streams.into_iter().enumerate() {
        notes.push(streams.pop());
        if streams.is_empty() {
            links.push(None);
            continue;
        }
        let link = TcpLink::new(peer, &geometry, streams)?;
        watched.extend(link.event_fds()?);
        links.push(Some(Box::new(link)));
    }
    let control = RemoteControl::new(notes)?;
    watched.extend(control.event_fds()?);
    let pace = AdaptiveWait::new(ranks).wake_on(watched).sleep_after_yields(YIELDS);
    let (control, pace) = (Box::new(control), Box::new(pace));
    Ok(Fabric {
        rank,
        ranks,
        geometry,
        links,
        window: None,
        control,
        wait: pace,
        transport: "tcp",
        oversubscribed: false,
    })
}

/// Returns both ends of a new connection. Connections from other processes meanwhile are closed.
fn connected_pair(listener: &TcpListener) -> std::io::Result<(TcpStream, TcpStream)> {
    let local = off_stdio(TcpStream::connect(listener.local_addr()?)?)?;
    let local_address = local.local_addr()?;
    loop {
        let (remote, address) = listener.accept()?;
        if address == local_address {
            let remote = off_stdio(remote)?;
            local.set_nodelay(true)?;
            remote.set_nodelay(true)?;
            return Ok((local, remote));
        }
    }
}

/// Performs the handshake on both ends of a connection, which gives each end its keys.
fn handshake(local: &mut Stream, remote: &mut Stream, terms: &HandshakeConfig) -> Result<()> {
    let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
    let claims = Hello { purpose: Purpose::Data, rank: 0, ranks: 0, index: 0, session: 0 };
    std::thread::scope(|scope| {
        let accepted = scope.spawn(|| handshake::accept(remote, terms, deadline));
        handshake::connect(local, terms, &claims, deadline)?;
        accepted.join().expect("a handshake does not panic").map(drop)
    })
}

/// Longest time of a handshake. It can be short, because both ends are in this process.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Rounds of waiting before the wait sleeps until a socket event.
const YIELDS: u32 = 50;
