//! The id by which ranks meet.

use crate::result::NcclError;
use std::collections::VecDeque;
use std::ffi::c_char;
use std::net::Ipv4Addr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use unisono::UniqueId;

/// The address and the secret by which the ranks of a communicator meet.
///
/// Rank 0 makes one and gives its bytes to the other ranks. The bytes contain the secret.
///
/// ```
/// use unisono_cudarc::Id;
///
/// let id = Id::new()?;
/// let elsewhere = Id::uninit(*id.internal());
/// assert_eq!(elsewhere.internal(), id.internal());
/// # Ok::<(), unisono_cudarc::NcclError>(())
/// ```
#[derive(Clone, Copy)]
pub struct Id([c_char; BYTES]);

/// Bytes of an id, as in NCCL.
const BYTES: usize = 128;

/// Ids that this process made last. They keep their ports reserved until rank 0 listens there.
static MADE: Mutex<VecDeque<UniqueId>> = Mutex::new(VecDeque::new());

/// Number of ids of this process whose ports stay reserved at the same time.
const RESERVED_MAX: usize = 64;

fn made() -> MutexGuard<'static, VecDeque<UniqueId>> {
    MADE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Id {
    /// Makes an id on the loopback interface, for ranks of one host.
    ///
    /// # Errors
    /// If no port is free or the system has no random numbers.
    pub fn new() -> Result<Self, NcclError> {
        Ok(Self::from(UniqueId::new(Ipv4Addr::LOCALHOST.into())?))
    }

    /// Makes an id from the bytes of another one. Bytes that are no id fail in
    /// [`Comm::from_rank`](crate::Comm::from_rank).
    pub fn uninit(internal: [c_char; BYTES]) -> Self {
        Self(internal)
    }

    /// Returns the bytes, for other ranks.
    pub fn internal(&self) -> &[c_char; BYTES] {
        &self.0
    }

    /// Returns the address and the secret.
    pub(crate) fn unique_id(&self) -> Result<UniqueId, NcclError> {
        let bytes: Vec<u8> =
            self.0.iter().map(|byte| byte.cast_unsigned()).take_while(|byte| *byte != 0).collect();
        let invalid = |reason: String| NcclError::InvalidId { reason };
        let text = String::from_utf8(bytes).map_err(|_| invalid("these bytes are no id".to_owned()))?;
        text.parse().map_err(|error: unisono::Error| invalid(error.to_string()))
    }

    /// Ends the reservation of the port, after rank 0 has used it.
    pub(crate) fn release(&self) {
        made().retain(|id| Self::encode(id).0 != self.0);
    }

    fn encode(id: &UniqueId) -> Self {
        let mut bytes = [0; BYTES];
        for (byte, letter) in bytes.iter_mut().zip(id.to_string().bytes()) {
            *byte = letter.cast_signed();
        }
        Self(bytes)
    }
}

impl From<UniqueId> for Id {
    /// Takes an id of any interface, for ranks of several hosts.
    fn from(id: UniqueId) -> Self {
        let encoded = Self::encode(&id);
        let mut made = made();
        made.truncate(RESERVED_MAX - 1);
        made.push_front(id);
        encoded
    }
}

impl std::fmt::Debug for Id {
    /// Shows no secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.unique_id() {
            Ok(id) => write!(f, "Id({id:?})"),
            Err(_) => write!(f, "Id(invalid)"),
        }
    }
}
