//! The control channel among ranks that share memory.

use crate::shm::ControlMailboxes;
use crate::shm::liveness::{LivenessMonitor, LivenessPipe};
use crate::{ControlChannel, Error, Footprint, MAX_CONTROL_MSG_BYTES, PeerEvent, Result};
use std::os::fd::OwnedFd;

/// A control channel of mailboxes in shared memory and liveness pipes.
#[derive(Debug)]
pub struct LocalControl {
    mailboxes: ControlMailboxes,
    monitor: LivenessMonitor,
    /// Rank whose mailbox is read next.
    next_peer: usize,
    /// A rank that has ended, while its last messages may still be unread.
    exited_peer: Option<usize>,
    _own_pipe: LivenessPipe,
}

impl LocalControl {
    /// Creates the channel from the mailboxes of all ranks, this rank's pipe and the monitor of the
    /// others' pipes.
    pub fn new(mailboxes: ControlMailboxes, own_pipe: LivenessPipe, monitor: LivenessMonitor) -> Self {
        Self { mailboxes, monitor, next_peer: 0, exited_peer: None, _own_pipe: own_pipe }
    }

    /// Duplicates the descriptor that becomes readable when a rank ends.
    ///
    /// # Errors
    /// [`Error::System`] if the process has no descriptor left.
    pub fn watch(&self) -> Result<OwnedFd> {
        let failed = |source| Error::System { what: "cannot duplicate a descriptor".to_owned(), source };
        self.monitor.fd().try_clone_to_owned().map_err(failed)
    }

    fn next_message(&mut self, peer: usize) -> Option<PeerEvent> {
        self.mailboxes.read(peer).map(|bytes| PeerEvent::Message { from: peer, bytes })
    }
}

impl ControlChannel for LocalControl {
    fn post(&mut self, message: &[u8]) {
        debug_assert!(message.len() <= MAX_CONTROL_MSG_BYTES);
        self.mailboxes.write(message);
    }

    fn poll(&mut self) -> Option<PeerEvent> {
        let ranks = self.mailboxes.ranks();
        for _ in 0..ranks {
            let peer = self.next_peer;
            self.next_peer = (self.next_peer + 1) % ranks;
            if let Some(event) = self.next_message(peer) {
                return Some(event);
            }
        }
        self.exited_peer = self.exited_peer.or_else(|| self.monitor.next_exited());
        let peer = self.exited_peer?;
        // The rank may have written messages after its mailbox was read above and before it ended.
        self.next_message(peer)
            .or_else(|| self.exited_peer.take().map(|peer| PeerEvent::Exited { from: peer }))
    }

    fn footprint(&self) -> Footprint {
        // One more than the monitor has: this rank's own pipe.
        let pipes = Footprint { descriptors: 1 + self.monitor.descriptors(), ..Footprint::default() };
        self.mailboxes.footprint() + pipes
    }
}
