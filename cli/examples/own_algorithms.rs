//! The command `unisono` with algorithms of your own. For example, behind
//! `cargo run --release -p unisono-cli --example own_algorithms --`:
//!
//! - `check --algo two_level_2` proves one for every number of ranks it supports,
//! - `explain all_reduce --algo two_level_2 -n 4 --svg two_level.svg` draws it,
//! - `perf all_reduce -N 4 --compare=ring,collect,two_level_2` measures it beside others,
//! - `simulate --algo two_level_2 --seeds 0..1000` runs it among ranks that die.

use std::process::ExitCode;
use unisono::schedule::algorithms::ring;
use unisono::schedule::{
    Algorithm, Collective, Embedding, ProgramBuilder, Rank, chunk_at, input, output, scratch,
};

fn main() -> ExitCode {
    unisono_cli::main_with(&[collect(), two_level(2), two_level(4)])
}

/// Rank 0 adds the buffers of all ranks, and sends the sum to each.
fn collect() -> Algorithm {
    Algorithm::new("collect", Collective::AllReduce, |spec, rank| {
        let mut program = ProgramBuilder::new(rank);
        if rank > 0 {
            program.send(0, [input(0)]).recv(0, [output(0)]);
            return program.finish(0, 0);
        }
        let peers = 1..spec.ranks;
        peers.clone().for_each(|peer| _ = program.recv(peer, [scratch(peer - 1)]));
        // One step adds all of them, and its sum is complete.
        let operands = [input(0)].into_iter().chain(peers.clone().map(|peer| scratch(peer - 1)));
        program.reduce(operands.map(|chunk| chunk_at(0, chunk)).collect(), output(0), true);
        peers.for_each(|peer| _ = program.send(peer, [output(0)]));
        program.finish(spec.ranks - 1, 0)
    })
}

/// Hosts of `local` ranks each: a ring inside every host, one across the hosts, and one inside.
fn two_level(local: usize) -> Algorithm {
    Algorithm::new(format!("two_level_{local}"), Collective::AllReduce, move |spec, rank| {
        let (hosts, position) = (spec.ranks / local, rank % local);
        let host: Vec<Rank> = (rank - position..rank - position + local).collect();
        let across: Vec<Rank> = (position..spec.ranks).step_by(local).collect();
        // A buffer has a part for each rank of a host, and the part a piece for each host.
        let own_part = |piece| output(position * hosts + piece);
        let host_embedding = || Embedding::new(&host).with_pieces(hosts);
        let cross_embedding = Embedding::new(&across).with_input(own_part).with_output(own_part);
        let mut program = ProgramBuilder::new(rank);
        program.embed(&ring::REDUCE_SCATTER, &host_embedding().with_output(own_part).unfinished());
        program.embed(&ring::ALL_REDUCE, &cross_embedding);
        program.embed(&ring::ALL_GATHER, &host_embedding().with_input(own_part));
        program.finish(0, 0)
    })
    .with_supports(move |spec| spec.ranks % local == 0)
    .with_chunks_per_share(|spec| spec.ranks)
}
