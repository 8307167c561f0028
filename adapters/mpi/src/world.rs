//! The beginning and the end of MPI in this process.

use crate::abi::{COMM_SELF, COMM_WORLD, THREAD_MULTIPLE, class};
use crate::comm::{self, Comm};
use crate::error::{Failure, Outcome, fail, guard, print};
use crate::request;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use unisono::{Communicator, Config};

/// The life of MPI in this process.
#[derive(Clone)]
enum Stage {
    Before,
    /// The ranks did not meet. The same failure is the answer to every later call.
    Failed(Failure),
    Running,
    Finalized,
}

static STAGE: Mutex<Stage> = Mutex::new(Stage::Before);

/// Waits as long as `jax.distributed.initialize` does, because ranks compile between collectives.
const PATIENCE: Duration = Duration::from_secs(300);

fn stage() -> MutexGuard<'static, Stage> {
    STAGE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connects the ranks. A failure is printed too, because XLA does not look at the code.
fn start() -> Outcome {
    let mut stage = stage();
    match &*stage {
        Stage::Before => {}
        Stage::Failed(failure) => return Err(failure.clone()),
        Stage::Running => return fail(class::OTHER, "MPI is initialized already; call it once"),
        Stage::Finalized => return fail(class::OTHER, "MPI was finalized and cannot begin again"),
    }
    match connect() {
        Ok((world, own)) => {
            comm::TABLE.set(COMM_WORLD, Comm::new(world));
            comm::TABLE.set(COMM_SELF, Comm::new(own));
            *stage = Stage::Running;
            Ok(())
        }
        Err(error) => {
            let failure = Failure::from(error);
            print(&format!("MPI_Init: {}", failure.text));
            *stage = Stage::Failed(failure.clone());
            Err(failure)
        }
    }
}

/// Makes the communicators of all ranks and of this rank alone.
///
/// Waits have long deadlines, unless the environment says otherwise.
fn connect() -> unisono::Result<(Communicator, Communicator)> {
    let set = |name| std::env::var_os(name).is_some();
    let mut config = Config::from_env()?;
    if !set("UNISONO_TIMEOUT_MS") {
        config = config.with_timeout(PATIENCE);
    }
    if !set("UNISONO_JOIN_TIMEOUT_MS") {
        config = config.with_join_timeout(PATIENCE);
    }
    let world = Communicator::builder().config(&config).from_env_or_alone()?;
    let alone = Communicator::builder().config(&config).local(1)?.remove(0);
    Ok((world, alone))
}

/// Returns the reason why there is no communicator of a handle.
pub(crate) fn reason_of_absence() -> String {
    match &*stage() {
        Stage::Before => "MPI is not initialized: call MPI_Init first".to_owned(),
        Stage::Failed(failure) => failure.text.clone(),
        Stage::Running => "there is no such communicator".to_owned(),
        Stage::Finalized => "MPI was finalized".to_owned(),
    }
}

/// Connects the ranks as the launcher's environment says. Without a launcher there is one rank.
#[unsafe(no_mangle)]
extern "C" fn MPIABI_Init(_argc: *mut c_int, _argv: *mut *mut *mut c_char) -> c_int {
    guard("MPI_Init", start)
}

/// As `MPI_Init`. All threads may call, whatever is required.
///
/// # Safety
/// `provided` is null or valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Init_thread(
    _argc: *mut c_int,
    _argv: *mut *mut *mut c_char,
    _required: c_int,
    provided: *mut c_int,
) -> c_int {
    // SAFETY: by the contract.
    guard("MPI_Init_thread", || unsafe { store(provided, THREAD_MULTIPLE) }.and_then(|()| start()))
}

/// Ends all communicators. The other ranks are told that this one has left.
#[unsafe(no_mangle)]
extern "C" fn MPIABI_Finalize() -> c_int {
    guard("MPI_Finalize", || {
        let mut stage = stage();
        match &*stage {
            Stage::Failed(failure) => return Err(failure.clone()),
            Stage::Before => return fail(class::OTHER, "MPI is not initialized"),
            Stage::Finalized => return fail(class::OTHER, "MPI was finalized already"),
            Stage::Running => *stage = Stage::Finalized,
        }
        drop(stage);
        request::forget_all();
        drop(comm::TABLE.take_all());
        Ok(())
    })
}

/// Prints the reason, ends the operations of all ranks and ends this process.
#[unsafe(no_mangle)]
extern "C" fn MPIABI_Abort(handle: usize, code: c_int) -> c_int {
    guard("MPI_Abort", || {
        let comm = comm::find(handle)?;
        let text = format!("MPI_Abort was called with the code {code}");
        print(&text);
        comm.communicator.abort(&text);
        std::process::exit(if code == 0 { 1 } else { code })
    })
}

/// # Safety
/// `flag` is null or valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Initialized(flag: *mut c_int) -> c_int {
    let initialized = matches!(*stage(), Stage::Running | Stage::Finalized);
    // SAFETY: by the contract.
    guard("MPI_Initialized", || unsafe { store(flag, initialized.into()) })
}

/// # Safety
/// `flag` is null or valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Finalized(flag: *mut c_int) -> c_int {
    let finalized = matches!(*stage(), Stage::Finalized);
    // SAFETY: by the contract.
    guard("MPI_Finalized", || unsafe { store(flag, finalized.into()) })
}

/// # Safety
/// `provided` is null or valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Query_thread(provided: *mut c_int) -> c_int {
    // SAFETY: by the contract.
    guard("MPI_Query_thread", || unsafe { store(provided, THREAD_MULTIPLE) })
}

/// Says yes to every thread: all may do what only the main thread may do elsewhere.
///
/// # Safety
/// `flag` is null or valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Is_thread_main(flag: *mut c_int) -> c_int {
    // SAFETY: by the contract.
    guard("MPI_Is_thread_main", || unsafe { store(flag, 1) })
}

/// Stores `value` where the caller wants it.
///
/// # Safety
/// `place` is null or valid for writes.
pub(crate) unsafe fn store<T>(place: *mut T, value: T) -> Outcome {
    if place.is_null() {
        return fail(class::ARG, "the place for the result is NULL");
    }
    // SAFETY: by the contract.
    unsafe { place.write(value) };
    Ok(())
}

/// Stores a text with its NUL, cut to `room` bytes, and its length.
///
/// # Safety
/// `place` is null or valid for writes of `room` bytes; `length` is null or valid for writes.
pub(crate) unsafe fn store_text(place: *mut c_void, length: *mut c_int, room: usize, text: &str) -> Outcome {
    if place.is_null() {
        return fail(class::ARG, "the place for the text is NULL");
    }
    let mut end = text.len().min(room - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let place = place.cast::<u8>();
    // SAFETY: `end` and its NUL fit into `room`, which is valid by the contract.
    unsafe {
        place.copy_from_nonoverlapping(text.as_ptr(), end);
        place.add(end).write(0);
        store(length, end as c_int)
    }
}
