//! Kernels, and launches of them.

use super::error::{GpuError, IntoGpuResult};
use super::gpu::Gpu;
use super::stream::Stream;
use cudarc::driver::sys::CUlaunchAttributeID as AttributeId;
use cudarc::driver::{result, sys, sys::CUresult};
use std::ffi::c_void;
use std::ptr::{from_ref, null_mut};
use unisono_reducers::Plain;

/// A kernel of the library, loaded on a GPU.
#[derive(Clone)]
pub struct Kernel {
    gpu: Gpu,
    name: &'static str,
    function: sys::CUfunction,
    /// True if launches are in the memory-synchronization domain for communication.
    in_remote_domain: bool,
    /// True if launches may begin before the results of the launch before them are visible.
    is_programmatic: bool,
}

// SAFETY: the driver's functions on kernels may be called by any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// Dimensions of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchDims {
    /// Blocks.
    pub blocks: u32,
    /// Threads of each.
    pub threads: u32,
    /// Requires that all blocks are resident at once, as blocks that wait for each other must be.
    /// Otherwise the launch fails.
    pub cooperative: bool,
}

/// A copy within the memory of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceCopy {
    /// Address of the first byte that is written.
    pub target: u64,
    /// Address of the first byte that is read.
    pub source: u64,
    /// Number of bytes.
    pub bytes: usize,
}

impl Gpu {
    /// The kernel of this name.
    pub fn kernel(&self, name: &str) -> Result<Kernel, GpuError> {
        let (function, name) = self.0.modules.function(name)?;
        Ok(Kernel { gpu: self.clone(), name, function, in_remote_domain: false, is_programmatic: false })
    }
}

impl Kernel {
    /// Returns the name of the kernel.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The GPU that it is loaded on.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Returns the kernel for launches in the remote memory-synchronization domain, where the GPU
    /// has it (compute capability 9.0). Fences of kernels there do not wait for stores of compute
    /// kernels, which are in another domain.
    ///
    /// # Errors
    /// The driver does not tell the capability.
    pub fn in_remote_domain(mut self) -> Result<Self, GpuError> {
        self.in_remote_domain = self.gpu.capability()? >= (9, 0);
        Ok(self)
    }

    /// Returns the kernel for launches with programmatic stream serialization, where the GPU has it
    /// (compute capability 9.0). A launch then begins when the blocks of the launch before it have
    /// ended, and does not wait until their results are visible.
    ///
    /// This is for measurements: the kernels of the library do not wait for those results.
    ///
    /// # Errors
    /// The driver does not tell the capability.
    pub fn with_programmatic_serialization(mut self) -> Result<Self, GpuError> {
        self.is_programmatic = self.gpu.capability()? >= (9, 0);
        Ok(self)
    }

    /// Blocks of so many threads that can be resident at once, if nothing else runs.
    pub fn max_resident_blocks(&self, threads: u32) -> Result<u32, GpuError> {
        self.gpu.bind()?;
        // SAFETY: the function is loaded.
        let each = unsafe {
            result::occupancy::max_active_block_per_multiprocessor(self.function, threads as i32, 0)
        };
        Ok(each.or_gpu_error("cuOccupancyMaxActiveBlocksPerMultiprocessor")? as u32
            * self.gpu.multiprocessors()?)
    }

    /// Enqueues a launch.
    ///
    /// # Safety
    /// - `A` is the struct that the kernel takes, and its fields describe the memory correctly.
    /// - Memory that it points to lives until the launch has ended, and until a graph that captures
    ///   it is dropped: see [`Buffer::record_stream`](super::Buffer::record_stream).
    /// - A launch with programmatic serialization does not depend on the results of the launch
    ///   before it: see [`Kernel::with_programmatic_serialization`].
    pub unsafe fn launch<A: Plain>(
        &self,
        stream: &Stream,
        shape: LaunchDims,
        arguments: &A,
    ) -> Result<(), GpuError> {
        // SAFETY: the caller's word.
        unsafe { self.launch_after_copy(stream, None, shape, arguments) }
    }

