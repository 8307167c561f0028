//! Messages with tags, from any source, tested and probed.

use crate::mpi::Mpi;
use std::ffi::{c_int, c_void};

type Begin = extern "C" fn(*const c_void, c_int, usize, c_int, c_int, usize, *mut usize) -> c_int;
type Wait = extern "C" fn(*mut usize, *mut c_void) -> c_int;
type WaitAll = extern "C" fn(c_int, *mut usize, *mut c_void) -> c_int;
type Test = extern "C" fn(*mut usize, *mut c_int, *mut c_void) -> c_int;
type TestAll = extern "C" fn(c_int, *mut usize, *mut c_int, *mut c_void) -> c_int;
type Send = extern "C" fn(*const c_void, c_int, usize, c_int, c_int, usize) -> c_int;
type Receive = extern "C" fn(*mut c_void, c_int, usize, c_int, c_int, usize, *mut c_void) -> c_int;
type Probe = extern "C" fn(c_int, c_int, usize, *mut c_void) -> c_int;
type Look = extern "C" fn(c_int, c_int, usize, *mut c_int, *mut c_void) -> c_int;
type Count = extern "C" fn(*const c_void, usize, *mut c_int) -> c_int;

/// A status as C sees it: ten integers.
type Status = [c_int; 10];

/// Messages of `int`s within one communicator.
struct Messages<'m> {
    mpi: &'m Mpi,
    comm: usize,
    int: usize,
    rank: usize,
    size: usize,
}

impl Messages<'_> {
    fn begin(&self, name: &str, memory: *const i32, length: usize, peer: usize, tag: c_int) -> usize {
        let mut request = usize::MAX;
        // SAFETY: the signature is that of the standard.
        let begin = unsafe { self.mpi.function::<Begin>(name) };
        let peer = peer as c_int;
        self.mpi.check(begin(memory.cast(), length as c_int, self.int, peer, tag, self.comm, &mut request));
        request
    }

    fn isend(&self, values: &[i32], receiver: usize, tag: c_int) -> usize {
        self.begin("MPIABI_Isend", values.as_ptr(), values.len(), receiver, tag)
    }

    fn irecv(&self, values: &mut [i32], sender: usize, tag: c_int) -> usize {
        self.begin("MPIABI_Irecv", values.as_mut_ptr(), values.len(), sender, tag)
    }

    fn wait(&self, mut request: usize) -> Status {
        let mut status = Status::default();
        // SAFETY: the signature is that of the standard.
        let wait = unsafe { self.mpi.function::<Wait>("MPIABI_Wait") };
        self.mpi.check(wait(&mut request, status.as_mut_ptr().cast()));
        assert_eq!(request, self.mpi.handle("MPIABI_REQUEST_NULL"));
        status
    }

    fn send(&self, values: &[i32], receiver: usize, tag: c_int) {
        // SAFETY: the signature is that of the standard.
        let send = unsafe { self.mpi.function::<Send>("MPIABI_Send") };
        let length = values.len() as c_int;
        self.mpi.check(send(values.as_ptr().cast(), length, self.int, receiver as c_int, tag, self.comm));
    }

    /// Receives by `MPI_Recv` and returns its code.
    fn receive(&self, values: &mut [i32], sender: c_int, tag: c_int, status: &mut Status) -> c_int {
        // SAFETY: the signature is that of the standard.
        let receive = unsafe { self.mpi.function::<Receive>("MPIABI_Recv") };
        let (length, status) = (values.len() as c_int, status.as_mut_ptr().cast());
        receive(values.as_mut_ptr().cast(), length, self.int, sender, tag, self.comm, status)
    }

    fn count(&self, status: &Status) -> c_int {
        let mut count = -1;
        // SAFETY: the signature is that of the standard.
        let ask = unsafe { self.mpi.function::<Count>("MPIABI_Get_count") };
        self.mpi.check(ask(status.as_ptr().cast(), self.int, &mut count));
        count
    }

    /// Asserts what a status says: source, tag, and number of elements.
    fn assert_status(&self, status: &Status, source: usize, tag: c_int, count: usize) {
        assert_eq!(
            (status[6], status[7], self.count(status)),
            (source as c_int, tag, count as c_int),
            "source, tag, count"
        );
    }

    fn sum(&self, value: u64) {
        let total = self.mpi.all_reduce(&[value], "MPIABI_UINT64_T", "MPIABI_SUM", self.comm);
        assert_eq!(total, Ok(vec![value * self.size as u64]));
    }

    fn next(&self) -> usize {
        (self.rank + 1) % self.size
    }

    fn previous(&self) -> usize {
        (self.rank + self.size - 1) % self.size
    }
}

