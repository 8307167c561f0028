//! How the gradients of a group of ranks become their mean.

use crate::flat::{Dtype, Numbers};
use crate::memory::{Class, Memory};
use crate::parallel::Settings;
use serde::{Deserialize, Serialize};
use unisono::{Avg, Communicator, Reduction, Result, Sum};

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
    pub(super) fn all_reduce(&self, group: Option<&Communicator>, gradients: Numbers) -> Result<Numbers> {
        let Some(group) = group else { return Ok(gradients) };
        let dtype = gradients.dtype();
        let mut sent = self.as_sent(gradients);
        sent.all_reduce(group, self.reduction())?;
        Ok(self.received(sent, dtype))
    }

    /// This rank's share of the mean of `gradients` over all ranks.
    pub(super) fn reduce_scatter(&self, group: Option<&Communicator>, gradients: Numbers) -> Result<Numbers> {
        let Some(group) = group else { return Ok(gradients) };
        let dtype = gradients.dtype();
        let sent = self.as_sent(gradients);
        let mut share = Numbers::new(&self.memory, Class::Gradients, sent.dtype(), sent.len() / self.ranks);
        sent.reduce_scatter(&mut share, group, self.reduction())?;
        drop(sent);
        Ok(self.received(share, dtype))
    }

    /// As [`Mean::reduce_scatter`], with the share in its place; the rest means nothing afterwards.
    pub(super) fn reduce_scatter_in_place(
        &self,
        group: Option<&Communicator>,
        mut gradients: Numbers,
    ) -> Result<Numbers> {
        let Some(comm) = group else { return Ok(gradients) };
        if self.wire.is_none_or(|wire| wire == gradients.dtype()) {
            gradients.reduce_scatter_in_place(comm, self.reduction())?;
            let dtype = gradients.dtype();
            return Ok(self.received(gradients, dtype));
        }
        let sent = gradients.converted(&self.memory, Class::Buffers, self.wire.expect("another type"));
        let count = sent.len() / self.ranks;
        let mut share = Numbers::new(&self.memory, Class::Buffers, sent.dtype(), count);
        sent.reduce_scatter(&mut share, comm, self.reduction())?;
        let share = self.received(share, gradients.dtype());
        let place = comm.rank() * count;
        gradients.narrow(place..place + count, &share.view(&self.memory, 0..count));
        Ok(gradients)
    }

    fn as_sent(&self, gradients: Numbers) -> Numbers {
        match self.wire.filter(|&wire| wire != gradients.dtype()) {
            Some(wire) => gradients.converted(&self.memory, Class::Buffers, wire),
            None => gradients,
        }
    }

    fn received(&self, mut sums: Numbers, dtype: Dtype) -> Numbers {
        if sums.dtype() != dtype {
            sums = sums.converted(&self.memory, Class::Gradients, dtype);
        }
        if self.average == Average::After {
            sums.average(self.ranks as u32);
        }
        sums
    }

    fn reduction(&self) -> Reduction {
        if self.average == Average::InReduction { Avg } else { Sum }
    }
}
