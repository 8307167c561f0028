//! What values a run can have, on any number of ranks.

use super::{Config, Data, DataKind, Model, ModelKind};
use crate::data::text;
use crate::parallel::ReduceEach;

/// What must hold, in words.
pub(super) fn rules(config: &Config) -> Vec<(bool, String)> {
    [extents(config), numbers(config), products(config)].concat()
}

/// Limits that nobody will reach, and below which what a run counts is still a number.
const THREADS: usize = 1 << 10;
const LAYERS: usize = 1 << 12;
const WIDTH: usize = 1 << 20;
const CONTEXT: usize = 1 << 24;
const BATCH: usize = 1 << 32;
const BUCKET_MB: f64 = (1 << 20) as f64;

fn extents(config: &Config) -> Vec<(bool, String)> {
    let Config { model, data, strategy, checkpoint, .. } = config;
    let keeps = checkpoint.every > 0 || checkpoint.resume;
    let within = |name: &str, value: usize, most: usize| {
        ((1..=most).contains(&value), format!("{name} = {value}: it is from 1 to {most}"))
    };
    let heads = format!("model.heads = {} does not divide model.width = {}", model.heads, model.width);
    let mut all = vec![
        within("threads", config.threads, THREADS),
        within("model.layers", model.layers, LAYERS),
        within("model.width", model.width, WIDTH),
        within("model.heads", model.heads, WIDTH),
        within("model.context", model.context, CONTEXT),
        within("model.cross_entropy_splits", model.cross_entropy_splits, CONTEXT),
        (model.width.is_multiple_of(model.heads), heads),
        within("data.vocabulary", data.vocabulary as usize, u32::MAX as usize),
        within("data.global_batch", data.global_batch, BATCH),
        within("data.micro_batch", data.micro_batch, BATCH),
        within("data.breadth_first", data.breadth_first, BATCH),
        within("strategy.gather_limit", strategy.gather_limit, WIDTH),
        within("strategy.reduction_limit", strategy.reduction_limit, WIDTH),
        (
            strategy.prefetch <= WIDTH,
            format!("strategy.prefetch = {}: it is at most {WIDTH}", strategy.prefetch),
        ),
        (!data.path.is_empty(), "data.path is empty: name a file or folder".to_owned()),
        (!checkpoint.folder.is_empty() || !keeps, "checkpoint.folder is empty: name one".to_owned()),
        (checkpoint.keep > 0, "checkpoint.keep = 0: it is at least 1".to_owned()),
        (config.log.every > 0, "log.every = 0: it is at least 1".to_owned()),
    ];
    all.extend(model.hidden.iter().map(|&width| within("model.hidden", width, WIDTH)));
    all
}

fn numbers(config: &Config) -> Vec<(bool, String)> {
    let Config { model, data, optimiser, strategy, .. } = config;
    let share = |name: &str, value: f64| {
        ((0.0..1.0).contains(&value), format!("{name} = {value} is no share below 1"))
    };
    let size =
        |name: &str, value: f64| (value.is_finite() && value >= 0.0, format!("{name} = {value} is no size"));
    let each = "strategy.reduce_each = \"micro-batch\" is for strategy.kind zero2 and zero3; others keep whole gradients";
    let each = format!("{each}, and this is {}", strategy.kind.name());
    vec![
        share("model.dropout", model.dropout),
        share("data.validation", data.validation),
        size("optimiser.lr", optimiser.lr),
        share("optimiser.beta1", optimiser.beta1),
        share("optimiser.beta2", optimiser.beta2),
        size("optimiser.epsilon", optimiser.epsilon),
        share("optimiser.momentum", optimiser.momentum),
        size("optimiser.weight_decay", optimiser.weight_decay),
        size("optimiser.clip", optimiser.clip),
        (
            strategy.bucket_mb > 0.0 && strategy.bucket_mb <= BUCKET_MB,
            format!("strategy.bucket_mb = {} is no size", strategy.bucket_mb),
        ),
        (strategy.reduce_each == ReduceEach::Step || strategy.kind.keeps_shares(), each),
        size("sample.temperature", config.sample.temperature),
    ]
}

/// Parameters, and numbers that are kept for backward, of which nobody has so many.
const NUMBERS: f64 = (1u64 << 50) as f64;

fn products(config: &Config) -> Vec<(bool, String)> {
    let below = |what: &str, count: f64| {
        (count < NUMBERS, format!("this model has about {count:.1e} {what}: it may have {NUMBERS:.1e}"))
    };
    let [parameters, activations] = counts(&config.model, &config.data);
    vec![below("parameters", parameters), below("activations in a pass", activations)]
}

/// About how many parameters, and activations of a pass; of a perceptron what lies between its hidden layers.
fn counts(model: &Model, data: &Data) -> [f64; 2] {
    let [layers, width, context] = [model.layers, model.width, model.context].map(|extent| extent as f64);
    let samples = data.micro_batch as f64 * data.breadth_first as f64;
    let vocabulary = match data.kind {
        DataKind::Tokens => data.vocabulary,
        DataKind::Text | DataKind::Table => text::VOCABULARY,
    };
    let vocabulary = f64::from(vocabulary);
    match model.kind {
        ModelKind::Gpt => [
            12.0 * layers * width * width + (2.0 * vocabulary + context) * width,
            samples * context * (32.0 * layers * width + 2.0 * vocabulary),
        ],
        ModelKind::Mlp => {
            let pairs = model.hidden.windows(2).map(|pair| pair[0] as f64 * pair[1] as f64);
            [pairs.sum(), samples * model.hidden.iter().sum::<usize>() as f64]
        }
    }
}
