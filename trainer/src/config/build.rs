//! The model, the optimizer and the tokenizer that a configuration describes.

use crate::config::{Config, Data, OptimizerKind};
use crate::data::{TextCodec, Tokenizer};
use crate::models::Gpt;
use std::path::Path;
use unisono_nn::error::Result;
use unisono_nn::parameter::{Inventory, Registry};
use unisono_nn::process_group::ProcessGroup;
use unisono_parallel::experts::ExpertParallel;
use unisono_parallel::optimizer::{AdamW, Muon, Optimizer, Sgd};
use unisono_parallel::tensor_parallel::TensorParallel;

/// Creates the configured model, sharded over `tensor`, and lists its parameters.
///
/// # Errors
/// Fails if the settings do not fit together.
pub fn new_model(config: &Config, tensor: Option<&ProcessGroup>) -> Result<(Gpt, Inventory)> {
    new_model_with_experts(config, tensor, ExpertParallel::default())
}

/// Creates a model as [`new_model`] does, whose experts are shared as `experts` says.
///
/// # Errors
/// Fails if the settings do not fit together.
pub(crate) fn new_model_with_experts(
    config: &Config,
    tensor: Option<&ProcessGroup>,
    experts: ExpertParallel,
) -> Result<(Gpt, Inventory)> {
    let mut registry = Registry::default();
    let gpt = config.gpt_config();
    let plan = gpt.parallel_plan();
    let split = TensorParallel::new(tensor.cloned(), config.strategy.sequence_parallel, plan);
    let model = Gpt::with_experts(&mut registry, gpt, split, experts)?;
    registry.freeze_all(&config.model.freeze)?;
    registry.set_groups(&config.optimizer.groups)?;
    // Biases of routers change by less than 16 bits can tell.
    registry.set_dtype(config.strategy.param_dtype, |parameter| parameter.sign_rate.is_none());
    Ok((model, registry.finish()))
}

/// Creates the configured optimizer.
pub(crate) fn optimizer(config: &Config) -> Box<dyn Optimizer> {
    let settings = &config.optimizer;
    let (momentum, decay) = (settings.momentum as f32, settings.weight_decay as f32);
    let betas = (settings.beta1 as f32, settings.beta2 as f32);
    let adamw = AdamW { betas, epsilon: settings.epsilon as f32, weight_decay: decay };
    match settings.kind {
        OptimizerKind::Adamw => Box::new(adamw),
        OptimizerKind::Sgd => Box::new(Sgd { momentum, weight_decay: decay }),
        OptimizerKind::Muon => {
            Box::new(Muon { momentum, weight_decay: decay, fallback: adamw, ..Muon::default() })
        }
    }
}

impl Config {
    /// Returns the map between text and the tokens of a model with this vocabulary; `None` if its
    /// tokens have no text.
    ///
    /// # Errors
    /// The errors of [`Data::open_tokenizer`].
    pub fn text_codec(&self, vocabulary: usize) -> Result<Option<TextCodec>> {
        self.data.open_tokenizer().map(|tokenizer| TextCodec::new(tokenizer, vocabulary))
    }
}

impl Data {
    /// Opens the configured tokenizer; `None` if there is none.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or lacks the token of `data.end_of_text`.
    pub fn open_tokenizer(&self) -> Result<Option<Tokenizer>> {
        if self.tokenizer.is_empty() {
            return Ok(None);
        }
        let tokenizer = Tokenizer::open(Path::new(&self.tokenizer))?;
        match self.end_of_text.as_str() {
            "" => Ok(Some(tokenizer)),
            token => tokenizer.with_end_of_text(token).map(Some),
        }
    }
}
