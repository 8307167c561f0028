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
}

/// A folder as a store, on a file system that all ranks share. Each key is a file.
///
/// A key that an earlier job has written is not overwritten, so each job needs a folder or names of
/// its own.
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
                format!(
                    "{} is there already, written by an earlier job; remove it, or give each job a name or a folder of \
                     its own",
                    path.display()
                ),
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
}

/// Returns the id at which the ranks of `name` meet: rank 0 makes it and writes it into the store.
pub(crate) fn exchange_id(store: &dyn Store, name: &str, rank: Rank, config: &Config) -> Result<UniqueId> {
    let key = format!("unisono/{name}/id");
    let failed = |what: String| Error::new(ErrorKind::Bootstrap(BootstrapError::Other { what }));
    if rank == 0 {
        let id = UniqueId::on(config.bind_addr.unwrap_or_else(default_interface))?;
        let stored = store.set(&key, id.to_string().as_bytes());
        stored.map_err(|error| failed(format!("rank 0 cannot write `{key}` to the store: {error}")))?;
        return Ok(id);
    }
    let value = store.get(&key, config.join_timeout).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => failed(format!(
            "rank {rank} waited {:.1} s for `{key}` in the store, which rank 0 writes",
            config.join_timeout.as_secs_f64()
        )),
        _ => failed(format!("rank {rank} cannot read `{key}` from the store: {error}")),
    })?;
    let id = std::str::from_utf8(&value).ok().and_then(|text| text.parse().ok());
    id.ok_or_else(|| failed(format!("`{key}` in the store is no unique id of this version")))
}

/// Returns the interface of the default route, or that of this host alone.
fn default_interface() -> Interface {
    let routed = OUTSIDE_ADDRESSES.iter().find_map(|outside| local_address_toward((*outside, 9).into()).ok());
    routed.unwrap_or_else(|| IpAddr::from(Ipv4Addr::LOCALHOST).into())
}

/// Addresses outside this host that nobody has (RFC 5737, RFC 3849).
const OUTSIDE_ADDRESSES: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];
const POLL_INTERVAL: Duration = Duration::from_millis(5);
