//! Losses and gradients of PyTorch 2.15 in float64, computed by golden.py.

use super::*;

/// Returns numbers between -1 and 1 that are exact in any float type.
fn pattern(number: usize, seed: usize, count: usize) -> Vec<f32> {
    (0..count).map(|index| ((index * 37 + number * 101 + seed) % 64) as f32 / 32.0 - 1.0).collect()
}

/// Asserts the loss, and for each parameter the sum of its gradient times a pattern.
fn assert_matches(config: GptConfig, loss: f64, expected: &[(&str, f64)]) {
    let mut rig = gpt(config);
    for (number, id) in rig.ids().enumerate() {
        let weights = rig.strategy.weights_mut(id);
        weights.copy_from_slice(&pattern(number, 0, weights.len()));
    }
    let found = f64::from(rig.forward_and_backward(&TOKENS));
    assert!((found - loss).abs() < 1e-6 * loss, "loss {found}, not {loss}");
    assert_eq!(rig.ids().count(), expected.len());
    for (number, (id, (name, expected))) in rig.ids().zip(expected).enumerate() {
        assert_eq!(rig.strategy.inventory()[id].name, *name);
        let gradient = rig.strategy.gradient_of(id);
        let pairs = gradient.iter().zip(pattern(number, 11, gradient.len()));
        let found: f64 = pairs.map(|(gradient, factor)| f64::from(gradient * factor)).sum();
        assert!((found - expected).abs() < 2e-6 * (1.0 + expected.abs()), "{name}: {found}, not {expected}");
    }
}

#[test]
fn gpt2_matches_pytorch() {
    assert_matches(small(), 3.446855900, &GPT_2);
}

#[test]
fn rms_norm_and_swiglu_match_pytorch() {
    let modern = GptConfig { norm: Norm::Rms, feed_forward: FeedForward::SwiGlu, ..small() };
    assert_matches(modern, 2.485193755, &MODERN);
}

const GPT_2: [(&str, f64); 28] = [
    ("wte.weight", 1.22296914),
    ("wpe.weight", -0.06420403),
    ("h.0.ln_1.weight", -0.00321480),
    ("h.0.ln_1.bias", 0.15374209),
    ("h.0.attn.c_attn.weight", -0.18633994),
    ("h.0.attn.c_attn.bias", 0.03715795),
    ("h.0.attn.c_proj.weight", 0.15906146),
    ("h.0.attn.c_proj.bias", 0.00632785),
    ("h.0.ln_2.weight", -0.00080411),
    ("h.0.ln_2.bias", 0.00008872),
    ("h.0.mlp.c_fc.weight", 0.00725251),
    ("h.0.mlp.c_fc.bias", -0.01846818),
    ("h.0.mlp.c_proj.weight", -0.01072740),
    ("h.0.mlp.c_proj.bias", -0.04490580),
    ("h.1.ln_1.weight", 0.01772196),
    ("h.1.ln_1.bias", -0.11817495),
    ("h.1.attn.c_attn.weight", -0.12850630),
    ("h.1.attn.c_attn.bias", 0.02435297),
    ("h.1.attn.c_proj.weight", 0.08877246),
    ("h.1.attn.c_proj.bias", -0.01239296),
    ("h.1.ln_2.weight", 0.00334682),
    ("h.1.ln_2.bias", 0.01840518),
    ("h.1.mlp.c_fc.weight", -0.00427290),
    ("h.1.mlp.c_fc.bias", 0.01465519),
    ("h.1.mlp.c_proj.weight", -0.00506511),
    ("h.1.mlp.c_proj.bias", -0.02720019),
    ("ln_f.weight", -0.70160661),
    ("ln_f.bias", 0.84591146),
];

const MODERN: [(&str, f64); 23] = [
    ("wte.weight", 0.69493817),
    ("wpe.weight", 0.13255993),
    ("h.0.ln_1.weight", 0.20515384),
    ("h.0.attn.c_attn.weight", -0.16324498),
    ("h.0.attn.c_attn.bias", 0.40147356),
    ("h.0.attn.c_proj.weight", 0.00489957),
    ("h.0.attn.c_proj.bias", 0.08380322),
    ("h.0.ln_2.weight", -0.29540991),
    ("h.0.mlp.c_fc.weight", 0.29011972),
    ("h.0.mlp.c_fc.bias", 0.26285553),
    ("h.0.mlp.c_proj.weight", -0.20857312),
    ("h.0.mlp.c_proj.bias", 0.03471045),
    ("h.1.ln_1.weight", 0.02560397),
    ("h.1.attn.c_attn.weight", -0.08692517),
    ("h.1.attn.c_attn.bias", -0.00122471),
    ("h.1.attn.c_proj.weight", 0.07871750),
    ("h.1.attn.c_proj.bias", -0.00250038),
    ("h.1.ln_2.weight", -0.17561298),
    ("h.1.mlp.c_fc.weight", -0.00165376),
    ("h.1.mlp.c_fc.bias", 0.25753210),
    ("h.1.mlp.c_proj.weight", -0.12203473),
    ("h.1.mlp.c_proj.bias", -0.00969284),
    ("ln_f.weight", -0.36810054),
];
