//! The roofline of this machine, which is its memory bandwidth and one-way flag latency, measured
//! in the same run.

use crate::bind::bind_thread;
use crate::perf::op_case::OpKind;
use crate::perf::tcp_baseline;
use std::sync::Barrier;
use std::time::Instant;
use unisono::{Communicator, Config, DType, ReduceKind};
use unisono_bench_support::stats::median;
use unisono_reducers::{PostOp, Source, Store, Target, copy_to, reduce_to};
use unisono_transports::testing::flag_latency::{FlagPage, Side};

/// The limits. Bandwidths count bytes read plus bytes written, in GB/s.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub(super) struct Roofline {
    /// Bandwidth of a copy that bypasses the cache, on one core.
    pub(super) copy_gbs_one_core: f64,
    /// Bandwidth of a copy that bypasses the cache, on all cores together.
    pub(super) copy_gbs_all_cores: f64,
    /// Bandwidth of a float32 sum of two buffers into one that bypasses the cache, on all cores
    /// together.
    pub(super) reduce_gbs: f64,
    /// One-way latency of a flag from one thread to another, in microseconds.
    pub(super) flag_latency_us: f64,
    /// Raw TCP sockets between two cores of this host, for ranks that communicate over TCP.
    #[serde(flatten)]
    pub(super) tcp: Option<Tcp>,
    /// Limits of the GPUs. For ranks on GPUs, the other figures do not apply.
    #[serde(flatten)]
    pub(super) gpus: Option<Gpus>,
}

/// The limits of GPUs.
#[cfg_attr(not(feature = "gpu"), allow(dead_code, reason = "ranks on GPUs alone have them"))]
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(super) struct Gpus {
    /// The driver's copies within one of them.
    pub(super) copy_gbs_gpu: f64,
    /// Number of GPUs that the ranks of this host use.
    pub(super) gpus: usize,
}

/// The limits of TCP over loopback, with sockets and messages as ranks use them.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(super) struct Tcp {
    /// GB/s in each direction of one pair, both directions at once.
    pub(super) tcp_gbs: f64,
    /// One-way latency of 8 bytes in microseconds, when both ends poll.
    pub(super) tcp_pingpong_us: f64,
}

/// Measures on rank 0 while the others wait, and returns the result on every rank.
pub(super) fn measure(comm: &Communicator) -> Result<Roofline, String> {
    let cores = cores();
    let mut values = [0.0; 6];
    let over_tcp = comm.transport() == "tcp" && comm.size() > 1;
    if comm.rank() == 0 {
        // On one core, a flag arrives only when the system switches between the polling threads.
        let handover = if cores > 1 { flag_latency() } else { 0.0 };
        let tcp = if over_tcp { tcp(comm.config())? } else { [0.0; 2] };
        values = [copy_rate(1), copy_rate(cores), reduce_rate(cores), handover, tcp[0], tcp[1]];
    }
    comm.broadcast(&mut values, 0).map_err(|error| error.to_string())?;
    let [copy_gbs_one_core, copy_gbs_all_cores, reduce_gbs, handover_us, tcp_gbs, tcp_pingpong_us] = values;
    let tcp = over_tcp.then_some(Tcp { tcp_gbs, tcp_pingpong_us });
    Ok(Roofline {
        copy_gbs_one_core,
        copy_gbs_all_cores,
        reduce_gbs,
        flag_latency_us: handover_us,
        tcp,
        gpus: None,
    })
}

fn tcp(config: &Config) -> Result<[f64; 2], String> {
    let gbs = tcp_baseline::bandwidth(config.sockets_per_peer, config.fifo_slot_bytes);
    let measured = gbs.and_then(|gbs| Ok([gbs, tcp_baseline::pingpong()?]));
    measured.map_err(|error| format!("cannot measure TCP over loopback: {error}"))
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get())
}

