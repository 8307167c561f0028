//! Where a GPT ends.

use crate::error::{Error, Result};
use crate::memory::Floats;
use crate::models::GptConfig;
use crate::nn::{CrossEntropy, Linear, Module};
use crate::parameter::{ParameterId, Registry, UnitId};
use crate::pass::Pass;
use crate::split::{Enter, Split, SplitCrossEntropy};
use crate::strategy::Way;
use crate::tensor::Tensor;
use std::ops::Range;
use unisono::Sum;

/// Norm, map to classes, and loss.
///
/// Whole, it keeps the gradient of the logits. In several parts of the rows, it keeps what the map gets and a number for each row:
/// in backward the logits of each part are computed again.
pub(super) struct Head {
    unit: UnitId,
    norm: Box<dyn Module>,
    enter: Enter,
    map: Linear,
    loss: Loss,
    parts: usize,
}

/// What is kept between the ways in several parts.
struct Kept {
    features: Tensor,
    targets: Vec<u32>,
    /// ln of the sum of the powers of the logits of each row.
    log_sums: Floats,
    share: f32,
}

impl Head {
    /// Whose map has the weight of the embedding, `tokens`, if it is tied.
    pub(super) fn new(
        registry: &mut Registry,
        config: &GptConfig,
        tokens: ParameterId,
        split: &Split,
    ) -> Self {
        let (width, classes) = (config.width, config.vocabulary);
        let (unit, (norm, map)) = registry.unit_at("head", "", |registry| {
            let norm = split.on_rows(registry, |registry| config.make_norm(registry, "ln_f"));
            let local = split.cut(0, classes, 1, 1).map_or(classes, |cut| cut.local());
            let start = config.start().without_bias();
            let map = registry.scope("lm_head", |registry| match config.tied {
                true => Linear::tied(registry, tokens, width, local),
                false => split.classes(registry, width, classes, start),
            });
            (norm, map)
        });
        let (loss, parts) = (Loss::new(config, split), config.cross_entropy_splits);
        Self { unit, norm, enter: split.enter(), map, loss, parts }
    }

    /// The logits of the classes that this rank has.
    pub(super) fn logits(&self, pass: &mut Pass<'_>, features: Tensor) -> Result<Tensor> {
        pass.unit(self.unit, Way::Forward, |pass| {
            let features = self.prepare(pass, features)?;
            self.map.forward(pass, features)
        })
    }

    /// The mean loss of each micro-batch.
    pub(super) fn forward_each(
        &self,
        pass: &mut Pass<'_>,
        features: Vec<Tensor>,
        targets: Vec<&[u32]>,
    ) -> Result<Vec<f32>> {
        let pairs = features.into_iter().zip(targets).collect();
        pass.unit(self.unit, Way::Forward, |pass| {
            pass.each(pairs, |pass, (features, targets)| self.forward(pass, features, targets))
        })
    }

    /// What the map gets.
    fn prepare(&self, pass: &mut Pass<'_>, features: Tensor) -> Result<Tensor> {
        let features = self.norm.forward(pass, features)?;
        self.enter.forward(pass, features)
    }

    fn forward(&self, pass: &mut Pass<'_>, features: Tensor, targets: &[u32]) -> Result<f32> {
        let (features, share) = (self.prepare(pass, features)?, self.loss.share(pass, targets)?);
        if self.parts > 1 {
            pass.expect_host("a loss in several parts (model.cross_entropy_splits)")?;
            return self.forward_in_parts(pass, features, targets, share);
        }
        let logits = self.map.forward(pass, features)?;
        self.loss.shared(pass, logits, targets, share)
    }

    fn forward_in_parts(
        &self,
        pass: &mut Pass<'_>,
        features: Tensor,
        targets: &[u32],
        share: f32,
    ) -> Result<f32> {
        let (mut log_sums, mut sum) = (pass.floats(features.rows()), 0.0);
        if targets.len() != features.rows() {
            let what = format!("{} targets for {} rows of logits", targets.len(), features.rows());
            return Err(Error::illegal(what));
        }
        for rows in self.parts(features.rows()) {
            let mut logits = self.logits_of(pass, &features, rows.clone())?;
            sum += self.loss.sum(pass, &mut logits, &targets[rows.clone()], &mut log_sums[rows])?;
        }
        pass.save(Kept { features, targets: targets.to_vec(), log_sums, share });
        Ok((sum * f64::from(share)) as f32)
    }

