//! The emulator, built by g++ with the kernels, and loaded.

use libloading::{Library, Symbol};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use unisono_cuda::emulator::EmulatorError;

/// How a kernel is launched; `unisono_launch` of `emulator.h`.
#[repr(C)]
struct Launch {
    kernel: *const c_char,
    arguments: *const c_void,
    blocks: u32,
    threads: u32,
    cooperative: u32,
}

/// The loaded device.
pub(crate) struct Device(Library);

impl Device {
    /// Builds the device with these kernels, below `cuda`, and loads it.
    pub(crate) fn new(name: &str, sources: &[&str]) -> Option<Device> {
        Build { name, sources, library: true, races: false }.run().map(|library| Device::open(&library))
    }

    /// Loads what was built.
    pub(crate) fn open(library: &Path) -> Device {
        // SAFETY: its initializers only enter kernels into a list.
        Device(unsafe { Library::new(library) }.expect("what was built can be loaded"))
    }

    /// Runs a kernel to its end.
    pub(crate) fn run<A>(
        &self,
        kernel: &str,
        arguments: &A,
        blocks: u32,
        threads: u32,
    ) -> Result<(), String> {
        self.launch(kernel, arguments, blocks, threads, false)
    }

    /// Runs a kernel all of whose blocks must be resident at once.
    pub(crate) fn run_cooperative<A>(
        &self,
        kernel: &str,
        arguments: &A,
        blocks: u32,
        threads: u32,
    ) -> Result<(), String> {
        self.launch(kernel, arguments, blocks, threads, true)
    }

    fn launch<A>(
        &self,
        kernel: &str,
        arguments: &A,
        blocks: u32,
        threads: u32,
        cooperative: bool,
    ) -> Result<(), String> {
        let kernel = CString::new(kernel).expect("a name without zeros");
        let arguments = std::ptr::from_ref(arguments).cast();
        let launch =
            Launch { kernel: kernel.as_ptr(), arguments, blocks, threads, cooperative: cooperative.into() };
        // SAFETY: the types are those of `emulator.h`; the kernel's memory is the test's affair.
        let failed =
            unsafe { self.symbol::<unsafe extern "C" fn(*const Launch) -> c_int>("unisono_run")(&launch) };
        self.answer(failed)
    }

    /// Poisoned memory.
    pub(crate) fn allocate(&self, bytes: usize) -> *mut u8 {
        // SAFETY: the type is that of `emulator.h`.
        unsafe { self.symbol::<unsafe extern "C" fn(u64) -> *mut u8>("unisono_allocate")(bytes as u64) }
    }

    /// Gives memory back; an error if a kernel wrote beside it.
    pub(crate) fn free(&self, memory: *mut u8) -> Result<(), String> {
        // SAFETY: the type is that of `emulator.h`, which checks the address.
        let failed = unsafe { self.symbol::<unsafe extern "C" fn(*mut u8) -> c_int>("unisono_free")(memory) };
        self.answer(failed)
    }

    fn answer(&self, failed: c_int) -> Result<(), String> {
        // SAFETY: the type is that of `emulator.h`; the text is this thread's until its next call.
        let error = unsafe {
            CStr::from_ptr(self.symbol::<unsafe extern "C" fn() -> *const c_char>("unisono_error")())
        };
        if failed == 0 { Ok(()) } else { Err(error.to_string_lossy().into_owned()) }
    }

    /// A function by its name.
    ///
    /// # Safety
    /// `F` is the type of the function.
    pub(crate) unsafe fn symbol<F>(&self, name: &str) -> Symbol<'_, F> {
        // SAFETY: the caller's word.
        unsafe { self.0.get(name) }.expect("a function of emulator.h")
    }

    /// Names of all kernels.
    pub(crate) fn kernels(&self) -> Vec<String> {
        // SAFETY: the type is that of `emulator.h`; names are static.
        unsafe {
            let name = self.symbol::<unsafe extern "C" fn(u32) -> *const c_char>("unisono_kernel");
            let names = (0..).map(|index| name(index)).take_while(|name| !name.is_null());
            names.map(|name| CStr::from_ptr(name).to_string_lossy().into_owned()).collect()
        }
    }

    /// Blocks that can be resident at once.
    pub(crate) fn set_residents(&self, blocks: u32) {
        // SAFETY: the type is that of `emulator.h`.
        unsafe { self.symbol::<unsafe extern "C" fn(u32)>("unisono_set_max_resident_blocks")(blocks) }
    }

    /// Chooses the order in which blocks and threads run.
    pub(crate) fn set_seed(&self, seed: u64) {
        // SAFETY: the type is that of `emulator.h`.
        unsafe { self.symbol::<unsafe extern "C" fn(u64)>("unisono_set_seed")(seed) }
    }
}

