use super::Device;
use crate::allocator::{AllocClass, Allocator};
use crate::modules::random_values;
use crate::modules::{
    Attention, CrossEntropy, Dropout, Embedding, Gelu, Linear, LinearInit, Module, Norm, Residual, RngStream,
    SwiGlu,
};
use crate::parameter::{Init, Inventory, ParameterId, Registry};
use crate::pass::{Pass, Seeds};
use crate::strategy::{LocalStrategy, Strategy};
use crate::tensor::Tensor;
use crate::testing::gpu;

/// Returns a device on the GPU for tests.
fn device(memory: &Allocator) -> Device {
    Device::new(&gpu(), memory).expect("a stream")
}

/// Returns all elements, from host or GPU memory.
fn read(tensor: &Tensor, device: Option<&Device>) -> Vec<f32> {
    match device {
        Some(device) => tensor.view().to_vec(device.compute().stream()).expect("a copy"),
        None => tensor.data().to_vec(),
    }
}

/// Returns a strategy with random weights.
fn strategy(inventory: Inventory, memory: &Allocator) -> LocalStrategy {
    let mut strategy = LocalStrategy::new(inventory, memory, 1);
    for id in (0..strategy.inventory().parameters.len()).map(ParameterId) {
        let weights = strategy.weights_mut(id);
        weights.copy_from_slice(&random_values(id.0 as u64, weights.len()));
    }
    strategy
}

/// Returns the output, input gradient and weight gradients of a module with input of `rows` ×
/// `columns`, in sequences of five rows.
fn forward_and_backward<M: Module>(
    make: &impl Fn(&mut Registry) -> M,
    [rows, columns]: [usize; 2],
    on_device: bool,
) -> [Vec<f32>; 3] {
    let (mut registry, memory) = (Registry::default(), Allocator::default());
    let (_, module) = registry.unit("m", make);
    let mut strategy = strategy(registry.finish(), &memory);
    let device = on_device.then(|| device(&memory));
    let mut pass = Pass::new(&mut strategy, &memory, Seeds { shared: 5, per_rank: 6 }, 1);
    pass.set_sequence(5);
    pass.set_device(device.as_ref());
    let input = pass.tensor_from(rows, columns, &random_values(99, rows * columns)).expect("room");
    let output = module.forward(&mut pass, input).expect("forward");
    let slopes = random_values(98, output.rows() * output.columns());
    let slopes = pass.tensor_from(output.rows(), output.columns(), &slopes).expect("room");
    let output = read(&output, device.as_ref());
    let gradient = module.backward(&mut pass, slopes).expect("backward");
    assert!(pass.is_complete(), "something was kept and not taken back");
    let gradient = read(&gradient, device.as_ref());
    drop(pass);
    [output, gradient, strategy.gradients().to_vec()]
}

/// Asserts that a module computes the same on the device as on the CPU.
fn assert_matches_cpu<M: Module>(name: &str, make: impl Fn(&mut Registry) -> M, extents: [usize; 2]) {
    let (host, found) =
        (forward_and_backward(&make, extents, false), forward_and_backward(&make, extents, true));
    for (what, (host, found)) in ["output", "gradient", "weights"].iter().zip(host.iter().zip(&found)) {
        expect_near(&format!("{name}: {what}"), found, host);
    }
}

fn expect_near(name: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{name}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let is_near = (found - expected).abs() <= 5e-6 * expected.abs().max(1.0);
        assert!(is_near, "{name}, [{index}]: {found}, not {expected}");
    }
}

