//! Tests of the formulas by worked examples.

use crate::cost::{
    BytesPerParam, Estimate, Hardware, Link, Measurement, ModelShape, ParallelConfig, StepTime, bucket_count,
    effective_bandwidth, ring, tree,
};
use crate::planner::batch_recipe::scaled_rates;
use crate::planner::counts::{attention_score_elements, expert_combinations};
use crate::planner::report::gigabytes;
use crate::planner::rules::rule_of_thumb;
use crate::planner::tree::decide;
use crate::planner::{BatchRecipe, Decision, PlanReport, Rule};
use unisono_nn::error::Error;
use unisono_parallel::data_parallel::ParallelKind::{self, Replicated, Zero1, Zero2, Zero3};
use unisono_parallel::mesh::{Degrees, Mesh};
use unisono_parallel::pipeline::{Order, StageCosts, Timeline, play};

mod models;

const GB: f64 = 1e9;

fn near(found: f64, expected: f64) -> bool {
    (found / expected - 1.0).abs() < 1e-9
}

/// Returns pure data parallelism with this strategy.
fn parallel(kind: ParallelKind, ranks: usize) -> ParallelConfig {
    ParallelConfig { kind, ..ParallelConfig::replicated(ranks) }
}

/// Returns the shape of a model of this many billion parameters.
fn billions(count: f64) -> ModelShape {
    ModelShape::from_parameters(count * 1e9)
}

fn recomputed(mut shape: ModelShape) -> ModelShape {
    shape.gpt.activation_checkpointing = true;
    shape
}

fn hardware(name: &str, ranks: usize) -> Hardware {
    Hardware::named(name, ranks).unwrap()
}

/// Returns a link of this many GB/s without latency.
fn link(gigabytes: f64) -> Link {
    Link { alpha: 0.0, beta: gigabytes * GB }
}

#[test]
fn all_reduce_sends_twice_the_other_ranks_share() {
    // PCIe 4 and 5, 4 GPUs, 1 GB; 8 GPUs at 25 and 50 GB/s; NVLink 4.
    for (gigabytes, ranks, milliseconds) in
        [(4.0, 4, 375.0), (8.0, 4, 187.5), (25.0, 8, 70.0), (50.0, 8, 35.0), (450.0, 8, 3.888_888_888_889)]
    {
        assert!(near(link(gigabytes).collective(ring(), ranks, GB), milliseconds / 1e3), "{gigabytes} GB/s");
        let effective = effective_bandwidth(gigabytes * GB, ranks);
        assert!(near(GB / effective, milliseconds / 1e3));
    }
}

#[test]
fn link_time_adds_latency_and_bandwidth() {
    let link = Link { alpha: 3e-6, beta: 7e9 };
    for (ranks, bytes) in [(2usize, 8.0), (5, 1e6), (64, 1e9)] {
        let n = ranks as f64;
        let formula = 2.0 * (n - 1.0) * link.alpha + 2.0 * (n - 1.0) / n * bytes / link.beta;
        assert!(near(link.collective(ring(), ranks, bytes), formula), "{ranks} ranks");
    }
}

#[test]
fn fitted_link_recovers_measured_link() {
    let link = Link { alpha: 4e-5, beta: 2e9 };
    let point =
        |bytes: f64, noise: f64| Measurement { bytes, seconds: noise * link.collective(ring(), 4, bytes) };
    let noisy = [(1e3, 1.05), (1e4, 0.97), (1e5, 1.02), (1e6, 0.96), (1e7, 1.03)];
    let points = noisy.map(|(bytes, noise)| point(bytes, noise));
    let fitted = Link::fit(ring(), 4, &points).unwrap();
    let held_out = [6.5e4, 5e5, 5e6].map(|bytes| point(bytes, 1.0));
    assert!(fitted.error(ring(), 4, &held_out) < 0.15, "{fitted:?}");
    assert!(
        Link::fit(ring(), 4, &points[..1]).unwrap_err().to_string().contains("tell latency from bandwidth")
    );
    assert!(Link::fit(ring(), 1, &points).is_err());
}

