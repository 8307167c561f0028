//! Counts floating-point operations, and measures the peak rate of this machine.

use crate::config::Config;
use std::time::{Duration, Instant};
use unisono_cuda::device::compute::{MatrixView, MatrixViewMut};
use unisono_matmul::{Matrix, MatrixMut, matmul};
use unisono_nn::device::Device;
use unisono_nn::error::Result;
use unisono_nn::parameter::{Domain, Inventory, Parameter};
use unisono_parallel::experts::Experts;

/// Returns the floating-point operations of forward and backward for one sample. Each weight of a
/// matrix product costs 6 per token. Each block adds 6 × context × features of all queries per
/// token for the scores and sums of causal attention.
///
/// Sources: Kaplan et al., "Scaling laws for neural language models", 2020. Chowdhery et al.,
/// "PaLM", 2022, do not halve causal attention.
pub(crate) fn flops_per_sample(config: &Config, inventory: &Inventory) -> f64 {
    let queries = config.gpt_config().query_width();
    let [layers, queries, context] =
        [config.model.layers, queries, config.model.context].map(|extent| extent as f64);
    context * flops_per_token(matmul_weights(inventory, &config.experts), layers, queries, context)
}

/// Returns the floating-point operations for one token of a transformer, from its weights in matrix
/// products, layers, features of all queries and context.
pub(super) fn flops_per_token(weights: f64, layers: f64, queries: f64, context: f64) -> f64 {
    6.0 * weights + 6.0 * layers * queries * context
}

/// Returns the elements of all parameters in the matrix products of a token, which uses some
/// experts only.
pub(super) fn matmul_weights(inventory: &Inventory, experts: &Experts) -> f64 {
    let used = |domain| match domain {
        Domain::Dense => 1.0,
        Domain::Expert => experts.per_token as f64 / experts.count.max(1) as f64,
    };
    let parameters = inventory.parameters.iter();
    parameters.map(|parameter| used(parameter.domain) * matmul_parameters(parameter) as f64).sum()
}

/// Returns the elements of a parameter times its matrix products. An embedding lookup is not a
/// matrix product.
fn matmul_parameters(parameter: &Parameter) -> usize {
    let is_looked_up = ["wte.weight", "wpe.weight"].contains(&parameter.name.as_str());
    match parameter.shape.len() {
        1 => 0,
        _ => {
            parameter.global_shape().iter().product::<usize>()
                * (parameter.use_count - usize::from(is_looked_up))
        }
    }
}

/// Measures the peak floating-point operations per second of `threads` threads: the fastest of
/// several short matrix products.
pub(crate) fn peak_flops(threads: usize) -> f64 {
    let (left, right) = (vec![0.5f32; MATRIX_DIM * MATRIX_DIM], vec![0.25f32; MATRIX_DIM * MATRIX_DIM]);
    let mut product = vec![0.0f32; MATRIX_DIM * MATRIX_DIM];
    let mut least = f64::INFINITY;
    let start = Instant::now();
    while start.elapsed() < MEASURE_TIME {
        let begun = Instant::now();
        let into = MatrixMut::new(&mut product, MATRIX_DIM, MATRIX_DIM);
        let (left, right) =
            (Matrix::new(&left, MATRIX_DIM, MATRIX_DIM), Matrix::new(&right, MATRIX_DIM, MATRIX_DIM));
        matmul(into, 0.0, 1.0, left, right, threads);
        least = least.min(begun.elapsed().as_secs_f64());
    }
    2.0 * (MATRIX_DIM as f64).powi(3) / least
}

/// Measures the peak operations per second of a GPU: the fastest of three matrix products.
pub(crate) fn peak_flops_on(device: &Device) -> Result<f64> {
    let stream = device.compute().stream();
    let extent = if stream.gpu().is_emulated() { MATRIX_DIM_SOFTWARE } else { MATRIX_DIM_GPU };
    let (matrix, mut product) = (device.tensor(extent, extent)?, device.tensor(extent, extent)?);
    let mut least = f64::INFINITY;
    for _ in 0..3 {
        stream.synchronize()?;
        let begun = Instant::now();
        let (side, into) = (matrix.view(), MatrixViewMut::new(product.view_mut(), extent, extent)?);
        let side = MatrixView::new(&side, extent, extent)?;
        device.compute().matmul(into, 0.0, 1.0, side, side.t())?;
        stream.synchronize()?;
        least = least.min(begun.elapsed().as_secs_f64());
    }
    Ok(2.0 * (extent as f64).powi(3) / least)
}

const MATRIX_DIM_GPU: usize = 4096;
const MATRIX_DIM_SOFTWARE: usize = 64;
const MATRIX_DIM: usize = 384;
const MEASURE_TIME: Duration = Duration::from_millis(80);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::new_model;

    #[test]
    fn tied_head_counts_and_lookups_do_not() {
        let mut config = Config::default();
        config.model.layers = 1;
        let flops_of = |config: &Config| flops_per_sample(config, &new_model(config, None).unwrap().1);
        let (tokens, width) = (config.model.context as f64, config.model.width as f64);
        let expected = 6.0 * tokens * (12.0 * width * width + 257.0 * width + tokens * width);
        assert_eq!(flops_of(&config), expected);
        config.model.tie_word_embeddings = false;
        assert_eq!(flops_of(&config), expected);
    }
}
