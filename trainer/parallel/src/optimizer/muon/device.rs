//! Orthogonalization on a GPU.

use super::{A, B, C, NEWTON_SCHULZ_STEPS};
use unisono_cuda::device::compute::{Compute, MatrixView, MatrixViewMut};
use unisono_cuda::device::{GpuError, ViewMut};

/// Orthogonalizes as [`super::orthogonalize`] does. The host does not wait for the norm of the
/// matrix.
pub(super) fn orthogonalize(
    compute: &Compute,
    mut matrix: ViewMut<'_, f32>,
    rows: usize,
    columns: usize,
) -> Result<(), GpuError> {
    let squares = compute.square_sums(&[matrix.as_view()])?;
    compute.scale_and_clip(matrix.view_mut(..), squares.view(..), LONG, 1.0)?;
    let (stream, short, is_tall) = (compute.stream(), rows.min(columns), rows > columns);
    let (mut gram, mut poly) =
        (stream.alloc::<f32>(short * short)?, stream.alloc_uninit::<f32>(short * short)?);
    let mut copied = stream.alloc_uninit::<f32>(rows * columns)?;
    for _ in 0..NEWTON_SCHULZ_STEPS {
        compute.copy(copied.view_mut(..), matrix.as_view())?;
        let x = copied.view(..);
        let x = MatrixView::new(&x, rows, columns)?;
        let (first, second) = if is_tall { (x.t(), x) } else { (x, x.t()) };
        compute.matmul(MatrixViewMut::new(gram.view_mut(..), short, short)?, 0.0, 1.0, first, second)?;
        compute.copy(poly.view_mut(..), gram.view(..))?;
        let square = gram.view(..);
        let square = MatrixView::new(&square, short, short)?;
        compute.matmul(MatrixViewMut::new(poly.view_mut(..), short, short)?, B, C, square, square)?;
        let poly = poly.view(..);
        let poly = MatrixView::new(&poly, short, short)?;
        let (left, right) = if is_tall { (x, poly) } else { (poly, x) };
        compute.matmul(MatrixViewMut::new(matrix.view_mut(..), rows, columns)?, A, 1.0, left, right)?;
    }
    Ok(())
}

/// Scale before clipping to norm one. Only extremely short matrices stay shorter than one.
const LONG: f32 = (1u32 << 20) as f32;
