//! Errors of GPUs and their driver.

use cudarc::driver::{DriverError, sys::CUresult};
use std::ffi::CStr;

/// Why something on a GPU failed or was refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// There is no driver on this machine.
    #[error("no CUDA driver: {reason}")]
    NoDriver {
        /// Error of the search for the driver.
        reason: String,
    },
    /// The driver lacks what this library calls.
    #[error("the CUDA driver is of version {}.{}; 12.0 is the first that will do", found / 1000, found % 1000 / 10)]
    OldDriver {
        /// 1000 × major + 10 × minor.
        found: i32,
    },
    /// No GPU has this number.
    #[error("there is no GPU {ordinal}, but {gpus}")]
    NoSuchGpu {
        /// Requested GPU.
        ordinal: usize,
        /// Number of GPUs, in words.
        gpus: usize,
    },
    /// Memory of the GPU, or page-locked memory, has run out.
    #[error("no room for {bytes} more bytes {place}")]
    OutOfMemory {
        /// Requested bytes.
        bytes: usize,
        /// Place of the memory.
        place: String,
    },
    /// No module has a kernel of this name.
    #[error("no kernel {name}")]
    NoKernel {
        /// The name.
        name: String,
    },
    /// The blocks of a cooperative launch cannot all be resident at once.
    #[error("{blocks} blocks of {threads} threads of {kernel} do not fit: {room} can be resident")]
    TooManyBlocks {
        /// Name of the kernel.
        kernel: &'static str,
        /// Blocks wanted.
        blocks: u32,
        /// Threads of each.
        threads: u32,
        /// Blocks that can be resident.
        room: u32,
    },
    /// Ranks of one process would share hardware queues of a GPU. The kernel of one would then wait
    /// behind that of another, which waits for it.
    #[error(
        "{ranks} ranks of one process share a GPU with {queues} hardware queues, and need {}: {}",
        ranks + 1, queue_remedy(*ranks)
    )]
    TooFewQueues {
        /// Ranks of the process on the GPU. Each needs a queue, and the library one more.
        ranks: usize,
        /// Hardware queues.
        queues: usize,
    },
    /// Memory, an event or a kernel of one GPU is used on a stream of another.
    #[error("{what} of GPU {owner} on a stream of GPU {user}")]
    WrongGpu {
        /// Object that was used.
        what: &'static str,
        /// GPU that owns the object.
        owner: usize,
        /// GPU of the stream that used it.
        user: usize,
    },
    /// One GPU cannot reach the memory of another.
    #[error("GPU {from} cannot reach the memory of GPU {to}")]
    Unreachable {
        /// GPU that would read and write.
        from: usize,
        /// GPU that has the memory.
        to: usize,
    },
    /// The host waits, or memory of the host would be kept, while a stream is captured.
    #[error("{what} is not possible while the stream is captured")]
    Capturing {
        /// Refused call.
        what: &'static str,
    },
    /// A graph is launched whose work cannot be done any more.
    #[error("the graph cannot be launched: {why}")]
    GraphInvalidated {
        /// The reason, with the owner of the work.
        why: String,
    },
    /// Memory that was exported by this process has been freed.
    #[error("the exported memory has been freed")]
    ExportFreed,
    /// NVML is missing, or does not know the GPU. Only the driver's performance rank of the path is
    /// known.
    #[error("NVLinks are not known: {reason}")]
    NvmlUnavailable {
        /// Error of the search, or the answer of NVML.
        reason: String,
    },
    /// Lengths that must be equal are not.
    #[error("{found} elements where {wanted} are needed")]
    LengthMismatch {
        /// Given count.
        found: usize,
        /// Required count.
        wanted: usize,
    },
    /// A number of a row or of a class is none.
    #[error("index {index} of {below}")]
    IndexOutOfRange {
        /// The number.
        index: u32,
        /// Number of valid indices.
        below: usize,
    },
    /// A launch has no sources or targets, or more than it supports.
    #[error("{sources} sources and {targets} targets: 1 to 16 of each")]
    OperandCount {
        /// Number of sources.
        sources: usize,
        /// Number of targets.
        targets: usize,
    },
    /// There is no compiler for a user-defined reduction.
    #[error("no {what} to compile it: {reason}")]
    NoCompiler {
        /// Name of the missing library or program.
        what: &'static str,
        /// Error of the search for it.
        reason: String,
    },
    /// The driver refused kernels.
    #[error("{error}: {said}")]
    ModuleLoad {
        /// Answer of the driver.
        error: Box<GpuError>,
        /// Messages of the driver's compiler.
        said: String,
    },
    /// The compiler refused an expression.
    #[error("the compiler refused the expression: {said}")]
    CompileFailed {
        /// Messages of the compiler.
        said: String,
    },
    /// A reduction lacks what its operation needs.
    #[error("{0}")]
    InvalidReduction(&'static str),
    /// A call of cuBLAS failed.
    #[error("{call}: status {status}")]
    Cublas {
        /// The function.
        call: &'static str,
        /// `cublasStatus_t` as a number.
        status: i32,
    },
    /// A call of the driver failed.
    #[error("{call}: {text} ({code})")]
    Driver {
        /// The function of libcuda.
        call: &'static str,
        /// `CUresult` as a number.
        code: u32,
        /// The driver's name of the failure.
        text: String,
    },
}

impl GpuError {
    pub(crate) fn of(call: &'static str, result: CUresult) -> Self {
        GpuError::Driver { call, code: result as u32, text: text(result) }
    }

    /// Returns true if this is that failure of the driver.
    pub(crate) fn is(&self, result: CUresult) -> bool {
        matches!(self, GpuError::Driver { code, .. } if *code == result as u32)
    }
}

/// Returns what the user can do about too few hardware queues.
fn queue_remedy(ranks: usize) -> String {
    if ranks >= HARDWARE_QUEUES_MAX {
        return format!("use several processes, with at most {} ranks each", HARDWARE_QUEUES_MAX - 1);
    }
    format!(
        "set CUDA_DEVICE_MAX_CONNECTIONS={HARDWARE_QUEUES_MAX} in the environment before the program starts, \
         as `unisono run` and `unisono perf` do"
    )
}

/// Largest number of hardware queues that a process can ask for.
pub(crate) const HARDWARE_QUEUES_MAX: usize = 32;

/// The driver's name of a failure.
fn text(result: CUresult) -> String {
    match DriverError(result).error_string() {
        Ok(text) => CStr::to_string_lossy(text).into_owned(),
        Err(_) => "unknown".to_owned(),
    }
}

/// Converts answers of the driver to [`GpuError`].
pub(crate) trait IntoGpuResult {
    type Output;

    /// Converts a failure to an error that names the function.
    fn or_gpu_error(self, call: &'static str) -> Result<Self::Output, GpuError>;
}

impl IntoGpuResult for CUresult {
    type Output = ();

    fn or_gpu_error(self, call: &'static str) -> Result<(), GpuError> {
        if self == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(GpuError::of(call, self)) }
    }
}

impl<T> IntoGpuResult for Result<T, DriverError> {
    type Output = T;

    fn or_gpu_error(self, call: &'static str) -> Result<T, GpuError> {
        self.map_err(|error| GpuError::of(call, error.0))
    }
}
