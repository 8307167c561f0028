//! Captures: what they forbid to which thread, and how streams join them.

use super::world::{each_way, with, words};
use crate::emulator::Device;
use crate::libcuda::*;
use std::ffi::{c_int, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicU32, Ordering};

const GLOBAL: c_int = 0;
const THREAD_LOCAL: c_int = 1;
const RELAXED: c_int = 2;
const UNSUPPORTED: c_int = 900;
const INVALIDATED: c_int = 901;
const UNMATCHED: c_int = 903;
const UNJOINED: c_int = 904;
const ISOLATION: c_int = 905;
const CAPTURED_EVENT: c_int = 907;

fn event(device: &Device) -> Handle {
    let mut event = null_mut();
    assert_eq!(call!(device, cuEventCreate(&mut event => *mut Handle, 2 => u32)), 0);
    event
}

fn begin(device: &Device, stream: Handle, mode: c_int) {
    assert_eq!(call!(device, cuStreamBeginCapture_v2(stream => Handle, mode => c_int)), 0);
}

fn end(device: &Device, stream: Handle) -> (c_int, Handle) {
    let mut graph = null_mut();
    (call!(device, cuStreamEndCapture(stream => Handle, &mut graph => *mut Handle)), graph)
}

fn record(device: &Device, event: Handle, stream: Handle) -> c_int {
    call!(device, cuEventRecord(event => Handle, stream => Handle))
}

fn wait(device: &Device, stream: Handle, event: Handle) -> c_int {
    call!(device, cuStreamWaitEvent(stream => Handle, event => Handle, 0 => u32))
}

fn query(device: &Device, event: Handle) -> c_int {
    call!(device, cuEventQuery(event => Handle))
}

fn set(device: &Device, memory: u64, byte: u8, stream: Handle) -> c_int {
    call!(device, cuMemsetD8Async(memory => u64, byte => u8, 4 => usize, stream => Handle))
}

/// Exchanges the mode of this thread, and returns the mode before.
fn exchange(device: &Device, mut mode: c_int) -> c_int {
    assert_eq!(call!(device, cuThreadExchangeStreamCaptureMode(&mut mode => *mut c_int)), 0);
    mode
}

/// Makes a potentially unsafe call during a capture, in this thread or in another one, which has
/// the mode `thread`. Returns the results of that call and of the end of the capture.
fn during(device: &Device, capture: c_int, thread: c_int, in_this_thread: bool) -> (c_int, c_int) {
    let (stream, event) = (stream(device), event(device).addr());
    begin(device, stream, capture);
    let ask = || {
        let mode = exchange(device, thread);
        let answer = query(device, without_provenance_mut::<c_void>(event));
        assert_eq!(exchange(device, mode), thread);
        answer
    };
    let answer =
        if in_this_thread { ask() } else { std::thread::scope(|scope| scope.spawn(ask).join().unwrap()) };
    (answer, end(device, stream).0)
}

#[test]
fn unsafe_calls_are_refused_by_mode_and_thread() {
    let test = "captures::unsafe_calls_are_refused_by_mode_and_thread";
    each_way(test, "capture-modes", &[], |device, kept| {
        for capture in [GLOBAL, THREAD_LOCAL, RELAXED] {
            for thread in [GLOBAL, THREAD_LOCAL, RELAXED] {
                let forbidden_here = thread != RELAXED && capture != RELAXED;
                let forbidden_elsewhere = thread == GLOBAL && capture == GLOBAL;
                for (here, forbidden) in [(true, forbidden_here), (false, forbidden_elsewhere)] {
                    let expected = if forbidden && kept { (UNSUPPORTED, INVALIDATED) } else { (0, 0) };
                    let found = during(device, capture, thread, here);
                    assert_eq!(found, expected, "capture {capture}, thread {thread}, own {here}");
                }
            }
        }
    });
}

