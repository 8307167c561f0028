//! Reasons for which a run would be refused on this machine, found without reading its data.

use crate::config::{Config, DataKind};
use crate::data::{Sampler, text};
use crate::train::data_loader::{DataLoader, check_exists};
use crate::train::preflight::check_earlier_run;
use std::path::Path;
use unisono_nn::error::Result;

/// Returns the refusals, one per line; empty if there is none. A prediction may be for other
/// machines, so these are told beside it.
pub(super) fn on_this_machine(config: &Config) -> String {
    let checks = [check_data(config), check_tokenizer(config), check_earlier_run(config)];
    let refusals = checks.into_iter().filter_map(Result::err);
    refusals.map(|error| error.to_string()).collect::<Vec<_>>().join("\n")
}

fn check_data(config: &Config) -> Result<()> {
    let data = &config.data;
    match data.kind {
        DataKind::Text => {
            check_exists("data.path", &data.path)?;
            text::documents(Path::new(&data.path), &data.extensions).map(drop)
        }
        DataKind::Tokens => {
            let samples = DataLoader::open(config)?.training.count();
            Sampler::new(samples, data.global_batch as u64, None, data.last_batch).map(drop)
        }
    }
}

fn check_tokenizer(config: &Config) -> Result<()> {
    config.data.open_tokenizer().map(drop)
}
