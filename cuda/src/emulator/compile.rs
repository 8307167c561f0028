//! Builds the software device: once for each version of the sources and each compiler.

#[cfg(feature = "nvrtc")]
use crate::device::user_op::UserOpSource;
use crate::emulator::EmulatorError;
use crate::emulator::sources::SOURCES;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// As cudarc looks for it first; a library that is loaded under this name is found before any file.
const NAME: &str = "libcuda.so";

const OPTIONS: &[&str] = &[
    "-std=c++17",
    "-fPIC",
    "-pthread",
    // A sum of a product is rounded twice, as on the device.
    "-ffp-contract=off",
    "-Wno-unknown-pragmas",
    "-Iemulator",
    "-Ikernels",
    "-c",
];

/// The file, built if it is not there.
pub(crate) fn library() -> Result<PathBuf, EmulatorError> {
    let compiler = compiler();
    let cache = cache()
        .ok_or_else(|| EmulatorError::NoFolder("neither XDG_CACHE_HOME nor HOME is set".to_owned()))?;
    let folder = cache.join(format!("software-device-{:016x}", key(&compiler)));
    let file = folder.join(NAME);
    let unfit = |error: io::Error| EmulatorError::NoFolder(format!("{}: {error}", folder.display()));
    if !file.exists() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(unfit)?;
        // One process builds, others wait for it.
        let building = File::create(folder.join("lock")).map_err(unfit)?;
        building.lock().map_err(unfit)?;
        if !file.exists() {
            write_sources(&folder).map_err(unfit)?;
            build(&compiler, &folder)?;
            fs::rename(folder.join("built"), &file).map_err(unfit)?;
        }
    }
    Ok(file)
}

/// Kernels of a reduction of one's own, as a library that goes with the device; built if it is not there.
#[cfg(feature = "nvrtc")]
pub(crate) fn user_op(source: &UserOpSource<'_>) -> Result<PathBuf, EmulatorError> {
    let device = library()?;
    let folder = device.parent().unwrap_or(&device);
    let part = format!("own_{:016x}", source.digest);
    let file = folder.join(&part).join("own.so");
    let unfit = |error: io::Error| EmulatorError::NoFolder(format!("{}: {error}", file.display()));
    fs::create_dir_all(folder.join(&part)).map_err(unfit)?;
    // One thread builds, others wait for it.
    let building = File::create(folder.join(&part).join("lock")).map_err(unfit)?;
    building.lock().map_err(unfit)?;
    if !file.exists() {
        fs::write(folder.join(&part).join("user_op.cuh"), source.header()).map_err(unfit)?;
        build_user_op(folder, &part, source)?;
        fs::rename(folder.join(&part).join("built"), &file).map_err(unfit)?;
    }
    Ok(file)
}

#[cfg(feature = "nvrtc")]
fn build_user_op(folder: &Path, part: &str, source: &UserOpSource<'_>) -> Result<(), EmulatorError> {
    let defines = source.defines().map(|define| format!("-D{define}"));
    let files = UserOpSource::FILES.map(|file| format!("kernels/{file}"));
    let (include, built) = (format!("-I{part}"), format!("{part}/built"));
    let mut command: Vec<&str> = OPTIONS.iter().copied().filter(|option| *option != "-c").collect();
    command.extend(defines.iter().map(String::as_str));
    // The device has functions of the same names, in which sums are sums.
    command.extend([&include, "-fvisibility=hidden", "-Wl,-Bsymbolic", "-O0", "-shared", "-x", "c++"]);
    command.extend(files.iter().map(String::as_str));
    // The device itself, which is loaded already, has what the kernels call.
    command.extend(["-x", "none", NAME, "-o", &built]);
    let compiler = compiler();
    finish(&compiler, start(&compiler, folder, &command))
}

fn compiler() -> String {
    std::env::var("CXX").unwrap_or_else(|_| "g++".to_owned())
}

/// Where programs keep what they can make again: only the user writes there.
fn cache() -> Option<PathBuf> {
    let folder = |variable| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
    Some(cache.join("unisono"))
}

fn key(compiler: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (SOURCES, OPTIONS, compiler, std::env::consts::ARCH).hash(&mut hasher);
    hasher.finish()
}

fn write_sources(folder: &Path) -> io::Result<()> {
    for (path, text) in SOURCES {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap_or(folder))?;
        fs::write(path, text)?;
    }
    Ok(())
}

/// Compiles every file, as many at once as there are cores, and links them.
fn build(compiler: &str, folder: &Path) -> Result<(), EmulatorError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let compiled: Vec<&str> = SOURCES
        .iter()
        .map(|(path, _)| *path)
        .filter(|path| path.ends_with(".cpp") || path.ends_with(".cu"))
        .collect();
    for some in compiled.chunks(cores) {
        let running: Vec<_> = some.iter().map(|path| start(compiler, folder, &compilation(path))).collect();
        let ended: Vec<_> = running.into_iter().map(|child| finish(compiler, child)).collect();
        ended.into_iter().collect::<Result<Vec<()>, _>>()?;
    }
    let objects = compiled.iter().map(|path| object(path));
    let soname = format!("-Wl,-soname,{NAME}");
    // Its threads run on when nobody holds it any more.
    let link = ["-shared", "-pthread", "-Wl,-z,nodelete", &soname, "-o", "built"]
        .map(str::to_owned)
        .into_iter()
        .chain(objects);
    finish(compiler, start(compiler, folder, &link.collect::<Vec<_>>()))
}

fn compilation(path: &str) -> Vec<String> {
    // Kernels of all types take longer to optimise than they run; the trainer's run again and again.
    let level = if path.ends_with(".cu") && !path.contains("model_") { "-O0" } else { "-O1" };
    let object = object(path);
    let own = [level, "-x", "c++", path, "-o", &object];
    OPTIONS.iter().copied().chain(own).map(str::to_owned).collect()
}

fn object(path: &str) -> String {
    format!("{path}.o")
}

fn start(compiler: &str, folder: &Path, arguments: &[impl AsRef<OsStr>]) -> io::Result<Child> {
    let mut command = Command::new(compiler);
    command
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command.spawn()
}

fn finish(compiler: &str, child: io::Result<Child>) -> Result<(), EmulatorError> {
    let absent = |error: io::Error| EmulatorError::NoCompiler {
        program: compiler.to_owned(),
        reason: error.to_string(),
    };
    let output = child.map_err(absent)?.wait_with_output().map_err(absent)?;
    if output.status.success() {
        return Ok(());
    }
    Err(EmulatorError::Refused { said: String::from_utf8_lossy(&output.stderr).into_owned() })
}
