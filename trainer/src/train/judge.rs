//! How well a run goes: the loss on what was held back.

use super::run::Run;
use crate::data::{Sampler, Tail};
use crate::error::Result;
use crate::mesh::Phase;
use crate::pass::Pass;

impl Run {
    /// Mean loss of the first batches held back, the same samples on any number of ranks; none if there are none.
    ///
    /// # Errors
    /// Of collectives and files.
    pub fn validate(&mut self) -> Result<Option<f64>> {
        let Some(samples) = &self.feed.validation else { return Ok(None) };
        let (at, ranks) = (self.groups.coordinates().batch_data, self.groups.mesh().batch_data());
        let batch = self.config.data.global_batch as u64;
        let sampler = Sampler::new(samples.count(), batch, None, Tail::Pad)?.share(at, ranks)?;
        let batches: Vec<_> = sampler.take(self.config.log.validation_batches as usize).collect();
        let parts: Vec<_> = batches.iter().flat_map(|numbers| numbers.chunks(self.batch.micro)).collect();
        let mut sum = 0.0;
        for (part, numbers) in parts.iter().enumerate() {
            sum += self.loss(numbers, part as u64)?;
        }
        // A loss that is known may be of weights that never came.
        self.strategy.settle()?;
        let mut loss = sum / parts.len().max(1) as f64;
        self.mean(&mut loss)?;
        Ok((!parts.is_empty()).then_some(loss))
    }

    /// The loss of samples held back.
    fn loss(&mut self, numbers: &[u64], part: u64) -> Result<f64> {
        let samples = self.feed.validation.as_ref().expect("there are some");
        let batch = samples.batch(numbers, self.chunk())?;
        let seeds = self.seeding.pass(Phase::Validation, self.step, part);
        let mut pass = Pass::new(&mut *self.strategy, &self.memory, seeds, self.config.threads);
        pass.set_chunks(self.chunks.as_ref());
        pass.set_device(self.device.as_ref());
        let loss = pass.infer(|pass| self.network.model().forward(pass, &batch.as_batch()))?;
        Ok(f64::from(loss))
    }
}
