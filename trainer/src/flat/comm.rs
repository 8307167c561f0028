//! Ranks to exchange numbers with.

use crate::error::{Error, Result};
use unisono::Communicator;
use unisono::device::{DeviceCommunicator, Gpu};

/// The ranks of a group, as numbers in the host's memory reach each other or as those in memory of GPUs do.
#[derive(Clone, Copy)]
pub enum Comm<'a> {
    /// Operations are carried out when they are called.
    Host(&'a Communicator),
    /// Operations are enqueued behind the numbers' other work.
    Device(&'a DeviceCommunicator),
}

impl<'a> From<&'a Communicator> for Comm<'a> {
    fn from(communicator: &'a Communicator) -> Self {
        Self::Host(communicator)
    }
}

impl Comm<'_> {
    /// This rank's number.
    pub fn rank(&self) -> usize {
        match self {
            Self::Host(group) => group.rank(),
            Self::Device(group) => group.rank(),
        }
    }
}

/// The ranks of a group, on the host and perhaps on their GPUs too.
#[derive(Clone)]
pub struct ProcessGroup {
    host: Communicator,
    device: Option<DeviceCommunicator>,
}

impl From<Communicator> for ProcessGroup {
    fn from(host: Communicator) -> Self {
        Self { host, device: None }
    }
}

impl ProcessGroup {
    /// Those of `host`, on GPUs too if this one has `gpu`, as then all must. All of them call it.
    ///
    /// # Errors
    /// If ranks cannot meet on their GPUs.
    pub fn new(host: Communicator, gpu: Option<&Gpu>) -> Result<Self> {
        let device = gpu.map(|gpu| host.to_device(gpu)).transpose()?;
        Ok(Self { host, device })
    }

    /// This rank's number.
    pub fn rank(&self) -> usize {
        self.host.rank()
    }

    /// How many there are.
    pub fn size(&self) -> usize {
        self.host.size()
    }

    /// As numbers in the host's memory reach each other.
    pub fn host(&self) -> &Communicator {
        &self.host
    }

    /// As numbers in memory of GPUs do.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if they have met on the host only.
    pub fn device(&self) -> Result<&DeviceCommunicator> {
        let absent = || Error::Unsupported("ranks that met on the host exchange nothing of a GPU".to_owned());
        self.device.as_ref().ok_or_else(absent)
    }

    /// As flat numbers reach each other: on GPUs, if the ranks met there.
    pub fn comm(&self) -> Comm<'_> {
        self.device.as_ref().map_or(Comm::Host(&self.host), Comm::Device)
    }

    /// Says whether all is well with what was enqueued on GPUs, as far as is known now.
    ///
    /// # Errors
    /// The first of an operation there.
    pub fn check(&self) -> Result<()> {
        self.device.as_ref().map_or(Ok(()), |device| Ok(device.check()?))
    }
}
