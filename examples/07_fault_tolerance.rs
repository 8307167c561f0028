//! Ranks go on after others are killed: the survivors shrink the communicator and repeat the step.
//!
//! `cargo run --release --example 07_fault_tolerance` starts five processes, of which two kill
//! themselves with SIGKILL. `unisono run --continue-on-failure -n 5 --
//! target/release/examples/07_fault_tolerance` does the same under the launcher.

use std::process::Command;
use unisono::{Avg, Communicator, Error, UniqueId};

/// Takes steps until `model` has taken `steps` of them, with the ranks that are left.
///
/// Some ranks may leave the last barrier, and others fail in it. So no operation follows on the
/// communicator.
pub fn train(mut comm: Communicator, model: &mut Model, steps: u64) -> unisono::Result<Communicator> {
    while let Err(error) = take_steps(&comm, model, steps) {
        model.failures.push(error.clone());
        comm = survivors(&comm, model, error)?;
    }
    Ok(comm)
}

fn take_steps(comm: &Communicator, model: &mut Model, steps: u64) -> unisono::Result<()> {
    while model.step < steps {
        // After an error, `mean` is unspecified and the gradients are whole.
        comm.all_reduce_into(&model.gradients, &mut model.mean, Avg)?;
        model.update();
    }
    comm.barrier()
}

/// Goes on without the ranks that failed, or returns `error`.
fn survivors(comm: &Communicator, model: &mut Model, error: Error) -> unisono::Result<Communicator> {
    if !error.is_recoverable() {
        return Err(error);
    }
    // Some ranks may have completed the step in which others failed. All repeat it.
    let (left, step) = comm.shrink_and_agree(model.step)?;
    // A shrink that leaves nobody out has not removed the cause.
    if left.size() == comm.size() {
        return Err(error);
    }
    model.go_back_to(step);
    Ok(left)
}

/// The state of a rank. It can go back by one step.
pub struct Model {
    /// The number of steps taken.
    pub step: u64,
    /// The weights after them.
    pub weights: Vec<f32>,
    /// The weights one step earlier.
    previous_weights: Vec<f32>,
    gradients: Vec<f32>,
    /// The mean gradient of the last step.
    pub mean: Vec<f32>,
    /// The errors from which the rank has recovered.
    pub failures: Vec<Error>,
    /// Called after each step.
    after_step: fn(&Model),
}

impl Model {
    /// Makes a model of `length` weights, with `gradient` as the gradient of each in each step.
    pub fn new(length: usize, gradient: f32, after_step: fn(&Model)) -> Self {
        let [weights, previous_weights, mean] = [(); 3].map(|()| vec![0.0; length]);
        let (gradients, failures) = (vec![gradient; length], Vec::new());
        Self { step: 0, weights, previous_weights, gradients, mean, failures, after_step }
    }

    /// Returns the gradient of each weight.
    pub fn gradient(&self) -> f32 {
        self.gradients[0]
    }

    fn update(&mut self) {
        self.previous_weights.copy_from_slice(&self.weights);
        self.weights.iter_mut().zip(&self.mean).for_each(|(weight, mean)| *weight -= mean);
        self.step += 1;
        (self.after_step)(self);
    }

    /// Returns to `step`, which is this one or the one before: no rank completes a step before all
    /// have begun it.
    fn go_back_to(&mut self, step: u64) {
        if step < self.step {
            self.weights.copy_from_slice(&self.previous_weights);
            self.step = step;
        }
    }
}

const RANKS: usize = 5;
const STEPS: u64 = 300;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::var_os("RANK").is_some() {
        return Ok(rank_main(Communicator::from_env()?)?);
    }
    let id = UniqueId::new(std::net::Ipv4Addr::LOCALHOST.into())?.to_string();
    let start = |rank: usize| {
        Command::new(std::env::current_exe()?)
            .envs([("RANK", rank.to_string()), ("WORLD_SIZE", RANKS.to_string()), ("UNISONO_ID", id.clone())])
            .spawn()
    };
    let ranks = (0..RANKS).map(start).collect::<Result<Vec<_>, _>>()?;
    for (rank, mut child) in ranks.into_iter().enumerate() {
        if child.wait()?.success() == dies_after(rank).is_some() {
            return Err(format!("rank {rank} ended otherwise than it should").into());
        }
    }
    Ok(())
}

fn rank_main(mut comm: Communicator) -> unisono::Result<()> {
    let number = comm.rank();
    let mut model = Model::new(1 << 16, number as f32, |model| {
        if dies_after(model.gradient() as usize) == Some(model.step) {
            kill_this_process();
        }
    });
    comm = train(comm, &mut model, STEPS)?;
    model.failures.iter().for_each(|error| println!("rank {number}: {error}"));
    println!("rank {number} ends as rank {} of {} after step {}", comm.rank(), comm.size(), model.step);
    assert_eq!((comm.size(), model.mean[0]), (3, 7.0 / 3.0), "ranks 0, 3 and 4 are left");
    Ok(())
}

/// Returns the number of steps after which a rank is killed.
fn dies_after(number: usize) -> Option<u64> {
    [None, Some(100), Some(200), None, None][number]
}

fn kill_this_process() {
    let _ = Command::new("kill").args(["-9", &std::process::id().to_string()]).status();
    // The signal is on its way.
    std::thread::sleep(std::time::Duration::from_secs(10));
}
