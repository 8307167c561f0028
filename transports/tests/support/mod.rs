//! Meshes of every transport, and ranks as threads that use them.

use std::os::unix::net::UnixStream;
use std::time::Duration;
use unisono_transports::control::Sockets;
use unisono_transports::pace::Patience;
use unisono_transports::segment::Segment;
use unisono_transports::shm::{self, Layout};
use unisono_transports::sim::{self, Weather};
use unisono_transports::socket::Stream;
use unisono_transports::{Geometry, Mesh, Tag, tcp, threads};

pub(crate) const GEOMETRY: Geometry =
    Geometry { lanes: 3, slots: 4, slot_bytes: 64 << 10, channels: 3, window_bytes: 1 << 16 };

#[derive(Clone, Copy, Debug)]
pub(crate) enum Transport {
    Threads,
    Shm,
    Tcp { sockets: usize },
    Sim,
}

impl Transport {
    fn meshes(self, ranks: usize, geometry: Geometry) -> Vec<Mesh> {
        match self {
            Transport::Threads => threads::mesh(ranks, geometry).unwrap(),
            Transport::Shm => shared(ranks, geometry),
            Transport::Tcp { sockets } => tcp::local_mesh(ranks, geometry, sockets).unwrap(),
            Transport::Sim => sim::mesh(ranks, geometry, Weather::fair(42)),
        }
    }
}

/// Ranks that map each other's memory as processes do, each at an address of its own.
fn shared(ranks: usize, geometry: Geometry) -> Vec<Mesh> {
    let bytes = Layout::new(ranks, &geometry).unwrap().bytes();
    let segments: Vec<Segment> = (0..ranks).map(|_| Segment::create(bytes).unwrap()).collect();
    let mut notes: Vec<Vec<Option<Stream>>> =
        (0..ranks).map(|_| (0..ranks).map(|_| None).collect()).collect();
    for (rank, peer) in (0..ranks).flat_map(|rank| (0..rank).map(move |peer| (rank, peer))) {
        let (near, far) = UnixStream::pair().unwrap();
        notes[rank][peer] = Some(Stream::Unix(near));
        notes[peer][rank] = Some(Stream::Unix(far));
    }
    let fds: Vec<_> =
        segments.iter().map(|segment| segment.fd().unwrap().try_clone_to_owned().unwrap()).collect();
    let attach = |peer: usize| Segment::attach(fds[peer].try_clone().unwrap(), bytes).unwrap();
    let mesh = |(rank, (own, notes))| {
        let peers = (0..ranks).map(|peer| (peer != rank).then(|| attach(peer))).collect();
        let (links, window) = shm::connect(rank, ranks, &geometry, own, peers).unwrap();
        let (control, pace) = (Box::new(Sockets::new(notes).unwrap()), Box::new(Patience::new(ranks)));
        Mesh { rank, ranks, geometry, links, window, control, pace, transport: "shm" }
    };
    segments.into_iter().zip(notes).enumerate().map(mesh).collect()
}

/// Runs `body` on every rank of a fresh mesh; results by rank.
pub(crate) fn run<R: Send>(
    transport: Transport,
    ranks: usize,
    body: impl Fn(&mut Mesh) -> R + Sync,
) -> Vec<R> {
    run_with(transport, ranks, GEOMETRY, body)
}

/// As [`run`], with other sizes.
pub(crate) fn run_with<R: Send>(
    transport: Transport,
    ranks: usize,
    geometry: Geometry,
    body: impl Fn(&mut Mesh) -> R + Sync,
) -> Vec<R> {
    let meshes = transport.meshes(ranks, geometry);
    std::thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> =
            meshes.into_iter().map(|mut mesh| scope.spawn(move || body(&mut mesh))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Calls `ready` until it has something, and moves what can be moved meanwhile.
pub(crate) fn until<R>(mesh: &mut Mesh, what: &str, mut ready: impl FnMut(&mut Mesh) -> Option<R>) -> R {
    for rounds in 1.. {
        if let Some(result) = ready(mesh) {
            return result;
        }
        rest(mesh, rounds, what);
    }
    unreachable!("it would take longer than the time limit")
}

/// Lets time pass after `rounds` turns without progress, but not for ever.
pub(crate) fn rest(mesh: &mut Mesh, rounds: u32, what: &str) {
    if rounds == 0 {
        return;
    }
    assert!(mesh.pace.now() < Duration::from_secs(20), "rank {} still waits for {what}", mesh.rank);
    for link in mesh.links.iter_mut().flatten() {
        link.progress().unwrap();
    }
    mesh.pace.pause(rounds);
}

pub(crate) fn try_send(
    mesh: &mut Mesh,
    peer: usize,
    lane: usize,
    number: u64,
    body: &[u8],
    part_bytes: usize,
) -> bool {
    let tag = Tag([number, mesh.rank as u64, lane as u64, 9]);
    let link = mesh.links[peer].as_mut().unwrap();
    link.try_send(lane, &tag, body.len(), &mut body.chunks(part_bytes).map(Into::into)).unwrap()
}

pub(crate) fn send(mesh: &mut Mesh, peer: usize, lane: usize, number: u64, body: &[u8], part_bytes: usize) {
    until(mesh, "room", |mesh| try_send(mesh, peer, lane, number, body, part_bytes).then_some(()));
}

/// Message `number` of the lane, if all of it is here; a message that is half here is waited for.
pub(crate) fn try_receive(
    mesh: &mut Mesh,
    peer: usize,
    lane: usize,
    number: u64,
    by_body: bool,
) -> Option<Vec<u8>> {
    let head = mesh.links[peer].as_mut().unwrap().head(lane).unwrap()?;
    assert_eq!(head.tag, Tag([number, peer as u64, lane as u64, 9]));
    let mut body = vec![0xee; head.bytes];
    until(mesh, "the rest of a message", |mesh| {
        let link = mesh.links[peer].as_mut().unwrap();
        if !by_body {
            return link.take(lane, body[..].as_mut().into()).unwrap().then_some(());
        }
        unisono_cuda::copy(body[..].as_mut().into(), link.body(lane).unwrap()?);
        link.release(lane);
        Some(())
    });
    Some(body)
}

pub(crate) fn receive(mesh: &mut Mesh, peer: usize, lane: usize, number: u64, by_body: bool) -> Vec<u8> {
    until(mesh, "a message", |mesh| try_receive(mesh, peer, lane, number, by_body))
}

/// Bytes that another seed does not have.
pub(crate) fn contents(seed: u64, bytes: usize) -> Vec<u8> {
    let words = (0..bytes.div_ceil(8) as u64).flat_map(|index| stir(seed ^ index << 20).to_le_bytes());
    words.take(bytes).collect()
}

/// One step of SplitMix64.
pub(crate) fn stir(seed: u64) -> u64 {
    let mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}
