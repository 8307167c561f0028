//! Options of single calls: timeout, label, algorithm and wait mode.

use crate::communicator::Communicator;
use crate::engine::CallSettings;
use crate::error::Result;
use crate::schedule::Collective;
use std::sync::Arc;
use std::time::Duration;
use unisono_transports::WaitMode;

/// Options that apply to some calls of a communicator. See [`Communicator::with_options`].
#[derive(Clone, Debug, Default)]
pub struct CallOptions {
    timeout: Option<Duration>,
    label: Option<Arc<str>>,
    algorithm: Option<(Collective, String)>,
    wait: Option<WaitMode>,
}

impl CallOptions {
    /// Returns options that change nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the time without progress after which a call fails, instead of
    /// [`Config::timeout`](crate::Config::timeout). Ranks may set different timeouts.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// Sets a name that errors and flight records show together with the operation.
    #[must_use]
    pub fn label(self, label: &str) -> Self {
        Self { label: Some(label.into()), ..self }
    }

    /// Sets the algorithm of a collective. All ranks must set the same algorithm.
    #[must_use]
    pub fn algorithm(self, collective: Collective, name: &str) -> Self {
        Self { algorithm: Some((collective, name.to_owned())), ..self }
    }

    /// Sets the way in which the calls wait for other ranks.
    #[must_use]
    pub fn wait(self, mode: WaitMode) -> Self {
        Self { wait: Some(mode), ..self }
    }
}

impl Communicator {
    /// Runs the operations of `body` with options. Operations of other threads wait until `body`
    /// has returned, and run without these options.
    ///
    /// To give options to an operation that runs in the background, call this method inside
    /// [`Communicator::spawn`]. Messages with tags keep the settings of the communicator.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUsage`](crate::ErrorKind::InvalidUsage) or
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the algorithm cannot be used,
    /// as for [`Communicator::set_algorithm`]. Other errors are those of `body`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use unisono::schedule::Collective;
    /// use unisono::{CallOptions, Communicator, Sum};
    ///
    /// let comm = Communicator::local(1)?.remove(0);
    /// let options = CallOptions::new()
    ///     .timeout(Duration::from_secs(2))
    ///     .label("gradients of layer 3")
    ///     .algorithm(Collective::AllReduce, "ring");
    /// comm.with_options(&options, |comm| comm.all_reduce(&mut [1.0f32; 8], Sum))?;
    /// assert_eq!(comm.last_algorithm()?.unwrap().name, "ring");
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn with_options<R>(
        &self,
        options: &CallOptions,
        body: impl FnOnce(&Communicator) -> Result<R>,
    ) -> Result<R> {
        self.in_one_turn(|comm| comm.run_with_options(options, body))
    }

    fn run_with_options<R>(
        &self,
        options: &CallOptions,
        body: impl FnOnce(&Communicator) -> Result<R>,
    ) -> Result<R> {
        let &CallOptions { timeout, ref label, ref algorithm, wait } = options;
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(self.usage_error("a timeout of zero lets no operation wait"));
        }
        let algorithm = algorithm.as_ref().map(|(collective, name)| {
            self.settable_algorithm(*collective, Some(name)).map(|row| (*collective, row))
        });
        let settings =
            CallSettings { timeout, label: label.clone().map(Some), wait, algorithm: algorithm.transpose()? };
        let previous = self.with_engine(|engine| Ok(engine.exchange_settings(settings)))?;
        let restore = Restore { comm: self, previous: Some(previous) };
        let ended = body(self);
        drop(restore);
        match label {
            Some(label) => ended.map_err(|error| error.with_label(label)),
            None => ended,
        }
    }
}

/// Restores the settings of the engine, even after a panic.
struct Restore<'c> {
    comm: &'c Communicator,
    previous: Option<CallSettings>,
}

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        if let Some(previous) = self.previous.take() {
            // If the lock is poisoned, no operation follows, so nothing needs to be restored.
            let _ = self.comm.with_engine(|engine| {
                engine.exchange_settings(previous);
                Ok(())
            });
        }
    }
}
