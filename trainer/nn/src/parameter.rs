//! Named parameters of a model, grouped in units that are gathered and released together.

mod dtype;
mod group;
mod init;
pub mod pattern;
mod shard_spec;

pub use crate::parameter::dtype::Dtype;
pub use crate::parameter::group::{ParamGroup, WeightDecay};
pub use crate::parameter::shard_spec::ShardSpec;
pub use init::Init;

use crate::error::{Error, Result};
use std::collections::HashSet;
use std::ops::Range;

/// Number of a parameter, in the order of use in forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParameterId(pub usize);

/// Number of a unit, in forward order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnitId(pub usize);

/// Named array of weights, as this rank holds it. It describes the weights, and a strategy has
/// their values.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Path in the model, such as `h.0.attn.c_attn.weight`.
    pub name: String,
    /// Shape of this rank's part, including padding. A linear layer has outputs × inputs.
    pub shape: Vec<usize>,
    /// Position of this part in the whole tensor; `None` without tensor parallelism.
    pub shard: Option<ShardSpec>,
    /// Initial values.
    pub init: Init,
    /// Type in which weights are kept and sent.
    pub dtype: Dtype,
    /// Has a gradient.
    pub trainable: bool,
    /// Factor of the learning rate, 1 unless a group says otherwise.
    pub lr_scale: f32,
    /// Weight decay: the optimizer's for matrices, and none for biases and gains, unless a group
    /// says otherwise.
    pub weight_decay: WeightDecay,
    /// Each rank of a tensor parallel group holds a partial gradient. The gradient is their sum.
    pub partial_grad: bool,
    /// Number of modules on this rank that add to the gradient in one backward pass; two for a tied
    /// embedding.
    pub use_count: usize,
    /// Ranks among which its gradient is averaged and its state sharded.
    pub domain: Domain,
    /// Rate of sign descent, which replaces the optimizer's step; `None` for the optimizer's.
    pub sign_rate: Option<f32>,
    /// Place among pipeline stages, expert parallel ranks and parts of a strategy.
    pub residency: Residency,
}

/// Ranks among which a gradient is averaged, and state is sharded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Domain {
    /// All data ranks.
    #[default]
    Dense,
    /// Data ranks with the same experts. The mean is over the tokens of all data ranks.
    Expert,
}

/// Place of a parameter among pipeline stages, expert parallel ranks and parts of a strategy, as
/// one rank sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residency {
    /// This rank alone has it.
    #[default]
    Own,
    /// Other stages, expert parallel ranks or parts have it.
    Elsewhere,
    /// This stage and another one use it. Each has a copy, and its gradient is the sum of both.
    Tied {
        /// True on the stage that counts it in norms and saves it.
        is_owner: bool,
    },
}

impl Residency {
    /// Returns true if this rank has the weights.
    pub fn is_here(self) -> bool {
        self != Self::Elsewhere
    }

    /// Returns true on the one stage that counts the parameter in norms and saves it.
    pub fn is_owner(self) -> bool {
        matches!(self, Self::Own | Self::Tied { is_owner: true })
    }

    /// Returns true if the gradient is the sum over two stages.
    pub fn is_tied(self) -> bool {
        matches!(self, Self::Tied { .. })
    }
}

impl Parameter {
    /// Creates a trainable parameter of 32 bits with one use, which is added by [`Registry::add`].
    /// Matrices have weight decay.
    pub fn new(name: impl Into<String>, shape: &[usize], init: Init) -> Self {
        let (name, shape) = (name.into(), shape.to_vec());
        let weight_decay = if shape.len() > 1 { WeightDecay::OfOptimizer } else { WeightDecay::None };
        Self {
            name,
            shape,
            shard: None,
            init,
            dtype: Dtype::F32,
            trainable: true,
            lr_scale: 1.0,
            weight_decay,
            partial_grad: false,
            use_count: 1,
            domain: Domain::Dense,
            sign_rate: None,
            residency: Residency::Own,
        }
    }

    /// Makes this the rank's part of a sharded tensor, whose other dimensions are those of the
    /// parameter.
    ///
    /// # Panics
    /// Panics if the parameter has no such dimension.
    pub fn with_shard(mut self, cut: ShardSpec) -> Self {
        self.shape[cut.dim] = cut.local_size();
        self.shard = Some(cut);
        self
    }

