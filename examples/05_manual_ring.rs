//! A ring all_reduce from sends and receives, printed step by step.
//!
//! `cargo run --release --example 05_manual_ring`
//!
//! After the first phase, rank r holds the sum of chunk r + 1. The library's reduce_scatter starts
//! every chunk one rank later, so that rank r gets chunk r.

use unisono::{Communicator, Sum};

const RANKS: usize = 4;

/// One step of a rank: the chunk sent, the chunk received, and the data afterwards.
type StepRecord = (usize, usize, [i64; RANKS]);

fn main() -> unisono::Result<()> {
    let tables = unisono::local(RANKS, |comm| rank_main(&comm))?;
    println!("step  rank  sends  receives  has then");
    for step in 0..2 * (RANKS - 1) {
        if step == RANKS - 1 {
            println!("every rank has the sum of one chunk, which now goes round");
        }
        for (rank, table) in tables.iter().enumerate() {
            let (sent, received, has) = table[step];
            println!("{step:4}  {rank:4}  {sent:5}  {received:8}  {has:?}");
        }
    }
    Ok(())
}

fn rank_main(comm: &Communicator) -> unisono::Result<Vec<StepRecord>> {
    let rank = comm.rank();
    let chunk_before = |chunk: usize, steps: usize| (chunk + 2 * RANKS - steps) % RANKS;
    let mut chunks: [i64; RANKS] = std::array::from_fn(|index| (index + rank) as i64);
    let mut table = Vec::new();
    for step in 0..RANKS - 1 {
        let (sent, received) = (chunk_before(rank, step), chunk_before(rank, step + 1));
        chunks[received] += exchange(comm, chunks[sent])?;
        table.push((sent, received, chunks));
    }
    let reduced = (rank + 1) % RANKS;
    assert_eq!(chunks[reduced], [6, 10, 14, 18][reduced]);
    for step in 0..RANKS - 1 {
        let (sent, received) = (chunk_before(rank + 1, step), chunk_before(rank, step));
        chunks[received] = exchange(comm, chunks[sent])?;
        table.push((sent, received, chunks));
    }
    assert_eq!(chunks, [6, 10, 14, 18]);
    check_against_library(comm)?;
    Ok(table)
}

/// Sends to the next rank and receives from the previous one.
fn exchange(comm: &Communicator, chunk: i64) -> unisono::Result<i64> {
    let (next, previous) = ((comm.rank() + 1) % RANKS, (comm.rank() + RANKS - 1) % RANKS);
    let mut received = [0];
    comm.send_recv(&[chunk], next, &mut received, previous)?;
    Ok(received[0])
}

fn check_against_library(comm: &Communicator) -> unisono::Result<()> {
    let input: [i64; RANKS] = std::array::from_fn(|index| (index + comm.rank()) as i64);
    let (mut share, mut sums) = ([0], input);
    comm.reduce_scatter(&input, &mut share, Sum)?;
    comm.all_reduce(&mut sums, Sum)?;
    assert_eq!((share[0], sums), (sums[comm.rank()], [6, 10, 14, 18]));
    Ok(())
}
