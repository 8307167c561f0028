//! Elements that are no plain numbers: truth values, and values with an index.

use std::fmt;

/// A truth value of one byte. Every byte but 0 is true, and a reduction of several operands
/// stores 1 for true.
///
/// Rust's `bool` has two bytes that are valid, so memory that a peer writes cannot hold it.
///
/// ```
/// use unisono_reducers::Bool;
///
/// let flags = [true, false].map(Bool::from);
/// assert!(flags[0].get() && flags[1] == Bool::FALSE);
/// ```
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct Bool(u8);

impl Bool {
    /// True.
    pub const TRUE: Self = Self(1);
    /// False.
    pub const FALSE: Self = Self(0);

    /// Returns the truth value.
    #[inline]
    pub const fn get(self) -> bool {
        self.0 != 0
    }
}

impl From<bool> for Bool {
    fn from(value: bool) -> Self {
        Self(value.into())
    }
}

impl From<Bool> for bool {
    fn from(value: Bool) -> Self {
        value.get()
    }
}

impl PartialEq for Bool {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for Bool {}

impl fmt::Debug for Bool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

/// A value and the index where it was found, for reductions to the smallest or the largest one.
///
/// Both have the same size, so that there is no padding.
///
/// ```
/// use unisono_reducers::Located;
///
/// let best = Located { value: 0.5f32, index: 3 };
/// assert_eq!(best.index, 3i32);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Located<V: Locatable> {
    /// The value.
    pub value: V,
    /// Its index, which the caller chooses: a rank or a position.
    pub index: V::Index,
}

/// A type of the values of [`Located`].
pub trait Locatable: crate::Element {
    /// The integer of the same size.
    type Index: crate::Element + Ord;
}

impl Locatable for f32 {
    type Index = i32;
}

impl Locatable for f64 {
    type Index = i64;
}

impl Locatable for i32 {
    type Index = i32;
}

impl Locatable for i64 {
    type Index = i64;
}
