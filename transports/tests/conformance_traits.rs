//! Every transport does what the traits promise.

#![cfg(not(loom))]

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use unisono_transports::control::Sockets;
use unisono_transports::pace::Patience;
use unisono_transports::segment::Segment;
use unisono_transports::socket::Stream;
use unisono_transports::tcp::TcpLink;
use unisono_transports::{Geometry, Link, Mesh, conformance, shm, threads};

conformance!(over_threads, |ranks, geometry| threads::mesh(ranks, geometry).expect("memory"));
conformance!(over_shared_memory, shared_memory);
conformance!(over_tcp, tcp);

/// For each rank, what it holds of a pair with each other rank.
fn pairs<T>(ranks: usize, mut make: impl FnMut() -> (T, T)) -> Vec<Vec<Option<T>>> {
    let mut held: Vec<Vec<Option<T>>> = Vec::new();
    for _ in 0..ranks {
        let mut row = Vec::new();
        for earlier in &mut held {
            let (near, far) = make();
            row.push(Some(near));
            earlier.push(Some(far));
        }
        row.push(None);
        held.push(row);
    }
    held
}

fn controls(ranks: usize) -> Vec<Sockets> {
    let pair = || UnixStream::pair().map(|(near, far)| (Stream::Unix(near), Stream::Unix(far)));
    let streams = pairs(ranks, || pair().expect("a socket pair"));
    streams.into_iter().map(|streams| Sockets::new(streams).expect("sockets")).collect()
}

/// Segments as between processes: created, passed as descriptors, inspected and mapped anew.
fn shared_memory(ranks: usize, geometry: Geometry) -> Vec<Mesh> {
    let bytes = shm::Layout::new(ranks, &geometry).expect("a layout").bytes();
    let own: Vec<_> = (0..ranks).map(|_| Segment::create(bytes).expect("memory")).collect();
    let attach = |segment: &Segment| {
        let fd = segment.fd().expect("a descriptor").try_clone_to_owned().expect("another");
        Some(Segment::attach(fd, bytes).expect("memory"))
    };
    let mapped: Vec<Vec<_>> = (0..ranks).map(|_| own.iter().map(attach).collect()).collect();
    let mesh = |(rank, ((own, mut peers), control)): (usize, ((Segment, Vec<_>), Sockets))| {
        peers[rank] = None;
        let (links, window) = shm::connect(rank, ranks, &geometry, own, peers).expect("a mesh");
        let pace = Patience::new(ranks).watching(control.watch().expect("descriptors"));
        let (control, pace) = (Box::new(control), Box::new(pace));
        Mesh { rank, ranks, geometry, links, window, control, pace, transport: "shm" }
    };
    own.into_iter().zip(mapped).zip(controls(ranks)).enumerate().map(mesh).collect()
}

fn tcp(ranks: usize, geometry: Geometry) -> Vec<Mesh> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("an address");
    let connect = || {
        let near = Stream::dial(address, Instant::now() + Duration::from_secs(5)).expect("a connection");
        let (far, _) = listener.accept().expect("a connection");
        far.set_nodelay(true).expect("an option");
        (near, Stream::Tcp(far))
    };
    let data = pairs(ranks, || {
        let ((near, far), (near_too, far_too)) = (connect(), connect());
        (vec![near, near_too], vec![far, far_too])
    });
    let sides = data.into_iter().zip(controls(ranks)).enumerate();
    sides.map(|(rank, (streams, control))| tcp_mesh(rank, geometry, streams, control)).collect()
}

fn tcp_mesh(rank: usize, geometry: Geometry, streams: Vec<Option<Vec<Stream>>>, control: Sockets) -> Mesh {
    let ranks = streams.len();
    let mut watched = control.watch().expect("descriptors");
    let link = |(peer, streams): (usize, Option<Vec<Stream>>)| {
        let link = TcpLink::new(peer, &geometry, streams?).expect("a link");
        watched.extend(link.watch().expect("descriptors"));
        Some(Box::new(link) as Box<dyn Link>)
    };
    let links = streams.into_iter().enumerate().map(link).collect();
    let pace = Box::new(Patience::new(ranks).watching(watched).sleeping_after(50));
    Mesh { rank, ranks, geometry, links, window: None, control: Box::new(control), pace, transport: "tcp" }
}
