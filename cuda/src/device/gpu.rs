//! A GPU: its memory, streams and kernels.

use super::capture_mode::RelaxedCapture;
use super::driver::gpus;
use super::error::{GpuError, HARDWARE_QUEUES_MAX, IntoGpuResult};
use super::foreign_graph::drop_released;
use super::modules::{ImageCounts, Modules};
use super::pool::Pool;
use super::stream::{Queue, Stream};
use cudarc::driver::{CudaContext, CudaStream, result, sys, sys::CUdevice_attribute as Attribute};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A GPU that this process uses. Clones, and openings of the same number, share it.
///
/// Buffers, streams and kernels keep the GPU open.
#[derive(Clone)]
pub struct Gpu(pub(crate) Arc<Device>);

/// State that all handles of a GPU share.
pub(crate) struct Device {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) name: String,
    pub(crate) modules: Modules,
    pub(crate) pool: Pool,
    /// Stream for fills and copies that belong to no stream of the user.
    pub(crate) house: Arc<CudaStream>,
    /// The same stream, as one of this library.
    pub(crate) utility: Arc<Queue>,
    /// Hardware queues that streams of this process share.
    queues: usize,
}

/// Open GPUs, by number.
static OPEN: Mutex<Vec<(usize, Weak<Device>)>> = Mutex::new(Vec::new());

