//! Fuzz targets: the files of a model.

use super::config::Provenance;
use super::files::{WeightFiles, paths_of_index};
use super::layout::Layout;
use super::{config, generation, read};
use std::path::Path;
use unisono_nn::parameter::{Init, Inventory, Parameter};

/// Reads bytes as `config.json`, as the other files of a model's folder, and as the index of
/// several files.
pub(crate) fn fuzz(bytes: &[u8]) {
    let (text, folder) = (String::from_utf8_lossy(bytes), Path::new("folder"));
    crate::data::special_tokens::fuzz(bytes);
    let _ = config::generation_text(folder, bytes, &[3]);
    let _ = config::tokenizer_config_text(folder, bytes);
    let _ = generation::generation_settings(folder, bytes);
    if let Ok(model) = config::parse(&text, folder) {
        let _ = Layout::of(&model);
        let known = Provenance { source: Some(bytes), start: Some(1), ends: &[3], ..Provenance::default() };
        let _ = config::config_text(folder, &model, &known);
        let _ = config::with_family(&model, Some(bytes));
        assert!(model.kv_width() <= model.query_width() && model.head_dim() <= model.query_width());
    }
    if let Ok(paths) = paths_of_index(&text, folder) {
        assert!(paths.iter().all(|path| path.parent() == Some(folder)));
    }
}

/// Reads a file of weights.
pub(crate) fn weights(path: &Path) {
    let Ok(mut files) = WeightFiles::open(path) else { return };
    let parameters =
        ["wte.weight", "h.0.attn.c_attn.weight"].map(|name| Parameter::new(name, &[4, 6], Init::Zeros));
    for parameter in parameters {
        let inventory = Inventory { parameters: vec![parameter], units: Vec::new() };
        if read::check_shapes(&files, Layout::Gpt2, &inventory).is_ok() {
            let mut weights = [0.0; 24];
            let _ =
                read::fill_weights(&mut files, Layout::Gpt2, &inventory.parameters[0], 0..24, &mut weights);
        }
    }
}
