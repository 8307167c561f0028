//! User-defined reductions: kernels that combine two elements by an expression, for one GPU and one
//! element type.

#[cfg(feature = "nvrtc")]
use crate::device::error::GpuError;
#[cfg(feature = "nvrtc")]
use crate::device::gpu::{Gpu, lock};
use crate::device::kernel::Kernel;
use std::marker::PhantomData;
use std::sync::Arc;
#[cfg(feature = "nvrtc")]
use std::sync::Mutex;
use unisono_reducers::{DType, Element};

/// A reduction by a compiled expression on elements of `T`: see `DeviceReduceOp::compile`, a
/// function of the feature `nvrtc`. Clones share the kernels.
#[derive(Clone)]
pub struct DeviceReduceOp<T: Element> {
    kernels: Arc<UserOpKernels>,
    elements: PhantomData<fn(T) -> T>,
}

/// The kernels of a [`DeviceReduceOp`], whatever it is for.
pub struct UserOpKernels {
    dtype: DType,
    digest: u64,
    schedule: Kernel,
    one_shot: Kernel,
}

impl<T: Element> DeviceReduceOp<T> {
    /// Returns the kernels.
    pub fn kernels(&self) -> &UserOpKernels {
        &self.kernels
    }
}

impl UserOpKernels {
    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// A number that differs between expressions.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Returns the kernel that executes schedules.
    pub fn schedule(&self) -> &Kernel {
        &self.schedule
    }

    /// The kernel of the smallest all_reduce.
    pub fn one_shot(&self) -> &Kernel {
        &self.one_shot
    }

    /// Finds kernels that have been loaded.
    #[cfg(feature = "nvrtc")]
    fn of(gpu: &Gpu, dtype: DType, digest: u64) -> Result<Self, GpuError> {
        let [schedule, one_shot] = names(digest);
        Ok(Self { dtype, digest, schedule: gpu.kernel(&schedule)?, one_shot: gpu.kernel(&one_shot)? })
    }
}

/// Held while an expression is looked for, compiled and loaded.
#[cfg(feature = "nvrtc")]
static COMPILE_LOCK: Mutex<()> = Mutex::new(());

#[cfg(feature = "nvrtc")]
impl<T: Element> DeviceReduceOp<T> {
    /// Compiles an expression of CUDA C++ in `a` and `b`, such as `a > b ? a : b`.
    ///
    /// NVRTC compiles it, and is loaded at run time. Floats of 8 and 16 bits are `float` in the
    /// expression, and its value is converted to the operands' type. The expression must be
    /// associative and commutative, because algorithms combine ranks in different orders. All ranks
    /// must compile the same text. Compile before ranks enqueue operations on this GPU: loading
    /// kernels may wait for them.
    ///
    /// The text becomes part of a kernel and can do whatever a kernel can. Do not accept it from
    /// untrusted sources.
    ///
    /// # Errors
    /// [`GpuError::NoCompiler`] where there is no NVRTC. [`GpuError::CompileFailed`] with the
    /// compiler's messages about the expression.
    pub fn compile(gpu: &Gpu, expression: &str) -> Result<Self, GpuError> {
        let digest = digest(T::DTYPE, expression);
        // Ranks that share a GPU find the kernels that the first of them loads.
        let _alone = lock(&COMPILE_LOCK);
        let known = UserOpKernels::of(gpu, T::DTYPE, digest);
        let kernels = match known {
            Err(GpuError::NoKernel { .. }) => {
                load(gpu, &UserOpSource { dtype: T::DTYPE, digest, expression })?;
                UserOpKernels::of(gpu, T::DTYPE, digest)?
            }
            known => known?,
        };
        Ok(Self { kernels: Arc::new(kernels), elements: PhantomData })
    }
}

/// Input of the compiler.
#[cfg(feature = "nvrtc")]
pub(crate) struct UserOpSource<'e> {
    pub(crate) dtype: DType,
    pub(crate) digest: u64,
    pub(crate) expression: &'e str,
}

#[cfg(feature = "nvrtc")]
impl UserOpSource<'_> {
    /// The files that have kernels.
    pub(crate) const FILES: [&'static str; 2] = ["schedule.cu", "one_shot.cu"];

    /// The text of `user_op.cuh`.
    pub(crate) fn header(&self) -> String {
        let line = self.expression.replace(['\n', '\r'], " ");
        format!("template <class V>\nDEVICE V user_combine(V a, V b) {{\n    return V({line});\n}}\n")
    }

    /// The macros that make the kernels those of the expression, `NAME=VALUE`.
    pub(crate) fn defines(&self) -> [String; 2] {
        let row = format!("KERNEL({}, ", self.dtype);
        let rows = unisono_kernels::source("dtypes.cuh").unwrap_or_default().lines();
        let element = rows.filter_map(|line| line.strip_prefix(&row)?.strip_suffix(')')).next();
        let element = element.expect("a row for each type");
        ["UNISONO_USER_OP=1".to_owned(), format!("ONLY=user_{:016x},{element}", self.digest)]
    }
}

/// The names of the kernels.
#[cfg(feature = "nvrtc")]
fn names(digest: u64) -> [String; 2] {
    ["schedule", "one_shot"].map(|name| format!("{name}_user_{digest:016x}"))
}

/// FNV-1a: the same number on all ranks.
#[cfg(feature = "nvrtc")]
fn digest(dtype: DType, expression: &str) -> u64 {
    let bytes = [dtype as u8].into_iter().chain(expression.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(feature = "nvrtc")]
fn load(gpu: &Gpu, source: &UserOpSource<'_>) -> Result<(), GpuError> {
    let names = names(source.digest);
    if gpu.is_emulated() {
        crate::emulator::load_user_op(source)?;
        // The emulator has the kernels already. A module for it is their names.
        let image: String = names.iter().map(|name| format!(".visible .entry {name}(\n")).collect();
        return gpu.add_module(image.into_bytes(), &names.each_ref().map(String::as_str));
    }
    for (file, name) in UserOpSource::FILES.into_iter().zip(&names) {
        gpu.add_module(crate::device::nvrtc::compile(source, file, gpu.capability()?)?, &[name])?;
    }
    Ok(())
}
