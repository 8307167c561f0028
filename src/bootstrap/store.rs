//! Rendezvous through a key-value store.

use crate::bootstrap::UniqueId;
use crate::bootstrap::env::shared_secret;
use crate::bootstrap::invitation::Invitation;
use crate::bootstrap::unique_id::local_address_toward;
use crate::bootstrap::user_key::UserKey;
use crate::config::{Config, Interface};
use crate::error::bootstrap::BootstrapError;
use crate::error::{Error, ErrorKind, Result};
use crate::log::warn_user;
use crate::schedule::Rank;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::Once;
use std::thread;
use std::time::{Duration, Instant};
use unisono_transports::net::handshake::Secret;
use unisono_transports::sys::private_file;

/// A key-value store that all ranks reach, such as etcd, Redis, or PyTorch's store.
///
/// Ranks meet through the store: rank 0 writes a value, and the other ranks read it. If
/// `UNISONO_SECRET`, `UNISONO_SECRET_FILE` or `UNISONO_ID` gives the ranks a secret, the value is
/// an address and a nonce. Then it is safe if others can read and write the store, because the
/// worst that they can do is to keep the ranks from meeting. If rank 0 listens on loopback, the
/// store is safe without such a secret, too, because the ranks then derive one from the key of
/// their user, as [`RankInfo::from_env`](crate::bootstrap::RankInfo::from_env) does.
///
/// Otherwise the value holds a new secret in plain text. Then nobody but the ranks of the job must
/// be able to read or write the store, or to read its connections. Somebody who can read the store
/// can join the job, and read and change its data. Somebody who can write the store can lead the
/// ranks into another job. Rank 0 warns of this unless the store [is private](Store::is_private).
pub trait Store {
    /// Writes a value. Each key is written once.
    ///
    /// # Errors
    /// The errors of the store.
    fn set(&self, key: &str, value: &[u8]) -> io::Result<()>;

    /// Returns a value. Waits up to `timeout` until the key has one.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if nobody has written the key by then, and the errors of the
    /// store.
    fn get(&self, key: &str, timeout: Duration) -> io::Result<Vec<u8>>;

    /// Returns the place of a key that has a value, and the age of the value if it is known.
    ///
    /// Ranks that do not meet rank 0 at the address in the value add this text to their error,
    /// because the value may come from an earlier job.
    fn describe(&self, key: &str) -> String {
        format!("`{key}` in the store")
    }

    /// Returns true if only processes of this user can read and write values, so that they may
    /// hold a secret.
    fn is_private(&self) -> bool {
        false
    }
}

/// A folder as a store, on a file system that all ranks share. Each key is a file, which only its
/// user may read and write.
///
/// A key that an earlier job has written is not overwritten, so each job needs its own folder or
/// names. If such a file stops a rank, the error shows the path and age of the file.
///
/// A file of another user is refused, and so is a link, a pipe, or a file that others may access.
/// Users with write access to the folder can remove files, which keeps the ranks from meeting.
#[derive(Clone, Debug)]
pub struct FileStore(PathBuf);

impl FileStore {
    /// Returns the store in `folder`, which must exist.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self(folder.into())
    }

    fn path(&self, key: &str) -> PathBuf {
        self.0.join(file_name(key))
    }
}

/// Returns the name of the file of a key, which differs for different keys. Letters, digits, `-`
/// and `_` stay, a slash becomes `+`, and other bytes become `%` with two hexadecimal digits.
fn file_name(key: &str) -> String {
    let encoded = |byte: u8| match byte {
        b'-' | b'_' => char::from(byte).to_string(),
        byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        b'/' => "+".to_owned(),
        byte => format!("%{byte:02x}"),
    };
    key.bytes().map(encoded).collect()
}

