//! Fine-tunes a small network on every rank of a job, with the state of AdamW divided between them.
//!
//! `unisono run -n 2 -- target/release/examples/finetune` starts two processes. Without a launcher,
//! the program runs on two threads. Rank 0 trains a network on one task alone. All ranks then
//! fine-tune it on another task together.

use candle_core::{DType, Device, Tensor};
use candle_nn::{AdamW, Module, Optimizer, ParamsAdamW, Sequential, VarBuilder, VarMap};
use unisono::{Avg, Communicator};
use unisono_candle::{Error, ShardedAdamW};

fn network(map: &VarMap) -> Result<Sequential, Error> {
    let builder = VarBuilder::from_varmap(map, DType::F32, &Device::Cpu);
    let first = candle_nn::linear(2, 32, builder.pp("first"))?;
    let second = candle_nn::linear(32, 1, builder.pp("second"))?;
    Ok(candle_nn::seq().add(first).add_fn(|hidden| hidden.tanh()).add(second))
}

/// Returns the loss on random points, for the sine of `frequency` times the sum of coordinates.
fn loss(network: &Sequential, frequency: f64) -> Result<Tensor, Error> {
    let points = Tensor::rand(-1f32, 1f32, (64, 2), &Device::Cpu)?;
    let targets = (points.sum_keepdim(1)? * frequency)?.sin()?;
    Ok(candle_nn::loss::mse(&network.forward(&points)?, &targets)?)
}

fn pretrain(network: &Sequential, map: &VarMap) -> Result<(), Error> {
    let mut optimizer = AdamW::new_lr(map.all_vars(), 0.01)?;
    for _ in 0..200 {
        optimizer.backward_step(&loss(network, 1.0)?)?;
    }
    println!("after pretraining: loss {:.5}", loss(network, 1.0)?.to_scalar::<f32>()?);
    Ok(())
}

fn finetune(comm: &Communicator) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let map = VarMap::new();
    let network = network(&map)?;
    if comm.rank() == 0 {
        pretrain(&network, &map)?;
    }
    // Rank 0 gives its parameters to the others.
    let config = ParamsAdamW { lr: 0.01, ..ParamsAdamW::default() };
    let mut optimizer = ShardedAdamW::new(comm, &map, config)?;
    let (mut first, mut last) = (f32::NAN, f32::NAN);
    for step in 0..301 {
        let loss = loss(&network, 1.5)?;
        let mut mean = [loss.to_scalar::<f32>()?];
        comm.all_reduce(&mut mean, Avg)?;
        last = mean[0];
        first = if step == 0 { last } else { first };
        if comm.rank() == 0 && step % 50 == 0 {
            println!("step {step}: loss {last:.5}");
        }
        optimizer.backward_step(&loss)?;
    }
    if last > first / 4.0 {
        return Err(format!("rank {}: the loss went from {first} to {last} only", comm.rank()).into());
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    if std::env::var_os("RANK").is_some() {
        return finetune(&Communicator::from_env()?);
    }
    let ranks = Communicator::local(2)?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(move || finetune(&comm))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a rank panicked"))
    })
}
