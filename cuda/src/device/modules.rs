//! The kernels' machine code and PTX, part of the program, and loaded when a GPU is opened.

use super::capture_mode::RelaxedCapture;
use super::driver::{self, newer};
use super::error::{GpuError, IntoGpuResult};
use super::gpu::lock;
use cudarc::driver::{CudaContext, result, sys, sys::CUjit_option as JitOption};
use std::collections::HashMap;
use std::ffi::{CString, OsStr, c_int, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use unisono_kernels::{Cubin, Module, cubins, kernel_names};

/// The CUDA version and the compute capability that LL128 modules need. PTX 8.4 came with 12.4. Its
/// 128-bit accesses are single accesses from capability 7.0 on, and the PTX is compiled for 8.0.
const LL128_MIN_CUDA: c_int = 12040;
const LL128_MIN_CAPABILITY: (u32, u32) = (8, 0);

/// Returns true if a GPU can load the LL128 modules.
fn supports_ll128(cuda: c_int, capability: (u32, u32)) -> bool {
    cuda >= LL128_MIN_CUDA && capability >= LL128_MIN_CAPABILITY
}

/// A variable of CUDA by which users have PTX compiled for the GPU. Its value is then 1.
const FORCE_PTX: &str = "CUDA_FORCE_PTX_JIT";

/// Returns the machine code for a GPU, unless there is none or users want PTX.
fn machine_code(capability: (u32, u32), force_ptx: Option<&OsStr>) -> Option<&'static [Cubin]> {
    if force_ptx.is_some_and(|value| value == "1") { None } else { cubins(capability) }
}

/// The texts that a GPU loads: with `ll128`, the LL128 modules in place of their counterparts.
fn module_texts(ll128: bool) -> Vec<&'static str> {
    let (ll128_modules, plain_modules): (Vec<&Module>, Vec<&Module>) =
        unisono_kernels::modules().iter().partition(|module| module.ll128);
    let instead = |name: &str| ll128_modules.iter().find(|module| ll128 && module.name == name);
    plain_modules.iter().map(|module| instead(module.name).unwrap_or(module).text).collect()
}

/// Number of modules that were loaded on a GPU, by the kind of their images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageCounts {
    /// Modules of machine code.
    pub cubin: usize,
    /// Modules that the driver compiled from PTX.
    pub ptx: usize,
}

/// A module as the driver takes it.
#[derive(Clone, Copy)]
enum Image {
    Cubin(&'static Cubin),
    Ptx(&'static str),
}

/// The modules of a GPU, all of them loaded.
pub(crate) struct Modules {
    loaded: Mutex<Loaded>,
    /// True if the LL128 modules are loaded.
    ll128: bool,
}

#[derive(Default)]
struct Loaded {
    modules: Vec<sys::CUmodule>,
    functions: HashMap<&'static str, sys::CUfunction>,
    counts: ImageCounts,
}

impl Loaded {
    fn keep(&mut self, module: sys::CUmodule, is_cubin: bool) {
        self.modules.push(module);
        let count = if is_cubin { &mut self.counts.cubin } else { &mut self.counts.ptx };
        *count += 1;
    }
}

// SAFETY: the driver's functions on modules and kernels may be called by any thread.
unsafe impl Send for Loaded {}

impl Modules {
    /// Loads all modules: machine code where there is some for the GPU, else PTX, which the driver
    /// compiles the first time on a machine. A driver that refuses machine code gets PTX, too.
    ///
    /// No module is loaded later. Loading may wait for all kernels that run on the GPU, and these
    /// may wait for a launch of this thread.
    pub(crate) fn load(context: &CudaContext, capability: (u32, u32)) -> Result<Self, GpuError> {
        let forced = std::env::var_os(FORCE_PTX);
        let cubins = machine_code(capability, forced.as_deref()).unwrap_or_default();
        Self::load_any(context, cubins, supports_ll128(driver::cuda()?, capability))
    }

    /// Loads machine code if there is some that the driver takes, else PTX.
    fn load_any(context: &CudaContext, cubins: &'static [Cubin], ll128: bool) -> Result<Self, GpuError> {
        if !cubins.is_empty() {
            // Machine code needs no PTX version, so it has LL128 lines on all drivers.
            match Self::load_all(context, &cubins.iter().map(Image::Cubin).collect::<Vec<_>>(), true) {
                Ok(modules) => return Ok(modules),
                Err(error) => {
                    tracing::warn!(%error, "the driver refused the kernels' machine code and compiles PTX");
                }
            }
        }
        let texts: Vec<_> = module_texts(ll128).into_iter().map(Image::Ptx).collect();
        Self::load_all(context, &texts, ll128)
    }

    /// Loads images by several threads. If one is refused, none stays loaded.
    fn load_all(context: &CudaContext, images: &[Image], ll128: bool) -> Result<Self, GpuError> {
        let (modules, next) = (Self { loaded: Mutex::default(), ll128 }, AtomicUsize::new(0));
        let work = || {
            // This thread has a capture mode of its own.
            let _exempt = RelaxedCapture::enter();
            context.bind_to_thread().or_gpu_error("cuCtxSetCurrent")?;
            while let Some(image) = images.get(next.fetch_add(1, Ordering::Relaxed)) {
                modules.add_image(*image)?;
            }
            Ok(())
        };
        let threads =
            std::thread::available_parallelism().map_or(1, |threads| threads.get().min(LOADERS_MAX));
        let ended = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            workers.into_iter().map(|worker| worker.join().expect("a module was loaded")).collect::<Vec<_>>()
        });
        match ended.into_iter().collect::<Result<(), GpuError>>() {
            Ok(()) => Ok(modules),
            Err(error) => {
                modules.unload();
                Err(error)
            }
        }
    }

