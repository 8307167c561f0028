//! Matrix products of `f32` on the CPU, over strided views of slices.
//!
//! The arithmetic is that of the crate `gemm`. This module checks bounds: a view is checked when it
//! is made, so that a product cannot leave its slices.

use gemm::Parallelism;
use std::sync::LazyLock;

/// A matrix to read: an extent and a stride, in elements, for rows and for columns.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    data: &'a [f32],
    layout: Layout,
}

/// A matrix to write.
#[derive(Debug)]
pub struct MatrixMut<'a> {
    data: &'a mut [f32],
    layout: Layout,
}

#[derive(Clone, Copy, Debug)]
struct Layout {
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl Layout {
    /// Row after row, `row_stride` apart.
    ///
    /// # Panics
    /// If the last element is not within `length`.
    fn new(length: usize, rows: usize, columns: usize, row_stride: usize) -> Self {
        assert!(
            columns <= row_stride || rows <= 1,
            "rows of {columns} elements, {row_stride} apart, overlap"
        );
        if rows > 0 && columns > 0 {
            let end = (rows - 1).checked_mul(row_stride).and_then(|start| start.checked_add(columns));
            let fits = end.is_some_and(|end| end <= length);
            assert!(fits, "{rows} × {columns} with stride {row_stride} in {length} elements");
        }
        Self { rows, columns, row_stride, column_stride: 1 }
    }

    fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }

    /// Strides of columns and rows for `gemm`. Strides of slices fit in the type.
    fn strides(self) -> (isize, isize) {
        (self.column_stride.cast_signed(), self.row_stride.cast_signed())
    }
}

impl<'a> Matrix<'a> {
    /// `rows` rows of `columns` elements, one after another.
    ///
    /// # Panics
    /// If `data` is too short.
    pub fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Self::strided(data, rows, columns, columns)
    }

    /// `rows` rows of `columns` elements, which begin `stride` apart.
    ///
    /// # Panics
    /// If `data` is too short, or if rows would overlap.
    pub fn strided(data: &'a [f32], rows: usize, columns: usize, stride: usize) -> Self {
        Self { data, layout: Layout::new(data.len(), rows, columns, stride) }
    }

    /// The transpose.
    pub fn t(self) -> Self {
        Self { layout: self.layout.transposed(), ..self }
    }
}

impl<'a> MatrixMut<'a> {
    /// `rows` rows of `columns` elements, one after another.
    ///
    /// # Panics
    /// If `data` is too short.
    pub fn new(data: &'a mut [f32], rows: usize, columns: usize) -> Self {
        Self::strided(data, rows, columns, columns)
    }

    /// `rows` rows of `columns` elements, which begin `stride` apart.
    ///
    /// # Panics
    /// If `data` is too short, or if rows would overlap.
    pub fn strided(data: &'a mut [f32], rows: usize, columns: usize, stride: usize) -> Self {
        let layout = Layout::new(data.len(), rows, columns, stride);
        Self { data, layout }
    }

    /// The transpose.
    pub fn t(self) -> Self {
        Self { layout: self.layout.transposed(), ..self }
    }
}