    /// Returns the parameter as rank `part` of the tensor parallel group holds it.
    pub fn for_rank(&self, part: usize) -> Self {
        // The shape stays, because all shards have one size, with padding in the last ones.
        let cut = self.shard.as_ref().map(|cut| ShardSpec { shard_index: part, ..cut.clone() });
        Self { shard: cut, ..self.clone() }
    }

    /// Returns the number of elements on this rank, including padding.
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the shape of the whole tensor, without padding.
    pub fn global_shape(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        if let Some(cut) = &self.shard {
            shape[cut.dim] = cut.global_size;
        }
        shape
    }

    /// Returns the elements that other tensor parallel ranks have too, because there are fewer
    /// heads of keys and values than ranks. They are the last ones, and usually none.
    pub fn repeated_elements(&self) -> Range<usize> {
        match &self.shard {
            Some(cut) if cut.repeats > 1 => {
                let row: usize = self.shape[1..].iter().product();
                let rows = cut.repeated_range();
                rows.start * row..rows.end * row
            }
            _ => self.count()..self.count(),
        }
    }

    /// Returns the number of elements, from the first on, that rank `tensor_rank` of the tensor
    /// parallel group counts in norms and saves. Another rank does so for the others.
    pub fn counted_elements(&self, tensor_rank: usize) -> usize {
        match &self.shard {
            None if tensor_rank > 0 => 0,
            Some(cut) if !cut.is_first_copy() => self.repeated_elements().start,
            _ => self.count(),
        }
    }

    /// Returns the index in the whole tensor of this rank's element `index`; `None` for padding.
    pub fn global_index(&self, index: usize) -> Option<usize> {
        let Some(cut) = &self.shard else { return Some(index) };
        let inner: usize = self.shape[cut.dim + 1..].iter().product();
        let (row, column) = (index / inner, index % inner);
        let (outer, along) = (row / cut.local_size(), row % cut.local_size());
        cut.global_index(along).map(|along| (outer * cut.global_size + along) * inner + column)
    }

    /// Returns this rank's index of element `index` of the whole tensor; `None` if only other ranks
    /// have it.
    pub fn local_index(&self, index: usize) -> Option<usize> {
        let Some(cut) = &self.shard else { return Some(index) };
        let inner: usize = self.shape[cut.dim + 1..].iter().product();
        let (row, column) = (index / inner, index % inner);
        let (outer, along) = (row / cut.global_size, row % cut.global_size);
        cut.local_index(along).map(|along| (outer * cut.local_size() + along) * inner + column)
    }

    /// Writes the initial values of the elements `range` to `into`. The values are equal on every
    /// rank.
    pub fn initialize(&self, seed: u64, range: Range<usize>, into: &mut [f32]) {
        // Values depend on the name and the position in the whole tensor, so that all shardings
        // start alike (docs/decisions/0007-strategies-hear-three-events.md).
        let stream = init::stream(seed, &self.name);
        for (value, index) in into.iter_mut().zip(range) {
            *value = self.global_index(index).map_or(0.0, |index| self.init.value(stream, index as u64));
        }
    }
}

/// Parameters that a strategy gathers, frees and reports together: a layer of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Path in the model.
    pub name: String,
    /// Range of its parameters.
    pub parameters: Range<usize>,
    /// Parameters of other units that it also uses, as a head with the embedding's weights does.
    pub shared: Vec<ParameterId>,
    /// False if another pipeline stage computes it.
    pub is_own: bool,
}

/// All parameters and units of a model, as one rank holds them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inventory {
    /// Parameters by [`ParameterId`].
    pub parameters: Vec<Parameter>,
    /// Units by [`UnitId`].
    pub units: Vec<Unit>,
}

impl Inventory {
    /// Returns the number of elements on this rank, including padding of shards.
    pub fn count(&self) -> usize {
        let here = self.parameters.iter().filter(|parameter| parameter.residency.is_here());
        here.map(Parameter::count).sum()
    }

    /// Returns the parameter with this name.
    pub fn find(&self, name: &str) -> Option<ParameterId> {
        self.parameters.iter().position(|parameter| parameter.name == name).map(ParameterId)
    }

