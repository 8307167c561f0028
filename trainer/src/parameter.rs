//! What there is to train: named parameters, in units that are needed and done with together.

mod init;
pub(crate) mod pattern;
mod shard_spec;

pub use crate::parameter::shard_spec::ShardSpec;
pub use init::Init;

use crate::error::{Error, Result};
use crate::flat::Dtype;
use std::ops::Range;

/// A parameter's number, in the order in which forward uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParameterId(pub usize);

/// A unit's number, in the order of forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnitId(pub usize);

/// One named array of weights, as this rank holds it.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Its path in the model: `h.0.attn.c_attn.weight`.
    pub name: String,
    /// Extents of this rank's part, padding included.
    pub shape: Vec<usize>,
    /// How that is part of the whole, where tensor parallelism cuts it.
    pub shard: Option<ShardSpec>,
    /// How it starts.
    pub init: Init,
    /// In which type its weights are kept and sent.
    pub dtype: Dtype,
    /// Whether it has a gradient.
    pub trainable: bool,
    /// Whether weight decay applies: matrices, not biases and gains.
    pub weight_decay: bool,
    /// Whether each rank of a tensor-parallel group has a part of its gradient only: the whole is their sum.
    pub partial_grad: bool,
    /// How many modules add to its gradient in one backward pass; two for a tied embedding.
    pub use_count: usize,
}

impl Parameter {
    /// A trainable parameter of one use; matrices decay.
    pub fn new(name: impl Into<String>, shape: &[usize], init: Init) -> Self {
        let (name, shape, decays) = (name.into(), shape.to_vec(), shape.len() > 1);
        Self {
            name,
            shape,
            shard: None,
            init,
            dtype: Dtype::F32,
            trainable: true,
            weight_decay: decays,
            partial_grad: false,
            use_count: 1,
        }
    }

    /// As this rank's part of a whole that is cut so.
    pub fn with_shard(mut self, cut: ShardSpec) -> Self {
        self.shape[cut.dim] = cut.local_size();
        self.shard = Some(cut);
        self
    }

    /// What rank `part` of the tensor-parallel group has of it.
    pub fn for_rank(&self, part: usize) -> Self {
        let cut = self.shard.as_ref().map(|cut| ShardSpec { shard_index: part, ..cut.clone() });
        Self { shard: cut, ..self.clone() }
    }

    /// Number of elements at this rank, padding included.
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Extents of the whole, without padding.
    pub fn global_shape(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        if let Some(cut) = &self.shard {
            shape[cut.dim] = cut.global_size;
        }
        shape
    }

    /// Where this rank's element `index` is in the whole; none for padding.
    pub fn global_index(&self, index: usize) -> Option<usize> {
        let Some(cut) = &self.shard else { return Some(index) };
        let inner: usize = self.shape[cut.dim + 1..].iter().product();
        let (row, column) = (index / inner, index % inner);
        let (outer, along) = (row / cut.local_size(), row % cut.local_size());
        cut.global_index(along).map(|along| (outer * cut.global_size + along) * inner + column)
    }

    /// Where the whole's element `index` is at this rank; none if another rank has it.
    pub fn local_index(&self, index: usize) -> Option<usize> {
        let Some(cut) = &self.shard else { return Some(index) };
        let inner: usize = self.shape[cut.dim + 1..].iter().product();
        let (row, column) = (index / inner, index % inner);
        let (outer, along) = (row / cut.global_size, row % cut.global_size);
        cut.local_index(along).map(|along| (outer * cut.local_size() + along) * inner + column)
    }

    /// Puts the initial values of the elements `range` into `into`: the same, whoever computes them.
    pub fn initialize(&self, seed: u64, range: Range<usize>, into: &mut [f32]) {
        let stream = init::stream(seed, &self.name);
        for (value, index) in into.iter_mut().zip(range) {
            *value = self.global_index(index).map_or(0.0, |index| self.init.value(stream, index as u64));
        }
    }
}

/// Parameters that a strategy gathers, frees and reports together: a layer of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Its path in the model.
    pub name: String,
    /// Its parameters.
    pub parameters: Range<usize>,
    /// Units whose parameters it uses too: a head that shares the embedding's weights.
    pub shared_units: Vec<UnitId>,
}

/// All parameters and units of a model, as one rank holds them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inventory {
    /// By [`ParameterId`].
    pub parameters: Vec<Parameter>,
    /// By [`UnitId`].
    pub units: Vec<Unit>,
}

impl Inventory {
    /// Number of elements in all, padding of cuts included.
    pub fn count(&self) -> usize {
        self.parameters.iter().map(Parameter::count).sum()
    }

    /// The parameter of this name.
    pub fn find(&self, name: &str) -> Option<ParameterId> {
        self.parameters.iter().position(|parameter| parameter.name == name).map(ParameterId)
    }

    /// The unit that a parameter belongs to.
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

/// Collects parameters while modules are made.
#[derive(Default)]
pub struct Registry {
    inventory: Inventory,
    path: Vec<String>,
    partial_grads: bool,
}

impl Registry {
    /// Opens a unit: what `make` adds belongs to it.
    ///
    /// # Panics
    /// Within another unit.
    pub fn unit<R>(&mut self, name: &str, make: impl FnOnce(&mut Self) -> R) -> (UnitId, R) {
        self.unit_at(name, name, make)
    }

