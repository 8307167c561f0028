//! Input layer of a GPT.

use crate::models::{GptConfig, Positions};
use unisono_nn::batch::TokenBatch;
use unisono_nn::error::Result;
use unisono_nn::model::{Block, Flow};
use unisono_nn::modules::{Dropout, Embedding, Module, row_positions};
use unisono_nn::parameter::{Init, ParameterId, Registry};
use unisono_nn::pass::Pass;
use unisono_parallel::tensor_parallel::{ReduceFromRegion, TensorParallel};

/// Embeddings of tokens and positions.
pub(super) struct Embeddings {
    tokens: Embedding,
    reduce_from_region: ReduceFromRegion,
    /// Learned positions; `None` if attention encodes them.
    positions: Option<Embedding>,
    /// Last position that the model has.
    last_position: usize,
    dropout: Dropout,
    split: TensorParallel,
}

impl Embeddings {
    pub(super) fn new(registry: &mut Registry, config: &GptConfig, split: &TensorParallel) -> Self {
        let (width, init) = (config.width, Init::Normal(0.02));
        let (_, (tokens, positions, dropout)) = registry.unit_at("embedding", "", |registry| {
            let (count, cut) = (config.vocabulary, split.shard(0, config.vocabulary, 1, 1));
            let tokens = registry.scope("wte", |r| Embedding::cut(r, count, width, init, cut));
            let positions = (config.positions == Positions::Learned).then(|| {
                split.sequence_parallel_region(registry, |r| {
                    r.scope("wpe", |r| Embedding::new(r, config.context, width, init))
                })
            });
            (tokens, positions, Dropout::new(registry, "drop", config.dropout, split.rng_stream()))
        });
        let (reduce_from_region, split) = (split.reduce_from_region(), split.clone());
        let last_position = config.context.saturating_sub(1);
        Self { tokens, reduce_from_region, positions, last_position, dropout, split }
    }

    /// Returns the parameter of the token embedding.
    pub(super) fn table(&self) -> ParameterId {
        self.tokens.weight()
    }
}

impl Block for Embeddings {
    fn forward(&self, pass: &mut Pass<'_>, _: Flow) -> Result<Flow> {
        let batch = pass.batch();
        let TokenBatch { inputs, .. } = batch.get()?;
        let (first, rows) = self.split.row_range(pass, inputs.len())?;
        let (places, sequence) = (row_positions(pass), pass.sequence());
        let summands = self.tokens.forward(pass, inputs.clone())?;
        let mut features = self.reduce_from_region.forward(pass, summands)?;
        if let Some(positions) = &self.positions {
            // Padding has no position of its own. Its rows have no gradient, so any will do.
            let place = |row: usize| places[row % sequence].min(self.last_position) as u32;
            let places = (first..first + rows).map(place).collect();
            features.add(&positions.forward(pass, places)?)?;
        }
        self.dropout.forward(pass, features).map(Flow::Features)
    }

    fn backward(&self, pass: &mut Pass<'_>, gradient: Flow) -> Result<Flow> {
        let gradient = self.dropout.backward(pass, gradient.into_features())?;
        self.positions.as_ref().map_or(Ok(()), |positions| positions.backward(pass, &gradient))?;
        let gradient = self.reduce_from_region.backward(pass, gradient)?;
        self.tokens.backward(pass, &gradient)?;
        Ok(Flow::Start)
    }
}
