//! Clipping of gradients: the factor that follows from their norm.
//!
//! [`grad_norm`](crate::data_parallel::DataParallel::grad_norm) computes the norm over all ranks.
//! Optimizers multiply each gradient by the factor while they update its weights, so clipping needs
//! no pass over memory of its own.

use unisono_reducers::clip_factor;

/// Returns the factor on every gradient
/// ([`Step::grad_scale`](crate::optimizer::Step::grad_scale)) that clips a gradient of the norm
/// `norm` to the norm `max_norm`. The factor is 1 if the gradient is not longer, or if `max_norm`
/// is 0.
///
/// Returns `None` if the norm is infinite or NaN, because an element of the gradient is not finite
/// then, and no factor makes it finite.
pub fn grad_scale(norm: f64, max_norm: f64) -> Option<f32> {
    // `clip_factor` returns 1 for NaN, which would let such a gradient reach the weights.
    norm.is_finite().then(|| clip_factor(norm, max_norm))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_gradients_are_scaled_to_the_maximum() {
        for (norm, max_norm) in [(0.0, 1.0), (0.5, 1.0), (100.0, 0.0)] {
            assert_eq!(grad_scale(norm, max_norm), Some(1.0), "{norm} to {max_norm}");
        }
        for (norm, max_norm) in [(4.0, 1.0), (100.0, 0.25), (1e30, 1.0)] {
            let clipped = norm * f64::from(grad_scale(norm, max_norm).unwrap());
            assert!((clipped / max_norm - 1.0).abs() < 1e-6, "{norm} to {max_norm}: {clipped}");
        }
    }

    #[test]
    fn norms_that_are_not_finite_have_no_factor() {
        for norm in [f64::NAN, f64::INFINITY] {
            assert_eq!([1.0, 0.0].map(|max_norm| grad_scale(norm, max_norm)), [None; 2], "{norm}");
        }
    }
}
