//! Initial values as a function of seed, name and index, so that any rank can compute any part of
//! any tensor.

use crate::random::{splitmix, unit_f64};
use std::f64::consts::TAU;

/// Distribution of initial values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Zeros.
    Zeros,
    /// Ones.
    Ones,
    /// Normal distribution with mean 0 and this standard deviation.
    Normal(f32),
    /// Uniform distribution between minus this value and this value.
    Uniform(f32),
}

impl Init {
    /// Returns the value of element `index` in a [`stream`].
    pub(super) fn value(self, stream: u64, index: u64) -> f32 {
        match self {
            Init::Zeros => 0.0,
            Init::Ones => 1.0,
            Init::Normal(deviation) => normal(stream, index) as f32 * deviation,
            Init::Uniform(bound) => (2.0 * unit_f64(splitmix(stream ^ splitmix(index))) - 1.0) as f32 * bound,
        }
    }
}

/// Returns the random stream of the parameter `name`.
pub(super) fn stream(seed: u64, name: &str) -> u64 {
    name.bytes().fold(splitmix(seed), |hash, byte| splitmix(hash ^ u64::from(byte)))
}

/// Returns a normal random number (Box and Muller, Annals of Mathematical Statistics 29, 1958).
fn normal(stream: u64, index: u64) -> f64 {
    let (first, second) =
        (splitmix(stream ^ splitmix(2 * index)), splitmix(stream ^ splitmix(2 * index + 1)));
    // A random number can be 0, whose logarithm is infinite, but it is never 1.
    (-2.0 * (1.0 - unit_f64(first)).ln()).sqrt() * (TAU * unit_f64(second)).cos()
}
