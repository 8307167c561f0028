//! The environment of all stages: variables of the driver, and the folders of its libraries.

use crate::Result;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Variables of every stage.
pub(super) struct Environment {
    pub(super) variables: Vec<(String, String)>,
}

impl Environment {
    /// Returns the variables for stages that keep temporary files in `work`. With `driver`, its
    /// library is taken as the driver: the emulator under another name.
    pub(super) fn new(work: &Path, driver: Option<&Path>) -> Self {
        let cache = work.join("kernels");
        let folders: Vec<PathBuf> = match driver {
            // No other library may stand in for parts that the emulator lacks.
            Some(driver) => vec![driver.to_owned()],
            None => library_folders(),
        };
        let mut variables = vec![
            // Ranks on one GPU wait for each other: their streams must not share a queue.
            ("CUDA_DEVICE_MAX_CONNECTIONS".to_owned(), "32".to_owned()),
            // Lazy loading waits for running kernels, which may wait for each other: load all at
            // the start.
            ("CUDA_MODULE_LOADING".to_owned(), "EAGER".to_owned()),
            ("CUDA_CACHE_PATH".to_owned(), cache.display().to_string()),
            ("LD_LIBRARY_PATH".to_owned(), search_path(folders, std::env::var_os("LD_LIBRARY_PATH"))),
            // Tests open the machine's GPU.
            ("TEST_ON_GPU".to_owned(), "1".to_owned()),
        ];
        if driver.is_some() {
            variables.push(("CUDA_EMULATOR_NAME".to_owned(), "rehearsed device".to_owned()));
            variables.push(("CUDA_EMULATOR_GPUS".to_owned(), "1".to_owned()));
            variables.push(("CUDA_EMULATOR_MULTIPROCESSORS".to_owned(), "132".to_owned()));
        }
        Self { variables }
    }
}

/// Returns the folders of NVRTC and cuBLAS that Python packages and the toolkit have.
fn library_folders() -> Vec<PathBuf> {
    let mut folders = python_libraries().unwrap_or_default();
    folders.push("/usr/local/cuda/lib64".into());
    folders.into_iter().filter(|folder| folder.is_dir()).collect()
}

/// Returns the folders `site-packages/nvidia/*/lib` of the machine's Python.
fn python_libraries() -> Result<Vec<PathBuf>> {
    let script = "import site, sys; print('\\n'.join(site.getsitepackages() + [site.getusersitepackages()]))";
    let packages = crate::cargo::output(Command::new("python3").args(["-c", script]))?;
    let entries = packages.lines().filter_map(|folder| Path::new(folder).join("nvidia").read_dir().ok());
    Ok(entries.flatten().flatten().map(|package| package.path().join("lib")).collect())
}

/// Joins folders to a search path, behind them the inherited one. Folders of stubs are left out: a
/// stub has the driver's name and does nothing.
fn search_path(folders: Vec<PathBuf>, inherited: Option<std::ffi::OsString>) -> String {
    let inherited: Vec<PathBuf> = inherited.iter().flat_map(std::env::split_paths).collect();
    let real = |folder: &PathBuf| {
        !folder.components().any(|part| part.as_os_str() == "stubs") && !folder.as_os_str().is_empty()
    };
    let paths: Vec<String> = folders
        .into_iter()
        .chain(inherited)
        .filter(real)
        .map(|folder| folder.display().to_string())
        .collect();
    paths.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_path_has_no_stubs() {
        let folders = vec!["/a/lib".into(), "/cuda/lib64/stubs".into()];
        assert_eq!(search_path(folders, Some("/b:/cuda/stubs/lib::".into())), "/a/lib:/b");
    }

    #[test]
    fn environment_names_no_setting_of_the_library() {
        let work = Path::new("/tmp/work");
        for driver in [None, Some(Path::new("/tmp/driver"))] {
            let environment = Environment::new(work, driver);
            let names: Vec<&str> = environment.variables.iter().map(|(name, _)| name.as_str()).collect();
            // A rank refuses every variable with the prefix that is no setting.
            assert!(names.iter().all(|name| !name.starts_with("UNISONO_")), "{names:?}");
            assert!(names.contains(&"CUDA_DEVICE_MAX_CONNECTIONS") && names.contains(&"TEST_ON_GPU"));
        }
    }
}
