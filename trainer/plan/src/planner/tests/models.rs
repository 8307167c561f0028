//! Plans of published models on H100s in hosts of eight.

use super::{GB, Zero2, Zero3, hardware};
use crate::cost::{Estimate, Hardware, ModelShape, ParallelConfig};
use crate::planner::meshes::tensor_degrees;
use crate::planner::{PlanReport, Rule, published_model};
use unisono_nn::error::Error;
use unisono_parallel::data_parallel::ParallelKind;

const MODELS: [&str; 5] = ["llama2-7b", "llama2-13b", "llama2-70b", "llama3-405b", "mixtral-8x7b"];
const BUCKET: f64 = 25.0 * 1024.0 * 1024.0;

fn planned(shape: ModelShape, ranks: usize) -> Result<PlanReport, Error> {
    let tokens = if ranks > 1024 { 1 << 24 } else { 1 << 22 };
    PlanReport::new(shape, hardware("h100-80", ranks), tokens, BUCKET)
}

#[test]
fn presets_have_the_published_sizes() {
    let sizes = MODELS.map(|name| published_model(name).unwrap().parameters);
    assert_eq!(
        sizes,
        [6_738_415_616.0, 13_015_864_320.0, 68_976_648_192.0, 405_853_388_800.0, 46_702_792_704.0]
    );
    let llama3 = ["llama3-8b", "llama3-70b"].map(|name| published_model(name).unwrap().parameters);
    assert_eq!(llama3, [8_030_261_248.0, 70_553_706_496.0]);
    let families = ["mistral-7b", "qwen2.5-7b", "qwen3-8b", "qwen3-32b", "phi3-mini"];
    let sizes = families.map(|name| published_model(name).unwrap().parameters);
    assert_eq!(sizes, [7_241_732_096.0, 7_615_616_512.0, 8_190_735_360.0, 32_762_123_264.0, 3_821_079_552.0]);
    let wide = published_model("qwen3-32b").unwrap();
    assert_eq!((wide.gpt.query_width(), wide.gpt.width), (8192, 5120));
    let mixtral = published_model("mixtral-8x7b").unwrap();
    assert_eq!((mixtral.experts(), mixtral.active), (8, 12_879_925_248.0));
    // The same numbers by flags: 46.7 billion in all, 12.9 for a token that uses 2 of 8.
    let by_flags = ModelShape::from_parameters(46.7e9).with_experts(8, 2, Some(12.9e9));
    assert!((by_flags.expert_parameters / mixtral.expert_parameters - 1.0).abs() < 0.01);
}

/// Ranks repeat heads of keys that are fewer than they are, and keep the copies.
#[test]
fn repeated_heads_of_keys_allow_more_tensor_ranks() {
    let machine = hardware("h100-80", 8);
    for kv_heads in [1, 2, 8] {
        let mut shape = published_model("mistral-7b").unwrap();
        shape.gpt.kv_heads = kv_heads;
        assert_eq!(tensor_degrees(&shape, &machine), [2, 4, 8], "{kv_heads} heads of keys");
        for tensor in [1, 2, 4, 8] {
            let parallel = ParallelConfig { tensor, ..ParallelConfig::replicated(8 / tensor) };
            let estimate = Estimate { shape: &shape, hardware: &machine, parallel };
            let copies = tensor.max(kv_heads) - kv_heads;
            let repeated = (32 * 2 * copies * 128 * 4096) as f64;
            assert_eq!(tensor as f64 * estimate.parameters(), shape.parameters + repeated, "{tensor} ranks");
        }
    }
    let uneven = published_model("qwen2.5-7b").unwrap();
    assert_eq!(tensor_degrees(&uneven, &machine), [2, 4], "28 heads of queries");
}

/// Every mesh keeps the rules, or the numbers say why there is none.
#[test]
fn published_models_get_meshes_that_keep_the_rules() {
    for name in MODELS {
        for ranks in [8, 64, 512, 16_384] {
            let shape = published_model(name).unwrap();
            let (state, room) = (shape.bytes.total() * shape.parameters, ranks as f64 * 0.9 * 80.0 * GB);
            match planned(shape, ranks) {
                Ok(answer) => keeps_the_rules(&answer, &format!("{name} on {ranks}")),
                Err(Error::Invalid(what)) => {
                    assert!(state > room, "{name} on {ranks}: {what}");
                    assert!(what.contains("GB") && what.contains(&format!("{ranks} ranks")), "{what}");
                }
                Err(other) => panic!("{name} on {ranks}: {other}"),
            }
        }
    }
}

