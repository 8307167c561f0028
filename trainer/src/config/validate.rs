//! Checks of configuration values that do not depend on the number of ranks.

use crate::config::{
    Config, DataKind, ExpertBalance, Experts, Model, Optimizer, Positions, RopeScalingKind, RouterScore,
};
use crate::data::text;
use crate::models::narrow_window;
use std::ops::RangeInclusive;
use unisono_nn::parameter::Dtype;
use unisono_parallel::data_parallel::ParallelKind;
use unisono_parallel::data_parallel::ReduceFrequency;

/// Returns each condition with its error message.
pub(super) fn constraints(config: &Config) -> Vec<(bool, String)> {
    let of_model = &config.model;
    [
        integer_constraints(config),
        heads_constraints(of_model),
        float_constraints(config),
        size_constraints(config),
        group_constraints(config),
        expert_constraints(config),
    ]
    .concat()
}

/// Limits beyond any real run, below which products of counts cannot overflow.
const MAX_THREADS: usize = 1 << 10;
const MAX_LAYERS: usize = 1 << 12;
const MAX_WIDTH: usize = 1 << 20;
const MAX_CONTEXT: usize = 1 << 24;
const MAX_BATCH: usize = 1 << 32;
const MAX_BUCKET_MB: f64 = (1 << 20) as f64;

fn integer_constraints(config: &Config) -> Vec<(bool, String)> {
    let Config { model, data, strategy, checkpoint, .. } = config;
    let keeps = checkpoint.every > 0 || checkpoint.last || checkpoint.resume;
    let bounded = |name: &str, value: usize, most: usize| {
        ((1..=most).contains(&value), format!("{name} = {value}: it is from 1 to {most}"))
    };
    let at_most = |name: &str, value: usize, most: usize| {
        (value <= most, format!("{name} = {value}: it is at most {most}"))
    };
    vec![
        bounded("threads", config.threads, MAX_THREADS),
        bounded("model.layers", model.layers, MAX_LAYERS),
        bounded("model.width", model.width, MAX_WIDTH),
        bounded("model.heads", model.heads, MAX_WIDTH),
        at_most("model.head_dim", model.head_dim, MAX_WIDTH),
        bounded("model.context", model.context, MAX_CONTEXT),
        bounded("model.rope_original_context", model.rope_original_context, MAX_CONTEXT),
        at_most("model.ffn_width", model.ffn_width, MAX_WIDTH),
        bounded("model.cross_entropy_splits", model.cross_entropy_splits, MAX_CONTEXT),
        bounded("data.vocabulary", data.vocabulary as usize, u32::MAX as usize),
        bounded("data.global_batch", data.global_batch, MAX_BATCH),
        bounded("data.micro_batch", data.micro_batch, MAX_BATCH),
        bounded("data.breadth_first", data.breadth_first, MAX_BATCH),
        bounded("data.micro_sequences", data.micro_sequences, MAX_CONTEXT),
        bounded("strategy.gather_limit", strategy.gather_limit, MAX_WIDTH),
        bounded("strategy.reduction_limit", strategy.reduction_limit, MAX_WIDTH),
        at_most("strategy.prefetch", strategy.prefetch, MAX_WIDTH),
        at_most("data.workers", data.workers, MAX_THREADS),
        (!data.path.is_empty(), "data.path is empty: name a file or folder".to_owned()),
        (
            model.from.is_empty() || data.kind != DataKind::Text || data.vocabulary == text::VOCAB_SIZE,
            format!(
                "data.kind = \"text\" has {} tokens, and the model in model.from has {}: data.kind = \"tokens\" \
                 reads files of its tokens",
                text::VOCAB_SIZE,
                data.vocabulary
            ),
        ),
        (
            !checkpoint.folder.is_empty() || !keeps,
            "checkpoint.folder is empty: name one, or set checkpoint.last=false".to_owned(),
        ),
        (checkpoint.keep > 0, "checkpoint.keep = 0: it is at least 1".to_owned()),
        (config.log.every > 0, "log.every = 0: it is at least 1".to_owned()),
    ]
}

