//! Every transport does what the traits promise: the cases of `conformance`, stamped on each.

#![cfg(not(loom))]

use std::os::unix::net::UnixStream;
use unisono_transports::control::Sockets;
use unisono_transports::pace::Patience;
use unisono_transports::segment::Segment;
use unisono_transports::sim::{self, Weather};
use unisono_transports::socket::Stream;
use unisono_transports::{Geometry, Mesh, conformance, shm, tcp, threads};

conformance!(over_threads, |ranks, geometry| threads::mesh(ranks, geometry).expect("memory"));
conformance!(over_shared_memory, shared_memory);
conformance!(over_tcp, |ranks, geometry| tcp::local_mesh(ranks, geometry, 2).expect("loopback"));
conformance!(over_one_socket, |ranks, geometry| tcp::local_mesh(ranks, geometry, 1).expect("loopback"));
conformance!(over_a_simulated_network, |ranks, geometry| sim::mesh(ranks, geometry, Weather::fair(7)));

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
