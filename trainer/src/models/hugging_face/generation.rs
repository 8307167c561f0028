//! Settings in `generation_config.json`, and how each is treated.

use crate::file_kind;
use serde_json::{Map, Value};
use std::path::Path;
use unisono_nn::error::{Error, Result};

/// Treatment of a setting.
enum Role {
    /// The setting is this key of the section `sample`.
    Sample(&'static str),
    /// The sampler has no such setting, which changes no text if it has this value.
    Neutral(f64),
    /// The setting changes no text, or is read elsewhere, as the tokens at which a text ends are.
    Silent,
}

/// Settings of transformers. Others, such as `stop_strings`, are not applied and are named.
static ROLES: &[(&str, Role)] = &[
    ("temperature", Role::Sample("temperature")),
    ("top_k", Role::Sample("top_k")),
    ("top_p", Role::Sample("top_p")),
    ("repetition_penalty", Role::Sample("repetition_penalty")),
    ("max_new_tokens", Role::Sample("tokens")),
    ("diversity_penalty", Role::Neutral(0.0)),
    ("encoder_no_repeat_ngram_size", Role::Neutral(0.0)),
    ("encoder_repetition_penalty", Role::Neutral(1.0)),
    ("epsilon_cutoff", Role::Neutral(0.0)),
    ("eta_cutoff", Role::Neutral(0.0)),
    ("guidance_scale", Role::Neutral(1.0)),
    ("length_penalty", Role::Neutral(1.0)),
    ("max_length", Role::Neutral(20.0)),
    ("min_length", Role::Neutral(0.0)),
    ("min_new_tokens", Role::Neutral(0.0)),
    ("min_p", Role::Neutral(0.0)),
    ("no_repeat_ngram_size", Role::Neutral(0.0)),
    ("num_beam_groups", Role::Neutral(1.0)),
    ("num_beams", Role::Neutral(1.0)),
    ("typical_p", Role::Neutral(1.0)),
    ("_from_model_config", Role::Silent),
    ("assistant_confidence_threshold", Role::Silent),
    ("bos_token_id", Role::Silent),
    ("cache_config", Role::Silent),
    ("cache_implementation", Role::Silent),
    ("compile_config", Role::Silent),
    ("continuous_batching_config", Role::Silent),
    ("decoder_start_token_id", Role::Silent),
    ("disable_compile", Role::Silent),
    ("do_sample", Role::Silent),
    ("early_stopping", Role::Silent),
    ("eos_token_id", Role::Silent),
    ("is_assistant", Role::Silent),
    ("low_memory", Role::Silent),
    ("max_cache_len", Role::Silent),
    ("max_matching_ngram_size", Role::Silent),
    ("num_assistant_tokens", Role::Silent),
    ("num_assistant_tokens_schedule", Role::Silent),
    ("num_return_sequences", Role::Silent),
    ("output_attentions", Role::Silent),
    ("output_hidden_states", Role::Silent),
    ("output_logits", Role::Silent),
    ("output_scores", Role::Silent),
    ("pad_token_id", Role::Silent),
    ("prefill_chunk_size", Role::Silent),
    ("prompt_lookup_num_tokens", Role::Silent),
    ("remove_invalid_values", Role::Silent),
    ("renormalize_logits", Role::Silent),
    ("return_dict_in_generate", Role::Silent),
    ("transformers_version", Role::Silent),
    ("use_cache", Role::Silent),
];

/// Keys of the section `sample` that make the choice of tokens random.
pub(crate) const RANDOM: [&str; 3] = ["temperature", "top_k", "top_p"];

/// Contents that a reader expects, for errors.
const WANTED: &str = "a generation_config.json of Hugging Face's libraries";

/// Settings of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct GenerationSettings {
    /// Tokens are not chosen at random (`do_sample` is false).
    pub(crate) is_greedy: bool,
    /// Keys of the section `sample`, with their values as in overrides.
    pub(crate) sample: Vec<(&'static str, String)>,
    /// Settings that the sampler does not have, for messages.
    pub(crate) ignored: Vec<String>,
}

/// Reads the bytes of the file at `path`.
///
/// # Errors
/// Fails if this is no such file.
pub(crate) fn generation_settings(path: &Path, bytes: &[u8]) -> Result<GenerationSettings> {
    let fields: Map<String, Value> =
        serde_json::from_slice(bytes).map_err(|error| file_kind::unreadable(path, WANTED, error))?;
    let is_random = match fields.get("do_sample") {
        Some(Value::Bool(is_random)) => Some(*is_random),
        Some(Value::Null) | None => None,
        Some(other) => {
            let what =
                format!("do_sample is {other}, and must be true or false: correct it, or remove the key");
            return Err(Error::file(path, what));
        }
    };
    let is_greedy = is_random == Some(false);
    let mut settings = GenerationSettings { is_greedy, ..GenerationSettings::default() };
    for (key, value) in fields.iter().filter(|(_, value)| !is_off(value)) {
        match role_of(key) {
            Some(Role::Silent) => {}
            Some(Role::Neutral(neutral)) if value.as_f64() == Some(*neutral) => {}
            Some(Role::Sample(name)) if is_greedy && RANDOM.contains(name) => {}
            Some(Role::Sample(name)) => settings.sample.push((*name, override_value(name, value))),
            _ => settings.ignored.push(named(key, value)),
        }
    }
    let has_temperature = settings.sample.iter().any(|(name, _)| *name == "temperature");
    match is_random {
        Some(false) => settings.sample.push(("temperature", "0.0".to_owned())),
        // This is the temperature of a random choice without another one.
        Some(true) if !has_temperature => settings.sample.push(("temperature", "1.0".to_owned())),
        _ => {}
    }
    Ok(settings)
}

/// Returns true if the table has a setting of this name.
pub(super) fn is_setting(key: &str) -> bool {
    role_of(key).is_some()
}

fn role_of(key: &str) -> Option<&'static Role> {
    ROLES.iter().find(|(name, _)| *name == key).map(|(_, role)| role)
}

