//! Validation loss of a run.

use crate::data::{LastBatch, Sampler};
use crate::train::run::Run;
use crate::train::step::run_program;
use unisono_nn::batch::Batch;
use unisono_nn::error::Result;
use unisono_nn::model;
use unisono_nn::pass::Pass;
use unisono_parallel::mesh::{GroupKind, Phase};

impl Run {
    /// Returns the mean loss of the first validation batches; `None` if there are none. The samples
    /// do not depend on the number of ranks.
    ///
    /// # Errors
    /// Fails if a collective or a file fails.
    pub fn validate(&mut self) -> Result<Option<f64>> {
        let Some(samples) = &self.loader.validation else { return Ok(None) };
        let (rank, ranks) = (self.groups.coordinates().batch_data, self.groups.mesh().batch_data_size());
        let batch = self.config.data.global_batch as u64;
        // Samples are not shuffled, so that the losses after different steps are those of the same
        // ones.
        let sampler = Sampler::new(samples.count(), batch, None, LastBatch::Pad)?.with_shard(rank, ranks)?;
        let batches: Vec<_> = sampler.take(self.config.log.validation_batches as usize).collect();
        let parts: Vec<_> =
            batches.iter().flat_map(|numbers| numbers.chunks(self.batch.micro_batch)).collect();
        let mut sum = 0.0;
        for (part, numbers) in parts.iter().enumerate() {
            sum += self.validation_loss(numbers, part as u64)?;
        }
        // Weights may still be on their way when the loss is known.
        self.strategy.wait_all()?;
        let mut loss = sum / parts.len().max(1) as f64;
        self.all_reduce_means(std::slice::from_mut(&mut loss))?;
        Ok((!parts.is_empty()).then_some(loss))
    }

    /// Returns the loss of validation samples.
    fn validation_loss(&mut self, numbers: &[u64], part: u64) -> Result<f64> {
        let samples = self.loader.validation.as_ref().expect("there are some");
        let batch = samples.batch(numbers, self.sequence_chunk())?;
        let seeds = self.seeds.seeds_for(Phase::Validation, self.train_step, part);
        let mut pass = Pass::new(&mut *self.strategy, &self.memory, seeds, self.config.threads);
        self.config.context.share_sequences(&mut pass, self.sequence_group.as_ref());
        pass.set_device(self.device.as_ref());
        let model = &self.model;
        model::set_batches(model, &mut pass, vec![Batch::new(batch)])?;
        let (program, stages) = (&self.validation, self.groups.get(GroupKind::Pipeline));
        pass.begin_step(&program.plan)?;
        let losses = pass.no_grad(|pass| run_program(model, pass, program, stages, 0.0))?;
        Ok(f64::from(losses[0]))
    }
}
