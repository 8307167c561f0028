//! Shards a feed-forward layer over four ranks, with the communicator alone: `cargo run --release
//! -p unisono-trainer --example tensor_parallel`.
//!
//! The layer is y = relu(x W₁ᵀ) W₂ᵀ. *Naive* shards both matrices by outputs, and gathers the
//! activations of all ranks after each. *Column, row* shards the first by outputs and the second by
//! inputs. The hidden activations then stay on their rank, and one sum in forward and one in
//! backward is the only communication. Both are compared with the layer on one rank.

mod common;

use common::{Result, on_ranks};
use unisono::{Communicator, Sum};

const RANKS: usize = 4;
const ROWS: usize = 32;
const WIDTH: usize = 64;
const HIDDEN: usize = 256;
/// Hidden and output features that one rank computes.
const OWN_HIDDEN: usize = HIDDEN / RANKS;
const OWN_WIDTH: usize = WIDTH / RANKS;

/// Row-major matrix.
#[derive(Clone)]
struct Matrix {
    columns: usize,
    data: Vec<f32>,
}

impl Matrix {
    fn random(rows: usize, columns: usize, seed: u64) -> Self {
        let number = |index: usize| {
            let hash = (index as u64 + seed * 7919 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            ((hash >> 40) as f32 / (1 << 23) as f32 - 1.0) / (columns as f32).sqrt()
        };
        Self { columns, data: (0..rows * columns).map(number).collect() }
    }

    fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.columns..][..self.columns]
    }

    fn rows(&self) -> usize {
        self.data.len() / self.columns
    }

    /// Returns some of the columns.
    fn columns(&self, first: usize, count: usize) -> Self {
        let data = (0..self.rows()).flat_map(|row| self.row(row)[first..first + count].to_vec()).collect();
        Self { columns: count, data }
    }

    /// Returns some of the rows.
    fn part(&self, first: usize, count: usize) -> Self {
        Self {
            columns: self.columns,
            data: self.data[first * self.columns..][..count * self.columns].to_vec(),
        }
    }

    fn transposed(&self) -> Self {
        let column = |index: usize| (0..self.rows()).map(move |row| self.row(row)[index]);
        Self { columns: self.rows(), data: (0..self.columns).flat_map(column).collect() }
    }

    /// Computes self · otherᵀ.
    fn matmul(&self, other: &Self) -> Self {
        let dot = |left: &[f32], right: &[f32]| left.iter().zip(right).map(|(x, y)| x * y).sum();
        let row =
            |row: usize| (0..other.rows()).map(move |other_row| dot(self.row(row), other.row(other_row)));
        Self { columns: other.rows(), data: (0..self.rows()).flat_map(row).collect() }
    }

    fn relu(mut self) -> Self {
        self.data.iter_mut().for_each(|x| *x = x.max(0.0));
        self
    }

    /// Computes the gradient before a relu, from the gradient after it and its output.
    fn where_positive(mut self, output: &Self) -> Self {
        self.data.iter_mut().zip(&output.data).for_each(|(dy, y)| *dy = if *y > 0.0 { *dy } else { 0.0 });
        self
    }

    fn differs_from(&self, other: &Self) -> f32 {
        let difference = |(left, right): (&f32, &f32)| (left - right).abs();
        self.data.iter().zip(&other.data).map(difference).fold(0.0, f32::max)
    }
}

/// Output, and gradients with respect to the input and both matrices.
struct Results {
    output: Matrix,
    input: Matrix,
    first: Matrix,
    second: Matrix,
}

/// Computes the layer on one rank, with weights of hidden × width and width × hidden.
fn whole(x: &Matrix, slope: &Matrix, first: &Matrix, second: &Matrix) -> Results {
    let hidden = x.matmul(first).relu();
    let hidden_slope = slope.matmul(&second.transposed()).where_positive(&hidden);
    Results {
        output: hidden.matmul(second),
        input: hidden_slope.matmul(&first.transposed()),
        first: hidden_slope.transposed().matmul(&x.transposed()),
        second: slope.transposed().matmul(&hidden.transposed()),
    }
}