pub(crate) fn requests() {
    let mpi = Mpi::init();
    let comm = mpi.handle("MPIABI_COMM_WORLD");
    let (rank, size) = mpi.place(comm);
    let messages = Messages { mpi: &mpi, comm, int: mpi.handle("MPIABI_INT"), rank, size };
    for length in [1, 1000, 300_000] {
        around_a_collective(&messages, length);
        by_tag(&messages, length);
        shorter(&messages, length);
        tested(&messages, length);
    }
    from_any(&messages);
    probed(&messages);
    from_nobody(&messages);
    too_long(&messages);
    freed(&messages);
    refused_then_freed(&messages);
    // MPI_Finalize prints the failure of this one.
    refused(&messages);
    crate::rank::finalize(&mpi);
    println!("done");
}

/// A send begins, then a collective runs, then both messages are waited for.
fn around_a_collective(messages: &Messages<'_>, length: usize) {
    let input = vec![messages.rank as i32; length];
    let mut output = vec![-1; length];
    let sending = messages.isend(&input, messages.next(), 3);
    messages.sum(7);
    let receiving = messages.irecv(&mut output, messages.previous(), 3);
    messages.sum(8);
    messages.assert_status(&messages.wait(receiving), messages.previous(), 3, length);
    messages.wait(sending);
    assert_eq!(output, vec![messages.previous() as i32; length]);
}

/// Tags select messages, in another order than that in which they were sent.
fn by_tag(messages: &Messages<'_>, length: usize) {
    let inputs: Vec<Vec<i32>> = (0..4).map(|tag| vec![10 * tag; length]).collect();
    let tags = || (0..4).zip([0, 1, 12, c_int::MAX]);
    let mut requests: Vec<usize> =
        tags().map(|(index, tag)| messages.isend(&inputs[index], messages.next(), tag)).collect();
    let mut outputs = vec![vec![-1; length]; 4];
    for (output, (_, tag)) in outputs.iter_mut().zip(tags()).rev() {
        requests.push(messages.irecv(output, messages.previous(), tag));
    }
    let mut statuses = [Status::default(); 8];
    // SAFETY: the signature is that of the standard.
    let wait = unsafe { messages.mpi.function::<WaitAll>("MPIABI_Waitall") };
    messages.mpi.check(wait(8, requests.as_mut_ptr(), statuses.as_mut_ptr().cast()));
    assert_eq!(requests, [messages.mpi.handle("MPIABI_REQUEST_NULL"); 8]);
    let null = std::ptr::null_mut();
    assert_eq!(wait(2, null, null.cast()), messages.mpi.int("MPIABI_ERR_REQUEST"));
    assert_eq!(wait(0, null, null.cast()), 0);
    messages.assert_status(&statuses[4], messages.previous(), c_int::MAX, length);
    assert_eq!(outputs, inputs);
}

/// A receive has more room than its message needs.
fn shorter(messages: &Messages<'_>, length: usize) {
    let mut output = vec![-1; length + 5];
    let receiving = messages.irecv(&mut output, messages.previous(), 2);
    messages.send(&vec![4; length], messages.next(), 2);
    messages.assert_status(&messages.wait(receiving), messages.previous(), 2, length);
    assert_eq!((&output[..length], &output[length..]), (&vec![4; length][..], &[-1; 5][..]));
}

