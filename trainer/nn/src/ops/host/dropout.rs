//! Dropout.

use super::vector::vectorized;
use crate::ops::Host;

impl Host {
    pub(crate) fn dropout(&self, values: &mut [f32], key: u64, least: u32, factor: f32) {
        let (low, high) = (key as u32, (key >> 32) as u32);
        vectorized(
            #[inline(always)]
            || {
                for (index, value) in values.iter_mut().enumerate() {
                    let kept = scramble(scramble(index as u32 ^ low).wrapping_add(high)) >= least;
                    *value = if kept { *value * factor } else { 0.0 };
                }
            },
        );
    }
}

/// Finalizer of MurmurHash3 (Appleby): every bit of the result depends on every bit of `bits`.
#[inline(always)]
fn scramble(mut bits: u32) -> u32 {
    bits = (bits ^ (bits >> 16)).wrapping_mul(0x85eb_ca6b);
    bits = (bits ^ (bits >> 13)).wrapping_mul(0xc2b2_ae35);
    bits ^ (bits >> 16)
}
