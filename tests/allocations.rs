//! Operations in steady state allocate nothing.

use unisono::{Communicator, Config, Sum};

/// One operation of every kind, of fixed size.
fn round(comm: &Communicator, buffers: &mut [Vec<f32>; 2]) {
    let ranks = comm.size();
    let (rank, peer) = (comm.rank(), comm.rank() ^ 1);
    let [input, output] = buffers;
    let share = input.len() / ranks;
    comm.all_reduce(input, Sum).unwrap();
    comm.all_reduce_into(input, output, Sum).unwrap();
    comm.all_gather(&input[..share], &mut output[..share * ranks]).unwrap();
    comm.reduce_scatter(&input[..share * ranks], &mut output[..share], Sum).unwrap();
    comm.broadcast(input, 1).unwrap();
    comm.reduce(input, Sum, 0).unwrap();
    comm.all_to_all(&input[..share * ranks], &mut output[..share * ranks]).unwrap();
    comm.gather(&input[..share], Some(&mut output[..share * ranks]), 0).unwrap();
    comm.scatter(Some(&input[..share * ranks]), &mut output[..share], 0).unwrap();
    comm.barrier().unwrap();
    if rank < peer {
        comm.send(input, peer).unwrap();
    } else {
        comm.recv(output, peer).unwrap();
    }
    input.fill(0.0);
}

fn steady(comms: Vec<Communicator>, count: usize) {
    std::thread::scope(|scope| {
        for comm in comms {
            scope.spawn(move || {
                let mut buffers = [vec![0.0; count], vec![0.0; count]];
                for _ in 0..3 {
                    round(&comm, &mut buffers);
                }
                let mut count_rounds = || {
                    let counted = allocation_counter::measure(|| {
                        for _ in 0..5 {
                            round(&comm, &mut buffers);
                        }
                    });
                    counted.count_total
                };
                // A rank that waits long, because the machine is busy, reports it to the others,
                // and that allocates.
                let least = (0..6).map(|_| count_rounds()).min();
                assert_eq!(
                    least,
                    Some(0),
                    "{count} elements over {} at rank {}",
                    comm.transport(),
                    comm.rank()
                );
            });
        }
    });
}

#[test]
fn nothing_is_allocated_in_steady_state() {
    for count in [2, 1000, 50_000, 500_000] {
        steady(Communicator::local(4).unwrap(), count);
    }
}

#[test]
fn nothing_is_allocated_by_links_either() {
    let names = [
        "ring",
        "bidirectional_ring",
        "tree",
        "pat",
        "recursive_doubling",
        "rabenseifner",
        "recursive_halving",
        "bruck",
        "binomial",
        "linear",
    ];
    for name in names.into_iter().chain(["dissemination"]) {
        let config = Config::default().with_algorithms(unisono::parse_algorithms(name).unwrap());
        for count in [1000, 200_000] {
            steady(Communicator::builder().config(&config).local(4).unwrap(), count);
        }
    }
}

#[test]
fn nothing_is_allocated_over_tcp() {
    over_tcp(false);
}

#[test]
fn nothing_is_allocated_for_encryption() {
    over_tcp(true);
}

fn over_tcp(encryption: bool) {
    let id = unisono::UniqueId::new(std::net::Ipv4Addr::LOCALHOST.into()).unwrap();
    let config = Config::default().with_transport(unisono::Transport::Tcp).with_encryption(encryption);
    let comms = std::thread::scope(|scope| {
        let (id, config) = (&id, &config);
        let threads: Vec<_> = (0..4)
            .map(|rank| scope.spawn(move || Communicator::join(id, rank, 4, config).unwrap()))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    steady(comms, 300_000);
}
