//! Measures the peak rate of matrix products.

use std::time::{Duration, Instant};
use unisono_cuda::device::compute::{MatrixView, MatrixViewMut};
use unisono_matmul::{Matrix, MatrixMut, matmul};
use unisono_nn::device::Device;
use unisono_nn::error::Result;

/// Measures the peak floating-point operations per second of `threads` threads: the fastest of
/// several short matrix products.
pub(crate) fn peak_flops(threads: usize) -> f64 {
    let (left, right) = (vec![0.5f32; MATRIX_DIM * MATRIX_DIM], vec![0.25f32; MATRIX_DIM * MATRIX_DIM]);
    let mut product = vec![0.0f32; MATRIX_DIM * MATRIX_DIM];
    let mut least = f64::INFINITY;
    let start = Instant::now();
    while start.elapsed() < MEASURE_TIME {
        let begun = Instant::now();
        let output = MatrixMut::new(&mut product, MATRIX_DIM, MATRIX_DIM);
        let (left, right) =
            (Matrix::new(&left, MATRIX_DIM, MATRIX_DIM), Matrix::new(&right, MATRIX_DIM, MATRIX_DIM));
        matmul(output, 0.0, 1.0, left, right, threads);
        least = least.min(begun.elapsed().as_secs_f64());
    }
    2.0 * (MATRIX_DIM as f64).powi(3) / least
}

/// Measures the peak operations per second of a GPU: the fastest of three matrix products.
pub(crate) fn peak_flops_on(device: &Device) -> Result<f64> {
    let stream = device.compute().stream();
    let extent = if stream.gpu().is_emulated() { MATRIX_DIM_SOFTWARE } else { MATRIX_DIM_GPU };
    let (matrix, mut product) = (device.tensor(extent, extent)?, device.tensor(extent, extent)?);
    let mut least = f64::INFINITY;
    for _ in 0..3 {
        stream.synchronize()?;
        let begun = Instant::now();
        let (side, output) = (matrix.view(), MatrixViewMut::new(product.view_mut(), extent, extent)?);
        let side = MatrixView::new(&side, extent, extent)?;
        device.compute().matmul(output, 0.0, 1.0, side, side.t())?;
        stream.synchronize()?;
        least = least.min(begun.elapsed().as_secs_f64());
    }
    Ok(2.0 * (extent as f64).powi(3) / least)
}

const MATRIX_DIM_GPU: usize = 4096;
const MATRIX_DIM_SOFTWARE: usize = 64;
const MATRIX_DIM: usize = 384;
const MEASURE_TIME: Duration = Duration::from_millis(80);
