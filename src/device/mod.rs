//! Ranks on GPUs: the schedules of the CPU engine, carried out by kernels over device memory.

mod lowering;
