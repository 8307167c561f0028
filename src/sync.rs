//! Synchronization primitives for the threads of a rank. They come from the standard library, or
//! from shuttle in models (`RUSTFLAGS="--cfg shuttle"`, see src/communicator/shuttle_tests.rs).

#[cfg(not(all(test, shuttle)))]
pub(crate) use std::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64},
        mpsc,
    },
    thread, thread_local,
    time::Instant,
};

#[cfg(all(test, shuttle))]
pub(crate) use unisono_transports::sync::shuttle::{
    Instant, mpsc,
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64},
    },
    thread, thread_local,
};
