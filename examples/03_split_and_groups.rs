//! A grid of ranks: a communicator for each row and each column, and groups of sends and receives.
//!
//! `cargo run --release --example 03_split_and_groups`

use unisono::{Communicator, Sum};

/// Ranks in a row; the grid has two rows.
const WIDTH: usize = 3;

fn main() -> unisono::Result<()> {
    unisono::local(2 * WIDTH, |comm| rank_main(&comm))?;
    Ok(())
}

fn rank_main(world: &Communicator) -> unisono::Result<()> {
    let (row, column) = (world.rank() / WIDTH, world.rank() % WIDTH);

    // Ranks with the same color share a communicator; the key orders them.
    let along_row = world.split(Some(row as u32), column as i32)?.expect("a color was given");
    let along_column = world.split(Some(column as u32), row as i32)?.expect("a color was given");
    assert_eq!((along_row.size(), along_column.size()), (WIDTH, 2));

    let mut sum = [world.rank() as i32];
    along_row.all_reduce(&mut sum, Sum)?;
    along_column.all_reduce(&mut sum, Sum)?;
    assert_eq!(sum, [(0..2 * WIDTH as i32).sum::<i32>()]);

    // A ring shift within the row, in both directions at once.
    let (next, previous) = ((column + 1) % WIDTH, (column + WIDTH - 1) % WIDTH);
    let message = [column as u32];
    let (mut from_previous, mut from_next) = ([0u32], [0u32]);
    along_row.group(|group| {
        group.send(&message, next).send(&message, previous);
        group.recv(&mut from_previous, previous).recv(&mut from_next, next);
    })?;
    assert_eq!((from_previous[0] as usize, from_next[0] as usize), (previous, next));

    // Ranks without a color get no communicator. A duplicate has its own sequence of operations.
    let is_even = world.rank().is_multiple_of(2);
    let evens = world.split(is_even.then_some(0), 0)?;
    assert_eq!(evens.is_some(), is_even);
    let twin = world.duplicate()?;
    twin.barrier()?;
    println!("rank {}: row {row}, column {column}, sum {}", world.rank(), sum[0]);
    Ok(())
}