    /// Opens a unit whose parameters have another path than its name, or none.
    ///
    /// # Panics
    /// Within another unit.
    pub fn unit_at<R>(&mut self, name: &str, path: &str, make: impl FnOnce(&mut Self) -> R) -> (UnitId, R) {
        assert!(self.path.is_empty(), "units do not nest");
        let (id, start) = (UnitId(self.inventory.units.len()), self.inventory.parameters.len());
        let unit = Unit { name: name.to_owned(), parameters: start..start, shared_units: Vec::new() };
        self.inventory.units.push(unit);
        let made = self.scope(path, make);
        self.inventory.units[id.0].parameters.end = self.inventory.parameters.len();
        (id, made)
    }

    /// Prefixes the names of what `make` adds. An empty name adds nothing.
    pub fn scope<R>(&mut self, name: &str, make: impl FnOnce(&mut Self) -> R) -> R {
        self.path.push(name.to_owned());
        let made = make(self);
        self.path.pop();
        made
    }

    /// Adds a parameter to the unit that is open, under the path that is open.
    ///
    /// # Panics
    /// Outside any unit, or for a name that is there already.
    pub fn add(&mut self, mut parameter: Parameter) -> ParameterId {
        assert!(!self.path.is_empty(), "a parameter belongs to a unit");
        let path = self.path();
        let dot = if path.is_empty() { "" } else { "." };
        parameter.name = format!("{path}{dot}{}", parameter.name);
        parameter.partial_grad |= self.partial_grads;
        assert!(self.inventory.find(&parameter.name).is_none(), "two parameters named {}", parameter.name);
        self.inventory.parameters.push(parameter);
        ParameterId(self.inventory.parameters.len() - 1)
    }

    /// The path that is open.
    pub fn path(&self) -> String {
        let names: Vec<_> = self.path.iter().filter(|name| !name.is_empty()).map(String::as_str).collect();
        names.join(".")
    }

    /// Of what `make` adds, each rank of a tensor-parallel group has a part of the gradient only, if `is` so.
    pub fn with_partial_grads<R>(&mut self, is: bool, make: impl FnOnce(&mut Self) -> R) -> R {
        let before = std::mem::replace(&mut self.partial_grads, is);
        let made = make(self);
        self.partial_grads = before;
        made
    }

    /// All that has been added so far.
    pub fn inventory_so_far(&self) -> &Inventory {
        &self.inventory
    }

    /// A number of its own for something random named `name` under the path that is open.
    pub fn rng_site(&self, name: &str) -> u64 {
        init::stream(0, &format!("{}.{name}", self.path.join(".")))
    }

    /// Says that the unit which is open uses a parameter of an earlier one too.
    pub fn share_parameter(&mut self, id: ParameterId) {
        self.inventory.parameters[id.0].use_count += 1;
        let owner = self.inventory.unit_of(id);
        let open = self.inventory.units.last_mut().expect("within a unit");
        if !open.shared_units.contains(&owner) {
            open.shared_units.push(owner);
        }
    }

    /// Takes the gradient from every parameter that `is_frozen`.
    pub fn freeze(&mut self, is_frozen: impl Fn(&str) -> bool) {
        for parameter in &mut self.inventory.parameters {
            parameter.trainable &= !is_frozen(&parameter.name);
        }
    }

    /// As [`Registry::freeze`], of all that `patterns` name or are above of: `*` stands for one part of a path.
    ///
    /// # Errors
    /// For a pattern that names nothing, with the names that are near.
    pub fn freeze_all(&mut self, patterns: &[String]) -> Result<()> {
        let names = || self.inventory.parameters.iter().map(|parameter| parameter.name.as_str());
        let names_none = |pattern: &&String| !names().any(|name| pattern::matches_prefix(pattern, name));
        if let Some(pattern) = patterns.iter().find(names_none) {
            let near = pattern::suggestions(pattern, names().flat_map(pattern::with_ancestors));
            return Err(Error::invalid(format!("nothing to freeze is called `{pattern}`; near are {near}")));
        }
        self.freeze(|name| patterns.iter().any(|pattern| pattern::matches_prefix(pattern, name)));
        match self.inventory.parameters.iter().any(|parameter| parameter.trainable) {
            true => Ok(()),
            false => Err(Error::invalid(format!("{patterns:?} freeze everything: nothing is left to train"))),
        }
    }

    /// Keeps the weights of every parameter that `is_meant` in `dtype`.
    pub fn set_dtype(&mut self, dtype: Dtype, is_meant: impl Fn(&Parameter) -> bool) {
        for parameter in self.inventory.parameters.iter_mut().filter(|parameter| is_meant(parameter)) {
            parameter.dtype = dtype;
        }
    }

    /// All that was added.
    pub fn finish(self) -> Inventory {
        self.inventory
    }
}

#[cfg(test)]
mod tests;