impl Store for FileStore {
    fn set(&self, key: &str, value: &[u8]) -> io::Result<()> {
        private_file::publish(&self.path(key), value).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => io::Error::new(
                error.kind(),
                format!("{} by an earlier job, is there already; {STALE_REMEDY}", self.describe(key)),
            ),
            _ => error,
        })
    }

    fn get(&self, key: &str, timeout: Duration) -> io::Result<Vec<u8>> {
        let (begun, path) = (Instant::now(), self.path(key));
        loop {
            match private_file::read_own(&path) {
                // Only a file that is missing may still appear. A file that is refused stays wrong.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display())));
                }
                Ok(found) => return Ok(found.into_bytes()),
            }
            if begun.elapsed() > timeout {
                return Err(io::ErrorKind::TimedOut.into());
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn describe(&self, key: &str) -> String {
        let path = self.path(key);
        let written = fs::symlink_metadata(&path).and_then(|file| file.modified());
        match written.ok().and_then(|written| written.elapsed().ok()) {
            Some(age) => format!("{}, written {:.1} s ago", path.display(), age.as_secs_f64()),
            None => format!("{}, written", path.display()),
        }
    }

    fn is_private(&self) -> bool {
        true
    }
}

/// The id of a job, with the way in which a rank got it.
pub(crate) struct StoredId {
    pub(crate) id: UniqueId,
    /// The place from which a rank other than 0 read the id, and the reason to suspect the id.
    origin: Option<String>,
}

impl StoredId {
    /// Adds the origin of the id to the error of a rank, if an id of an earlier job would explain
    /// the error.
    pub(crate) fn explain(&self, error: Error) -> Error {
        match &self.origin {
            Some(origin) => error.map_bootstrap(|failure| failure.with_origin(origin)),
            None => error,
        }
    }
}

/// Returns the id at which the ranks of `name` meet. Rank 0 makes the id and writes a value for it
/// into the store. Ranks that have a secret write and accept only values that reveal no secret.
pub(crate) fn exchange_id(store: &dyn Store, name: &str, rank: Rank, config: &Config) -> Result<StoredId> {
    let var = |variable: &str| std::env::var(variable).ok();
    Exchange { store, name, rank, config, secret: shared_secret(&var)?, var: &var }.run()
}

/// One rank's part in the exchange of an id through a store.
struct Exchange<'e> {
    store: &'e dyn Store,
    /// The name of the communicator.
    name: &'e str,
    rank: Rank,
    config: &'e Config,
    /// The secret that the ranks have already.
    secret: Option<Secret>,
    /// Reads the environment, which says where the key of the user is.
    var: &'e dyn Fn(&str) -> Option<String>,
}

