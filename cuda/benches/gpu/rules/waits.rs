//! Calls of the driver that wait for a kernel that runs, and for how long.

use super::raw::{Driver, module_of, name};
use super::spinner::Spinner;
use crate::BenchResult;
use cudarc::driver::{result, sys};
use serde_json::{Value, json};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Rules of this module that are about one call.
pub(super) const NAMES: [&str; 9] = [
    "cuMemAlloc",
    "cuMemHostAlloc",
    "cuMemFree",
    "cuMemFreeHost",
    "pageable copy to the GPU",
    "pageable copy to the host",
    "module load",
    "stream creation",
    "event creation",
];

pub(super) fn alloc(driver: &Driver) -> BenchResult<Value> {
    ask(driver, |_| {
        let mut address = 0;
        // SAFETY: the address has room.
        unsafe { sys::cuMemAlloc_v2(&mut address, LARGE) }
    })
}

pub(super) fn pin(driver: &Driver) -> BenchResult<Value> {
    ask(driver, |_| {
        let mut memory = null_mut();
        // SAFETY: the pointer has room.
        unsafe { sys::cuMemHostAlloc(&mut memory, LARGE, 0) }
    })
}

pub(super) fn free(driver: &Driver) -> BenchResult<Value> {
    let memory = [driver.alloc(LARGE)?, driver.alloc(LARGE)?];
    // SAFETY: each is freed once, and no kernel uses it.
    ask(driver, |turn| unsafe { sys::cuMemFree_v2(memory[turn]) })
}

pub(super) fn unpin(driver: &Driver) -> BenchResult<Value> {
    let memory = [driver.pin(LARGE)?.addr(), driver.pin(LARGE)?.addr()];
    // SAFETY: as above.
    ask(driver, |turn| unsafe { sys::cuMemFreeHost(std::ptr::with_exposed_provenance_mut(memory[turn])) })
}

pub(super) fn to_gpu(driver: &Driver) -> BenchResult<Value> {
    let (host, address, stream) = (vec![1u8; LARGE], driver.alloc(LARGE)?, driver.stream()?);
    let copy = |_| {
        // SAFETY: both have this length.
        let copied =
            unsafe { sys::cuMemcpyHtoDAsync_v2(address, host.as_ptr().cast(), LARGE, stream.handle()) };
        // SAFETY: the stream is alive.
        if copied.result().is_ok() { unsafe { sys::cuStreamSynchronize(stream.handle()) } } else { copied }
    };
    ask(driver, copy)
}

pub(super) fn to_host(driver: &Driver) -> BenchResult<Value> {
    let (host, address, stream) = (vec![1u8; LARGE], driver.alloc(LARGE)?, driver.stream()?);
    let memory = host.as_ptr().addr();
    let copy = |_| {
        let target = std::ptr::with_exposed_provenance_mut::<c_void>(memory);
        // SAFETY: both have this length, and nobody else uses the host's.
        let copied = unsafe { sys::cuMemcpyDtoHAsync_v2(target, address, LARGE, stream.handle()) };
        // SAFETY: the stream is alive.
        if copied.result().is_ok() { unsafe { sys::cuStreamSynchronize(stream.handle()) } } else { copied }
    };
    let answer = ask(driver, copy);
    drop(host);
    answer
}

/// The second load of the same text, so that compiling it counts as little as it can.
pub(super) fn module(driver: &Driver) -> BenchResult<Value> {
    let text = module_of("exchange")?;
    ask(driver, |_| {
        let mut module = null_mut();
        // SAFETY: the text has an end, and there are no options.
        unsafe { sys::cuModuleLoadDataEx(&mut module, text.as_ptr().cast(), 0, null_mut(), null_mut()) }
    })
}

pub(super) fn stream(driver: &Driver) -> BenchResult<Value> {
    ask(driver, |_| {
        let mut stream = null_mut();
        // SAFETY: the pointer has room.
        unsafe { sys::cuStreamCreate(&mut stream, 1) }
    })
}

