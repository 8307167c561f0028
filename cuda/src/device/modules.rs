//! The kernels' PTX, part of the program, and loaded when a GPU is opened.

use super::driver::{self, newer};
use super::error::{GpuError, IntoGpuResult};
use super::gpu::lock;
use cudarc::driver::{CudaContext, result, sys, sys::CUjit_option as JitOption};
use std::collections::HashMap;
use std::ffi::{CString, c_int, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The texts of all kernels, and of those that there are with wide lines, too, which take the places of the same names.
macro_rules! modules {
    ($($narrow:ident)*; $($both:ident)*) => {
        const MODULES: &[(&str, &str)] = &[
            $((stringify!($narrow), include_str!(concat!("../../ptx/", stringify!($narrow), ".ptx"))),)*
            $((stringify!($both), include_str!(concat!("../../ptx/", stringify!($both), ".ptx"))),)*
        ];
        const WIDE: &[(&str, &str)] =
            &[$((stringify!($both), include_str!(concat!("../../ptx/ll128/", stringify!($both), ".ptx")))),*];
    };
}

modules! {
    exchange
    model_attention
    model_elements
    model_gradients
    model_loss
    model_matmul
    model_optimizer
    model_pack
    model_rows
    ping
    reduce_copy_bfloat16
    reduce_copy_double
    reduce_copy_float
    reduce_copy_fp8_e4m3
    reduce_copy_fp8_e5m2
    reduce_copy_half
    reduce_copy_int32
    reduce_copy_int64
    reduce_copy_int8
    reduce_copy_uint32
    reduce_copy_uint64
    reduce_copy_uint8;

    // With wide lines, too.
    one_shot_bfloat16
    one_shot_double
    one_shot_float
    one_shot_fp8_e4m3
    one_shot_fp8_e5m2
    one_shot_half
    one_shot_int32
    one_shot_int64
    one_shot_int8
    one_shot_uint32
    one_shot_uint64
    one_shot_uint8
    schedule_bfloat16
    schedule_double
    schedule_float
    schedule_fp8_e4m3
    schedule_fp8_e5m2
    schedule_half
    schedule_int32
    schedule_int64
    schedule_int8
    schedule_uint32
    schedule_uint64
    schedule_uint8
}

/// What [`WIDE`] asks for: the CUDA that PTX 8.4 came with, and the compute capability that it was compiled for. The accesses
/// of 128 bits in it are whole from capability 7.0 on.
const LL128_MIN_CUDA: c_int = 12040;
const LL128_MIN_CAPABILITY: (u32, u32) = (8, 0);

/// Whether a GPU takes [`WIDE`].
fn supports_ll128(cuda: c_int, capability: (u32, u32)) -> bool {
    cuda >= LL128_MIN_CUDA && capability >= LL128_MIN_CAPABILITY
}

/// The texts that a GPU loads.
fn module_texts(wide: bool) -> Vec<&'static str> {
    let instead = |name: &str| WIDE.iter().find(|(other, _)| wide && *other == name);
    MODULES.iter().map(|module| instead(module.0).unwrap_or(module).1).collect()
}

/// The names of the kernels in a module's text.
fn kernels(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.split(".visible .entry ").skip(1).map(|body| &body[..body.find('(').unwrap_or(0)])
}

/// The modules of a GPU, all of them loaded.
pub(crate) struct Modules {
    loaded: Mutex<Loaded>,
    /// Whether those with wide lines are among them.
    wide: bool,
}

#[derive(Default)]
struct Loaded {
    modules: Vec<sys::CUmodule>,
    functions: HashMap<&'static str, sys::CUfunction>,
}

// SAFETY: the driver's functions on modules and kernels may be called by any thread.
unsafe impl Send for Loaded {}