    /// The rows of each part.
    fn parts(&self, rows: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let most = rows.div_ceil(self.parts).max(1);
        (0..rows).step_by(most).map(move |start| start..rows.min(start + most))
    }

    fn logits_of(&self, pass: &mut Pass<'_>, features: &Tensor, rows: Range<usize>) -> Result<Tensor> {
        let part = features.part(pass.memory(), rows);
        pass.infer(|pass| self.map.forward(pass, part))
    }

    /// The gradient of `factor` times the loss of each micro-batch, with respect to its features.
    pub(super) fn backward_each(&self, pass: &mut Pass<'_>, factor: f32) -> Result<Vec<Tensor>> {
        let each = vec![(); pass.count()];
        pass.unit(self.unit, Way::Backward, |pass| pass.each(each, |pass, ()| self.backward(pass, factor)))
    }

    fn backward(&self, pass: &mut Pass<'_>, factor: f32) -> Result<Tensor> {
        let gradient = if self.parts > 1 {
            self.backward_in_parts(pass, factor)?
        } else {
            let gradient = self.loss.backward(pass, factor)?;
            self.map.backward(pass, gradient)?
        };
        let gradient = self.enter.backward(pass, gradient)?;
        self.norm.backward(pass, gradient)
    }

    /// Features become their gradient, part by part.
    fn backward_in_parts(&self, pass: &mut Pass<'_>, factor: f32) -> Result<Tensor> {
        let Kept { mut features, targets, log_sums, share } = pass.restore();
        for rows in self.parts(features.rows()) {
            let mut logits = self.logits_of(pass, &features, rows.clone())?;
            let (targets, log_sums) = (&targets[rows.clone()], &log_sums[rows.clone()]);
            self.loss.slopes(&mut logits, targets, log_sums, factor * share);
            let part = features.part(pass.memory(), rows.clone());
            let gradient = self.map.backward_part(pass, part, &logits);
            features.put(rows, &gradient);
        }
        self.map.ready(pass)?;
        Ok(features)
    }
}

/// The loss of logits that are whole, or cut.
enum Loss {
    Whole(CrossEntropy),
    Split(SplitCrossEntropy),
}

impl Loss {
    fn new(config: &GptConfig, split: &Split) -> Self {
        match (split.group(), split.cut(0, config.vocabulary, 1, 1)) {
            (Some(group), Some(cut)) => {
                Self::Split(SplitCrossEntropy::new(group.clone(), cut, config.ignore))
            }
            _ => Self::Whole(CrossEntropy { ignore: config.ignore }),
        }
    }

    fn ignore(&self) -> Option<u32> {
        match self {
            Self::Whole(loss) => loss.ignore,
            Self::Split(loss) => loss.ignore,
        }
    }

    /// What the loss of each row counts. Of S ranks that have chunks of the same sequences, with N targets in all that count, it
    /// is S / N: so the mean of their losses is that of all rows, however the targets that count are spread.
    fn share(&self, pass: &Pass<'_>, targets: &[u32]) -> Result<f32> {
        let mut count = [targets.iter().filter(|target| Some(**target) != self.ignore()).count() as u64];
        let mut ranks = 1;
        if let (Some(group), Some(_)) = (pass.chunks(), self.ignore()) {
            group.all_reduce(&mut count, Sum)?;
            ranks = group.ranks();
        }
        Ok(ranks as f32 / count[0].max(1) as f32)
    }

    fn shared(&self, pass: &mut Pass<'_>, logits: Tensor, targets: &[u32], share: f32) -> Result<f32> {
        match self {
            Self::Whole(loss) => loss.shared(pass, logits, targets, share),
            Self::Split(loss) => loss.shared(pass, logits, targets, share),
        }
    }

    fn sum(&self, pass: &Pass<'_>, logits: &mut Tensor, targets: &[u32], sums: &mut [f32]) -> Result<f64> {
        match self {
            Self::Whole(loss) => loss.sum(logits, targets, sums),
            Self::Split(loss) => loss.sum(pass, logits, targets, sums),
        }
    }

    fn slopes(&self, logits: &mut Tensor, targets: &[u32], sums: &[f32], factor: f32) {
        match self {
            Self::Whole(loss) => loss.slopes(logits, targets, sums, factor),
            Self::Split(loss) => loss.slopes(logits, targets, sums, factor),
        }
    }

    fn backward(&self, pass: &mut Pass<'_>, factor: f32) -> Result<Tensor> {
        match self {
            Self::Whole(loss) => loss.backward(pass, factor),
            Self::Split(loss) => loss.backward(pass, factor),
        }
    }
}
