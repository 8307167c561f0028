//! The collectives.

use crate::abi::{Handle, class, is_in_place};
use crate::buffers::RawBuffers;
use crate::comm::{self, Comm};
use crate::datatype::{bytes_of, reducible, reduction};
use crate::error::{Outcome, fail, guard};
use std::ffi::{c_int, c_void};
use unisono::schedule::Collective;
use unisono::{DType, Operation, UnevenOperation};

/// The memory of a collective: one share of `count` elements on each side is the unit.
struct Memory {
    send: *const c_void,
    receive: *mut c_void,
}

/// Returns the operation of a collective that moves data, in bytes. The two sides may describe a
/// share by different datatypes, but not by different lengths.
fn movement(collective: Collective, (count, datatype): Extent, other: Option<Extent>) -> Outcome<Operation> {
    let bytes = bytes_of(datatype, count)?;
    if let Some((other_count, other_type)) = other {
        let other_bytes = bytes_of(other_type, other_count)?;
        if other_bytes != bytes {
            return fail(class::COUNT, format!("a share of {bytes} bytes is received as {other_bytes}"));
        }
    }
    Ok(Operation::new(collective, DType::U8, bytes))
}

/// Returns the operation of a collective that reduces.
fn reducing(collective: Collective, count: c_int, datatype: Handle, op: Handle) -> Outcome<Operation> {
    let (bytes, reduction) = (bytes_of(datatype, count)?, reduction(op)?);
    let dtype = reducible(datatype, reduction)?;
    Ok(Operation::new(collective, dtype, bytes / dtype.size()).with_reduction(reduction))
}

/// Runs one collective.
///
/// # Safety
/// The memory has the shares of the operation. Nobody else accesses it during the call.
unsafe fn run(comm: &Comm, operation: Operation, memory: Memory) -> Outcome {
    let communicator = &comm.communicator;
    let (rank, ranks) = (communicator.rank(), communicator.size());
    let (inputs, outputs) = operation.collective.shares(ranks, operation.root, rank);
    let share = operation.count * operation.dtype.size();
    let Memory { send, receive } = memory;
    let own_offset = rank * share;
    let (input, output) = (send.cast::<u8>(), receive.cast::<u8>());
    let in_place = inputs > 0 && is_in_place(send);
    let input = match in_place {
        true if inputs < outputs => output.wrapping_add(own_offset).cast_const(),
        true => output.cast_const(),
        false => input,
    };
    let (input_bytes, output_bytes) = (inputs * share, outputs * share);
    let buffers = RawBuffers { input, input_bytes, output, output_bytes, own_offset };
    // SAFETY: by the contract.
    unsafe { buffers.with_slices(|slices| Ok(communicator.run_operation(&operation, slices)?)) }
}

/// Returns the operation with the root that an argument names.
fn rooted(comm: &Comm, operation: Operation, root: c_int) -> Outcome<Operation> {
    match comm.rank_of("the root", root) {
        Ok(root) => Ok(operation.with_root(root)),
        Err(failure) => fail(class::ROOT, failure.text),
    }
}

/// A number of elements and their datatype.
type Extent = (c_int, Handle);

/// The share of this rank in a gather or a scatter.
struct OwnShare {
    extent: Extent,
    in_place: bool,
}

/// Returns the operation of a gather or a scatter, and true if this is the root, in place.
///
/// Each rank describes its own share. The root also describes the shares of all ranks, and its own
/// only if it is not in place.
fn own_share(
    comm: &Comm,
    collective: Collective,
    OwnShare { extent, in_place }: OwnShare,
    root_extent: Extent,
    root: c_int,
) -> Outcome<(Operation, bool)> {
    let is_root = comm.communicator.rank() == comm.rank_of("the root", root)?;
    let operation = match (is_root, in_place) {
        (true, true) => movement(collective, root_extent, None),
        (true, false) => movement(collective, extent, Some(root_extent)),
        (false, _) => movement(collective, extent, None),
    };
    Ok((rooted(comm, operation?, root)?, is_root && in_place))
}

/// Waits until all ranks have called it.
#[unsafe(no_mangle)]
extern "C" fn MPIABI_Barrier(comm: Handle) -> c_int {
    guard("MPI_Barrier", || Ok(comm::find(comm)?.communicator.barrier()?))
}

/// # Safety
/// As the standard says of the buffers, whose lengths follow from count and datatype. This holds
/// for every function below.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Bcast(
    buffer: *mut c_void,
    count: c_int,
    datatype: Handle,
    root: c_int,
    comm: Handle,
) -> c_int {
    guard("MPI_Bcast", || {
        let comm = comm::find(comm)?;
        let operation = rooted(&comm, movement(Collective::Broadcast, (count, datatype), None)?, root)?;
        // SAFETY: by the contract.
        unsafe { run(&comm, operation, Memory { send: buffer, receive: buffer }) }
    })
}

/// # Safety
/// As [`MPIABI_Bcast`].
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Allreduce(
    send: *const c_void,
    receive: *mut c_void,
    count: c_int,
    datatype: Handle,
    op: Handle,
    comm: Handle,
) -> c_int {
    guard("MPI_Allreduce", || {
        let operation = reducing(Collective::AllReduce, count, datatype, op)?;
        // SAFETY: by the contract.
        unsafe { run(&*comm::find(comm)?, operation, Memory { send, receive }) }
    })
}

/// # Safety
/// As [`MPIABI_Bcast`].
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Reduce(
    send: *const c_void,
    receive: *mut c_void,
    count: c_int,
    datatype: Handle,
    op: Handle,
    root: c_int,
    comm: Handle,
) -> c_int {
    guard("MPI_Reduce", || {
        let comm = comm::find(comm)?;
        let operation = rooted(&comm, reducing(Collective::Reduce, count, datatype, op)?, root)?;
        // SAFETY: by the contract.
        unsafe { run(&comm, operation, Memory { send, receive }) }
    })
}

