//! Strategy of each unit of a model, by the patterns of `strategy.units`.

use super::schema::Strategy;
use unisono_nn::error::{Error, Result};
use unisono_nn::parameter::{Inventory, Unit, pattern};
use unisono_parallel::data_parallel::ParallelKind;

impl Strategy {
    /// Returns the strategy of each unit of a model.
    ///
    /// # Errors
    /// Fails for a pattern without a match, and suggests similar names. Fails if two patterns give
    /// a unit different strategies, and none of them is its name.
    pub fn unit_kinds(&self, inventory: &Inventory) -> Result<Vec<ParallelKind>> {
        let names = || inventory.units.iter().map(|unit| unit.name.as_str());
        let matches_none = |pattern: &&String| !names().any(|name| pattern::selects(pattern, name));
        if let Some(pattern) = self.units.keys().find(matches_none) {
            let suggested = pattern::suggestions(pattern, names());
            return Err(Error::invalid(format!(
                "no unit of strategy.units is called `{pattern}`; near are {suggested}"
            )));
        }
        inventory.units.iter().map(|unit| self.kind_of(unit)).collect()
    }

    fn kind_of(&self, unit: &Unit) -> Result<ParallelKind> {
        if let Some(&kind) = self.units.get(&unit.name) {
            return Ok(kind);
        }
        let mut matching = self.units.iter().filter(|(pattern, _)| pattern::selects(pattern, &unit.name));
        let Some((first, &kind)) = matching.next() else { return Ok(self.kind) };
        match matching.find(|&(_, &other)| other != kind) {
            None => Ok(kind),
            Some((second, _)) => {
                let what = format!("`{first}` and `{second}` of strategy.units differ for {}", unit.name);
                Err(Error::invalid(format!("{what}; add its own name")))
            }
        }
    }

    /// Returns true if some unit has this strategy, or may have it.
    pub fn uses(&self, is_meant: impl Fn(ParallelKind) -> bool) -> bool {
        is_meant(self.kind) || self.units.values().any(|&kind| is_meant(kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unisono_nn::parameter::{Init, Parameter, Registry};

    fn inventory() -> Inventory {
        let mut registry = Registry::default();
        for name in ["wte", "h.0", "h.1", "h.2", "head"] {
            registry.unit(name, |r| r.add(Parameter::new("weight", &[4], Init::Zeros)));
        }
        registry.finish()
    }

    fn kinds(units: &[(&str, ParallelKind)]) -> Result<Vec<ParallelKind>> {
        let units = units.iter().map(|&(pattern, kind)| (pattern.to_owned(), kind)).collect();
        Strategy { units, ..Strategy::default() }.unit_kinds(&inventory())
    }

    #[test]
    fn own_name_counts_before_patterns() {
        use ParallelKind::{Replicated, Zero2, Zero3};
        assert_eq!(kinds(&[]).unwrap(), [Replicated; 5]);
        let found = kinds(&[("h.*", Zero3), ("h.1", Zero2)]).unwrap();
        assert_eq!(found, [Replicated, Zero3, Zero2, Zero3, Replicated]);
        assert_eq!(kinds(&[("h", Zero3)]).unwrap(), [Replicated, Zero3, Zero3, Zero3, Replicated]);
    }

    #[test]
    fn unknown_and_ambiguous_units_are_rejected() {
        use ParallelKind::{Zero2, Zero3};
        let error = kinds(&[("h.3", Zero3)]).unwrap_err().to_string();
        assert!(error.contains("no unit of strategy.units is called `h.3`; near are `h.0`"), "{error}");
        let error = kinds(&[("h", Zero3), ("h.*", Zero2)]).unwrap_err().to_string();
        assert!(
            error.contains("`h` and `h.*` of strategy.units differ for h.0; add its own name"),
            "{error}"
        );
        kinds(&[("h", Zero3), ("h.*", Zero3)]).unwrap();
    }
}
