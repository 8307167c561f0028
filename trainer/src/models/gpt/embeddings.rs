//! Input layer of a GPT.

use crate::error::Result;
use crate::models::GptConfig;
use crate::nn::{Dropout, Embedding, Module};
use crate::parameter::{Init, ParameterId, Registry, UnitId};
use crate::pass::Pass;
use crate::strategy::Direction;
use crate::tensor::Tensor;
use crate::tensor_parallel::{ReduceFromRegion, TensorParallel};

/// Embeddings of tokens and positions.
pub(super) struct Embeddings {
    unit: UnitId,
    tokens: Embedding,
    reduce_from_region: ReduceFromRegion,
    positions: Embedding,
    dropout: Dropout,
}

impl Embeddings {
    pub(super) fn new(registry: &mut Registry, config: &GptConfig, split: &TensorParallel) -> Self {
        let (width, init) = (config.width, Init::Normal(0.02));
        let (unit, (tokens, positions, dropout)) = registry.unit_at("embedding", "", |registry| {
            let (count, cut) = (config.vocabulary, split.shard(0, config.vocabulary, 1, 1));
            let tokens = registry.scope("wte", |r| Embedding::cut(r, count, width, init, cut));
            let positions = split.sequence_parallel_region(registry, |r| {
                r.scope("wpe", |r| Embedding::new(r, config.context, width, init))
            });
            (tokens, positions, Dropout::new(registry, "drop", config.dropout, split.rng_stream()))
        });
        Self { unit, tokens, reduce_from_region: split.reduce_from_region(), positions, dropout }
    }

    /// Returns the parameter of the token embedding.
    pub(super) fn table(&self) -> ParameterId {
        self.tokens.weight()
    }

    pub(super) fn forward_each(
        &self,
        pass: &mut Pass<'_>,
        tokens: Vec<Vec<u32>>,
        split: &TensorParallel,
    ) -> Result<Vec<Tensor>> {
        pass.unit(self.unit, Direction::Forward, |pass| {
            pass.each(tokens, |pass, tokens| self.forward(pass, tokens, split))
        })
    }

    fn forward(&self, pass: &mut Pass<'_>, tokens: Vec<u32>, split: &TensorParallel) -> Result<Tensor> {
        let (first, rows) = split.row_range(pass, tokens.len())?;
        let (place, sequence) = (pass.position_offset(), pass.sequence());
        let positions = (first..first + rows).map(|row| (place + row % sequence) as u32).collect();
        let summands = self.tokens.forward(pass, tokens)?;
        let mut features = self.reduce_from_region.forward(pass, summands)?;
        let places = self.positions.forward(pass, positions)?;
        features.add(&places)?;
        self.dropout.forward(pass, features)
    }

    pub(super) fn backward_each(&self, pass: &mut Pass<'_>, gradients: Vec<Tensor>) -> Result<()> {
        pass.unit(self.unit, Direction::Backward, |pass| {
            pass.each(gradients, |pass, gradient| self.backward(pass, gradient)).map(drop)
        })
    }

    fn backward(&self, pass: &mut Pass<'_>, gradient: Tensor) -> Result<()> {
        let gradient = self.dropout.backward(pass, gradient)?;
        self.positions.backward(pass, &gradient)?;
        let gradient = self.reduce_from_region.backward(pass, gradient)?;
        self.tokens.backward(pass, &gradient)
    }
}