/// Computes the layer with a shard of the matrices. The two sums are the ends of the sharded
/// region: f and g of Megatron-LM.
fn column_row(
    group: &Communicator,
    x: &Matrix,
    slope: &Matrix,
    first: &Matrix,
    second: &Matrix,
) -> Result<Results> {
    let mut parts = whole(x, slope, first, second);
    group.all_reduce(&mut parts.output.data, Sum)?;
    group.all_reduce(&mut parts.input.data, Sum)?;
    Ok(parts)
}

/// Computes forward, and gathers activations after each matrix.
fn without_fusion(group: &Communicator, x: &Matrix, first: &Matrix, second: &Matrix) -> Result<Matrix> {
    let hidden = concat_columns(group, &x.matmul(first))?.relu();
    concat_columns(group, &hidden.matmul(second))
}

/// Concatenates the columns of all ranks.
fn concat_columns(group: &Communicator, matrix: &Matrix) -> Result<Matrix> {
    let mut gathered = vec![0.0; matrix.data.len() * group.size()];
    group.all_gather(&matrix.data, &mut gathered)?;
    let parts: Vec<_> = gathered.chunks(matrix.data.len()).collect();
    let row = |row: usize| {
        parts.iter().flat_map(move |part| &part[row * matrix.columns..][..matrix.columns]).copied()
    };
    Ok(Matrix { columns: matrix.columns * group.size(), data: (0..matrix.rows()).flat_map(row).collect() })
}

/// Returns the maximum differences from the layer on one rank, and the bytes sent, of naive forward
/// and of column-row forward and backward.
fn rank_main(group: &Communicator) -> Result<([f32; 2], [u64; 2])> {
    let (x, slope) = (Matrix::random(ROWS, WIDTH, 1), Matrix::random(ROWS, WIDTH, 2));
    let (first, second) = (Matrix::random(HIDDEN, WIDTH, 3), Matrix::random(WIDTH, HIDDEN, 4));
    let expected = whole(&x, &slope, &first, &second);
    let (hidden, width) = (group.rank() * OWN_HIDDEN, group.rank() * OWN_WIDTH);
    let own_first = first.part(hidden, OWN_HIDDEN);

    let start = group.traffic_stats()?.bytes;
    let output = without_fusion(group, &x, &own_first, &second.part(width, OWN_WIDTH))?;
    let middle = group.traffic_stats()?.bytes;
    let found = column_row(group, &x, &slope, &own_first, &second.columns(hidden, OWN_HIDDEN))?;
    let end = group.traffic_stats()?.bytes;
    let differences = [
        found.output.differs_from(&expected.output),
        found.input.differs_from(&expected.input),
        found.first.differs_from(&expected.first.part(hidden, OWN_HIDDEN)),
        found.second.differs_from(&expected.second.columns(hidden, OWN_HIDDEN)),
    ];
    let most = differences.into_iter().fold(0.0, f32::max);
    Ok(([output.differs_from(&expected.output), most], [middle - start, end - middle]))
}

fn main() -> Result<()> {
    // One all_reduce sends 2 (N−1)/N buffers.
    let config = unisono::Config::default().with_algorithms(unisono::parse_algorithms("twoshot")?);
    let ranks = Communicator::builder().config(&config).local(RANKS)?;
    let by_rank = on_ranks(ranks, |group| rank_main(&group))?;
    let (differences, sent) = by_rank[0];
    if by_rank.iter().any(|(differences, _)| differences.iter().any(|difference| *difference > 1e-5)) {
        return Err(format!("not what the layer uncut computes: {differences:?}").into());
    }
    let weights = 4 * 2 * WIDTH * HIDDEN;
    println!("{ROWS} rows, {WIDTH} features, {HIDDEN} hidden, {RANKS} ranks; bytes of each");
    println!("| form | weights | hidden activations | sent | differs by |");
    println!("|---|--:|--:|--:|--:|");
    println!("| uncut | {weights} | {} | 0 | |", 4 * ROWS * HIDDEN);
    let rows =
        [("naive, forward", 4 * ROWS * HIDDEN), ("column, row; forward and backward", 4 * ROWS * OWN_HIDDEN)];
    for (index, (form, activations)) in rows.into_iter().enumerate() {
        let share = weights / RANKS;
        println!("| {form} | {share} | {activations} | {} | {:.1e} |", sent[index], differences[index]);
    }
    Ok(())
}