    /// Enqueues a copy, if there is one, and then a launch.
    ///
    /// # Safety
    /// - As for [`Kernel::launch`].
    /// - Both addresses of the copy have so many bytes, which do not overlap. They live as long as
    ///   the memory of the launch.
    pub unsafe fn launch_after_copy<A: Plain>(
        &self,
        stream: &Stream,
        copy: Option<DeviceCopy>,
        shape: LaunchDims,
        arguments: &A,
    ) -> Result<(), GpuError> {
        stream.gpu().check_same_gpu(&self.gpu, "a kernel")?;
        let call = if copy.is_some() { "cuMemcpyDtoDAsync or cuLaunchKernel" } else { "cuLaunchKernel" };
        // Both calls follow one question for the current context.
        let outcome = stream.enqueue(&[], call, |handle| {
            let copied = copy.map_or(CUresult::CUDA_SUCCESS, |DeviceCopy { target, source, bytes }| {
                // SAFETY: the caller's word.
                unsafe { sys::cuMemcpyDtoDAsync_v2(target, source, bytes, handle) }
            });
            match copied {
                // SAFETY: the caller's word.
                CUresult::CUDA_SUCCESS => unsafe { self.enqueue(handle, shape, arguments) },
                failed => failed,
            }
        });
        self.explained(outcome, shape)
    }

    /// The call of the driver that launches it.
    ///
    /// # Safety
    /// As for [`Kernel::launch`].
    pub(crate) unsafe fn enqueue<A: Plain>(
        &self,
        stream: sys::CUstream,
        shape: LaunchDims,
        arguments: &A,
    ) -> CUresult {
        let mut parameters = [from_ref(arguments).cast_mut().cast::<c_void>()];
        let (function, blocks, threads, parameters) =
            (self.function, shape.blocks, shape.threads, parameters.as_mut_ptr());
        if self.in_remote_domain || self.is_programmatic {
            // SAFETY: the caller's word; the driver copies the arguments before it returns.
            unsafe { self.enqueue_with_attributes(stream, shape, parameters) }
        } else if shape.cooperative {
            // SAFETY: the caller's word; the driver copies the arguments before it returns.
            unsafe {
                sys::cuLaunchCooperativeKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters)
            }
        } else {
            // SAFETY: as above.
            unsafe {
                sys::cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, null_mut())
            }
        }
    }

    /// Launches by the call that takes attributes.
    ///
    /// # Safety
    /// As for [`Kernel::launch`]; `parameters` points to the address of the arguments.
    unsafe fn enqueue_with_attributes(
        &self,
        stream: sys::CUstream,
        shape: LaunchDims,
        parameters: *mut *mut c_void,
    ) -> CUresult {
        let known: [(bool, AttributeId, SetValue); ATTRIBUTES] = [
            (self.in_remote_domain, AttributeId::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, |value| {
                value.memSyncDomain = sys::CUlaunchMemSyncDomain::CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
            }),
            (
                self.is_programmatic,
                AttributeId::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                |value| value.programmaticStreamSerializationAllowed = 1,
            ),
            (shape.cooperative, AttributeId::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, |value| value.cooperative = 1),
        ];
        // SAFETY: all bytes 0 are a number of an attribute, and a value of each of the union's
        // members.
        let mut attributes: [sys::CUlaunchAttribute; ATTRIBUTES] = unsafe { std::mem::zeroed() };
        let mut count = 0;
        let wanted = known.into_iter().filter(|(is_wanted, ..)| *is_wanted);
        for (attribute, (_, id, set)) in attributes.iter_mut().zip(wanted) {
            attribute.id = id;
            set(&mut attribute.value);
            count += 1;
        }
        let config = sys::CUlaunchConfig {
            gridDimX: shape.blocks,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: shape.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: stream,
            attrs: attributes.as_mut_ptr(),
            numAttrs: count,
        };
        // SAFETY: the configuration lives until the call returns, and the rest is the caller's
        // word.
        unsafe { sys::cuLaunchKernelEx(&config, self.function, parameters, null_mut()) }
    }

    /// Adds the number of blocks that fit to an error that says they do not.
    pub(crate) fn explained(&self, outcome: Result<(), GpuError>, shape: LaunchDims) -> Result<(), GpuError> {
        match outcome {
            Err(error) if error.is(CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE) => {
                let LaunchDims { blocks, threads, .. } = shape;
                let room = self.max_resident_blocks(threads)?;
                Err(GpuError::TooManyBlocks { kernel: self.name, blocks, threads, room })
            }
            outcome => outcome,
        }
    }
}

/// Sets the value of an attribute.
type SetValue = fn(&mut sys::CUlaunchAttributeValue);

/// Number of attributes that a launch may have.
const ATTRIBUTES: usize = 3;
