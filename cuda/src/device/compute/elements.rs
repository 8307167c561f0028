//! Functions of elements.

use super::{Compute, as_device_mut_ptr, as_device_ptr, check_len, rows_of};
use crate::device::model::{Dropout, Elementwise, Gated};
use crate::device::{GpuError, View, ViewMut};

/// An activation function, with its derivative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x Φ(x) with Φ by tanh.
    GeluTanh,
    /// x Φ(x) with Φ by the error function.
    GeluExact,
}

impl Activation {
    fn kernels(self) -> [&'static str; 2] {
        match self {
            Self::GeluTanh => ["gelu_tanh", "gelu_tanh_backward"],
            Self::GeluExact => ["gelu_exact", "gelu_exact_backward"],
        }
    }
}

impl Compute {
    /// Computes to = f(from).
    ///
    /// # Errors
    /// Lengths differ, or the driver fails.
    pub fn activation(
        &self,
        curve: Activation,
        to: ViewMut<'_, f32>,
        from: View<'_, f32>,
    ) -> Result<(), GpuError> {
        self.map(curve.kernels()[0], to, from, [0.0; 2])
    }

    /// grads *= f'(at).
    ///
    /// # Errors
    /// If lengths differ, and of the driver.
    pub fn activation_backward(
        &self,
        curve: Activation,
        grads: ViewMut<'_, f32>,
        at: View<'_, f32>,
    ) -> Result<(), GpuError> {
        self.map(curve.kernels()[1], grads, at, [0.0; 2])
    }

    /// into = factor · from + kept · into.
    ///
    /// # Errors
    /// If lengths differ, and of the driver.
    pub fn add(
        &self,
        into: ViewMut<'_, f32>,
        from: View<'_, f32>,
        factor: f32,
        kept: f32,
    ) -> Result<(), GpuError> {
        self.map("weighted_sum", into, from, [factor, kept])
    }

    /// values *= factor.
    ///
    /// # Errors
    /// Of the driver.
    pub fn scale(&self, values: ViewMut<'_, f32>, factor: f32) -> Result<(), GpuError> {
        let view = values.as_view();
        let (target, source, count) = (as_device_mut_ptr(&values), as_device_ptr(&view), view.len());
        let arguments = Elementwise {
            to: target,
            one: source,
            other: source,
            count: count as u64,
            factors: [factor, 0.0],
        };
        // SAFETY: all pointers are to the view, of this length.
        unsafe { self.launch("scaled", self.linear(count), &[view.memory], &arguments) }
    }

    /// Sets elements to zero whose draw out of 2³², by index and `key`, is below `least`, and
    /// multiplies the others by `factor`.
    ///
    /// # Errors
    /// The driver fails.
    pub fn dropout(
        &self,
        values: ViewMut<'_, f32>,
        key: u64,
        least: u32,
        factor: f32,
    ) -> Result<(), GpuError> {
        let (count, key) = (values.len(), [key as u32, (key >> 32) as u32]);
        let arguments =
            Dropout { values: as_device_mut_ptr(&values), count: count as u64, key, least, factor };
        let view = values.as_view();
        // SAFETY: the pointer is to the view, of this length.
        unsafe { self.launch("dropout", self.linear(count), &[view.memory], &arguments) }
    }

    /// Rows of gate | up to silu(gate) · up.
    ///
    /// # Errors
    /// If `from` is not of rows twice as wide as the `width` of those of `to`, and of the driver.
    pub fn swiglu(&self, to: ViewMut<'_, f32>, from: View<'_, f32>, width: usize) -> Result<(), GpuError> {
        // The kernel does not write where it reads.
        let wide = as_device_ptr(&from).cast_mut();
        let (arguments, target) =
            (self.gated(wide, from.len(), as_device_mut_ptr(&to), to.len(), width)?, to.as_view());
        // SAFETY: both pointers are to views, of these rows and widths.
        unsafe {
            self.launch("swiglu", self.linear(4 * target.len()), &[from.memory, target.memory], &arguments)
        }
    }

    /// Rows of gate | up become their gradients.
    ///
    /// # Errors
    /// Those of [`Compute::swiglu`].
    pub fn swiglu_backward(
        &self,
        values: ViewMut<'_, f32>,
        grads: View<'_, f32>,
        width: usize,
    ) -> Result<(), GpuError> {
        let narrow = as_device_ptr(&grads).cast_mut();
        let arguments = self.gated(as_device_mut_ptr(&values), values.len(), narrow, grads.len(), width)?;
        let (view, shape) = (values.as_view(), self.linear(4 * grads.len()));
        // SAFETY: both pointers are to views, of these rows and widths.
        unsafe { self.launch("swiglu_backward", shape, &[view.memory, grads.memory], &arguments) }
    }

    fn gated(
        &self,
        wide: *mut f32,
        wide_len: usize,
        narrow: *mut f32,
        narrow_len: usize,
        width: usize,
    ) -> Result<Gated, GpuError> {
        let rows = rows_of(narrow_len, width)?;
        check_len(wide_len, 2 * narrow_len)?;
        Ok(Gated { wide, narrow, rows: rows as u64, width: width as u64 })
    }

    /// Computes target = f(source, target).
    fn map(
        &self,
        kernel: &'static str,
        target: ViewMut<'_, f32>,
        source: View<'_, f32>,
        factors: [f32; 2],
    ) -> Result<(), GpuError> {
        check_len(source.len(), target.len())?;
        let (view, count) = (target.as_view(), source.len());
        let arguments = Elementwise {
            to: as_device_mut_ptr(&target),
            one: as_device_ptr(&source),
            other: as_device_ptr(&view),
            count: count as u64,
            factors,
        };
        // SAFETY: all pointers are to views of this length.
        unsafe { self.launch(kernel, self.linear(count), &[view.memory, source.memory], &arguments) }
    }
}
