//! The key of a user, in a file of this host that only processes of the user can read.
//!
//! Ranks that meet on loopback without a secret derive one from this key. All jobs of a user share
//! one key, and each job derives its secret with a different label. If each job had its own key, a
//! rank could read the key of an earlier job before rank 0 replaces it, and would not find the
//! other ranks.

use crate::error::{Error, Result};
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use unisono_transports::net::handshake::Secret;
use unisono_transports::sys::{private_file, user};

/// A key that only processes of this user can read, and its place.
pub(super) struct UserKey {
    key: Secret,
    path: PathBuf,
}

impl UserKey {
    /// Returns the key of this user. The first process that needs the key makes it. Returns `None`
    /// if there is no folder for it, because all are missing, read-only, or closed to this user.
    ///
    /// # Errors
    /// Fails if there is a key or a folder that another user has made or could change, or if the
    /// system fails. Another user may have caused such a failure, so the job must not go on without
    /// a key.
    pub(super) fn find(var: &impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        // If the user id is shared with other users, its files may belong to any of them.
        let is_distinct = user::own_is_distinct();
        if !is_distinct.map_err(|error| Error::system("cannot tell the users of this host apart", error))? {
            return Ok(None);
        }
        for folder in folders(var) {
            let path = folder.join(NAME);
            match read_or_make(&folder, &path) {
                Ok(key) => return Ok(Some(Self { key, path })),
                Err(error) if is_unavailable(&error) => {
                    tracing::info!(%error, path = %path.display(), "no key of this user here");
                }
                Err(error) => return Err(unusable(&path, &error)),
            }
        }
        Ok(None)
    }

    /// Returns the secret of a job of this user.
    pub(super) fn secret_of(&self, job: &str) -> Secret {
        self.key.derive(format!("job {job}").as_bytes())
    }
}

/// Says where the secret comes from, for an error about ranks with another secret.
impl fmt::Display for UserKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "this rank has no UNISONO_SECRET, so its secret comes from {}, the key of its user: ranks of other users, \
             with another XDG_RUNTIME_DIR or TMPDIR, or in a container with other files need the same UNISONO_SECRET",
            self.path.display()
        )
    }
}

/// Returns the folders in which the key may be. The preferred one comes first.
fn folders(var: &impl Fn(&str) -> Option<String>) -> impl Iterator<Item = PathBuf> {
    let absolute = |name: &str| var(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let runtime = absolute("XDG_RUNTIME_DIR").filter(|folder| private_file::check_folder(folder).is_ok());
    let temporary = absolute("TMPDIR").unwrap_or_else(|| "/tmp".into());
    let of_user = temporary.join(format!("unisono-{}", user::own()));
    runtime.map(|folder| folder.join("unisono")).into_iter().chain([of_user])
}

/// Reads the key, or makes it if there is none. If several ranks do this at once, the first file
/// that appears stays.
fn read_or_make(folder: &Path, path: &Path) -> io::Result<Secret> {
    private_file::make_folder(folder)?;
    let text = match private_file::read_own(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let key = Secret::random().map_err(io::Error::other)?.to_hex();
            match private_file::publish(path, key.as_bytes()) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                _ => private_file::read_own(path)?,
            }
        }
        found => found?,
    };
    let damaged = || io::Error::new(ErrorKind::InvalidData, "it does not hold 64 hexadecimal digits");
    Secret::from_hex(text.trim()).ok_or_else(damaged)
}

/// Returns true for errors of a system that has no place for the key. Other users cannot cause
/// these errors.
fn is_unavailable(error: &io::Error) -> bool {
    let of_system = error.raw_os_error().is_some();
    of_system
        && matches!(
            error.kind(),
            ErrorKind::NotFound
                | ErrorKind::NotADirectory
                | ErrorKind::PermissionDenied
                | ErrorKind::ReadOnlyFilesystem
                | ErrorKind::Unsupported
        )
}

fn unusable(path: &Path, error: &io::Error) -> Error {
    Error::invalid_usage(format!(
        "ranks that meet on loopback without UNISONO_SECRET take their secret from the key of their user, {}, which \
         cannot be used: {error}; remove the file or its folder, or set UNISONO_SECRET to the same 64 hexadecimal \
         digits on all ranks (for example from `openssl rand -hex 32`)",
        path.display()
    ))
}