    /// Keeps the units that `is_own` selects, for a rank of a pipeline. Numbers stay those of the
    /// whole model.
    pub fn keep_units(&mut self, is_own: impl Fn(UnitId) -> bool) {
        self.units.iter_mut().enumerate().for_each(|(number, unit)| unit.is_own = is_own(UnitId(number)));
        let mut uses = vec![[0; 2]; self.parameters.len()];
        let mut first = vec![None; self.parameters.len()];
        for unit in (0..self.units.len()).map(UnitId) {
            for id in self.parameters_of(unit) {
                uses[id.0][usize::from(is_own(unit))] += 1;
                first[id.0].get_or_insert(is_own(unit));
            }
        }
        for ((parameter, [others, own_uses]), first) in self.parameters.iter_mut().zip(uses).zip(first) {
            parameter.use_count = own_uses;
            // Experts of other ranks are on no stage of this rank, whichever units it keeps.
            if !parameter.residency.is_here() {
                continue;
            }
            parameter.residency = match (others, own_uses) {
                (_, 0) => Residency::Elsewhere,
                (0, _) => Residency::Own,
                _ => Residency::Tied { is_owner: first == Some(true) },
            };
        }
    }

    /// Returns the units that this rank has, in order.
    pub fn own_units(&self) -> impl DoubleEndedIterator<Item = UnitId> + '_ {
        (0..self.units.len()).map(UnitId).filter(|&unit| self[unit].is_own)
    }

    /// Returns the parameters that a unit uses: its own, and those of other units that it shares.
    pub fn parameters_of(&self, unit: UnitId) -> impl DoubleEndedIterator<Item = ParameterId> + '_ {
        let unit = &self[unit];
        unit.parameters.clone().map(ParameterId).chain(unit.shared.iter().copied())
    }

    /// Returns the parameters that a unit uses, without those that are elsewhere.
    pub fn present_of(&self, unit: UnitId) -> impl DoubleEndedIterator<Item = ParameterId> + '_ {
        self.parameters_of(unit).filter(|&id| self[id].residency.is_here())
    }

    /// Returns an inventory in which all other parameters are elsewhere. Numbers stay those of the
    /// whole model, and so do the uses of a parameter.
    pub fn restrict(&self, is_part: impl Fn(ParameterId) -> bool) -> Self {
        let mut part = self.clone();
        for (number, parameter) in part.parameters.iter_mut().enumerate() {
            if !is_part(ParameterId(number)) {
                parameter.residency = Residency::Elsewhere;
            }
        }
        part
    }

    /// Returns true if this rank has parameters of experts.
    pub fn has_experts(&self) -> bool {
        let here = self.parameters.iter().filter(|parameter| parameter.residency.is_here());
        here.into_iter().any(|parameter| parameter.domain == Domain::Expert)
    }

    /// Returns the unit of a parameter.
    pub fn unit_of(&self, id: ParameterId) -> UnitId {
        UnitId(self.units.partition_point(|unit| unit.parameters.end <= id.0))
    }
}

impl std::ops::Index<ParameterId> for Inventory {
    type Output = Parameter;

    fn index(&self, id: ParameterId) -> &Parameter {
        &self.parameters[id.0]
    }
}

impl std::ops::Index<UnitId> for Inventory {
    type Output = Unit;

    fn index(&self, id: UnitId) -> &Unit {
        &self.units[id.0]
    }
}

/// Collects parameters while modules are created.
///
/// Each block of a model opens a [`Registry::unit`], in forward order, and its modules add their
/// parameters. All ranks that divide a model must add the same ones in the same order.
///
/// ```
/// use unisono_nn::parameter::{Init, Parameter, Registry};
///
/// let mut registry = Registry::default();
/// let (unit, weight) = registry.unit("head", |registry| {
///     let weight = Parameter::new("weight", &[2, 3], Init::Ones);
///     registry.scope("map", |registry| registry.add(weight))
/// });
/// let inventory = registry.finish();
/// assert_eq!(inventory[weight].name, "head.map.weight");
/// assert_eq!((inventory.count(), inventory.unit_of(weight)), (6, unit));
/// ```
#[derive(Default)]
pub struct Registry {
    inventory: Inventory,
    names: HashSet<String>,
    path: Vec<String>,
    partial_grads: bool,
}

impl Registry {
    /// Opens a unit for the parameters that `make` adds. Returns its number, and the result of
    /// `make`.
    ///
    /// # Panics
    /// Panics within another unit.
    pub fn unit<R>(&mut self, name: &str, make: impl FnOnce(&mut Self) -> R) -> (UnitId, R) {
        self.unit_at(name, name, make)
    }

