//! Ranks as threads, on each CPU backend of Burn.

use burn::tensor::{Device, Tensor};
use unisono::Communicator;

/// Runs `body` on every rank, once for each CPU backend.
pub(crate) fn on_ranks(ranks: usize, body: impl Fn(&Communicator, &Device) + Sync) {
    for device in devices() {
        std::thread::scope(|scope| {
            let (device, body) = (&device, &body);
            for comm in Communicator::local(ranks).expect("memory for the links") {
                scope.spawn(move || body(&comm, device));
            }
        });
    }
}

/// Returns the devices of all CPU backends, with gradients.
#[allow(deprecated)]
pub(crate) fn devices() -> Vec<Device> {
    vec![
        Device::flex().autodiff(),
        #[cfg(feature = "ndarray")]
        Device::ndarray().autodiff(),
    ]
}

pub(crate) fn values<const D: usize>(tensor: &Tensor<D>) -> Vec<f32> {
    tensor.to_data().try_to_vec().expect("elements of 32 bits")
}

/// Returns pseudo-random numbers from 0 to 10, the same for the same seed.
#[allow(dead_code)]
pub(crate) fn random(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 * 10.0 / (1u64 << 24) as f32
    };
    (0..count).map(|_| next()).collect()
}