impl Exchange<'_> {
    fn run(&self) -> Result<StoredId> {
        match self.rank {
            0 => self.write(),
            _ => self.read(),
        }
    }

    fn key(&self) -> String {
        format!("unisono/{}/id", self.name)
    }

    /// Returns bytes that are equal on all ranks that meet under this name.
    fn label(&self) -> Vec<u8> {
        format!("store {}", self.name).into_bytes()
    }

    /// Makes the id, and writes the value with which the other ranks find it.
    fn write(&self) -> Result<StoredId> {
        let place = UniqueId::on(self.config.bind_addr.unwrap_or_else(default_interface))?;
        let (value, id) = match &self.secret {
            Some(secret) => {
                let (invitation, id) = Invitation::new(place, secret, &self.label())?;
                (invitation.to_string(), id)
            }
            None => self.write_without_secret(place)?,
        };
        let (store, key) = (self.store, self.key());
        let stored = store.set(&key, value.as_bytes());
        stored.map_err(|error| failed(format!("rank 0 cannot write `{key}` to the store: {error}")))?;
        Ok(StoredId { id, origin: None })
    }

    /// Returns the value and the id of ranks that have no secret. On loopback, such ranks use the
    /// key of their user.
    fn write_without_secret(&self, place: UniqueId) -> Result<(String, UniqueId)> {
        if self.store.is_private() {
            return Ok((place.to_string(), place));
        }
        let is_local = place.address().ip().is_loopback();
        match if is_local { self.user_key()? } else { None } {
            Some(key) => {
                let (invitation, id) = Invitation::new(place, &key.secret_of(self.name), &self.label())?;
                Ok((format!("{OF_USER}{invitation}"), id.with_secret_origin(Some(key.to_string()))))
            }
            None => {
                self.warn_of_readers();
                Ok((place.to_string(), place))
            }
        }
    }

    fn user_key(&self) -> Result<Option<UserKey>> {
        UserKey::find(&self.var)
    }

    /// Warns that others may be able to read and write the store with the secret. A process warns
    /// once.
    fn warn_of_readers(&self) {
        static WARNED: Once = Once::new();
        let key = self.key();
        WARNED.call_once(|| {
            warn_user(&format!(
                "no UNISONO_SECRET: rank 0 writes the secret of the job in clear into the store, under `{key}`. \
                 Anybody on the network who can read the store can join the job and read and change its data, \
                 and who can write it can lead the ranks elsewhere. Set UNISONO_SECRET to the same 64 \
                 hexadecimal digits on all ranks (`openssl rand -hex 32`); the store then holds no secret"
            ));
        });
    }

    /// Waits for the value of rank 0, and returns the id in the value.
    fn read(&self) -> Result<StoredId> {
        let Self { store, rank, config, .. } = self;
        let key = self.key();
        let value = store.get(&key, config.join_timeout).map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => failed(format!(
                "rank {rank} waited {:.1} s for `{key}` in the store, which rank 0 writes",
                config.join_timeout.as_secs_f64()
            )),
            _ => failed(format!("rank {rank} cannot read `{key}` from the store: {error}")),
        })?;
        let place = store.describe(&key);
        let id = self.accept(std::str::from_utf8(&value).unwrap_or_default(), &place)?;
        let origin = format!(
            "rank {rank} read this address from {place}; unless rank 0 is only late, an earlier job wrote it: \
             {STALE_REMEDY}"
        );
        Ok(StoredId { id, origin: Some(origin) })
    }

    /// Returns the id that a value stands for.
    fn accept(&self, value: &str, place: &str) -> Result<UniqueId> {
        let (rank, key) = (self.rank, self.key());
        if let Some(invitation) = value.strip_prefix(OF_USER).and_then(|value| value.parse().ok()) {
            return self.accept_of_user(&invitation, place);
        }
        match (value.parse::<Invitation>(), value.parse::<UniqueId>(), &self.secret) {
            (Ok(invitation), _, Some(secret)) => Ok(invitation.accept(secret, &self.label())),
            (_, Ok(id), None) => Ok(id),
            (Ok(_), _, None) => Err(failed(format!(
                "rank 0 has a secret in its environment and rank {rank} has none, as `{key}` in the store ({place}) \
                 shows: set the same UNISONO_SECRET on all ranks"
            ))),
            // Somebody else may have written the value, with a different secret.
            (_, Ok(_), Some(_)) => Err(self.only_this_rank_has_a_secret(place)),
            _ => Err(failed(format!(
                "rank {rank} finds no unique id of this version under `{key}` in the store ({place}); if an earlier \
                 job wrote it, {STALE_REMEDY}"
            ))),
        }
    }

    /// Returns the id of an invitation, for ranks that use the key of their user.
    fn accept_of_user(&self, invitation: &Invitation, place: &str) -> Result<UniqueId> {
        if self.secret.is_some() {
            return Err(self.only_this_rank_has_a_secret(place));
        }
        let key = self.user_key()?.ok_or_else(|| {
            failed(format!(
                "rank 0 is on loopback and has the key of its user, and rank {} has no folder for one \
                 (XDG_RUNTIME_DIR, TMPDIR), as `{}` in the store ({place}) shows: set the same UNISONO_SECRET on all \
                 ranks",
                self.rank,
                self.key()
            ))
        })?;
        let id = invitation.accept(&key.secret_of(self.name), &self.label());
        Ok(id.with_secret_origin(Some(key.to_string())))
    }

    fn only_this_rank_has_a_secret(&self, place: &str) -> Error {
        let (rank, key) = (self.rank, self.key());
        failed(format!(
            "rank {rank} has a secret in its environment, and `{key}` in the store ({place}) is of a rank 0 that has \
             none: set the same UNISONO_SECRET on all ranks"
        ))
    }
}

