//! Keys of `config.json`, and how each is treated.

use super::super::family::Family;
use super::super::generation::{is_off, is_setting};
use KeyRule::{Kept, LeftOut, OnlyOff, OnlyOn, Used};
use serde_json::{Map, Value};

/// Treatment of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyRule {
    /// The model is built by the key, or a text ends by it.
    Used,
    /// The key changes nothing that is computed here. An export keeps it.
    Kept,
    /// The key is left out, and a run says so at its start, with this reason.
    LeftOut(&'static str),
    /// The key is refused unless it is null, false or empty, for this reason and with this remedy.
    OnlyOff(&'static str),
    /// The key is refused if it is false, for this reason.
    OnlyOn(&'static str),
}

const QUANTIZED: &str = "\
    the weights are quantized, and weights in f32, f16 or bf16 are read here: name the folder of the model that was \
    quantized";

/// Keys of all families.
const COMMON: [(&str, KeyRule); 43] = [
    ("architectures", Used),
    ("model_type", Used),
    ("tie_word_embeddings", Used),
    ("vocab_size", Used),
    ("eos_token_id", Used),
    ("_attn_implementation", Kept),
    ("_attn_implementation_autoset", Kept),
    ("_commit_hash", Kept),
    ("_experts_implementation", Kept),
    ("_name_or_path", Kept),
    ("attn_implementation", Kept),
    ("bos_token_id", Kept),
    ("chunk_size_feed_forward", Kept),
    ("dtype", Kept),
    ("experts_implementation", Kept),
    ("finetuning_task", Kept),
    ("gradient_checkpointing", Kept),
    ("id2label", Kept),
    ("initializer_range", Kept),
    ("is_decoder", Kept),
    ("label2id", Kept),
    ("name_or_path", Kept),
    ("num_labels", Kept),
    ("pad_token_id", Kept),
    ("prefix", Kept),
    ("problem_type", Kept),
    ("return_dict", Kept),
    ("sep_token_id", Kept),
    ("task_specific_params", Kept),
    ("tf_legacy_loss", Kept),
    ("tie_encoder_decoder", Kept),
    ("tokenizer_class", Kept),
    ("torch_dtype", Kept),
    ("torchscript", Kept),
    ("transformers_version", Kept),
    ("use_bfloat16", Kept),
    ("auto_map", LeftOut("its code is neither run nor exported")),
    ("add_cross_attention", OnlyOff("attention to an encoder is not supported")),
    ("compression_config", OnlyOff(QUANTIZED)),
    ("is_encoder_decoder", OnlyOff("models with an encoder are not supported")),
    ("per_layer_config", OnlyOff("layers that differ are not supported")),
    ("quantization_config", OnlyOff(QUANTIZED)),
    ("is_causal", OnlyOn("attention to later tokens is not supported")),
];

/// Keys of GPT-2. Probabilities of dropout are those of the run.
const GPT2: [(&str, KeyRule); 20] = [
    ("activation_function", Used),
    ("layer_norm_epsilon", Used),
    ("n_embd", Used),
    ("n_head", Used),
    ("n_inner", Used),
    ("n_layer", Used),
    ("n_positions", Used),
    ("scale_attn_by_inverse_layer_idx", Used),
    ("scale_attn_weights", Used),
    ("attn_pdrop", Kept),
    ("embd_pdrop", Kept),
    ("n_ctx", Kept),
    ("reorder_and_upcast_attn", Kept),
    ("resid_pdrop", Kept),
    ("summary_activation", Kept),
    ("summary_first_dropout", Kept),
    ("summary_proj_to_labels", Kept),
    ("summary_type", Kept),
    ("summary_use_proj", Kept),
    ("pruned_heads", OnlyOff("attention without some of its heads is not supported")),
];

/// Keys of Llama, and of the families that differ from it by a few switches. Probabilities of
/// dropout, and the losses of a router, are those of the run.
const LLAMA: [(&str, KeyRule); 29] = [
    ("attention_bias", Used),
    ("head_dim", Used),
    ("hidden_act", Used),
    ("hidden_size", Used),
    ("intermediate_size", Used),
    ("layer_types", Used),
    ("max_position_embeddings", Used),
    ("max_window_layers", Used),
    ("mlp_bias", Used),
    ("num_attention_heads", Used),
    ("num_experts_per_tok", Used),
    ("num_hidden_layers", Used),
    ("num_key_value_heads", Used),
    ("num_local_experts", Used),
    ("partial_rotary_factor", Used),
    ("rms_norm_eps", Used),
    ("rope_parameters", Used),
    ("rope_scaling", Used),
    ("rope_theta", Used),
    ("router_jitter_noise", Used),
    ("sliding_window", Used),
    ("use_sliding_window", Used),
    ("attention_dropout", Kept),
    ("embd_pdrop", Kept),
    ("original_max_position_embeddings", Kept),
    ("output_router_logits", Kept),
    ("pretraining_tp", Kept),
    ("resid_pdrop", Kept),
    ("router_aux_loss_coef", Kept),
];

/// Returns the treatment of a key; `None` if no model of the family has it.
fn rule_of(family: Family, key: &str) -> Option<KeyRule> {
    let of_family: &[(&str, KeyRule)] = if family == Family::Gpt2 { &GPT2 } else { &LLAMA };
    let found = COMMON.iter().chain(of_family).find(|(name, _)| *name == key).map(|(_, rule)| *rule);
    // Earlier versions of transformers wrote settings of generation into this file.
    found.or_else(|| is_setting(key).then_some(Kept))
}

/// Returns why the model of these fields is refused, with a key and its value; `None` if no key
/// says so.
pub(super) fn refusal(family: Family, fields: &Map<String, Value>) -> Option<String> {
    fields.iter().find_map(|(key, value)| match rule_of(family, key)? {
        OnlyOff(reason) if !is_off(value) => {
            let method = value.get("quant_method").and_then(Value::as_str);
            let method = method.map_or(String::new(), |method| format!(" with quant_method {method}"));
            Some(format!("{key}{method}: {reason}"))
        }
        OnlyOn(reason) if *value == Value::Bool(false) => Some(format!("{key} false: {reason}")),
        _ => None,
    })
}

/// Number of keys that a note names.
const NAMED: usize = 8;

/// Returns notes on the keys that have no effect here.
pub(super) fn notes(family: Family, fields: &Map<String, Value>) -> Vec<String> {
    let left_out = fields.keys().filter_map(|key| match rule_of(family, key) {
        Some(LeftOut(reason)) => Some(format!("{key} of config.json: {reason}")),
        _ => None,
    });
    let mut notes: Vec<String> = left_out.collect();
    let unknown: Vec<&str> =
        fields.keys().filter(|key| rule_of(family, key).is_none()).map(String::as_str).collect();
    if !unknown.is_empty() {
        let more = unknown.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        notes.push(format!(
            "keys of config.json that no model of the family {} has: {}{more}: they have no effect, and an export keeps them",
            family.name(),
            unknown[..unknown.len().min(NAMED)].join(", ")
        ));
    }
    notes
}

/// Returns fields whose keys have the names of the family. transformers has other names for some,
/// and prefers the value of such a name.
pub(super) fn with_own_names(family: Family, mut fields: Map<String, Value>) -> Map<String, Value> {
    let names: &[(&str, &str)] = match family {
        Family::Gpt2 => &[
            ("hidden_size", "n_embd"),
            ("max_position_embeddings", "n_positions"),
            ("num_attention_heads", "n_head"),
            ("num_hidden_layers", "n_layer"),
        ],
        Family::Mixtral => &[("num_experts", "num_local_experts")],
        _ => &[],
    };
    for (other, usual) in names {
        if let Some(value) = fields.remove(*other) {
            fields.insert((*usual).to_owned(), value);
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn keys_that_make_another_model_are_refused() {
        let refused = |value: Value| refusal(Family::Llama, &fields(value));
        let neutral = json!({"quantization_config": null, "is_encoder_decoder": false, "per_layer_config": {},
            "is_causal": true, "add_cross_attention": false});
        assert_eq!(refused(neutral), None);
        for (value, words) in [
            (
                json!({"quantization_config": {"bits": 4, "quant_method": "gptq"}}),
                "quantization_config with quant_method gptq: the weights are quantized",
            ),
            (
                json!({"quantization_config": {"load_in_4bit": true, "quant_method": "bitsandbytes"}}),
                "quantization_config with quant_method bitsandbytes",
            ),
            (
                json!({"compression_config": {"format": "dense"}}),
                "compression_config: the weights are quantized",
            ),
            (json!({"is_encoder_decoder": true}), "is_encoder_decoder: models with an encoder"),
            (json!({"is_causal": false}), "is_causal false: attention to later tokens"),
        ] {
            let what = refused(value).unwrap();
            assert!(what.starts_with(words), "{what}");
        }
        let pruned = fields(json!({"pruned_heads": {"0": [1]}}));
        assert!(refusal(Family::Gpt2, &pruned).unwrap().starts_with("pruned_heads: "));
    }

    #[test]
    fn keys_without_effect_are_named() {
        let written = fields(
            json!({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "dtype": "float32",
            "attention_dropout": 0.0, "bos_token_id": null, "eos_token_id": null, "head_dim": 32, "hidden_act": "silu",
            "hidden_size": 64, "initializer_range": 0.1, "intermediate_size": 96, "layer_types": ["full_attention"],
            "max_position_embeddings": 32, "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 4,
            "num_hidden_layers": 1, "num_key_value_heads": 2, "pad_token_id": null, "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}, "sliding_window": null,
            "tie_word_embeddings": false, "transformers_version": "5.24.0", "use_cache": true, "vocab_size": 311,
            "use_sliding_window": false}),
        );
        assert_eq!(notes(Family::Qwen3, &written), [""; 0]);
        let mut other =
            fields(json!({"n_embd": 64, "auto_map": {"AutoConfig": "own.Config"}, "temperature": 0.7}));
        let found = notes(Family::Llama, &other);
        assert!(found[0].starts_with("auto_map of config.json: its code is neither run"), "{found:?}");
        assert!(
            found[1].contains("no model of the family llama has: n_embd: they have no effect"),
            "{found:?}"
        );
        other.remove("auto_map");
        assert_eq!(notes(Family::Gpt2, &other), [""; 0]);
        other.extend((0..9).map(|number| (format!("key_{number}"), json!(1))));
        assert!(notes(Family::Gpt2, &other)[0].contains("key_0, key_1"), "{:?}", notes(Family::Gpt2, &other));
        assert!(
            notes(Family::Gpt2, &other)[0].contains(" and 1 more: "),
            "{:?}",
            notes(Family::Gpt2, &other)
        );
    }

    #[test]
    fn other_names_of_keys_are_those_of_transformers() {
        let other = fields(json!({"hidden_size": 64, "n_embd": 768, "num_hidden_layers": 2}));
        let usual = with_own_names(Family::Gpt2, other.clone());
        assert_eq!(usual, fields(json!({"n_embd": 64, "n_layer": 2})));
        assert_eq!(with_own_names(Family::Llama, other.clone()), other);
        let experts = fields(json!({"num_experts": 4}));
        assert_eq!(with_own_names(Family::Mixtral, experts), fields(json!({"num_local_experts": 4})));
    }
}
