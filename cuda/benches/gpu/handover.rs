//! Flag latency: a counter from one block to another and back, by two launches on two streams, as
//! two ranks have them. The difference between publishing by a fence and by a release store is the
//! cost of the fence, once on an idle GPU and once beside copies that keep its memory busy.

use crate::rows::{median, print};
use crate::{Bench, BenchResult};
use serde_json::json;
use unisono_cuda::device::{Buffer, Deadline, Gpu, LaunchDims, Ping, Pinned, Stream, WaitReport, WaitState};

/// How it polls, and how it publishes.
const VARIANTS: [(&str, &str); 4] = [
    ("ping_relaxed_release", "relaxed polls, then an acquire; a release store"),
    ("ping_relaxed_fence", "relaxed polls, then an acquire; a fence and a relaxed store"),
    ("ping_acquire_release", "acquiring polls; a release store"),
    ("ping_acquire_fence", "acquiring polls; a fence and a relaxed store"),
];

pub(crate) fn run(bench: &Bench) -> BenchResult {
    let rounds = bench.sized(40, 20_000);
    let shape = LaunchDims { blocks: 1, threads: 32, cooperative: !bench.plain };
    for (kernel, way) in VARIANTS {
        let device_words = Words::Device(bench.gpu.alloc(WORDS)?);
        let host_words = Words::Host(bench.gpu.pin(WORDS)?);
        for (memory, words, rounds) in [("device", device_words, rounds), ("host", host_words, rounds / 4)] {
            let us = micros(&bench.gpu, kernel, &words, rounds, shape)?;
            print(&json!({"experiment": "handover", "case": way, "memory": memory, "us": us}));
        }
        let mut load = Load::new(bench)?;
        let words = Words::Device(bench.gpu.alloc(WORDS)?);
        load.begin()?;
        let us = micros(&bench.gpu, kernel, &words, bench.sized(40, 500), shape)?;
        // A load that has ended before the counters have would be no load.
        let lasted = load.is_running()?;
        print(&json!({
            "experiment": "handover", "case": way, "memory": "device, loaded", "us": us, "lasted": lasted,
        }));
        load.stream.synchronize()?;
    }
    Ok(())
}

/// Copies that keep the memory busy.
struct Load {
    stream: Stream,
    buffers: [Buffer<u8>; 2],
    copies: usize,
}

impl Load {
    fn new(bench: &Bench) -> BenchResult<Self> {
        let bytes = bench.sized(64 << 10, 512 << 20);
        let buffers = [bench.gpu.alloc(bytes)?, bench.gpu.alloc(bytes)?];
        Ok(Self { stream: bench.gpu.stream()?, buffers, copies: bench.sized(4, 60) })
    }

    /// Enqueues all copies.
    fn begin(&mut self) -> BenchResult {
        let [target, source] = &mut self.buffers;
        for _ in 0..self.copies {
            self.stream.copy(target, source)?;
        }
        Ok(())
    }

    fn is_running(&self) -> BenchResult<bool> {
        Ok(!self.stream.is_idle()?)
    }
}

/// Two counters, each on lines of its own.
enum Words {
    Device(Buffer<u64>),
    Host(Pinned<u64>),
}

const WORDS: usize = 64;

impl Words {
    fn address(&self) -> u64 {
        match self {
            Words::Device(buffer) => buffer.address(),
            Words::Host(pinned) => pinned.address(),
        }
    }

    fn used_by(&self, stream: &Stream) {
        match self {
            Words::Device(buffer) => buffer.record_stream(stream),
            Words::Host(pinned) => pinned.record_stream(stream),
        }
    }
}

fn micros(gpu: &Gpu, kernel: &str, words: &Words, rounds: u64, shape: LaunchDims) -> BenchResult<f64> {
    let kernel = gpu.kernel(kernel)?;
    let streams = [gpu.stream()?, gpu.stream()?];
    let abort: Pinned<u32> = gpu.pin(1)?;
    let status: Pinned<WaitReport> = gpu.pin(1)?;
    let patience = Deadline {
        abort: abort.address() as *const u32,
        report: status.address() as *mut WaitReport,
        timeout_ns: LIMIT_NS,
        failed: std::ptr::null_mut(),
    };
    let mut times = Vec::new();
    let mut raised = 0;
    for _ in 0..SAMPLES {
        // Counters go on from where they are, so that nothing has to be cleared between samples.
        let events = [streams[0].record()?];
        for (rank, stream) in [1, 0].into_iter().map(|rank| (rank, &streams[rank])) {
            let place = |rank: usize| words.address() + (rank as u64) * 256;
            let ping = Ping {
                own: place(rank) as *const u64,
                other: place(1 - rank) as *mut u64,
                first: raised,
                rounds,
                rank: rank as u32,
                unused: 0,
                deadline: patience.clone(),
            };
            // SAFETY: the arguments are the kernel's, and the memory that they point to records the
            // use by the stream.
            unsafe { kernel.launch(stream, shape, &ping)? };
            words.used_by(stream);
            abort.record_stream(stream);
            status.record_stream(stream);
        }
        let end = streams[0].record()?;
        streams[1].synchronize()?;
        times.push(f64::from(events[0].elapsed_ms(&end)?) * 1e3 / (2 * rounds) as f64);
        raised += rounds;
        if status.get(0).state() != Some(WaitState::Ok) {
            return Err(format!("{}: a counter did not come in time", kernel.name()).into());
        }
    }
    Ok(median(times))
}

const SAMPLES: usize = 5;
const LIMIT_NS: u64 = 5_000_000_000;
