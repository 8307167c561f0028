//! The guide of the trainer has a place for every key of the configuration.

use std::path::Path;
use unisono_trainer::config::KeyDoc;

#[test]
fn every_key_of_the_configuration_is_in_the_guide() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/trainer.md");
    let guide = std::fs::read_to_string(path).expect("the guide");
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || ['_', '.'].contains(&letter);
    let words: Vec<&str> =
        guide.split(|letter| !is_name(letter)).map(|word| word.trim_end_matches('.')).collect();
    let keys: Vec<String> = KeyDoc::all().into_iter().map(|doc| doc.key).collect();
    let missing: Vec<&String> = keys.iter().filter(|key| !words.contains(&key.as_str())).collect();
    assert!(keys.len() > 100 && missing.is_empty(), "the guide does not name {missing:?}");
}
