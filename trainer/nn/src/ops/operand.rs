//! Operands in host or GPU memory.

use crate::ops::{Activation, AttentionShape, NormKind, Rotation};
use std::ops::Range;
use unisono_cuda::device::compute::{Indices, LocalTargets as DeviceTargets};
use unisono_cuda::device::{View, ViewMut};

/// Argument of an operation, with a form for each memory.
pub trait Operand {
    /// Form for the host.
    type Host;
    /// Form for a GPU.
    type Device;

    /// Converts to the form for the host.
    ///
    /// # Panics
    /// Panics if the operand is in GPU memory.
    fn host(self) -> Self::Host;

    /// Converts to the form for a GPU.
    ///
    /// # Panics
    /// Panics if the operand is in host memory.
    fn device(self) -> Self::Device;
}

/// Something in host memory or in GPU memory.
#[derive(Clone, Copy, Debug)]
pub enum Placed<H, D> {
    /// In host memory.
    Host(H),
    /// In GPU memory.
    Device(D),
}

/// Elements to read.
pub type Values<'a> = Placed<&'a [f32], View<'a, f32>>;
/// Elements to write.
pub type ValuesMut<'a> = Placed<&'a mut [f32], ViewMut<'a, f32>>;
/// Row numbers of a table, each below the number of rows or [`NOT_LOCAL`].
pub type RowIndices = Placed<Vec<u32>, Indices>;
/// Targets of rows of logits of which this rank has some columns.
pub type LocalTargets = Placed<HostTargets, DeviceTargets>;

/// Marks a row that this rank's table lacks.
pub const NOT_LOCAL: u32 = u32::MAX;

/// [`LocalTargets`] in host memory.
pub struct HostTargets {
    /// Column of each row's target, or a mark as in the targets on a GPU.
    pub places: Vec<u32>,
    /// Columns of the logits.
    pub columns: usize,
    /// Columns that are classes; the rest is padding.
    pub count: usize,
}

impl<H, D> Operand for Placed<H, D> {
    type Host = H;
    type Device = D;

    fn host(self) -> H {
        let Self::Host(here) = self else { panic!("an operand is in GPU memory, not on the host") };
        here
    }

    fn device(self) -> D {
        let Self::Device(there) = self else { panic!("an operand is in host memory, not on a GPU") };
        there
    }
}

impl<'a, H, D> Operand for &'a Placed<H, D> {
    type Host = &'a H;
    type Device = &'a D;

    fn host(self) -> &'a H {
        self.as_ref().host()
    }

    fn device(self) -> &'a D {
        self.as_ref().device()
    }
}

impl<H, D> Placed<H, D> {
    fn as_ref(&self) -> Placed<&H, &D> {
        match self {
            Self::Host(here) => Placed::Host(here),
            Self::Device(there) => Placed::Device(there),
        }
    }
}

impl Values<'_> {
    /// Returns some of the elements.
    ///
    /// # Panics
    /// Panics if `range` is not inside.
    pub fn slice(self, range: Range<usize>) -> Self {
        match self {
            Self::Host(values) => Self::Host(&values[range]),
            Self::Device(view) => Self::Device(view.view(range)),
        }
    }
}

/// Dense row-major matrix, or its transpose.
#[derive(Clone, Copy)]
pub struct Mat<V> {
    pub(super) values: V,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) is_transposed: bool,
}

impl<V> Mat<V> {
    /// Creates a matrix of `rows` rows of `columns` elements.
    pub fn new(values: V, rows: usize, columns: usize) -> Self {
        Self { values, rows, columns, is_transposed: false }
    }

    /// Returns the transpose.
    pub fn t(self) -> Self {
        Self { is_transposed: !self.is_transposed, ..self }
    }

    fn map<W>(self, convert: impl FnOnce(V) -> W) -> Mat<W> {
        let Self { values, rows, columns, is_transposed } = self;
        Mat { values: convert(values), rows, columns, is_transposed }
    }
}

/// Implements [`Operand`] for containers of operands.
macro_rules! containers {
    ($([$($parameter:tt)*] $kind:ty, $host:ty, $device:ty;)*) => {
        $(impl<$($parameter)*> Operand for $kind {
            type Host = $host;
            type Device = $device;

            fn host(self) -> Self::Host {
                self.map(Operand::host)
            }

            fn device(self) -> Self::Device {
                self.map(Operand::device)
            }
        })*
    };
}

containers! {
    [V: Operand] Mat<V>, Mat<V::Host>, Mat<V::Device>;
    [T: Operand] Option<T>, Option<T::Host>, Option<T::Device>;
    [T: Operand, const N: usize] [T; N], [T::Host; N], [T::Device; N];
}

/// Implements [`Operand`] for types with the same form everywhere.
macro_rules! same_everywhere {
    ($($kind:ty),*) => {
        $(impl Operand for $kind {
            type Host = Self;
            type Device = Self;

            fn host(self) -> Self {
                self
            }

            fn device(self) -> Self {
                self
            }
        })*
    };
}

same_everywhere!(usize, u32, u64, f32, &[u32], Range<usize>);
same_everywhere!(Activation, NormKind, &Rotation<'_>, &AttentionShape<'_>);
