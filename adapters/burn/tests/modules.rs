//! Gradients and parameters of modules over ranks, with the graphs of Burn's distributed tests.

mod support;

use burn::module::{Module, Param};
use burn::optim::GradientsParams;
use burn::tensor::distributed::ReduceOperation::{self, Mean, Sum};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData, Tolerance, activation};
use support::{on_ranks, random, values};
use unisono::Communicator;
use unisono_burn::{GradientSync, broadcast_module};

#[derive(Module, Debug)]
struct Weights {
    left: Param<Tensor<2>>,
    right: Param<Tensor<1>>,
}

const SIDE: usize = 6;

fn weights(seed: u64, device: &Device) -> Weights {
    let left = TensorData::new(random(seed, SIDE * SIDE), [SIDE, SIDE]);
    Weights {
        left: Param::from_data(left, device),
        right: Param::from_data(TensorData::from(random(seed + 1, SIDE).as_slice()), device),
    }
}

/// Compares the reduced gradients of `graph` with those of all ranks, computed on this one.
fn compare(op: ReduceOperation, bucket_bytes: usize, graph: fn(&Weights, Tensor<2>) -> Tensor<2>) {
    on_ranks(3, |comm, device| {
        let sync = GradientSync::new(comm, op).with_bucket_bytes(bucket_bytes);
        for round in 0..20 {
            let model = weights(round + 1, device);
            let input = |rank: u64| {
                let data = random(100 * round + rank + 7, SIDE * SIDE);
                Tensor::<2>::from_data(TensorData::new(data, [SIDE, SIDE]), device).div_scalar(10.0)
            };
            let gradients = |rank| GradientsParams::from_grads(graph(&model, input(rank)).backward(), &model);
            let reduced = sync.reduce(gradients(comm.rank() as u64), &model).unwrap();
            let unreduced = [0, 1, 2].map(gradients);
            let sum = |gradient: &dyn Fn(&GradientsParams) -> Tensor<2>| {
                let sum = unreduced.iter().map(gradient).reduce(|sum, next| sum + next).unwrap();
                if op == Mean { sum.div_scalar(3.0) } else { sum }
            };
            let left = sum(&|grads| grads.get::<2>(model.left.id).unwrap());
            let found = reduced.get::<2>(model.left.id).unwrap();
            found.into_data().assert_approx_eq::<f32>(&left.into_data(), Tolerance::default());
            let right = sum(&|grads| grads.get::<1>(model.right.id).unwrap().unsqueeze());
            let found = reduced.get::<1>(model.right.id).unwrap().unsqueeze::<2>();
            found.into_data().assert_approx_eq::<f32>(&right.into_data(), Tolerance::default());
        }
    });
}

fn product(model: &Weights, input: Tensor<2>) -> Tensor<2> {
    model.left.val().matmul(input) + model.right.val().unsqueeze()
}

fn residual(model: &Weights, input: Tensor<2>) -> Tensor<2> {
    product(model, input) + model.left.val()
}

fn diamond(model: &Weights, input: Tensor<2>) -> Tensor<2> {
    let left = product(model, input.clone().mul_scalar(2.0));
    Tensor::cat(vec![left, product(model, input.exp())], 0)
}

#[test]
fn gradients_of_a_product_are_reduced() {
    for bucket_bytes in [1, 1 << 20] {
        compare(Sum, bucket_bytes, product);
        compare(Mean, bucket_bytes, product);
    }
}

#[test]
fn gradients_of_a_residual_are_reduced() {
    compare(Sum, 100, residual);
    compare(Mean, 100, residual);
}

#[test]
fn gradients_of_an_activation_are_reduced() {
    compare(Sum, 100, |model, input| activation::relu(residual(model, input).sub_scalar(20.0)));
    compare(Mean, 100, |model, input| activation::relu(residual(model, input).sub_scalar(20.0)));
}

#[test]
fn gradients_of_a_diamond_are_reduced() {
    compare(Sum, 1, diamond);
    compare(Mean, 1, diamond);
}

#[test]
fn missing_gradients_count_as_zeros() {
    on_ranks(2, |comm, device| {
        let model = weights(1, device);
        let loss = match comm.rank() {
            0 => model.left.val().sum(),
            _ => model.right.val().sum(),
        };
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        let reduced = GradientSync::new(comm, Sum).reduce(gradients, &model).unwrap();
        assert_eq!(values(&reduced.get::<2>(model.left.id).unwrap()), [1.0; SIDE * SIDE]);
        assert_eq!(values(&reduced.get::<1>(model.right.id).unwrap()), [1.0; SIDE]);
    });
}

#[test]
fn modules_of_different_size_are_an_error() {
    on_ranks(2, |comm, device| {
        let data = vec![1.0f32; 3 + comm.rank()];
        let model = Param::<Tensor<1>>::from_data(data.as_slice(), device);
        let gradients = GradientsParams::from_grads(model.val().sum().backward(), &model);
        assert!(GradientSync::new(comm, Sum).reduce(gradients, &model).is_err());
    });
}

#[derive(Module, Debug)]
struct Mixed {
    float: Param<Tensor<2>>,
    frozen: Param<Tensor<1>>,
    int: Param<Tensor<1, Int>>,
    bool: Param<Tensor<1, Bool>>,
}

fn mixed(comm: &Communicator, device: &Device) -> Mixed {
    let rank = comm.rank() as f32;
    Mixed {
        float: Param::from_data([[rank, 1.0], [2.0, 3.0]], device),
        frozen: Param::<Tensor<1>>::from_data([rank], device).set_require_grad(false),
        int: Param::initialized(Default::default(), Tensor::from_ints([comm.rank() as i32, 5], device)),
        bool: Param::initialized(
            Default::default(),
            Tensor::from_data([comm.rank() == 1, false, true], device),
        ),
    }
}

#[test]
fn broadcast_module_copies_parameters_of_the_root() {
    on_ranks(3, |comm, device| {
        let model = broadcast_module(mixed(comm, device), 1, comm).unwrap();
        assert_eq!(values(&model.float.val()), [1.0, 1.0, 2.0, 3.0]);
        assert_eq!(values(&model.frozen.val()), [1.0]);
        let ints: Vec<i64> = model.int.val().into_data().iter::<i64>().collect();
        assert_eq!(ints, [1, 5]);
        let bools: Vec<bool> = model.bool.val().into_data().iter::<bool>().collect();
        assert_eq!(bools, [true, false, true]);
        assert!(model.float.is_require_grad() && !model.frozen.is_require_grad());
        let gradients = GradientsParams::from_grads(model.float.val().sum().backward(), &model);
        assert_eq!(values(&gradients.get::<2>(model.float.id).unwrap()), [1.0; 4]);
    });
}

#[test]
fn broadcast_module_refuses_a_root_that_is_no_rank() {
    on_ranks(2, |comm, device| {
        let error = broadcast_module(mixed(comm, device), 2, comm).unwrap_err();
        assert!(error.to_string().contains("root"), "{error}");
    });
}
