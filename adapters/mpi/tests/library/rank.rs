//! The parts of one rank, in a process of its own.

use crate::mpi::{Mpi, Reduce};
use std::ffi::{c_int, c_void};

type Gather = extern "C" fn(*const c_void, c_int, usize, *mut c_void, c_int, usize, usize) -> c_int;
type Rooted = extern "C" fn(*const c_void, c_int, usize, *mut c_void, c_int, usize, c_int, usize) -> c_int;
type Scatter = extern "C" fn(*const c_void, *mut c_void, *const c_int, usize, usize, usize) -> c_int;

fn pointer<T>(values: &[T]) -> *const c_void {
    values.as_ptr().cast()
}

fn pointer_mut<T>(values: &mut [T]) -> *mut c_void {
    values.as_mut_ptr().cast()
}

fn done() {
    println!("done");
}

pub(crate) fn finalize(mpi: &Mpi) {
    // SAFETY: the signature is that of the standard.
    mpi.check(unsafe { mpi.function::<extern "C" fn() -> c_int>("MPIABI_Finalize")() });
}

/// Every collective, with separate buffers and in place, on all ranks and on every other one.
pub(crate) fn collectives() {
    let mpi = Mpi::init();
    let world = mpi.handle("MPIABI_COMM_WORLD");
    reductions(&mpi, world);
    movements(&mpi, world);
    rooted(&mpi, world);
    let (rank, size) = mpi.place(world);
    let half = mpi.split(world, (rank % 2) as c_int, -(rank as c_int));
    let members = (size + 1 - rank % 2) / 2;
    assert_eq!(mpi.place(half), (members - 1 - rank / 2, members), "keys order the ranks");
    reductions(&mpi, half);
    let none = mpi.split(world, mpi.int("MPIABI_UNDEFINED"), 0);
    assert_eq!(none, mpi.handle("MPIABI_COMM_NULL"));
    finalize(&mpi);
    done();
}

fn reductions(mpi: &Mpi, comm: usize) {
    let (rank, size) = mpi.place(comm);
    let values = |rank: usize| [rank as f32 + 1.0, -(rank as f32), 0.5];
    let inputs: Vec<_> = (0..size).map(values).collect();
    let fold = |reduction: fn(f32, f32) -> f32| -> Vec<f32> {
        (0..3)
            .map(|index| inputs.iter().map(|values| values[index]).reduce(reduction).expect("ranks"))
            .collect()
    };
    for (op, reduction) in [
        ("MPIABI_SUM", (|a, b| a + b) as fn(f32, f32) -> f32),
        ("MPIABI_PROD", |a, b| a * b),
        ("MPIABI_MIN", f32::min),
        ("MPIABI_MAX", f32::max),
    ] {
        assert_eq!(mpi.all_reduce(&values(rank), "MPIABI_FLOAT", op, comm), Ok(fold(reduction)), "{op}");
    }
    let complex = [[1.0f64, rank as f64]; 2];
    let sum = [[size as f64, (size * (size - 1) / 2) as f64]; 2].to_vec();
    let flat = mpi.all_reduce(&complex, "MPIABI_C_DOUBLE_COMPLEX", "MPIABI_SUM", comm);
    assert_eq!(flat, Ok(sum));
    reduce_scatter(mpi, comm);
}

fn reduce_scatter(mpi: &Mpi, comm: usize) {
    let (rank, size) = mpi.place(comm);
    let (long, sum) = (mpi.handle("MPIABI_INT64_T"), mpi.handle("MPIABI_SUM"));
    let in_place = mpi.handle("MPIABI_IN_PLACE") as *const c_void;
    for uneven in [false, true] {
        let counts: Vec<c_int> = (0..size).map(|rank| 2 + c_int::from(uneven) * rank as c_int).collect();
        let total: c_int = counts.iter().sum();
        let offset: c_int = counts[..rank].iter().sum();
        let mut input: Vec<i64> = (0..i64::from(total)).map(|index| index * (rank as i64 + 1)).collect();
        let mut output = vec![-1i64; counts[rank] as usize];
        let factor = (size * (size + 1) / 2) as i64;
        let expected: Vec<i64> =
            (i64::from(offset)..).take(output.len()).map(|index| index * factor).collect();
        // SAFETY: the signature is that of the standard, and the lengths are those of the counts.
        let run = |send, receive| unsafe {
            let run = mpi.function::<Scatter>("MPIABI_Reduce_scatter");
            mpi.check(run(send, receive, counts.as_ptr(), long, sum, comm));
        };
        run(pointer(&input), pointer_mut(&mut output));
        assert_eq!(output, expected);
        run(in_place, pointer_mut(&mut input));
        assert_eq!(input[..output.len()], expected);
    }
}

