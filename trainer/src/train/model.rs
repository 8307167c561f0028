//! Model of a configuration.

use crate::config::Config;
use crate::error::Result;
use crate::flat::ProcessGroup;
use crate::models::Gpt;
use crate::parameter::{Inventory, Registry};
use crate::tensor_parallel::TensorParallel;

/// Creates the configured model, sharded over `tensor`, and lists its parameters.
///
/// # Errors
/// Fails if the settings do not fit together.
pub fn new_model(config: &Config, tensor: Option<&ProcessGroup>) -> Result<(Gpt, Inventory)> {
    let mut registry = Registry::default();
    let gpt = config.gpt_config();
    let plan = gpt.parallel_plan();
    let split = TensorParallel::new(tensor.cloned(), config.strategy.sequence_parallel, plan);
    let model = Gpt::new(&mut registry, gpt, split)?;
    registry.freeze_all(&config.model.freeze)?;
    registry.set_groups(&config.optimizer.groups)?;
    registry.set_dtype(config.strategy.param_dtype, |_| true);
    Ok((model, registry.finish()))
}