pub(super) fn event(driver: &Driver) -> BenchResult<Value> {
    ask(driver, |_| {
        let mut event = null_mut();
        // SAFETY: the pointer has room.
        unsafe { sys::cuEventCreate(&mut event, 2) }
    })
}

/// Times a call on an idle GPU (turn 0) and beside a kernel that runs (turn 1), in a thread of its
/// own.
fn ask(driver: &Driver, call: impl Fn(usize) -> sys::CUresult + Sync) -> BenchResult<Value> {
    let (spinner, stream) = (Spinner::new(driver, true)?, driver.stream()?);
    let begun = Instant::now();
    call(0).result()?;
    let idle = begun.elapsed();
    spinner.launch(driver, stream, false).result()?;
    if !spinner.wait_begun(Duration::from_secs(2)) {
        return Err("the kernel does not begin".into());
    }
    let limit = PATIENCE.max(idle * 3);
    let (waited, result, elapsed) = std::thread::scope(|scope| -> BenchResult<_> {
        let (sender, receiver) = channel();
        let call = &call;
        scope.spawn(move || {
            let _ = driver.bind();
            let begun = Instant::now();
            let result = call(1);
            let _ = sender.send((result, begun.elapsed()));
        });
        let early = receiver.recv_timeout(limit);
        // A call that waits returns now. One that does not hangs, and so does this process.
        spinner.end();
        match early {
            Ok((result, elapsed)) => Ok((false, result, elapsed)),
            Err(_) => receiver.recv().map(|(result, elapsed)| (true, result, elapsed)).map_err(Into::into),
        }
    })?;
    // SAFETY: the stream is alive.
    unsafe { result::stream::synchronize(stream.handle())? };
    Ok(json!({
        "answer": waited, "result": name(result), "ms": ms(elapsed), "idle_ms": ms(idle),
    }))
}

/// Fills a stream behind a kernel that runs until a launch waits for room, and asks meanwhile for
/// an event of another stream.
pub(super) fn full_queue(driver: &Driver) -> BenchResult<Value> {
    let (spinner, stream, other) = (Spinner::new(driver, true)?, driver.stream()?, driver.stream()?);
    let (nothing, launched) = (Spinner::new(driver, false)?, AtomicUsize::new(0));
    let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
    // SAFETY: both are alive.
    unsafe { result::event::record(event, other.handle())? };
    spinner.launch(driver, stream, false).result()?;
    if !spinner.wait_begun(Duration::from_secs(2)) {
        return Err("the kernel does not begin".into());
    }
    let answer = std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = driver.bind();
            while launched.load(Ordering::Relaxed) < LAUNCHES_MAX
                && nothing.launch(driver, stream, false).result().is_ok()
            {
                launched.fetch_add(1, Ordering::Relaxed);
            }
        });
        let (mut last, mut start) = (0, Instant::now());
        while last < LAUNCHES_MAX && start.elapsed() < Duration::from_millis(200) {
            std::thread::sleep(Duration::from_millis(1));
            let now = launched.load(Ordering::Relaxed);
            if now > last {
                (last, start) = (now, Instant::now());
            }
        }
        // The end of the kernel, should the question wait for it.
        let watched = scope.spawn(|| {
            std::thread::sleep(PATIENCE);
            spinner.end();
        });
        let begun = Instant::now();
        // SAFETY: the event is alive.
        let result = unsafe { sys::cuEventQuery(event) };
        let elapsed = begun.elapsed();
        let _ = watched.join();
        json!({
            "call": "cuEventQuery", "answer": elapsed >= PATIENCE / 2, "result": name(result), "ms": ms(elapsed),
            "queue": last, "launches_wait": last < LAUNCHES_MAX,
        })
    });
    // SAFETY: the stream is alive.
    unsafe { result::stream::synchronize(stream.handle())? };
    Ok(answer)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

const PATIENCE: Duration = Duration::from_millis(300);
const LARGE: usize = 8 << 20;
const LAUNCHES_MAX: usize = 5000;
