//! Kernels of different streams that run at once.

use super::raw::{Driver, RawStream, name};
use super::spinner::Spinner;
use crate::BenchResult;
use cudarc::driver::{result, sys};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Kind of launch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Launch {
    Plain,
    Cooperative,
    /// A graph with a cooperative kernel, as graphs of collectives have them.
    Graph,
}

/// A graph that can be launched.
struct Exec(sys::CUgraphExec);

// SAFETY: each is launched by one thread.
unsafe impl Sync for Exec {}

impl Exec {
    fn handle(&self) -> sys::CUgraphExec {
        self.0
    }
}

/// Launches so many kernels that wait, each in its own stream, and counts those that run at once.
pub(super) fn grids(driver: &Driver, kind: Launch, count: usize) -> BenchResult<Value> {
    let spinners = spinners(driver, count)?;
    let streams = streams_of(driver, count)?;
    let graphs = match kind {
        Launch::Graph => {
            spinners.iter().zip(&streams).map(|(spinner, stream)| graph(driver, spinner, *stream)).collect()
        }
        _ => Ok(Vec::new()),
    };
    let graphs: Vec<Exec> = graphs?;
    let begun = Instant::now();
    let refused = std::thread::scope(|scope| -> BenchResult<String> {
        // A launch may wait for the kernel before it. It then returns once that is told to end.
        let launches = scope.spawn(|| {
            let _ = driver.bind();
            let launch = |(index, spinner): (usize, &Spinner)| match kind {
                // SAFETY: both are alive.
                Launch::Graph => unsafe {
                    sys::cuGraphLaunch(graphs[index].handle(), streams[index].handle())
                },
                kind => spinner.launch(driver, streams[index], kind == Launch::Cooperative),
            };
            let failed = spinners.iter().enumerate().map(launch).find(|result| result.result().is_err());
            failed.map(name).unwrap_or_default()
        });
        while !spinners.iter().all(Spinner::has_begun) && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_micros(50));
        }
        let running = spinners.iter().filter(|spinner| spinner.has_begun()).count();
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        spinners.iter().for_each(Spinner::end);
        let refused = launches.join().map_err(|_| "the launching thread panicked")?;
        Ok(json!({"answer": running == count, "running": running, "ms": ms, "refused": refused}).to_string())
    })?;
    finish(&streams)?;
    Ok(serde_json::from_str(&refused)?)
}

/// Launches kernels that wait in one stream after the other, and counts the streams until one does
/// not begin.
pub(super) fn streams(driver: &Driver) -> BenchResult<Value> {
    let spinners = spinners(driver, STREAMS_MAX)?;
    let streams = streams_of(driver, STREAMS_MAX)?;
    let mut running = 0;
    for (spinner, stream) in spinners.iter().zip(&streams) {
        let launched = spinner.launch(driver, *stream, false).result();
        if launched.is_err() || !spinner.wait_begun(Duration::from_millis(150)) {
            break;
        }
        running += 1;
    }
    spinners.iter().for_each(Spinner::end);
    finish(&streams)?;
    Ok(json!({"running": running, "streams": STREAMS_MAX, "answer": running == STREAMS_MAX}))
}

fn spinners(driver: &Driver, count: usize) -> BenchResult<Vec<Spinner>> {
    (0..count).map(|_| Spinner::new(driver, true)).collect()
}

fn streams_of(driver: &Driver, count: usize) -> BenchResult<Vec<RawStream>> {
    (0..count).map(|_| driver.stream()).collect()
}

/// Waits for the streams and destroys them.
fn finish(streams: &[RawStream]) -> BenchResult {
    for stream in streams {
        // SAFETY: the stream is alive, and is used no more.
        unsafe {
            result::stream::synchronize(stream.handle())?;
            result::stream::destroy(stream.handle())?;
        }
    }
    Ok(())
}

fn graph(driver: &Driver, spinner: &Spinner, stream: RawStream) -> BenchResult<Exec> {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the stream is alive, and the graph is kept until the process ends.
    unsafe {
        result::stream::begin_capture(stream.handle(), mode)?;
        let launched = spinner.launch(driver, stream, true);
        let graph = result::stream::end_capture(stream.handle())?;
        launched.result()?;
        Ok(Exec(result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0))?))
    }
}

const PATIENCE: Duration = Duration::from_millis(800);
const STREAMS_MAX: usize = 48;
