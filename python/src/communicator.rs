//! Communicators as Python objects.

use crate::error::{argument, exception};
use crate::messages::forward;
use crate::operation::Operation;
use crate::segments::{check_address, memory_at};
use crate::store::PythonStore;
use crate::work::{Completion, Work};
use pyo3::prelude::*;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;
use unisono::transport::text::without_secrets;
use unisono::{CallOptions, Config, UniqueId};

/// One rank of a group. See `unisono.Communicator`.
#[pyclass(frozen, module = "unisono._native")]
pub(crate) struct Communicator {
    /// Empty after `close`.
    inner: Mutex<Option<unisono::Communicator>>,
    rank: usize,
    size: usize,
}

type Settings = HashMap<String, String>;
type Steps<'py> = Vec<PyRef<'py, Operation>>;

/// Returns the text of a new unique id, whose root listens at the address `interface`.
#[pyfunction]
pub(crate) fn unique_id(py: Python<'_>, interface: &str) -> PyResult<String> {
    let Ok(address) = interface.parse() else {
        return Err(argument(py, format!("`{}` is no IP address", without_secrets(interface))));
    };
    UniqueId::on(address).map(UniqueId::into_reserved_text).map_err(|error| exception(py, &error))
}

#[pymethods]
impl Communicator {
    /// Makes the communicators of the threads of this process, by rank.
    #[staticmethod]
    fn local(py: Python<'_>, size: usize, settings: Settings) -> PyResult<Vec<Self>> {
        let made = py.detach(|| unisono::Communicator::builder().config(&config(&settings)?).local(size));
        let ranks = made.map_err(|error| exception(py, &error))?;
        Ok(ranks.into_iter().map(Self::from).collect())
    }

    /// Connects to the other ranks with the settings that the launcher has put into the
    /// environment.
    #[staticmethod]
    fn from_env(py: Python<'_>, settings: Settings) -> PyResult<Self> {
        let made = py.detach(|| unisono::Communicator::builder().config(&config(&settings)?).from_env());
        made.map(Self::from).map_err(|error| exception(py, &error))
    }

    /// Connects to the ranks that have the same unique id.
    #[staticmethod]
    fn join(py: Python<'_>, id: &str, rank: usize, size: usize, settings: Settings) -> PyResult<Self> {
        let made = py.detach(|| unisono::Communicator::join(&id.parse()?, rank, size, &config(&settings)?));
        made.map(Self::from).map_err(|error| exception(py, &error))
    }

    /// Connects to the ranks of a group of torch, which meet through its store. `path` is that of a
    /// store that is a file.
    #[staticmethod]
    fn join_through(
        py: Python<'_>,
        store: Py<PyAny>,
        path: Option<String>,
        rank: usize,
        size: usize,
        settings: Settings,
    ) -> PyResult<Self> {
        let store = PythonStore::new(store, path);
        let made = py.detach(|| {
            let builder = unisono::Communicator::builder().config(&config(&settings)?);
            builder.join_through(&store, "torch", rank, size)
        });
        made.map(Self::from).map_err(|error| exception(py, &error))
    }

    #[getter]
    fn rank(&self) -> usize {
        self.rank
    }

    #[getter]
    fn size(&self) -> usize {
        self.size
    }

    #[getter]
    fn transport(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(self.inner(py)?.transport())
    }

    /// Runs operations one after the other on this thread. They fail after `timeout` seconds
    /// without data movement, which replaces the communicator's timeout.
    #[pyo3(signature = (steps, timeout=None))]
    fn run(&self, py: Python<'_>, steps: Steps<'_>, timeout: Option<f64>) -> PyResult<()> {
        let comm = self.inner(py)?;
        let options = call_options(py, timeout)?;
        let steps: Vec<&Operation> = steps.iter().map(|step| &**step).collect();
        // SAFETY: the callers in the package hold the objects that own the memory until this
        // returns, and say in their documentation that nobody else may access it meanwhile.
        let run = |comm: &unisono::Communicator| steps.iter().try_for_each(|step| unsafe { step.run(comm) });
        let ended = py.detach(|| run_with(&comm, options.as_ref(), run));
        ended.map_err(|error| exception(py, &error))
    }

