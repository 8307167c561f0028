//! Every transport does what the traits promise: the cases of `conformance`, stamped on each.

#![cfg(not(loom))]

use unisono_transports::control::Neighbours;
use unisono_transports::lifeline::{Lifeline, Watch, lifeline};
use unisono_transports::pace::Patience;
use unisono_transports::segment::Segment;
use unisono_transports::sim::{self, Weather};
use unisono_transports::{Geometry, Mesh, conformance, shm, tcp, threads};

conformance!(over_threads, |ranks, geometry| threads::mesh(ranks, geometry).expect("memory"));
conformance!(over_shared_memory, shared_memory);
conformance!(over_tcp, |ranks, geometry| tcp::local_mesh(ranks, geometry, 2, false).expect("loopback"));
conformance!(over_encrypted_tcp, |ranks, geometry| tcp::local_mesh(ranks, geometry, 2, true)
    .expect("loopback"));
conformance!(over_one_socket, |ranks, geometry| tcp::local_mesh(ranks, geometry, 1, false)
    .expect("loopback"));
conformance!(over_a_simulated_network, |ranks, geometry| sim::mesh(ranks, geometry, Weather::fair(7)));

/// Each rank's own lifeline, and its watch over the others'.
fn lifelines(ranks: usize) -> Vec<(Lifeline, Watch)> {
    let lines: Vec<_> = (0..ranks).map(|_| lifeline().expect("a pipe")).collect();
    let ends = |rank| {
        let others = lines.iter().enumerate().map(move |(other, line)| (other != rank).then_some(line));
        others.map(|line| line.map(|(_, end)| end.try_clone().expect("another"))).collect()
    };
    let watches: Vec<_> = (0..ranks).map(|rank| Watch::new(ends(rank)).expect("descriptors")).collect();
    lines.into_iter().map(|(own, _)| own).zip(watches).collect()
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
    let mesh = |(rank, ((own, mut peers), (line, watch))): (usize, ((Segment, Vec<_>), _))| {
        peers[rank] = None;
        let shm::Connected { links, window, notes } =
            shm::connect(rank, ranks, &geometry, own, peers).expect("a mesh");
        let control = Neighbours::new(notes, line, watch);
        let pace = Patience::new(ranks).watching(vec![control.watch().expect("descriptors")]);
        let (control, pace) = (Box::new(control), Box::new(pace));
        Mesh { rank, ranks, geometry, links, window, control, pace, transport: "shm", crowded: false }
    };
    own.into_iter().zip(mapped).zip(lifelines(ranks)).enumerate().map(mesh).collect()
}
