//! Matrix products, against sums in f64.

use super::{Memory, device, near, numbers};
use crate::emulator::Device;
use unisono_cuda::device::model::Matmul;

/// A matrix that is stored, or whose transpose is.
struct Side {
    values: Vec<f32>,
    strides: [u32; 2],
}

impl Side {
    fn new(seed: u64, rows: usize, columns: usize, is_transposed: bool) -> Self {
        let strides = if is_transposed { [1, rows as u32] } else { [columns as u32, 1] };
        Self { values: numbers(seed, rows * columns), strides }
    }

    fn at(&self, row: usize, column: usize) -> f64 {
        self.values[row * self.strides[0] as usize + column * self.strides[1] as usize].into()
    }
}

#[test]
fn products_are_those_of_rows_and_columns() {
    let Some(device) = device("model-matmul.so", &["matmul"]) else { return };
    for (turn, extents) in
        [[1, 1, 1], [5, 7, 3], [64, 64, 16], [65, 130, 33], [70, 3, 0]].into_iter().enumerate()
    {
        product(&device, extents, [turn % 2 == 0, turn % 3 == 0], [0.0, 1.0, 0.5][turn % 3]);
    }
}

fn product(device: &Device, [rows, columns, inner]: [usize; 3], transposed: [bool; 2], beta: f32) {
    let (left, right) =
        (Side::new(1, rows, inner, transposed[0]), Side::new(2, inner, columns, transposed[1]));
    let stride = columns + 2;
    // Memory that is not read may have any content.
    let start = if beta == 0.0 { vec![f32::NAN; rows * stride] } else { numbers(3, rows * stride) };
    let memory = [&left.values, &right.values, &start].map(|values| Memory::of(device, 0, values));
    let arguments = Matmul {
        one: memory[0].at(),
        other: memory[1].at(),
        into: memory[2].at(),
        rows: rows as u32,
        columns: columns as u32,
        inner: inner as u32,
        alpha: 0.75,
        beta,
        stride: stride as u32,
        one_strides: left.strides,
        other_strides: right.strides,
    };
    device.run("matmul", &arguments, 2, Matmul::THREADS).unwrap();
    let [_, _, found] = memory.map(Memory::read::<f32>);
    for row in 0..rows {
        let expected = |column| {
            let sum: f64 = (0..inner).map(|index| left.at(row, index) * right.at(index, column)).sum();
            let added = if beta == 0.0 { 0.0 } else { f64::from(beta * start[row * stride + column]) };
            0.75 * sum + added
        };
        let expected: Vec<f64> = (0..columns).map(expected).collect();
        let context = format!("row {row} of {rows} × {columns}, {inner}, {transposed:?}");
        near(&found[row * stride..][..columns], &expected, 2e-6, &context);
        let padding = |values: &[f32]| super::bits(&values[row * stride + columns..(row + 1) * stride]);
        assert_eq!(padding(&found), padding(&start), "{context}");
    }
}
