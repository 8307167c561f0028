//! Errors of the library as exceptions of `unisono.errors`.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use unisono::ErrorKind;

/// Returns the exception for an error: the class of its code, with its facts as attributes.
pub(crate) fn exception(py: Python<'_>, error: &unisono::Error) -> PyErr {
    raise(py, error).unwrap_or_else(|failed| failed)
}

fn raise(py: Python<'_>, error: &unisono::Error) -> PyResult<PyErr> {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let make =
        MAKE.get_or_try_init(py, || py.import("unisono.errors")?.getattr("_make").map(Bound::unbind))?;
    let facts = PyDict::new(py);
    facts.set_item("rank", error.rank())?;
    facts.set_item("peer", error.peer())?;
    facts.set_item("operation", error.op().map(ToString::to_string))?;
    facts.set_item("help", error.help())?;
    facts.set_item("is_poisoning", error.is_poisoning())?;
    facts.set_item("is_recoverable", error.is_recoverable())?;
    if let ErrorKind::BarrierTimeout { missing, .. } = error.kind() {
        facts.set_item("missing", missing)?;
    }
    let made = make.bind(py).call1((error.code(), error.to_string(), facts))?;
    Ok(PyErr::from_value(made))
}

/// Returns the exception for arguments that make no sense.
pub(crate) fn argument(py: Python<'_>, what: impl std::fmt::Display) -> PyErr {
    made(py, "InvalidUsage", format!("{what}; correct the call"))
}

/// Returns the exception for an operation that goes on after the time for which a caller waited.
pub(crate) fn timed_out(py: Python<'_>, waited: std::time::Duration) -> PyErr {
    let text = format!(
        "the operation has not ended within the {:.3} s that this call waits; it goes on, and may be waited for again",
        waited.as_secs_f64()
    );
    made(py, "Timeout", text)
}

fn made(py: Python<'_>, class: &str, text: String) -> PyErr {
    let make = || -> PyResult<PyErr> {
        let class = py.import("unisono.errors")?.getattr(class)?;
        Ok(PyErr::from_value(class.call1((text,))?))
    };
    make().unwrap_or_else(|failed| failed)
}
