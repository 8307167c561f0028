//! Output layer of a GPT.

use crate::models::GptConfig;
use std::ops::Range;
use unisono::Sum;
use unisono_nn::allocator::F32Vec;
use unisono_nn::batch::{Batch, TokenBatch};
use unisono_nn::error::{Error, Result};
use unisono_nn::model::{Block, Flow};
use unisono_nn::modules::{CrossEntropy, Linear, Module};
use unisono_nn::parameter::{ParameterId, Registry, UnitId};
use unisono_nn::pass::Pass;
use unisono_nn::step_plan::Direction;
use unisono_nn::tensor::Tensor;
use unisono_parallel::context_parallel::ContextParallel;
use unisono_parallel::tensor_parallel::{CopyToRegion, TensorParallel, VocabParallelCrossEntropy};

/// Norm, linear layer to classes, and loss.
///
/// With one row group, it saves the gradient of the logits. With several, it saves the input of the
/// linear layer and one number per row, and recomputes the logits of each group in backward.
pub(super) struct LmHead {
    unit: UnitId,
    norm: Box<dyn Module>,
    copy_to_region: CopyToRegion,
    linear: Linear,
    loss: Loss,
    row_chunks: usize,
}

/// Values saved for backward with several row groups.
struct SavedHead {
    features: Tensor,
    targets: Vec<u32>,
    /// Log-sum-exp of the logits of each row.
    log_sums: F32Vec,
    share: f32,
}

impl LmHead {
    /// Creates the head. Its linear layer uses the weight `tokens` of the embedding if it is tied.
    pub(super) fn new(
        registry: &mut Registry,
        config: &GptConfig,
        tokens: ParameterId,
        split: &TensorParallel,
    ) -> Self {
        let (width, classes) = (config.width, config.vocabulary);
        let (unit, (norm, map)) = registry.unit_at("head", "", |registry| {
            let norm =
                split.sequence_parallel_region(registry, |registry| config.make_norm(registry, "ln_f"));
            let local = split.shard(0, classes, 1, 1).map_or(classes, |cut| cut.local_size());
            let start = config.init().without_bias();
            let map = registry.scope("lm_head", |registry| match config.tie_word_embeddings {
                true => Linear::tied(registry, tokens, width, local),
                false => split.vocab_linear(registry, width, classes, start),
            });
            (norm, map)
        });
        let (loss, parts) = (Loss::new(config, split), config.cross_entropy_splits);
        Self { unit, norm, copy_to_region: split.copy_to_region(), linear: map, loss, row_chunks: parts }
    }

    /// Computes the logits of this rank's classes.
    pub(super) fn logits(&self, pass: &mut Pass<'_>, features: Tensor) -> Result<Tensor> {
        pass.unit(self.unit, Direction::Forward, |pass| {
            let features = self.prepare(pass, features)?;
            self.linear.forward(pass, features)
        })
    }

    /// Computes the logits of the last row, for a batch without targets.
    fn last_logits(&self, pass: &mut Pass<'_>, features: &Tensor) -> Result<Tensor> {
        let rows = features.rows();
        // Only the token after the last row is wanted, so norm and linear layer compute one row.
        let last = features.slice_rows(pass.memory(), rows - 1..rows);
        let last = self.prepare(pass, last)?;
        self.linear.forward(pass, last)
    }

    /// Computes the input of the linear layer.
    fn prepare(&self, pass: &mut Pass<'_>, features: Tensor) -> Result<Tensor> {
        let features = self.norm.forward(pass, features)?;
        self.copy_to_region.forward(pass, features)
    }

    /// Computes the mean loss.
    fn loss(&self, pass: &mut Pass<'_>, features: Tensor, targets: &[u32]) -> Result<f32> {
        let (features, share) = (self.prepare(pass, features)?, self.loss.loss_scale(pass, targets)?);
        if self.row_chunks > 1 {
            pass.expect_host("a loss in several parts (model.cross_entropy_splits)")?;
            return self.forward_chunked(pass, features, targets, share);
        }
        let logits = self.linear.forward(pass, features)?;
        self.loss.forward_scaled(pass, logits, targets, share)
    }

    fn forward_chunked(
        &self,
        pass: &mut Pass<'_>,
        features: Tensor,
        targets: &[u32],
        share: f32,
    ) -> Result<f32> {
        let (mut log_sums, mut sum) = (pass.floats(features.rows()), 0.0);
        if targets.len() != features.rows() {
            let what = format!("{} targets for {} rows of logits", targets.len(), features.rows());
            return Err(Error::invalid(what));
        }
        for rows in self.parts(features.rows()) {
            let mut logits = self.logits_of(pass, &features, rows.clone())?;
            sum += self.loss.loss_sum(pass, &mut logits, &targets[rows.clone()], &mut log_sums[rows])?;
        }
        pass.save(SavedHead { features, targets: targets.to_vec(), log_sums, share });
        Ok((sum * f64::from(share)) as f32)
    }

    /// Returns the rows of each group.
    fn parts(&self, rows: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let rows_per_group = rows.div_ceil(self.row_chunks).max(1);
        (0..rows).step_by(rows_per_group).map(move |start| start..rows.min(start + rows_per_group))
    }

    fn logits_of(&self, pass: &mut Pass<'_>, features: &Tensor, rows: Range<usize>) -> Result<Tensor> {
        let part = features.slice_rows(pass.memory(), rows);
        // Nothing is saved for backward here, because the features of all groups are saved once.
        pass.no_grad(|pass| self.linear.forward(pass, part))
    }

