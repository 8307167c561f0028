//! Trains a GPT with five kinds of parallelism at once: `cargo run --release -p unisono-trainer
//! --example five_dimensions`.
//!
//! Data, tensor, pipeline, context and expert parallel ranks train the same model on the same text.
//! Losses and gradient norms of each mesh are compared with those of one rank, to one part in
//! 100,000.

mod common;

use common::{Result, on_ranks};
use std::path::Path;
use unisono::Communicator;
use unisono_trainer::config::Config;
use unisono_trainer::train::Run;

/// Dense model, and a model with experts.
const MODELS: [&str; 2] = ["", "experts.count=4 experts.shared=1 experts.first_dense=1 experts.width=16"];

/// Meshes: number of ranks, and settings. Those with experts are for the second model.
const MESHES: [(usize, &str); 5] = [
    (16, "mesh.tensor=2 mesh.pipeline=2 mesh.sequence_data=2 context.kv_transfer=ring strategy.kind=zero1"),
    (
        16,
        "mesh.tensor=2 mesh.pipeline=2 mesh.sequence_data=2 context.kv_transfer=ulysses context.placement=zig-zag \
         strategy.sequence_parallel=true strategy.kind=zero3 pipeline.schedule=zb-h1",
    ),
    (16, "mesh.tensor=2 mesh.pipeline=2 mesh.sequence_data=2 mesh.expert=4 strategy.kind=zero3"),
    (
        16,
        "mesh.tensor=2 mesh.pipeline=2 mesh.sequence_data=2 mesh.expert=2 mesh.expert_folded=false \
         context.kv_transfer=ring context.placement=striped pipeline.schedule=interleaved",
    ),
    (
        8,
        "mesh.pipeline=2 mesh.sequence_data=2 mesh.expert=2 mesh.order=tensor,pipeline,sequence_data,batch_data optimizer.kind=muon",
    ),
];

const STEPS: usize = 4;
const TOLERANCE: f64 = 1e-5;

fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let text: String =
        (0..400).map(|line| format!("line {line} of {} is {}\n", line * 7 % 13, line % 5)).collect();
    std::fs::write(folder.path().join("text.txt"), text)?;
    for (ranks, mesh) in MESHES {
        let model = MODELS[usize::from(mesh.contains("mesh.expert"))];
        let optimizer = mesh.split(' ').find(|word| word.starts_with("optimizer")).unwrap_or_default();
        let expected = steps(folder.path(), 1, &format!("{model} {optimizer}"))?;
        let found = steps(folder.path(), ranks, &format!("{model} {mesh}"))?;
        println!("{ranks} ranks: {mesh}");
        for (number, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let [loss, norm] = [0, 1].map(|index| (found[index] / expected[index] - 1.0).abs());
            println!(
                "  step {}: loss {:.6}, off by {loss:.1e}; norm {:.6}, off by {norm:.1e}",
                number + 1,
                found[0],
                found[1]
            );
            if loss.max(norm) > TOLERANCE {
                return Err(format!("one rank has loss {} and norm {}", expected[0], expected[1]).into());
            }
        }
    }
    println!("all meshes take the steps of one rank");
    Ok(())
}

/// Returns loss and gradient norm of each step.
fn steps(folder: &Path, ranks: usize, changes: &str) -> Result<Vec<[f64; 2]>> {
    let small = "model.layers=4 model.width=32 model.heads=4 model.context=32 data.global_batch=16 data.micro_batch=2 \
                 schedule.warmup=1 sample.tokens=0 checkpoint.last=false log.every=1000 log.validate_every=0";
    let words = small.split_whitespace().chain(changes.split_whitespace()).map(str::to_owned);
    let varying = [format!("data.path={}", folder.display()), format!("schedule.steps={STEPS}")];
    let config = Config::load(None, &words.chain(varying).collect::<Vec<_>>())?;
    let by_rank = on_ranks(Communicator::local(ranks)?, |world| {
        let mut run = Run::new(&config, world)?;
        (0..STEPS)
            .map(|_| run.step().map(|step| [step.loss, step.grad_norm]).map_err(Into::into))
            .collect::<Result<Vec<_>>>()
    })?;
    Ok(by_rank.into_iter().next().unwrap_or_default())
}
