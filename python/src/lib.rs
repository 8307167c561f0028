//! The native half of the Python package `unisono`.
//!
//! It turns addresses into slices, runs operations without the interpreter's lock, and raises
//! errors as exceptions. Everything that looks at arrays and tensors is written in Python, in
//! `unisono/`.

mod callbacks;
mod communicator;
mod dlpack;
mod error;
mod messages;
mod operation;
mod point_to_point;
mod segments;
mod store;

mod work;

use pyo3::prelude::*;

/// The module `unisono._native`.
#[pymodule]
#[pyo3(name = "_native")]
mod native {
    #[pymodule_export]
    use crate::communicator::{Communicator, unique_id};
    #[pymodule_export]
    use crate::dlpack::dlpack_memory;
    #[pymodule_export]
    use crate::operation::Operation;
    #[pymodule_export]
    use crate::work::Work;
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
