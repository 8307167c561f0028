//! Messages with tags beside the operations that move the same bytes: ping-pong against `send` and
//! `recv`, a ring of `isend` and `irecv` against the ring `all_gather`.
//!
//! Each figure is the median of alternating rounds. `cargo bench -p unisono --bench messages`.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};
use unisono::schedule::Collective;
use unisono::{Communicator, Config, Transport, UniqueId};

const ROUNDS: usize = 9;

fn world(transport: Transport, ranks: usize, body: impl Fn(&Communicator) + Sync) {
    let config = Config::default().with_transport(transport);
    let id = UniqueId::new(IpAddr::V4(Ipv4Addr::LOCALHOST)).expect("an id");
    std::thread::scope(|scope| {
        for rank in 0..ranks {
            let (id, config, body) = (&id, &config, &body);
            scope.spawn(move || body(&Communicator::join(id, rank, ranks, config).expect("joined")));
        }
    });
}

fn timed(times: usize, mut call: impl FnMut()) -> Duration {
    let begun = Instant::now();
    (0..times).for_each(|_| call());
    begun.elapsed() / times as u32
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e6
}

/// Runs both calls in turns and prints their medians on rank 0.
fn compare(comm: &Communicator, name: &str, times: usize, mut first: impl FnMut(), mut second: impl FnMut()) {
    let (mut ones, mut others) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        comm.barrier().expect("a barrier");
        ones.push(timed(times, &mut first));
        comm.barrier().expect("a barrier");
        others.push(timed(times, &mut second));
    }
    if comm.rank() == 0 {
        let (first, second) = (median(ones), median(others));
        println!("{name:40} {first:10.2} µs {second:10.2} µs {:6.2}", first / second);
    }
}

fn ping_pong(comm: &Communicator, name: &str, bytes: usize) {
    let peer = 1 - comm.rank();
    let mut buffer = vec![1u8; bytes];
    let mut owned = Some(vec![1u8; bytes]);
    let times = if bytes < 4096 { 20_000 } else { 2_000 };
    compare(
        comm,
        &format!("{name} ping-pong of {bytes} B"),
        times,
        || {
            let mut message = owned.take().expect("a buffer");
            if comm.rank() == 0 {
                message = comm.isend(message, peer, 0).wait().expect("sent");
            }
            message = comm.irecv(message, peer, 0).wait().expect("received").0;
            if comm.rank() == 1 {
                message = comm.isend(message, peer, 0).wait().expect("sent");
            }
            owned = Some(message);
        },
        || {
            if comm.rank() == 0 {
                comm.send(&buffer, peer).expect("sent");
            }
            comm.recv(&mut buffer, peer).expect("received");
            if comm.rank() == 1 {
                comm.send(&buffer, peer).expect("sent");
            }
        },
    );
}

fn ring(comm: &Communicator, name: &str, bytes: usize) {
    let (rank, size) = (comm.rank(), comm.size());
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    let mut parts: Vec<Option<Vec<u8>>> = (0..size).map(|_| Some(vec![1u8; bytes])).collect();
    let (input, mut output) = (vec![1u8; bytes], vec![0u8; bytes * size]);
    comm.set_algorithm(Collective::AllGather, Some("ring")).expect("the ring");
    compare(
        comm,
        &format!("{name} ring of {} MiB at {size} ranks", bytes >> 20),
        4,
        || {
            for step in 0..size - 1 {
                let (outgoing, incoming) = ((rank + size - step) % size, (rank + size - step - 1) % size);
                let received = comm.irecv(parts[incoming].take().expect("a part"), previous, step as u64);
                let sent = comm.isend(parts[outgoing].take().expect("a part"), next, step as u64);
                parts[incoming] = Some(received.wait().expect("received").0);
                parts[outgoing] = Some(sent.wait().expect("sent"));
            }
        },
        || comm.all_gather(&input, &mut output).expect("gathered"),
    );
}

fn main() {
    for (name, transport) in [("shm", Transport::Shm), ("tcp", Transport::Tcp)] {
        println!("{:40} {:>13} {:>13} {:>6}", name, "isend/irecv", "other", "ratio");
        world(transport, 2, |comm| {
            [8, 1024, 16 << 10, 64 << 10].into_iter().for_each(|bytes| ping_pong(comm, name, bytes));
        });
        for ranks in [2, 4] {
            world(transport, ranks, |comm| ring(comm, name, 16 << 20));
        }
    }
}
