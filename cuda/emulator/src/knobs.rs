//! Settings of a loaded emulator.

use libloading::os::unix::{Library, RTLD_NOW};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char};
use std::path::Path;

/// A handle to a loaded emulator, whose settings it changes.
#[derive(Debug)]
pub struct Knobs(Library);

/// A rule of real drivers that the emulator can keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Name of the rule, as in `CUDA_EMULATOR_RULES`.
    pub name: String,
    /// Effect of the rule.
    pub effect: String,
    /// True if the emulator keeps it.
    pub on: bool,
}

/// Module images that a process loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Images {
    /// Texts, which a driver compiles.
    pub ptx: u64,
    /// Compiled code.
    pub cubin: u64,
}

impl Knobs {
    /// Opens the emulator that [`Emulator::build`](crate::Emulator::build) built at this path.
    ///
    /// # Errors
    /// The library cannot be loaded, or is not an emulator.
    pub fn open(library: &Path) -> Result<Self, libloading::Error> {
        // SAFETY: the initializers of the emulator only enter kernels into a list.
        let library = unsafe { Library::open(Some(library), RTLD_NOW) }?;
        // SAFETY: the function is looked up and not called.
        unsafe { library.get::<unsafe extern "C" fn(u64)>(b"unisono_set_seed") }?;
        Ok(Self(library))
    }

    /// Sets the number of GPUs, 1 to 8. The default is 1. All have the same room for blocks.
    pub fn set_gpu_count(&self, count: u32) {
        self.set(b"unisono_set_gpu_count", count);
    }

    /// Sets the number of blocks that can be resident on a GPU at once.
    pub fn set_max_resident_blocks(&self, blocks: u32) {
        self.set(b"unisono_set_max_resident_blocks", blocks);
    }

    /// Makes a kernel too large for a GPU, like one that takes too many registers. An unknown name
    /// makes all kernels fit again.
    ///
    /// # Panics
    /// The name has a zero byte.
    pub fn set_oversized_kernel(&self, kernel: &str) {
        let name = CString::new(kernel).expect("names have no zeros");
        self.set(b"unisono_set_oversized_kernel", name.as_ptr());
    }

    /// Sets the CUDA version that the driver reports. The default is 12040, which is 12.4.
    pub fn set_cuda_version(&self, version: u32) {
        self.set(b"unisono_set_cuda_version", version);
    }

    /// Sets how kernels of GPU `from` reach memory of GPU `to`: directly or not, the performance
    /// rank (0 is best), and with atomics or not. By default all paths are direct, equal, and have
    /// atomics.
    pub fn set_peer_path(&self, from: u32, to: u32, direct: bool, rank: u32, atomics: bool) {
        type Set = unsafe extern "C" fn(u32, u32, u32, u32, u32);
        // SAFETY: the type is that of `emulator.h`.
        unsafe {
            let set = self.function::<Set>(b"unisono_set_peer_path");
            set(from, to, direct.into(), rank, atomics.into());
        }
    }

    /// Sets the number of operations that a stream holds before a launch waits for room in it. The
    /// default is 1024.
    pub fn set_stream_capacity(&self, count: u32) {
        self.set(b"unisono_set_stream_capacity", count);
    }

    /// Keeps a rule of real drivers, or does not. Returns false if there is no rule of this name.
    ///
    /// # Panics
    /// The name has a zero byte.
    pub fn set_rule(&self, rule: &str, on: bool) -> bool {
        let name = CString::new(rule).expect("names have no zeros");
        type Set = unsafe extern "C" fn(*const c_char, u32) -> u32;
        // SAFETY: the type is that of `emulator.h`.
        unsafe { self.function::<Set>(b"unisono_set_rule")(name.as_ptr(), on.into()) != 0 }
    }

    /// Returns all rules, in the order of the table in `rules.cpp`.
    pub fn rules(&self) -> Vec<Rule> {
        type Text = unsafe extern "C" fn(u32) -> *const c_char;
        // SAFETY: the types are those of `emulator.h`, and the texts are static.
        unsafe {
            let (name, effect) =
                (self.function::<Text>(b"unisono_rule"), self.function::<Text>(b"unisono_rule_effect"));
            let is_on = self.function::<unsafe extern "C" fn(u32) -> u32>(b"unisono_rule_is_on");
            let text = |text: *const c_char| CStr::from_ptr(text).to_string_lossy().into_owned();
            let indices = (0..).take_while(|&index| !name(index).is_null());
            indices
                .map(|index| Rule {
                    name: text(name(index)),
                    effect: text(effect(index)),
                    on: is_on(index) != 0,
                })
                .collect()
        }
    }

    /// Returns how often a function of libcuda was called in this process, by its name with or
    /// without the number of its version: `cuMemAlloc` counts `cuMemAlloc_v2`.
    ///
    /// # Panics
    /// The name has a zero byte.
    pub fn call_count(&self, function: &str) -> u64 {
        let name = CString::new(function).expect("names have no zeros");
        type Count = unsafe extern "C" fn(*const c_char) -> u64;
        // SAFETY: the type is that of `emulator.h`.
        unsafe { self.function::<Count>(b"unisono_call_count")(name.as_ptr()) }
    }

    /// Returns the functions of libcuda that were called in this process, and how often.
    pub fn calls(&self) -> BTreeMap<String, u64> {
        // SAFETY: the type is that of `emulator.h`.
        let name = unsafe { self.function::<unsafe extern "C" fn(u32) -> *const c_char>(b"unisono_call") };
        // SAFETY: as above.
        let names = (0..).map(|index| unsafe { name(index) }).take_while(|name| !name.is_null());
        // SAFETY: the texts are static.
        let text = |name: *const c_char| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        names.map(text).map(|name| (name.clone(), self.call_count(&name))).collect()
    }

    /// Returns the numbers of module images that were loaded in this process.
    pub fn images(&self) -> Images {
        // SAFETY: the type is that of `emulator.h`.
        let [ptx, cubin] = [0, 1].map(|kind| unsafe {
            self.function::<unsafe extern "C" fn(u32) -> u64>(b"unisono_images")(kind)
        });
        Images { ptx, cubin }
    }

    /// Sets whether the driver loads machine code. By default it does; else it loads PTX only.
    pub fn set_accepts_cubins(&self, accepts: bool) {
        self.set(b"unisono_set_accepts_cubins", u32::from(accepts));
    }

    /// Sets the seed of the order in which blocks and threads run.
    pub fn set_seed(&self, seed: u64) {
        self.set(b"unisono_set_seed", seed);
    }

    /// Returns a function of the emulator.
    ///
    /// # Safety
    /// `F` is the type that `emulator.h` gives it.
    unsafe fn function<F: Copy>(&self, name: &[u8]) -> F {
        // SAFETY: the caller's word, and `open` found an emulator.
        *unsafe { self.0.get::<F>(name) }.expect("a function of emulator.h")
    }

    /// Calls a setter of one argument; `T` is the type that `emulator.h` gives it.
    fn set<T>(&self, name: &[u8], value: T) {
        // SAFETY: the callers pass the types of `emulator.h`.
        unsafe { self.function::<unsafe extern "C" fn(T)>(name)(value) }
    }
}
