//! Model of a configuration.

use crate::config::{Config, ModelKind};
use crate::error::{Error, Result};
use crate::flat::ProcessGroup;
use crate::models::{Classifier, Gpt, Model};
use crate::parameter::{Inventory, Registry};
use crate::tensor_parallel::TensorParallel;
use crate::train::data_loader::DataDims;

/// Models that a configuration can select.
pub enum Network {
    /// Language model.
    Gpt(Box<Gpt>),
    /// Classifier of rows.
    Classifier(Classifier),
}

impl Network {
    /// Creates the configured model for data of these dimensions, sharded over `tensor`, and lists
    /// its parameters.
    ///
    /// # Errors
    /// Fails if the settings do not fit together.
    pub fn new(
        config: &Config,
        extents: DataDims,
        tensor: Option<&ProcessGroup>,
    ) -> Result<(Self, Inventory)> {
        let mut registry = Registry::default();
        let network = match (config.model.kind, extents) {
            (ModelKind::Gpt, DataDims::Tokens(vocabulary)) => {
                let gpt = config.model.gpt_config(vocabulary);
                let split = TensorParallel::new(
                    tensor.cloned(),
                    config.strategy.sequence_parallel,
                    gpt.parallel_plan(),
                );
                Self::Gpt(Box::new(Gpt::new(&mut registry, gpt, split)?))
            }
            (ModelKind::Mlp, DataDims::Rows(features, classes)) if tensor.is_none() => {
                let sizes = [&[features], &config.model.hidden_sizes[..], &[classes]].concat();
                Self::Classifier(Classifier::mlp(&mut registry, &sizes))
            }
            (ModelKind::Gpt, DataDims::Rows(..)) => {
                return Err(Error::invalid("model.kind = \"gpt\" learns from text or tokens: see data.kind"));
            }
            (ModelKind::Mlp, DataDims::Tokens(_)) => {
                return Err(Error::invalid("model.kind = \"mlp\" learns from a table: see data.kind"));
            }
            (ModelKind::Mlp, DataDims::Rows(..)) => {
                return Err(Error::invalid("model.kind = \"mlp\" is not cut: set mesh.tensor to 1"));
            }
        };
        registry.freeze_all(&config.model.freeze)?;
        registry.set_groups(&config.optimizer.groups)?;
        registry.set_dtype(config.strategy.param_dtype, |_| true);
        Ok((network, registry.finish()))
    }

    /// Returns the model for the training loop.
    pub fn model(&self) -> &dyn Model {
        match self {
            Network::Gpt(gpt) => &**gpt,
            Network::Classifier(classifier) => classifier,
        }
    }

    /// Returns the language model, if it is one.
    pub fn gpt(&self) -> Option<&Gpt> {
        match self {
            Network::Gpt(gpt) => Some(gpt),
            Network::Classifier(_) => None,
        }
    }
}
