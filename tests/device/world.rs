//! Groups of ranks on the software device.

use std::time::Duration;
use unisono::device::{DeviceCommunicator, Gpu, Stream};
use unisono::{Communicator, Config, DeviceConfig};
use unisono_cuda::test_gpu::test_gpu;
use unisono_transports::testing::NEVER;

/// Returns a GPU of the emulator, or the machine's first GPU: see [`test_gpu`].
pub(crate) fn gpu() -> Option<Gpu> {
    test_gpu(1)
}

/// Returns a configuration with small slots, so that small buffers need many slices.
pub(crate) fn config() -> Config {
    let gpu = DeviceConfig::default()
        .with_channels(2)
        .with_fifo_depth(3)
        .with_fifo_slot_bytes(4096)
        .with_window_bytes(64 << 10)
        .with_peer_to_peer(true)
        .with_ll128(true);
    // An event must end a wait of the host.
    Config::default().with_gpu(gpu).with_timeout(NEVER)
}

/// Returns the same configuration with a limit of the waits of kernels and of the host.
pub(crate) fn config_with_timeout(limit: Duration) -> Config {
    let config = config().with_timeout(limit);
    let gpu = config.gpu.with_timeout(limit);
    config.with_gpu(gpu)
}

/// Returns the same configuration with the low-latency lines that every GPU supports.
pub(crate) fn ll_config() -> Config {
    let config = config();
    let gpu = config.gpu.with_ll128(false);
    config.with_gpu(gpu)
}

/// Runs `body` on every rank, all of them on one GPU. Returns the results by rank.
pub(crate) fn run<R: Send>(
    ranks: usize,
    config: &Config,
    body: impl Fn(DeviceCommunicator, Stream) -> R + Sync,
) -> Option<Vec<R>> {
    let gpu = gpu()?;
    let comms = Communicator::builder().config(config).local(ranks).unwrap();
    std::thread::scope(|scope| {
        let (gpu, body) = (&gpu, &body);
        let rank = |comm: Communicator| {
            scope.spawn(move || {
                let stream = gpu.stream().unwrap();
                body(comm.to_device(gpu).unwrap(), stream)
            })
        };
        let threads: Vec<_> = comms.into_iter().map(rank).collect();
        Some(threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect())
    })
}

/// Returns the same configuration without peer access, so that all data goes through the host.
pub(crate) fn staged_config() -> Config {
    let config = config();
    let gpu = config.gpu.with_peer_to_peer(false);
    config.with_gpu(gpu)
}

/// Returns true if this process runs only `test`. Otherwise starts a process that does and must
/// succeed.
pub(crate) fn run_in_own_process(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut process = std::process::Command::new(std::env::current_exe().unwrap());
    let output = process.args([test, "--exact"]).env(ALONE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    // A wrong name would run no test and succeed.
    assert!(output.status.success() && text.contains("1 passed"), "{test}: {text}");
    false
}

const ALONE: &str = "UNISONO_TEST_DEVICE_ALONE";