fn keeps_the_rules(answer: &PlanReport, subject: &str) {
    let (shape, parallel) = (&answer.shape, &answer.decision.parallel);
    let gpt = &shape.gpt;
    assert_eq!(parallel.mesh().unwrap().world_size(), answer.hardware.ranks, "{subject}");
    assert!(parallel.tensor <= 8 && gpt.kv_heads.is_multiple_of(parallel.tensor), "{subject}: {parallel:?}");
    assert!(parallel.pipeline <= gpt.layers && parallel.context == 1, "{subject}: {parallel:?}");
    assert!(parallel.kind != Zero3 || parallel.data <= 512, "{subject}: {parallel:?}");
    let is_mixture = shape.experts() > 1;
    assert_eq!(
        is_mixture,
        parallel.expert > 1 && shape.experts().is_multiple_of(parallel.expert),
        "{subject}"
    );
    if is_mixture {
        assert!(matches!(parallel.kind, Zero2 | Zero3), "{subject}: {parallel:?}");
        assert_eq!(answer.decision.rule, Rule::Experts, "{subject}");
    }
    assert_eq!(answer.decision.unsupported, None, "{subject}");
    let chosen = answer.search.find(parallel).unwrap_or_else(|| panic!("{subject}: {parallel:?}"));
    assert!(chosen.needed <= answer.hardware.usable_memory(), "{subject}: {parallel:?}");
    let recipe = answer.recipe.as_ref().unwrap();
    assert_eq!((recipe.micro_batch, recipe.accumulation), (chosen.micro_batch, chosen.accumulation));
    assert_eq!(
        recipe.samples,
        chosen.micro_batch * chosen.accumulation * parallel.batch_ranks(),
        "{subject}"
    );
    // Nothing that fits is much faster.
    assert!(chosen.seconds() * 0.95 <= answer.search.fitting[0].seconds(), "{subject}: {parallel:?}");
    assert!(answer.search.too_large.iter().all(|large| large.needed > answer.hardware.usable_memory()));
}

/// Small models are data parallel, layers are divided before stages, and stages come last.
#[test]
fn meshes_of_published_models_grow_with_model_and_ranks() {
    for (name, ranks, mesh) in [
        ("llama2-7b", 8, "zero1 data 8"),
        ("llama2-7b", 64, "zero1 data 64"),
        ("llama2-7b", 512, "zero3 tensor 2 x data 256"),
        ("llama2-13b", 8, "zero3 data 8"),
        ("llama2-13b", 64, "zero1 tensor 2 x data 32"),
        ("llama2-13b", 512, "zero3 tensor 2 x data 256"),
        ("llama2-70b", 64, "zero1 tensor 4 x pipeline 4 x data 4"),
        ("llama2-70b", 512, "zero2 tensor 4 x pipeline 2 x data 64"),
        ("llama3-405b", 16_384, "zero3 tensor 8 x pipeline 4 x data 512"),
        ("mixtral-8x7b", 64, "zero2 data 64 x expert 8"),
        ("mixtral-8x7b", 512, "zero3 data 512 x expert 8"),
    ] {
        let parallel = planned(published_model(name).unwrap(), ranks).unwrap().decision.parallel;
        let found = format!("{} {}", parallel.kind.name(), parallel.words());
        assert_eq!(found, mesh, "{name} on {ranks}");
    }
}

/// Whole gradients count while ranks accumulate, or are reduced for each micro-batch.
#[test]
fn accumulation_keeps_whole_gradients_or_reduces_more_often() {
    let (shape, hardware) = (published_model("llama2-7b").unwrap(), Hardware::named("h100-80", 64).unwrap());
    let estimate = |kind, reduces_each| {
        let parallel = ParallelConfig { kind, reduces_each, ..ParallelConfig::replicated(64) };
        Estimate { shape: &shape, hardware: &hardware, parallel }
    };
    let gradients = shape.bytes.gradient * shape.parameters;
    for kind in [Zero2, Zero3] {
        let keeps = estimate(kind, false);
        assert_eq!([keeps.accumulated(1), keeps.accumulated(8)], [0.0, gradients * 63.0 / 64.0]);
        let each = estimate(kind, true);
        assert_eq!(each.accumulated(8), 0.0);
        let more: f64 =
            [each, keeps].map(|left| left.sent(8)[1]).into_iter().reduce(|left, right| left - right).unwrap();
        assert!((more / (7.0 * shape.bytes.weight * shape.parameters * 63.0 / 64.0) - 1.0).abs() < 1e-12);
    }
    assert_eq!(estimate(ParallelKind::Zero1, false).accumulated(8), 0.0);
}

/// Sequences of 128 K tokens are shared by context parallel ranks.
#[test]
fn long_sequences_of_published_models_are_shared() {
    let mut shape = published_model("llama2-7b").unwrap();
    shape.gpt.context = 1 << 17;
    let answer = planned(shape, 64).unwrap();
    let parallel = &answer.decision.parallel;
    assert!(parallel.context > 1 || parallel.tensor > 1, "{parallel:?}");
    assert!(
        (1usize << 17).is_multiple_of(parallel.context) && parallel.data.is_multiple_of(parallel.context)
    );
    assert!(answer.search.fitting.iter().any(|candidate| candidate.parallel.context > 1));
}

#[test]
fn rate_falls_with_fewer_rows() {
    let mut hardware = hardware("a100-80", 1);
    assert_eq!(hardware.rate(1.0), hardware.flops);
    hardware.fit_rate([(128.0, 96e9), (32.0, 72e9)]);
    let assert_near = |rows: f64, rate: f64| assert!((hardware.rate(rows) / rate - 1.0).abs() < 1e-12);
    assert_near(128.0, 96e9);
    assert_near(32.0, 72e9);
    assert_near(hardware.half_rate_rows, hardware.flops / 2.0);
    let mut noisy = hardware.clone();
    noisy.fit_rate([(128.0, 70e9), (32.0, 72e9)]);
    assert_eq!((noisy.flops, noisy.half_rate_rows), (70e9, 0.0));
}