#[test]
fn overlap_hides_shorter_of_backward_and_comm() {
    let pace = |communication: f64| {
        let hidden = communication.min(2.0);
        StepTime { forward: 1.0, backward: 2.0, communication, hidden, ..StepTime::default() }
    };
    let (pace, slow) = (pace(1.5), pace(40.0));
    assert_eq!((pace.naive(), pace.overlapped()), (4.5, 3.0));
    assert_eq!(slow.overlapped(), 41.0);
    assert!(slow.utilization() < 0.08 && pace.utilization() > 0.9);
}

#[test]
fn bucketing_needs_few_collectives() {
    let bucket = 25.0 * f64::from(1 << 20);
    assert_eq!(bucket_count(2.0 * 7e9, bucket), 535.0);
    assert_eq!(bucket_count(1.0, bucket), 1.0);
}

#[test]
fn batch_of_4m_tokens_at_4096_is_1024_samples() {
    let recipe = |ranks| {
        let (shape, hardware) = (&recomputed(billions(1.0)), &hardware("a100-80", ranks));
        BatchRecipe::new(4_194_304, &Estimate { shape, hardware, parallel: parallel(Zero1, ranks) })
    };
    let single = recipe(128).unwrap();
    assert_eq!((single.samples, single.micro_batch * single.accumulation), (1024, 8));
    // Data ranks come first, then larger micro-batches, then accumulation.
    assert_eq!((single.micro_batch, single.accumulation, recipe(512).unwrap().micro_batch), (8, 1, 2));
    let crooked = recipe(100).unwrap_err().to_string();
    assert!(crooked.contains("nearest global batch: 1000 or 1100"), "{crooked}");
    assert_eq!(single.lines().len(), 6);
}

#[test]
fn max_micro_batch_fills_free_memory() {
    let (shape, hardware) = (&billions(1.0), &hardware("a100-80", 8));
    let estimate = Estimate { shape, hardware, parallel: parallel(Replicated, 8) };
    let micro_batch = estimate.max_micro_batch();
    assert!(micro_batch > 0 && estimate.needed(micro_batch) <= hardware.usable_memory());
    assert!(estimate.needed(micro_batch + 1) > hardware.usable_memory());
}

#[test]
fn too_many_ranks_are_answered_with_options() {
    let (shape, hardware) = (&recomputed(billions(1.0)), &hardware("a100-80", 2048));
    let estimate = Estimate { shape, hardware, parallel: parallel(Zero1, 2048) };
    let error = BatchRecipe::new(4_194_304, &estimate).unwrap_err().to_string();
    assert!(error.contains("Two options: (1) 1024 data ranks") && error.contains("(2)"), "{error}");
}

#[test]
fn training_keeps_16_or_20_bytes_per_parameter() {
    assert_eq!(BytesPerParam::mixed(4.0, false), BytesPerParam { weight: 2.0, gradient: 2.0, state: 12.0 });
    assert_eq!(BytesPerParam::mixed(4.0, false).total(), 16.0);
    assert_eq!(BytesPerParam::mixed(4.0, true).total(), 20.0);
    assert_eq!(BytesPerParam::mixed(2.0, false).total(), 12.0);
}

#[test]
fn zero_stages_shard_state_gradients_weights() {
    let total = |kind, bytes: BytesPerParam| bytes.group(1.0, 1).kept(kind, 64).iter().sum::<f64>();
    let mixed = BytesPerParam::mixed(4.0, false);
    assert_eq!(
        [Replicated, Zero1, Zero2, Zero3].map(|kind| total(kind, mixed)),
        [16.0, 4.1875, 2.21875, 0.25]
    );
    assert_eq!(total(Zero3, BytesPerParam::mixed(4.0, true)), 0.25 + 4.0 / 64.0);
}

