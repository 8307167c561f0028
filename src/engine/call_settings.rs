//! Settings that apply to some calls only.

use crate::engine::{Engine, Override};
use crate::schedule::Collective;
use std::mem::replace;
use std::sync::Arc;
use std::time::Duration;
use unisono_transports::WaitMode;

/// Settings for the operations that follow. `None` leaves the setting as it is.
pub(crate) struct CallSettings {
    pub(crate) timeout: Option<Duration>,
    /// A label, or `None` for no label.
    pub(crate) label: Option<Option<Arc<str>>>,
    pub(crate) wait: Option<WaitMode>,
    /// A collective and its algorithm; `None` as the algorithm leaves the choice to the library.
    pub(crate) algorithm: Option<(Collective, Option<Override>)>,
}

impl Engine {
    /// Applies settings, and returns those that restore the former ones.
    pub(crate) fn exchange_settings(&mut self, settings: CallSettings) -> CallSettings {
        let CallSettings { timeout, label, wait, algorithm } = settings;
        let algorithm = algorithm.map(|(collective, row)| {
            let former = self.overrides[collective as usize];
            self.set_override(collective, row);
            (collective, former)
        });
        let wait = wait.map(|mode| {
            self.fabric.wait.set_mode(mode);
            replace(&mut self.wait_mode, mode)
        });
        let timeout = timeout.map(|timeout| self.watchdog.exchange_timeout(timeout));
        let next = self.traffic.operations + 1;
        let label = label.map(|label| self.recorder.exchange_label(next, label));
        CallSettings { timeout, label, wait, algorithm }
    }
}
