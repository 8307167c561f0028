//! The formulas by their worked numbers, one test each.

use super::*;
use crate::config::Config;
use crate::config::StrategyKind::{self, Bucketed, Zero1, Zero2, Zero3};
use crate::error::Error;
use crate::train::DryRun;

const GB: f64 = 1e9;

fn near(found: f64, expected: f64) -> bool {
    (found / expected - 1.0).abs() < 1e-9
}

/// Ranks that all share data by one strategy.
fn cut(kind: StrategyKind, ranks: usize) -> Cut {
    Cut { kind, ..Cut::replicated(ranks) }
}

fn hardware(name: &str, ranks: usize) -> Hardware {
    Hardware::named(name, ranks).unwrap()
}

/// Links of so many GB a second, without latency.
fn link(gigabytes: f64) -> Link {
    Link { alpha: 0.0, beta: gigabytes * GB }
}

#[test]
fn an_all_reduce_sends_twice_what_the_others_have() {
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
fn latency_and_bandwidth_add_up() {
    let link = Link { alpha: 3e-6, beta: 7e9 };
    for (ranks, bytes) in [(2usize, 8.0), (5, 1e6), (64, 1e9)] {
        let n = ranks as f64;
        let formula = 2.0 * (n - 1.0) * link.alpha + 2.0 * (n - 1.0) / n * bytes / link.beta;
        assert!(near(link.collective(ring(), ranks, bytes), formula), "{ranks} ranks");
    }
}

#[test]
fn a_fitted_link_is_the_one_that_was_measured() {
    let link = Link { alpha: 4e-5, beta: 2e9 };
    let point = |bytes: f64, noise: f64| Point { bytes, seconds: noise * link.collective(ring(), 4, bytes) };
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
fn overlap_hides_the_shorter_of_backward_and_communication() {
    let pace = Pace { forward: 1.0, backward: 2.0, communication: 1.5, optimiser: 0.25 };
    assert_eq!((pace.naive(), pace.overlapped()), (4.75, 3.25));
    let slow = Pace { communication: 40.0, ..pace };
    assert_eq!(slow.overlapped(), 41.25);
    assert!(slow.utilisation() < 0.08 && pace.utilisation() > 0.9);
}

#[test]
fn collectives_are_far_fewer_than_parameters() {
    let bucket = 25.0 * f64::from(1 << 20);
    assert_eq!(operations(2.0 * 7e9, bucket), 535.0);
    assert_eq!(operations(1.0, bucket), 1.0);
}

#[test]
fn four_million_tokens_of_4096_are_1024_samples() {
    let sizes = Sizes { checkpointing: true, ..Sizes::like(1e9) };
    let recipe = |ranks| {
        let cut = cut(Zero1, ranks);
        Recipe::new(4_194_304, &sizes, &Bytes::mixed(4.0, false), &hardware("a100-80", ranks), &cut)
    };
    let one = recipe(128).unwrap();
    assert_eq!((one.samples, one.micro * one.accumulation), (1024, 8));
    // Data ranks come first, then larger micro-batches, then accumulation.
    assert_eq!((one.micro, one.accumulation, recipe(512).unwrap().micro), (8, 1, 2));
    let crooked = recipe(100).unwrap_err().to_string();
    assert!(crooked.contains("nearest global batch: 1000 or 1100"), "{crooked}");
    assert_eq!(one.lines().len(), 6);
}

#[test]
fn the_largest_micro_batch_is_what_there_is_room_for() {
    let (sizes, bytes, hardware) = (Sizes::like(1e9), Bytes::mixed(4.0, false), hardware("a100-80", 8));
    let cut = cut(Bucketed, 8);
    let most = cut.largest_micro(&sizes, &bytes, &hardware);
    assert!(most > 0 && cut.needed(&sizes, &bytes, most) <= hardware.room());
    assert!(cut.needed(&sizes, &bytes, most + 1) > hardware.room());
}

#[test]
fn more_ranks_than_samples_have_ways_out() {
    let sizes = Sizes { checkpointing: true, ..Sizes::like(1e9) };
    let (bytes, hardware) = (Bytes::mixed(4.0, false), hardware("a100-80", 2048));
    let error = Recipe::new(4_194_304, &sizes, &bytes, &hardware, &cut(Zero1, 2048)).unwrap_err().to_string();
    assert!(error.contains("Two ways out: (1) 1024 data ranks") && error.contains("(2)"), "{error}");
}

#[test]
fn training_keeps_16_or_20_bytes_of_a_parameter() {
    assert_eq!(Bytes::mixed(4.0, false), Bytes { weight: 2.0, gradient: 2.0, state: 12.0 });
    assert_eq!(Bytes::mixed(4.0, false).total(), 16.0);
    assert_eq!(Bytes::mixed(4.0, true).total(), 20.0);
    assert_eq!(Bytes::mixed(2.0, false).total(), 12.0);
}

#[test]
fn zero_keeps_shares_of_state_then_gradients_then_weights() {
    let total = |kind, bytes: Bytes| cut(kind, 64).kept(&bytes, 1.0).iter().sum::<f64>();
    let mixed = Bytes::mixed(4.0, false);
    assert_eq!([Bucketed, Zero1, Zero2, Zero3].map(|kind| total(kind, mixed)), [16.0, 4.1875, 2.21875, 0.25]);
    assert_eq!(total(Zero3, Bytes::mixed(4.0, true)), 0.25 + 4.0 / 64.0);
}

#[test]
fn the_third_stage_sends_half_as_much_again() {
    let bytes = Bytes::mixed(4.0, false);
    let sent = |kind| cut(kind, 64).sent(&bytes, 0.5, 1).map(|bytes| bytes * 64.0 / 63.0);
    assert_eq!(sent(Bucketed), [0.0, 2.0, 0.0]);
    assert_eq!((sent(Zero1), sent(Zero2)), ([0.0, 1.0, 1.0], [0.0, 1.0, 1.0]));
    assert_eq!(sent(Zero3), [1.0, 2.0, 0.0]);
    // Under accumulation, it gathers for every micro-batch.
    assert_eq!(cut(Zero3, 2).sent(&bytes, 0.5, 4), [2.0, 2.5, 0.0]);
}

#[test]
fn seventy_billion_parameters_are_140_gigabytes_and_14_ranks_to_train() {
    assert_eq!(gigabytes(70e9), 140.0);
    let state = 70e9 * Bytes::mixed(4.0, false).total();
    assert_eq!((state / GB, state / hardware("a100-80", 16).memory), (1120.0, 14.0));
    assert!(((gigabytes(70e9) * GB / f64::from(1 << 30)) - 130.4).abs() < 0.05);
}

#[test]
fn activations_grow_with_samples_tokens_width_and_layers() {
    let sizes = Sizes { vocabulary: 1, ..Sizes::like(1e9) };
    let of = |sizes: &Sizes| sizes.activations(1);
    let twice = |changed: Sizes| of(&changed) / of(&sizes);
    assert!(near(twice(Sizes { sequence: 2 * sizes.sequence, ..sizes.clone() }), 2.0));
    assert!((twice(Sizes { width: 2 * sizes.width, ..sizes.clone() }) - 2.0).abs() < 0.01);
    assert!((twice(Sizes { layers: 2 * sizes.layers, ..sizes.clone() }) - 2.0).abs() < 0.02);
    let samples = |kind, micro| cut(kind, 64).needed(&sizes, &Bytes::mixed(4.0, false), micro);
    for kind in [Bucketed, Zero1, Zero2, Zero3] {
        let eight = samples(kind, 8) - samples(kind, 0);
        assert!(near(eight, 8.0 * of(&sizes)), "{kind:?} does not cut them");
    }
}

#[test]
fn a_configured_run_is_planned_as_its_dry_run_counts_it() {
    let config =
        Config::load(None, &["model.width=256".to_owned(), "model.checkpointing=true".to_owned()]).unwrap();
    let (sizes, bytes) = (Sizes::of(&config).unwrap(), Bytes::of(&config));
    let counted = DryRun::new(&config, 2).unwrap();
    for kind in [Bucketed, Zero1, Zero2, Zero3] {
        let found = cut(kind, 2).kept(&bytes, sizes.parameters);
        let [weights, gradients, state, activations, _] = counted.memory(kind).map(|bytes| bytes as f64);
        for (found, counted) in found.into_iter().zip([weights, gradients, state]) {
            assert!((found / counted - 1.0).abs() < 0.01, "{kind:?}: {found}, not {counted}");
        }
        // A plan leaves out room for scores, which does not grow with samples.
        let found = sizes.activations(1) * config.data.micro_batch as f64 / activations;
        assert!((0.95..=1.0).contains(&found), "{found} of the activations");
        let sent: f64 = cut(kind, 2).sent(&bytes, sizes.parameters, 2).iter().sum();
        // Of the third stage a run gathers a tied table for either of its units, and the last unit's weights once.
        let (counted, tolerance) = (counted.traffic(kind).total(), if kind == Zero3 { 0.05 } else { 0.01 });
        assert!((sent / counted - 1.0).abs() < tolerance, "{kind:?}: {sent}, not {counted}");
    }
}

#[test]
fn bubbles_shrink_with_micro_batches() {
    assert_eq!(Order::Naive.bubble(4, 1), 0.75);
    assert!(near(Order::GPipe.bubble(4, 8), 3.0 / 11.0));
    assert_eq!(Order::GPipe.bubble(4, 4), Order::OneForwardOneBackward.bubble(4, 4));
    // As many micro-batches as stages leave 43 %: it takes many more.
    assert!(near(Order::OneForwardOneBackward.bubble(4, 4), 3.0 / 7.0));
    assert_eq!(Order::ZeroBubble.bubble(4, 8), 0.0);
}

#[test]
fn gpipe_holds_all_micro_batches_and_1f1b_no_more_than_stages() {
    let held = |order: Order| [0, 1, 2, 3].map(|stage| order.held(4, 8, stage));
    assert_eq!(held(Order::GPipe), [8; 4]);
    assert_eq!(held(Order::OneForwardOneBackward), [4, 3, 2, 1]);
    assert_eq!(Order::OneForwardOneBackward.held(4, 2, 0), 2);
}

#[test]
fn six_of_160_experts_are_21_billion_combinations() {
    assert_eq!((combinations(160, 6), combinations(16, 2)), (21_193_254_160, 120));
    assert_eq!((combinations(5, 0), combinations(5, 5), combinations(3, 4)), (1, 1, 0));
}

#[test]
fn attention_shares_rows_of_scores() {
    assert_eq!((attention(4096, 1, true), attention(4096, 4, true)), (4096.0 * 4096.0, 4096.0 * 1024.0));
    assert_eq!(attention(4096, 4, false), 1024.0);
}

#[test]
fn a_mesh_is_a_product_of_three() {
    assert_eq!(world(4, 4, 2, 8, 8).unwrap(), 64);
    assert_eq!(world(4, 1, 2, 8, 1).unwrap(), 64);
    assert!(world(4, 2, 2, 8, 1).unwrap_err().to_string().contains("reuses"));
    assert!(world(4, 4, 2, 8, 3).unwrap_err().to_string().contains("lies within"));
}

#[test]
fn rates_grow_with_the_root_of_the_batch_or_with_the_batch() {
    assert_eq!(rates(64), [8.0, 64.0]);
}

#[test]
fn ring_latency_grows_with_ranks_and_that_of_trees_with_their_logarithm() {
    let link = Link { alpha: 1e-5, beta: 25e9 };
    let latency = |algorithm, ranks| (link.collective(algorithm, ranks, 0.0) / link.alpha).round();
    assert_eq!([8, 512].map(|ranks| latency(ring(), ranks)), [14.0, 1022.0]);
    assert_eq!([8, 512, 1024].map(|ranks| latency(trees(), ranks)), [6.0, 18.0, 20.0]);
    assert!(near(
        link.collective(trees(), 64, 1e9) - link.collective(trees(), 64, 0.0),
        2.0 * 63.0 / 64.0 / 25.0
    ));
    // Latency is half of the ring's time where N = D/(alpha beta).
    let (bytes, ranks) = (512.0 * link.alpha * link.beta, 512);
    assert!(near(link.collective(ring(), ranks, bytes), 2.0 * link.collective(ring(), ranks, 0.0)));
}

/// The decision for a model of so many billion parameters on so many ranks.
fn decided(billions: f64, name: &str, ranks: usize, change: impl Fn(&mut Sizes)) -> Decision {
    let mut sizes = Sizes::like(billions * 1e9);
    change(&mut sizes);
    decide(&sizes, &Bytes::mixed(4.0, false), &hardware(name, ranks)).unwrap()
}

#[test]
fn what_fits_is_replicated() {
    let decision = decided(1.3, "a100-80", 8, |_| ());
    assert_eq!((decision.leaf, decision.cut, decision.missing), (Leaf::Ddp, Cut::replicated(8), None));
}

#[test]
fn state_that_does_not_fit_is_sharded() {
    let decision = decided(7.0, "a100-80", 64, |_| ());
    assert_eq!((decision.leaf, decision.cut.kind, decision.cut.data), (Leaf::ShardGradOp, Zero2, 64));
}

#[test]
fn weights_that_do_not_fit_are_sharded() {
    let decision = decided(40.0, "a100-80", 64, |sizes| sizes.checkpointing = true);
    assert_eq!((decision.leaf, decision.cut.kind, decision.cut.tensor), (Leaf::FullShard, Zero3, 1));
}

#[test]
fn large_layers_are_cut_within_a_host() {
    let decision = decided(70.0, "h100-80", 64, |_| ());
    assert_eq!((decision.leaf, decision.cut.data * decision.cut.tensor), (Leaf::Tensor, 64));
    assert!((2..=8).contains(&decision.cut.tensor) && decision.missing.is_none());
}

#[test]
fn beyond_a_host_there_are_stages() {
    let decision = decided(405.0, "h100-80", 16_384, |sizes| (sizes.layers, sizes.heads) = (126, 128));
    assert_eq!((decision.leaf, decision.cut.tensor, decision.cut.pipeline), (Leaf::Pipeline, 8, 4));
    assert!(decision.missing.unwrap().contains("mesh.pipeline = 4: not part of this build"));
}

#[test]
fn very_long_sequences_are_cut() {
    let decision =
        decided(7.0, "h100-80", 64, |sizes| (sizes.sequence, sizes.layers, sizes.heads) = (1 << 17, 32, 32));
    assert_eq!((decision.leaf, decision.cut.tensor), (Leaf::Context, 8));
    assert!(decision.cut.context > 1 && decision.cut.data.is_multiple_of(decision.cut.context));
}

#[test]
fn experts_are_dealt_out() {
    let decision = decided(47.0, "h100-80", 64, |sizes| {
        (sizes.experts, sizes.active, sizes.checkpointing) = (8, 13e9, true)
    });
    assert_eq!((decision.leaf, decision.cut.expert, decision.cut.kind), (Leaf::Experts, 8, Zero3));
    assert!(decision.missing.unwrap().contains("expert"));
}

#[test]
fn what_nothing_makes_fit_is_refused_with_the_numbers() {
    let error = decide(&Sizes::like(70e9), &Bytes::mixed(4.0, false), &hardware("v100-32", 8)).unwrap_err();
    assert!(
        matches!(&error, Error::Illegal(what) if what.contains("GB") && what.contains("8 ranks")),
        "{error}"
    );
}

#[test]
fn rules_of_thumb_go_by_size() {
    let rule = |billions: f64, change: fn(&mut Sizes)| {
        let mut sizes = Sizes::like(billions * 1e9);
        change(&mut sizes);
        rule_of_thumb(&sizes)
    };
    let plain = |billions| rule(billions, |_| ());
    assert_eq!(plain(7.0), "ZeRO-3 alone");
    assert!(plain(13.0) == plain(70.0) && plain(70.0).ends_with("tensor parallel within hosts"));
    assert!(plain(405.0).ends_with("stages across them"));
    assert!(rule(47.0, |sizes| sizes.experts = 8).starts_with("experts"));
    assert!(rule(7.0, |sizes| sizes.sequence = 1 << 17).starts_with("context"));
}

#[test]
fn a_slow_link_is_told_before_the_run() {
    let bytes = Bytes::mixed(4.0, false);
    let sizes = Sizes { checkpointing: true, ..Sizes::like(30e9) };
    let warned = |gigabytes: f64| {
        let hardware = Hardware { across: link(gigabytes), ..hardware("a100-80", 64) };
        Answer::new(sizes.clone(), bytes, hardware, 1 << 20, 25e6).unwrap().warnings.join("\n")
    };
    assert!(warned(0.5).contains("wait for the network") && !warned(25.0).contains("wait for the network"));
}

#[test]
fn of_what_fits_the_quickest_is_taken() {
    let planned = |billions: f64, ranks, bucket| {
        let (sizes, hardware) = (Sizes::like(billions * 1e9), hardware("h100-80", ranks));
        Answer::new(sizes, Bytes::mixed(4.0, false), hardware, 1 << 22, bucket).unwrap()
    };
    for (billions, tree) in [(7.0, "gradients and state"), (1.0, "weights, gradients")] {
        let answer = planned(billions, 512, 25e6);
        let step = |row: &&Row| row.pace.overlapped();
        let best = answer.strategies.iter().min_by(|one, other| step(one).total_cmp(&step(other))).unwrap();
        assert_eq!((answer.decision.cut.kind, best.cut.kind), (Zero3, Zero3));
        assert!(answer.decision.why.starts_with(tree) && answer.decision.why.contains("yet a step takes"));
    }
    // Large buckets are not bound by latency, and few ranks are not either.
    assert_eq!(planned(7.0, 512, 4e9).decision.cut.kind, Zero2);
    assert_eq!(planned(1.0, 8, 25e6).decision.why, decided(1.0, "h100-80", 8, |_| ()).why);
}

#[test]
fn proportions_are_those_of_known_models() {
    for (billions, layers) in [(0.12, 8), (7.0, 32), (13.0, 40), (70.0, 72), (175.0, 96)] {
        let sizes = Sizes::like(billions * 1e9);
        assert_eq!(sizes.layers, layers);
        let blocks = 12.0 * (sizes.layers * sizes.width * sizes.width) as f64;
        assert!((blocks / sizes.parameters - 1.0).abs() < 0.2);
    }
    assert_eq!((number("7b").unwrap(), number("4.5M").unwrap(), number("12").unwrap()), (7e9, 4.5e6, 12.0));
    assert!(["", "b", "7x", "-1b", "0", "99999t"].iter().all(|text| number(text).is_err()));
}