/// A program or library of kernels and the device.
pub(crate) struct Build<'a> {
    /// Name of the file.
    pub(crate) name: &'a str,
    /// Files of kernels, and of what calls them, below `cuda`.
    pub(crate) sources: &'a [&'a str],
    /// Instrumented for ThreadSanitizer; the device itself is not, and says what it orders.
    pub(crate) races: bool,
    /// A library, not a program.
    pub(crate) library: bool,
}

impl Build<'_> {
    /// Builds it. None, said aloud, where there is no C++ compiler.
    pub(crate) fn run(&self) -> Option<PathBuf> {
        let device = device(self.races)?;
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(self.name);
        let mut command = compiler();
        command.arg("-I").arg(folder("kernels")).args(self.races.then_some("-fsanitize=thread"));
        // Kernels for all types take longer to optimize than the tests to run.
        command
            .args(if self.library { &["-fPIC", "-shared", "-O0", "-Wl,-z,nodelete"][..] } else { &[] })
            .args(["-x", "c++"]);
        command.args(self.sources.iter().map(|source| folder(source))).args(["-x", "none"]);
        command.args(device).arg("-o").arg(&file);
        finish(command).map(|()| file)
    }
}

/// Names of the device's sources. Programs of kernels call no cuBLAS.
fn parts() -> Vec<String> {
    let entries = std::fs::read_dir(folder("emulator")).expect("the emulator's sources");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"));
    names.filter(|name| name.ends_with(".cpp") && name != "cublas.cpp").collect()
}

/// Object files of the device, compiled once.
fn device(races: bool) -> Option<&'static [PathBuf]> {
    static COMPILED: [OnceLock<Option<Vec<PathBuf>>>; 2] = [const { OnceLock::new() }; 2];
    let compile = || if races { compile_device() } else { installed_device() };
    COMPILED[usize::from(races)].get_or_init(compile).as_deref()
}

/// Object files of the emulator that programs install.
fn installed_device() -> Option<Vec<PathBuf>> {
    let folder = match unisono_cuda::emulator::library() {
        Ok(library) => library.with_file_name("emulator"),
        Err(EmulatorError::NoCompiler { program, reason }) => return skip(&format!("{program}: {reason}")),
        Err(error) => panic!("{error}"),
    };
    Some(parts().iter().map(|part| folder.join(part).with_extension("cpp.o")).collect())
}

/// For ThreadSanitizer.
fn compile_device() -> Option<Vec<PathBuf>> {
    let name = format!("{}-device", env!("CARGO_CRATE_NAME"));
    let objects = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&objects).expect("a folder for object files");
    let mut command = compiler();
    command.current_dir(&objects).args(["-fPIC", "-c", "-DUNISONO_RACES"]);
    command.args(parts().iter().map(|part| folder("emulator").join(part)));
    finish(command)?;
    Some(parts().iter().map(|part| objects.join(part).with_extension("o")).collect())
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn compiler() -> Command {
    let mut command = Command::new(std::env::var_os("CXX").unwrap_or("g++".into()));
    command.args(["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]);
    // A sum of a product is rounded twice, as on the device.
    command.args(["-ffp-contract=off", "-pthread", "-I"]).arg(folder("emulator"));
    command
}

fn finish(mut command: Command) -> Option<()> {
    match command.output() {
        Ok(output) if output.status.success() => Some(()),
        Ok(output) => panic!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => skip(&error),
    }
}

fn skip<T>(why: &dyn Display) -> Option<T> {
    eprintln!("SKIPPED: kernels are not tested without a C++ compiler: {why}");
    None
}
