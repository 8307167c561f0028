//! A first collective: four ranks, which are threads of this process, sum a vector.
//!
//! `cargo run --release --example 01_all_reduce`

use unisono::{Avg, Communicator, Max, Sum};

fn main() -> unisono::Result<()> {
    unisono::local(4, |comm| rank_main(&comm))?;
    Ok(())
}

fn rank_main(comm: &Communicator) -> unisono::Result<()> {
    // In place: every rank contributes a vector and gets the sum.
    let mut values = vec![comm.rank() as f32; 1000];
    comm.all_reduce(&mut values, Sum)?;
    assert!(values.iter().all(|&value| value == 6.0));

    // Out of place: the input stays unchanged.
    let input = [comm.rank() as i64, -(comm.rank() as i64)];
    let mut largest = [0; 2];
    comm.all_reduce_into(&input, &mut largest, Max)?;
    assert_eq!(largest, [3, 0]);

    let mut mean = [comm.rank() as f64];
    comm.all_reduce(&mut mean, Avg)?;
    println!("rank {} of {}: sum {}, max {largest:?}, mean {}", comm.rank(), comm.size(), values[0], mean[0]);
    Ok(())
}
