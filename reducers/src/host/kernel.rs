//! The loop of a reduction: a target is computed pack by pack, each pack from all sources, in one
//! pass over memory.

use super::Store;
use super::element_op::{ElementOp, Pack, Read};
use super::lanes::Array;
use crate::host::isa::{Instructions, SimdKernel, prefetch};
use crate::host::simd_element::SimdElement;
use crate::{Source, Target};

/// A target, or a part of one, and its kind of store. After non-temporal stores, a
/// [`stream_fence`](crate::host::isa::stream_fence) must follow.
pub(super) type Dest<'a> = (Store, Target<'a>);

/// dest = op
pub(super) struct Assign<'a, 'b, F> {
    /// A reference, because copying data that was just written takes longer than a short reduction.
    pub(super) dest: &'a mut Dest<'b>,
    /// Offset in the sources of the first byte of the target. From there on they have the target's
    /// length.
    pub(super) offset: usize,
    pub(super) op: F,
}

impl<F: ElementOp> SimdKernel for Assign<'_, '_, F> {
    #[inline(always)]
    fn run<I: Instructions>(self, cpu: I) {
        let Self { dest: (store, target), offset: at, op } = self;
        Loop { target: target.as_mut_ptr(), bytes: target.len(), offset: at, op, cpu }.run(*store);
    }
}

/// [`Assign`] taken apart, so that nothing of it is read again from memory.
struct Loop<F, I> {
    target: *mut u8,
    bytes: usize,
    offset: usize,
    op: F,
    cpu: I,
}

impl<F: ElementOp, I: Instructions> Loop<F, I> {
    /// Bytes in memory of one pack.
    const PACK: usize = F::Elem::REGISTERS * I::REGISTER;

    #[inline(always)]
    fn run(&self, store: Store) {
        // The bytes before and after the packs.
        let (head, tail) = if self.bytes < I::REGISTER { (0, 0) } else { self.packs(store) };
        let (mut start, mut end) = if head == 0 { (tail, self.bytes) } else { (0, head) };
        loop {
            self.registers(start, end);
            if end == self.bytes {
                break;
            }
            (start, end) = (tail, self.bytes);
        }
    }

    /// Computes as many packs as there are, and returns the byte range.
    #[inline(always)]
    fn packs(&self, store: Store) -> (usize, usize) {
        let head = self.head(store);
        let mut end = head.unwrap_or(0);
        if head.is_some() {
            while self.bytes - end >= Self::PACK {
                self.pack::<true>(end);
                end += Self::PACK;
            }
        } else {
            while self.bytes - end >= Self::PACK {
                self.pack::<false>(end);
                end += Self::PACK;
            }
        }
        (head.unwrap_or(0), end)
    }

    /// Returns the offset where non-temporal stores can begin, if they are wanted and possible.
    #[inline(always)]
    fn head(&self, store: Store) -> Option<usize> {
        if !F::IS_STREAMED || store == Store::Cached {
            return None;
        }
        // Whole cache lines, so that no line is written in two halves.
        let head = self.target.addr().wrapping_neg() % CACHE_LINE;
        (head.is_multiple_of(F::GRANULARITY) && head < self.bytes).then_some(head)
    }

    /// Computes the bytes between `start` and `end`.
    #[inline(always)]
    fn registers(&self, mut start: usize, end: usize) {
        while end - start >= I::REGISTER {
            self.whole::<1, false>(start);
            start += I::REGISTER;
        }
        while start < end {
            let bytes = 1 << (end - start).ilog2();
            self.short(start, bytes);
            start += bytes;
        }
    }

    #[inline(always)]
    fn pack<const STREAM: bool>(&self, start: usize) {
        match F::Elem::REGISTERS {
            1 => self.whole::<1, STREAM>(start),
            2 => self.whole::<2, STREAM>(start),
            _ => self.whole::<4, STREAM>(start),
        }
    }

    /// Computes `N` registers full of elements from byte `start` on.
    #[inline(always)]
    fn whole<const N: usize, const STREAM: bool>(&self, start: usize) {
        debug_assert!(start + N * I::REGISTER <= self.bytes);
        let pack = self.op.evaluate::<I, N>(self.cpu, FullRead { at: self.offset + start, prefetch: STREAM });
        for (index, &lanes) in pack.0.iter().enumerate() {
            // SAFETY: within the target.
            let target = unsafe { self.target.add(start + index * I::REGISTER) };
            if STREAM {
                let mut staging = RegisterBuffer::new();
                // SAFETY: a register fits into staging and is within the target. Its address is a
                // multiple of a register, because the head ends at the end of a cache line.
                unsafe {
                    F::Elem::store(self.cpu, lanes, staging.as_mut_ptr());
                    self.cpu.stream(target, staging.as_mut_ptr());
                }
            } else {
                // SAFETY: within the target.
                unsafe { F::Elem::store(self.cpu, lanes, target) };
            }
        }
    }

