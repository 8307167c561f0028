//! Files and folders that other users can neither read nor write.

use crate::sys::random::random_hex;
use crate::sys::user;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
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

/// Writes a new file that only this user may read and write. It appears under its name at once with
/// all its bytes, and replaces no other.
///
/// # Errors
/// As [`create_new`].
pub fn publish(path: &Path, bytes: &[u8]) -> Result<()> {
    // The name is random, so nobody can create a file with this name beforehand.
    let random = random_hex::<8>().map_err(Error::other)?;
    let mut name = OsString::from(path.file_name().ok_or(ErrorKind::InvalidInput)?);
    name.push(format!(".{random}"));
    let draft = path.with_file_name(name);
    let mut file = create_new(&draft)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    // A link makes the complete file appear at once, and does not replace an older file.
    let linked = written.and_then(|()| fs::hard_link(&draft, path));
    fs::remove_file(&draft)?;
    linked
}

/// Makes a folder that only this user may access, unless it is there, and [checks](check_folder)
/// it.
///
/// # Errors
/// As [`check_folder`], and the system's error if there is none and none can be made.
pub fn make_folder(path: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => check_folder(path),
    }
}

/// Fails unless this is a folder of this user that others may not access.
///
/// # Errors
/// [`ErrorKind::PermissionDenied`] without a code of the system if another user made it, if others
/// may access it, or if it is a link or a file; else the system's error.
pub fn check_folder(path: &Path) -> Result<()> {
    let found = fs::symlink_metadata(path)?;
    if !found.is_dir() {
        return Err(refused("it is no folder".to_owned()));
    }
    check_access(&found, user::is_own, 0o077)
}

/// Returns the text of a file that a process of this user made with [`create_new`] or [`publish`].
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
    check_access(&found, is_owner, forbidden)?;
    let mut text = String::new();
    file.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    match text.len() as u64 > BYTES_MAX {
        true => Err(refused(format!("it has more than {BYTES_MAX} bytes"))),
        false => Ok(text),
    }
}

/// Fails unless a file or folder belongs to `is_owner` and has none of the `forbidden` bits of
/// access.
fn check_access(found: &Metadata, is_owner: impl Fn(u32) -> Result<bool>, forbidden: u32) -> Result<()> {
    if !is_owner(found.uid())? {
        let user = user::own();
        return Err(refused(format!("it belongs to user {} and this process to user {user}", found.uid())));
    }
    if found.mode() & forbidden != 0 {
        let (mode, right) = (found.mode() & 0o777, if found.is_dir() { "700" } else { "600" });
        return Err(refused(format!("other users may access it (mode {mode:03o}): `chmod {right}` it")));
    }
    Ok(())
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
        for (mode, as_own, secret) in [
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
                [(refusal(read_own(&path)), as_own), (refusal(read_secret(&path)), secret)]
            {
                assert_eq!(refusal.is_none(), accepted, "{mode:o}: {refusal:?}");
                assert!(refusal.is_none_or(|why| why.contains(&format!("mode {mode:o}"))));
            }
        }
    }

    #[test]
    fn links_pipes_devices_and_long_files_are_refused() {
        let folder = Folder::new("private-kinds");
        let path = |name: &str| folder.0.join(name);
        create_new(&path("file")).unwrap();
        symlink(path("file"), path("link")).unwrap();
        symlink("/dev/zero", path("endless")).unwrap();
        let (pipe, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600));
        rustix::fs::mknodat(rustix::fs::CWD, path("pipe"), pipe, mode, 0).unwrap();
        create_new(&path("long")).unwrap().set_len(BYTES_MAX + 1).unwrap();
        for (name, why) in [
            ("link", "it is a link"),
            ("endless", "it is a link"),
            ("pipe", "it is no ordinary file"),
            (".", "it is no ordinary file"),
            ("long", "more than 4096 bytes"),
        ] {
            let error = read_own(&path(name)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{name}");
            assert!(error.to_string().contains(why), "{name}: {error}");
        }
        assert_eq!(read_own(&path("missing")).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(read_secret(&path("link")).unwrap(), "");
        for name in ["endless", "pipe", "long"] {
            assert_eq!(read_secret(&path(name)).unwrap_err().kind(), ErrorKind::PermissionDenied, "{name}");
        }
    }

    #[test]
    fn published_file_is_whole_and_replaces_none() {
        let folder = Folder::new("private-publish");
        let path = folder.0.join("file");
        let ended: Vec<Result<()>> = std::thread::scope(|scope| {
            let path = &path;
            let start = |writer: usize| {
                scope.spawn(move || publish(path, writer.to_string().repeat(1000).as_bytes()))
            };
            let writers: Vec<_> = (0..8).map(start).collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        let kinds = ended.iter().map(|ended| ended.as_ref().err().map(Error::kind));
        let (first, others): (Vec<_>, Vec<_>) = kinds.enumerate().partition(|(_, kind)| kind.is_none());
        assert!(others.iter().all(|(_, kind)| *kind == Some(ErrorKind::AlreadyExists)), "{others:?}");
        let [(writer, _)] = first[..] else { panic!("{first:?}") };
        assert_eq!(read_own(&path).unwrap(), writer.to_string().repeat(1000));
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn folders_that_others_access_are_refused() {
        let folder = Folder::new("private-folders");
        let path = folder.0.join("folder");
        make_folder(&path).unwrap();
        make_folder(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        for mode in [0o755, 0o710, 0o702, 0o1777] {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let error = make_folder(&path).unwrap_err();
            assert!(
                error.raw_os_error().is_none() && error.to_string().contains("`chmod 700` it"),
                "{error}"
            );
        }
        set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        symlink(&path, folder.0.join("link")).unwrap();
        create_new(&folder.0.join("file")).unwrap();
        for name in ["link", "file"] {
            let error = make_folder(&folder.0.join(name)).unwrap_err();
            assert!(error.to_string().contains("it is no folder"), "{name}: {error}");
        }
        assert_eq!(make_folder(&folder.0.join("missing/folder")).unwrap_err().kind(), ErrorKind::NotFound);
        if std::os::unix::fs::chown(&path, Some(65_533), None).is_ok() {
            let error = make_folder(&path).unwrap_err().to_string();
            assert!(error.contains("belongs to user 65533"), "{error}");
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
