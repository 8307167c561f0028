//! How the gradients of a group of ranks become their mean.

use crate::flat::{Dtype, Numbers, Peers};
use crate::memory::{Class, Memory};
use crate::parallel::Settings;
use serde::{Deserialize, Serialize};
use unisono::{Avg, Reduction, Result, Sum};

/// Where the division by the number of ranks is done. All three have the same results, to the rounding of the last bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Average {
    /// In the collective, on complete sums.
    InReduction,
    /// After the collective.
    After,
    /// In the loss, before backward: [`Average::loss_factor`] is what it is multiplied by.
    InLoss,
}

impl Average {
    /// What the loss must be multiplied by before backward, of each of so many ranks.
    pub fn loss_factor(self, ranks: usize) -> f32 {
        if self == Self::InLoss { 1.0 / ranks as f32 } else { 1.0 }
    }
}

/// Forms means of whole buckets over a data-parallel group.
#[derive(Clone)]
pub struct Mean {
    /// How many ranks.
    ranks: usize,
    average: Average,
    wire: Option<Dtype>,
    memory: Memory,
}

impl Mean {
    /// Over `ranks` ranks.
    pub fn new(ranks: usize, settings: &Settings, memory: &Memory) -> Self {
        Self { ranks, average: settings.average, wire: settings.wire, memory: memory.clone() }
    }

    /// The mean of `gradients` over all ranks.
    pub(super) fn all_reduce(&self, peers: Option<Peers<'_>>, gradients: Numbers) -> Result<Numbers> {
        let Some(peers) = peers else { return Ok(gradients) };
        let dtype = gradients.dtype();
        let mut sent = self.as_sent(gradients)?;
        sent.all_reduce(peers, self.reduction())?;
        self.received(sent, dtype)
    }

    /// This rank's share of the mean of `gradients` over all ranks.
    pub(super) fn reduce_scatter(&self, peers: Option<Peers<'_>>, gradients: Numbers) -> Result<Numbers> {
        let Some(peers) = peers else { return Ok(gradients) };
        let dtype = gradients.dtype();
        let sent = self.as_sent(gradients)?;
        let mut share = sent.alike(&self.memory, Class::Gradients, sent.len() / self.ranks)?;
        sent.reduce_scatter(&mut share, peers, self.reduction())?;
        drop(sent);
        self.received(share, dtype)
    }

    /// As [`Mean::reduce_scatter`], with the share in its place; the rest means nothing afterwards.
    pub(super) fn reduce_scatter_in_place(
        &self,
        peers: Option<Peers<'_>>,
        mut gradients: Numbers,
    ) -> Result<Numbers> {
        let Some(peers) = peers else { return Ok(gradients) };
        if self.wire.is_none_or(|wire| wire == gradients.dtype()) {
            gradients.reduce_scatter_in_place(peers, self.reduction())?;
            let dtype = gradients.dtype();
            return self.received(gradients, dtype);
        }
        let sent = gradients.converted(&self.memory, Class::Buffers, self.wire.expect("another type"))?;
        let count = sent.len() / self.ranks;
        let mut share = sent.alike(&self.memory, Class::Buffers, count)?;
        sent.reduce_scatter(&mut share, peers, self.reduction())?;
        let share = self.received(share, gradients.dtype())?;
        let place = peers.rank() * count;
        gradients.put(place..place + count, &share, 0..count)?;
        Ok(gradients)
    }

    fn as_sent(&self, gradients: Numbers) -> Result<Numbers> {
        match self.wire.filter(|&wire| wire != gradients.dtype()) {
            Some(wire) => gradients.converted(&self.memory, Class::Buffers, wire),
            None => Ok(gradients),
        }
    }

    fn received(&self, mut sums: Numbers, dtype: Dtype) -> Result<Numbers> {
        if sums.dtype() != dtype {
            sums = sums.converted(&self.memory, Class::Gradients, dtype)?;
        }
        if self.average == Average::After {
            sums.average(self.ranks as u32)?;
        }
        Ok(sums)
    }

    fn reduction(&self) -> Reduction {
        if self.average == Average::InReduction { Avg } else { Sum }
    }
}
