//! A subscriber that keeps warnings, for tests of the texts that users get.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tracing::field::Field;
use tracing::{Event, Level, Metadata, Subscriber, span};

/// Keeps the texts of the warnings of one target.
///
/// Clones share the texts. A test keeps one of them, and gives another to
/// `tracing::subscriber::with_default`.
#[derive(Clone, Debug)]
pub struct Warnings {
    target: &'static str,
    texts: Arc<Mutex<Vec<String>>>,
}

impl Warnings {
    /// Creates a subscriber to the warnings whose target ends with this text.
    pub fn of(target: &'static str) -> Self {
        Self { target, texts: Arc::default() }
    }

    /// Returns the texts so far, the earliest first.
    pub fn texts(&self) -> Vec<String> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN && metadata.target().ends_with(self.target)
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut |_: &Field, value: &dyn Debug| self.lock().push(format!("{value:?}")));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
