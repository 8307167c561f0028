//! The variables of a model, in an order that is the same on all ranks.

use crate::collective;
use crate::error::{Error, Result};
use candle_core::Var;
use candle_nn::VarMap;
use unisono::Communicator;

/// The variables of a model, in an order that is the same on all ranks.
///
/// A `VarMap` gives its variables in another order in every process. Its names have one order.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_nn::{VarBuilder, VarMap};
/// use unisono_candle::Params;
///
/// let map = VarMap::new();
/// let builder = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
/// let layer = candle_nn::linear(3, 2, builder.pp("head"))?;
/// let params = Params::from(&map);
/// assert_eq!(params.names(), ["head.bias", "head.weight"]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Params {
    names: Vec<String>,
    vars: Vec<Var>,
}

impl Params {
    /// Returns the names, in order. Variables given without a map have their numbers as names.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the variables, in order.
    pub fn vars(&self) -> &[Var] {
        &self.vars
    }

    /// Returns the variables that have gradients.
    pub(crate) fn trained(&self) -> impl Iterator<Item = &Var> {
        self.vars.iter().filter(|var| var.dtype().is_float())
    }

    /// Returns an error unless all ranks have the same variables.
    pub(crate) fn check_equal(&self, comm: &Communicator) -> Result<()> {
        let mut fingerprints = vec![0; comm.size()];
        comm.all_gather(&[self.fingerprint()], &mut fingerprints)?;
        let unequal_rank = fingerprints.iter().position(|fingerprint| *fingerprint != fingerprints[0]);
        unequal_rank.map_or(Ok(()), |other| Err(Error::DifferentModels { rank: comm.rank(), other }))
    }

    /// Copies the variables of rank `root` to all ranks.
    pub(crate) fn broadcast(&self, comm: &Communicator, root: usize) -> Result<()> {
        self.vars.iter().try_for_each(|var| collective::broadcast(comm, var, root))
    }

    /// Returns a number that is equal for equal names, shapes and types: FNV-1a of their text.
    fn fingerprint(&self) -> u64 {
        let described = |(name, var): (&String, &Var)| format!("{name} {:?} {:?};", var.dims(), var.dtype());
        let text: String = self.names.iter().zip(&self.vars).map(described).collect();
        text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }
}

impl From<&VarMap> for Params {
    /// Takes the variables in the order of their names.
    fn from(map: &VarMap) -> Self {
        let data = map.data().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut named: Vec<(String, Var)> =
            data.iter().map(|(name, var)| (name.clone(), var.clone())).collect();
        named.sort_by(|(name, _), (other, _)| name.cmp(other));
        let (names, vars) = named.into_iter().unzip();
        Self { names, vars }
    }
}

impl From<Vec<Var>> for Params {
    /// Takes the variables in this order, which must be the same on all ranks.
    fn from(vars: Vec<Var>) -> Self {
        Self { names: (0..vars.len()).map(|number| number.to_string()).collect(), vars }
    }
}