impl Roofline {
    /// Microseconds that an operation takes at least.
    pub(super) fn min_micros(&self, kind: OpKind, size: usize, ranks: usize, in_place: bool) -> f64 {
        if let Some(Tcp { tcp_gbs, tcp_pingpong_us }) = self.tcp {
            // One pair keeps two cores busy, so more ranks than cores do not move more bytes.
            let sending = cores().min(ranks).max(2) as f64;
            let bytes = kind.min_bytes_sent(size, ranks) as f64;
            return (bytes / (tcp_gbs * sending).max(1e-9) / 1e3).max(tcp_pingpong_us);
        }
        let copy_gbs = self.gpus.map_or(self.copy_gbs_all_cores, |gpus| gpus.copy_gbs_gpu * gpus.gpus as f64);
        let memory = kind.min_memory_bytes(size, ranks, in_place) as f64 / copy_gbs.max(1e-9) / 1e3;
        memory.max(self.flag_latency_us)
    }
}

impl std::fmt::Display for Roofline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(Gpus { copy_gbs_gpu, gpus }) = self.gpus {
            return write!(
                f,
                "the driver copies {copy_gbs_gpu:.1} GB/s within a GPU, of which there are {gpus}"
            );
        }
        write!(
            f,
            "copy {:.1} GB/s on one core, {:.1} on all; sum {:.1} on all; flag latency {:.2} us",
            self.copy_gbs_one_core, self.copy_gbs_all_cores, self.reduce_gbs, self.flag_latency_us
        )?;
        self.tcp.map_or(Ok(()), |Tcp { tcp_gbs, tcp_pingpong_us }| {
            write!(f, "; raw TCP {tcp_gbs:.2} GB/s each way at once, 8 B {tcp_pingpong_us:.2} us")
        })
    }
}

fn copy_rate(threads: usize) -> f64 {
    memory_rate(threads, 2, |target, source, _| copy_to(Store::Stream, target, source))
}

fn reduce_rate(threads: usize) -> f64 {
    memory_rate(threads, 3, |target, first, second| {
        reduce_to(Store::Stream, DType::F32, ReduceKind::Sum, PostOp::Identity, target, &[first, second]);
    })
}

/// Returns the GB/s of `threads` threads that do `work` on their own memory; `passes` bytes move
/// for each byte of a buffer.
fn memory_rate(
    threads: usize,
    passes: usize,
    work: impl Fn(Target<'_>, Source<'_>, Source<'_>) + Sync,
) -> f64 {
    let barrier = Barrier::new(threads);
    let seconds: Vec<f64> = std::thread::scope(|scope| {
        let thread = || {
            // Ones, because a buffer of zeros has no memory of its own until it is written: all of
            // its pages would be one page, which stays in the cache.
            let (first, second) = (vec![1u8; STREAM_BYTES], vec![1u8; STREAM_BYTES]);
            let mut target = vec![0u8; STREAM_BYTES];
            let mut times = Vec::new();
            for _ in 0..ROUNDS {
                barrier.wait();
                let begun = Instant::now();
                work(target.as_mut_slice().into(), first.as_slice().into(), second.as_slice().into());
                // The bytes of all threads count, so the time lasts until the slowest has moved its
                // bytes.
                barrier.wait();
                times.push(begun.elapsed().as_secs_f64());
            }
            median(times).unwrap_or_default()
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(thread)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let slowest = seconds.iter().copied().fold(1e-9, f64::max);
    (threads * passes * STREAM_BYTES) as f64 / slowest / 1e9
}

/// Microseconds of one flag from one core to another, one way: the median of some rounds.
fn flag_latency() -> f64 {
    median((0..ROUNDS).filter_map(|_| flag_ping_pong())).unwrap_or_default()
}

fn flag_ping_pong() -> Option<f64> {
    let table = FlagPage::new().ok()?;
    let play = |side| {
        bind_thread(side as usize, 2);
        table.run(side, ROUND_TRIPS)
    };
    let one_way = std::thread::scope(|scope| {
        scope.spawn(|| play(Side::Responder));
        scope.spawn(|| play(Side::Initiator)).join().ok().flatten()
    });
    one_way.map(|one_way| one_way.as_secs_f64() * 1e6)
}

/// Well out of every cache.
const STREAM_BYTES: usize = 64 << 20;
const ROUNDS: usize = 5;
const ROUND_TRIPS: u64 = 10_000;
