//! The kernels, compiled for the CPU and run by the emulator. One test program, so that the
//! emulator is compiled once.

mod driver;
mod emulator;
mod exchange;
mod libcuda;
#[allow(dead_code)]
#[path = "../../../reducers/src/host/tests/material.rs"]
mod material;
mod model;
#[path = "../../../reducers/src/host/naive.rs"]
mod naive;
mod processes;
mod race_program;
mod reduce_copy;
mod rules;
mod schedule;

// Names that the shared files find in their own crate.
use unisono_reducers::{
    Bool, Complex, DType, Element, F8E4M3, F8E5M2, Located, PostOp, ReduceKind, Scalar, Source, as_bytes,
    as_bytes_mut, bf16, f16,
};
