//! MPI over unisono: `libunisono_mpi.so`, which MPItrampoline loads.
//!
//! jaxlib contains MPItrampoline. `MPITRAMPOLINE_LIB` names the library that it opens, and
//! `jax_cpu_collectives_implementation="mpi"` makes the CPU collectives of JAX call it. The symbols
//! are those of the MPI ABI, version 2.10: functions and constants named `MPIABI_*`.
//!
//! The functions that XLA calls are implemented, and those that go with them. Every other function
//! exists, returns `MPI_ERR_UNSUPPORTED_OPERATION`, and says so once on stderr. Errors are always
//! returned, as with `MPI_ERRORS_RETURN`. `MPI_Error_string` returns the whole text of the calling
//! thread's last error. A panic never crosses into C.

mod abi;
mod buffers;
mod collectives;
mod comm;
mod constants;
mod datatype;
mod environment;
mod error;
mod handles;
mod missing;
mod point_to_point;
mod probe;
mod request;
mod world;
