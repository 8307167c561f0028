//! Earlier names of configuration keys, so that an old file gets an answer it can act on.

/// Renamed sections and keys: the earlier path, and the key that took its place.
pub(super) const RENAMED_KEYS: [(&str, &str); 16] = [
    ("optimizer", "optimizer"),
    ("optimizer.kind", "optimizer.kind"),
    ("optimizer.lr", "optimizer.lr"),
    ("optimizer.beta1", "optimizer.beta1"),
    ("optimizer.beta2", "optimizer.beta2"),
    ("optimizer.epsilon", "optimizer.epsilon"),
    ("optimizer.momentum", "optimizer.momentum"),
    ("optimizer.weight_decay", "optimizer.weight_decay"),
    ("optimizer.clip", "optimizer.max_grad_norm"),
    ("optimizer.clip", "optimizer.max_grad_norm"),
    ("model.tied", "model.tie_word_embeddings"),
    ("model.checkpointing", "model.activation_checkpointing"),
    ("model.hidden", "model.hidden_sizes"),
    ("data.tail", "data.last_batch"),
    ("strategy.wide_gradients", "strategy.fp32_grad_accum"),
    ("log.compare_every", "log.check_replicas_every"),
];

/// Returns the present name of the key at `path`, if that is an earlier name.
pub(super) fn present_name(path: &str) -> Option<&'static str> {
    RENAMED_KEYS.iter().find(|(earlier, _)| *earlier == path).map(|&(_, present)| present)
}