/// Computes `c` = `alpha` · `a` · `b` + `beta` · `c`, by at most `threads` threads.
///
/// With `beta` zero, `c` is not read. With one thread, the same numbers give the same bits.
///
/// # Panics
/// Extents do not match, or `threads` is 0.
pub fn matmul(c: MatrixMut<'_>, beta: f32, alpha: f32, a: Matrix<'_>, b: Matrix<'_>, threads: usize) {
    let (rows, columns, inner) = (c.layout.rows, c.layout.columns, a.layout.columns);
    let extents = [a.layout.rows, b.layout.rows, b.layout.columns];
    assert_eq!(extents, [rows, inner, columns], "extents of a product of {rows} × {columns}");
    let parallelism = match threads {
        0 => panic!("a product needs a thread"),
        1 => Parallelism::None,
        _ => Parallelism::Rayon(threads),
    };
    let (c_columns, c_rows) = c.layout.strides();
    let (a_columns, a_rows) = a.layout.strides();
    let (b_columns, b_rows) = b.layout.strides();
    // SAFETY: each layout was checked against its slice, and extents against each other. `c` is
    // borrowed exclusively, and its rows do not overlap, so threads write disjoint elements.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            inner,
            c.data.as_mut_ptr(),
            c_columns,
            c_rows,
            beta != 0.0,
            a.data.as_ptr(),
            a_columns,
            a_rows,
            b.data.as_ptr(),
            b_columns,
            b_rows,
            beta,
            alpha,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// Returns the name of the instruction set with which [`matmul`] computes: `AVX-512`, `AVX2` (with
/// FMA), `NEON`, or `portable` for the instructions of every processor of the architecture.
///
/// `gemm` keeps its choice of a kernel to itself, so two products show it: rounding tells how many
/// lanes add up a row, and whether a product and a sum are rounded once.
///
/// ```
/// assert!(["AVX-512", "AVX2", "NEON", "portable"].contains(&unisono_matmul::instruction_set()));
/// ```
pub fn instruction_set() -> &'static str {
    static SHOWN: LazyLock<&'static str> = LazyLock::new(|| {
        // All processors of this architecture have it, and `gemm` has no other kernel for it.
        if cfg!(target_arch = "aarch64") {
            "NEON"
        } else if adds_in_16_lanes() {
            "AVX-512"
        } else if fuses() {
            "AVX2"
        } else {
            "portable"
        }
    });
    *SHOWN
}

/// Returns true if elements 0, 8 and 16 of a row are not added up in this order, as they are in
/// eight lanes and in one.
fn adds_in_16_lanes() -> bool {
    /// Adding one to it leaves it as it is.
    const LARGE: f32 = 16_777_216.0;
    row_product([(LARGE, 1.0), (1.0, 1.0), (-LARGE, 1.0)]) == 1.0
}

/// Returns true if a product that is added to a sum is not rounded before.
fn fuses() -> bool {
    /// The square has one bit more than an `f32` keeps.
    const ROOT: f32 = 1.0 + 1.0 / 4096.0;
    row_product([(-(1.0 + 1.0 / 2048.0), 1.0), (0.0, 0.0), (ROOT, ROOT)]) != 0.0
}

