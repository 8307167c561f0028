//! Keys that a run does not use with its other keys.

use crate::config::{
    Config, DataKind, DeviceKind, ExpertBalance, Model, OptimizerKind, Positions, RopeScalingKind,
};
use std::collections::BTreeMap;
use unisono_parallel::context_parallel::KvTransfer;
use unisono_parallel::data_parallel::ParallelKind;
use unisono_parallel::optimizer::LrShape;

/// Keys that have no effect in a case.
struct Unused {
    is_so: bool,
    /// Keys, or sections.
    keys: &'static [&'static str],
    /// Case, after "no effect with".
    case: &'static str,
}

/// Sections that have no effect as a whole in some case.
const SECTIONS: [&str; 3] = ["context", "experts", "pipeline"];

fn unused(is_so: bool, case: &'static str, keys: &'static [&'static str]) -> Unused {
    Unused { is_so, keys, case }
}

impl Config {
    /// Returns a note on each key, or section, that is not at its default and has no effect with
    /// the other keys.
    pub fn unused_keys(&self) -> Vec<String> {
        let changed = self.keys_off_default().unwrap_or_default();
        let is_in = |key: &str, path: &str| {
            path.strip_prefix(key).is_some_and(|suffix| suffix.is_empty() || suffix.starts_with('.'))
        };
        let is_changed = |key: &str| changed.iter().any(|change| is_in(key, change));
        let mut notes = BTreeMap::new();
        for Unused { keys, case, .. } in self.cases().into_iter().flatten().filter(|unused| unused.is_so) {
            for key in keys.iter().filter(|key| is_changed(key)) {
                let what =
                    if SECTIONS.contains(key) { format!("section `{key}`") } else { (*key).to_owned() };
                notes.entry(*key).or_insert_with(|| format!("{what} has no effect with {case}"));
            }
        }
        notes.into_values().collect()
    }

    fn cases(&self) -> [Vec<Unused>; 5] {
        let rope = rope_cases(&self.model);
        [self.data_cases(), rope, self.model_cases(), self.step_cases(), self.report_cases()]
    }

    fn data_cases(&self) -> Vec<Unused> {
        let is_tokens = self.data.kind == DataKind::Tokens;
        vec![
            unused(
                !is_tokens,
                "a data.kind other than \"tokens\"",
                &["data.validation_path", "data.tokenizer", "data.vocabulary", "data.end_of_text"],
            ),
            unused(
                is_tokens && self.data.tokenizer.is_empty(),
                "an empty data.tokenizer",
                &["data.end_of_text"],
            ),
            unused(is_tokens, "data.kind = \"tokens\"", &["data.extensions", "data.validation"]),
        ]
    }

    fn model_cases(&self) -> Vec<Unused> {
        let Self { model, experts, mesh, context, pipeline, .. } = self;
        vec![
            unused(model.bias, "model.bias = true", &["model.qkv_bias"]),
            unused(experts.count == 0, "experts.count = 0", &["experts"]),
            unused(
                experts.balance != ExpertBalance::Bias,
                "a balance other than \"bias\"",
                &["experts.bias_rate"],
            ),
            unused(
                experts.balance != ExpertBalance::Loss,
                "a balance other than \"loss\"",
                &["experts.balance_loss"],
            ),
            unused(mesh.expert <= 1, "mesh.expert = 1", &["mesh.expert_folded"]),
            unused(mesh.sequence_data == 1, "mesh.sequence_data = 1", &["context"]),
            unused(
                context.kv_transfer != KvTransfer::Ring,
                "a kv_transfer other than \"ring\"",
                &["context.ulysses_ranks"],
            ),
            unused(mesh.pipeline == 1, "mesh.pipeline = 1", &["pipeline"]),
            unused(
                !pipeline.stage_ends.is_empty(),
                "pipeline.stage_ends",
                &["pipeline.split", "pipeline.layers_per_stage"],
            ),
            unused(pipeline.layers_per_stage > 0.0, "pipeline.layers_per_stage", &["pipeline.split"]),
            unused(mesh.tensor == 1, "mesh.tensor = 1", &["strategy.sequence_parallel"]),
        ]
    }

    fn step_cases(&self) -> Vec<Unused> {
        let Self { optimizer, schedule, strategy, .. } = self;
        let gathers = strategy.uses(|kind| kind == ParallelKind::Zero3);
        // Ranks that are alone in their groups replicate buckets, and so do small parameters.
        let gathers_all = strategy.kind == ParallelKind::Zero3
            && !strategy.uses(|kind| kind != ParallelKind::Zero3)
            && strategy.shard_ranks != 1
            && strategy.replicate_below == 0;
        let is_sgd = optimizer.kind == OptimizerKind::Sgd;
        vec![
            unused(
                is_sgd,
                "optimizer.kind = \"sgd\"",
                &["optimizer.beta1", "optimizer.beta2", "optimizer.epsilon"],
            ),
            unused(
                optimizer.kind == OptimizerKind::Adamw,
                "optimizer.kind = \"adamw\"",
                &["optimizer.momentum"],
            ),
            unused(
                schedule.shape != LrShape::WarmupStableDecay,
                "a schedule.shape other than \"warmup-stable-decay\"",
                &["schedule.decay"],
            ),
            unused(schedule.shape == LrShape::Constant, "schedule.shape = \"constant\"", &["schedule.floor"]),
            unused(
                !gathers,
                "a strategy.kind other than \"zero3\"",
                &["strategy.prefetch", "strategy.gather_limit", "strategy.reshard_after_forward"],
            ),
            unused(
                !strategy.uses(ParallelKind::shards_state),
                "a strategy.kind other than \"zero1\", \"zero2\" and \"zero3\"",
                &["strategy.shard_ranks", "strategy.replicate_below"],
            ),
            unused(
                !strategy.uses(ParallelKind::shards_gradients),
                "a strategy.kind other than \"zero2\" and \"zero3\"",
                &["strategy.reduction_limit"],
            ),
            unused(gathers_all, "strategy.kind = \"zero3\"", &["strategy.bucket_mb"]),
            unused(self.device != DeviceKind::Cpu, "a device other than \"cpu\"", &["threads"]),
        ]
    }

    fn report_cases(&self) -> Vec<Unused> {
        let Self { checkpoint, log, sample, .. } = self;
        let saves = checkpoint.every > 0 || checkpoint.last;
        vec![
            unused(
                !saves,
                "checkpoint.every = 0 and checkpoint.last = false",
                &["checkpoint.keep", "checkpoint.async"],
            ),
            unused(
                !saves && !checkpoint.resume,
                "checkpoint.every = 0, checkpoint.last = false and no checkpoint.resume",
                &["checkpoint.folder"],
            ),
            unused(!checkpoint.resume, "checkpoint.resume = false", &["checkpoint.allow_changes"]),
            unused(log.trace.is_empty(), "an empty log.trace", &["log.trace_steps"]),
            unused(
                sample.tokens == 0,
                "sample.tokens = 0",
                &[
                    "sample.prompt",
                    "sample.temperature",
                    "sample.top_k",
                    "sample.top_p",
                    "sample.repetition_penalty",
                ],
            ),
            unused(sample.temperature == 0.0, "sample.temperature = 0", &["sample.top_k", "sample.top_p"]),
        ]
    }
}

/// Keys of the scaling of rotary positions, besides its factor.
const SCALING: [&str; 8] = [
    "model.rope_scaling",
    "model.rope_low_freq_factor",
    "model.rope_high_freq_factor",
    "model.rope_beta_fast",
    "model.rope_beta_slow",
    "model.rope_attention_factor",
    "model.rope_truncate",
    "model.rope_original_context",
];

fn rope_cases(model: &Model) -> Vec<Unused> {
    let is_learned = model.positions == Positions::Learned;
    let learned = "model.positions = \"learned\"";
    let [llama3, yarn] =
        [RopeScalingKind::Llama3, RopeScalingKind::Yarn].map(|kind| model.rope_scaling == kind);
    vec![
        unused(is_learned, learned, &["model.rope_base", "model.rope_scaling_factor"]),
        unused(is_learned, learned, &SCALING),
        unused(model.rope_config().scaling.is_none(), "model.rope_scaling_factor = 1", &SCALING),
        unused(
            !llama3,
            "a model.rope_scaling other than \"llama3\"",
            &["model.rope_low_freq_factor", "model.rope_high_freq_factor"],
        ),
        unused(
            !yarn,
            "a model.rope_scaling other than \"yarn\"",
            &[
                "model.rope_beta_fast",
                "model.rope_beta_slow",
                "model.rope_attention_factor",
                "model.rope_truncate",
            ],
        ),
        unused(!llama3 && !yarn, "model.rope_scaling = \"linear\"", &["model.rope_original_context"]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes(changes: &[&str]) -> Vec<String> {
        let changes: Vec<_> = changes.iter().map(|&change| change.to_owned()).collect();
        Config::load(None, &changes).unwrap().unused_keys()
    }

    const YARN: [&str; 3] =
        ["model.positions=rotary", "model.rope_scaling=yarn", "model.rope_scaling_factor=8"];

    /// Key with a value, and what makes it effective.
    const CASES: [(&str, &[&str]); 46] = [
        ("data.validation_path=a.u16", &["data.kind=tokens"]),
        ("data.tokenizer=t.json", &["data.kind=tokens"]),
        ("data.end_of_text=</s>", &["data.kind=tokens", "data.tokenizer=t.json"]),
        ("data.vocabulary=300", &["data.kind=tokens"]),
        ("model.rope_base=5e5", &["model.positions=rotary"]),
        ("model.rope_scaling_factor=8", &["model.positions=rotary"]),
        ("model.rope_low_freq_factor=2", &["model.positions=rotary", "model.rope_scaling_factor=8"]),
        ("model.rope_high_freq_factor=8", &["model.positions=rotary", "model.rope_scaling_factor=8"]),
        ("model.rope_original_context=64", &["model.positions=rotary", "model.rope_scaling_factor=8"]),
        ("model.rope_scaling=linear", &["model.positions=rotary", "model.rope_scaling_factor=8"]),
        ("model.rope_beta_fast=16", &YARN),
        ("model.rope_beta_slow=2", &YARN),
        ("model.rope_attention_factor=1.5", &["model.positions=rotary", "model.rope_scaling=yarn"]),
        ("model.rope_truncate=false", &YARN),
        ("model.qkv_bias=true", &["model.bias=false"]),
        ("mesh.expert_folded=false", &["experts.count=4", "mesh.expert=2"]),
        ("context.placement=striped", &["mesh.sequence_data=2"]),
        ("context.ulysses_ranks=2", &["mesh.sequence_data=4", "context.kv_transfer=ring"]),
        ("pipeline.schedule=gpipe", &["mesh.pipeline=2"]),
        ("pipeline.chunks=2", &["mesh.pipeline=2"]),
        ("pipeline.split=cost", &["mesh.pipeline=2"]),
        ("pipeline.layers_per_stage=1", &["mesh.pipeline=2"]),
        ("pipeline.stage_ends=[1,2]", &["mesh.pipeline=2"]),
        ("strategy.sequence_parallel=true", &["mesh.tensor=2"]),
        ("optimizer.momentum=0.5", &["optimizer.kind=sgd"]),
        ("schedule.decay=5", &["schedule.shape=warmup-stable-decay"]),
        ("strategy.shard_ranks=2", &["strategy.kind=zero1"]),
        ("strategy.replicate_below=100", &["strategy.units={ \"h.0\" = \"zero3\" }"]),
        ("strategy.prefetch=2", &["strategy.kind=zero3"]),
        ("strategy.gather_limit=3", &["strategy.kind=zero3"]),
        ("strategy.reshard_after_forward=false", &["strategy.units={ \"h.0\" = \"zero3\" }"]),
        ("strategy.reduction_limit=3", &["strategy.kind=zero2"]),
        ("checkpoint.allow_changes=seed", &["checkpoint.resume=true"]),
        ("log.trace_steps=5", &["log.trace=trace.json"]),
        ("experts.shared=1", &["experts.count=4"]),
        ("experts.per_token=1", &["experts.count=4"]),
        ("experts.bias_rate=0.1", &["experts.count=4", "experts.balance=bias"]),
        ("experts.z_loss=0.1", &["experts.count=4"]),
        ("experts.width=64", &["experts.count=4"]),
        ("experts.first_dense=1", &["experts.count=4"]),
        ("experts.score=sigmoid", &["experts.count=4"]),
        ("experts.normalize=false", &["experts.count=4"]),
        ("experts.scale=2", &["experts.count=4"]),
        ("experts.capacity_factor=1.25", &["experts.count=4"]),
        ("experts.balance=none", &["experts.count=4"]),
        ("experts.balance_loss=0.1", &["experts.count=4"]),
    ];

    #[test]
    fn keys_without_effect_are_noted() {
        for (change, enabling) in CASES {
            let (key, _) = change.split_once('=').unwrap();
            let section = format!("section `{}`", key.split_once('.').unwrap().0);
            let is_noted = |notes: &[String]| {
                notes.iter().any(|note| note.starts_with(key) || note.starts_with(&section))
            };
            assert!(is_noted(&notes(&[change])), "{change}");
            let effective = notes(&[enabling, &[change]].concat());
            assert!(!is_noted(&effective), "{change}: {effective:?}");
        }
    }

    #[test]
    fn keys_that_another_key_replaces_are_noted() {
        for (changes, key) in [
            (&["data.kind=tokens", "data.validation=0.2"][..], "data.validation"),
            (&["data.kind=tokens", "data.extensions=md"], "data.extensions"),
            (&["optimizer.kind=sgd", "optimizer.beta1=0.8"], "optimizer.beta1"),
            (&["optimizer.kind=sgd", "optimizer.beta2=0.8"], "optimizer.beta2"),
            (&["optimizer.kind=sgd", "optimizer.epsilon=1e-6"], "optimizer.epsilon"),
            (&["schedule.shape=constant", "schedule.floor=0.2"], "schedule.floor"),
            (&["strategy.kind=zero3", "strategy.bucket_mb=5"], "strategy.bucket_mb"),
            (&["device=cuda", "threads=2"], "threads"),
            (&["checkpoint.last=false", "checkpoint.keep=5"], "checkpoint.keep"),
            (&["checkpoint.last=false", "checkpoint.async=true"], "checkpoint.async"),
            (&["checkpoint.last=false", "checkpoint.folder=c"], "checkpoint.folder"),
            (&["sample.tokens=0", "sample.prompt=a"], "sample.prompt"),
            (&["sample.temperature=0", "sample.top_k=3"], "sample.top_k"),
            (&["sample.temperature=0", "sample.top_p=0.5"], "sample.top_p"),
        ] {
            let found = notes(changes);
            assert!(
                matches!(&found[..], [note] if note.starts_with(&format!("{key} has no effect with "))),
                "{changes:?}: {found:?}"
            );
        }
        assert_eq!(notes(&[]), [""; 0]);
        assert_eq!(notes(&["model.shape=llama", "strategy.kind=zero3", "mesh.tensor=2"]), [""; 0]);
    }
}