/// Parses bytes as the file of a key, and as the value of rank 0, on ranks with and without a
/// secret.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    let store = FileStore::new(std::env::temp_dir());
    let key = format!("unisono-fuzz/{}/{:?}", std::process::id(), thread::current().id());
    let path = store.path(&key);
    private_file::publish(&path, bytes).expect("a file");
    let found = store.get(&key, Duration::ZERO);
    fs::remove_file(&path).expect("the file");
    assert!(found.as_ref().is_ok_and(|value| value == bytes) || found.is_err());
    let (value, config) = (String::from_utf8_lossy(bytes), Config::default());
    // This user has no folder for a key.
    let var = |name: &str| (name == "TMPDIR").then(|| "/dev/null".to_owned());
    for secret in [None, Some(Secret::from_public("fuzzing"))] {
        let has_secret = secret.is_some();
        let exchange = Exchange { store: &store, name: "fuzz", rank: 1, config: &config, secret, var: &var };
        if let Ok(id) = exchange.accept(&value, "here") {
            assert_eq!(has_secret, value.parse::<Invitation>().is_ok(), "no secret comes from a store");
            assert!(id.to_string().parse::<UniqueId>().is_ok());
        }
    }
}

fn failed(what: String) -> Error {
    Error::new(ErrorKind::Bootstrap(BootstrapError::Other { what }))
}

/// Returns the interface of the default route. Without one, returns the loopback interface.
fn default_interface() -> Interface {
    let routed = OUTSIDE_ADDRESSES.iter().find_map(|address| local_address_toward((*address, 9).into()).ok());
    routed.unwrap_or_else(|| IpAddr::from(Ipv4Addr::LOCALHOST).into())
}