    /// Starts operations, which run one after the other. `keep` holds the owners of their memory.
    #[pyo3(signature = (steps, keep, timeout=None))]
    fn start(
        &self,
        py: Python<'_>,
        steps: Steps<'_>,
        keep: Option<Py<PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Work> {
        let comm = self.inner(py)?;
        let options = call_options(py, timeout)?;
        let steps: Vec<Operation> = steps.iter().map(|step| Operation::clone(step)).collect();
        let completion = Completion::new(keep);
        py.detach(|| {
            let started = comm.spawn(move |comm| {
                let run = |comm: &unisono::Communicator| {
                    // SAFETY: `keep` holds the objects that own the memory until the end. The
                    // callers in the package say that nobody else may access it meanwhile.
                    steps.iter().try_for_each(|step| unsafe { step.run(comm) })
                };
                run_with(comm, options.as_ref(), run)
            });
            // The thread of the operation holds the communicator no longer when it is complete.
            forward(started, &completion, |()| None);
        });
        Ok(Work { completion, driver: None })
    }

    /// Starts to send a message to rank `receiver` under `tag`. `keep` holds the owner of its
    /// memory.
    fn isend(
        &self,
        py: Python<'_>,
        memory: (usize, usize),
        receiver: usize,
        tag: u64,
        keep: Py<PyAny>,
    ) -> PyResult<Work> {
        let comm = self.inner(py)?;
        check_address(py, memory)?;
        let completion = Completion::new(Some(keep));
        // SAFETY: `keep` holds the object that owns the memory until the end. The callers in the
        // package say that nobody else may access it meanwhile.
        let memory = unsafe { memory_at(memory) };
        let driver = py.detach(|| forward(comm.isend(memory, receiver, tag), &completion, |_| None));
        Ok(Work { completion, driver: Some(driver) })
    }

    /// Starts to receive a message. None accepts every rank, or every tag.
    fn irecv(
        &self,
        py: Python<'_>,
        memory: (usize, usize),
        source: Option<usize>,
        tag: Option<u64>,
        keep: Py<PyAny>,
    ) -> PyResult<Work> {
        let comm = self.inner(py)?;
        check_address(py, memory)?;
        let completion = Completion::new(Some(keep));
        // SAFETY: as in `isend`.
        let memory = unsafe { memory_at(memory) };
        let driver =
            py.detach(|| forward(comm.irecv(memory, source, tag), &completion, |(_, info)| Some(info)));
        Ok(Work { completion, driver: Some(driver) })
    }

    /// Returns (source, tag, bytes) of the first message that has arrived and that no receive has
    /// taken.
    fn probe(
        &self,
        py: Python<'_>,
        source: Option<usize>,
        tag: Option<u64>,
    ) -> PyResult<Option<(usize, u64, usize)>> {
        let comm = self.inner(py)?;
        let found = py.detach(|| comm.probe(source, tag)).map_err(|error| exception(py, &error))?;
        Ok(found.map(|info| (info.source, info.tag, info.bytes)))
    }

    /// Makes a communicator of the ranks that give the same color.
    fn split(
        &self,
        py: Python<'_>,
        color: Option<u32>,
        key: i32,
        settings: Option<Settings>,
    ) -> PyResult<Option<Self>> {
        let comm = self.inner(py)?;
        let made = py.detach(|| match settings {
            None => comm.split(color, key),
            Some(settings) => {
                let config = with_settings(comm.config().clone(), &settings)?;
                comm.child().config(&config).split(color, key)
            }
        });
        made.map(|made| made.map(Self::from)).map_err(|error| exception(py, &error))
    }

    /// Makes a communicator of the same ranks.
    fn duplicate(&self, py: Python<'_>) -> PyResult<Self> {
        let comm = self.inner(py)?;
        py.detach(|| comm.duplicate()).map(Self::from).map_err(|error| exception(py, &error))
    }

    /// Makes a communicator of the members. Only the members call it.
    fn create_group(&self, py: Python<'_>, members: Vec<usize>, tag: u32) -> PyResult<Self> {
        let comm = self.inner(py)?;
        let made = py.detach(|| comm.create_group(&members, tag));
        made.map(Self::from).map_err(|error| exception(py, &error))
    }

    /// Makes a communicator of these ranks and of newcomers, which join by the unique id.
    fn grow(&self, py: Python<'_>, id: &str, newcomers: usize) -> PyResult<Self> {
        let comm = self.inner(py)?;
        let made = py.detach(|| comm.grow(&id.parse()?, newcomers));
        made.map(Self::from).map_err(|error| exception(py, &error))
    }

    /// Ends the operations of this communicator on all ranks.
    fn abort(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        let comm = self.inner(py)?;
        py.detach(|| comm.abort(reason));
        Ok(())
    }

    /// Makes a communicator of the ranks that are left after a failure.
    fn shrink(&self, py: Python<'_>) -> PyResult<Self> {
        let comm = self.inner(py)?;
        py.detach(|| comm.shrink()).map(Self::from).map_err(|error| exception(py, &error))
    }

    /// Makes a communicator of the ranks that are left, and returns the smallest of their values
    /// with it.
    fn shrink_and_agree(&self, py: Python<'_>, value: u64) -> PyResult<(Self, u64)> {
        let comm = self.inner(py)?;
        let made = py.detach(|| comm.shrink_and_agree(value));
        made.map(|(left, smallest)| (Self::from(left), smallest)).map_err(|error| exception(py, &error))
    }

    /// Returns the last operations, as JSON.
    fn flight_record(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.inner(py)?.flight_record().to_json())
    }

