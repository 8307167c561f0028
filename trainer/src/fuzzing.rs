//! Fuzz targets: the parsers of files, of texts of the kernel and of numbers of other ranks, each
//! as one function of bytes.
//!
//! A parser must end without a panic on all bytes, and take no more memory than they justify.
//! `cargo xtask fuzz` searches for bytes that violate this.

use std::io::Write;
use std::path::Path;
use unisono_transports::sys::private_file;
use unisono_transports::testing::seeds::Target;

/// The parsers, each with its name.
pub const TARGETS: &[Target] = &[
    ("configuration", crate::config::fuzz),
    ("manifest", crate::checkpoint::fuzz_manifest),
    ("tensor_file", tensor_file),
    ("model_config", crate::models::hugging_face::fuzz),
    ("tokenizer", crate::data::fuzz_tokenizer),
    ("token_file", token_file),
    ("topology", unisono_plan::planner::fuzz_topology),
    ("measurements", unisono_plan::cost::fuzz_measurements),
    ("step_records", crate::train::fuzz_records),
    ("host_texts", host_texts),
    ("expert_choices", unisono_parallel::experts::fuzz),
];

/// Reads bytes as a file of tensors: of a checkpoint, and of weights.
fn tensor_file(bytes: &[u8]) {
    with_file("safetensors", bytes, |path| {
        crate::checkpoint::fuzz_shard(path);
        crate::models::hugging_face::fuzz_weights(path);
    });
}

/// Reads bytes as a file of tokens, of which the first byte gives the width. From 128 on, the rest
/// is an index of Megatron as far as the second byte says, in units of eight bytes, and then
/// tokens.
fn token_file(bytes: &[u8]) {
    let Some((width, tokens)) = bytes.split_first() else { return };
    let extension = ["u8", "u16", "u32", "bin"][usize::from(width % 4)];
    let Some((length, tail)) = tokens.split_first().filter(|_| *width >= 128) else {
        return with_file(extension, tokens, crate::data::fuzz_tokens);
    };
    let (index, tokens) = tail.split_at(tail.len().min(8 * usize::from(*length)));
    with_file("bin", tokens, |path| {
        let index_path = path.with_extension("idx");
        private_file::create(&index_path).and_then(|mut file| file.write_all(index)).expect("a file");
        crate::data::fuzz_tokens(path);
        std::fs::remove_file(index_path).expect("the file");
    });
}

/// Reads bytes as files of `/proc` and `/sys`, and as the environment of a rank.
fn host_texts(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    unisono_parallel::mesh::fuzz_cores(&text);
    crate::available_memory::fuzz(&text);
    let value = |name: &str| text.split('\0').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let _ = unisono_nn::device::local_rank(|name| value(name).map(str::to_owned));
}

/// Calls a function with the path of a file of these bytes, which is removed afterwards.
fn with_file(extension: &str, bytes: &[u8], call: impl FnOnce(&Path)) {
    let thread = std::thread::current().id();
    let name = format!("unisono-fuzz-{}-{thread:?}.{extension}", std::process::id());
    let path = std::env::temp_dir().join(name);
    private_file::create(&path).and_then(|mut file| file.write_all(bytes)).expect("a file");
    call(&path);
    std::fs::remove_file(&path).expect("the file");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use unisono_transports::testing::seeds::{parse_changed_seeds, parse_seeds};

    #[test]
    fn parsers_accept_every_corpus_seed() {
        parse_seeds(TARGETS);
    }

    #[test]
    fn parsers_survive_changed_corpus_seeds() {
        parse_changed_seeds(TARGETS, 100);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn parsers_survive_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200), text: String) {
            for (_, parse) in TARGETS {
                parse(&bytes);
                parse(text.as_bytes());
            }
        }
    }
}
