//! Plans of configurations, compared with the parameters and the bytes of their runs.

use crate::config::{Config, new_model};
use crate::plan_command::args::parse_number;
use crate::train::DryRun;
use unisono_parallel::data_parallel::ParallelKind::{Replicated, Zero1, Zero2, Zero3};
use unisono_plan::cost::{
    BytesPerParam, Estimate, Exchange, ExchangeKind, Hardware, ParallelConfig, StepTime, flops_per_sample,
};

fn near(found: f64, expected: f64) -> bool {
    (found / expected - 1.0).abs() < 1e-9
}

#[test]
fn plan_of_config_matches_dry_run() {
    let config =
        Config::load(None, &["model.width=256".to_owned(), "model.activation_checkpointing=true".to_owned()])
            .unwrap();
    let (shape, counted) = (config.model_shape().unwrap(), DryRun::new(&config, 2).unwrap());
    let hardware = Hardware::named("a100-80", 2).unwrap();
    assert!(near(shape.flops() * config.data.global_batch as f64 / 2.0, counted.flops()));
    for kind in [Replicated, Zero1, Zero2, Zero3] {
        let parallel = ParallelConfig { kind, ..ParallelConfig::replicated(2) };
        let estimate = Estimate { shape: &shape, hardware: &hardware, parallel };
        let [weights, gradients, state, activations, _] = counted.memory(kind).map(|bytes| bytes as f64);
        for (found, counted) in estimate.kept().into_iter().zip([weights, gradients, state]) {
            // Only padding differs.
            assert!((found / counted - 1.0).abs() < 1e-3, "{kind:?}: {found}, not {counted}");
        }
        // A plan leaves out room for scores, which does not grow with samples.
        let found = estimate.activations() * config.data.micro_batch as f64 / activations;
        assert!((0.95..=1.0).contains(&found), "{found} of the activations");
        let sent: f64 = estimate.sent(2).iter().sum();
        // With ZeRO-3, a run gathers a tied table for each of its units, and the last unit's
        // weights once.
        let (counted, tolerance) = (counted.traffic(kind).total(), if kind == Zero3 { 0.05 } else { 1e-3 });
        assert!((sent / counted - 1.0).abs() < tolerance, "{kind:?}: {sent}, not {counted}");
    }
}

#[test]
fn bytes_of_a_config_follow_its_optimizer_and_frozen_parameters() {
    let bytes = |changes: &[&str]| {
        let changes: Vec<_> = changes.iter().map(|&change| change.to_owned()).collect();
        Config::load(None, &changes).unwrap().model_shape().unwrap().bytes
    };
    let plain = BytesPerParam { weight: 4.0, gradient: 4.0, state: 8.0 };
    assert_eq!(bytes(&[]), plain);
    assert_eq!(bytes(&["optimizer.kind=sgd"]), BytesPerParam { state: 4.0, ..plain });
    assert_eq!(bytes(&["optimizer.moment_dtype=bf16"]), BytesPerParam { state: 4.0, ..plain });
    assert_eq!(bytes(&["strategy.param_dtype=bf16"]), BytesPerParam::mixed(4.0, false));
    let frozen = bytes(&["model.freeze=['h.*']"]);
    assert!(frozen.weight == 4.0 && frozen.gradient < 3.0 && near(frozen.state, 2.0 * frozen.gradient));
}

#[test]
fn shard_groups_have_the_bytes_of_a_run() {
    let changes = [
        "model.width=256",
        "model.activation_checkpointing=true",
        "data.global_batch=16",
        "strategy.shard_ranks=2",
    ];
    let config = Config::load(None, &changes.map(str::to_owned)).unwrap();
    let (shape, run) = (config.model_shape().unwrap(), DryRun::new(&config, 4).unwrap());
    let hardware = Hardware::named("a100-80", 4).unwrap();
    for kind in [Zero1, Zero2, Zero3] {
        let parallel = ParallelConfig { kind, ..ParallelConfig::replicated(4) };
        let estimate = Estimate { shape: &shape, hardware: &hardware, parallel };
        for (found, counted) in estimate.kept().into_iter().zip(run.memory(kind)) {
            // Only padding differs.
            assert!((found / counted as f64 - 1.0).abs() < 1e-3, "{kind:?}: {found}, not {counted}");
        }
        let (sent, counted) = (estimate.sent(2).iter().sum::<f64>(), run.traffic(kind).total());
        // A run gathers a tied table for each of its units.
        let tolerance = if kind == Zero3 { 0.05 } else { 1e-3 };
        assert!((sent / counted - 1.0).abs() < tolerance, "{kind:?}: {sent}, not {counted}");
    }
}

