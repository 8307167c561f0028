//! Files of ranks that are named on the command line.

use std::path::{Path, PathBuf};
use unisono_transports::text::printable;

/// File name suffix of traces.
pub(crate) const TRACE_SUFFIX: &str = ".trace.json";

/// The files named, and of folders named the ordinary files whose names are wanted. Others may
/// write such a folder, and a pipe or a device in it has no end.
pub(crate) fn expand_paths(paths: &[PathBuf], is_wanted: fn(&str) -> bool) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    for path in paths {
        match path.is_dir() {
            true => files.extend(files_in_dir(path, is_wanted)?),
            false => files.push(path.clone()),
        }
    }
    Ok(files)
}

fn files_in_dir(folder: &Path, is_wanted: fn(&str) -> bool) -> Result<Vec<PathBuf>, String> {
    let failed = |error| format!("{}: {error}", folder.display());
    let entries = std::fs::read_dir(folder).map_err(failed)?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()).map_err(failed));
    let mut paths = paths.collect::<Result<Vec<_>, _>>()?;
    paths.retain(|path| is_wanted(&path.to_string_lossy()) && path.is_file());
    // The system lists a folder in any order, and the output must not depend on that.
    paths.sort();
    Ok(paths)
}

/// Separates the contents of files from the errors of files that could not be read. A damaged file
/// does not prevent the use of the others.
pub(crate) fn partition<T>(read: impl Iterator<Item = Result<T, String>>) -> (Vec<T>, Vec<String>) {
    let (mut intact, mut damaged) = (Vec::new(), Vec::new());
    for file in read {
        match file {
            Ok(file) => intact.push(file),
            Err(why) => damaged.push(why),
        }
    }
    (intact, damaged)
}

/// Prints which files are left out, and why.
pub(crate) fn print_damaged(damaged: &[String]) {
    damaged.iter().for_each(|why| eprintln!("left out: {}", printable(why)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn pipes_and_devices_of_a_folder_are_not_read() {
        let folder = std::env::temp_dir().join(format!("unisono-cli-files-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = |name: &str| folder.join(name);
        std::fs::write(path("record.json"), "").unwrap();
        symlink("/dev/zero", path("endless.json")).unwrap();
        symlink("nothing", path("broken.json")).unwrap();
        let (pipe, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600));
        rustix::fs::mknodat(rustix::fs::CWD, path("pipe.json"), pipe, mode, 0).unwrap();
        let found = expand_paths(std::slice::from_ref(&folder), |name| name.ends_with(".json"));
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found, Ok(vec![path("record.json")]));
    }
}