#[test]
fn zero3_sends_half_as_much_again() {
    let bytes = BytesPerParam::mixed(4.0, false);
    let sent = |kind| bytes.group(0.5, 1).sent(kind, 64).map(|bytes| bytes * 64.0 / 63.0);
    assert_eq!(sent(Replicated), [0.0, 2.0, 0.0]);
    assert_eq!((sent(Zero1), sent(Zero2)), ([0.0, 1.0, 1.0], [0.0, 1.0, 1.0]));
    assert_eq!(sent(Zero3), [1.0, 2.0, 0.0]);
    // With accumulation, weights are gathered for every micro-batch.
    assert_eq!(bytes.group(0.5, 4).sent(Zero3, 2), [2.0, 2.5, 0.0]);
}

#[test]
fn model_of_70b_needs_140_gb_and_14_ranks() {
    assert_eq!(gigabytes(70e9), 140.0);
    let state = 70e9 * BytesPerParam::mixed(4.0, false).total();
    assert_eq!((state / GB, state / hardware("a100-80", 16).memory), (1120.0, 14.0));
    assert!(((gigabytes(70e9) * GB / f64::from(1 << 30)) - 130.4).abs() < 0.05);
}

#[test]
fn activations_scale_with_every_dimension() {
    let changed = |change: &dyn Fn(&mut ModelShape)| {
        let mut shape = billions(1.0);
        shape.gpt.vocabulary = 1;
        change(&mut shape);
        shape
    };
    let unchanged = changed(&|_| ());
    let bytes_of = |shape: &ModelShape| shape.activations(1, false);
    let twice = |change: &dyn Fn(&mut ModelShape)| bytes_of(&changed(change)) / bytes_of(&unchanged);
    assert!(near(twice(&|shape| shape.gpt.context *= 2), 2.0));
    assert!((twice(&|shape| shape.gpt.width *= 2) - 2.0).abs() < 0.01);
    assert!((twice(&|shape| shape.gpt.layers *= 2) - 2.0).abs() < 0.02);
    let hardware = hardware("a100-80", 64);
    for kind in [Replicated, Zero1, Zero2, Zero3] {
        let estimate = Estimate { shape: &unchanged, hardware: &hardware, parallel: parallel(kind, 64) };
        let eight = estimate.needed(8) - estimate.needed(0);
        assert!(near(eight, 8.0 * bytes_of(&unchanged)), "{kind:?} does not cut them");
    }
}

#[test]
fn choosing_6_of_160_experts_has_21_billion_combinations() {
    assert_eq!((expert_combinations(160, 6), expert_combinations(16, 2)), (21_193_254_160, 120));
    assert_eq!((expert_combinations(5, 0), expert_combinations(5, 5), expert_combinations(3, 4)), (1, 1, 0));
}

#[test]
fn attention_scores_are_sharded_by_rows() {
    assert_eq!(
        (attention_score_elements(4096, 1, true), attention_score_elements(4096, 4, true)),
        (4096.0 * 4096.0, 4096.0 * 1024.0)
    );
    assert_eq!(attention_score_elements(4096, 4, false), 1024.0);
}

#[test]
fn mesh_world_is_product_of_three() {
    let product = |tensor, pipeline, data, context, expert| {
        let parallel =
            ParallelConfig { tensor, pipeline, context, expert, ..ParallelConfig::replicated(data) };
        parallel.mesh().map(|mesh| mesh.world_size())
    };
    assert_eq!(product(4, 2, 8, 1, 8).unwrap(), 64);
    assert_eq!(product(4, 2, 8, 2, 1).unwrap(), 64);
    // Ranks that share sequences or experts are data ranks.
    assert!(product(4, 2, 8, 3, 1).unwrap_err().to_string().contains("does not divide the data"));
    assert!(product(4, 2, 8, 1, 3).unwrap_err().to_string().contains("expert = 3 does not divide"));
    // Folded experts are shared by all data ranks, otherwise by those with different sequences.
    let folded = ParallelConfig { context: 4, expert: 8, ..ParallelConfig::replicated(8) };
    assert_eq!(folded.mesh().unwrap().expert_data_size(), 1);
    let unfolded = Degrees { expert_folded: false, ..folded.degrees() };
    assert!(Mesh::new(8, unfolded).unwrap_err().to_string().contains("different sequences"));
    assert_eq!(Mesh::new(8, Degrees { expert: 2, ..unfolded }).unwrap().expert_data_size(), 4);
}