#[test]
fn tied_head_counts_and_lookups_do_not() {
    let mut config = Config::default();
    config.model.layers = 1;
    let flops_of =
        |config: &Config| flops_per_sample(&config.gpt_shape(), &new_model(config, None).unwrap().1);
    let (tokens, width) = (config.model.context as f64, config.model.width as f64);
    let expected = 6.0 * tokens * (12.0 * width * width + 257.0 * width + tokens * width);
    assert_eq!(flops_of(&config), expected);
    config.model.tie_word_embeddings = false;
    assert_eq!(flops_of(&config), expected);
}

/// Returns a configuration whose sequences four ranks share.
fn sharing(changes: &[&str]) -> Config {
    let usual = ["model.width=64", "model.heads=8", "model.kv_heads=4", "mesh.sequence_data=4"];
    let changes = usual.into_iter().chain(changes.iter().copied()).map(str::to_owned);
    Config::load(None, &changes.collect::<Vec<_>>()).unwrap()
}

fn exchanges(config: &Config, hardware: &Hardware) -> Vec<Exchange> {
    let shape = config.model_shape().unwrap();
    let parallel = ParallelConfig { context: 4, ..ParallelConfig::replicated(4) };
    Estimate { shape: &shape, hardware, parallel }.exchanges(2, 4, 25e6)
}

#[test]
fn shared_sequences_have_the_bytes_of_a_run() {
    let hardware = Hardware::named("h100-80", 4).unwrap();
    for (transfer, heads) in [("gather", 1), ("ring", 1), ("ring", 2), ("ulysses", 1)] {
        for recomputes in [false, true] {
            let config = sharing(&[
                &format!("context.kv_transfer={transfer}"),
                &format!("context.ulysses_ranks={heads}"),
                &format!("model.activation_checkpointing={recomputes}"),
                "data.micro_batch=2",
                "data.global_batch=8",
            ]);
            let exact = DryRun::new(&config, 4).unwrap().traffic(Replicated);
            let mut sequence_exchanges = exchanges(&config, &hardware);
            sequence_exchanges
                .retain(|exchange| matches!(exchange.kind, ExchangeKind::Sequence | ExchangeKind::Ring));
            let bytes: f64 = sequence_exchanges.iter().map(|exchange| exchange.bytes).sum();
            let ratio = bytes / exact.sequence_parallel;
            assert!((ratio - 1.0).abs() < 1e-12, "{transfer}, {heads}: {bytes} of {exact:?}");
        }
    }
}

#[test]
fn groups_of_a_ring_with_heads_have_their_distances() {
    let config = sharing(&["context.kv_transfer=ring", "context.ulysses_ranks=2"]);
    let run_exchanges = exchanges(&config, &Hardware::named("h100-80", 4).unwrap());
    let group_of = |kind| {
        run_exchanges
            .iter()
            .find(|exchange| exchange.kind == kind)
            .map(|exchange| (exchange.ranks, exchange.apart))
    };
    assert_eq!(group_of(ExchangeKind::Sequence), Some((2, 1)));
    assert_eq!(group_of(ExchangeKind::Ring), Some((2, 2)));
}

#[test]
fn attention_hides_keys_that_go_round() {
    let config = sharing(&["context.kv_transfer=ring"]);
    let shape = config.model_shape().unwrap();
    let parallel = ParallelConfig { context: 4, ..ParallelConfig::replicated(4) };
    let in_layers = |flops: f64| {
        let hardware = Hardware { flops, ..Hardware::named("h100-80", 4).unwrap() };
        StepTime::new(&Estimate { shape: &shape, hardware: &hardware, parallel }, 2, 4, 25e6).in_layers
    };
    // A slow rank attends for longer than keys and values travel.
    assert_eq!(in_layers(1e9), 0.0);
    let fast = exchanges(&config, &Hardware::named("h100-80", 4).unwrap());
    let ring = fast.iter().find(|exchange| exchange.kind == ExchangeKind::Ring).unwrap();
    let travels = ring.link_time(&Hardware::named("h100-80", 4).unwrap());
    assert!((in_layers(1e20) / travels - 1.0).abs() < 1e-3);
}

#[test]
fn numbers_have_suffixes() {
    assert_eq!(
        (parse_number("7b").unwrap(), parse_number("4.5M").unwrap(), parse_number("12").unwrap()),
        (7e9, 4.5e6, 12.0)
    );
    assert!(["", "b", "7x", "-1b", "0", "99999t"].iter().all(|text| parse_number(text).is_err()));
}
