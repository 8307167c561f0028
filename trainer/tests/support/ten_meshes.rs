//! Ten meshes of eight ranks, with their predictions.

use std::path::Path;
use unisono_parallel::data_parallel::ParallelKind;
use unisono_plan::cost::{Estimate, Hardware, ParallelConfig, StepTime};
use unisono_plan::planner::Candidate;
use unisono_trainer::config::Config;
use unisono_trainer::plan_command::exact_memory;

pub(crate) const RANKS: usize = 8;

/// Strategy, and degrees of tensor, pipeline, context, recomputation.
pub(crate) type Mesh = (ParallelKind, [usize; 3], bool);

/// Each kind of parallelism, alone and with others.
pub(crate) const MESHES: [Mesh; 10] = [
    (ParallelKind::Replicated, [1, 1, 1], false),
    (ParallelKind::Zero2, [1, 1, 1], true),
    (ParallelKind::Zero3, [1, 1, 1], false),
    (ParallelKind::Replicated, [8, 1, 1], false),
    (ParallelKind::Zero1, [2, 1, 1], false),
    (ParallelKind::Replicated, [1, 8, 1], false),
    (ParallelKind::Zero1, [1, 2, 1], false),
    (ParallelKind::Replicated, [1, 1, 4], false),
    (ParallelKind::Zero3, [2, 2, 1], false),
    (ParallelKind::Zero2, [2, 2, 2], true),
];

pub(crate) fn config(folder: &Path, layers: usize, width: usize, context: usize) -> Config {
    let text: String = (0..4000).map(|line| format!("line {line} is {}\n", line * 7 % 13)).collect();
    std::fs::write(folder.join("text.txt"), text).unwrap();
    let changes = [
        format!("data.path={}", folder.display()),
        format!("model.layers={layers}"),
        format!("model.width={width}"),
        format!("model.context={context}"),
        "model.heads=8".to_owned(),
        "checkpoint.last=false".to_owned(),
        "schedule.warmup=1".to_owned(),
    ];
    Config::load(None, &changes).unwrap()
}

/// Returns a mesh with 16 samples per step, one at a time.
pub(crate) fn candidate(
    (kind, [tensor, pipeline, context], again): Mesh,
    config: &Config,
    here: &Hardware,
) -> Candidate {
    let data = RANKS / tensor / pipeline;
    let replicated = ParallelConfig::replicated(data);
    let parallel =
        ParallelConfig { kind, tensor, pipeline, context, activation_checkpointing: again, ..replicated };
    let shape = config.model_shape().unwrap();
    let estimate = Estimate { shape: &shape, hardware: here, parallel };
    let (micro_batch, accumulation) = (1, 16 * context / data);
    let bucket = config.strategy.bucket_mb * f64::from(1 << 20);
    let step_time = StepTime::new(&estimate, micro_batch, accumulation, bucket);
    let mut found = Candidate { parallel, micro_batch, accumulation, needed: 0.0, sent: [0.0; 3], step_time };
    found.needed = exact_memory(&found, config).unwrap() as f64;
    found
}
