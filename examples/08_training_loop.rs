//! A training loop: gradients travel beside the computation, rank 0 writes checkpoints, and the
//! survivors of a death go on from the newest one.
//!
//! `cargo run --release --example 08_training_loop` trains on one rank. This trains on three, of
//! which rank 1 dies: `DIES=1 unisono run --continue-on-failure -n 3 --
//! target/release/examples/08_training_loop`.

use serde::{Deserialize, Serialize};
use std::{error::Error, fs, fs::File, io, io::Write, ops::Range, path::PathBuf};
use unisono::{Communicator, Sum};

#[derive(Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) steps: u64,
    pub(crate) steps_per_checkpoint: u64,
    /// The folder of the checkpoints, which all ranks see.
    pub(crate) folder: PathBuf,
}

type OnStep<'a> = &'a dyn Fn(&Communicator, u64);

/// Trains with the ranks that are left, and by the settings of rank 0.
pub(crate) fn train(comm: Communicator, own_job: Job, on_step: OnStep) -> Result<Model, Box<dyn Error>> {
    let job = comm.broadcast_object(Some(own_job), 0)?;
    // After a death, and when a job is started again, all go on from the newest checkpoint.
    comm.run_with_recovery(|| newest_checkpoint(&job), |comm, step| take_steps(comm, &job, step, on_step))
}

/// Takes the steps that follow `step`.
fn take_steps(comm: &Communicator, job: &Job, step: u64, on_step: OnStep) -> Result<Model, Box<dyn Error>> {
    let mut model = Model::load(job, step)?;
    // The ranks that are left have the samples of the others, too.
    let samples: Vec<usize> = (comm.rank()..SAMPLES).step_by(comm.size()).collect();
    while model.step < job.steps {
        // The gradient of each layer travels while the next one is computed.
        let reduce = |layer| comm.all_reduce_async(model.gradient(layer, &samples), Sum);
        let sums: Vec<_> = LAYERS.into_iter().rev().map(|layer| (layer.clone(), reduce(layer))).collect();
        for (layer, sum) in sums {
            let weights = model.weights[layer].iter_mut();
            weights.zip(sum.wait()?).for_each(|(weight, sum)| *weight -= RATE * sum);
        }
        model.step += 1;
        if comm.rank() == 0 && model.step.is_multiple_of(job.steps_per_checkpoint) {
            model.save(job).unwrap_or_else(|error| eprintln!("no checkpoint {}: {error}", model.step));
        }
        on_step(comm, model.step);
    }
    // Ranks have different numbers of samples, which only they know.
    let errors: Vec<f64> = samples.iter().map(|&sample| model.error(sample)).collect();
    if let Some(errors) = comm.gather_vec(&errors, 0)? {
        println!("samples of ranks: {:?}", errors.iter().map(Vec::len).collect::<Vec<_>>());
    }
    Ok(model)
}

/// A linear model of two layers, whose outputs are added.
pub(crate) struct Model {
    step: u64,
    pub(crate) weights: [f64; 6],
}

const LAYERS: [Range<usize>; 2] = [0..3, 3..6];
const TRUE_WEIGHTS: [f64; 6] = [3.0, -1.0, 2.0, 5.0, 0.0, -4.0];
const SAMPLES: usize = 64;
const RATE: f64 = 0.25 / SAMPLES as f64;

/// Returns an input of the model, -1 or 1.
fn input(sample: usize, index: usize) -> f64 {
    (2 * (sample >> index & 1)) as f64 - 1.0
}

impl Model {
    fn error(&self, sample: usize) -> f64 {
        let part = |index| (self.weights[index] - TRUE_WEIGHTS[index]) * input(sample, index);
        (0..6).map(part).sum()
    }

    fn gradient(&self, layer: Range<usize>, samples: &[usize]) -> Vec<f64> {
        let part = |index| samples.iter().map(|&sample| self.error(sample) * input(sample, index)).sum();
        layer.map(part).collect()
    }

    /// Writes a checkpoint, which gets its name when it is complete.
    fn save(&self, job: &Job) -> io::Result<()> {
        let unfinished = job.folder.join(format!("unfinished-{}", std::process::id()));
        let mut file = File::create(&unfinished)?;
        file.write_all(&self.weights.map(f64::to_le_bytes).concat())?;
        file.sync_all()?;
        fs::rename(unfinished, job.folder.join(format!("step-{}", self.step)))
    }

    fn load(job: &Job, step: u64) -> Result<Self, Box<dyn Error>> {
        let path = job.folder.join(format!("step-{step}"));
        let bytes = if step == 0 { vec![0; 48] } else { fs::read(path)? };
        let weights: &[[u8; 8]; 6] = bytes.as_chunks().0.try_into()?;
        Ok(Self { step, weights: weights.map(f64::from_le_bytes) })
    }
}

/// Returns the step of the newest checkpoint, 0 if there is none.
fn newest_checkpoint(job: &Job) -> u64 {
    let step = |file: fs::DirEntry| file.file_name().to_str()?.strip_prefix("step-")?.parse().ok();
    fs::read_dir(&job.folder).into_iter().flatten().flatten().filter_map(step).max().unwrap_or(0)
}

fn main() -> Result<(), Box<dyn Error>> {
    let comm = Communicator::from_env_or_alone()?;
    let folder = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| "checkpoints/loop".to_owned()));
    fs::create_dir_all(&folder)?;
    let dies = std::env::var("DIES").is_ok_and(|number| number == comm.rank().to_string());
    let model = train(comm, Job { steps: 12, steps_per_checkpoint: 4, folder }, &|comm, step| {
        println!("step {step} on {} ranks", comm.size());
        if dies && step == 6 {
            std::process::abort();
        }
    })?;
    println!("weights {:.3?}", model.weights);
    Ok(())
}
