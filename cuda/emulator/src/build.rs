//! Builds the emulator: once for each version of the sources and each compiler.

use crate::objects::{Objects, Wanted, object};
use crate::sources::SOURCES;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
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
    /// The cache is `$XDG_CACHE_HOME/unisono` or `~/.cache/unisono`. If this user cannot write it,
    /// or another can, it is a folder of this user among the temporary files. One process builds at
    /// a time, and others wait for it. A file that another user could have written is built anew.
    ///
    /// # Errors
    /// There is no compiler, it refuses a source, or there is no folder that only this user writes.
    pub fn build(&self) -> Result<PathBuf, BuildError> {
        let compiler = compiler();
        let cache = cache()?;
        let folder = cache.join(format!("cuda-emulator-{:016x}", self.key(&compiler)));
        let file = folder.join(NAME);
        let unfit = |error: io::Error| BuildError::NoFolder(format!("{}: {error}", folder.display()));
        make_own_folder(&folder)?;
        if !is_only_written_by_user(&file) {
            let building = File::create(folder.join("lock")).map_err(unfit)?;
            building.lock().map_err(unfit)?;
            if !is_only_written_by_user(&file) {
                self.write_sources(&folder).map_err(unfit)?;
                self.compile(&compiler, &folder)?;
                keep(&folder.join("built"), &file).map_err(unfit)?;
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
        make_own_folder(&folder)?;
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
        make_own_folder(&part)?;
        let building = File::create(part.join("lock")).map_err(unfit)?;
        building.lock().map_err(unfit)?;
        if !is_only_written_by_user(&file) {
            fs::write(part.join(kernels.header.0), &kernels.header.1).map_err(unfit)?;
            compile_user_kernels(folder, kernels)?;
            keep(&part.join("built"), &file).map_err(unfit)?;
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
        let emulator = SOURCES.iter().map(|(name, text)| (format!("emulator/{name}"), *text));
        emulator.chain(self.kernels.iter().map(|(name, text)| (format!("kernels/{name}"), *text)))
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
        let options = [if is_slow { "-O0" } else { "-O1" }, "-x", "c++", path];
        OPTIONS.iter().copied().chain(options).map(str::to_owned).collect()
    }
}

fn compile_user_kernels(folder: &Path, kernels: &UserKernels) -> Result<(), BuildError> {
    let defines = kernels.defines.iter().map(|define| format!("-D{define}"));
    let include = format!("-I{}", kernels.name);
    let mut arguments: Vec<String> =
        OPTIONS.iter().filter(|option| **option != "-c").map(|&option| option.to_owned()).collect();
    arguments.extend(defines);
    // The emulator has functions of the same names, for built-in operations: bind to the own ones.
    let options = [&include, "-fvisibility=hidden", "-Wl,-Bsymbolic", "-O0", "-shared", "-x", "c++"];
    arguments.extend(options.map(str::to_owned));
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

/// Returns a folder for libraries that are loaded later, so only this user may write it.
fn cache() -> Result<PathBuf, BuildError> {
    let folder = |variable| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || Some(folder("HOME")?.join(".cache"));
    let usual = folder("XDG_CACHE_HOME").or_else(home).map(|folder| folder.join("unisono"));
    match usual {
        Some(cache) if can_write(&cache) && is_only_written_by_user(&cache) => Ok(cache),
        _ => cache_of_user(&std::env::temp_dir()),
    }
}

/// Returns true if files can be made in a folder, which is made first if it is not there.
fn can_write(folder: &Path) -> bool {
    let probe = folder.join(format!("probe-{}-{:?}", std::process::id(), std::thread::current().id()));
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.and_then(|()| File::create(&probe)).and_then(|_| fs::remove_file(&probe)).is_ok()
}

/// Returns a folder of this user among those of all users. Refuses one that another user made, may
/// write, or could put another folder in the place of.
fn cache_of_user(among: &Path) -> Result<PathBuf, BuildError> {
    let unfit = |path: &Path, what: &dyn std::fmt::Display| {
        BuildError::NoFolder(format!("{}: {what}; set XDG_CACHE_HOME", path.display()))
    };
    let parent = fs::metadata(among).map_err(|error| unfit(among, &error))?;
    if parent.mode() & OTHERS_WRITE != 0 && parent.mode() & STICKY == 0 {
        return Err(unfit(among, &"another user can replace folders in it"));
    }
    let folder = among.join(format!("unisono-{}", own_uid().map_err(|error| unfit(among, &error))?));
    make_own_folder(&folder)?;
    Ok(folder)
}

/// Makes a folder of this user, unless it is there, and refuses one that another user made or may
/// write.
pub(crate) fn make_own_folder(folder: &Path) -> Result<(), BuildError> {
    let unfit = |what: &dyn std::fmt::Display| {
        BuildError::NoFolder(format!("{}: {what}; remove it, or set XDG_CACHE_HOME", folder.display()))
    };
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(unfit(&error)),
        _ if !is_only_written_by_user(folder) => Err(unfit(&"another user can write it")),
        _ => Ok(()),
    }
}

/// Returns true for a file or folder, not a link, of this user that no other user may write.
pub(crate) fn is_only_written_by_user(path: &Path) -> bool {
    let found = fs::symlink_metadata(path).and_then(|found| Ok((own_uid()?, found)));
    found.is_ok_and(|(uid, found)| {
        !found.is_symlink() && found.uid() == uid && found.mode() & OTHERS_WRITE == 0
    })
}

/// Gives a file that was built its name in the cache. Compilers let the group write it if the mask
/// of this process does.
pub(crate) fn keep(built: &Path, file: &Path) -> io::Result<()> {
    fs::set_permissions(built, fs::Permissions::from_mode(0o700))?;
    fs::rename(built, file)
}

fn own_uid() -> io::Result<u32> {
    Ok(fs::metadata("/proc/self")?.uid())
}

/// The bits of a mode that let the group or all users write.
const OTHERS_WRITE: u32 = 0o022;
/// The bit of a folder in which only owners may replace what is theirs.
const STICKY: u32 = 0o1000;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_among_users_is_private() {
        let among = std::env::temp_dir().join(format!("unisono-cache-test-{}", std::process::id()));
        fs::create_dir_all(&among).unwrap();
        let cache = cache_of_user(&among).unwrap();
        assert_eq!(fs::metadata(&cache).unwrap().mode() & 0o777, 0o700);
        assert_eq!(cache_of_user(&among).unwrap(), cache);
        fs::set_permissions(&cache, fs::Permissions::from_mode(0o777)).unwrap();
        let refused = cache_of_user(&among).unwrap_err().to_string();
        assert!(refused.contains("another user can write it"), "{refused}");
        fs::remove_dir(&cache).unwrap();
        // A link of another user would lead to a folder of that user's choice.
        std::os::unix::fs::symlink("/", &cache).unwrap();
        assert!(cache_of_user(&among).is_err());
        fs::remove_dir_all(&among).unwrap();
    }

    #[test]
    fn folder_in_which_others_replace_folders_is_refused() {
        let among = std::env::temp_dir().join(format!("unisono-cache-among-{}", std::process::id()));
        fs::create_dir_all(&among).unwrap();
        fs::set_permissions(&among, fs::Permissions::from_mode(0o777)).unwrap();
        let refused = cache_of_user(&among).unwrap_err().to_string();
        assert!(refused.contains("another user can replace folders in it"), "{refused}");
        fs::set_permissions(&among, fs::Permissions::from_mode(0o1777)).unwrap();
        cache_of_user(&among).unwrap();
        fs::remove_dir_all(&among).unwrap();
    }

    /// Libraries are loaded, and what is loaded runs as this user.
    #[test]
    fn only_files_that_no_other_user_writes_are_loaded() {
        let folder = std::env::temp_dir().join(format!("unisono-cache-files-{}", std::process::id()));
        make_own_folder(&folder).unwrap();
        let file = folder.join("file");
        assert!(!is_only_written_by_user(&file), "it is missing");
        fs::write(&file, "").unwrap();
        for (mode, is_own) in [(0o700, true), (0o755, true), (0o775, false), (0o757, false)] {
            for path in [&file, &folder] {
                fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
                assert_eq!(is_only_written_by_user(path), is_own, "{mode:o} {}", path.display());
            }
            assert_eq!(make_own_folder(&folder).is_ok(), is_own, "{mode:o}");
        }
        let link = folder.join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(!is_only_written_by_user(&link));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        if std::os::unix::fs::chown(&file, Some(65_533), None).is_ok() {
            assert!(!is_only_written_by_user(&file), "another user's");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn unwritable_cache_is_noticed() {
        assert!(can_write(&std::env::temp_dir()));
        assert!(!can_write(Path::new("/proc/unisono")));
        assert!(!can_write(Path::new("/dev/null/unisono")));
    }
}