    /// Returns the exception that every later call raises, or None if calls still work.
    fn error(&self, py: Python<'_>) -> PyResult<Option<PyErr>> {
        Ok(self.inner(py)?.error().map(|error| exception(py, &error)))
    }

    /// Returns the time without data movement after which an operation fails, in seconds.
    #[getter]
    fn timeout(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        let timeout = self.inner(py)?.config().timeout;
        Ok((timeout != Duration::MAX).then_some(timeout.as_secs_f64()))
    }

    /// Leaves the group when all started operations are done.
    fn close(&self, py: Python<'_>) {
        let taken = self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        py.detach(|| drop(taken));
    }
}

impl Communicator {
    fn inner(&self, py: Python<'_>) -> PyResult<unisono::Communicator> {
        let inner = self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        inner.clone().ok_or_else(|| {
            let (rank, size) = (self.rank, self.size);
            argument(py, format!("the communicator of rank {rank} of {size} has been closed"))
        })
    }
}

impl From<unisono::Communicator> for Communicator {
    fn from(comm: unisono::Communicator) -> Self {
        let (rank, size) = (comm.rank(), comm.size());
        Self { inner: Mutex::new(Some(comm)), rank, size }
    }
}

/// Returns the options of a call that has a separate timeout.
fn call_options(py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<CallOptions>> {
    timeout.map(|seconds| Ok(CallOptions::new().timeout(timeout_of(py, seconds)?))).transpose()
}

/// Returns a timeout that Python gives in seconds.
pub(crate) fn timeout_of(py: Python<'_>, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| argument(py, format!("a timeout of {seconds} s is no time")))
}

/// Runs operations, with options if there are any.
fn run_with(
    comm: &unisono::Communicator,
    options: Option<&CallOptions>,
    run: impl FnOnce(&unisono::Communicator) -> unisono::Result<()>,
) -> unisono::Result<()> {
    match options {
        None => run(comm),
        Some(options) => comm.with_options(options, run),
    }
}

fn config(settings: &Settings) -> unisono::Result<Config> {
    with_settings(Config::from_env()?, settings)
}

fn with_settings(config: Config, settings: &Settings) -> unisono::Result<Config> {
    config.with_settings(settings.iter().map(|(name, value)| (name.as_str(), value.as_str())))
}
