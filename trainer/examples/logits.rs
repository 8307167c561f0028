//! Computes the logits of a model in Hugging Face's layout: `cargo run --release -p unisono-trainer
//! --example logits -- FOLDER TOKENS.u16 LOGITS.f32` for one sequence of tokens.
//!
//! The output has 32-bit floats, one row of classes for each token.

use std::path::Path;
use std::sync::Arc;
use unisono_nn::allocator::Allocator;
use unisono_nn::parameter::Registry;
use unisono_nn::pass::{Pass, Seeds};
use unisono_parallel::data_parallel::{ParallelKind, ProcessGroups, Settings, new_strategy};
use unisono_parallel::tensor_parallel::TensorParallel;
use unisono_trainer::checkpoint::SavedBy;
use unisono_trainer::data::{TokenFile, TokenSource};
use unisono_trainer::models::Gpt;
use unisono_trainer::models::hugging_face::{self, Layout};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, tokens, output] = &arguments[..] else { return Err("FOLDER TOKENS LOGITS".into()) };
    let config = hugging_face::read_folder(Path::new(folder))?;
    let (layout, vocabulary) = (Layout::of(&config), config.vocabulary as u32);

    let (mut registry, memory) = (Registry::default(), Allocator::default());
    let model = Gpt::new(&mut registry, config, TensorParallel::default())?;
    let inventory = Arc::new(registry.finish());
    let (kind, alone) = (ParallelKind::Replicated, ProcessGroups::default());
    let mut strategy = new_strategy(kind, &inventory, alone, &Settings::default(), &memory)?;
    let who = SavedBy::default();
    hugging_face::load(Path::new(folder), layout, who, &mut *strategy, &inventory)?;

    let file = TokenFile::open(Path::new(tokens), vocabulary)?;
    let mut tokens = vec![0; file.count()];
    file.read(0, &mut tokens)?;
    let mut pass = Pass::new(&mut *strategy, &memory, Seeds::default(), 1);
    let logits = model.logits(&mut pass, &tokens, tokens.len())?;
    let bytes: Vec<u8> = logits.data().iter().flat_map(|logit| logit.to_le_bytes()).collect();
    std::fs::write(output, bytes)?;
    println!("{} rows of {} logits", logits.rows(), logits.columns());
    Ok(())
}
