//! Groups of processes that share a model or its batches, and their communicators.

use crate::error::{Error, Result};
use unisono::Communicator;
use unisono::device::{DeviceCommunicator, Gpu};

/// Communicator of a group, for buffers in host memory or in GPU memory.
#[derive(Clone, Copy)]
pub enum Comm<'a> {
    /// Runs operations when they are called.
    Host(&'a Communicator),
    /// Enqueues operations behind the other work on the buffers.
    Device(&'a DeviceCommunicator),
}

impl<'a> From<&'a Communicator> for Comm<'a> {
    fn from(communicator: &'a Communicator) -> Self {
        Self::Host(communicator)
    }
}

impl Comm<'_> {
    /// Returns the rank of this process.
    pub fn rank(&self) -> usize {
        match self {
            Self::Host(group) => group.rank(),
            Self::Device(group) => group.rank(),
        }
    }
}

/// Process group with a host communicator, and optionally a GPU communicator.
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
    /// Creates the group from `host`. If one rank passes `gpu`, all ranks must. All ranks must call
    /// this.
    ///
    /// # Errors
    /// Fails if the ranks cannot set up GPU communication.
    pub fn new(host: Communicator, gpu: Option<&Gpu>) -> Result<Self> {
        let device = gpu.map(|gpu| host.to_device(gpu)).transpose()?;
        Ok(Self { host, device })
    }

    /// Returns the rank of this process.
    pub fn rank(&self) -> usize {
        self.host.rank()
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> usize {
        self.host.size()
    }

    /// Returns the communicator for host memory.
    pub fn host(&self) -> &Communicator {
        &self.host
    }

    /// Returns the communicator for GPU memory.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the group has a host communicator only.
    pub fn device(&self) -> Result<&DeviceCommunicator> {
        let absent = || Error::Unsupported("ranks that met on the host exchange nothing of a GPU".to_owned());
        self.device.as_ref().ok_or_else(absent)
    }

    /// Returns the communicator for flat buffers: the GPU communicator, if there is one.
    pub fn comm(&self) -> Comm<'_> {
        self.device.as_ref().map_or(Comm::Host(&self.host), Comm::Device)
    }

    /// Checks the operations enqueued on the GPU, as far as they have completed.
    ///
    /// # Errors
    /// Returns the first error of such an operation.
    pub fn check(&self) -> Result<()> {
        // Operations of the host communicator have returned their errors when they ended.
        self.device.as_ref().map_or(Ok(()), |device| Ok(device.check()?))
    }
}
