//! Builds the emulator: once for each version of the sources and each compiler.

use crate::objects::{Objects, Wanted, object};
use crate::sources::SOURCES;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The name under which cudarc looks for the driver first. A library that is loaded under this name
/// is found before any file.
const NAME: &str = "libcuda.so";

/// Names by which programs open the driver and cuBLAS.
const DRIVER_NAMES: [&str; 4] = [NAME, "libcuda.so.1", "libcublas.so.12", "libcublas.so.13"];

const OPTIONS: &[&str] = &[
    "-std=c++17",
    "-fPIC",
    "-pthread",
    // A product is rounded before it is added, as in the PTX.
    "-ffp-contract=off",
    "-Wno-unknown-pragmas",
    "-Iemulator",
    "-Ikernels",
    "-c",
];

/// An error of building the emulator.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BuildError {
    /// There is no C++ compiler.
    #[error("the CUDA emulator needs a C++ compiler: {program}: {reason}")]
    NoCompiler {
        /// The program that was started: `CXX`, or g++.
        program: String,
        /// The error of the system.
        reason: String,
    },
    /// The compiler refused the sources.
    #[error("the compiler refused the CUDA emulator: {said}")]
    Refused {
        /// The messages of the compiler.
        said: String,
    },
    /// There is no folder to build in.
    #[error("no folder to build the CUDA emulator in: {0}")]
    NoFolder(String),
}

/// An emulator with the kernels of its user: sources that [`build`](Self::build) compiles.
#[derive(Clone, Copy, Debug)]
pub struct Emulator<'s> {
    /// Name and text of each kernel source: `.cu` files are compiled, others are headers.
    pub kernels: &'s [(&'s str, &'s str)],
    /// Decides by the name of a `.cu` file whether it is optimized. Optimized kernels take longer
    /// to compile than most tests run.
    pub optimized: fn(&str) -> bool,
}

/// More kernels, for an emulator that is built and loaded.
#[derive(Clone, Debug)]
pub struct UserKernels {
    /// Name of the library: a file name that differs between kernels.
    pub name: String,
    /// Name and text of a header that the sources include.
    pub header: (&'static str, String),
    /// Macros, as `NAME=VALUE`.
    pub defines: Vec<String>,
    /// Names of the sources, out of [`Emulator::kernels`].
    pub sources: Vec<&'static str>,
}

impl Emulator<'_> {
    /// Builds the library unless the cache has it, and returns its path.
    ///
    /// The cache is `$XDG_CACHE_HOME/unisono` or `~/.cache/unisono`. One process builds at a time,
    /// and others wait for it.
    ///
    /// # Errors
    /// There is no compiler, it refuses a source, or no folder can be written.
    pub fn build(&self) -> Result<PathBuf, BuildError> {
        let compiler = compiler();
        let cache = cache()
            .ok_or_else(|| BuildError::NoFolder("neither XDG_CACHE_HOME nor HOME is set".to_owned()))?;
        let folder = cache.join(format!("cuda-emulator-{:016x}", self.key(&compiler)));
        let file = folder.join(NAME);
        let unfit = |error: io::Error| BuildError::NoFolder(format!("{}: {error}", folder.display()));
        if !file.exists() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(unfit)?;
            let building = File::create(folder.join("lock")).map_err(unfit)?;
            building.lock().map_err(unfit)?;
            if !file.exists() {
                self.write_sources(&folder).map_err(unfit)?;
                self.compile(&compiler, &folder)?;
                fs::rename(folder.join("built"), &file).map_err(unfit)?;
            }
        }
        Ok(file)
    }

    /// Returns a folder in which a loader finds the library as the driver and as cuBLAS, for
    /// `LD_LIBRARY_PATH` of other processes. Builds the library unless the cache has it.
    ///
    /// # Errors
    /// Same as [`build`](Self::build).
    pub fn driver_folder(&self) -> Result<PathBuf, BuildError> {
        let library = self.build()?;
        let folder = library.with_file_name("driver");
        let unfit = |error: io::Error| BuildError::NoFolder(format!("{}: {error}", folder.display()));
        fs::create_dir_all(&folder).map_err(unfit)?;
        for name in DRIVER_NAMES {
            match std::os::unix::fs::symlink(Path::new("..").join(NAME), folder.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(unfit(error)),
                _ => (),
            }
        }
        Ok(folder)
    }

    /// Builds a library of more kernels unless the cache has it, and returns its path. Loading the
    /// library enters the kernels into the list of the loaded emulator.
    ///
    /// # Errors
    /// Same as [`build`](Self::build).
    pub fn build_user_kernels(&self, kernels: &UserKernels) -> Result<PathBuf, BuildError> {
        let library = self.build()?;
        let folder = library.parent().unwrap_or(&library);
        let part = folder.join(&kernels.name);
        let file = part.join("user.so");
        let unfit = |error: io::Error| BuildError::NoFolder(format!("{}: {error}", file.display()));
        fs::create_dir_all(&part).map_err(unfit)?;
        let building = File::create(part.join("lock")).map_err(unfit)?;
        building.lock().map_err(unfit)?;
        if !file.exists() {
            fs::write(part.join(kernels.header.0), &kernels.header.1).map_err(unfit)?;
            compile_user_kernels(folder, kernels)?;
            fs::rename(part.join("built"), &file).map_err(unfit)?;
        }
        Ok(file)
    }

    fn key(&self, compiler: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        (SOURCES, self.kernels, OPTIONS, compiler, std::env::consts::ARCH).hash(&mut hasher);
        hasher.finish()
    }

    /// Path below the build folder and text of every source.
    fn sources(&self) -> impl Iterator<Item = (String, &str)> {
        let own = SOURCES.iter().map(|(name, text)| (format!("emulator/{name}"), *text));
        own.chain(self.kernels.iter().map(|(name, text)| (format!("kernels/{name}"), *text)))
    }

    fn write_sources(&self, folder: &Path) -> io::Result<()> {
        for (path, text) in self.sources() {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap_or(folder))?;
            fs::write(path, text)?;
        }
        Ok(())
    }

    /// Compiles what the cache does not have, and links.
    fn compile(&self, compiler: &str, folder: &Path) -> Result<(), BuildError> {
        let is_compiled = |path: &String| path.ends_with(".cpp") || path.ends_with(".cu");
        let paths: Vec<String> = self.sources().map(|(path, _)| path).filter(is_compiled).collect();
        let wanted = |source: &String| Wanted { arguments: self.arguments(source), source: source.clone() };
        let wanted: Vec<Wanted> = paths.iter().map(wanted).collect();
        let kept = folder.with_file_name("cuda-emulator-objects");
        Objects { compiler, sources: self.sources().collect() }.place(&wanted, &kept, folder)?;
        let soname = format!("-Wl,-soname,{NAME}");
        // Threads of the library run on after the last handle is closed.
        let link = ["-shared", "-pthread", "-Wl,-z,nodelete", &soname, "-o", "built"];
        let objects = paths.iter().map(|path| object(path));
        let arguments: Vec<String> = link.into_iter().map(str::to_owned).chain(objects).collect();
        finish(compiler, start(compiler, folder, &arguments))
    }

    fn arguments(&self, path: &str) -> Vec<String> {
        let is_slow = path.strip_prefix("kernels/").is_some_and(|name| !(self.optimized)(name));
        let own = [if is_slow { "-O0" } else { "-O1" }, "-x", "c++", path];
        OPTIONS.iter().copied().chain(own).map(str::to_owned).collect()
    }
}

