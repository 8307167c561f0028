//! Counts floating-point operations.

use crate::GptShape;
use unisono_nn::parameter::{Domain, Inventory, Parameter};
use unisono_parallel::experts::Experts;

/// Returns the floating-point operations of forward and backward for one sample. Each weight of a
/// matrix product costs 6 per token. Each block adds 6 × context × features of all queries per
/// token for the scores and sums of causal attention.
///
/// Sources: Kaplan et al., "Scaling laws for neural language models", 2020. Chowdhery et al.,
/// "PaLM", 2022, do not halve causal attention.
pub fn flops_per_sample(gpt: &GptShape, inventory: &Inventory) -> f64 {
    let [layers, queries, context] = [gpt.layers, gpt.query_width(), gpt.context].map(|extent| extent as f64);
    context * flops_per_token(matmul_weights(inventory, gpt.experts.as_ref()), layers, queries, context)
}

/// Returns the floating-point operations for one token of a transformer, from its weights in matrix
/// products, layers, features of all queries and context.
pub(super) fn flops_per_token(weights: f64, layers: f64, queries: f64, context: f64) -> f64 {
    6.0 * weights + 6.0 * layers * queries * context
}

/// Returns the elements of all parameters in the matrix products of a token, which uses some
/// experts only.
pub(super) fn matmul_weights(inventory: &Inventory, experts: Option<&Experts>) -> f64 {
    let used_experts = experts.map_or(1.0, |experts| experts.per_token as f64 / experts.count.max(1) as f64);
    let used = |domain| match domain {
        Domain::Dense => 1.0,
        Domain::Expert => used_experts,
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
