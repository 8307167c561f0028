//! Questions about messages that have arrived.

use crate::abi::{ANY_TAG, Handle, PROC_NULL, Status, class};
use crate::comm::{self, Comm};
use crate::error::{Outcome, fail, guard};
use crate::point_to_point::{source_of, tag_of_receive};
use crate::request::store_status;
use crate::world::store;
use std::ffi::c_int;
use std::time::{Duration, Instant};

/// Returns the status of the first message that the arguments accept, if one has arrived.
fn look(comm: &Comm, source: c_int, tag: c_int) -> Outcome<Option<Status>> {
    let tag = tag_of_receive(tag)?;
    if source == PROC_NULL {
        return Ok(Some(Status::new(PROC_NULL, ANY_TAG, 0)));
    }
    let found = comm.communicator.probe(source_of(comm, source)?, tag)?;
    Ok(found.map(|message| Status::of(&message)))
}

/// Stores whether a message has arrived that a receive with these arguments would take.
///
/// # Safety
/// `flag` and `status` are null or valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Iprobe(
    source: c_int,
    tag: c_int,
    comm: Handle,
    flag: *mut c_int,
    status: *mut Status,
) -> c_int {
    guard("MPI_Iprobe", || {
        let found = look(&*comm::find(comm)?, source, tag)?;
        // SAFETY: by the contract.
        unsafe {
            store(flag, found.is_some().into())?;
            found.map_or(Ok(()), |found| store_status(status, Ok(found)))
        }
    })
}

/// Waits for a message that a receive with these arguments would take.
///
/// # Safety
/// `status` is null or valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Probe(source: c_int, tag: c_int, comm: Handle, status: *mut Status) -> c_int {
    guard("MPI_Probe", || {
        let comm = comm::find(comm)?;
        let (started, timeout) = (Instant::now(), comm.communicator.config().timeout);
        let mut pause = PAUSE_MIN;
        loop {
            if let Some(found) = look(&comm, source, tag)? {
                // SAFETY: by the contract.
                return unsafe { store_status(status, Ok(found)) };
            }
            if started.elapsed() > timeout {
                return fail(class::OTHER, refusal(&comm, source, tag, timeout));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    })
}

fn refusal(comm: &Comm, source: c_int, tag: c_int, timeout: Duration) -> String {
    format!(
        "rank {}: no message from rank {source} with tag {tag} arrived for {timeout:?} (negative: any); send \
         one, or set UNISONO_TIMEOUT_MS",
        comm.communicator.rank()
    )
}

const PAUSE_MIN: Duration = Duration::from_micros(10);
const PAUSE_MAX: Duration = Duration::from_millis(1);