impl Modules {
    /// Loads all of them, by several threads: the driver compiles them when they are first loaded on a machine, which takes
    /// seconds. Later it could not be done: loading may wait for all that runs on the GPU, even for kernels that wait for what this
    /// thread would launch next.
    pub(crate) fn load(context: &CudaContext, capability: (u32, u32)) -> Result<Self, GpuError> {
        let wide = supports_ll128(driver::cuda()?, capability);
        let (modules, next) = (Self { loaded: Mutex::default(), wide }, AtomicUsize::new(0));
        let texts = module_texts(wide);
        let work = || {
            context.bind_to_thread().or_gpu_error("cuCtxSetCurrent")?;
            while let Some(text) = texts.get(next.fetch_add(1, Ordering::Relaxed)) {
                modules.add_text(text)?;
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

    /// Whether its kernels know wide lines.
    pub(crate) fn have_ll128(&self) -> bool {
        self.wide
    }

    fn add_text(&self, text: &'static str) -> Result<(), GpuError> {
        let image = CString::new(text).expect("PTX has no zeros");
        let module = load(image.as_bytes_with_nul())?;
        lock(&self.loaded).modules.push(module);
        let found = kernels(text).map(|name| Ok((name, function(module, name)?)));
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

    /// Loads kernels that were compiled at run time; the GPU's context is current. Their names last as long as the program.
    #[cfg(feature = "nvrtc")]
    pub(crate) fn add(&self, image: &[u8], names: &[&str]) -> Result<(), GpuError> {
        let module = load(image)?;
        lock(&self.loaded).modules.push(module);
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
            // SAFETY: kernels and streams keep the GPU open, so nobody has or runs a function of it any more.
            let _ = unsafe { result::module::unload(module) };
        }
    }
}

/// Loads an image, whose end is known or marked by a zero; what the driver's compiler says of it is in the error.
fn load(image: &[u8]) -> Result<sys::CUmodule, GpuError> {
    let (mut module, mut said) = (null_mut(), vec![0u8; LOG_BYTES]);
    let mut options = [JitOption::CU_JIT_ERROR_LOG_BUFFER, JitOption::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values: [*mut c_void; 2] = [said.as_mut_ptr().cast(), without_provenance_mut(said.len())];
    let (count, options, values) = (options.len() as u32, options.as_mut_ptr(), values.as_mut_ptr());
    // SAFETY: the image has an end, each option has its value, and the log has room for as many bytes as that says.
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
    // Where modules are loaded lazily, this is what loads the code,
    // SAFETY: as above.
    unsafe { result::function::get_function_attribute(function, registers) }
        .or_gpu_error("cuFuncGetAttribute")?;
    type FuncLoad = unsafe extern "C" fn(sys::CUfunction) -> sys::CUresult;
    // SAFETY: the type is that of the driver's header.
    if let Some(load) = unsafe { newer::<FuncLoad>(b"cuFuncLoad") } {
        // and from 12.4 on there is a call for that.
        // SAFETY: as above.
        unsafe { load(function) }.or_gpu_error("cuFuncLoad")?;
    }
    Ok(function)
}

/// The driver compiles by so many threads at once; more gain little.
const LOADERS_MAX: usize = 8;
/// Room for what its compiler says.
const LOG_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::{
        LL128_MIN_CAPABILITY, LL128_MIN_CUDA, MODULES, WIDE, kernels, load, module_texts, supports_ll128,
    };
    use std::collections::HashSet;
    use std::path::{Path, PathBuf};

    #[test]
    fn every_file_has_its_row() {
        let name = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
        for (folder, modules) in [("ptx", MODULES), ("ptx/ll128", WIDE)] {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
            let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
            let mut files: Vec<String> = files.filter(|path| path.is_file()).map(name).collect();
            files.sort();
            let mut rows: Vec<&str> = modules.iter().map(|(name, _)| *name).collect();
            rows.sort_unstable();
            assert_eq!(rows, files);
        }
    }

    /// The driver is asked for no more and no less than the files are made for.
    #[test]
    fn wide_lines_are_for_drivers_that_take_their_ptx() {
        let said = |text: &str, key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)).expect("a line of PTX");
            line.trim().to_owned()
        };
        for (modules, version) in [(MODULES, "8.0"), (WIDE, "8.4")] {
            for (name, text) in modules {
                assert_eq!(
                    (said(text, ".version"), said(text, ".target")),
                    (version.into(), "sm_80".into()),
                    "{name}"
                );
                assert_eq!(text.contains(".b128"), version == "8.4", "{name}");
            }
        }
        // From PTX 8.0 and 8.4 on, which came with CUDA 12.0 and 12.4.
        assert_eq!((LL128_MIN_CUDA, LL128_MIN_CAPABILITY), (12040, (8, 0)));
        assert!(supports_ll128(12040, (8, 0)) && supports_ll128(13000, (12, 0)));
        assert!(!supports_ll128(12030, (9, 0)) && !supports_ll128(12080, (7, 5)));
    }

    #[test]
    fn modules_with_wide_lines_have_the_same_kernels() {
        let all = |wide| module_texts(wide).into_iter().flat_map(kernels).collect::<Vec<_>>();
        assert_eq!(all(true), all(false));
        let changed = module_texts(true)
            .iter()
            .zip(module_texts(false))
            .filter(|(wide, other)| **wide != *other)
            .count();
        assert_eq!(changed, WIDE.len());
    }

    #[test]
    fn kernels_are_found_in_their_modules() {
        let entries: usize = MODULES.iter().map(|(_, text)| text.matches(".entry").count()).sum();
        let names: HashSet<&str> = MODULES.iter().flat_map(|(_, text)| kernels(text)).collect();
        assert_eq!(names.len(), entries, "a kernel is in two modules, or hidden");
        assert!(names.contains("exchange") && names.contains("reduce_copy_half_avg"));
    }

    #[test]
    fn what_the_driver_says_of_kernels_is_in_the_error() {
        if crate::emulator::install().is_err() {
            return eprintln!("SKIPPED: needs a C++ compiler");
        }
        let gpu = crate::device::Gpu::open(0).unwrap();
        gpu.bind().unwrap();
        let error = load(b".visible .entry nothing(\0").unwrap_err().to_string();
        assert!(error.contains("cuModuleLoadDataEx") && error.ends_with("no kernel nothing"), "{error}");
    }
}
