//! A CUDA driver in software, for tests of GPU code on machines without a GPU.
//!
//! [`Emulator::build`] compiles the driver together with the kernels of its user by the C++
//! compiler, and keeps the library in the user's cache. The library has the functions of
//! `libcuda.so` and of cuBLAS that unisono calls. A stream is a thread, a block is a thread, and
//! the threads of a block are fibers. The emulator checks memory accesses, barriers and launches
//! more strictly than a GPU. Its timings say nothing about a GPU.
//!
//! Kernels are written in the common subset of CUDA C++ and host C++: see `target.cuh` of unisono.

mod build;
mod knobs;
mod objects;
mod sources;

pub use build::{BuildError, Emulator, UserKernels};
pub use knobs::{Images, Knobs, Rule};
