use super::*;

/// Computes three steps on one element in 64 bits, by the formula of the paper.
fn reference(gradients: &[f64], decays: bool) -> f64 {
    let (mut weight, mut first, mut second) = (1.0, 0.0, 0.0);
    for (index, gradient) in gradients.iter().enumerate() {
        let number = index as i32 + 1;
        weight -= if decays { 0.01 * 0.1 * weight } else { 0.0 };
        first = 0.9 * first + 0.1 * gradient;
        second = 0.999 * second + 0.001 * gradient * gradient;
        let (m, v): (f64, f64) =
            (first / (1.0 - 0.9f64.powi(number)), second / (1.0 - 0.999f64.powi(number)));
        weight -= 0.01 * m / (v.sqrt() + 1e-8);
    }
    weight
}

#[test]
fn adamw_follows_the_paper() {
    let gradients = [0.5, -2.0, 1e-3];
    for decays in [false, true] {
        let (mut weight, mut first, mut second) = ([1.0], [0.0], [0.0]);
        for (index, gradient) in gradients.iter().enumerate() {
            let step = Step { number: index as u64 + 1, lr: 0.01, grad_scale: 0.5 };
            let span = ParamSlice {
                weights: &mut weight,
                gradient: &[2.0 * *gradient as f32],
                moments: &mut [&mut first, &mut second],
                weight_decay: if decays { WeightDecay::OfOptimizer } else { WeightDecay::None },
            };
            AdamW { weight_decay: 0.1, ..AdamW::default() }.update(span, &step);
        }
        assert!((f64::from(weight[0]) - reference(&gradients, decays)).abs() < 1e-6);
    }
}

#[test]
fn momentum_accumulates_and_decay_shrinks() {
    let optimizer = Sgd { momentum: 0.5, weight_decay: 0.1 };
    let (mut weight, mut velocity) = ([1.0], [0.0]);
    for number in 1..=2 {
        let step = Step { number, lr: 0.1, grad_scale: 1.0 };
        let moments: &mut [&mut [f32]] = &mut [&mut velocity];
        optimizer.update(
            ParamSlice {
                weights: &mut weight,
                gradient: &[1.0],
                moments,
                weight_decay: WeightDecay::OfOptimizer,
            },
            &step,
        );
    }
    // v = 1.1, w = 0.89; v = 0.55 + 1.089, w = 0.89 − 0.1639
    assert!((weight[0] - 0.7261).abs() < 1e-6);
    let mut plain = [1.0];
    let step = Step { number: 1, lr: 0.1, grad_scale: 1.0 };
    Sgd::default().update(
        ParamSlice {
            weights: &mut plain,
            gradient: &[1.0],
            moments: &mut [],
            weight_decay: WeightDecay::OfOptimizer,
        },
        &step,
    );
    assert_eq!(plain, [0.9]);
}