    /// Returns true if the kernels support LL128 lines.
    pub(crate) fn have_ll128(&self) -> bool {
        self.ll128
    }

    /// Returns how many modules were loaded.
    pub(crate) fn images(&self) -> ImageCounts {
        lock(&self.loaded).counts
    }

    fn add_image(&self, image: Image) -> Result<(), GpuError> {
        let (module, names) = match image {
            Image::Cubin(cubin) => (load(cubin.image)?, cubin.kernel_names().collect::<Vec<_>>()),
            Image::Ptx(text) => {
                let image = CString::new(text).expect("PTX has no zeros");
                (load(image.as_bytes_with_nul())?, kernel_names(text).collect())
            }
        };
        lock(&self.loaded).keep(module, matches!(image, Image::Cubin(_)));
        let found = names.into_iter().map(|name| Ok((name, function(module, name)?)));
        let found = found.collect::<Result<Vec<_>, GpuError>>()?;
        lock(&self.loaded).functions.extend(found);
        Ok(())
    }

    /// The kernel of this name, and the name.
    pub(crate) fn function(&self, name: &str) -> Result<(sys::CUfunction, &'static str), GpuError> {
        match lock(&self.loaded).functions.get_key_value(name) {
            Some((&name, &function)) => Ok((function, name)),
            None => Err(GpuError::NoKernel { name: name.to_owned() }),
        }
    }

    /// Loads kernels that were compiled at run time. The GPU's context is current. Their names stay
    /// allocated as long as the process.
    #[cfg(feature = "nvrtc")]
    pub(crate) fn add(&self, image: &[u8], names: &[&str]) -> Result<(), GpuError> {
        let module = load(image)?;
        lock(&self.loaded).keep(module, image.starts_with(ELF_MAGIC));
        for name in names {
            // Launches take the lock, too: the driver is called without.
            let function = function(module, name)?;
            let functions = &mut lock(&self.loaded).functions;
            if !functions.contains_key(name) {
                functions.insert(String::leak((*name).to_owned()), function);
            }
        }
        Ok(())
    }

    /// Unloads them; the GPU's context is current, and none of their kernels runs.
    pub(crate) fn unload(&self) {
        for module in std::mem::take(&mut *lock(&self.loaded)).modules {
            // SAFETY: kernels and streams keep the GPU open, so no function of the module is held
            // or runs.
            let _ = unsafe { result::module::unload(module) };
        }
    }
}

