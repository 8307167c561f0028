//! Rotary positions in `config.json`.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use unisono_nn::modules::{Llama3Scaling, RopeConfig, RopeScaling, YarnScaling};

/// Parameters of rotary positions: `rope_scaling` of files before version 5 of transformers, and
/// `rope_parameters` from version 5 on.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct RopeJson {
    rope_type: Option<String>,
    /// Earlier name of the field. Some files have both.
    #[serde(rename = "type")]
    earlier_type: Option<String>,
    pub(super) rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<usize>,
    attention_factor: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    truncate: Option<bool>,
    /// Part of the features that are rotated.
    pub(super) partial_rotary_factor: Option<f64>,
}

impl RopeJson {
    /// Returns the first parameters that a file gives, or none: transformers prefers the earlier
    /// key.
    pub(super) fn first(rope_scaling: Option<&Self>, rope_parameters: Option<&Self>) -> Self {
        let mut given = [rope_scaling, rope_parameters].into_iter().flatten();
        given.find(|rope| **rope != Self::default()).cloned().unwrap_or_default()
    }

    /// Returns the name of the scaling.
    pub(super) fn kind(&self) -> &str {
        let mut named = [&self.rope_type, &self.earlier_type].into_iter().flatten().map(String::as_str);
        named.find(|kind| !kind.is_empty()).unwrap_or("default")
    }

    /// Returns the scaling for a model of `longest` positions; `None` without one.
    ///
    /// # Errors
    /// Names a key and its value that are not supported.
    pub(super) fn scaling(&self, longest: usize) -> Result<Option<RopeScaling>, String> {
        let original_context = self.original_max_position_embeddings.unwrap_or(longest);
        let need = |key: &str, number: Option<f64>| {
            number.ok_or_else(|| format!("rope_type {} without {key}", self.kind()))
        };
        let scaling = match self.kind() {
            "default" => return Ok(None),
            "linear" => RopeScaling::Linear { factor: need("factor", self.factor)? },
            "llama3" => RopeScaling::Llama3(Llama3Scaling {
                factor: need("factor", self.factor)?,
                low_freq_factor: need("low_freq_factor", self.low_freq_factor)?,
                high_freq_factor: need("high_freq_factor", self.high_freq_factor)?,
                original_context,
            }),
            "yarn" => RopeScaling::Yarn(self.yarn(original_context, longest)),
            other => return Err(format!("rope_type {other}, none of default, linear, llama3 and yarn")),
        };
        Ok(Some(scaling).filter(|scaling| !scaling.is_identity()))
    }

    fn yarn(&self, original_context: usize, longest: usize) -> YarnScaling {
        let factor = self.factor.unwrap_or(longest as f64 / original_context as f64);
        let weights = [self.mscale, self.mscale_all_dim].map(|weight| weight.unwrap_or(0.0));
        let of_weights = (!weights.contains(&0.0)).then(|| {
            let [numerator, denominator] = weights.map(|weight| YarnScaling::magnitude(factor, weight));
            numerator / denominator
        });
        let given = |number: Option<f64>, usual| number.filter(|number| *number != 0.0).unwrap_or(usual);
        YarnScaling {
            factor,
            original_context,
            beta_fast: given(self.beta_fast, 32.0),
            beta_slow: given(self.beta_slow, 1.0),
            attention_factor: self.attention_factor.or(of_weights),
            truncate: self.truncate.unwrap_or(true),
        }
    }
}

/// Keys of rotary positions in a file.
pub(super) const KEYS: [&str; 3] = ["rope_theta", "rope_scaling", "rope_parameters"];

/// Returns the values of [`KEYS`]: those of files before version 5 of transformers, and from then
/// on.
pub(super) fn values(rope: RopeConfig) -> [Value; 3] {
    let scaling = rope.scaling.map(parameters);
    let mut later =
        scaling.clone().unwrap_or_else(|| Map::from_iter([("rope_type".to_owned(), json!("default"))]));
    later.insert("rope_theta".to_owned(), json!(rope.base));
    [json!(rope.base), scaling.map_or(Value::Null, Value::Object), Value::Object(later)]
}

