//! Earlier names of configuration keys, so that an old file gets an answer it can act on.

/// Renamed sections and keys: the earlier path, and the key that took its place.
pub(super) const RENAMED_KEYS: [(&str, &str); 16] = [
    ("optimiser", "optimizer"),
    ("optimiser.kind", "optimizer.kind"),
    ("optimiser.lr", "optimizer.lr"),
    ("optimiser.beta1", "optimizer.beta1"),
    ("optimiser.beta2", "optimizer.beta2"),
    ("optimiser.epsilon", "optimizer.epsilon"),
    ("optimiser.momentum", "optimizer.momentum"),
    ("optimiser.weight_decay", "optimizer.weight_decay"),
    ("optimiser.clip", "optimizer.max_grad_norm"),
    ("optimizer.clip", "optimizer.max_grad_norm"),
    ("model.tied", "model.tie_word_embeddings"),
    ("model.checkpointing", "model.activation_checkpointing"),
    ("data.tail", "data.last_batch"),
    ("mesh.pipeline_first", "mesh.order"),
    ("strategy.wide_gradients", "strategy.fp32_grad_accum"),
    ("log.compare_every", "log.check_replicas_every"),
];

/// Names of other programs for keys, without their section.
const COMMON_NAMES: [(&str, &str); 40] = [
    ("learning_rate", "optimizer.lr"),
    ("max_lr", "optimizer.lr"),
    ("grad_clip", "optimizer.max_grad_norm"),
    ("clip_grad", "optimizer.max_grad_norm"),
    ("eps", "optimizer.epsilon"),
    ("n_layer", "model.layers"),
    ("n_layers", "model.layers"),
    ("num_hidden_layers", "model.layers"),
    ("n_head", "model.heads"),
    ("n_heads", "model.heads"),
    ("num_attention_heads", "model.heads"),
    ("n_embd", "model.width"),
    ("d_model", "model.width"),
    ("hidden_size", "model.width"),
    ("dim", "model.width"),
    ("block_size", "model.context"),
    ("seq_len", "model.context"),
    ("sequence_length", "model.context"),
    ("batch_size", "data.global_batch"),
    ("global_batch_size", "data.global_batch"),
    ("micro_batch_size", "data.micro_batch"),
    ("vocab_size", "data.vocabulary"),
    ("max_steps", "schedule.steps"),
    ("max_iters", "schedule.steps"),
    ("warmup_steps", "schedule.warmup"),
    ("tensor_parallel", "mesh.tensor"),
    ("tp", "mesh.tensor"),
    ("pipeline_parallel", "mesh.pipeline"),
    ("pp", "mesh.pipeline"),
    ("context_parallel", "mesh.sequence_data"),
    ("cp", "mesh.sequence_data"),
    ("num_layers", "model.layers"),
    ("num_heads", "model.heads"),
    ("num_key_value_heads", "model.kv_heads"),
    ("intermediate_size", "model.ffn_width"),
    ("attention_bias", "model.qkv_bias"),
    ("activation", "model.feed_forward"),
    ("zero_hpz_partition_size", "strategy.shard_ranks"),
    ("param_persistence_threshold", "strategy.replicate_below"),
    ("stage3_param_persistence_threshold", "strategy.replicate_below"),
];

/// Returns the key for which other programs use the last part of `path`.
pub(super) fn common_name(path: &str) -> Option<&'static str> {
    let name = path.rsplit('.').next().unwrap_or(path);
    COMMON_NAMES.iter().find(|(common, _)| *common == name).map(|&(_, key)| key)
}

/// Keys of earlier versions whose place is taken by no key.
const REMOVED_KEYS: [&str; 3] = ["model.kind", "model.hidden_sizes", "model.hidden"];

/// Returns the answer to the key at `path`, if no key took its place.
pub(super) fn removed_key(path: &str) -> Option<&'static str> {
    REMOVED_KEYS.contains(&path).then_some(
        "the trainer has language models only; examples/classifier trains a model of your own with its library",
    )
}

/// Returns true if a key of an earlier version, in a file, changes nothing: the trainer has GPTs
/// only, and hidden sizes were those of perceptrons.
pub(super) fn is_redundant(path: &str, value: Option<&str>) -> bool {
    path == "model.hidden_sizes" || path == "model.kind" && value == Some("gpt")
}

const TEACHING_FORM: &str = "examples/data_parallel has this form; bucketed or zero1 takes the same steps";

const HYBRID: &str =
    "zero2 or zero3 with strategy.shard_ranks, such as the ranks of a host, shards within groups";

/// Values that other programs or earlier versions have, by key, and the answer to them.
const COMMON_VALUES: [(&str, &str, &str); 9] = [
    ("data.kind", "table", "examples/classifier reads tables for a model of its own"),
    ("optimizer.kind", "adam", "adamw with optimizer.weight_decay=0 is Adam"),
    ("strategy.kind", "naive", TEACHING_FORM),
    ("strategy.kind", "overlapped", TEACHING_FORM),
    ("strategy.kind", "zero1-parameters", TEACHING_FORM),
    ("strategy.kind", "deepspeed", "its stages are zero1, zero2 and zero3"),
    ("strategy.kind", "hsdp", HYBRID),
    ("strategy.kind", "hybrid-shard", HYBRID),
    ("strategy.kind", "hybrid-shard-zero2", HYBRID),
];

/// Returns the answer to the first such value, if `value_of` finds one by the path of its key.
pub(super) fn common_value_of<'a>(value_of: impl Fn(&str) -> Option<&'a str>) -> Option<&'static str> {
    COMMON_VALUES.iter().find(|(key, value, _)| value_of(key) == Some(value)).map(|&(_, _, answer)| answer)
}

/// Returns the present name of the key at `path`, if that is an earlier name.
pub(super) fn present_name(path: &str) -> Option<&'static str> {
    RENAMED_KEYS.iter().find(|(earlier, _)| *earlier == path).map(|&(_, present)| present)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, read};

    #[test]
    fn common_names_lead_to_present_keys() {
        let table = read::to_table(&Config::default()).unwrap();
        for (common, key) in COMMON_NAMES {
            let (section, leaf) = key.split_once('.').unwrap();
            let section = table[section].as_table().unwrap();
            assert!(section.contains_key(leaf) && !section.contains_key(common), "{common}");
        }
        COMMON_VALUES
            .iter()
            .for_each(|(key, ..)| assert!(table.contains_key(key.split_once('.').unwrap().0)));
    }
}
