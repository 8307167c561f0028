//! Files that are written under another name and renamed when they are complete.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use unisono_nn::error::{Error, Result};

/// File under construction, beside the one that it replaces. Without [`OutputFile::publish`], the
/// earlier file stays as it was, and nothing is left.
pub(crate) struct OutputFile {
    /// Path for messages.
    path: PathBuf,
    /// File that is replaced: `path` without links.
    target: PathBuf,
    unfinished: PathBuf,
    /// Open file; `None` once it is complete.
    file: Option<BufWriter<File>>,
    is_published: bool,
}

impl OutputFile {
    /// Creates the file, in the folder of `path`.
    ///
    /// # Errors
    /// Fails if the folder takes no files, or `path` is something else than a file.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return Err(Error::file(
                path,
                "this is no file, and cannot be replaced by one: give another name",
            ));
        }
        // A rename onto a link would replace the link, and the file behind it would stay as it was.
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // The file is in the folder of the one that it replaces, because a rename does not leave a
        // file system.
        let unfinished = target.with_file_name(format!(".{name}.{}.unfinished", std::process::id()));
        let file = File::create(&unfinished).map_err(|error| Error::file(path, error))?;
        let file = Some(BufWriter::new(file));
        Ok(Self { path: path.to_owned(), target, unfinished, file, is_published: false })
    }

    /// Returns the path that the file will have.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// Returns the system's error, with the path.
    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        let file = self.file.as_mut().expect("an open file");
        file.write_all(bytes).map_err(|error| Error::file(&self.path, error))
    }

    /// Waits until all bytes are on disk.
    ///
    /// # Errors
    /// Returns the system's error, with the path.
    pub(crate) fn complete(&mut self) -> Result<()> {
        let Some(mut file) = self.file.take() else { return Ok(()) };
        // The bytes are on disk before a rename replaces the earlier file. After a crash, there is
        // one of the two and no empty one.
        let done = file.flush().and_then(|()| file.get_ref().sync_all());
        done.map_err(|error| Error::file(&self.path, error))
    }

    /// Gives the complete file its name.
    ///
    /// # Errors
    /// Returns the system's error, with the path.
    pub(crate) fn publish(mut self) -> Result<()> {
        self.complete()?;
        fs::rename(&self.unfinished, &self.target).map_err(|error| Error::file(&self.path, error))?;
        self.is_published = true;
        Ok(())
    }

    /// Writes a whole file.
    ///
    /// # Errors
    /// Returns the system's error, with the path.
    pub(crate) fn write(path: &Path, contents: impl AsRef<[u8]>) -> Result<()> {
        let mut file = Self::create(path)?;
        file.write_all(contents.as_ref())?;
        file.publish()
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if !self.is_published {
            // The error that left the file unfinished says more than one of removing it.
            let _ = fs::remove_file(&self.unfinished);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_file_leaves_the_earlier_one() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("tokens.u16"), folder.path().join("link.u16"));
        OutputFile::write(&path, b"before").unwrap();
        let mut file = OutputFile::create(&path).unwrap();
        file.write_all(b"half").unwrap();
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"before");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        OutputFile::write(&link, b"after").unwrap();
        assert_eq!((fs::read(&path).unwrap(), link.is_symlink()), (b"after".to_vec(), true));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "nothing else is left");
    }

    #[test]
    fn devices_and_folders_are_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path(), Path::new("/dev/null")] {
            let error = OutputFile::create(path).map(drop).unwrap_err().to_string();
            assert!(error.contains("this is no file"), "{error}");
        }
    }
}