/// Returns the product of a row and a column of 32 elements: those at 0, 8 and 16 are given, and
/// the others are zero.
fn row_product(pairs: [(f32, f32); 3]) -> f32 {
    let (mut row, mut column, mut product) = ([0.0; 32], [0.0; 32], [0.0]);
    for (index, (left, right)) in pairs.into_iter().enumerate() {
        row[8 * index] = left;
        column[8 * index] = right;
    }
    let (row, column) = (Matrix::new(&row, 1, 32), Matrix::new(&column, 32, 1));
    matmul(MatrixMut::new(&mut product, 1, 1), 0.0, 1.0, row, column, 1);
    product[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The crate `gemm` asks the processor for these instructions, in this order.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn instruction_set_is_the_best_of_the_processor() {
        let expected = if is_x86_feature_detected!("avx512f") {
            "AVX-512"
        } else if is_x86_feature_detected!("fma") {
            "AVX2"
        } else {
            "portable"
        };
        assert_eq!(instruction_set(), expected);
    }

    /// Rows and columns of a matrix, with strides. The transpose has them exchanged.
    #[derive(Clone, Copy)]
    struct Shape {
        rows: usize,
        columns: usize,
        gap: usize,
        transposed: bool,
    }

    impl Shape {
        fn stored(self) -> (usize, usize) {
            if self.transposed { (self.columns, self.rows) } else { (self.rows, self.columns) }
        }

        fn stride(self) -> usize {
            self.stored().1 + self.gap
        }

        fn numbers(self, seed: usize) -> Vec<f32> {
            let number = |index: usize| ((index * 37 + seed) % 23) as f32 / 8.0 - 1.0;
            (0..self.stored().0 * self.stride()).map(number).collect()
        }

        fn view(self, data: &[f32]) -> Matrix<'_> {
            let view = Matrix::strided(data, self.stored().0, self.stored().1, self.stride());
            if self.transposed { view.t() } else { view }
        }

        fn view_mut(self, data: &mut [f32]) -> MatrixMut<'_> {
            let view = MatrixMut::strided(data, self.stored().0, self.stored().1, self.stride());
            if self.transposed { view.t() } else { view }
        }

        fn at(self, row: usize, column: usize) -> usize {
            if self.transposed { column * self.stride() + row } else { row * self.stride() + column }
        }
    }

    fn naive(c: (Shape, &mut [f32]), beta: f32, alpha: f32, a: (Shape, &[f32]), b: (Shape, &[f32])) {
        for row in 0..c.0.rows {
            for column in 0..c.0.columns {
                let product =
                    |index| f64::from(a.1[a.0.at(row, index)]) * f64::from(b.1[b.0.at(index, column)]);
                let sum: f64 = (0..a.0.columns).map(product).sum();
                let target = &mut c.1[c.0.at(row, column)];
                let kept = if beta == 0.0 { 0.0 } else { beta * *target };
                *target = alpha * sum as f32 + kept;
            }
        }
    }

    fn agrees([rows, columns, inner]: [usize; 3], flips: usize, gap: usize, beta: f32, threads: usize) {
        let shape = |rows, columns, bit| Shape { rows, columns, gap, transposed: flips & bit != 0 };
        let (c, a, b) = (shape(rows, columns, 1), shape(rows, inner, 2), shape(inner, columns, 4));
        let (left, right) = (a.numbers(1), b.numbers(5));
        let start = if beta == 0.0 { vec![f32::NAN; c.numbers(0).len()] } else { c.numbers(9) };
        let (mut found, mut expected) = (start.clone(), start);
        matmul(c.view_mut(&mut found), beta, 0.5, a.view(&left), b.view(&right), threads);
        naive((c, &mut expected), beta, 0.5, (a, &left), (b, &right));
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let same = found.to_bits() == expected.to_bits() || (found - expected).abs() < 1e-4;
            assert!(same, "{rows} × {columns} × {inner}, flips {flips}: {found} not {expected} at {index}");
        }
    }

    #[test]
    fn every_transposition_gap_and_extent_agrees_with_three_loops() {
        let extents = [[1, 1, 1], [1, 9, 4], [7, 1, 3], [5, 3, 0], [0, 4, 2], [17, 33, 9], [3, 2, 40]];
        for extents in extents {
            for (flips, gap) in (0..8).flat_map(|flips| [(flips, 0), (flips, 3)]) {
                [0.0, 1.0, -0.5].into_iter().for_each(|beta| agrees(extents, flips, gap, beta, 1));
            }
        }
        agrees([70, 65, 300], 2, 0, 1.0, 2);
    }

    #[test]
    #[should_panic(expected = "in 11 elements")]
    fn a_view_beyond_its_slice_is_refused() {
        Matrix::new(&[0.0; 11], 3, 4);
    }

    #[test]
    #[should_panic(expected = "overlap")]
    fn overlapping_rows_are_refused() {
        MatrixMut::strided(&mut [0.0; 11], 3, 4, 3);
    }

    #[test]
    #[should_panic(expected = "extents")]
    fn extents_that_differ_are_refused() {
        let (a, b, mut c) = ([0.0; 6], [0.0; 6], [0.0; 4]);
        matmul(MatrixMut::new(&mut c, 2, 2), 0.0, 1.0, Matrix::new(&a, 2, 3), Matrix::new(&b, 2, 3), 1);
    }
}