#[test]
fn learning_rate_scales_with_root_or_linearly() {
    assert_eq!(scaled_rates(64), [8.0, 64.0]);
}

#[test]
fn ring_latency_is_linear_and_tree_latency_logarithmic() {
    let link = Link { alpha: 1e-5, beta: 25e9 };
    let latency = |algorithm, ranks| (link.collective(algorithm, ranks, 0.0) / link.alpha).round();
    assert_eq!([8, 512].map(|ranks| latency(ring(), ranks)), [14.0, 1022.0]);
    assert_eq!([8, 512, 1024].map(|ranks| latency(tree(), ranks)), [6.0, 18.0, 20.0]);
    assert!(near(
        link.collective(tree(), 64, 1e9) - link.collective(tree(), 64, 0.0),
        2.0 * 63.0 / 64.0 / 25.0
    ));
    // Latency is half of the ring's time at N = D/(alpha beta).
    let (bytes, ranks) = (512.0 * link.alpha * link.beta, 512);
    assert!(near(link.collective(ring(), ranks, bytes), 2.0 * link.collective(ring(), ranks, 0.0)));
}

/// Returns the decision for a model of this many billion parameters.
fn decided(count: f64, name: &str, ranks: usize, change: impl Fn(&mut ModelShape)) -> Decision {
    let mut shape = billions(count);
    change(&mut shape);
    decide(&shape, &hardware(name, ranks)).unwrap()
}

#[test]
fn fitting_model_is_replicated() {
    let decision = decided(1.3, "a100-80", 8, |_| ());
    assert_eq!(
        (decision.rule, decision.parallel, decision.unsupported),
        (Rule::Ddp, ParallelConfig::replicated(8), None)
    );
}

/// Returns leaf, strategy and recomputation of a decision.
fn leaf(decision: &Decision) -> (Rule, ParallelKind, bool) {
    (decision.rule, decision.parallel.kind, decision.parallel.activation_checkpointing)
}

#[test]
fn remedies_are_proposed_from_cheapest_to_dearest() {
    let short = |shape: &mut ModelShape| shape.gpt.context = 1024;
    let leaf_of = |billions, change: fn(&mut ModelShape)| leaf(&decided(billions, "a100-80", 64, change));
    assert_eq!(leaf_of(1.3, |_| ()), (Rule::Ddp, Replicated, false));
    assert_eq!(leaf_of(7.0, short), (Rule::Zero1, Zero1, false));
    assert_eq!(leaf_of(20.0, short), (Rule::ShardGradOp, Zero2, false));
    assert_eq!(leaf_of(20.0, |_| ()), (Rule::Checkpointing, Zero2, true));
    assert_eq!(leaf_of(38.0, short), (Rule::FullShard, Zero3, false));
    assert_eq!(leaf_of(60.0, |_| ()), (Rule::FullShard, Zero3, true));
}

#[test]
fn bubble_is_43_percent_with_as_many_micro_batches_as_stages() {
    assert!(near(one_forward_one_backward(4, 4).bubble(), 3.0 / 7.0));
}

/// Plays equal stages.
fn one_forward_one_backward(stages: usize, micro_batches: usize) -> Timeline {
    let schedule = Order::find("1f1b").unwrap().schedule(stages, micro_batches, 1).unwrap();
    play(&schedule, &vec![StageCosts::new([1.0; 3], 1, 0.0); stages]).unwrap()
}