/// The lock of state that no panic leaves half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gpu {
    /// Opens the GPU of this number and loads all kernels. GPUs of compute capability 8, 9 and 10
    /// get machine code. For others the driver compiles the kernels the first time on a machine,
    /// which takes seconds.
    pub fn open(ordinal: usize) -> Result<Gpu, GpuError> {
        let gpus = gpus()?;
        if ordinal >= gpus {
            return Err(GpuError::NoSuchGpu { ordinal, gpus });
        }
        // To load kernels might spoil a capture of another library.
        let _exempt = RelaxedCapture::enter();
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

    /// Returns the number of the GPU.
    pub fn ordinal(&self) -> usize {
        self.0.context.ordinal()
    }

    /// Returns the driver's name of the GPU.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns true for the CUDA emulator. Its results are right, and its timings say nothing about
    /// a GPU.
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

    /// Returns true if the kernels support [`Protocol::Ll128`](super::Protocol::Ll128): they are
    /// machine code, or the driver is of CUDA 12.4 or newer.
    pub fn has_ll128(&self) -> bool {
        self.0.modules.have_ll128()
    }

    /// Returns the number of hardware queues over which the driver distributes the streams of this
    /// process. Kernels of streams in the same queue do not overlap.
    ///
    /// The environment variable `CUDA_DEVICE_MAX_CONNECTIONS` sets it before the program starts,
    /// from 1 to 32. The default is 8.
    pub fn hardware_queues(&self) -> usize {
        self.0.queues
    }

    /// Returns the number of modules that were loaded, by the kind of their images.
    pub fn images(&self) -> ImageCounts {
        self.0.modules.images()
    }

    /// Bytes of memory: free, and all.
    pub fn memory(&self) -> Result<(usize, usize), GpuError> {
        let _exempt = RelaxedCapture::enter();
        self.bind()?;
        result::mem_get_info().or_gpu_error("cuMemGetInfo")
    }

    /// Returns memory of dropped buffers to the driver, and waits for the work that used it.
    /// Without this call the memory is kept for new buffers. Memory that another process may have
    /// open stays: see [`Buffer::withdraw`](super::Buffer::withdraw).
    pub fn release_unused(&self) -> Result<(), GpuError> {
        drop_released();
        self.bind()?;
        self.0.pool.trim()
    }

    /// Returns the one stream of the GPU for work that belongs to no stream of the user. It is made
    /// when the GPU is opened, because a GPU has few hardware queues for its streams.
    pub fn utility_stream(&self) -> Stream {
        Stream::of(self.clone(), self.0.utility.clone())
    }

    /// A new stream, which waits for no other.
    pub fn stream(&self) -> Result<Stream, GpuError> {
        let _exempt = RelaxedCapture::enter();
        let stream = self.0.context.new_stream().or_gpu_error("cuStreamCreate")?;
        Ok(Stream::new(self.clone(), stream))
    }

    /// Creates a stream whose kernels start before those of other streams, as soon as blocks of
    /// these end. Use it for collectives beside other work, because ranks wait for them.
    pub fn high_priority_stream(&self) -> Result<Stream, GpuError> {
        let _exempt = RelaxedCapture::enter();
        self.bind()?;
        let (_, first) = result::stream::get_priority_range().or_gpu_error("cuCtxGetStreamPriorityRange")?;
        let stream =
            self.0.context.new_stream_with_priority(first).or_gpu_error("cuStreamCreateWithPriority")?;
        Ok(Stream::new(self.clone(), stream))
    }

    /// Returns true if kernels of this GPU can access memory of the other directly.
    pub fn can_access_peer(&self, other: &Gpu) -> Result<bool, GpuError> {
        self.info().can_access_peer(&other.info())
    }

    /// Lets kernels of this GPU access memory of the other. A second call does nothing.
    pub fn enable_peer_access(&self, other: &Gpu) -> Result<(), GpuError> {
        if self == other {
            return Ok(());
        }
        if !self.can_access_peer(other)? {
            return Err(GpuError::Unreachable { from: self.ordinal(), to: other.ordinal() });
        }
        let _exempt = RelaxedCapture::enter();
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
    ///
    /// cudarc's call of the same effect would also return errors of other threads, which it keeps
    /// in the context.
    pub(crate) fn bind(&self) -> Result<(), GpuError> {
        let wanted = self.0.context.cu_ctx();
        if result::ctx::get_current().or_gpu_error("cuCtxGetCurrent")? == Some(wanted) {
            return Ok(());
        }
        // SAFETY: the context is a primary one that this handle keeps.
        unsafe { result::ctx::set_current(wanted) }.or_gpu_error("cuCtxSetCurrent")
    }

    /// Loads kernels that were compiled at run time, by these names.
    #[cfg(feature = "nvrtc")]
    pub(crate) fn add_module(&self, mut image: Vec<u8>, names: &[&str]) -> Result<(), GpuError> {
        image.push(0);
        let _exempt = RelaxedCapture::enter();
        self.bind()?;
        self.0.modules.add(&image, names)
    }

    fn attribute(&self, attribute: Attribute) -> Result<u32, GpuError> {
        self::attribute(&self.0.context, attribute)
    }

    /// Checks that both are the same GPU.
    pub(crate) fn check_same_gpu(&self, owner: &Gpu, what: &'static str) -> Result<(), GpuError> {
        if self == owner {
            return Ok(());
        }
        Err(GpuError::WrongGpu { what, owner: owner.ordinal(), user: self.ordinal() })
    }
}

fn attribute(context: &CudaContext, attribute: Attribute) -> Result<u32, GpuError> {
    // SAFETY: the device is one that the driver has given out.
    let value = unsafe { result::device::get_attribute(context.cu_device(), attribute) };
    Ok(value.or_gpu_error("cuDeviceGetAttribute")? as u32)
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
        // SAFETY: nothing is allocated through this context, and programs track their own
        // allocations. With tracking, cudarc would order kernels that wait for each other.
        unsafe { context.disable_event_tracking() };
        let name = result::device::get_name(context.cu_device()).or_gpu_error("cuDeviceGetName")?;
        let house = context.new_stream().or_gpu_error("cuStreamCreate")?;
        let modules = Modules::load(&context, capability(&context)?)?;
        let utility = Arc::new(Queue::new(house.clone()));
        let queues = hardware_queues(std::env::var("CUDA_DEVICE_MAX_CONNECTIONS").ok().as_deref());
        Ok(Self { context, name, modules, pool: Pool::default(), house, utility, queues })
    }
}

/// Returns the number of hardware queues that the driver takes from its environment variable.
fn hardware_queues(setting: Option<&str>) -> usize {
    let wanted = setting.and_then(|text| text.trim().parse().ok());
    wanted.filter(|queues| (1..=HARDWARE_QUEUES_MAX).contains(queues)).unwrap_or(HARDWARE_QUEUES_DEFAULT)
}

const HARDWARE_QUEUES_DEFAULT: usize = 8;

impl Drop for Device {
    fn drop(&mut self) {
        let _exempt = RelaxedCapture::enter();
        // Memory that cannot be freed is released with the context.
        let _ = self.context.synchronize().or_gpu_error("cuCtxSynchronize").and_then(|()| self.pool.trim());
        self.modules.unload();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_queues_are_those_of_the_environment() {
        let queues = |text| hardware_queues(Some(text));
        assert_eq!([queues("32"), queues("1"), queues(" 16 ")], [32, 1, 16]);
        assert_eq!(
            [queues("0"), queues("33"), queues("many"), hardware_queues(None)],
            [8; 4],
            "the driver's default"
        );
    }
}