/// Returns true for the value of a setting that is switched off.
pub(super) fn is_off(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(is_on) => !is_on,
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Number(_) => false,
    }
}

/// Returns a value as an override has it.
fn override_value(name: &str, value: &Value) -> String {
    match value.as_i64() {
        // The value of vLLM that allows all tokens.
        Some(-1) if name == "top_k" => "0".to_owned(),
        _ => value.to_string(),
    }
}

/// Formats a setting for a message. Lists can be long, so they are left out.
fn named(key: &str, value: &Value) -> String {
    match value {
        Value::Number(_) => format!("{key} = {value}"),
        _ => key.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn settings(fields: &Value) -> Result<GenerationSettings> {
        generation_settings(Path::new("generation_config.json"), fields.to_string().as_bytes())
    }

    /// Returns the keys of the section `sample` with their values, in alphabetical order.
    fn sample(fields: &Value) -> String {
        let mut pairs: Vec<_> =
            settings(fields).unwrap().sample.iter().map(|(name, value)| format!("{name}={value}")).collect();
        pairs.sort();
        pairs.join(" ")
    }

    #[test]
    fn settings_of_a_file_are_keys_of_the_sampler() {
        let published = json!({"bos_token_id": 1, "do_sample": true, "eos_token_id": [2, 3], "temperature": 0.6,
            "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.05, "max_new_tokens": 512,
            "transformers_version": "4.40.0"});
        let wanted = "repetition_penalty=1.05 temperature=0.6 tokens=512 top_k=20 top_p=0.9";
        assert_eq!(sample(&published), wanted);
        assert_eq!(settings(&published).unwrap().ignored, [""; 0]);
        assert_eq!(sample(&json!({"temperature": 0.6})), "temperature=0.6");
        assert_eq!(sample(&json!({"do_sample": true, "top_k": -1})), "temperature=1.0 top_k=0");
        let greedy = json!({"do_sample": false, "temperature": 0.6, "top_k": 20, "repetition_penalty": 2});
        assert_eq!(sample(&greedy), "repetition_penalty=2 temperature=0.0");
        assert!(settings(&greedy).unwrap().is_greedy);
        assert_eq!(
            settings(&json!({"eos_token_id": 2, "top_p": null})).unwrap(),
            GenerationSettings::default()
        );
        let error = settings(&json!({"do_sample": 1})).unwrap_err().to_string();
        assert!(
            error.contains("generation_config.json: do_sample is 1, and must be true or false"),
            "{error}"
        );
        assert!(settings(&json!([])).is_err());
    }

    #[test]
    fn settings_that_the_sampler_lacks_are_named() {
        let ignored = |fields: &Value| settings(fields).unwrap().ignored;
        let neutral = json!({"num_beams": 1, "min_p": 0.0, "typical_p": 1, "max_length": 20, "stop_strings": null,
            "bad_words_ids": [], "token_healing": false, "sequence_bias": {}});
        assert_eq!(ignored(&neutral), [""; 0]);
        let mut named =
            ignored(&json!({"num_beams": 4, "min_p": 0.1, "stop_strings": ["\n\n"], "unknown": true}));
        named.sort();
        assert_eq!(named, ["min_p = 0.1", "num_beams = 4", "stop_strings", "unknown"]);
    }
}
