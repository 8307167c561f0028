//! Muon's directions on a GPU.

use super::{A, B, C, ITERATIONS};
use unisono_cuda::device::compute::{Compute, Panel, PanelMut};
use unisono_cuda::device::{GpuError, ViewMut};

/// As [`super::orthogonalise`]; nothing waits for the length of the matrix.
pub(super) fn orthogonalise(
    compute: &Compute,
    mut matrix: ViewMut<'_, f32>,
    rows: usize,
    columns: usize,
) -> Result<(), GpuError> {
    let squares = compute.squares(&[matrix.as_view()])?;
    compute.scale_and_clip(matrix.view_mut(..), squares.view(..), LONG, 1.0)?;
    let (stream, short, is_tall) = (compute.stream(), rows.min(columns), rows > columns);
    let (mut gram, mut poly) = (stream.alloc::<f32>(short * short)?, stream.room::<f32>(short * short)?);
    let mut before = stream.room::<f32>(rows * columns)?;
    for _ in 0..ITERATIONS {
        compute.copy(before.view_mut(..), matrix.as_view())?;
        let x = before.view(..);
        let x = Panel::new(&x, rows, columns)?;
        let (one, other) = if is_tall { (x.t(), x) } else { (x, x.t()) };
        compute.matmul(PanelMut::new(gram.view_mut(..), short, short)?, 0.0, 1.0, one, other)?;
        compute.copy(poly.view_mut(..), gram.view(..))?;
        let square = gram.view(..);
        let square = Panel::new(&square, short, short)?;
        compute.matmul(PanelMut::new(poly.view_mut(..), short, short)?, B, C, square, square)?;
        let poly = poly.view(..);
        let poly = Panel::new(&poly, short, short)?;
        let (left, right) = if is_tall { (x, poly) } else { (poly, x) };
        compute.matmul(PanelMut::new(matrix.view_mut(..), rows, columns)?, A, 1.0, left, right)?;
    }
    Ok(())
}

/// Clipped to one after it was made so much longer, nothing but the shortest of matrices stays shorter than one.
const LONG: f32 = (1u32 << 20) as f32;