/// Returns the parameters of a scaling.
fn parameters(scaling: RopeScaling) -> Map<String, Value> {
    let parameters = match scaling {
        RopeScaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
        RopeScaling::Llama3(scaling) => json!({
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_context,
        }),
        RopeScaling::Yarn(scaling) => json!({
            "rope_type": "yarn",
            "factor": scaling.factor,
            "original_max_position_embeddings": scaling.original_context,
            "beta_fast": scaling.beta_fast,
            "beta_slow": scaling.beta_slow,
            "attention_factor": scaling.attention_factor,
            "truncate": scaling.truncate,
        }),
    };
    let fields = parameters.as_object().cloned().unwrap_or_default();
    fields.into_iter().filter(|(_, value)| !value.is_null()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaling(fields: Value) -> Result<Option<RopeScaling>, String> {
        serde_json::from_value::<RopeJson>(fields).unwrap().scaling(1024)
    }

    const YARN: YarnScaling = YarnScaling {
        factor: 4.0,
        original_context: 256,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: None,
        truncate: true,
    };

    #[test]
    fn scalings_are_read_as_transformers_reads_them() {
        let yarn = |changes: YarnScaling| Ok(Some(RopeScaling::Yarn(changes)));
        let linear = Ok(Some(RopeScaling::Linear { factor: 2.0 }));
        assert_eq!(scaling(json!({"type": "linear", "factor": 2})), linear);
        assert_eq!(scaling(json!({"rope_type": "linear", "type": "default", "factor": 2.0})), linear);
        assert_eq!(scaling(json!({"rope_type": "linear", "factor": 1.0})), Ok(None), "no change");
        assert_eq!(scaling(json!({"rope_type": "", "factor": 2.0})), Ok(None));
        assert_eq!(scaling(json!({"rope_theta": 5e5})), Ok(None));
        let plain = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256});
        assert_eq!(scaling(plain), yarn(YARN));
        let from_lengths =
            json!({"rope_type": "yarn", "factor": null, "original_max_position_embeddings": 256});
        assert_eq!(scaling(from_lengths), yarn(YARN));
        let from_file = json!({"rope_type": "yarn", "factor": 4.0, "beta_fast": 16, "beta_slow": 0, "truncate": false,
            "attention_factor": 1.5, "mscale": 0.7, "mscale_all_dim": 0.9});
        let expected = YarnScaling {
            original_context: 1024,
            beta_fast: 16.0,
            truncate: false,
            attention_factor: Some(1.5),
            ..YARN
        };
        assert_eq!(scaling(from_file), yarn(expected));
        let weighted = json!({"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.9});
        let Ok(Some(RopeScaling::Yarn(found))) = scaling(weighted) else { panic!("a scaling") };
        let magnitude = |weight: f64| 0.1 * weight * 4f64.ln() + 1.0;
        assert_eq!(found.attention_factor, Some(magnitude(0.7) / magnitude(0.9)));
    }

    #[test]
    fn unsupported_scalings_name_key_and_value() {
        for (fields, what) in [
            (json!({"type": "dynamic", "factor": 2.0}), "rope_type dynamic, none of default"),
            (json!({"rope_type": "longrope"}), "rope_type longrope, none of default"),
            (json!({"rope_type": "linear"}), "rope_type linear without factor"),
            (json!({"rope_type": "llama3", "factor": 8.0}), "rope_type llama3 without low_freq_factor"),
        ] {
            let error = scaling(fields).unwrap_err();
            assert!(error.starts_with(what), "{error}");
        }
    }

    #[test]
    fn written_scalings_are_read_again() {
        let llama3 = Llama3Scaling {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192,
        };
        for scaling in [
            None,
            Some(RopeScaling::Linear { factor: 3.0 }),
            Some(RopeScaling::Llama3(llama3)),
            Some(RopeScaling::Yarn(YARN)),
            Some(RopeScaling::Yarn(YarnScaling { attention_factor: Some(1.25), truncate: false, ..YARN })),
        ] {
            let [base, earlier, later] = values(RopeConfig { base: 5e5, scaling });
            let [earlier, later] = [earlier, later].map(|fields| {
                serde_json::from_value::<Option<RopeJson>>(fields).unwrap().unwrap_or_default()
            });
            assert_eq!((&base, later.rope_theta), (&json!(5e5), Some(5e5)));
            assert_eq!([earlier.scaling(64), later.scaling(64)], [Ok(scaling), Ok(scaling)]);
            assert_eq!(RopeJson::first(Some(&earlier), Some(&later)).scaling(64), Ok(scaling));
        }
    }
}