fn movements(mpi: &Mpi, comm: usize) {
    let (rank, size) = mpi.place(comm);
    let (int, byte) = (mpi.handle("MPIABI_INT"), mpi.handle("MPIABI_BYTE"));
    let in_place = mpi.handle("MPIABI_IN_PLACE") as *const c_void;
    // SAFETY: the signature is that of the standard.
    let [gather, exchange] =
        ["MPIABI_Allgather", "MPIABI_Alltoall"].map(|name| unsafe { mpi.function::<Gather>(name) });
    let values = [rank as i32; 3];
    let everything: Vec<i32> = (0..size).flat_map(|rank| [rank as i32; 3]).collect();
    let mut output = vec![-1i32; 3 * size];
    mpi.check(gather(pointer(&values), 12, byte, pointer_mut(&mut output), 3, int, comm));
    assert_eq!(output, everything);
    output.fill(-1);
    output[3 * rank..][..3].copy_from_slice(&values);
    mpi.check(gather(in_place, 0, int, pointer_mut(&mut output), 3, int, comm));
    assert_eq!(output, everything);
    let input: Vec<i32> = (0..size).map(|receiver| (10 * rank + receiver) as i32).collect();
    let expected: Vec<i32> = (0..size).map(|sender| (10 * sender + rank) as i32).collect();
    let mut output = vec![-1i32; size];
    mpi.check(exchange(pointer(&input), 1, int, pointer_mut(&mut output), 1, int, comm));
    assert_eq!(output, expected);
    let mut output = input;
    mpi.check(exchange(in_place, 0, int, pointer_mut(&mut output), 1, int, comm));
    assert_eq!(output, expected);
}

fn rooted(mpi: &Mpi, comm: usize) {
    let (rank, size) = mpi.place(comm);
    let (int, in_place) = (mpi.handle("MPIABI_INT"), mpi.handle("MPIABI_IN_PLACE") as *const c_void);
    // SAFETY: the signatures are those of the standard.
    let [gather, scatter] =
        ["MPIABI_Gather", "MPIABI_Scatter"].map(|name| unsafe { mpi.function::<Rooted>(name) });
    for root in 0..size {
        let (is_root, root_argument) = (rank == root, root as c_int);
        let mut gathered = vec![-1i32; size];
        mpi.check(gather(
            pointer(&[rank as i32]),
            1,
            int,
            pointer_mut(&mut gathered),
            1,
            int,
            root_argument,
            comm,
        ));
        let ranks: Vec<i32> = (0..size as i32).collect();
        assert_eq!(gathered, if is_root { ranks.clone() } else { vec![-1; size] });
        let mut share = [-1i32];
        mpi.check(scatter(pointer(&ranks), 1, int, pointer_mut(&mut share), 1, int, root_argument, comm));
        assert_eq!(share, [rank as i32]);
        share = [-1];
        let place = if is_root { in_place.cast_mut() } else { pointer_mut(&mut share) };
        mpi.check(scatter(pointer(&ranks), 1, int, place, 1, int, root_argument, comm));
        assert_eq!(share, [if is_root { -1 } else { rank as i32 }]);
        broadcast_and_reduce(mpi, comm, root_argument);
    }
}

fn broadcast_and_reduce(mpi: &Mpi, comm: usize, root: c_int) {
    type Broadcast = extern "C" fn(*mut c_void, c_int, usize, c_int, usize) -> c_int;
    type ReduceTo = extern "C" fn(*const c_void, *mut c_void, c_int, usize, usize, c_int, usize) -> c_int;
    let (rank, size) = mpi.place(comm);
    let is_root = rank as c_int == root;
    let (int, sum) = (mpi.handle("MPIABI_INT"), mpi.handle("MPIABI_SUM"));
    // SAFETY: the signatures are those of the standard.
    let (broadcast, reduce) =
        unsafe { (mpi.function::<Broadcast>("MPIABI_Bcast"), mpi.function::<ReduceTo>("MPIABI_Reduce")) };
    let mut values = [rank as i32 + 5; 9];
    mpi.check(broadcast(pointer_mut(&mut values), 9, int, root, comm));
    assert_eq!(values, [root + 5; 9]);
    let (input, mut output) = ([rank as i32 + 1; 2], [-1i32; 2]);
    mpi.check(reduce(pointer(&input), pointer_mut(&mut output), 2, int, sum, root, comm));
    let total = (size * (size + 1) / 2) as i32;
    assert_eq!(output, [if is_root { total } else { -1 }; 2]);
}