/// Addresses outside this host that are reserved for documentation (RFC 5737, RFC 3849).
const OUTSIDE_ADDRESSES: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];
/// Stands before an invitation that only ranks with the key of its user can accept.
const OF_USER: &str = "user ";
const STALE_REMEDY: &str = "remove it, or give each job a name or a folder of its own";
const POLL_INTERVAL: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::user_key::tests::{Folder, has_key};
    use std::collections::HashMap;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::sync::{Mutex, PoisonError};

    /// A store that everybody can read and write.
    #[derive(Default)]
    struct Open(Mutex<HashMap<String, Vec<u8>>>);

    impl Store for Open {
        fn set(&self, key: &str, value: &[u8]) -> io::Result<()> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned(), value.to_vec());
            Ok(())
        }

        fn get(&self, key: &str, _: Duration) -> io::Result<Vec<u8>> {
            let values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            values.get(key).cloned().ok_or_else(|| io::ErrorKind::TimedOut.into())
        }
    }

    /// Exchanges an id in an environment without a folder for keys.
    fn exchange(store: &dyn Store, rank: Rank, secret: Option<&Secret>) -> Result<StoredId> {
        let var = |name: &str| (name == "TMPDIR").then(|| "/proc/unisono".to_owned());
        exchange_in(&var, store, rank, secret)
    }

    fn exchange_in(
        var: &dyn Fn(&str) -> Option<String>,
        store: &dyn Store,
        rank: Rank,
        secret: Option<&Secret>,
    ) -> Result<StoredId> {
        let config = Config::default().with_bind_addr(Some(IpAddr::from(Ipv4Addr::LOCALHOST).into()));
        Exchange { store, name: "job", rank, config: &config, secret: secret.cloned(), var }.run()
    }

    #[test]
    fn store_on_loopback_holds_no_secret() {
        if !has_key() {
            return;
        }
        let (store, folder) = (Open::default(), Folder::new("store-key"));
        let (env, other) = (folder.env(), Folder::new("store-other-key"));
        let written = exchange_in(&env, &store, 0, None).unwrap().id;
        let value = String::from_utf8(store.get("unisono/job/id", Duration::ZERO).unwrap()).unwrap();
        assert!(!value.contains(&written.secret().to_hex()), "{value}");
        assert!(value.starts_with(&format!("{OF_USER}{}#", written.endpoint())), "{value}");
        let read = exchange_in(&env, &store, 1, None).unwrap().id;
        assert_eq!(read.to_string(), written.to_string());
        let elsewhere = exchange_in(&other.env(), &store, 1, None).unwrap().id;
        assert_ne!(elsewhere.secret().to_hex(), written.secret().to_hex());
        assert!(elsewhere.secret_origin().unwrap().contains("store-other-key"));
        for (secret, text) in [
            (Some(Secret::random().unwrap()), "a rank 0 that has none"),
            (None, "rank 1 has no folder for one"),
        ] {
            let error = exchange(&store, 1, secret.as_ref()).err().expect("another secret").to_string();
            assert!(error.contains(text) && error.contains("set the same UNISONO_SECRET"), "{error}");
        }
    }

    #[test]
    fn store_of_ranks_with_a_secret_holds_none() {
        let (store, secret) = (Open::default(), Secret::random().unwrap());
        let written = exchange(&store, 0, Some(&secret)).unwrap().id;
        let value = String::from_utf8(store.get("unisono/job/id", Duration::ZERO).unwrap()).unwrap();
        for hidden in [&secret, written.secret()] {
            assert!(!value.contains(&hidden.to_hex()), "{value}");
        }
        assert!(value.starts_with(&format!("{}#", written.endpoint())), "{value}");
        let read = exchange(&store, 1, Some(&secret)).unwrap().id;
        assert_eq!(read.to_string(), written.to_string());
        let elsewhere = exchange(&store, 1, Some(&Secret::random().unwrap())).unwrap().id;
        assert_ne!(elsewhere.secret().to_hex(), written.secret().to_hex());
    }

    #[test]
    fn ranks_of_which_only_some_have_a_secret_are_told() {
        let (store, secret) = (Open::default(), Secret::random().unwrap());
        exchange(&store, 0, Some(&secret)).unwrap();
        let text = exchange(&store, 1, None).err().expect("it has none").to_string();
        assert!(text.contains("rank 0 has a secret in its environment and rank 1 has none"), "{text}");
        let id = exchange(&store, 0, None).unwrap().id;
        let text = exchange(&store, 1, Some(&secret)).err().expect("rank 0 has none").to_string();
        assert!(text.contains("rank 1 has a secret") && text.contains("a rank 0 that has none"), "{text}");
        assert_eq!(exchange(&store, 1, None).unwrap().id.to_string(), id.to_string());
    }

    #[test]
    fn different_keys_are_different_files() {
        let keys = ["a-b", "a_b", "a/b", "a b", "a+b", "a%2fb", "a.b", "A-B", "é", "..", ""];
        let names: std::collections::HashSet<_> = keys.map(file_name).into();
        assert_eq!(names.len(), keys.len(), "{names:?}");
        assert!(names.iter().all(|name| !name.contains(['/', '.'])), "{names:?}");
    }

    #[test]
    fn file_store_believes_only_files_of_this_user() {
        let folder = std::env::temp_dir().join(format!("unisono-file-store-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let store = FileStore::new(&folder);
        store.set("own", b"value").unwrap();
        let path = store.path("own");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(store.get("own", Duration::ZERO).unwrap(), b"value");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "the draft is gone");
        symlink(&path, store.path("link")).unwrap();
        fs::create_dir(store.path("folder")).unwrap();
        fs::write(store.path("open"), "value").unwrap();
        fs::set_permissions(store.path("open"), fs::Permissions::from_mode(0o666)).unwrap();
        for (key, why) in [("link", "it is a link"), ("folder", "no ordinary file"), ("open", "mode 666")] {
            let error = store.get(key, Duration::ZERO).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{key}");
            assert!(error.to_string().contains(why), "{error}");
            let taken = store.set(key, b"value").unwrap_err();
            assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists, "{key}: {taken}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