#[test]
fn oversized_weights_are_sharded() {
    let decision = decided(40.0, "a100-80", 64, |shape| shape.gpt.activation_checkpointing = true);
    assert_eq!(
        (decision.rule, decision.parallel.kind, decision.parallel.tensor),
        (Rule::FullShard, Zero3, 1)
    );
}

#[test]
fn large_layers_use_tensor_parallel_within_host() {
    let decision = decided(175.0, "h100-80", 1024, |_| ());
    assert_eq!((decision.rule, decision.parallel.data * decision.parallel.tensor), (Rule::Tensor, 1024));
    assert!((2..=8).contains(&decision.parallel.tensor) && decision.unsupported.is_none());
}

#[test]
fn beyond_one_host_uses_pipeline() {
    let decision =
        decided(405.0, "h100-80", 16_384, |shape| (shape.gpt.layers, shape.gpt.heads) = (126, 128));
    assert_eq!((decision.rule, decision.parallel.tensor, decision.parallel.pipeline), (Rule::Pipeline, 8, 4));
    assert_eq!(decision.unsupported, None);
}

#[test]
fn long_sequences_use_context_parallel() {
    let decision = decided(7.0, "h100-80", 64, |shape| shape.gpt.context = 1 << 17);
    assert_eq!((decision.rule, decision.parallel.tensor), (Rule::Context, 8));
    assert!(
        decision.parallel.context > 1 && decision.parallel.data.is_multiple_of(decision.parallel.context)
    );
}

/// Returns this model with 8 experts, of which tokens use 2 and 13 billion parameters in all.
fn mixture(shape: &ModelShape) -> ModelShape {
    shape.clone().with_experts(8, 2, Some(13e9))
}

#[test]
fn experts_use_expert_parallel() {
    let decision = decided(47.0, "h100-80", 64, |shape| *shape = recomputed(mixture(shape)));
    assert_eq!((decision.rule, decision.parallel.expert, decision.parallel.kind), (Rule::Experts, 8, Zero3));
    assert_eq!(decision.unsupported, None);
}

#[test]
fn experts_use_checkpointing_and_tensor_parallel_where_needed() {
    let decision = decided(47.0, "h100-80", 64, |shape| *shape = mixture(shape));
    assert_eq!((decision.rule, decision.parallel.expert, decision.parallel.tensor), (Rule::Experts, 8, 1));
    assert!(decision.parallel.activation_checkpointing);
    let long = decided(47.0, "h100-80", 64, |shape| {
        *shape = mixture(shape);
        shape.gpt.context = 65_536;
    });
    assert!(long.parallel.tensor > 1 && long.parallel.activation_checkpointing, "{long:?}");
}

#[test]
fn step_time_has_recomputation_and_the_bubble_of_stages() {
    // Messages between stages take no time.
    let fast = Link { alpha: 0.0, beta: f64::INFINITY };
    let (shape, hardware) = (&billions(7.0), &Hardware { inter_host: fast, ..hardware("a100-80", 64) });
    let time = |parallel| StepTime::new(&Estimate { shape, hardware, parallel }, 1, 8, 25e6);
    let replicated = ParallelConfig { data: 16, ..parallel(Zero2, 64) };
    let plain = time(replicated);
    let recomputing = time(ParallelConfig { activation_checkpointing: true, ..replicated });
    assert!(near(recomputing.backward, 1.5 * plain.backward) && near(recomputing.forward, plain.forward));
    let staged = time(ParallelConfig { pipeline: 4, ..replicated });
    // (P - 1) / (M + P - 1) of the step is idle, as when its schedule is played.
    let share = staged.bubble / (staged.bubble + staged.forward + staged.backward);
    assert!(near(share, 3.0 / 11.0), "{staged:?}");
    assert!(near(share, one_forward_one_backward(4, 8).bubble()), "{staged:?}");
}