/// A test ends nothing before the message is there, and everything afterwards.
fn tested(messages: &Messages<'_>, length: usize) {
    // SAFETY: the signatures are those of the standard.
    let (test, test_all) = unsafe {
        (messages.mpi.function::<Test>("MPIABI_Test"), messages.mpi.function::<TestAll>("MPIABI_Testall"))
    };
    let null = messages.mpi.handle("MPIABI_REQUEST_NULL");
    let (input, mut outputs) = (vec![6; length], [vec![-1; length], vec![-1; length]]);
    let [first, second] = &mut outputs;
    let receives =
        [messages.irecv(first, messages.previous(), 8), messages.irecv(second, messages.previous(), 9)];
    let (mut requests, mut flag) = (receives, -1);
    messages.mpi.check(test(&mut requests[1], &mut flag, std::ptr::null_mut()));
    assert_eq!((flag, requests), (0, receives));
    messages.sum(1);
    messages.send(&input, messages.next(), 8);
    let mut status = Status::default();
    while flag == 0 {
        messages.mpi.check(test(&mut requests[0], &mut flag, status.as_mut_ptr().cast()));
    }
    messages.assert_status(&status, messages.previous(), 8, length);
    messages.mpi.check(test_all(2, requests.as_mut_ptr(), &mut flag, std::ptr::null_mut()));
    assert_eq!((flag, requests), (0, [null, receives[1]]));
    messages.sum(2);
    messages.send(&input, messages.next(), 9);
    let mut statuses = [Status::default(); 2];
    while flag == 0 {
        messages.mpi.check(test_all(2, requests.as_mut_ptr(), &mut flag, statuses.as_mut_ptr().cast()));
    }
    messages.assert_status(&statuses[1], messages.previous(), 9, length);
    assert_eq!((requests, outputs), ([null; 2], [input.clone(), input]));
}

/// Rank 0 receives from every rank, without naming any.
fn from_any(messages: &Messages<'_>) {
    let (any, any_tag) = (messages.mpi.int("MPIABI_ANY_SOURCE"), messages.mpi.int("MPIABI_ANY_TAG"));
    if messages.rank > 0 {
        return messages.send(&[messages.rank as i32], 0, 20 + messages.rank as c_int);
    }
    let mut sources = Vec::new();
    for _ in 1..messages.size {
        let (mut value, mut status) = ([-1], Status::default());
        messages.mpi.check(messages.receive(&mut value, any, any_tag, &mut status));
        messages.assert_status(&status, value[0] as usize, 20 + value[0], 1);
        sources.push(value[0] as usize);
    }
    sources.sort_unstable();
    assert_eq!(sources, (1..messages.size).collect::<Vec<_>>());
}

/// A probe says which message is there, and leaves it there.
fn probed(messages: &Messages<'_>) {
    let (any, any_tag) = (messages.mpi.int("MPIABI_ANY_SOURCE"), messages.mpi.int("MPIABI_ANY_TAG"));
    // SAFETY: the signatures are those of the standard.
    let (probe, look) = unsafe {
        (messages.mpi.function::<Probe>("MPIABI_Probe"), messages.mpi.function::<Look>("MPIABI_Iprobe"))
    };
    let mut flag = -1;
    messages.mpi.check(look(any, any_tag, messages.comm, &mut flag, std::ptr::null_mut()));
    assert_eq!(flag, 0);
    messages.sum(3);
    let sending = messages.isend(&[1, 2, 3], messages.next(), 6);
    let mut status = Status::default();
    messages.mpi.check(probe(any, any_tag, messages.comm, status.as_mut_ptr().cast()));
    messages.assert_status(&status, messages.previous(), 6, 3);
    messages.mpi.check(look(any, 6, messages.comm, &mut flag, status.as_mut_ptr().cast()));
    messages.assert_status(&status, messages.previous(), 6, 3);
    messages.mpi.check(look(any, 7, messages.comm, &mut status[0], std::ptr::null_mut()));
    assert_eq!((flag, status[0]), (1, 0));
    let mut values = [0; 3];
    messages.mpi.check(messages.receive(&mut values, any, 6, &mut status));
    messages.wait(sending);
    assert_eq!(values, [1, 2, 3]);
}

