//! Worlds of ranks on the software device.

use unisono::device::{DeviceCommunicator, Gpu, Stream};
use unisono::{Communicator, Config, GpuSizes};
use unisono_cuda::software::{self, SoftwareError};

/// A GPU of the software device; none, said aloud, where there is no C++ compiler.
pub(crate) fn gpu() -> Option<Gpu> {
    match software::install() {
        Ok(()) => Some(Gpu::open(0).unwrap()),
        Err(SoftwareError::NoCompiler { program, reason }) => {
            eprintln!("SKIPPED: needs a C++ compiler: {program}: {reason}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Small slots, so that small buffers are many pieces.
pub(crate) fn config() -> Config {
    let gpu =
        GpuSizes { channels: 2, slots: 3, slot_bytes: 4096, window_bytes: 64 << 10, peer_to_peer: true };
    Config { gpu, ..Config::default() }
}

/// Runs `body` on every rank, all of them on one GPU; results by rank.
pub(crate) fn run<R: Send>(
    ranks: usize,
    config: &Config,
    body: impl Fn(DeviceCommunicator, Stream) -> R + Sync,
) -> Option<Vec<R>> {
    let gpu = gpu()?;
    let comms = Communicator::threads_with(ranks, config).unwrap();
    std::thread::scope(|scope| {
        let (gpu, body) = (&gpu, &body);
        let rank = |comm: Communicator| {
            scope.spawn(move || {
                let stream = gpu.stream().unwrap();
                body(comm.on(gpu).unwrap(), stream)
            })
        };
        let threads: Vec<_> = comms.into_iter().map(rank).collect();
        Some(threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect())
    })
}

/// The same, but nothing of a peer is reached: all goes by way of the host.
pub(crate) fn staged() -> Config {
    let config = config();
    Config { gpu: GpuSizes { peer_to_peer: false, ..config.gpu }, ..config }
}
