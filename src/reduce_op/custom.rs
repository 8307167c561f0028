//! Reductions with a function of the caller.

use crate::hash::fnv1a;
use crate::op_desc::register_op_name;
use std::fmt;
use unisono_reducers::{DType, Element, Source, Target, reduce_by};

/// A reduction with a function of the caller, for CPU ranks.
///
/// For each call, ranks compare the name, the element type and the flag that says if the reduction
/// is commutative. They cannot compare the functions, so functions with the same name must compute
/// the same result.
#[derive(Clone, Copy)]
pub struct CustomOp(&'static Definition);

struct Definition {
    name: String,
    dtype: DType,
    is_commutative: bool,
    digest: u64,
    run: Box<Run>,
}

/// Reduces into the target. If the first operand is `None`, it is the target itself.
type Run = dyn Fn(Target<'_>, Option<Source<'_>>, &[Source<'_>]) + Send + Sync;

impl CustomOp {
    /// Makes a reduction of elements of `T`.
    ///
    /// `combine(left, right)` computes left = left ⊕ right for every pair of elements, and must be
    /// associative. The two slices are parts of the operands. If the reduction is not commutative,
    /// operands are combined in rank order, for which only slower algorithms exist.
    ///
    /// The reduction lives until the process ends, so a program makes each one once.
    ///
    /// ```
    /// use unisono::{Communicator, CustomOp, ReduceOp};
    ///
    /// let gcd = CustomOp::new("gcd", true, |left: &mut [u64], right: &[u64]| {
    ///     for (left, &right) in left.iter_mut().zip(right) {
    ///         let mut rest = right;
    ///         while rest != 0 {
    ///             (*left, rest) = (rest, *left % rest);
    ///         }
    ///     }
    /// });
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let mut values = [[12u64, 7], [18, 14]][comm.rank()];
    /// comm.all_reduce(&mut values, ReduceOp::Custom(gcd)).unwrap();
    /// assert_eq!(values, [6, 7]);
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn new<T: Element>(
        name: impl Into<String>,
        is_commutative: bool,
        combine: impl Fn(&mut [T], &[T]) + Send + Sync + 'static,
    ) -> Self {
        let (name, dtype) = (name.into(), T::DTYPE);
        let words = [dtype as u64, is_commutative.into()].into_iter().chain(name.bytes().map(u64::from));
        let digest = fnv1a(words);
        register_op_name(digest, &name);
        let run = Box::new(move |target: Target<'_>, first: Option<Source<'_>>, others: &[Source<'_>]| {
            reduce_by::<T>(&combine, target, first, others);
        });
        Self(Box::leak(Box::new(Definition { name, dtype, is_commutative, digest, run })))
    }

    /// Returns the name.
    pub fn name(self) -> &'static str {
        &self.0.name
    }

    /// Returns the type of the elements.
    pub fn dtype(self) -> DType {
        self.0.dtype
    }

    /// Returns true if operands may be combined in any order.
    pub fn is_commutative(self) -> bool {
        self.0.is_commutative
    }

    /// Returns a digest of the facts that ranks compare.
    pub(crate) fn digest(self) -> u64 {
        self.0.digest
    }

    /// Reduces `first`, or the target itself, and `others` into the target, in that order.
    pub(crate) fn run(self, target: Target<'_>, first: Option<Source<'_>>, others: &[Source<'_>]) {
        (self.0.run)(target, first, others);
    }
}

impl PartialEq for CustomOp {
    fn eq(&self, other: &Self) -> bool {
        self.0.digest == other.0.digest
    }
}

impl fmt::Debug for CustomOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CustomOp({} of {})", self.0.name, self.0.dtype)
    }
}
