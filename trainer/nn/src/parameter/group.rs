//! Groups of parameters that an optimizer updates with settings of their own.

use crate::error::{Error, Result};
use crate::parameter::pattern;
use crate::parameter::{Parameter, Registry};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Settings of some parameters, instead of those of the optimizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ParamGroup {
    /// Patterns of the parameters, as in [`Registry::freeze_all`]. A parameter belongs to the first
    /// group that names it.
    pub parameters: Vec<String>,
    /// Factor of the learning rate.
    pub lr_scale: f64,
    /// Weight decay of all parameters of the group, biases and gains too. Without it, matrices have
    /// the optimizer's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
}

impl Default for ParamGroup {
    fn default() -> Self {
        Self { parameters: Vec::new(), lr_scale: 1.0, weight_decay: None }
    }
}

impl ParamGroup {
    fn selects(&self, name: &str) -> bool {
        self.parameters.iter().any(|pattern| pattern::selects(pattern, name))
    }
}

/// Weight decay of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WeightDecay {
    /// No weight decay.
    None,
    /// Weight decay of the optimizer.
    OfOptimizer,
    /// Weight decay of a group.
    OfGroup(f32),
}

impl WeightDecay {
    /// Returns the weight decay with an optimizer that has `of_optimizer`.
    pub fn rate(self, of_optimizer: f32) -> f32 {
        match self {
            Self::None => 0.0,
            Self::OfOptimizer => of_optimizer,
            Self::OfGroup(rate) => rate,
        }
    }
}

impl Registry {
    /// Gives every parameter the settings of the first of `groups` that names it.
    ///
    /// # Errors
    /// Fails for a pattern without a match, and suggests similar names.
    pub fn set_groups(&mut self, groups: &[ParamGroup]) -> Result<()> {
        // All patterns are checked first, so that a wrong one leaves every parameter as it was.
        for pattern in groups.iter().flat_map(|group| &group.parameters) {
            self.check_match(pattern, "no parameter of optimizer.groups")?;
        }
        for parameter in &mut self.inventory.parameters {
            if let Some(group) = groups.iter().find(|group| group.selects(&parameter.name)) {
                apply(group, parameter);
            }
        }
        Ok(())
    }

    /// Checks that `pattern` selects a parameter. An error begins with `nothing`.
    ///
    /// # Errors
    /// Suggests similar names if it selects none.
    pub(super) fn check_match(&self, pattern: &str, nothing: &str) -> Result<()> {
        let names = || self.inventory.parameters.iter().map(|parameter| parameter.name.as_str());
        if names().any(|name| pattern::selects(pattern, name)) {
            return Ok(());
        }
        let suggested = pattern::suggestions(pattern, names().flat_map(pattern::with_ancestors));
        Err(Error::invalid(format!("{nothing} is called `{pattern}`; near are {suggested}")))
    }
}

fn apply(group: &ParamGroup, parameter: &mut Parameter) {
    parameter.lr_scale = group.lr_scale as f32;
    if let Some(decay) = group.weight_decay {
        parameter.weight_decay = WeightDecay::OfGroup(decay as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameter::Init;

    fn registry() -> Registry {
        let mut registry = Registry::default();
        let add = |r: &mut Registry, name: &str, shape: &[usize]| {
            r.add(Parameter::new(name, shape, Init::Zeros));
        };
        registry.unit("wte", |r| add(r, "weight", &[8, 4]));
        registry.unit("h.0", |r| {
            r.scope("mlp", |r| {
                add(r, "weight", &[4, 4]);
                add(r, "bias", &[4]);
            });
        });
        registry
    }

    fn group(parameters: &[&str], lr_scale: f64, weight_decay: Option<f64>) -> ParamGroup {
        let parameters = parameters.iter().map(|&pattern| pattern.to_owned()).collect();
        ParamGroup { parameters, lr_scale, weight_decay }
    }

    #[test]
    fn first_matching_group_counts() {
        let mut registry = registry();
        let groups = [
            group(&["*.bias", "wte"], 0.5, Some(0.25)),
            group(&["h.*.mlp"], 2.0, None),
            group(&["wte"], 9.0, Some(9.0)),
        ];
        registry.set_groups(&groups).unwrap();
        let inventory = registry.finish();
        let found = |name: &str| {
            let parameter = &inventory[inventory.find(name).unwrap()];
            (parameter.lr_scale, parameter.weight_decay.rate(0.1))
        };
        assert_eq!(found("wte.weight"), (0.5, 0.25));
        assert_eq!(found("h.0.mlp.bias"), (0.5, 0.25));
        assert_eq!(found("h.0.mlp.weight"), (2.0, 0.1));
    }

    #[test]
    fn pattern_without_match_suggests_names() {
        let error = registry().set_groups(&[group(&["wte", "h.0.mpl"], 1.0, None)]).unwrap_err().to_string();
        assert!(error.contains("`h.0.mpl`; near are `h.0.mlp`"), "{error}");
    }
}
