//! Rendezvous through a key-value store.

use crate::bootstrap::UniqueId;
use crate::bootstrap::unique_id::local_address_toward;
use crate::config::{Config, Interface};
use crate::error::bootstrap::BootstrapError;
use crate::error::{Error, ErrorKind, Result};
use crate::schedule::Rank;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// A key-value store that all ranks reach, such as etcd, Redis, or PyTorch's store.
///
/// Ranks meet through it: rank 0 writes its address and a secret, the others read them. So the
/// store must be readable by the ranks of the job only.
pub trait Store {
    /// Writes a value. Each key is written once.
    ///
    /// # Errors
    /// The errors of the store.
    fn set(&self, key: &str, value: &[u8]) -> io::Result<()>;

    /// Returns a value, and waits for it for up to `timeout`.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if nobody has written the key by then, and the errors of the
    /// store.
    fn get(&self, key: &str, timeout: Duration) -> io::Result<Vec<u8>>;

    /// Returns the place of a key that has a value, and its age if that is known.
    ///
    /// Ranks that do not meet rank 0 at the address in the value add this text to their error,
    /// because an earlier job may have written it.
    fn describe(&self, key: &str) -> String {
        format!("`{key}` in the store")
    }
}

/// A folder as a store, on a file system that all ranks share. Each key is a file.
///
/// A key that an earlier job has written is not overwritten, so each job needs a folder or names of
/// its own. The error of every rank that such a file stops has its path and age.
#[derive(Clone, Debug)]
pub struct FileStore(PathBuf);

impl FileStore {
    /// Returns the store in `folder`, which must exist.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self(folder.into())
    }

    fn path(&self, key: &str) -> PathBuf {
        let clean = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '_' };
        self.0.join(key.chars().map(clean).collect::<String>())
    }
}

impl Store for FileStore {
    fn set(&self, key: &str, value: &[u8]) -> io::Result<()> {
        use std::io::Write;
        use std::os::unix::fs::OpenOptionsExt;
        let (path, draft) = (self.path(key), self.path(&format!("{key} {}", std::process::id())));
        // The secret in the value is for this user only.
        // A process of an earlier job that was killed here may have had the same number.
        let _ = fs::remove_file(&draft);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        let written = file.write_all(value).and_then(|()| file.sync_all());
        // A link appears whole, and not over an older one.
        let linked = written.and_then(|()| fs::hard_link(&draft, &path));
        fs::remove_file(&draft)?;
        linked.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => io::Error::new(
                error.kind(),
                format!("{} by an earlier job, is there already; {STALE_REMEDY}", self.describe(key)),
            ),
            _ => error,
        })
    }

    fn get(&self, key: &str, timeout: Duration) -> io::Result<Vec<u8>> {
        let begun = Instant::now();
        loop {
            match fs::read(self.path(key)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                found => return found,
            }
            if begun.elapsed() > timeout {
                return Err(io::ErrorKind::TimedOut.into());
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn describe(&self, key: &str) -> String {
        let path = self.path(key);
        let written = fs::metadata(&path).and_then(|file| file.modified());
        match written.ok().and_then(|written| written.elapsed().ok()) {
            Some(age) => format!("{}, written {:.1} s ago", path.display(), age.as_secs_f64()),
            None => format!("{}, written", path.display()),
        }
    }
}

/// The id of a job, as a rank got it.
pub(crate) struct StoredId {
    pub(crate) id: UniqueId,
    /// The place that a rank other than 0 read it from, and the reason to suspect it.
    origin: Option<String>,
}

impl StoredId {
    /// Adds the origin to the error of a rank, if an id of an earlier job would explain it.
    pub(crate) fn explain(&self, error: Error) -> Error {
        match &self.origin {
            Some(origin) => error.map_bootstrap(|failure| failure.with_origin(origin)),
            None => error,
        }
    }
}

/// Returns the id at which the ranks of `name` meet: rank 0 makes it and writes it into the store.
pub(crate) fn exchange_id(store: &dyn Store, name: &str, rank: Rank, config: &Config) -> Result<StoredId> {
    let key = format!("unisono/{name}/id");
    let failed = |what: String| Error::new(ErrorKind::Bootstrap(BootstrapError::Other { what }));
    if rank == 0 {
        let id = UniqueId::on(config.bind_addr.unwrap_or_else(default_interface))?;
        let stored = store.set(&key, id.to_string().as_bytes());
        stored.map_err(|error| failed(format!("rank 0 cannot write `{key}` to the store: {error}")))?;
        return Ok(StoredId { id, origin: None });
    }
    let value = store.get(&key, config.join_timeout).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => failed(format!(
            "rank {rank} waited {:.1} s for `{key}` in the store, which rank 0 writes",
            config.join_timeout.as_secs_f64()
        )),
        _ => failed(format!("rank {rank} cannot read `{key}` from the store: {error}")),
    })?;
    let place = store.describe(&key);
    match std::str::from_utf8(&value).ok().and_then(|text| text.parse().ok()) {
        Some(id) => {
            let origin = format!(
                "rank {rank} read this address from {place}; unless rank 0 is only late, an earlier job wrote it: \
                 {STALE_REMEDY}"
            );
            Ok(StoredId { id, origin: Some(origin) })
        }
        None => Err(failed(format!(
            "rank {rank} finds no unique id of this version under `{key}` in the store ({place}); if an earlier job \
             wrote it, {STALE_REMEDY}"
        ))),
    }
}

/// Returns the interface of the default route, or that of this host alone.
fn default_interface() -> Interface {
    let routed = OUTSIDE_ADDRESSES.iter().find_map(|outside| local_address_toward((*outside, 9).into()).ok());
    routed.unwrap_or_else(|| IpAddr::from(Ipv4Addr::LOCALHOST).into())
}

/// Addresses outside this host that nobody has (RFC 5737, RFC 3849).
const OUTSIDE_ADDRESSES: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];
const STALE_REMEDY: &str = "remove it, or give each job a name or a folder of its own";
const POLL_INTERVAL: Duration = Duration::from_millis(5);
