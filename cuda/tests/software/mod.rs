//! The software device: built by g++ with the kernels, and loaded.

use libloading::{Library, Symbol};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;

/// How a kernel is launched; `unisono_launch` of `software.h`.
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
        let library = Build { name, sources, library: true, races: false }.run()?;
        // SAFETY: its initialisers only enter kernels into a list.
        Some(Device(unsafe { Library::new(library) }.expect("what was just built can be loaded")))
    }

    /// Runs a kernel to its end.
    pub(crate) fn run<A>(&self, kernel: &str, arguments: &A, blocks: u32, threads: u32) -> Result<(), String> {
        self.launch(kernel, arguments, blocks, threads, false)
    }

    /// Runs a kernel all of whose blocks must be resident at once.
    pub(crate) fn run_cooperative<A>(&self, kernel: &str, arguments: &A, blocks: u32, threads: u32) -> Result<(), String> {
        self.launch(kernel, arguments, blocks, threads, true)
    }

    fn launch<A>(&self, kernel: &str, arguments: &A, blocks: u32, threads: u32, whole: bool) -> Result<(), String> {
        let kernel = CString::new(kernel).expect("a name without zeros");
        let arguments = std::ptr::from_ref(arguments).cast();
        let launch = Launch { kernel: kernel.as_ptr(), arguments, blocks, threads, cooperative: whole.into() };
        // SAFETY: the types are those of `software.h`; the kernel's memory is the test's affair.
        unsafe {
            let run: Symbol<'_, unsafe extern "C" fn(*const Launch) -> c_int> = self.0.get(b"unisono_run").unwrap();
            let error: Symbol<'_, unsafe extern "C" fn() -> *const c_char> = self.0.get(b"unisono_error").unwrap();
            if run(&launch) == 0 { Ok(()) } else { Err(CStr::from_ptr(error()).to_string_lossy().into_owned()) }
        }
    }

    /// Names of all kernels.
    pub(crate) fn kernels(&self) -> Vec<String> {
        // SAFETY: the type is that of `software.h`; names are static.
        unsafe {
            let name: Symbol<'_, unsafe extern "C" fn(u32) -> *const c_char> =
                self.0.get(b"unisono_kernel").unwrap();
            let all = (0..).map(|index| name(index)).take_while(|name| !name.is_null());
            all.map(|name| CStr::from_ptr(name).to_string_lossy().into_owned()).collect()
        }
    }

    /// Blocks that can be resident at once.
    pub(crate) fn set_residents(&self, blocks: u32) {
        // SAFETY: the type is that of `software.h`.
        unsafe { self.0.get::<unsafe extern "C" fn(u32)>(b"unisono_set_residents").unwrap()(blocks) }
    }

    /// Chooses the order in which blocks and threads run.
    pub(crate) fn set_seed(&self, seed: u64) {
        // SAFETY: the type is that of `software.h`.
        unsafe { self.0.get::<unsafe extern "C" fn(u64)>(b"unisono_set_seed").unwrap()(seed) }
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
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(self.name);
        let objects = file.with_extension("device");
        std::fs::create_dir_all(&objects).expect("a folder for object files");
        let parts = ["block", "fiber", "launch", "memory"];
        let mut device = compiler();
        device.current_dir(&objects).args(["-fPIC", "-c"]);
        device.args(self.races.then_some("-DUNISONO_RACES"));
        device.args(parts.map(|part| folder("software").join(part).with_extension("cpp")));
        finish(device)?;
        let mut whole = compiler();
        whole.arg("-I").arg(folder("kernels")).args(self.races.then_some("-fsanitize=thread"));
        whole.args(if self.library { &["-fPIC", "-shared"][..] } else { &[] }).args(["-x", "c++"]);
        whole.args(self.sources.iter().map(|source| folder(source))).args(["-x", "none"]);
        whole.args(parts.map(|part| objects.join(part).with_extension("o"))).arg("-o").arg(&file);
        finish(whole).map(|()| file)
    }
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn compiler() -> Command {
    let mut command = Command::new(std::env::var_os("CXX").unwrap_or("g++".into()));
    command.args(["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]);
    // A sum of a product is rounded twice, as on the device.
    command.args(["-ffp-contract=off", "-pthread", "-I"]).arg(folder("software"));
    command
}

fn finish(mut command: Command) -> Option<()> {
    match command.output() {
        Ok(output) if output.status.success() => Some(()),
        Ok(output) => panic!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            eprintln!("SKIPPED: kernels are not tested without a C++ compiler: {error}");
            None
        }
    }
}