/// Returns the conditions of attention. The number of heads is not 0 here.
fn heads_constraints(model: &Model) -> Vec<(bool, String)> {
    let (width, heads, kv_heads) = (model.width, model.heads.max(1), model.kv_heads);
    let head_dim = if model.head_dim > 0 { model.head_dim } else { width / heads };
    let is_rotary = model.positions == Positions::Rotary;
    let (window, context) = (model.sliding_window, model.context);
    vec![
        (
            model.head_dim > 0 || width.is_multiple_of(heads),
            format!("model.heads = {heads} does not divide model.width = {width}"),
        ),
        (window == 0 || window >= context, narrow_window(window, context)),
        (
            kv_heads == 0 || heads.is_multiple_of(kv_heads),
            format!("model.kv_heads = {kv_heads} does not divide model.heads = {heads}"),
        ),
        (
            !is_rotary || head_dim.is_multiple_of(2),
            format!("model.positions = \"rotary\" needs an even number of features per head, not {head_dim}"),
        ),
        (
            model.rope_low_freq_factor < model.rope_high_freq_factor,
            format!(
                "model.rope_low_freq_factor = {} is not below model.rope_high_freq_factor = {}",
                model.rope_low_freq_factor, model.rope_high_freq_factor
            ),
        ),
        (
            model.rope_beta_slow <= model.rope_beta_fast,
            format!(
                "model.rope_beta_slow = {} is above model.rope_beta_fast = {}",
                model.rope_beta_slow, model.rope_beta_fast
            ),
        ),
        (
            model.rope_scaling != RopeScalingKind::Yarn || model.rope_base > 1.0,
            format!(
                "model.rope_base = {} with model.rope_scaling = \"yarn\": it is above 1",
                model.rope_base
            ),
        ),
    ]
}

fn float_constraints(config: &Config) -> Vec<(bool, String)> {
    let Config { model, data, optimizer, strategy, .. } = config;
    let share = |name: &str, value: f64| {
        ((0.0..1.0).contains(&value), format!("{name} = {value} is not a fraction below 1"))
    };
    let size = |name: &str, value: f64| {
        (value.is_finite() && value >= 0.0, format!("{name} = {value} is not a valid size"))
    };
    let positive = |name: &str, value: f64| {
        (value.is_finite() && value > 0.0, format!("{name} = {value}: it must be positive"))
    };
    let each = "strategy.reduce_each = \"micro-batch\" is for strategy.kind zero2 and zero3; others keep whole gradients";
    let each = format!("{each}, and this is {}", strategy.kind.name());
    vec![
        share("model.dropout", model.dropout),
        positive("model.rope_base", model.rope_base),
        positive("model.rope_scaling_factor", model.rope_scaling_factor),
        positive("model.rope_low_freq_factor", model.rope_low_freq_factor),
        positive("model.rope_high_freq_factor", model.rope_high_freq_factor),
        positive("model.rope_beta_fast", model.rope_beta_fast),
        positive("model.rope_beta_slow", model.rope_beta_slow),
        size("model.rope_attention_factor", model.rope_attention_factor),
        positive("model.norm_epsilon", model.norm_epsilon),
        share("data.validation", data.validation),
        size("optimizer.lr", optimizer.lr),
        share("optimizer.beta1", optimizer.beta1),
        share("optimizer.beta2", optimizer.beta2),
        size("optimizer.epsilon", optimizer.epsilon),
        share("optimizer.momentum", optimizer.momentum),
        (optimizer.moment_dtype == Dtype::F32 || optimizer.beta2 <= MAX_BF16_BETA2, slow_moments(optimizer)),
        size("optimizer.weight_decay", optimizer.weight_decay),
        size("optimizer.max_grad_norm", optimizer.max_grad_norm),
        (
            strategy.bucket_mb > 0.0 && strategy.bucket_mb <= MAX_BUCKET_MB,
            format!("strategy.bucket_mb = {} is not a valid size", strategy.bucket_mb),
        ),
        (
            strategy.reduce_each == ReduceFrequency::Step || strategy.uses(ParallelKind::shards_gradients),
            each,
        ),
        size("sample.temperature", config.sample.temperature),
        (
            config.sample.top_p > 0.0 && config.sample.top_p <= 1.0,
            format!("sample.top_p = {} is not a probability above 0", config.sample.top_p),
        ),
        positive("sample.repetition_penalty", config.sample.repetition_penalty),
        (
            PENALTIES.contains(&config.sample.repetition_penalty),
            format!(
                "sample.repetition_penalty = {:e}: it is from {} to {}",
                config.sample.repetition_penalty,
                PENALTIES.start(),
                PENALTIES.end()
            ),
        ),
    ]
}

/// Penalties with which logits stay numbers of 32 bits.
const PENALTIES: RangeInclusive<f64> = 1e-3..=1e3;

/// Largest decay rate with which a second moment of 16 bits still follows the gradients. Rounding
/// loses changes below one part in 256, and the moment stays within 1/(256 (1−β₂)) of its value.
const MAX_BF16_BETA2: f64 = 0.99;

fn slow_moments(optimizer: &Optimizer) -> String {
    format!(
        "optimizer.beta2 = {} with optimizer.moment_dtype = \"bf16\": rounding would lose the changes of the \
         second moment; set beta2 to at most {MAX_BF16_BETA2}, or moment_dtype to \"f32\"",
        optimizer.beta2
    )
}

