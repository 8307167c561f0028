use super::Device;
use crate::memory::{Class, Memory};
use crate::nn::check::numbers;
use crate::nn::{
    CausalAttention, CrossEntropy, Draw, Dropout, Embedding, Gelu, LayerNorm, Linear, Module, Residual,
    RmsNorm, Start, SwiGlu,
};
use crate::parameter::{Init, Inventory, ParameterId, Registry};
use crate::pass::{Pass, Seeds};
use crate::strategy::{Local, Strategy};
use crate::tensor::Tensor;
use crate::testing::gpu;

/// A place on the GPU that tests compute on.
fn device(memory: &Memory) -> Device {
    Device::new(&gpu(), memory).expect("a stream")
}

/// All numbers, wherever they are.
fn read(tensor: &Tensor, device: Option<&Device>) -> Vec<f32> {
    match device {
        Some(device) => tensor.view().to_vec(device.compute().stream()).expect("a copy"),
        None => tensor.data().to_vec(),
    }
}

/// Parameters with random weights.
fn strategy(inventory: Inventory, memory: &Memory) -> Local {
    let mut strategy = Local::new(inventory, memory, 1);
    for id in (0..strategy.inventory().parameters.len()).map(ParameterId) {
        let weights = strategy.weights_mut(id);
        weights.copy_from_slice(&numbers(id.0 as u64, weights.len()));
    }
    strategy
}

/// Output, gradient of the input, gradients of the weights of a module that gets `rows` × `columns`, in sequences of five rows.
fn both_ways<M: Module>(
    make: &impl Fn(&mut Registry) -> M,
    [rows, columns]: [usize; 2],
    on_device: bool,
) -> [Vec<f32>; 3] {
    let (mut registry, memory) = (Registry::default(), Memory::default());
    let (_, module) = registry.unit("m", make);
    let mut strategy = strategy(registry.finish(), &memory);
    let device = on_device.then(|| device(&memory));
    let mut pass = Pass::new(&mut strategy, &memory, Seeds { shared: 5, split: 6 }, 1);
    pass.set_sequence(5);
    pass.set_device(device.as_ref());
    let input = pass.tensor_of(rows, columns, &numbers(99, rows * columns)).expect("room");
    let output = module.forward(&mut pass, input).expect("forward");
    let slopes = numbers(98, output.rows() * output.columns());
    let slopes = pass.tensor_of(output.rows(), output.columns(), &slopes).expect("room");
    let output = read(&output, device.as_ref());
    let gradient = module.backward(&mut pass, slopes).expect("backward");
    assert!(pass.is_complete(), "something was kept and not taken back");
    let gradient = read(&gradient, device.as_ref());
    drop(pass);
    [output, gradient, strategy.gradients().to_vec()]
}

/// A module does on the device what it does on the CPU.
fn agrees<M: Module>(name: &str, make: impl Fn(&mut Registry) -> M, extents: [usize; 2]) {
    let (host, found) = (both_ways(&make, extents, false), both_ways(&make, extents, true));
    for (what, (host, found)) in ["output", "gradient", "weights"].iter().zip(host.iter().zip(&found)) {
        expect_near(&format!("{name}: {what}"), found, host);
    }
}

fn expect_near(name: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{name}");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let near = (found - expected).abs() <= 5e-6 * expected.abs().max(1.0);
        assert!(near, "{name}, [{at}]: {found}, not {expected}");
    }
}

#[test]
fn modules_do_on_a_device_what_they_do_on_the_cpu() {
    agrees("linear", |r| Linear::new(r, 7, 70, Start::fan_in(7)), [10, 7]);
    agrees("without bias", |r| Linear::new(r, 7, 5, Start::fan_in(7).without_bias()), [10, 7]);
    agrees("layer norm", |r| LayerNorm::new(r, 19, 1e-5), [10, 19]);
    agrees("rms norm", |r| RmsNorm::new(r, 19, 1e-5), [10, 19]);
    agrees("gelu", |_| Gelu::Exact, [10, 9]);
    agrees("gelu by tanh", |_| Gelu::Tanh, [10, 9]);
    agrees("swiglu", |_| SwiGlu, [10, 14]);
    agrees("dropout", |r| Dropout::new(r, "d", 0.3, Draw::Split), [10, 9]);
    agrees("residual", |r| Residual(Linear::new(r, 6, 6, Start::fan_in(6))), [10, 6]);
    agrees("attention", |_| CausalAttention::new(2, 3), [10, 18]);
}

#[test]
fn tables_and_losses_do_too() {
    let on = |on_device: bool| {
        let (mut registry, memory) = (Registry::default(), Memory::default());
        let (_, table) = registry.unit("wte", |r| Embedding::new(r, 9, 11, Init::Zeros));
        let mut strategy = strategy(registry.finish(), &memory);
        let device = on_device.then(|| device(&memory));
        let mut pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
        pass.set_device(device.as_ref());
        let entropy = CrossEntropy { ignore: Some(99) };
        let logits = table.forward(&mut pass, vec![8, 0, 8, 3]).expect("rows");
        let loss = entropy.forward(&mut pass, logits, &[10, 99, 2, 0]).expect("classes");
        let gradient = entropy.backward(&mut pass, 0.5).expect("gradient");
        table.backward(&mut pass, &gradient).expect("gradient");
        drop(pass);
        [vec![loss], strategy.gradients().to_vec()]
    };
    let ([loss, gradient], [found, slopes]) = (on(false), on(true));
    expect_near("loss", &found, &loss);
    expect_near("gradient", &slopes, &gradient);
}

#[test]
fn weights_are_copied_when_they_have_changed_and_memory_is_counted() {
    let (mut registry, memory) = (Registry::default(), Memory::default());
    let (_, map) = registry.unit("m", |r| Linear::new(r, 2, 3, Start::fan_in(2)));
    let (mut strategy, device) = (strategy(registry.finish(), &memory), device(&memory));
    let before = memory.usage(Class::Weights).now;
    let output = |strategy: &mut Local| {
        let mut pass = Pass::new(strategy, &memory, Seeds::default(), 1);
        pass.set_device(Some(&device));
        let input = pass.tensor_of(1, 2, &[1.0, 1.0]).expect("room");
        let output = pass.infer(|pass| map.forward(pass, input)).expect("forward");
        read(&output, Some(&device))
    };
    let first = output(&mut strategy);
    assert_eq!(memory.usage(Class::Weights).now - before, 4 * (2 * 3 + 3), "a copy of each");
    strategy.weights_mut(ParameterId(0)).fill(7.0);
    assert_eq!(output(&mut strategy), first, "nobody said that they had changed");
    device.forget_weights();
    assert_eq!(memory.usage(Class::Weights).now, before);
    let bias = strategy.weights(ParameterId(1)).to_vec();
    assert_eq!(output(&mut strategy), bias.iter().map(|bias| bias + 14.0).collect::<Vec<_>>());
    assert_eq!(memory.usage(Class::Activations).now, 0, "all given back");
}

#[test]
fn what_has_no_kernels_says_so() {
    let memory = Memory::default();
    let device = device(&memory);
    let mut strategy = Local::new(Inventory::default(), &memory, 0);
    let mut pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
    pass.set_device(Some(&device));
    let error = pass.expect_host("a convolution").expect_err("a device computes").to_string();
    assert_eq!(error, "a convolution on a GPU: not part of this build");
    let input = pass.tensor_of(1, 3 * 129, &[0.0; 3 * 129]).expect("room");
    let error = CausalAttention::new(1, 129).forward(&mut pass, input).expect_err("129 columns");
    assert_eq!(error.to_string(), "129 elements where 128 are needed");
}
