//! Every algorithm moves as many bytes as it promises, on every transport.

mod support;

use support::World;
use unisono::schedule::{Algorithm, Collective, GroupSpec, PeerAccess};
use unisono::{Communicator, Config, Sum, TrafficStats};

/// Elements of a block: pieces of several slices, and nothing left over.
const CHUNK: usize = 24_000;
const ROOT: usize = 1;

/// Carries out one collective of shares of `count` elements.
fn execute(comm: &Communicator, collective: Collective, count: usize) {
    let (rank, ranks) = (comm.rank(), comm.size());
    let share = || vec![rank as f32; count];
    let buffer = || vec![rank as f32; count * ranks];
    let is_root = rank == ROOT;
    match collective {
        Collective::AllReduce => comm.all_reduce(&mut share(), Sum),
        Collective::AllGather => comm.all_gather(&share(), &mut buffer()),
        Collective::ReduceScatter => comm.reduce_scatter(&buffer(), &mut share(), Sum),
        Collective::Broadcast => comm.broadcast(&mut share(), ROOT),
        Collective::Reduce => comm.reduce(&mut share(), Sum, ROOT),
        Collective::Gather => comm.gather(&share(), is_root.then_some(&mut buffer()[..]), ROOT),
        Collective::Scatter => comm.scatter(is_root.then_some(&buffer()[..]), &mut share(), ROOT),
        Collective::AllToAll => comm.all_to_all(&buffer(), &mut buffer()),
        Collective::Barrier => comm.barrier(),
        Collective::Scan => comm.scan(&mut share(), Sum),
        Collective::ExScan => comm.exscan(&mut share(), Sum),
    }
    .unwrap();
}

/// Returns the traffic of one operation of an algorithm on this rank.
fn measured(comm: &Communicator, row: &'static Algorithm, count: usize) -> TrafficStats {
    comm.set_algorithm(row.collective, Some(row.name)).unwrap();
    let start = comm.traffic_stats().unwrap();
    execute(comm, row.collective, count);
    let mut traffic = comm.traffic_stats().unwrap();
    traffic.operations -= start.operations;
    traffic.bytes -= start.bytes;
    traffic
}

#[test]
fn traffic_matches_algorithm_complexity() {
    for world in [World::Threads, World::Tcp] {
        for ranks in [2, 3, 5] {
            let rows = || {
                Algorithm::ALL.iter().filter(move |row| {
                    let spec = GroupSpec::new(ranks).with_root(ROOT);
                    row.peer_access <= world.peer_access()
                        && row.peer_access != PeerAccess::ZeroCopy
                        && (row.supports)(&spec)
                })
            };
            for small in [false, true] {
                let block = if small { 10 } else { CHUNK };
                let by_rank = world.run(ranks, &Config::default(), |comm| {
                    let parts =
                        |row: &Algorithm| (row.chunks_per_share)(&GroupSpec::new(ranks).with_root(ROOT));
                    rows().map(|row| measured(&comm, row, block * parts(row))).collect::<Vec<_>>()
                });
                for (index, row) in rows().enumerate() {
                    let cost = row.complexity.unwrap()(&GroupSpec::new(ranks).with_root(ROOT));
                    let moved: u64 = by_rank.iter().map(|rank| rank[index].bytes).sum();
                    assert_eq!(
                        moved,
                        cost.chunks * 4 * block as u64,
                        "{row:?}, {ranks} ranks over {world:?}"
                    );
                    assert!(by_rank.iter().all(|rank| rank[index].operations == 1));
                }
            }
        }
    }
}

#[test]
fn traffic_per_rank_matches_formulas() {
    let (ranks, count) = (4, 1 << 18);
    let world = World::Shm;
    let moved = world.run(ranks, &Config::default(), |comm| {
        let bytes_of = |collective, count| {
            let start = comm.traffic_stats().unwrap().bytes;
            execute(&comm, collective, count);
            comm.traffic_stats().unwrap().bytes - start
        };
        let shares = [Collective::AllGather, Collective::ReduceScatter, Collective::AllToAll];
        (bytes_of(Collective::AllReduce, count), shares.map(|collective| bytes_of(collective, count / ranks)))
    });
    let bytes = 4 * count as u64;
    for (all_reduce, shares) in moved {
        assert_eq!(all_reduce, 2 * bytes * 3 / 4);
        assert_eq!(shares, [bytes * 3 / 4; 3]);
    }
}

#[test]
fn symmetric_memory_and_messages_are_counted() {
    let moved = World::Threads.run(3, &Config::default(), |comm| {
        let mut buffer = comm.alloc_symmetric::<f32>(3 << 16).unwrap();
        let start = comm.traffic_stats().unwrap().bytes;
        comm.all_reduce(&mut buffer, Sum).unwrap();
        let symmetric_bytes = comm.traffic_stats().unwrap().bytes - start;
        let (next, previous) = ((comm.rank() + 1) % 3, (comm.rank() + 2) % 3);
        comm.send_recv(&[1u8; 1000], next, &mut [0u8; 1000], previous).unwrap();
        (symmetric_bytes, comm.traffic_stats().unwrap().bytes - start - symmetric_bytes)
    });
    assert_eq!(moved, [((2 * 2 * 4) << 16, 1000); 3]);
}

#[test]
fn traffic_rooted_moves_each_share_once() {
    let (ranks, count) = (4, 24_000);
    for world in [World::Threads, World::Tcp] {
        let moved = world.run(ranks, &Config::default(), |comm| {
            let bytes_of = |collective, count| {
                let start = comm.traffic_stats().unwrap().bytes;
                execute(&comm, collective, count);
                comm.traffic_stats().unwrap().bytes - start
            };
            let buffers =
                [Collective::Broadcast, Collective::Reduce].map(|collective| bytes_of(collective, count));
            let shares = [Collective::Gather, Collective::Scatter]
                .map(|collective| bytes_of(collective, count / ranks));
            [buffers, shares].concat()
        });
        let total = |index: usize| moved.iter().map(|rank: &Vec<u64>| rank[index]).sum::<u64>();
        // Buffers of D bytes: to or from each of the others D, or its share of it.
        let (buffers, shares) = (4 * count as u64 * 3, count as u64 * 3);
        assert_eq!([0, 1, 2, 3].map(total), [buffers, buffers, shares, shares], "{world:?}");
    }
}

#[test]
fn traffic_naive_versus_ring_matches_theory() {
    let count = 24_000;
    for ranks in [2, 3, 4, 8] {
        let moved = World::Threads.run(ranks, &Config::default(), |comm| {
            ["naive", "ring"].map(|name| {
                let row = unisono::schedule::find(Collective::AllReduce, name).unwrap();
                measured(&comm, row, count).bytes
            })
        });
        let (buffer, ranks) = (4 * count as u64, ranks as u64);
        assert!(moved.iter().all(|[naive, _]| *naive == (ranks - 1) * buffer), "{ranks} ranks");
        // Chunks end where lines of the cache do, and may differ in length.
        let ring: u64 = moved.iter().map(|[_, ring]| ring).sum();
        assert_eq!(ring, 2 * (ranks - 1) * buffer, "{ranks} ranks");
    }
}
