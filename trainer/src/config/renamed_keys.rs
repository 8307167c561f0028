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
    ("model.hidden", "model.hidden_sizes"),
    ("data.tail", "data.last_batch"),
    ("strategy.wide_gradients", "strategy.fp32_grad_accum"),
    ("log.compare_every", "log.check_replicas_every"),
];

/// Returns the present name of the key at `path`, if that is an earlier name.
pub(super) fn present_name(path: &str) -> Option<&'static str> {
    RENAMED_KEYS.iter().find(|(earlier, _)| *earlier == path).map(|&(_, present)| present)
}
