//! The loop: a target is computed pack by pack, each pack from all sources, in one pass over memory.

use super::Store;
use super::formula::{Formula, Pack, Read};
use super::level::{Instructions, Kernel, STREAM_BYTES, stream_fence};
use super::number::Number;
use crate::{Source, Target};

/// target = formula
pub(super) struct Assign<'a, F> {
    pub(super) target: Target<'a>,
    pub(super) formula: F,
    pub(super) store: Store,
}

/// Registers of one pack.
const REGISTERS: usize = 4;

impl<F: Formula> Kernel for Assign<'_, F> {
    #[inline(always)]
    fn run<I: Instructions>(mut self, cpu: I) {
        let bytes = self.target.len();
        let head = self.bytes_to_alignment();
        let mut at = head.unwrap_or(0).min(bytes);
        while bytes - at >= Self::PACK {
            self.whole::<I, REGISTERS>(cpu, at, head.is_some());
            at += Self::PACK;
        }
        if head.is_some() {
            stream_fence();
        }
        for (mut from, to) in [(0, head.unwrap_or(0).min(bytes)), (at, bytes)] {
            while to - from >= Self::REGISTER {
                self.whole::<I, 1>(cpu, from, false);
                from += Self::REGISTER;
            }
            if from < to {
                self.partial(cpu, from, to - from);
            }
        }
    }
}

impl<F: Formula> Assign<'_, F> {
    /// Bytes in memory of what fills one register.
    const REGISTER: usize = F::Number::LANES * size_of::<F::Number>();
    /// Bytes in memory of one pack.
    const PACK: usize = REGISTERS * Self::REGISTER;

    /// Where non-temporal stores can begin, if they are wanted and possible.
    #[inline(always)]
    fn bytes_to_alignment(&mut self) -> Option<usize> {
        if self.store == Store::Cached {
            return None;
        }
        // Whole cache lines, so that none is written in two halves.
        let head = self.target.as_mut_ptr().addr().wrapping_neg() % CACHE_LINE;
        head.is_multiple_of(size_of::<F::Number>()).then_some(head)
    }

    /// Computes `N` registers of elements from byte `at` on.
    #[inline(always)]
    fn whole<I: Instructions, const N: usize>(&mut self, cpu: I, at: usize, stream: bool) {
        debug_assert!(at + N * Self::REGISTER <= self.target.len());
        let pack = self.formula.evaluate::<I, N>(cpu, Whole { at });
        // SAFETY: within the target.
        let target = unsafe { self.target.as_mut_ptr().add(at) };
        if stream {
            let mut staging = Staging::new();
            // SAFETY: a pack fits into `staging`.
            unsafe { store_pack::<F::Number, I, N>(cpu, pack, staging.0.as_mut_ptr()) };
            for at in (0..N * Self::REGISTER).step_by(STREAM_BYTES) {
                // SAFETY: within the pack, whose length and address are multiples of STREAM_BYTES.
                unsafe { cpu.stream(target.add(at), staging.0.as_ptr().add(at)) };
            }
        } else {
            // SAFETY: within the target.
            unsafe { store_pack::<F::Number, I, N>(cpu, pack, target) };
        }
    }

    /// Computes the `bytes` from byte `at` on, less than a register of them.
    #[inline(always)]
    fn partial<I: Instructions>(&mut self, cpu: I, at: usize, bytes: usize) {
        debug_assert!(at + bytes <= self.target.len() && bytes < Self::REGISTER);
        let pack = self.formula.evaluate::<I, 1>(cpu, Partial { at, bytes });
        let mut staging = Staging::new();
        // SAFETY: a register fits into `staging`, and `bytes` from `at` on into the target.
        unsafe {
            store_pack::<F::Number, I, 1>(cpu, pack, staging.0.as_mut_ptr());
            self.target.as_mut_ptr().add(at).copy_from_nonoverlapping(staging.0.as_ptr(), bytes);
        }
    }
}

/// Room for any pack.
#[repr(align(32))]
struct Staging([u8; 32 * REGISTERS]);

impl Staging {
    #[inline(always)]
    fn new() -> Self {
        Self([0; 32 * REGISTERS])
    }
}

/// Reads whole registers from byte `at` on, which lie within the target.
struct Whole {
    at: usize,
}

impl Read for Whole {
    #[inline(always)]
    unsafe fn pack<T: Number, I: Instructions, const N: usize>(
        &self,
        cpu: I,
        source: Source<'_>,
    ) -> Pack<T, I, N> {
        debug_assert!(self.at + N * T::LANES * size_of::<T>() <= source.len());
        // SAFETY: within the target, and the source is as long. Bytes are copied before they are
        // looked at: should a peer write them meanwhile, the values are wrong and nothing else.
        let mut pack = [unsafe { T::load(cpu, source.as_ptr().add(self.at)) }; N];
        for (index, lanes) in pack.iter_mut().enumerate().skip(1) {
            let at = self.at + index * T::LANES * size_of::<T>();
            // SAFETY: likewise.
            *lanes = unsafe { T::load(cpu, source.as_ptr().add(at)) };
        }
        pack
    }
}

/// Reads `bytes` from byte `at` on, which lie within the target, and zeros for the rest of a register.
struct Partial {
    at: usize,
    bytes: usize,
}

impl Read for Partial {
    #[inline(always)]
    unsafe fn pack<T: Number, I: Instructions, const N: usize>(
        &self,
        cpu: I,
        source: Source<'_>,
    ) -> Pack<T, I, N> {
        debug_assert!(self.at + self.bytes <= source.len() && self.bytes <= 32);
        let mut staging = Staging::new();
        // SAFETY: within the target, and the source is as long; `staging` is longer than a register.
        unsafe {
            staging.0.as_mut_ptr().copy_from_nonoverlapping(source.as_ptr().add(self.at), self.bytes);
            [T::load(cpu, staging.0.as_ptr()); N]
        }
    }
}

/// Stores a pack.
///
/// # Safety
/// `to` is valid for writing it.
#[inline(always)]
unsafe fn store_pack<T: Number, I: Instructions, const N: usize>(cpu: I, pack: Pack<T, I, N>, to: *mut u8) {
    for (index, &lanes) in pack.iter().enumerate() {
        // SAFETY: within the pack.
        unsafe { T::store(cpu, lanes, to.add(index * T::LANES * size_of::<T>())) };
    }
}

/// Bytes that travel between caches and memory together.
const CACHE_LINE: usize = 64;

const _: () = assert!(CACHE_LINE.is_multiple_of(STREAM_BYTES));
