//! Calls of the driver without this library between: a rule is about the call itself.

use crate::BenchResult;
use cudarc::driver::{CudaContext, result, sys};
use std::ffi::{CString, c_void};
use std::ptr::{from_ref, null_mut};
use std::sync::Arc;
use unisono_cuda::device::gpus;
use unisono_kernels::kernel_names;

/// The first GPU, with one kernel.
pub(super) struct Driver {
    context: Arc<CudaContext>,
    exchange: sys::CUfunction,
}

// SAFETY: the driver's functions may be called by any thread, and handles are not changed.
unsafe impl Send for Driver {}
// SAFETY: as above.
unsafe impl Sync for Driver {}

/// A stream that waits for no other.
#[derive(Clone, Copy)]
pub(super) struct RawStream(sys::CUstream);

// SAFETY: the driver's functions on streams may be called by any thread.
unsafe impl Send for RawStream {}
// SAFETY: as above.
unsafe impl Sync for RawStream {}

impl RawStream {
    /// A method, so that closures capture the whole stream, which threads may share.
    pub(super) fn handle(self) -> sys::CUstream {
        self.0
    }
}

impl Driver {
    pub(super) fn open() -> BenchResult<Self> {
        // The library loads the driver; without one this is an error, and no panic of the bindings.
        gpus()?;
        let context = CudaContext::new(0)?;
        let exchange = load(module_of("exchange")?, "exchange")?;
        Ok(Self { context, exchange })
    }

    /// Makes the GPU the one that calls of this thread are about.
    pub(super) fn bind(&self) -> BenchResult {
        Ok(self.context.bind_to_thread()?)
    }

    pub(super) fn stream(&self) -> BenchResult<RawStream> {
        Ok(RawStream(result::stream::create(result::stream::StreamKind::NonBlocking)?))
    }

    pub(super) fn alloc(&self, bytes: usize) -> BenchResult<u64> {
        // SAFETY: the memory is used by copies within its length only.
        Ok(unsafe { result::malloc_sync(bytes)? })
    }

    pub(super) fn free(&self, address: u64) -> BenchResult {
        // SAFETY: the caller has it from `alloc`, and no kernel uses it.
        unsafe { result::free_sync(address)? };
        Ok(())
    }

    /// Page-locked memory, all zeros, at the same address for kernels.
    pub(super) fn pin(&self, bytes: usize) -> BenchResult<*mut c_void> {
        // SAFETY: it is written to below, within its length.
        let memory = unsafe { result::malloc_host(bytes, 0)? };
        // SAFETY: the memory is new and has this length.
        unsafe { memory.cast::<u8>().write_bytes(0, bytes) };
        Ok(memory)
    }

    /// Launches one block of the kernel `exchange`.
    ///
    /// # Safety
    /// The arguments are the kernel's, and what they point to lives until it has ended.
    pub(super) unsafe fn exchange<A>(
        &self,
        stream: RawStream,
        arguments: &A,
        cooperative: bool,
    ) -> sys::CUresult {
        let mut parameters = [from_ref(arguments).cast_mut().cast::<c_void>()];
        let (function, stream, parameters) = (self.exchange, stream.0, parameters.as_mut_ptr());
        if cooperative {
            // SAFETY: the caller's word; the driver copies the arguments before it returns.
            unsafe { sys::cuLaunchCooperativeKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters) }
        } else {
            // SAFETY: as above.
            unsafe { sys::cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, null_mut()) }
        }
    }

    /// Bytes of the handle by which another process opens memory.
    pub(super) fn export(&self, address: u64) -> BenchResult<Vec<i8>> {
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the handle has room, and the address is from `alloc`.
        unsafe { sys::cuIpcGetMemHandle(&mut handle, address) }.result()?;
        Ok(handle.reserved.to_vec())
    }

    /// Begin and length of the allocation that an address belongs to.
    pub(super) fn range(&self, address: u64) -> BenchResult<(u64, usize)> {
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: both have room.
        unsafe { sys::cuMemGetAddressRange_v2(&mut base, &mut bytes, address) }.result()?;
        Ok((base, bytes))
    }
}

/// Returns the PTX of the module with this kernel, with a zero at its end.
pub(super) fn module_of(kernel: &str) -> BenchResult<CString> {
    let module = unisono_kernels::modules()
        .iter()
        .find(|module| !module.ll128 && kernel_names(module.text).any(|name| name == kernel));
    Ok(CString::new(module.ok_or("no module has the kernel")?.text)?)
}

fn load(text: CString, kernel: &str) -> BenchResult<sys::CUfunction> {
    let mut module = null_mut();
    // SAFETY: the text has an end, and there are no options.
    unsafe { sys::cuModuleLoadDataEx(&mut module, text.as_ptr().cast(), 0, null_mut(), null_mut()) }
        .result()?;
    // SAFETY: the module is loaded, and never unloaded.
    Ok(unsafe { result::module::get_function(module, CString::new(kernel)?)? })
}

/// Returns the driver's name of a result.
pub(super) fn name(result: sys::CUresult) -> String {
    format!("{result:?}").trim_start_matches("CUDA_").to_owned()
}
