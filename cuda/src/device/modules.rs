//! The kernels' PTX, part of the program, and loaded when one of a module is asked for.

use super::error::{Answer, GpuError};
use super::gpu::lock;
use cudarc::driver::{result, sys};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Mutex, OnceLock};

/// The files of `cuda/ptx`.
macro_rules! modules {
    ($($name:ident)*) => {
        const MODULES: &[(&str, &str)] =
            &[$((stringify!($name), include_str!(concat!("../../ptx/", stringify!($name), ".ptx")))),*];
    };
}

modules! {
    exchange
    model_attention
    model_elements
    model_gradients
    model_loss
    model_matmul
    model_optimiser
    model_pack
    model_rows
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
    reduce_copy_uint8
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

/// Index of the module of each kernel.
fn index() -> &'static HashMap<&'static str, usize> {
    static INDEX: OnceLock<HashMap<&str, usize>> = OnceLock::new();
    INDEX.get_or_init(|| {
        let kernels = |(index, (_, text)): (usize, &(&str, &'static str))| {
            text.split(".visible .entry ")
                .skip(1)
                .map(move |body| (&body[..body.find('(').unwrap_or(0)], index))
        };
        MODULES.iter().enumerate().flat_map(kernels).collect()
    })
}

/// What a GPU has loaded, until it is closed.
#[derive(Default)]
pub(crate) struct Modules(Mutex<Loaded>);

#[derive(Default)]
struct Loaded {
    /// By index.
    modules: HashMap<usize, sys::CUmodule>,
    functions: HashMap<&'static str, sys::CUfunction>,
}

// SAFETY: the driver's functions on modules and kernels may be called by any thread.
unsafe impl Send for Loaded {}

impl Modules {
    /// The kernel of this name, and the name; the GPU's context is current.
    pub(crate) fn function(&self, name: &str) -> Result<(sys::CUfunction, &'static str), GpuError> {
        let (&name, &index) =
            index().get_key_value(name).ok_or_else(|| GpuError::NoKernel { name: name.to_owned() })?;
        let mut loaded = lock(&self.0);
        if let Some(&function) = loaded.functions.get(name) {
            return Ok((function, name));
        }
        let module = match loaded.modules.get(&index) {
            Some(&module) => module,
            None => load(MODULES[index].1)?,
        };
        loaded.modules.insert(index, module);
        let function = function(module, name)?;
        loaded.functions.insert(name, function);
        Ok((function, name))
    }

    /// Unloads them; the GPU's context is current, and none of their kernels runs.
    pub(crate) fn unload(&mut self) {
        for (_, module) in lock(&self.0).modules.drain() {
            // SAFETY: kernels and streams keep the GPU open, so nobody has or runs a function of it any more.
            let _ = unsafe { result::module::unload(module) };
        }
    }
}

fn load(text: &str) -> Result<sys::CUmodule, GpuError> {
    let text = CString::new(text).expect("PTX has no zeros");
    // SAFETY: the text ends with a zero.
    unsafe { result::module::load_data(text.as_ptr().cast()) }.from("cuModuleLoadData")
}

fn function(module: sys::CUmodule, name: &str) -> Result<sys::CUfunction, GpuError> {
    let name = CString::new(name).expect("names have no zeros");
    // SAFETY: the module is loaded.
    let function = unsafe { result::module::get_function(module, name) }.from("cuModuleGetFunction")?;
    let registers = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS;
    // Where modules are loaded lazily, this is what loads the code.
    // SAFETY: as above.
    unsafe { result::function::get_function_attribute(function, registers) }.from("cuFuncGetAttribute")?;
    Ok(function)
}

#[cfg(test)]
mod tests {
    use super::{MODULES, index};

    #[test]
    fn every_file_has_its_row() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/ptx");
        let name = |entry: std::fs::DirEntry| entry.path().file_stem().unwrap().to_str().unwrap().to_owned();
        let mut files: Vec<String> =
            std::fs::read_dir(folder).unwrap().map(|entry| name(entry.unwrap())).collect();
        files.sort();
        assert_eq!(MODULES.iter().map(|(name, _)| *name).collect::<Vec<_>>(), files);
    }

    #[test]
    fn kernels_are_found_in_their_modules() {
        let entries: usize = MODULES.iter().map(|(_, text)| text.matches(".entry").count()).sum();
        assert_eq!(index().len(), entries, "a kernel is in two modules, or hidden");
        assert_eq!(MODULES[index()["exchange"]].0, "exchange");
        assert_eq!(MODULES[index()["reduce_copy_half_avg"]].0, "reduce_copy_half");
    }
}
