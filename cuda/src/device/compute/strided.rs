//! Arrays of any strides, to contiguous memory and back.

use super::{Compute, as_device_mut_ptr, as_device_ptr, check_len};
use crate::device::model::Strided;
use crate::device::{GpuError, View, ViewMut};
use unisono_reducers::Element;

impl Compute {
    /// Copies a strided array to contiguous elements. The array has these extents and begins with
    /// `from`. Its neighbors along each dimension are `strides` elements apart, the last dimension
    /// first. Same as [`pack`](unisono_reducers::pack) on the host.
    ///
    /// # Errors
    /// Extents and lengths do not match, or the driver fails.
    pub fn pack<T: Element>(
        &self,
        into: ViewMut<'_, T>,
        from: View<'_, T>,
        shape: &[usize],
        strides: &[usize],
    ) -> Result<(), GpuError> {
        let mut arguments = arguments(into.len(), from.len(), shape, strides)?;
        (arguments.dense, arguments.array) =
            (as_device_mut_ptr(&into).cast(), as_device_ptr(&from).cast_mut().cast());
        let (target, threads) = (into.as_view(), self.linear(4 * into.len()));
        // SAFETY: pointers are to views that hold every element; the array is only read.
        unsafe { self.launch(kernel::<T>(false), threads, &[target.memory, from.memory], &arguments) }
    }

    /// Copies contiguous elements to a strided array. If two elements have one place, either may
    /// remain.
    ///
    /// # Errors
    /// Extents and lengths do not match, or the driver fails.
    pub fn unpack<T: Element>(
        &self,
        into: ViewMut<'_, T>,
        from: View<'_, T>,
        shape: &[usize],
        strides: &[usize],
    ) -> Result<(), GpuError> {
        let mut arguments = arguments(from.len(), into.len(), shape, strides)?;
        (arguments.dense, arguments.array) =
            (as_device_ptr(&from).cast_mut().cast(), as_device_mut_ptr(&into).cast());
        let (target, threads) = (into.as_view(), self.linear(4 * from.len()));
        // SAFETY: pointers are to views that hold every element; contiguous memory is only read.
        unsafe { self.launch(kernel::<T>(true), threads, &[target.memory, from.memory], &arguments) }
    }
}

/// Returns the kernel for the size of an element.
fn kernel<T: Element>(unpacks: bool) -> &'static str {
    match (size_of::<T>(), unpacks) {
        (1, false) => "pack_1",
        (1, true) => "unpack_1",
        (2, false) => "pack_2",
        (2, true) => "unpack_2",
        (4, false) => "pack_4",
        (4, true) => "unpack_4",
        (_, false) => "pack_8",
        (_, true) => "unpack_8",
    }
}

/// All but the addresses of an array of `count` elements within `room`.
fn arguments(count: usize, room: usize, shape: &[usize], strides: &[usize]) -> Result<Strided, GpuError> {
    check_len(strides.len(), shape.len())?;
    if shape.len() > Strided::DIMENSIONS_MAX {
        return Err(GpuError::LengthMismatch { found: shape.len(), wanted: Strided::DIMENSIONS_MAX });
    }
    let elements = shape.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent));
    check_len(elements.unwrap_or(usize::MAX), count)?;
    let last = shape.iter().zip(strides).try_fold(0usize, |sum, (&extent, &stride)| {
        sum.checked_add(stride.checked_mul(extent.saturating_sub(1))?)
    });
    if count > 0 && last.is_none_or(|last| last >= room) {
        return Err(GpuError::LengthMismatch {
            found: room,
            wanted: last.map_or(usize::MAX, |last| last + 1),
        });
    }
    let fill = |values: &[usize]| std::array::from_fn(|dim| values.get(dim).copied().unwrap_or(1) as u64);
    Ok(Strided {
        dense: std::ptr::null_mut(),
        array: std::ptr::null_mut(),
        count: count as u64,
        extents: fill(shape),
        strides: fill(strides),
        dimensions: shape.len() as u32,
        unused: 0,
    })
}