#[test]
fn each_unsafe_call_is_refused_and_spoils() {
    with("captures::each_unsafe_call_is_refused_and_spoils", &[], |device| {
        let (captured, other, event) = (stream(device), stream(device), event(device));
        let memory = allocate(device, 64);
        type Ask<'a> = &'a dyn Fn() -> c_int;
        let calls: [(&str, Ask<'_>); 8] = [
            ("cuMemAlloc", &|| call!(device, cuMemAlloc_v2(&mut 0 => *mut u64, 64 => usize))),
            ("cuMemFree", &|| call!(device, cuMemFree_v2(memory => u64))),
            (
                "cuMemHostAlloc",
                &|| call!(device, cuMemHostAlloc(&mut null_mut() => *mut Handle, 64 => usize, 0 => u32)),
            ),
            ("cuEventQuery", &|| query(device, event)),
            ("cuStreamQuery", &|| call!(device, cuStreamQuery(other => Handle))),
            ("cuStreamSynchronize", &|| synchronize(device, other)),
            ("cuCtxSynchronize", &|| call!(device, cuCtxSynchronize())),
            ("cuModuleLoadDataEx", &|| module(device, ".visible .entry spin(").err().unwrap_or(0)),
        ];
        for (name, ask) in calls {
            begin(device, captured, GLOBAL);
            assert_eq!((ask(), end(device, captured).0), (UNSUPPORTED, INVALIDATED), "{name}");
        }
        // Work, and new events and streams, are safe.
        begin(device, captured, GLOBAL);
        assert_eq!((set(device, memory, 1, other), record(device, event, other)), (0, 0));
        destroy(device, stream(device));
        assert_eq!(end(device, captured).0, 0);
    });
}

/// A fork and a join: the second stream's work is part of the graph, in order.
#[test]
fn events_join_streams_to_a_capture() {
    with("captures::events_join_streams_to_a_capture", &[], |device| {
        let [first, second] = [(); 2].map(|()| stream(device));
        let [fork, join] = [(); 2].map(|()| event(device));
        let word = &words(device, 1)[0];
        let address = (&raw const *word).addr() as u64;
        begin(device, first, GLOBAL);
        let steps = [
            set(device, address, 1, first),
            record(device, fork, first),
            wait(device, second, fork),
            set(device, address, 2, second),
            record(device, join, second),
            wait(device, first, join),
        ];
        assert_eq!(steps, [0; 6]);
        let mut status = 0;
        assert_eq!(call!(device, cuStreamIsCapturing(second => Handle, &mut status => *mut c_int)), 0);
        assert_eq!(status, 1, "the second stream is captured");
        let (ended, graph) = end(device, first);
        assert_eq!((ended, word.load(Ordering::SeqCst)), (0, 0), "captured work has run");
        let mut ready = null_mut();
        let made =
            call!(device, cuGraphInstantiateWithFlags(&mut ready => *mut Handle, graph => Handle, 0 => u64));
        assert_eq!(made, 0);
        for _ in 0..10 {
            word.store(0, Ordering::SeqCst);
            assert_eq!(call!(device, cuGraphLaunch(ready => Handle, second => Handle)), 0);
            assert_eq!(synchronize(device, second), 0);
            assert_eq!(word.load(Ordering::SeqCst), 0x0202_0202);
        }
    });
}

#[test]
fn capture_mistakes_are_refused() {
    with("captures::capture_mistakes_are_refused", &[], |device| {
        let [first, second] = [(); 2].map(|()| stream(device));
        let [fork, plain] = [(); 2].map(|()| event(device));
        let memory = allocate(device, 64);
        assert_eq!(record(device, plain, second), 0);
        // A captured event comes at no time.
        begin(device, first, RELAXED);
        assert_eq!((record(device, fork, first), query(device, fork)), (0, CAPTURED_EVENT));
        assert_eq!(end(device, first).0, INVALIDATED);
        // A graph does not depend on work outside of it.
        begin(device, first, RELAXED);
        assert_eq!(wait(device, first, plain), ISOLATION);
        assert_eq!(end(device, first).0, INVALIDATED);
        // A stream that joined must come back, and is not where the capture ends.
        begin(device, first, RELAXED);
        assert_eq!((record(device, fork, first), wait(device, second, fork)), (0, 0));
        assert_eq!(set(device, memory, 1, second), 0);
        assert_eq!((end(device, second).0, end(device, first).0), (UNMATCHED, UNJOINED));
        assert_eq!(synchronize(device, second), 0, "the stream works again");
    });
}

static DESTROYED: AtomicU32 = AtomicU32::new(0);

extern "C" fn destroyed(amount: *mut c_void) {
    DESTROYED.fetch_add(amount.addr() as u32, Ordering::SeqCst);
}

#[test]
fn user_object_lives_as_long_as_graphs() {
    with("captures::user_object_lives_as_long_as_graphs", &[], |device| {
        let (stream, mut object, mut graph, mut ready) = (stream(device), null_mut(), null_mut(), null_mut());
        type Destroy = extern "C" fn(*mut c_void);
        let made = call!(device, cuUserObjectCreate(
            &mut object => *mut Handle, without_provenance_mut(7) => *mut c_void, destroyed => Destroy,
            1 => u32, 1 => u32
        ));
        begin(device, stream, RELAXED);
        let (mut status, mut number) = (0, 0u64);
        let info = call!(device, cuStreamGetCaptureInfo_v2(
            stream => Handle, &mut status => *mut c_int, &mut number => *mut u64, &mut graph => *mut Handle,
            null_mut() => *mut Handle, null_mut() => *mut usize
        ));
        assert_eq!((made, info, status), (0, 0, 1));
        let kept = call!(device, cuGraphRetainUserObject(
            graph => Handle, object => Handle, 1 => u32, 1 => u32
        ));
        let (ended, captured) = end(device, stream);
        assert_eq!((kept, ended, captured, number > 0), (0, 0, graph, true));
        let made =
            call!(device, cuGraphInstantiateWithFlags(&mut ready => *mut Handle, graph => Handle, 0 => u64));
        assert_eq!((made, call!(device, cuGraphDestroy(graph => Handle))), (0, 0));
        assert_eq!(DESTROYED.load(Ordering::SeqCst), 0, "the executable graph keeps it");
        assert_eq!(call!(device, cuGraphExecDestroy(ready => Handle)), 0);
        while DESTROYED.load(Ordering::SeqCst) != 7 {
            std::thread::yield_now();
        }
    });
}