#[test]
fn device_modules_match_cpu() {
    assert_matches_cpu("linear", |r| Linear::new(r, 7, 70, LinearInit::fan_in(7)), [10, 7]);
    assert_matches_cpu(
        "without bias",
        |r| Linear::new(r, 7, 5, LinearInit::fan_in(7).without_bias()),
        [10, 7],
    );
    assert_matches_cpu("layer norm", |r| Norm::layer(r, 19, 1e-5), [10, 19]);
    assert_matches_cpu("rms norm", |r| Norm::rms(r, 19, 1e-5), [10, 19]);
    assert_matches_cpu("gelu", |_| Gelu::Exact, [10, 9]);
    assert_matches_cpu("gelu by tanh", |_| Gelu::Tanh, [10, 9]);
    assert_matches_cpu("swiglu", |_| SwiGlu, [10, 14]);
    assert_matches_cpu("dropout", |r| Dropout::new(r, "d", 0.3, RngStream::PerRank), [10, 9]);
    assert_matches_cpu("residual", |r| Residual(Linear::new(r, 6, 6, LinearInit::fan_in(6))), [10, 6]);
    assert_matches_cpu("attention", |_| Attention::new(2, 3), [10, 18]);
}

#[test]
fn device_embeddings_and_losses_match_cpu() {
    let run_on = |on_device: bool| {
        let (mut registry, memory) = (Registry::default(), Allocator::default());
        let (_, table) = registry.unit("wte", |r| Embedding::new(r, 9, 11, Init::Zeros));
        let mut strategy = strategy(registry.finish(), &memory);
        let device = on_device.then(|| device(&memory));
        let mut pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
        pass.set_device(device.as_ref());
        let entropy = CrossEntropy { ignore_index: Some(99) };
        let logits = table.forward(&mut pass, vec![8, 0, 8, 3]).expect("rows");
        let loss = entropy.forward(&mut pass, logits, &[10, 99, 2, 0]).expect("classes");
        let gradient = entropy.backward(&mut pass, 0.5).expect("gradient");
        table.backward(&mut pass, &gradient).expect("gradient");
        drop(pass);
        [vec![loss], strategy.gradients().to_vec()]
    };
    let ([loss, gradient], [found, slopes]) = (run_on(false), run_on(true));
    expect_near("loss", &found, &loss);
    expect_near("gradient", &slopes, &gradient);
}

#[test]
fn changed_weights_are_copied_and_memory_is_counted() {
    let (mut registry, memory) = (Registry::default(), Allocator::default());
    let (_, map) = registry.unit("m", |r| Linear::new(r, 2, 3, LinearInit::fan_in(2)));
    let (mut strategy, device) = (strategy(registry.finish(), &memory), device(&memory));
    let start = memory.usage(AllocClass::Weights).current;
    let output = |strategy: &mut LocalStrategy| {
        let mut pass = Pass::new(strategy, &memory, Seeds::default(), 1);
        pass.set_device(Some(&device));
        let input = pass.tensor_from(1, 2, &[1.0, 1.0]).expect("room");
        let output = pass.no_grad(|pass| map.forward(pass, input)).expect("forward");
        read(&output, Some(&device))
    };
    let first = output(&mut strategy);
    assert_eq!(memory.usage(AllocClass::Weights).current - start, 4 * (2 * 3 + 3), "a copy of each");
    strategy.weights_mut(ParameterId(0)).fill(7.0);
    assert_eq!(output(&mut strategy), first, "nobody said that they had changed");
    device.invalidate_weights();
    assert_eq!(memory.usage(AllocClass::Weights).current, start);
    let bias = strategy.weights(ParameterId(1)).to_vec();
    assert_eq!(output(&mut strategy), bias.iter().map(|bias| bias + 14.0).collect::<Vec<_>>());
    assert_eq!(memory.usage(AllocClass::Activations).current, 0, "all given back");
}

#[test]
fn modules_without_kernels_are_rejected() {
    let memory = Allocator::default();
    let device = device(&memory);
    let mut strategy = LocalStrategy::new(Inventory::default(), &memory, 0);
    let mut pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
    pass.set_device(Some(&device));
    let error = pass.expect_host("a convolution").expect_err("a device computes").to_string();
    assert_eq!(error, "a convolution on a GPU: not part of this build");
    let input = pass.tensor_from(1, 3 * 129, &[0.0; 3 * 129]).expect("room");
    let error = Attention::new(1, 129).forward(&mut pass, input).expect_err("129 columns");
    assert_eq!(error.to_string(), "129 elements where 128 are needed");
}
