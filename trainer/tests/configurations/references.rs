//! Reference configurations of Fast-LLM's tests, by name, each compared with its baseline.
//!
//! The names abbreviate: df depth-first micro-batches; bf breadth first; dp data parallel ranks; z
//! ZeRO stage; sdp ranks that share sequences; tp tensor parallel ranks; stp the same with sequence
//! parallelism; ce splits of the cross entropy; pp, s pipelines; ms micro-sequences.

use crate::small_run::{Found, run};
use std::collections::BTreeMap;

/// Required agreement with the baseline.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tolerance {
    /// Bitwise equal: the same sums in the same order.
    Exact,
    /// Equal up to rounding.
    Near,
}

use Tolerance::{Exact, Near};

/// Name, ranks, changes of the small model below, and baseline.
type Reference = (&'static str, usize, &'static str, &'static str, Tolerance);

/// All take the same steps with the same 16 samples.
const REFERENCES: [Reference; 34] = [
    ("df2", 1, "data.micro_batch=8", "simple", Near),
    ("df4", 1, "data.micro_batch=4", "simple", Near),
    ("df8", 1, "data.micro_batch=2", "simple", Near),
    ("bf4", 1, "data.micro_batch=4 data.breadth_first=4", "df4", Exact),
    ("bf2_df2", 1, "data.micro_batch=4 data.breadth_first=2", "df4", Exact),
    ("df4_z2", 1, "data.micro_batch=4 strategy.kind=zero2", "df4", Exact),
    ("dp2", 2, "data.micro_batch=8", "simple", Near),
    ("dp2_z2", 2, "data.micro_batch=8 strategy.kind=zero2", "dp2", Exact),
    ("dp2_z3", 2, "data.micro_batch=8 strategy.kind=zero3", "dp2", Exact),
    ("dp2_z2_df4", 2, "data.micro_batch=2 strategy.kind=zero2", "df8", Near),
    ("sdp2", 2, "mesh.sequence_data=2", "simple", Near),
    ("tp2", 2, "mesh.tensor=2", "simple", Near),
    ("stp2", 2, STP2, "tp2", Near),
    ("tp2_df4", 2, "mesh.tensor=2 data.micro_batch=4", "df4", Near),
    (
        "stp2_ce4",
        2,
        "mesh.tensor=2 strategy.sequence_parallel=true model.cross_entropy_splits=4",
        "stp2",
        Near,
    ),
    ("dp2_stp2", 4, "mesh.tensor=2 strategy.sequence_parallel=true data.micro_batch=8", "dp2", Near),
    ("sdp2_stp2", 4, "mesh.tensor=2 strategy.sequence_parallel=true mesh.sequence_data=2", "sdp2", Near),
    ("sdp2_stp2_bf4", 4, SDP2_STP2_BF4, "df4", Near),
    ("ms4", 1, "data.micro_sequences=4", "simple", Near),
    ("ms2_bf2_recomputed", 1, MS2_BF2, "df4", Near),
    ("sdp2_ms4_z3", 2, "mesh.sequence_data=2 data.micro_sequences=4 strategy.kind=zero3", "simple", Near),
    ("sdp2_striped", 2, "mesh.sequence_data=2 context.placement=striped", "simple", Near),
    (
        "sdp4_zig_zag_rotary",
        4,
        "mesh.sequence_data=4 context.placement=zig-zag model.positions=rotary",
        "rotary",
        Near,
    ),
    ("sdp2_ring", 2, "mesh.sequence_data=2 context.kv_transfer=ring", "simple", Near),
    ("sdp4_ring_zig_zag_z3", 4, SDP4_RING_Z3, "simple", Near),
    ("sdp2_stp2_ring_striped", 4, SDP2_STP2_RING, "sdp2", Near),
    (
        "sdp2_ms2_striped",
        2,
        "mesh.sequence_data=2 context.placement=striped data.micro_sequences=2",
        "simple",
        Near,
    ),
    ("sdp4_ulysses2_ring_zig_zag", 4, SDP4_ULYSSES2, "simple", Near),
    ("dp2_sdp2_stp2_ring_zig_zag_z3", 8, DP2_SDP2_STP2_Z3, "dp2", Near),
    ("sdp2_stp2_ulysses", 4, SDP2_STP2_ULYSSES, "sdp2", Near),
    ("sdp3_ulysses_zig_zag_rotary", 3, SDP3_ULYSSES, "rotary_48", Near),
    (
        "rotary_48",
        1,
        "model.positions=rotary model.context=48 data.global_batch=6 data.micro_batch=6",
        "rotary_48",
        Exact,
    ),
    ("rotary", 1, "model.positions=rotary", "rotary", Exact),
    ("simple", 1, "", "simple", Exact),
];

const SDP4_RING_Z3: &str = "mesh.sequence_data=4 context.kv_transfer=ring context.placement=zig-zag strategy.kind=zero3 \
                            model.activation_checkpointing=true";
const SDP4_ULYSSES2: &str = "mesh.sequence_data=4 context.kv_transfer=ring context.ulysses_ranks=2 \
                             context.placement=zig-zag strategy.kind=zero3";
const DP2_SDP2_STP2_Z3: &str = "mesh.tensor=2 strategy.sequence_parallel=true mesh.sequence_data=2 \
                                context.kv_transfer=ring context.placement=zig-zag strategy.kind=zero3 \
                                data.micro_batch=8";
const SDP2_STP2_ULYSSES: &str = "mesh.tensor=2 strategy.sequence_parallel=true mesh.sequence_data=2 \
                                 context.kv_transfer=ulysses";
const SDP3_ULYSSES: &str = "mesh.sequence_data=3 context.kv_transfer=ulysses context.placement=zig-zag \
                            model.positions=rotary model.context=48 data.global_batch=6 data.micro_batch=6";
const SDP2_STP2_RING: &str = "mesh.tensor=2 strategy.sequence_parallel=true mesh.sequence_data=2 \
                              context.kv_transfer=ring context.placement=striped";

const MS2_BF2: &str =
    "data.micro_batch=4 data.breadth_first=2 data.micro_sequences=2 model.activation_checkpointing=true";

const STP2: &str = "mesh.tensor=2 strategy.sequence_parallel=true";
const SDP2_STP2_BF4: &str = "mesh.tensor=2 strategy.sequence_parallel=true mesh.sequence_data=2 data.micro_batch=4 data.breadth_first=4";

/// Pipelines of two ranks and a model of four layers. `s` is the number of layers per stage: with
/// one of them, each rank has two stages.
const PIPELINES: [Reference; 27] = [
    ("df4", 1, "data.micro_batch=4", "df4", Exact),
    ("df4_tied", 1, "data.micro_batch=4 model.tie_word_embeddings=true", "df4_tied", Exact),
    ("pp2s2_naive", 2, "mesh.pipeline=2 data.micro_batch=4 pipeline.schedule=naive", "df4", Near),
    ("pp2s2_gpipe", 2, "mesh.pipeline=2 data.micro_batch=4 pipeline.schedule=gpipe", "df4", Near),
    ("pp2s2_1f1b", 2, "mesh.pipeline=2 data.micro_batch=4", "df4", Near),
    ("pp2s2_zb_h1", 2, "mesh.pipeline=2 data.micro_batch=4 pipeline.schedule=zb-h1", "pp2s2_1f1b", Exact),
    ("pp2s1_zb_v", 2, "mesh.pipeline=2 data.micro_batch=4 pipeline.schedule=zb-v", "pp2s2_1f1b", Near),
    ("pp2s1_interleaved", 2, "mesh.pipeline=2 data.micro_batch=4 pipeline.schedule=interleaved", "df4", Near),
    (
        "pp2s1_bf4_untied",
        2,
        "mesh.pipeline=2 data.micro_batch=4 pipeline.schedule=breadth-first",
        "df4",
        Near,
    ),
    ("pp2s2_bf4", 2, PP2S2_BF4, "df4", Near),
    ("pp2s1_bf4", 2, PP2S1_BF4, "df4_tied", Near),
    ("dp2_pp2s2_bf4", 4, "mesh.pipeline=2 data.micro_batch=2 pipeline.schedule=gpipe", "df4", Near),
    ("dp2_pp2s2_z3", 4, "mesh.pipeline=2 data.micro_batch=2 strategy.kind=zero3", "dp2_pp2s2_bf4", Near),
    ("stp2_pp2s1_bf4", 4, STP2_PP2S1_BF4, "df4_tied", Near),
    ("dp2_stp2_pp2s2_bf4", 8, DP2_STP2_PP2S2_BF4, "df4", Near),
    ("dp2_tp2_pp2s1_bf4", 8, DP2_TP2_PP2S1_BF4, "df4_tied", Near),
    ("sdp2_stp2_pp2s2", 8, SDP2_STP2_PP2S2, "df4", Near),
    ("pp2s2_ms4", 2, PP2S2_MS4, "df4", Near),
    ("pp2s2_ms4_1f1b", 2, "mesh.pipeline=2 data.micro_batch=4 data.micro_sequences=4", "df4", Near),
    ("pp2s2_ms4_zb_h1", 2, PP2S2_MS4_ZB_H1, "pp2s2_ms4_1f1b", Exact),
    ("pp2s1_ms4_zb_v", 2, PP2S1_MS4_ZB_V, "df4", Near),
    ("pp2s1_ms4_interleaved", 2, PP2S1_MS4_INTERLEAVED, "df4", Near),
    ("pp2s1_ms4", 2, PP2S1_MS4, "df4_tied", Near),
    ("sdp2_stp2_pp2s2_ms4", 8, SDP2_STP2_PP2S2_MS4, "df4", Near),
    ("sdp2_stp2_pp2_ring_z3", 8, SDP2_STP2_PP2_Z3, "df4", Near),
    ("sdp4_ulysses2_ring_pp2_z3", 8, PP2_ULYSSES2_RING, "df4", Near),
    ("sdp2_ring_pp2_zb_v", 4, SDP2_RING_PP2, "df4", Near),
];

const SDP2_STP2_PP2_Z3: &str = "mesh.pipeline=2 data.micro_batch=4 mesh.tensor=2 strategy.sequence_parallel=true \
                                mesh.sequence_data=2 context.kv_transfer=ring context.placement=striped \
                                strategy.kind=zero3 mesh.order=pipeline,sequence_data,tensor,batch_data";
const PP2_ULYSSES2_RING: &str = "mesh.pipeline=2 data.micro_batch=4 mesh.sequence_data=4 \
                                 context.kv_transfer=ring context.ulysses_ranks=2 strategy.kind=zero3 \
                                 mesh.order=batch_data,tensor,pipeline,sequence_data";
const PP2S2_MS4: &str = "mesh.pipeline=2 data.micro_batch=4 pipeline.schedule=gpipe data.micro_sequences=4";
const PP2S2_MS4_ZB_H1: &str =
    "mesh.pipeline=2 data.micro_batch=4 pipeline.schedule=zb-h1 data.micro_sequences=4";
const PP2S1_MS4_ZB_V: &str =
    "mesh.pipeline=2 data.micro_batch=4 pipeline.schedule=zb-v data.micro_sequences=4";
const PP2S1_MS4_INTERLEAVED: &str =
    "mesh.pipeline=2 data.micro_batch=4 pipeline.schedule=interleaved data.micro_sequences=4";
const PP2S1_MS4: &str = "mesh.pipeline=2 data.micro_batch=4 pipeline.schedule=breadth-first data.micro_sequences=4 \
                         model.tie_word_embeddings=true";
const SDP2_STP2_PP2S2_MS4: &str = "mesh.pipeline=2 data.micro_batch=4 mesh.tensor=2 strategy.sequence_parallel=true \
                                   mesh.sequence_data=2 data.micro_sequences=4 pipeline.schedule=gpipe";
const SDP2_RING_PP2: &str = "mesh.pipeline=2 data.micro_batch=4 pipeline.schedule=zb-v mesh.sequence_data=2 \
                             context.kv_transfer=ring context.placement=zig-zag";
const PP2S2_BF4: &str = "mesh.pipeline=2 data.micro_batch=4 pipeline.schedule=gpipe";
const PP2S1_BF4: &str =
    "mesh.pipeline=2 data.micro_batch=4 pipeline.schedule=breadth-first model.tie_word_embeddings=true";
const STP2_PP2S1_BF4: &str = "mesh.pipeline=2 data.micro_batch=4 pipeline.schedule=breadth-first \
                              model.tie_word_embeddings=true mesh.tensor=2 strategy.sequence_parallel=true";
const DP2_STP2_PP2S2_BF4: &str = "mesh.pipeline=2 data.micro_batch=2 pipeline.schedule=gpipe mesh.tensor=2 \
                                  strategy.sequence_parallel=true";
const DP2_TP2_PP2S1_BF4: &str = "mesh.pipeline=2 data.micro_batch=2 pipeline.schedule=breadth-first \
                                 model.tie_word_embeddings=true mesh.tensor=2";
const SDP2_STP2_PP2S2: &str = "mesh.pipeline=2 data.micro_batch=4 mesh.tensor=2 strategy.sequence_parallel=true \
                               mesh.sequence_data=2";

fn assert_like(name: &str, found: &Found, baseline: &Found, like: Tolerance) {
    if like == Exact {
        assert!(found == baseline, "{name}: {found:?}, not {baseline:?}");
    }
    let close = |what: &str, value: f64, expected: f64| {
        assert!((value / expected - 1.0).abs() < 1e-5, "{name}: {what} {value}, not {expected}");
    };
    found.losses.iter().zip(&baseline.losses).for_each(|(&value, &expected)| close("loss", value, expected));
    found.norms.iter().zip(&baseline.norms).for_each(|(&value, &expected)| close("norm", value, expected));
    close("validation", found.validation.expect("one"), baseline.validation.expect("one"));
    let lengths = |found: &Found| (found.losses.len(), found.norms.len(), found.weights.len());
    assert_eq!(lengths(found), lengths(baseline), "{name}");
    let apart = found.weights.iter().zip(&baseline.weights).map(|(left, right)| (left - right).abs());
    let most = apart.fold(0.0, f32::max);
    assert!(most < 1e-4, "{name}: weights are up to {most} apart");
}

/// Optimizers of all configurations. The step of AdamW hides a factor of a gradient, and that of
/// SGD shows it.
const OPTIMIZERS: [&str; 2] = [
    "optimizer.kind=adamw",
    "optimizer.kind=sgd optimizer.momentum=0 optimizer.lr=0.5 optimizer.max_grad_norm=0",
];

/// Compares every configuration with its baseline, all with `changes`.
fn assert_all(references: &[Reference], changes: &str) {
    for optimizer in OPTIMIZERS {
        let run = |&(name, ranks, layout, ..): &Reference| {
            (name, run(ranks, &format!("{changes} {optimizer} {layout}")))
        };
        let found_by_name: BTreeMap<&str, Found> = references.iter().map(run).collect();
        assert!(found_by_name.values().all(|found| found.losses[3] < found.losses[0]), "losses fall");
        for (name, _, _, baseline, like) in references {
            assert_like(name, &found_by_name[name], &found_by_name[baseline], *like);
        }
    }
}

#[test]
fn reference_configurations_match_baselines() {
    assert_all(&REFERENCES, "");
}

#[test]
fn pipeline_configurations_match_baselines() {
    assert_all(&PIPELINES, "model.layers=4");
}

#[test]
fn pipelines_of_three_and_four_ranks_match_one() {
    let found_for = |ranks: usize, schedule: &'static str| {
        let changes = format!("mesh.pipeline={ranks} pipeline.schedule={schedule} model.dropout=0.1");
        run(ranks, &format!("model.layers=8 data.micro_batch=2 {changes}"))
    };
    let single_rank = found_for(1, "1f1b");
    for (ranks, schedule) in
        [(3, "1f1b"), (4, "gpipe"), (4, "1f1b"), (4, "interleaved"), (3, "zb-h1"), (4, "zb-v")]
    {
        assert_like(&format!("{schedule} on {ranks}"), &found_for(ranks, schedule), &single_rank, Near);
    }
}