/// The name of the file.
const NAME: &str = "key";

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    /// A temporary folder of a test.
    pub(crate) struct Folder(pub(crate) PathBuf);

    impl Folder {
        pub(crate) fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("unisono-{name}-{}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }

        /// Returns an environment in which this is the temporary folder.
        pub(crate) fn env(&self) -> impl Fn(&str) -> Option<String> {
            let path = self.0.display().to_string();
            move |name| (name == "TMPDIR").then(|| path.clone())
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Returns true if users of this host have different ids. Otherwise there is no key.
    pub(crate) fn has_key() -> bool {
        let has_key = user::own_is_distinct().unwrap();
        if !has_key {
            eprintln!("SKIPPED: this user has no number of its own");
        }
        has_key
    }

    #[test]
    fn ranks_that_start_at_once_have_one_key() {
        if !has_key() {
            return;
        }
        let folder = Folder::new("key-race");
        let keys: Vec<String> = std::thread::scope(|scope| {
            let find = || UserKey::find(&folder.env()).unwrap().unwrap().secret_of("job").to_hex();
            let ranks: Vec<_> = (0..16).map(|_| scope.spawn(find)).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
        let key = UserKey::find(&folder.env()).unwrap().unwrap();
        assert_ne!(key.secret_of("other").to_hex(), keys[0]);
        let found = fs::metadata(&key.path).unwrap();
        let parent = fs::metadata(key.path.parent().unwrap()).unwrap();
        assert_eq!([found.mode() & 0o777, parent.mode() & 0o777], [0o600, 0o700]);
        assert_ne!(fs::read_to_string(&key.path).unwrap(), keys[0], "jobs derive theirs");
    }

    #[test]
    fn runtime_folder_is_used_if_only_this_user_has_it() {
        if !has_key() {
            return;
        }
        let (runtime, temporary) = (Folder::new("key-runtime"), Folder::new("key-temporary"));
        let [home, other] = [&runtime, &temporary].map(|folder| folder.0.display().to_string());
        let env = |name: &str| match name {
            "XDG_RUNTIME_DIR" => Some(home.clone()),
            "TMPDIR" => Some(other.clone()),
            _ => None,
        };
        for (mode, place) in [(0o700, &runtime), (0o755, &temporary)] {
            fs::set_permissions(&runtime.0, Permissions::from_mode(mode)).unwrap();
            let path = UserKey::find(&env).unwrap().unwrap().path;
            assert!(path.starts_with(&place.0), "{mode:o}: {}", path.display());
        }
    }

    #[test]
    fn folder_that_somebody_else_made_first_is_an_error() {
        if !has_key() {
            return;
        }
        let folder = Folder::new("key-taken");
        let of_user = folder.0.join(format!("unisono-{}", user::own()));
        let refusal = || UserKey::find(&folder.env()).err().expect("it is not private").to_string();
        symlink("/", &of_user).unwrap();
        assert!(refusal().contains("it is no folder"), "{}", refusal());
        fs::remove_file(&of_user).unwrap();
        fs::create_dir(&of_user).unwrap();
        fs::set_permissions(&of_user, Permissions::from_mode(0o777)).unwrap();
        assert!(refusal().contains("mode 777") && refusal().contains("set UNISONO_SECRET"), "{}", refusal());
        fs::set_permissions(&of_user, Permissions::from_mode(0o700)).unwrap();
        fs::write(of_user.join(NAME), "5a5a").unwrap();
        fs::set_permissions(of_user.join(NAME), Permissions::from_mode(0o600)).unwrap();
        assert!(refusal().contains("64 hexadecimal digits; remove the file"), "{}", refusal());
    }

    #[test]
    fn system_without_a_folder_has_no_key() {
        for nowhere in ["/proc/unisono", "/dev/null"] {
            let env = |name: &str| (name == "TMPDIR").then(|| nowhere.to_owned());
            assert!(UserKey::find(&env).unwrap().is_none(), "{nowhere}");
        }
    }
}
