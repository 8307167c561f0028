//! The control channel of a rank with peers on its host and on others.

use crate::control::{LocalControl, RemoteControl};
use crate::{ControlChannel, Footprint, ListenerGuard, PeerEvent};
use std::time::Duration;

/// A control channel that combines the channel of this host with the channel to other hosts.
#[derive(Debug)]
pub struct CombinedControl(pub LocalControl, pub RemoteControl);

impl ControlChannel for CombinedControl {
    fn post(&mut self, message: &[u8]) {
        self.0.post(message);
        self.1.post(message);
    }

    fn poll(&mut self) -> Option<PeerEvent> {
        self.0.poll().or_else(|| self.1.poll())
    }

    fn drain(&mut self, limit: Duration) {
        // Messages on this host are in shared memory as soon as they are posted, so only the others
        // are waited for.
        self.1.drain(limit);
    }

    fn listener_guard(&self) -> Option<ListenerGuard> {
        self.1.listener_guard()
    }

    fn footprint(&self) -> Footprint {
        self.0.footprint() + self.1.footprint()
    }
}