/// Messages to and from no process are complete at once.
fn from_nobody(messages: &Messages<'_>) {
    let nobody = messages.mpi.int("MPIABI_PROC_NULL");
    let (mut value, mut status) = ([5], Status::default());
    messages.mpi.check(messages.receive(&mut value, nobody, 1, &mut status));
    assert_eq!((value, status[6], messages.count(&status)), ([5], nobody, 0));
}

/// A message that is longer than its receive is an error of that receive alone.
fn too_long(messages: &Messages<'_>) {
    for length in [10, 300_000] {
        let input = vec![1; length];
        let sending = messages.isend(&input, messages.next(), 1);
        let (mut values, mut status) = ([0; 9], Status::default());
        let code = messages.receive(&mut values, messages.previous() as c_int, 1, &mut status);
        assert_eq!(code, messages.mpi.int("MPIABI_ERR_TRUNCATE"), "{}", messages.mpi.error_text(code));
        assert!(messages.mpi.error_text(code).contains(&(4 * length).to_string()));
        // The sender of a long message hears of it too.
        let mut request = sending;
        // SAFETY: the signature is that of the standard.
        let wait = unsafe { messages.mpi.function::<Wait>("MPIABI_Wait") };
        let expected = if length == 10 { 0 } else { code };
        assert_eq!(wait(&mut request, std::ptr::null_mut()), expected);
        messages.sum(4);
    }
}

/// The message of a request that was freed arrives.
fn freed(messages: &Messages<'_>) {
    let input = vec![2; 1000];
    let mut request = messages.isend(&input, messages.next(), 4);
    // SAFETY: the signature is that of the standard.
    let free = unsafe { messages.mpi.function::<extern "C" fn(*mut usize) -> c_int>("MPIABI_Request_free") };
    messages.mpi.check(free(&mut request));
    assert_eq!(request, messages.mpi.handle("MPIABI_REQUEST_NULL"));
    assert_eq!(free(&mut request), messages.mpi.int("MPIABI_ERR_REQUEST"));
    let (mut values, mut status) = (vec![0; 1000], Status::default());
    messages.mpi.check(messages.receive(&mut values, messages.previous() as c_int, 4, &mut status));
    assert_eq!(values, input);
    messages.sum(5);
}

/// Returns the request of a send that failed, which nobody has waited for, and its code.
fn refused(messages: &Messages<'_>) -> (usize, c_int) {
    let sending = messages.isend(&vec![1; 300_000], messages.next(), 1);
    let (mut values, mut status) = ([0; 9], Status::default());
    let code = messages.receive(&mut values, messages.previous() as c_int, 1, &mut status);
    assert_eq!(code, messages.mpi.int("MPIABI_ERR_TRUNCATE"));
    // The refusal comes before this message.
    messages.send(&[7], messages.previous(), 2);
    messages.mpi.check(messages.receive(&mut values, messages.next() as c_int, 2, &mut status));
    (sending, code)
}

/// Freeing a request whose message has failed returns the failure, which nobody can ask for later.
fn refused_then_freed(messages: &Messages<'_>) {
    let (mut request, code) = refused(messages);
    // SAFETY: the signature is that of the standard.
    let free = unsafe { messages.mpi.function::<extern "C" fn(*mut usize) -> c_int>("MPIABI_Request_free") };
    assert_eq!(free(&mut request), code);
    let text = messages.mpi.error_text(code);
    assert!(text.starts_with("MPI_Request_free: ") && text.contains("1200000"), "{text}");
    assert_eq!(request, messages.mpi.handle("MPIABI_REQUEST_NULL"));
    messages.sum(6);
}