    /// Computes the `bytes` from byte `start` on: a power of two, and less than a register full.
    #[inline(always)]
    fn short(&self, start: usize, bytes: usize) {
        debug_assert!(start + bytes <= self.bytes && bytes < I::REGISTER);
        let pack = self.op.evaluate::<I, 1>(self.cpu, PartialRead { at: self.offset + start, bytes });
        let mut staging = RegisterBuffer::new();
        // SAFETY: a register fits into `staging`, and `bytes` from `start` on into the target.
        unsafe {
            F::Elem::store(self.cpu, pack.0[0], staging.as_mut_ptr());
            copy_short(self.target.add(start), staging.as_mut_ptr(), bytes);
        }
    }
}

/// Reads whole registers from byte `at` on, which lie within the sources.
struct FullRead {
    at: usize,
    /// True if memory is prefetched.
    prefetch: bool,
}

impl Read for FullRead {
    #[inline(always)]
    unsafe fn pack<T: SimdElement, I: Instructions, const N: usize>(
        &self,
        cpu: I,
        source: Source<'_>,
    ) -> Pack<T, I, N> {
        debug_assert!(self.at + N * I::REGISTER <= source.len());
        // SAFETY: within the source, as the caller says. Bytes are copied before they are
        // interpreted: if a peer writes them meanwhile, the values are wrong and nothing else.
        let mut pack = [unsafe { T::load(cpu, source.as_ptr().add(self.at)) }; N];
        if T::IS_CONVERTED && self.prefetch {
            for line in (0..N * I::REGISTER).step_by(CACHE_LINE) {
                prefetch(source.as_ptr().wrapping_add(self.at + line + PREFETCH_BYTES));
            }
        }
        for (index, lanes) in pack.iter_mut().enumerate().skip(1) {
            // SAFETY: likewise.
            *lanes = unsafe { T::load(cpu, source.as_ptr().add(self.at + index * I::REGISTER)) };
        }
        Array(pack)
    }
}

/// Reads `bytes` bytes, a power of two, from byte `at` on, which lie within the sources, and zeros
/// for the rest of a register.
struct PartialRead {
    at: usize,
    bytes: usize,
}

impl Read for PartialRead {
    #[inline(always)]
    unsafe fn pack<T: SimdElement, I: Instructions, const N: usize>(
        &self,
        cpu: I,
        source: Source<'_>,
    ) -> Pack<T, I, N> {
        debug_assert!(self.at + self.bytes <= source.len());
        let mut staging = RegisterBuffer::new();
        // SAFETY: within the source, as the caller says; a register fits into `staging`.
        unsafe {
            copy_short(staging.as_mut_ptr(), source.as_ptr().add(self.at), self.bytes);
            Array([T::load(cpu, staging.as_mut_ptr()); N])
        }
    }
}

/// Copies a power of two up to 32 by single moves of that width.
///
/// # Safety
/// `source` is valid for reads and `target` for writes of `bytes`, and they are apart.
#[inline(always)]
unsafe fn copy_short(target: *mut u8, source: *const u8, bytes: usize) {
    macro_rules! moved {
        ($($width:literal)*) => {
            match bytes {
                // SAFETY: the caller's word.
                $($width => unsafe { target.copy_from_nonoverlapping(source, $width) },)*
                _ => unreachable!("{bytes} bytes are no power of two below a register"),
            }
        };
    }
    moved!(1 2 4 8 16 32)
}

/// Prefetch distance of sources whose values are converted. The work for each line is so long that
/// the processor prefetches too little by itself. Sources without conversion do not gain from it.
const PREFETCH_BYTES: usize = 512;

/// Memory for one register.
#[repr(align(64))]
struct RegisterBuffer([u8; REGISTER_MAX]);

impl RegisterBuffer {
    #[inline(always)]
    fn new() -> Self {
        Self([0; REGISTER_MAX])
    }

    #[inline(always)]
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }
}

/// Bytes of the longest vector register.
const REGISTER_MAX: usize = 64;

/// Bytes that travel between caches and memory together.
pub(super) const CACHE_LINE: usize = 64;