/// A ring, an exchange of all with all, and a message to oneself, as XLA sends them.
pub(crate) fn messages() {
    type Begin = extern "C" fn(*const c_void, c_int, usize, c_int, c_int, usize, *mut usize) -> c_int;
    type Wait = extern "C" fn(*mut usize, *mut c_void) -> c_int;
    let mpi = Mpi::init();
    let (world, int) = (mpi.handle("MPIABI_COMM_WORLD"), mpi.handle("MPIABI_INT"));
    let (rank, size) = mpi.place(world);
    // SAFETY: the signatures are those of the standard; a receive changes what it is given to.
    let (send, receive, wait) = unsafe {
        (
            mpi.function::<Begin>("MPIABI_Isend"),
            mpi.function::<Begin>("MPIABI_Irecv"),
            mpi.function::<Wait>("MPIABI_Wait"),
        )
    };
    for length in [0, 1, 1000, 300_000] {
        for distance in 0..size {
            let (receiver, sender) = ((rank + distance) % size, (rank + size - distance) % size);
            let (input, mut output) = (vec![rank as i32; length], vec![-1i32; length]);
            let mut requests = [usize::MAX; 2];
            let [receiving, sending] = &mut requests;
            let buffer = pointer_mut(&mut output).cast_const();
            mpi.check(receive(buffer, length as c_int, int, sender as c_int, 0, world, receiving));
            mpi.check(send(pointer(&input), length as c_int, int, receiver as c_int, 0, world, sending));
            let mut status = [0i32; 10];
            mpi.check(wait(receiving, status.as_mut_ptr().cast()));
            mpi.check(wait(sending, std::ptr::null_mut()));
            assert_eq!(requests, [mpi.handle("MPIABI_REQUEST_NULL"); 2]);
            assert_eq!((output, status[6]), (vec![sender as i32; length], sender as i32));
            exchange(&mpi, world, length, Neighbors { receiver, sender });
        }
    }
    finalize(&mpi);
    done();
}

/// The ranks to which and from which a rank exchanges a message.
struct Neighbors {
    receiver: usize,
    sender: usize,
}

/// `MPI_Sendrecv`, with the count that its status holds.
fn exchange(mpi: &Mpi, comm: usize, length: usize, neighbors: Neighbors) {
    type Exchange = extern "C" fn(
        *const c_void,
        c_int,
        usize,
        c_int,
        c_int,
        *mut c_void,
        c_int,
        usize,
        c_int,
        c_int,
        usize,
        *mut c_void,
    ) -> c_int;
    type Count = extern "C" fn(*const c_void, usize, *mut c_int) -> c_int;
    let (rank, _) = mpi.place(comm);
    let (int, byte) = (mpi.handle("MPIABI_INT"), mpi.handle("MPIABI_BYTE"));
    let (input, mut output) = (vec![rank as i32; length], vec![-1i32; length]);
    let (mut status, mut count) = ([0i32; 10], -1);
    let (send, receive) = (pointer(&input), pointer_mut(&mut output));
    let (elements, bytes) = (length as c_int, 4 * length as c_int);
    let (receiver, sender) = (neighbors.receiver as c_int, neighbors.sender as c_int);
    // SAFETY: the signatures are those of the standard, and the lengths those of the buffers.
    unsafe {
        let run = mpi.function::<Exchange>("MPIABI_Sendrecv");
        let status = status.as_mut_ptr().cast();
        mpi.check(run(send, elements, int, receiver, 0, receive, bytes, byte, sender, 0, comm, status));
        mpi.check(mpi.function::<Count>("MPIABI_Get_count")(status, int, &mut count));
    }
    assert_eq!((output, count), (vec![sender; length], elements));
}

