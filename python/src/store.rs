//! A store of torch as a store of the library.

use pyo3::prelude::*;
use std::io;
use std::time::{Duration, Instant};

/// An object with the methods `set`, `wait` and `get` of `torch.distributed.Store`.
pub(crate) struct PythonStore {
    store: Py<PyAny>,
    /// The path of a store that is a file.
    path: Option<String>,
}

impl PythonStore {
    pub(crate) fn new(store: Py<PyAny>, path: Option<String>) -> Self {
        Self { store, path }
    }
}

impl unisono::Store for PythonStore {
    fn set(&self, key: &str, value: &[u8]) -> io::Result<()> {
        let text = std::str::from_utf8(value).map_err(io::Error::other)?;
        let stored = Python::attach(|py| self.store.call_method1(py, "set", (key, text)).map(drop));
        stored.map_err(failed)
    }

    fn get(&self, key: &str, timeout: Duration) -> io::Result<Vec<u8>> {
        let begun = Instant::now();
        let found = Python::attach(|py| {
            self.store.call_method1(py, "wait", ([key], timeout))?;
            self.store.call_method1(py, "get", (key,))?.extract(py)
        });
        found.map_err(|error: PyErr| match begun.elapsed() >= timeout {
            true => io::ErrorKind::TimedOut.into(),
            false => failed(error),
        })
    }

    fn describe(&self, key: &str) -> String {
        match &self.path {
            Some(path) => format!("`{key}` in the file {path}"),
            None => format!("`{key}` in the store"),
        }
    }
}

fn failed(error: PyErr) -> io::Error {
    io::Error::other(error.to_string())
}