fn compile_user_kernels(folder: &Path, kernels: &UserKernels) -> Result<(), BuildError> {
    let defines = kernels.defines.iter().map(|define| format!("-D{define}"));
    let include = format!("-I{}", kernels.name);
    let mut arguments: Vec<String> =
        OPTIONS.iter().filter(|option| **option != "-c").map(|&option| option.to_owned()).collect();
    arguments.extend(defines);
    // The emulator has functions of the same names, for built-in operations: bind to the own ones.
    let own = [&include, "-fvisibility=hidden", "-Wl,-Bsymbolic", "-O0", "-shared", "-x", "c++"];
    arguments.extend(own.map(str::to_owned));
    arguments.extend(kernels.sources.iter().map(|name| format!("kernels/{name}")));
    // The emulator, which is loaded already, has the functions that kernels call.
    arguments.extend(["-x", "none", NAME, "-o"].map(str::to_owned));
    arguments.push(format!("{}/built", kernels.name));
    let compiler = compiler();
    finish(&compiler, start(&compiler, folder, &arguments))
}

fn compiler() -> String {
    std::env::var("CXX").unwrap_or_else(|_| "g++".to_owned())
}

/// The user's cache folder, which only the user can write.
fn cache() -> Option<PathBuf> {
    let folder = |variable| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
    Some(cache.join("unisono"))
}

pub(crate) fn start(compiler: &str, folder: &Path, arguments: &[impl AsRef<OsStr>]) -> io::Result<Child> {
    let mut command = Command::new(compiler);
    command
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command.spawn()
}

pub(crate) fn finish(compiler: &str, child: io::Result<Child>) -> Result<(), BuildError> {
    let absent =
        |error: io::Error| BuildError::NoCompiler { program: compiler.to_owned(), reason: error.to_string() };
    let output = child.map_err(absent)?.wait_with_output().map_err(absent)?;
    if output.status.success() {
        return Ok(());
    }
    Err(BuildError::Refused { said: String::from_utf8_lossy(&output.stderr).into_owned() })
}
