//! Reductions and copies of buffers, by the kernels `reduce_copy_*`.

use super::arguments::ReduceCopy;
use super::buffer::{View, ViewMut, check_length};
use super::error::GpuError;
use super::gpu::Gpu;
use super::kernel::LaunchDims;
use super::memory::Memory;
use super::stream::Stream;
use std::sync::Arc;
use unisono_reducers::{Element, PostOp, ReduceKind, Scalar};

/// Bytes that a block should have to do, before another one is worth it.
const BYTES_PER_BLOCK: usize = 64 << 10;

impl Stream {
    /// Enqueues a reduction: every target becomes the first source ⊕ the second ⊕ …, in that order,
    /// then `finish`. The result is that of [`reduce_into`](unisono_reducers::reduce_into) on the
    /// CPU, bit for bit except for NaNs.
    pub fn reduce<T: Element>(
        &self,
        op: ReduceKind,
        finish: PostOp,
        targets: &mut [ViewMut<'_, T>],
        sources: &[View<'_, T>],
    ) -> Result<(), GpuError> {
        let targets: Vec<View<'_, T>> = targets.iter().map(ViewMut::as_view).collect();
        self.launch_reduce(op, finish, &[], &targets, sources)
    }

    /// Enqueues: the target becomes itself ⊕ the first source ⊕ …, in that order, then `finish`.
    pub fn reduce_assign<T: Element>(
        &self,
        op: ReduceKind,
        finish: PostOp,
        target: &mut ViewMut<'_, T>,
        sources: &[View<'_, T>],
    ) -> Result<(), GpuError> {
        let target = target.as_view();
        let sources: Vec<View<'_, T>> = [target].into_iter().chain(sources.iter().copied()).collect();
        self.launch_reduce(op, finish, &[], &[target], &sources)
    }

    /// Enqueues a weighted sum: every target becomes the sum of the sources, each times its factor.
    pub fn reduce_scaled<T: Element>(
        &self,
        factors: &[Scalar],
        targets: &mut [ViewMut<'_, T>],
        sources: &[View<'_, T>],
    ) -> Result<(), GpuError> {
        let targets: Vec<View<'_, T>> = targets.iter().map(ViewMut::as_view).collect();
        self.launch_reduce(ReduceKind::PreMulSum, PostOp::Identity, factors, &targets, sources)
    }

    fn launch_reduce<T: Element>(
        &self,
        op: ReduceKind,
        finish: PostOp,
        factors: &[Scalar],
        targets: &[View<'_, T>],
        sources: &[View<'_, T>],
    ) -> Result<(), GpuError> {
        let count = expect_operands(targets, sources)?;
        let (op, divisor) = finished(op, finish)?;
        if op == ReduceKind::PreMulSum && factors.len() != sources.len() {
            return Err(GpuError::InvalidReduction(
                "a scaled sum needs a factor for each source: reduce_scaled",
            ));
        }
        for view in targets.iter().chain(sources) {
            self.gpu().check_same_gpu(view.gpu(), "memory")?;
        }
        let addresses = |views: &[View<'_, T>]| views.iter().map(View::address).collect::<Vec<_>>();
        let target_addresses: Vec<*mut u8> =
            addresses(targets).into_iter().map(|address| address as *mut u8).collect();
        let source_addresses: Vec<*const u8> =
            addresses(sources).into_iter().map(|address| address as *const u8).collect();
        let mut arguments = ReduceCopy::new(&target_addresses, &source_addresses, count);
        arguments.divisor = divisor;
        for (target, &factor) in arguments.factors.iter_mut().zip(factors) {
            *target = ReduceCopy::factor(T::DTYPE, factor);
        }
        let kernel = self.gpu().kernel(&ReduceCopy::kernel(T::DTYPE, op))?;
        let shape = shape(self.gpu(), count * size_of::<T>())?;
        let memories: Vec<&Arc<Memory>> = targets.iter().chain(sources).map(|view| view.memory).collect();
        self.enqueue(&memories, "cuLaunchKernel", |handle| {
            // SAFETY: all views have `count` elements of the kernel's type, in memory that lasts
            // until the kernel has ended.
            unsafe { kernel.enqueue(handle, shape, &arguments) }
        })
    }
}

/// Returns the number of elements of each. Fails unless all have the same number, and one launch
/// can take them.
fn expect_operands<T: Element>(targets: &[View<'_, T>], sources: &[View<'_, T>]) -> Result<usize, GpuError> {
    let fit = (1..=ReduceCopy::SOURCES_MAX).contains(&sources.len())
        && (1..=ReduceCopy::TARGETS_MAX).contains(&targets.len());
    if !fit {
        return Err(GpuError::OperandCount { sources: sources.len(), targets: targets.len() });
    }
    let count = targets[0].len();
    for view in targets.iter().chain(sources) {
        check_length(view.len(), count)?;
    }
    Ok(count)
}

/// The kernels' operation, and what it divides by.
fn finished(op: ReduceKind, finish: PostOp) -> Result<(ReduceKind, u32), GpuError> {
    match (op, finish) {
        (ReduceKind::Sum | ReduceKind::Avg, PostOp::Divide(0)) => {
            Err(GpuError::InvalidReduction("no average of no ranks"))
        }
        (ReduceKind::Sum | ReduceKind::Avg, PostOp::Divide(ranks)) => Ok((ReduceKind::Avg, ranks)),
        (ReduceKind::Avg, PostOp::Identity) => Ok((ReduceKind::Sum, 1)),
        (op, PostOp::Identity) => Ok((op, 1)),
        (_, PostOp::Saturate | PostOp::DivideScaled(_)) => {
            Err(GpuError::InvalidReduction("scaled sums are divided by schedules"))
        }
        (_, PostOp::Divide(_)) => Err(GpuError::InvalidReduction("only sums are divided")),
    }
}

/// Blocks and threads for so many bytes.
fn shape(gpu: &Gpu, bytes: usize) -> Result<LaunchDims, GpuError> {
    // A thread of the emulated GPU is a fiber on one core.
    let (threads, most) = if gpu.is_emulated() { (32, 2) } else { (512, 2 * gpu.multiprocessors()?) };
    let blocks = bytes.div_ceil(BYTES_PER_BLOCK).clamp(1, most as usize);
    Ok(LaunchDims { blocks: blocks as u32, threads, cooperative: false })
}
