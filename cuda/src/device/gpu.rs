//! A GPU: its memory, streams and kernels.

use super::driver::gpus;
use super::error::{GpuError, IntoGpuResult};
use super::modules::Modules;
use super::pool::Pool;
use super::stream::Stream;
use cudarc::driver::{CudaContext, CudaStream, result, sys, sys::CUdevice_attribute as Attribute};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A GPU that this process uses. Clones are the same one, and so is what is opened twice.
///
/// What belongs to it keeps it open: buffers, streams, kernels.
#[derive(Clone)]
pub struct Gpu(pub(crate) Arc<Device>);

/// What all handles of a GPU share.
pub(crate) struct Device {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) name: String,
    pub(crate) modules: Modules,
    pub(crate) pool: Pool,
    /// For fills and copies that nobody's stream is for.
    pub(crate) house: Arc<CudaStream>,
}

/// Those that are open, by number.
static OPEN: Mutex<Vec<(usize, Weak<Device>)>> = Mutex::new(Vec::new());

/// The lock of state that no panic leaves half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gpu {
    /// The GPU of this number, with all kernels loaded: the first time on a machine the driver compiles them, which takes seconds.
    pub fn open(ordinal: usize) -> Result<Gpu, GpuError> {
        let gpus = gpus()?;
        if ordinal >= gpus {
            return Err(GpuError::NoSuchGpu { ordinal, gpus });
        }
        let mut open = lock(&OPEN);
        open.retain(|(_, device)| device.strong_count() > 0);
        let known =
            open.iter().filter(|(number, _)| *number == ordinal).find_map(|(_, device)| device.upgrade());
        let device = match known {
            Some(device) => device,
            None => Arc::new(Device::open(ordinal)?),
        };
        open.push((ordinal, Arc::downgrade(&device)));
        Ok(Gpu(device))
    }

    /// Its number.
    pub fn ordinal(&self) -> usize {
        self.0.context.ordinal()
    }

    /// What the driver calls it.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Whether it is the software device: right, but of no speed that means anything.
    pub fn is_emulated(&self) -> bool {
        self.0.name == "unisono software device"
    }

    /// Streaming multiprocessors.
    pub fn multiprocessors(&self) -> Result<u32, GpuError> {
        self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
    }

    /// Compute capability: major, minor.
    pub fn capability(&self) -> Result<(u32, u32), GpuError> {
        capability(&self.0.context)
    }

    /// Whether its kernels know [`Protocol::WideLines`](super::Protocol::WideLines): where the driver is of CUDA 12.4 or newer.
    pub fn has_ll128(&self) -> bool {
        self.0.modules.have_ll128()
    }

    /// Bytes of memory: free, and all.
    pub fn memory(&self) -> Result<(usize, usize), GpuError> {
        self.0.context.mem_get_info().or_gpu_error("cuMemGetInfo")
    }

    /// Gives memory of dropped buffers back to the driver; they are kept for the next ones otherwise. Waits for the work
    /// that used them.
    pub fn release_unused(&self) -> Result<(), GpuError> {
        self.bind()?;
        self.0.pool.trim()
    }

    /// A new stream, which waits for no other.
    pub fn stream(&self) -> Result<Stream, GpuError> {
        let stream = self.0.context.new_stream().or_gpu_error("cuStreamCreate")?;
        Ok(Stream::new(self.clone(), stream))
    }

    /// A new stream whose kernels get room before those of others, as soon as blocks of these end: for collectives beside other work, which
    /// ranks wait for.
    pub fn high_priority_stream(&self) -> Result<Stream, GpuError> {
        self.bind()?;
        let (_, first) = result::stream::get_priority_range().or_gpu_error("cuCtxGetStreamPriorityRange")?;
        let stream =
            self.0.context.new_stream_with_priority(first).or_gpu_error("cuStreamCreateWithPriority")?;
        Ok(Stream::new(self.clone(), stream))
    }

    /// Whether its kernels can reach memory of the other directly.
    pub fn can_access_peer(&self, other: &Gpu) -> Result<bool, GpuError> {
        self.info().can_access_peer(&other.info())
    }

    /// Lets its kernels reach memory of the other, from now on; nothing if they can already.
    pub fn enable_peer_access(&self, other: &Gpu) -> Result<(), GpuError> {
        if self == other {
            return Ok(());
        }
        if !self.can_access_peer(other)? {
            return Err(GpuError::Unreachable { from: self.ordinal(), to: other.ordinal() });
        }
        self.bind()?;
        // SAFETY: the other's context is open, and primary contexts outlive all handles of memory.
        let answer = unsafe { sys::cuCtxEnablePeerAccess(other.0.context.cu_ctx(), 0) };
        match answer {
            sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            answer => answer.or_gpu_error("cuCtxEnablePeerAccess"),
        }
    }

    /// The context, for programs that use cudarc too.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.0.context
    }

    /// Makes it the one that calls of this thread are about.
    pub(crate) fn bind(&self) -> Result<(), GpuError> {
        self.0.context.bind_to_thread().or_gpu_error("cuCtxSetCurrent")
    }

    /// Loads kernels that were compiled at run time, by these names.
    #[cfg(feature = "nvrtc")]
    pub(crate) fn add_module(&self, mut image: Vec<u8>, names: &[&str]) -> Result<(), GpuError> {
        image.push(0);
        self.bind()?;
        self.0.modules.add(&image, names)
    }

    fn attribute(&self, attribute: Attribute) -> Result<u32, GpuError> {
        self::attribute(&self.0.context, attribute)
    }

    /// An error unless they are the same GPU.
    pub(crate) fn check_same_gpu(&self, owner: &Gpu, what: &'static str) -> Result<(), GpuError> {
        if self == owner {
            return Ok(());
        }
        Err(GpuError::WrongGpu { what, owner: owner.ordinal(), user: self.ordinal() })
    }
}

fn attribute(context: &CudaContext, attribute: Attribute) -> Result<u32, GpuError> {
    Ok(context.attribute(attribute).or_gpu_error("cuDeviceGetAttribute")? as u32)
}

/// Major, minor.
fn capability(context: &CudaContext) -> Result<(u32, u32), GpuError> {
    let major = attribute(context, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    Ok((major, attribute(context, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?))
}

impl PartialEq for Gpu {
    fn eq(&self, other: &Gpu) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Gpu {}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GPU {} ({})", self.ordinal(), self.name())
    }
}

impl Device {
    fn open(ordinal: usize) -> Result<Self, GpuError> {
        let context = CudaContext::new(ordinal).or_gpu_error("cuDevicePrimaryCtxRetain")?;
        // SAFETY: nothing is allocated by way of this context; what programs allocate themselves, they track. With
        // tracking, kernels that wait for each other would be made to follow each other.
        unsafe { context.disable_event_tracking() };
        let name = result::device::get_name(context.cu_device()).or_gpu_error("cuDeviceGetName")?;
        let house = context.new_stream().or_gpu_error("cuStreamCreate")?;
        let modules = Modules::load(&context, capability(&context)?)?;
        Ok(Self { context, name, modules, pool: Pool::default(), house })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // What cannot be freed is lost with the context.
        let _ = self.context.synchronize().or_gpu_error("cuCtxSynchronize").and_then(|()| self.pool.trim());
        self.modules.unload();
    }
}
