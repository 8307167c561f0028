//! Calls that a capture of mode GLOBAL refuses to other threads, and calls that end it.

use super::raw::{Driver, name};
use crate::BenchResult;
use cudarc::driver::{result, sys};
use serde_json::{Value, json};
use std::ptr::null_mut;

pub(super) fn event_query(driver: &Driver) -> BenchResult<Value> {
    let (event, _) = recorded(driver)?;
    let event = event.addr();
    // SAFETY: the event is alive.
    ask(driver, || unsafe { sys::cuEventQuery(std::ptr::with_exposed_provenance_mut(event)) })
}

pub(super) fn event_record(driver: &Driver) -> BenchResult<Value> {
    let (event, other) = recorded(driver)?;
    let event = event.addr();
    // SAFETY: both are alive.
    ask(driver, || unsafe {
        sys::cuEventRecord(std::ptr::with_exposed_provenance_mut(event), other.handle())
    })
}

pub(super) fn event_create(driver: &Driver) -> BenchResult<Value> {
    ask(driver, || {
        let mut event = null_mut();
        // SAFETY: the pointer has room.
        unsafe { sys::cuEventCreate(&mut event, 2) }
    })
}

pub(super) fn stream_query(driver: &Driver) -> BenchResult<Value> {
    let other = driver.stream()?;
    // SAFETY: the stream is alive.
    ask(driver, || unsafe { sys::cuStreamQuery(other.handle()) })
}

pub(super) fn alloc(driver: &Driver) -> BenchResult<Value> {
    ask(driver, || {
        let mut address = 0;
        // SAFETY: the address has room.
        unsafe { sys::cuMemAlloc_v2(&mut address, 4096) }
    })
}

pub(super) fn pin(driver: &Driver) -> BenchResult<Value> {
    ask(driver, || {
        let mut memory = null_mut();
        // SAFETY: the pointer has room.
        unsafe { sys::cuMemHostAlloc(&mut memory, 4096, 0) }
    })
}

pub(super) fn copy(driver: &Driver) -> BenchResult<Value> {
    let (host, address, other) = (vec![1u8; 4096], driver.alloc(4096)?, driver.stream()?);
    ask(driver, || {
        let stream = other.handle();
        // SAFETY: both have this length.
        unsafe { sys::cuMemcpyHtoDAsync_v2(address, host.as_ptr().cast(), host.len(), stream) }
    })
}

/// An event of another stream, and the stream.
fn recorded(driver: &Driver) -> BenchResult<(sys::CUevent, super::raw::RawStream)> {
    let (event, other) =
        (result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?, driver.stream()?);
    // SAFETY: both are alive.
    unsafe {
        result::event::record(event, other.handle())?;
        result::stream::synchronize(other.handle())?;
    }
    Ok((event, other))
}

/// Calls it by another thread while this one captures a stream.
fn ask(driver: &Driver, call: impl Fn() -> sys::CUresult + Sync) -> BenchResult<Value> {
    let stream = driver.stream()?;
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    // SAFETY: the stream is alive.
    unsafe { result::stream::begin_capture(stream.handle(), mode)? };
    let answer = std::thread::scope(|scope| {
        let caller = scope.spawn(|| {
            let _ = driver.bind();
            call()
        });
        caller.join()
    });
    let mut graph = null_mut();
    // SAFETY: the stream is alive, and the graph has room.
    let captured = unsafe { sys::cuStreamEndCapture(stream.handle(), &mut graph) };
    let answer = answer.map_err(|_| "the asking thread panicked")?;
    Ok(json!({
        "answer": answer.result().is_err(), "result": name(answer), "capture": name(captured),
        "spoiled": captured.result().is_err(),
    }))
}