/// Threads with a communicator each, at the same time.
pub(crate) fn threads() {
    let mpi = Mpi::init();
    let world = mpi.handle("MPIABI_COMM_WORLD");
    let comms: Vec<usize> = (0..4).map(|key| mpi.split(world, 0, key)).collect();
    let mpi = &mpi;
    std::thread::scope(|scope| {
        for comm in comms {
            scope.spawn(move || {
                let mut main = -1;
                // SAFETY: the signature is that of the standard.
                mpi.check(unsafe {
                    mpi.function::<extern "C" fn(*mut c_int) -> c_int>("MPIABI_Is_thread_main")(&mut main)
                });
                assert_eq!(main, 1);
                for round in 0..200u64 {
                    let sums = mpi.all_reduce(&[round, comm as u64], "MPIABI_UINT64_T", "MPIABI_SUM", comm);
                    assert_eq!(sums, Ok(vec![2 * round, 2 * comm as u64]));
                }
            });
        }
    });
    finalize(mpi);
    done();
}

/// A function that is missing fails twice.
pub(crate) fn missing() {
    let mpi = Mpi::init();
    for _ in 0..2 {
        // SAFETY: a missing function looks at no argument.
        let code = unsafe { mpi.function::<extern "C" fn() -> c_int>("MPIABI_Win_create")() };
        assert_eq!(code, mpi.int("MPIABI_ERR_UNSUPPORTED_OPERATION"));
        assert!(mpi.error_text(code).contains("MPI_Win_create"), "{}", mpi.error_text(code));
    }
    finalize(&mpi);
    done();
}

/// Arguments that make no sense are refused, and the communicator works afterwards.
pub(crate) fn errors() {
    let mpi = Mpi::init();
    let world = mpi.handle("MPIABI_COMM_WORLD");
    let refused = |kind: &str, op: &str, comm: usize, class: &str, words: &str| {
        let code = mpi.all_reduce(&[1.0f64, 2.0], kind, op, comm).expect_err(words);
        assert_eq!(code, mpi.int(class), "{}", mpi.error_text(code));
        assert!(mpi.error_text(code).contains(words), "{} has no {words}", mpi.error_text(code));
    };
    refused("MPIABI_DOUBLE", "MPIABI_SUM", 99, "MPIABI_ERR_COMM", "no such communicator");
    refused("MPIABI_DATATYPE_NULL", "MPIABI_SUM", world, "MPIABI_ERR_TYPE", "no datatype");
    refused("MPIABI_LONG_DOUBLE", "MPIABI_SUM", world, "MPIABI_ERR_TYPE", "Float of 128 bits");
    refused("MPIABI_DOUBLE", "MPIABI_MAXLOC", world, "MPIABI_ERR_OP", "is not implemented");
    // SAFETY: the signature is that of the standard; nothing is read from the null pointers.
    let reduce = unsafe { mpi.function::<Reduce>("MPIABI_Allreduce") };
    let (double, sum) = (mpi.handle("MPIABI_DOUBLE"), mpi.handle("MPIABI_SUM"));
    let null = std::ptr::null_mut();
    let code = reduce(null, null, 4, double, sum, world);
    assert_eq!(code, mpi.int("MPIABI_ERR_BUFFER"));
    assert_eq!(reduce(null, null, -1, double, sum, world), mpi.int("MPIABI_ERR_COUNT"));
    let (mut value, in_place) = (1.0f64, std::ptr::without_provenance_mut(mpi.handle("MPIABI_IN_PLACE")));
    for input in [(&raw mut value).cast(), in_place] {
        let code = reduce(input, in_place, 1, double, sum, world);
        assert_eq!(code, mpi.int("MPIABI_ERR_BUFFER"));
        assert!(mpi.error_text(code).contains("MPI_IN_PLACE"), "{}", mpi.error_text(code));
    }
    assert_eq!(mpi.all_reduce(&[1.0f64], "MPIABI_DOUBLE", "MPIABI_SUM", world), Ok(vec![2.0]));
    finalize(&mpi);
    assert!(mpi.all_reduce(&[1.0f64], "MPIABI_DOUBLE", "MPIABI_SUM", world).is_err());
    done();
}

/// Rank 1 ends without a word, and rank 0 hears of it.
pub(crate) fn leaves() {
    let mpi = Mpi::init();
    let world = mpi.handle("MPIABI_COMM_WORLD");
    assert_eq!(mpi.all_reduce(&[1u32], "MPIABI_UINT32_T", "MPIABI_SUM", world), Ok(vec![2]));
    if mpi.place(world).0 == 1 {
        std::process::exit(3);
    }
    let code = mpi.all_reduce(&[1u32], "MPIABI_UINT32_T", "MPIABI_SUM", world).expect_err("rank 1 has left");
    let text = mpi.error_text(code);
    assert!(text.starts_with("MPI_Allreduce: rank 0") && text.contains("rank 1"), "{text}");
    done();
}