    /// Opens a unit whose parameters have a path other than its name, or none.
    ///
    /// # Panics
    /// Panics within another unit.
    pub fn unit_at<R>(&mut self, name: &str, path: &str, make: impl FnOnce(&mut Self) -> R) -> (UnitId, R) {
        assert!(self.path.is_empty(), "units do not nest");
        let (id, start) = (UnitId(self.inventory.units.len()), self.inventory.parameters.len());
        let unit = Unit { name: name.to_owned(), parameters: start..start, shared: Vec::new(), is_own: true };
        // The unit is there before its parameters, because `share_parameter` adds to the last unit.
        self.inventory.units.push(unit);
        let made = self.scope(path, make);
        self.inventory.units[id.0].parameters.end = self.inventory.parameters.len();
        (id, made)
    }

    /// Prefixes the names of the parameters that `make` adds. An empty name adds no prefix.
    pub fn scope<R>(&mut self, name: &str, make: impl FnOnce(&mut Self) -> R) -> R {
        self.path.push(name.to_owned());
        let made = make(self);
        self.path.pop();
        made
    }

    /// Adds a parameter to the open unit, under the open path, which becomes a part of its name.
    ///
    /// # Panics
    /// Panics outside of a unit, or for a duplicate name.
    pub fn add(&mut self, mut parameter: Parameter) -> ParameterId {
        assert!(!self.path.is_empty(), "a parameter belongs to a unit");
        let path = self.path();
        let dot = if path.is_empty() { "" } else { "." };
        parameter.name = format!("{path}{dot}{}", parameter.name);
        parameter.partial_grad |= self.partial_grads;
        assert!(self.names.insert(parameter.name.clone()), "two parameters named {}", parameter.name);
        self.inventory.parameters.push(parameter);
        ParameterId(self.inventory.parameters.len() - 1)
    }

    /// Returns the open path.
    pub fn path(&self) -> String {
        let names: Vec<_> = self.path.iter().filter(|name| !name.is_empty()).map(String::as_str).collect();
        names.join(".")
    }

    /// Marks the parameters that `make` adds as having partial gradients on tensor parallel ranks,
    /// if `is` is true.
    pub fn with_partial_grads<R>(&mut self, is: bool, make: impl FnOnce(&mut Self) -> R) -> R {
        let outer = std::mem::replace(&mut self.partial_grads, is);
        let made = make(self);
        self.partial_grads = outer;
        made
    }

    /// Returns the inventory of the parameters added so far.
    pub fn inventory_so_far(&self) -> &Inventory {
        &self.inventory
    }

    /// Returns a seed for the random operation `name` under the open path.
    pub fn rng_site(&self, name: &str) -> u64 {
        init::stream(0, &format!("{}.{name}", self.path.join(".")))
    }

    /// Records that the open unit also uses a parameter of an earlier unit.
    ///
    /// # Panics
    /// Panics if no unit was opened yet, or if there is no such parameter.
    pub fn share_parameter(&mut self, id: ParameterId) {
        self.inventory.parameters[id.0].use_count += 1;
        self.inventory.units.last_mut().expect("within a unit").shared.push(id);
    }

    /// Removes the gradient of every parameter that `is_frozen` selects.
    pub fn freeze(&mut self, is_frozen: impl Fn(&str) -> bool) {
        for parameter in &mut self.inventory.parameters {
            parameter.trainable &= !is_frozen(&parameter.name);
        }
    }

    /// Freezes the parameters that `patterns` match, by their own path or that of a module around
    /// them. `*` matches one component of a path, and one or more at the start.
    ///
    /// # Errors
    /// Fails for a pattern without a match, and suggests similar names.
    pub fn freeze_all(&mut self, patterns: &[String]) -> Result<()> {
        // All patterns are checked first, so that a wrong one leaves every parameter as it was.
        patterns.iter().try_for_each(|pattern| self.check_match(pattern, "nothing to freeze"))?;
        self.freeze(|name| patterns.iter().any(|pattern| pattern::selects(pattern, name)));
        match self.inventory.parameters.iter().any(|parameter| parameter.trainable) {
            true => Ok(()),
            false => Err(Error::invalid(format!("{patterns:?} freeze everything: nothing is left to train"))),
        }
    }

    /// Sets the weight type of every parameter that `is_meant` selects.
    pub fn set_dtype(&mut self, dtype: Dtype, is_meant: impl Fn(&Parameter) -> bool) {
        for parameter in self.inventory.parameters.iter_mut().filter(|parameter| is_meant(parameter)) {
            parameter.dtype = dtype;
        }
    }

    /// Returns the complete inventory.
    pub fn finish(self) -> Inventory {
        self.inventory
    }
}

#[cfg(test)]
mod tests;
