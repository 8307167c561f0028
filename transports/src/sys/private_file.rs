//! Files that other users neither read nor write.

use crate::sys::user;
use std::fs::{self, File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Creates a new file that only this user may read and write. It replaces a file or a link of this
/// name, and does not follow the link.
///
/// # Errors
/// Returns the system's error.
pub fn create(path: &Path) -> Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => create_new(path),
    }
}

/// Creates a file that only this user may read and write, and that was not there before.
///
/// # Errors
/// Returns the system's error, [`ErrorKind::AlreadyExists`] for a name that is taken.
pub fn create_new(path: &Path) -> Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Returns the text of a file that a process of this user made with [`create_new`].
///
/// # Errors
/// [`ErrorKind::PermissionDenied`] if another user made it, if others may read or write it, or if
/// it is a link, a pipe or anything else than a short file; else the system's error.
pub fn read_own(path: &Path) -> Result<String> {
    let opened = open(path, libc::O_NOFOLLOW);
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => refused("it is a link".to_owned()),
        _ => error,
    })?;
    read(file, user::is_own, 0o077)
}

/// Returns the text of a short file with a secret, which this user or root made for this user and,
/// if its mode says so, for readers of its group. The path may be a link.
///
/// # Errors
/// As [`read_own`].
pub fn read_secret(path: &Path) -> Result<String> {
    read(open(path, 0)?, |uid| Ok(uid == 0 || user::is_own(uid)?), 0o037)
}

/// Opens a file without waiting for the writer of a pipe.
fn open(path: &Path, flags: i32) -> Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | flags).open(path)
}

fn read(file: File, is_owner: impl Fn(u32) -> Result<bool>, forbidden: u32) -> Result<String> {
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(refused("it is no ordinary file".to_owned()));
    }
    if !is_owner(found.uid())? {
        let own = rustix::process::geteuid().as_raw();
        return Err(refused(format!("it belongs to user {} and this process to user {own}", found.uid())));
    }
    if found.mode() & forbidden != 0 {
        let mode = found.mode() & 0o777;
        return Err(refused(format!("other users may access it (mode {mode:03o}): `chmod 600` it")));
    }
    let mut text = String::new();
    file.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    match text.len() as u64 > BYTES_MAX {
        true => Err(refused(format!("it has more than {BYTES_MAX} bytes"))),
        false => Ok(text),
    }
}

fn refused(what: String) -> Error {
    Error::new(ErrorKind::PermissionDenied, what)
}

/// The longest file that is read.
const BYTES_MAX: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions};
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("unisono-{name}-{}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn created_file_is_private_and_follows_no_link() {
        let folder = Folder::new("private-create");
        let (target, path) = (folder.0.join("target"), folder.0.join("file"));
        fs::write(&target, "before").unwrap();
        symlink(&target, &path).unwrap();
        assert_eq!(create_new(&path).unwrap_err().kind(), ErrorKind::AlreadyExists);
        create(&path).unwrap().write_all(b"text").unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "before");
        assert_eq!(fs::symlink_metadata(&path).unwrap().mode() & 0o177_777, 0o100_600);
        assert_eq!(read_own(&path).unwrap(), "text");
        drop(create(&path).unwrap());
        assert_eq!(read_own(&path).unwrap(), "");
    }

    #[test]
    fn files_that_others_access_are_refused() {
        let folder = Folder::new("private-modes");
        let path = folder.0.join("file");
        create_new(&path).unwrap().write_all(b"text").unwrap();
        for (mode, own, secret) in [
            (0o600, true, true),
            (0o400, true, true),
            (0o640, false, true),
            (0o644, false, false),
            (0o660, false, false),
            (0o602, false, false),
        ] {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let refusal = |read: Result<String>| read.err().map(|error| error.to_string());
            for (refusal, accepted) in
                [(refusal(read_own(&path)), own), (refusal(read_secret(&path)), secret)]
            {
                assert_eq!(refusal.is_none(), accepted, "{mode:o}: {refusal:?}");
                assert!(refusal.is_none_or(|why| why.contains(&format!("mode {mode:o}"))));
            }
        }
    }

    #[test]
    fn links_pipes_devices_and_long_files_are_refused() {
        let folder = Folder::new("private-kinds");
        let at = |name: &str| folder.0.join(name);
        create_new(&at("file")).unwrap();
        symlink(at("file"), at("link")).unwrap();
        symlink("/dev/zero", at("endless")).unwrap();
        let (pipe, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600));
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), pipe, mode, 0).unwrap();
        create_new(&at("long")).unwrap().set_len(BYTES_MAX + 1).unwrap();
        for (name, why) in [
            ("link", "it is a link"),
            ("endless", "it is a link"),
            ("pipe", "it is no ordinary file"),
            (".", "it is no ordinary file"),
            ("long", "more than 4096 bytes"),
        ] {
            let error = read_own(&at(name)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{name}");
            assert!(error.to_string().contains(why), "{name}: {error}");
        }
        assert_eq!(read_own(&at("missing")).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(read_secret(&at("link")).unwrap(), "");
        for name in ["endless", "pipe", "long"] {
            assert_eq!(read_secret(&at(name)).unwrap_err().kind(), ErrorKind::PermissionDenied, "{name}");
        }
    }

    #[test]
    fn files_of_another_user_are_refused() {
        let folder = Folder::new("private-owner");
        let path = folder.0.join("file");
        create_new(&path).unwrap();
        if let Err(error) = std::os::unix::fs::chown(&path, Some(65_533), None) {
            return eprintln!("SKIPPED: only root can give a file away: {error}");
        }
        for read in [read_own(&path), read_secret(&path)] {
            let error = read.unwrap_err().to_string();
            assert!(error.contains("belongs to user 65533 and this process to user"), "{error}");
        }
    }
}