/// # Safety
/// As [`MPIABI_Bcast`]. `counts` has a number for each rank.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Reduce_scatter(
    send: *const c_void,
    receive: *mut c_void,
    counts: *const c_int,
    datatype: Handle,
    op: Handle,
    comm: Handle,
) -> c_int {
    guard("MPI_Reduce_scatter", || {
        let comm = comm::find(comm)?;
        if counts.is_null() {
            return fail(class::ARG, "the counts are NULL");
        }
        // SAFETY: by the contract.
        let counts = unsafe { std::slice::from_raw_parts(counts, comm.communicator.size()) };
        if counts.iter().any(|count| *count != counts[0]) {
            // SAFETY: by the contract.
            return unsafe { uneven_reduce_scatter(&comm, Memory { send, receive }, counts, datatype, op) };
        }
        let operation = reducing(Collective::ReduceScatter, counts[0], datatype, op)?;
        // SAFETY: by the contract.
        unsafe { run(&comm, operation, Memory { send, receive }) }
    })
}

/// Reduces, and gives each rank a part of its own length.
///
/// # Safety
/// As [`MPIABI_Reduce_scatter`].
unsafe fn uneven_reduce_scatter(
    comm: &Comm,
    memory: Memory,
    counts: &[c_int],
    datatype: Handle,
    op: Handle,
) -> Outcome {
    let Memory { send, receive } = memory;
    let reduction = reduction(op)?;
    let dtype = reducible(datatype, reduction)?;
    let elements = |&count: &c_int| Ok(bytes_of(datatype, count)? / dtype.size());
    let counts = counts.iter().map(elements).collect::<Outcome<Vec<usize>>>()?;
    let bytes = |counts: &[usize]| counts.iter().sum::<usize>() * dtype.size();
    let rank = comm.communicator.rank();
    let buffers = RawBuffers {
        input: if is_in_place(send) { receive.cast_const() } else { send }.cast(),
        input_bytes: bytes(&counts),
        output: receive.cast(),
        output_bytes: bytes(&counts[rank..=rank]),
        own_offset: bytes(&counts[..rank]),
    };
    let operation = UnevenOperation::reduce_scatter(dtype, &counts, reduction);
    // SAFETY: by the contract.
    unsafe { buffers.with_slices(|slices| Ok(comm.communicator.run_uneven_operation(&operation, slices)?)) }
}

/// # Safety
/// As [`MPIABI_Bcast`].
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Reduce_scatter_block(
    send: *const c_void,
    receive: *mut c_void,
    count: c_int,
    datatype: Handle,
    op: Handle,
    comm: Handle,
) -> c_int {
    guard("MPI_Reduce_scatter_block", || {
        let operation = reducing(Collective::ReduceScatter, count, datatype, op)?;
        // SAFETY: by the contract.
        unsafe { run(&*comm::find(comm)?, operation, Memory { send, receive }) }
    })
}

/// Defines the collectives that move a share of each rank to all ranks.
macro_rules! shares_of_all {
    ($($function:ident $name:literal $collective:ident)*) => {$(
        /// # Safety
        /// As [`MPIABI_Bcast`].
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $function(
            send: *const c_void,
            send_count: c_int,
            send_type: Handle,
            receive: *mut c_void,
            receive_count: c_int,
            receive_type: Handle,
            comm: Handle,
        ) -> c_int {
            guard($name, || {
                let sent = (!is_in_place(send)).then_some((send_count, send_type));
                let operation = movement(Collective::$collective, (receive_count, receive_type), sent)?;
                // SAFETY: by the contract.
                unsafe { run(&*comm::find(comm)?, operation, Memory { send, receive }) }
            })
        }
    )*};
}

shares_of_all! {
    MPIABI_Allgather "MPI_Allgather" AllGather
    MPIABI_Alltoall "MPI_Alltoall" AllToAll
}

/// # Safety
/// As [`MPIABI_Bcast`].
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Gather(
    send: *const c_void,
    send_count: c_int,
    send_type: Handle,
    receive: *mut c_void,
    receive_count: c_int,
    receive_type: Handle,
    root: c_int,
    comm: Handle,
) -> c_int {
    guard("MPI_Gather", || {
        let comm = comm::find(comm)?;
        let (sent, received) = ((send_count, send_type), (receive_count, receive_type));
        let share = OwnShare { extent: sent, in_place: is_in_place(send) };
        let (operation, _) = own_share(&comm, Collective::Gather, share, received, root)?;
        // SAFETY: by the contract.
        unsafe { run(&comm, operation, Memory { send, receive }) }
    })
}

/// # Safety
/// As [`MPIABI_Bcast`].
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIABI_Scatter(
    send: *const c_void,
    send_count: c_int,
    send_type: Handle,
    receive: *mut c_void,
    receive_count: c_int,
    receive_type: Handle,
    root: c_int,
    comm: Handle,
) -> c_int {
    guard("MPI_Scatter", || {
        let comm = comm::find(comm)?;
        let (sent, received) = ((send_count, send_type), (receive_count, receive_type));
        let share = OwnShare { extent: received, in_place: is_in_place(receive) };
        // In place, the root's share stays where it is, and its copy is dropped.
        let (operation, stays) = own_share(&comm, Collective::Scatter, share, sent, root)?;
        let mut copy = if stays { vec![0u8; operation.count] } else { Vec::new() };
        let receive = if stays { copy.as_mut_ptr().cast() } else { receive };
        // SAFETY: by the contract; the copy has the length of a share.
        unsafe { run(&comm, operation, Memory { send, receive }) }
    })
}