    /// Computes the gradient of `factor` times the loss with respect to the features.
    fn features_grad(&self, pass: &mut Pass<'_>, factor: f32) -> Result<Tensor> {
        let gradient = if self.row_chunks > 1 {
            self.backward_chunked(pass, factor)?
        } else {
            let gradient = self.loss.backward(pass, factor)?;
            self.linear.backward(pass, gradient)?
        };
        let gradient = self.copy_to_region.backward(pass, gradient)?;
        self.norm.backward(pass, gradient)
    }

    /// Replaces features by their gradient, group by group.
    fn backward_chunked(&self, pass: &mut Pass<'_>, factor: f32) -> Result<Tensor> {
        let SavedHead { mut features, targets, log_sums, share } = pass.restore();
        for rows in self.parts(features.rows()) {
            let mut logits = self.logits_of(pass, &features, rows.clone())?;
            let (targets, log_sums) = (&targets[rows.clone()], &log_sums[rows.clone()]);
            self.loss.logits_grad(&mut logits, targets, log_sums, factor * share);
            let part = features.slice_rows(pass.memory(), rows.clone());
            let gradient = self.linear.backward_chunk(pass, part, &logits)?;
            // No later group reads these rows, so their gradient needs no memory of its own.
            features.write_rows(rows, &gradient);
        }
        // A gradient that is reported can be reduced at once, so the report waits for the last
        // group.
        self.linear.grads_ready(pass)?;
        Ok(features)
    }
}

impl Block for LmHead {
    fn forward(&self, pass: &mut Pass<'_>, input: Flow) -> Result<Flow> {
        let batch = pass.batch();
        let TokenBatch { targets, .. } = batch.get()?;
        let features = input.into_features();
        if targets.is_empty() {
            return self.last_logits(pass, &features).map(Flow::Features);
        }
        self.loss(pass, features, targets).map(Flow::Loss)
    }

    fn backward(&self, pass: &mut Pass<'_>, gradient: Flow) -> Result<Flow> {
        self.features_grad(pass, gradient.into_loss()).map(Flow::Features)
    }
}

/// Loss of logits that are whole or sharded.
enum Loss {
    Full(CrossEntropy),
    VocabParallel(VocabParallelCrossEntropy),
}

impl Loss {
    fn new(config: &GptConfig, split: &TensorParallel) -> Self {
        match (split.group(), split.shard(0, config.vocabulary, 1, 1)) {
            (Some(group), Some(cut)) => {
                Self::VocabParallel(VocabParallelCrossEntropy::new(group.clone(), cut, config.ignore_index))
            }
            _ => Self::Full(CrossEntropy { ignore_index: config.ignore_index }),
        }
    }

    fn ignore(&self) -> Option<u32> {
        match self {
            Self::Full(loss) => loss.ignore_index,
            Self::VocabParallel(loss) => loss.ignore_index,
        }
    }

    /// Returns the weight of each row in the loss. For S ranks with chunks of the same sequences,
    /// K micro-sequences and N counted targets in all, it is S K / N. The mean of the losses of
    /// ranks and micro-sequences is then the mean over all rows, however targets are distributed.
    fn loss_scale(&self, pass: &Pass<'_>, targets: &[u32]) -> Result<f32> {
        if self.ignore().is_none() {
            // All ranks count equally many targets then, so they need no exchange.
            return Ok(1.0 / targets.len().max(1) as f32);
        }
        let is_counted = |target: &&u32| Some(**target) != self.ignore();
        let counted = |batch: Batch| {
            batch.get().map_or(0, |batch: &TokenBatch| batch.targets.iter().filter(is_counted).count() as u64)
        };
        let mut parts = pass.micro_sequences();
        let micro_sequences = pass.whole_micro_batch() * parts..(pass.whole_micro_batch() + 1) * parts;
        let mut count = [micro_sequences.map(|index| counted(pass.batch_of(index))).sum::<u64>()];
        if let Some(group) = ContextParallel::ranks_of(pass) {
            group.all_reduce(&mut count, Sum)?;
            parts *= group.size();
        }
        Ok(parts as f32 / count[0].max(1) as f32)
    }

    fn forward_scaled(
        &self,
        pass: &mut Pass<'_>,
        logits: Tensor,
        targets: &[u32],
        share: f32,
    ) -> Result<f32> {
        match self {
            Self::Full(loss) => loss.forward_scaled(pass, logits, targets, share),
            Self::VocabParallel(loss) => loss.forward_scaled(pass, logits, targets, share),
        }
    }

    fn loss_sum(
        &self,
        pass: &Pass<'_>,
        logits: &mut Tensor,
        targets: &[u32],
        sums: &mut [f32],
    ) -> Result<f64> {
        match self {
            Self::Full(loss) => loss.loss_sum(logits, targets, sums),
            Self::VocabParallel(loss) => loss.loss_sum(pass, logits, targets, sums),
        }
    }

    fn logits_grad(&self, logits: &mut Tensor, targets: &[u32], sums: &[f32], factor: f32) {
        match self {
            Self::Full(loss) => loss.logits_grad(logits, targets, sums, factor),
            Self::VocabParallel(loss) => loss.logits_grad(logits, targets, sums, factor),
        }
    }

    fn backward(&self, pass: &mut Pass<'_>, factor: f32) -> Result<Tensor> {
        match self {
            Self::Full(loss) => loss.backward(pass, factor),
            Self::VocabParallel(loss) => loss.backward(pass, factor),
        }
    }
}