fn group_constraints(config: &Config) -> Vec<(bool, String)> {
    let groups = config.optimizer.groups.iter().zip(1..);
    let rules = groups.flat_map(|(group, number)| {
        let group_name = format!("group {number} of optimizer.groups");
        let is_size = |value: f64| value.is_finite() && value >= 0.0;
        let (scale, decay) = (group.lr_scale, group.weight_decay.unwrap_or_default());
        [
            (
                !group.parameters.is_empty(),
                format!("{group_name} has no parameters: name some, as \"*.bias\""),
            ),
            (is_size(scale), format!("lr_scale = {scale} in {group_name} is not a valid factor")),
            (is_size(decay), format!("weight_decay = {decay} in {group_name} is not a valid size")),
        ]
    });
    rules.collect()
}

fn expert_constraints(config: &Config) -> Vec<(bool, String)> {
    let (experts, mesh) = (&config.experts, &config.mesh);
    if experts.count == 0 {
        let what = format!("mesh.expert = {} without experts: set experts.count", mesh.expert);
        return vec![(mesh.expert <= 1, what)];
    }
    let size = |name: &str, value: f64| {
        ((0.0..1e6).contains(&value), format!("experts.{name} = {value:e}: it is from 0 to below 10^6"))
    };
    let count = |name: &str, value: usize| {
        (
            value <= Experts::MAX_COUNT,
            format!("experts.{name} = {value}: it is at most {}", Experts::MAX_COUNT),
        )
    };
    let chosen = format!("experts.per_token = {}: it is from 1 to experts.count", experts.per_token);
    let message = "data.micro_sequences above 1 with experts.capacity_factor or experts.balance = \"loss\", which \
                 need whole sequences: not part of this build";
    let needs_whole = experts.capacity_factor > 0.0
        || (experts.balance == ExpertBalance::Loss && experts.balance_loss > 0.0);
    vec![
        count("count", experts.count),
        count("shared", experts.shared),
        ((1..=experts.count).contains(&experts.per_token), format!("{chosen} = {}", experts.count)),
        (experts.width <= MAX_WIDTH, format!("experts.width = {}: it is at most {MAX_WIDTH}", experts.width)),
        size("scale", experts.scale),
        size("capacity_factor", experts.capacity_factor),
        size("balance_loss", experts.balance_loss),
        size("bias_rate", experts.bias_rate),
        size("z_loss", experts.z_loss),
        (
            experts.count.is_multiple_of(mesh.expert.max(1)),
            format!("mesh.expert = {} does not divide experts.count = {}", mesh.expert, experts.count),
        ),
        (
            experts.first_dense < config.model.layers,
            format!(
                "experts.first_dense = {} leaves none of model.layers = {} with experts",
                experts.first_dense, config.model.layers
            ),
        ),
        (config.data.micro_sequences == 1 || !needs_whole, message.to_owned()),
        (
            experts.z_loss == 0.0 || experts.score == RouterScore::Softmax,
            "experts.z_loss with experts.score = \"sigmoid\", which has no log-sum-exp: set it to 0"
                .to_owned(),
        ),
    ]
}

/// Limit on parameters and on activations, beyond any real run.
const MAX_ELEMENTS: f64 = (1u64 << 50) as f64;

fn size_constraints(config: &Config) -> Vec<(bool, String)> {
    let limited = |what: &str, count: f64| {
        (
            count < MAX_ELEMENTS,
            format!("this model has about {count:.1e} {what}: it may have {MAX_ELEMENTS:.1e}"),
        )
    };
    let [parameters, activations] = counts(config);
    vec![limited("parameters", parameters), limited("activations in a pass", activations)]
}

/// Estimates the number of parameters, and of activations per pass.
fn counts(config: &Config) -> [f64; 2] {
    let Config { model, data, experts, .. } = config;
    let [layers, width, context] = [model.layers, model.width, model.context].map(|extent| extent as f64);
    let queries = if model.head_dim > 0 { model.heads as f64 * model.head_dim as f64 } else { width };
    let samples = data.micro_batch as f64 * data.breadth_first as f64;
    let vocabulary = data.vocabulary_size() as f64;
    let of_experts = match experts.count {
        0 => 0.0,
        count => {
            let hidden = experts.width.max(4 * model.width) as f64;
            layers * (count + experts.shared) as f64 * width * (3.0 * hidden + 1.0)
        }
    };
    let dense = layers * width * (8.0 * width + 4.0 * queries + 3.0 * model.ffn_width as f64);
    [
        dense + (2.0 * vocabulary + context) * width + of_experts,
        samples * context * (32.0 * layers * width.max(queries) + 2.0 * vocabulary),
    ]
}
