//! Trains a small network on every rank of a job, with the gradients averaged over all ranks.
//!
//! `unisono run -n 4 -- target/release/examples/train` starts four processes. Without a launcher,
//! the program trains on four threads. Rank 0 prints the loss. It is that of one process that
//! trains on the batches of all ranks.

use burn::module::{Module, Param};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::distributed::ReduceOperation;
use burn::tensor::{Device, Distribution, Tensor, activation};
use unisono::Communicator;
use unisono_burn::{GradientSync, all_reduce, broadcast_module};

#[derive(Module, Debug)]
struct Network {
    hidden: Param<Tensor<2>>,
    bias: Param<Tensor<2>>,
    output: Param<Tensor<2>>,
}

impl Network {
    fn new(width: usize, device: &Device) -> Self {
        let random =
            |shape| Param::from_tensor(Tensor::random(shape, Distribution::Normal(0.0, 0.5), device));
        Self {
            hidden: random([2, width]),
            bias: Param::from_tensor(Tensor::zeros([1, width], device)),
            output: random([width, 1]),
        }
    }

    fn forward(&self, points: Tensor<2>) -> Tensor<2> {
        let hidden = activation::relu(points.matmul(self.hidden.val()) + self.bias.val());
        hidden.matmul(self.output.val())
    }
}

/// Returns points of a square, and the product of their coordinates.
fn batch(size: usize, device: &Device) -> (Tensor<2>, Tensor<2>) {
    let points = Tensor::<2>::random([size, 2], Distribution::Uniform(-1.0, 1.0), device);
    let targets = points.clone().prod_dim(1);
    (points, targets)
}

fn train(comm: &Communicator) -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::flex().autodiff();
    let mut network = broadcast_module(Network::new(32, &device), 0, comm)?;
    let mut optimizer = AdamConfig::new().init();
    let sync = GradientSync::new(comm, ReduceOperation::Mean);
    let (mut first, mut last) = (f32::NAN, f32::NAN);
    for step in 0..STEPS {
        let (points, targets) = batch(64, &device);
        let loss = (network.forward(points) - targets).square().mean();
        let mean = all_reduce(loss.clone().detach(), ReduceOperation::Mean, comm)?;
        last = mean.into_scalar::<f32>();
        first = if step == 0 { last } else { first };
        if comm.rank() == 0 && step % 50 == 0 {
            println!("step {step}: loss {last:.5}");
        }
        let gradients = GradientsParams::from_grads(loss.backward(), &network);
        let gradients = sync.reduce(gradients, &network)?;
        network = optimizer.step(0.02, network, gradients);
    }
    if last > first / 4.0 {
        return Err(format!("rank {}: the loss went from {first} to {last} only", comm.rank()).into());
    }
    Ok(())
}

const STEPS: usize = 301;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::var_os("RANK").is_some() {
        return train(&Communicator::from_env()?);
    }
    std::thread::scope(|scope| {
        let ranks = Communicator::local(4)?;
        let start = |comm| scope.spawn(move || train(&comm).map_err(|error| error.to_string()));
        let threads: Vec<_> = ranks.into_iter().map(start).collect();
        threads.into_iter().try_for_each(|thread| Ok(thread.join().expect("a rank panicked")?))
    })
}
