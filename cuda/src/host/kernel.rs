//! The loop: a target is computed pack by pack, each pack from all sources, in one pass over memory.

use super::Store;
use super::formula::{Formula, Pack, Read};
use super::level::{Instructions, Kernel, STREAM_BYTES};
use super::number::Number;
use crate::{Source, Target};

/// A part of a result, and where it goes.
pub(super) struct Part<'a> {
    pub(super) target: Target<'a>,
    /// Byte of the sources that the first of the target comes from. From there on they are as long
    /// as the target.
    pub(super) at: usize,
    /// If past the caches, a [`stream_fence`](super::level::stream_fence) is owed.
    pub(super) store: Store,
}

/// part = formula
pub(super) struct Assign<'a, F> {
    pub(super) part: Part<'a>,
    pub(super) formula: F,
}

/// Registers of one pack.
const REGISTERS: usize = 4;

impl<F: Formula> Kernel for Assign<'_, F> {
    #[inline(always)]
    fn run<I: Instructions>(mut self, cpu: I) {
        let bytes = self.part.target.len();
        let head = self.bytes_to_alignment();
        let mut at = head.unwrap_or(0).min(bytes);
        while bytes - at >= Self::PACK {
            self.whole::<I, REGISTERS>(cpu, at, head.is_some());
            at += Self::PACK;
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
    const PACK: usize = {
        assert!(Self::REGISTER <= REGISTER_BYTES);
        assert!((REGISTERS * Self::REGISTER).is_multiple_of(STREAM_BYTES));
        REGISTERS * Self::REGISTER
    };

    /// Where non-temporal stores can begin, if they are wanted and possible.
    #[inline(always)]
    fn bytes_to_alignment(&mut self) -> Option<usize> {
        if self.part.store == Store::Cached {
            return None;
        }
        // Whole cache lines, so that none is written in two halves.
        let head = self.part.target.as_mut_ptr().addr().wrapping_neg() % CACHE_LINE;
        head.is_multiple_of(size_of::<F::Number>()).then_some(head)
    }

    /// Computes `N` registers of elements from byte `at` on.
    #[inline(always)]
    fn whole<I: Instructions, const N: usize>(&mut self, cpu: I, at: usize, stream: bool) {
        debug_assert!(at + N * Self::REGISTER <= self.part.target.len());
        let pack = self.formula.evaluate::<I, N>(cpu, Whole { at: self.part.at + at });
        // SAFETY: within the target.
        let target = unsafe { self.part.target.as_mut_ptr().add(at) };
        if stream {
            let mut staging = Staging([0; REGISTERS * REGISTER_BYTES]);
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
        debug_assert!(at + bytes <= self.part.target.len() && bytes < Self::REGISTER);
        let pack = self.formula.evaluate::<I, 1>(cpu, Partial { at: self.part.at + at, bytes });
        let mut staging = Staging([0; REGISTER_BYTES]);
        // SAFETY: a register fits into `staging`, and `bytes` from `at` on into the target.
        unsafe {
            store_pack::<F::Number, I, 1>(cpu, pack, staging.0.as_mut_ptr());
            copy_short(self.part.target.as_mut_ptr().add(at), staging.0.as_ptr(), bytes);
        }
    }
}

/// Bytes of a vector register; as elements in memory, its values take no more.
const REGISTER_BYTES: usize = 32;

/// Room for a pack or a register on its way.
#[repr(align(32))]
struct Staging<const BYTES: usize>([u8; BYTES]);

/// Reads whole registers from byte `at` on, which lie within the part.
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
        // SAFETY: within the part, and the source reaches as far. Bytes are copied before they are
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

/// Reads `bytes` from byte `at` on, which lie within the part, and zeros for the rest of a register.
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
        debug_assert!(self.at + self.bytes <= source.len() && self.bytes < REGISTER_BYTES);
        let mut staging = Staging([0; REGISTER_BYTES]);
        // SAFETY: within the part, and the source reaches as far; a register fits into `staging`.
        unsafe {
            copy_short(staging.0.as_mut_ptr(), source.as_ptr().add(self.at), self.bytes);
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

/// Copies less than [`REGISTER_BYTES`] without calling `memcpy`, which would take longer than the copy.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `bytes`, and they are apart.
#[inline(always)]
unsafe fn copy_short(to: *mut u8, from: *const u8, bytes: usize) {
    debug_assert!(bytes < REGISTER_BYTES);
    let mut at = 0;
    for width in [16, 8, 4, 2, 1] {
        if bytes & width != 0 {
            // SAFETY: the widths of the bits that are set add up to `bytes`.
            unsafe { to.add(at).copy_from_nonoverlapping(from.add(at), width) };
            at += width;
        }
    }
}

/// Bytes that travel between caches and memory together.
pub(super) const CACHE_LINE: usize = 64;

const _: () = assert!(CACHE_LINE.is_multiple_of(STREAM_BYTES));