#[test]
fn model_too_large_is_rejected_with_numbers() {
    let error = decide(&billions(70.0), &hardware("v100-32", 8)).unwrap_err();
    assert!(
        matches!(&error, Error::Invalid(what) if what.contains("GB") && what.contains("8 ranks")),
        "{error}"
    );
}

#[test]
fn rule_of_thumb_depends_on_model_size() {
    let rule = |count: f64, change: fn(&mut ModelShape)| {
        let mut shape = billions(count);
        change(&mut shape);
        rule_of_thumb(&shape)
    };
    let plain = |count| rule(count, |_| ());
    assert_eq!(plain(7.0), "ZeRO-3 alone");
    assert!(plain(13.0) == plain(70.0) && plain(70.0).ends_with("tensor parallel within hosts"));
    assert!(plain(405.0).ends_with("stages across them"));
    assert!(rule(47.0, |shape| *shape = mixture(shape)).starts_with("expert parallel"));
    assert!(rule(7.0, |shape| shape.gpt.context = 1 << 17).starts_with("context"));
}

#[test]
fn slow_link_asks_for_more_accumulation_with_a_higher_rate() {
    // Nine hosts of one rank, which only data parallelism divides.
    let warned = |gigabytes: f64| {
        let hardware = Hardware { per_host: 1, inter_host: link(gigabytes), ..hardware("a100-80", 9) };
        let tokens = 9 * 32 * 4096;
        PlanReport::new(billions(1.0), hardware, tokens, 25e6).unwrap().warnings.join("\n")
    };
    // 32 samples compute for 7.9 s. Gradients and weights of 2 GB take 17.8 s at 0.2 GB/s, 7.9 s of
    // them beside computing. Twice as many samples double only the time of computing.
    let slow = warned(0.2);
    assert!(slow.contains("ranks compute 44 % of the time and wait for the network"), "{slow}");
    assert!(
        slow.contains("accumulate 2 times as much (576 samples a step) and ranks compute 61 %"),
        "{slow}"
    );
    assert!(slow.contains("the rate x 1.41 for Adam"), "{slow}");
    assert!(!warned(25.0).contains("wait for the network"));
}

#[test]
fn simplest_of_the_fastest_meshes_is_chosen() {
    let planned = |count: f64, ranks, bucket| {
        PlanReport::new(billions(count), hardware("h100-80", ranks), 1 << 22, bucket).unwrap()
    };
    for (count, tree) in [(7.0, "the state of the optimizer"), (1.0, "weights, gradients")] {
        let answer = planned(count, 512, 25e6);
        let candidate = answer.search.find(&answer.decision.parallel).unwrap();
        // Small buckets on 512 ranks are bound by latency.
        let decided = decided(count, "h100-80", 512, |_| ());
        let replaced = answer.search.find(&decided.parallel).unwrap();
        assert!(candidate.seconds() < 0.95 * replaced.seconds());
        assert!(candidate.seconds() <= answer.search.fitting[0].seconds() / 0.95);
        assert!(
            answer.decision.reason.starts_with(tree) && answer.decision.reason.contains("yet a step takes")
        );
    }
    // Large buckets, or few ranks, are not bound by latency.
    assert_eq!(planned(7.0, 512, 5e8).decision.parallel.kind, Zero1);
    assert_eq!(planned(1.0, 8, 25e6).decision.reason, decided(1.0, "h100-80", 8, |_| ()).reason);
}

#[test]
fn default_proportions_match_known_models() {
    for (count, layers) in [(0.12, 8), (7.0, 32), (13.0, 40), (70.0, 72), (175.0, 96)] {
        let ModelShape { gpt, parameters, .. } = billions(count);
        assert_eq!(gpt.layers, layers);
        let blocks = 12.0 * (gpt.layers * gpt.width * gpt.width) as f64;
        assert!((blocks / parameters - 1.0).abs() < 0.2);
    }
}
