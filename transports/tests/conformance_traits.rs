//! Every transport fulfills the traits: the cases of `conformance`, applied to each.

#![cfg(not(loom))]

use unisono_transports::control::LocalControl;
use unisono_transports::shm::liveness::{LivenessMonitor, LivenessPipe, liveness_pipe};
use unisono_transports::sim::{self, FaultPlan};
use unisono_transports::sys::segment::Segment;
use unisono_transports::wait::AdaptiveWait;
use unisono_transports::{Fabric, Geometry, conformance, loopback, shm, threads};

conformance!(over_threads, |ranks, geometry| threads::fabrics(ranks, geometry).expect("memory"));
conformance!(over_shared_memory, shared_memory);
conformance!(over_tcp, |ranks, geometry| loopback::local_fabrics(ranks, geometry, 2, false)
    .expect("loopback"));
conformance!(over_encrypted_tcp, |ranks, geometry| loopback::local_fabrics(ranks, geometry, 2, true)
    .expect("loopback"));
conformance!(over_one_socket, |ranks, geometry| loopback::local_fabrics(ranks, geometry, 1, false)
    .expect("loopback"));
conformance!(over_a_simulated_network, |ranks, geometry| sim::fabrics(ranks, geometry, FaultPlan::none(7)));

/// Makes each rank's own liveness pipe, and its monitor of the others'.
fn liveness_pipes(ranks: usize) -> Vec<(LivenessPipe, LivenessMonitor)> {
    let lines: Vec<_> = (0..ranks).map(|_| liveness_pipe().expect("a pipe")).collect();
    let ends = |rank| {
        let others = lines.iter().enumerate().map(move |(other, line)| (other != rank).then_some(line));
        others.map(|line| line.map(|(_, end)| end.try_clone().expect("another"))).collect()
    };
    let watches: Vec<_> =
        (0..ranks).map(|rank| LivenessMonitor::new(ends(rank)).expect("descriptors")).collect();
    lines.into_iter().map(|(line, _)| line).zip(watches).collect()
}

/// Makes segments as between processes: created, passed as descriptors, inspected and mapped anew.
fn shared_memory(ranks: usize, geometry: Geometry) -> Vec<Fabric> {
    let extents = shm::Layout::new(ranks, &geometry).expect("a layout").extents();
    let segments: Vec<_> = (0..ranks).map(|_| Segment::create_parts(&extents).expect("memory")).collect();
    let attach = |segment: &Segment| {
        let fd = segment.fd().expect("a descriptor").try_clone_to_owned().expect("another");
        Some(Segment::attach_parts(fd, &extents).expect("memory"))
    };
    let mapped: Vec<Vec<_>> = (0..ranks).map(|_| segments.iter().map(attach).collect()).collect();
    let fabric = |(rank, ((segment, mut peers), (line, watch))): (usize, ((Segment, Vec<_>), _))| {
        peers[rank] = None;
        let shm::Connected { links, window, mailboxes: notes, sleepers } =
            shm::connect(rank, ranks, &geometry, segment, peers).expect("a fabric");
        let control = LocalControl::new(notes, line, watch);
        let pace =
            AdaptiveWait::new(ranks).woken_by(sleepers).wake_on(vec![control.watch().expect("descriptors")]);
        let (control, pace) = (Box::new(control), Box::new(pace));
        Fabric {
            rank,
            ranks,
            geometry,
            links,
            window,
            control,
            wait: pace,
            transport: "shm",
            oversubscribed: false,
        }
    };
    segments.into_iter().zip(mapped).zip(liveness_pipes(ranks)).enumerate().map(fabric).collect()
}
