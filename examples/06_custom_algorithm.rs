//! An algorithm of your own in one program: write a schedule, prove it, draw it, run it.
//!
//! `cargo run --release --example 06_custom_algorithm`
//!
//! Rank 0 adds the buffers of all ranks, and sends the sum to each. `own_algorithms` among the
//! examples of the command measures such an algorithm beside those of the library.

use unisono::schedule::check::{cases, sweep};
use unisono::schedule::{
    Algorithm, Collective, GroupSpec, ProgramBuilder, chunk_at, draw, input, output, scratch,
};
use unisono::{Sum, local, register_algorithm};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let collect = Algorithm::new("collect", Collective::AllReduce, |spec, rank| {
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
    });
    // The proof needs no ranks: every value arrives exactly once, and nothing waits forever.
    let proof = sweep(&collect, &cases(&collect, 64, false));
    if let Some((spec, violation)) = proof.violation {
        return Err(format!("{} ranks: {violation}", spec.ranks).into());
    }
    println!("proved for 1 to 64 ranks; with 64, {} chunks move\n", proof.chunks);
    println!("{}", draw::explain(&collect.schedule(&GroupSpec::new(3))));

    // With a name, settings and tuning files understand it.
    register_algorithm(collect)?;
    let sums = local(4, |comm| {
        comm.set_algorithm(Collective::AllReduce, Some("collect"))?;
        let mut values = vec![comm.rank() as f32; 1000];
        comm.all_reduce(&mut values, Sum)?;
        Ok(values[999])
    })?;
    println!("sums of 4 ranks: {sums:?}");
    assert_eq!(sums, [6.0; 4]);
    Ok(())
}