/// Loads an image whose end is known or marked by a zero. The error has the messages of the
/// driver's compiler.
fn load(image: &[u8]) -> Result<sys::CUmodule, GpuError> {
    let (mut module, mut said) = (null_mut(), vec![0u8; LOG_BYTES]);
    let mut options = [JitOption::CU_JIT_ERROR_LOG_BUFFER, JitOption::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values: [*mut c_void; 2] = [said.as_mut_ptr().cast(), without_provenance_mut(said.len())];
    let (count, options, values) = (options.len() as u32, options.as_mut_ptr(), values.as_mut_ptr());
    // SAFETY: the image has an end, each option has its value, and the log has the size that its
    // option says.
    let answer =
        unsafe { sys::cuModuleLoadDataEx(&mut module, image.as_ptr().cast(), count, options, values) };
    answer.or_gpu_error("cuModuleLoadDataEx").map_err(|error| {
        let said = String::from_utf8_lossy(said.split(|&byte| byte == 0).next().unwrap_or_default());
        if said.is_empty() {
            error
        } else {
            GpuError::ModuleLoad { error: Box::new(error), said: said.into_owned() }
        }
    })?;
    Ok(module)
}

/// A kernel of a module, with its code on the GPU.
fn function(module: sys::CUmodule, name: &str) -> Result<sys::CUfunction, GpuError> {
    let name = CString::new(name).expect("names have no zeros");
    // SAFETY: the module is loaded.
    let function =
        unsafe { result::module::get_function(module, name) }.or_gpu_error("cuModuleGetFunction")?;
    let registers = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS;
    // Reading an attribute loads the code where modules are loaded lazily.
    //
    // SAFETY: as above.
    unsafe { result::function::get_function_attribute(function, registers) }
        .or_gpu_error("cuFuncGetAttribute")?;
    type FuncLoad = unsafe extern "C" fn(sys::CUfunction) -> sys::CUresult;
    // SAFETY: the type is that of the driver's header.
    if let Some(load) = unsafe { newer::<FuncLoad>(b"cuFuncLoad") } {
        // CUDA 12.4 added a call that loads the code.
        //
        // SAFETY: as above.
        unsafe { load(function) }.or_gpu_error("cuFuncLoad")?;
    }
    Ok(function)
}

/// Largest number of threads that load modules. More threads gain little.
const LOADERS_MAX: usize = 8;
/// First bytes of machine code.
#[cfg(feature = "nvrtc")]
const ELF_MAGIC: &[u8] = b"\x7fELF";
/// Size of the log of the driver's compiler.
const LOG_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ll128_modules_are_for_drivers_that_take_their_ptx() {
        // From PTX 8.0 and 8.4 on, which came with CUDA 12.0 and 12.4.
        assert_eq!((LL128_MIN_CUDA, LL128_MIN_CAPABILITY), (12040, (8, 0)));
        assert!(supports_ll128(12040, (8, 0)) && supports_ll128(13000, (12, 0)));
        assert!(!supports_ll128(12030, (9, 0)) && !supports_ll128(12080, (7, 5)));
    }

    #[test]
    fn ll128_modules_replace_their_counterparts_only() {
        let names = |ll128| module_texts(ll128).into_iter().flat_map(kernel_names).collect::<Vec<_>>();
        assert_eq!(names(true), names(false));
        let (wide, plain) = (module_texts(true), module_texts(false));
        let changed = wide.iter().zip(plain).filter(|(wide, plain)| **wide != *plain).count();
        assert_eq!(changed, unisono_kernels::modules().iter().filter(|module| module.ll128).count());
    }

    #[test]
    fn machine_code_is_for_known_capabilities_unless_forced() {
        assert!(machine_code((8, 0), None).is_some() && machine_code((9, 0), Some("0".as_ref())).is_some());
        assert!(machine_code((9, 0), Some("1".as_ref())).is_none() && machine_code((12, 0), None).is_none());
    }

    /// Machine code of another architecture is refused, as by every driver. No module of it stays.
    #[test]
    fn refused_machine_code_is_replaced_by_ptx() {
        if crate::emulator::install().is_err() {
            return eprintln!("SKIPPED: needs a C++ compiler");
        }
        let gpu = crate::device::Gpu::open(0).unwrap();
        let matching = cubins(gpu.capability().unwrap()).unwrap();
        assert_eq!(gpu.images(), ImageCounts { cubin: matching.len(), ptx: 0 });
        let foreign = cubins((9, 0)).unwrap();
        let images: Vec<_> = foreign.iter().map(Image::Cubin).collect();
        let error = Modules::load_all(gpu.context(), &images, true).err().unwrap().to_string();
        assert!(error.contains("cuModuleLoadDataEx: no kernel image is available"), "{error}");
        for ll128 in [false, true] {
            let modules = Modules::load_any(gpu.context(), foreign, ll128).unwrap();
            assert_eq!(modules.images(), ImageCounts { cubin: 0, ptx: matching.len() });
            assert_eq!(modules.have_ll128(), ll128);
            assert!(modules.function("exchange").is_ok());
            modules.unload();
        }
    }

    #[test]
    fn module_load_error_quotes_the_driver() {
        if crate::emulator::install().is_err() {
            return eprintln!("SKIPPED: needs a C++ compiler");
        }
        let gpu = crate::device::Gpu::open(0).unwrap();
        gpu.bind().unwrap();
        let error = load(b".visible .entry nothing(\0").unwrap_err().to_string();
        assert!(error.contains("cuModuleLoadDataEx") && error.ends_with("no kernel nothing"), "{error}");
    }
}
