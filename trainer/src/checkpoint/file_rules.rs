//! Files of a model's folder in Hugging Face's layout, and how each is treated.

use crate::data::TOKENIZER;
use crate::data::special_tokens::{GENERATION_CONFIG, MODEL_CONFIG, SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG};
use FileRule::{LeftOut, OfModel, OfTokenizer, Refused};
use std::path::Path;
use unisono_nn::error::{Error, Result};

/// Treatment of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileRule {
    /// The file belongs to the model: checkpoints keep it, and an export writes it.
    OfModel,
    /// The file belongs to the tokenizer, and is kept in the same way.
    OfTokenizer,
    /// The folder is refused, for this reason and with this remedy.
    Refused(&'static str),
    /// The file is left out, and a run says so at its start, with this reason.
    LeftOut(&'static str),
}

const ADAPTER: &str = "\
    an adapter (PEFT), with which the weights of the folder are not those of the model: merge it, with \
    AutoPeftModelForCausalLM.from_pretrained(FOLDER).merge_and_unload().save_pretrained(OTHER), and name OTHER";
const QUANTIZED: &str = "\
    the weights of the folder are quantized, and weights in f32, f16 or bf16 are read here: name the folder of the \
    model that was quantized";
const CODE: &str = "\
    code is neither run nor exported: the model is computed as the class of transformers computes it";

/// Rules of files and folders, by name. A `*` at the start stands for any text.
///
/// Weights (`model*.safetensors`) and `tokenizer.json` are read in any case. Files without a rule,
/// such as a README, the state of an optimizer or weights in other formats, are no part of the
/// model.
const RULES: [(&str, FileRule); 22] = [
    (MODEL_CONFIG, OfModel),
    (GENERATION_CONFIG, OfModel),
    ("preprocessor_config.json", OfModel),
    ("processor_config.json", OfModel),
    ("video_preprocessor_config.json", OfModel),
    (TOKENIZER_CONFIG, OfTokenizer),
    (SPECIAL_TOKENS_MAP, OfTokenizer),
    ("added_tokens.json", OfTokenizer),
    ("chat_template.jinja", OfTokenizer),
    ("chat_template.json", OfTokenizer),
    ("merges.txt", OfTokenizer),
    ("tekken.json", OfTokenizer),
    ("tokenizer.model", OfTokenizer),
    ("tokenizer.model.v3", OfTokenizer),
    ("vocab.json", OfTokenizer),
    ("adapter_config.json", Refused(ADAPTER)),
    ("adapter_model.bin", Refused(ADAPTER)),
    ("adapter_model.safetensors", Refused(ADAPTER)),
    ("quant_config.json", Refused(QUANTIZED)),
    ("quantize_config.json", Refused(QUANTIZED)),
    ("*.py", LeftOut(CODE)),
    ("custom_generate", LeftOut(CODE)),
];

/// Files of which each is the vocabulary of a tokenizer, in place of `tokenizer.json`.
const VOCABULARIES: [&str; 4] = ["tekken.json", "tokenizer.model", "tokenizer.model.v3", "vocab.json"];

/// Returns the names of the files that checkpoints keep and whose rule `is_wanted` selects.
pub(super) fn kept_names(is_wanted: impl Fn(FileRule) -> bool) -> impl Iterator<Item = &'static str> {
    let kept = RULES.into_iter().filter(|(_, rule)| matches!(rule, OfModel | OfTokenizer));
    kept.filter(move |(_, rule)| is_wanted(*rule)).map(|(name, _)| name)
}

/// Returns the names of the files with which a folder is refused.
pub(crate) fn refused_names() -> impl Iterator<Item = &'static str> {
    RULES.into_iter().filter(|(_, rule)| matches!(rule, Refused(_))).map(|(name, _)| name)
}

/// Checks that the model in a folder is the one that its `config.json` and its weights describe.
///
/// # Errors
/// Names a file because of which it is not, with a remedy.
pub(crate) fn check_source(folder: &Path) -> Result<()> {
    for (name, rule) in RULES {
        let path = folder.join(name);
        if let Refused(what) = rule
            && path.symlink_metadata().is_ok()
        {
            return Err(Error::file(path, what));
        }
    }
    Ok(())
}

/// Returns a note on each file in a folder that says how to use the model and is left out.
pub(crate) fn left_out(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let note = |name: &String| reason_to_leave_out(name).map(|reason| format!("{name}: {reason}"));
    let mut notes: Vec<_> = names.iter().filter_map(note).collect();
    let vocabulary = names.iter().find(|name| VOCABULARIES.contains(&name.as_str()));
    if let Some(name) = vocabulary
        && !names.iter().any(|name| name == TOKENIZER)
    {
        notes.push(format!(
            "{name}: of tokenizers, only {TOKENIZER} is read here, so that no text is encoded or generated: write it with \
             AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        ));
    }
    notes
}

fn reason_to_leave_out(name: &str) -> Option<&'static str> {
    let is_of = |pattern: &str| match pattern.strip_prefix('*') {
        Some(end) => name.ends_with(end),
        None => name == pattern,
    };
    RULES.into_iter().find_map(|(pattern, rule)| match rule {
        LeftOut(reason) if is_of(pattern) => Some(reason),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_with_adapters_or_quantized_weights_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        check_source(folder.path()).unwrap();
        for (name, words) in [
            ("adapter_config.json", "merge_and_unload"),
            ("adapter_model.safetensors", "an adapter (PEFT)"),
            ("quantize_config.json", "are quantized"),
        ] {
            std::fs::write(folder.path().join(name), "{}").unwrap();
            let error = check_source(folder.path()).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(words), "{error}");
            std::fs::remove_file(folder.path().join(name)).unwrap();
        }
    }

    #[test]
    fn files_that_are_left_out_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let add = |name: &str| std::fs::write(folder.path().join(name), "{}").unwrap();
        ["config.json", "README.md", "pytorch_model.bin", "merges.txt"].into_iter().for_each(add);
        assert_eq!(left_out(folder.path()), [""; 0]);
        ["modeling_phi3.py", "vocab.json"].into_iter().for_each(add);
        let notes = left_out(folder.path());
        assert!(notes[0].starts_with("modeling_phi3.py: code is neither run nor exported"), "{notes:?}");
        assert!(notes[1].starts_with("vocab.json: of tokenizers, only tokenizer.json is read"), "{notes:?}");
        add(TOKENIZER);
        assert_eq!(left_out(folder.path()), notes[..1]);
        assert_eq!(left_out(&folder.path().join("none")), [""; 0]);
    }
}
