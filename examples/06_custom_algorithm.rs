//! An algorithm of your own: write a schedule, check it for many numbers of ranks, run it, time it.
//!
//! `cargo run --release --example 06_custom_algorithm`
//!
//! The algorithm is the simplest all_reduce: rank 0 collects all inputs and sends the sum back.

use std::time::Instant;
use unisono::schedule::check::{Options, check};
use unisono::schedule::{
    Algorithm, Collective, CombineOrder, Complexity, GroupSpec, PeerAccess, Program, ProgramBuilder, Rank,
    find, input, output, scratch,
};
use unisono::schedule::{ChunkRef, draw};
use unisono::{Communicator, Config, Sum};

static COLLECT: Algorithm = Algorithm {
    name: "collect",
    collective: Collective::AllReduce,
    summary: "rank 0 reduces everything and sends the result to everybody",
    citation: "the first thing anybody would write",
    peer_access: PeerAccess::TwoSided,
    combine_order: CombineOrder::Unspecified,
    aggregates: false,
    supports: |_| true,
    chunks_per_share: |_| 1,
    build,
    complexity,
};

fn build(spec: &GroupSpec, rank: Rank) -> Program {
    let mut program = ProgramBuilder::new(rank);
    match (rank, spec.ranks) {
        (0, 1) => {
            let own = ChunkRef { rank, chunk: input(0) };
            program.reduce(vec![own], output(0), true);
        }
        (0, ranks) => {
            for peer in 1..ranks {
                let with = if peer == 1 { input(0) } else { scratch(0) };
                let into = if peer == ranks - 1 { output(0) } else { scratch(0) };
                program.recv_reduce(peer, [with], [into], peer == ranks - 1);
            }
            for peer in 1..ranks {
                program.send(peer, [output(0)]);
            }
        }
        _ => {
            program.send(0, [input(0)]).recv(0, [output(0)]);
        }
    }
    program.finish(if rank == 0 && spec.ranks > 2 { 1 } else { 0 }, 0)
}

/// Sends all inputs to rank 0 one after the other, and the sum back in the same way.
fn complexity(spec: &GroupSpec) -> Complexity {
    let peers = spec.ranks as u64 - 1;
    Complexity { steps: 2 * peers, chunks: 2 * peers, scratch_chunks: u64::from(peers > 1) }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The checker proves before any communication that every value arrives exactly once, that
    // nothing deadlocks, and that the stated counts are right.
    for ranks in 1..=64 {
        let spec = GroupSpec::new(ranks);
        check(&COLLECT, &spec, &Options::default())
            .map_err(|violation| format!("{ranks} ranks: {violation}"))?;
    }
    println!("{}", draw::explain(&COLLECT.schedule(&GroupSpec::new(3))));

    let ring = find(Collective::AllReduce, "ring").ok_or("the ring is in the table")?;
    for algorithm in [&COLLECT, ring] {
        for elements in [256, 1 << 20] {
            let micros = measure(algorithm, elements)?;
            println!("{:>8} {:>9} bytes {micros:>10.1} us", algorithm.name, elements * 4);
        }
    }
    Ok(())
}

/// Returns the time of one all_reduce between four threads in microseconds.
fn measure(algorithm: &'static Algorithm, elements: usize) -> unisono::Result<f64> {
    const ROUNDS: usize = 20;
    let ranks = Communicator::builder().config(&Config::default()).local(4)?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|comm| {
                scope.spawn(move || {
                    comm.set_custom_algorithm(algorithm)?;
                    let mut values = vec![1.0f32; elements];
                    comm.all_reduce(&mut values, Sum)?;
                    assert!(values.iter().all(|&value| value == 4.0));
                    comm.barrier()?;
                    let begun = Instant::now();
                    for _ in 0..ROUNDS {
                        comm.all_reduce(&mut values, Sum)?;
                    }
                    Ok(begun.elapsed().as_secs_f64() * 1e6 / ROUNDS as f64)
                })
            })
            .collect();
        let times: unisono::Result<Vec<f64>> =
            threads.into_iter().map(|t| t.join().expect("no panic")).collect();
        Ok(times?.into_iter().fold(0.0, f64::max))
    })
}
