//! The parsers of texts and notes from outside, each as one function of bytes: whatever they are, it ends and does not panic,
//! and what it makes of them comes back from what is written of it. `fuzz/run` looks for bytes that show otherwise.

use crate::config::Config;
use crate::rendezvous::{UniqueId, fuzzing as meeting};
use crate::select::Table;

/// One of them.
pub type Parse = fn(&[u8]);

/// Them, by name.
pub const TARGETS: &[(&str, Parse)] = &[
    ("note", crate::engine::fuzz_notes),
    ("introduction", |bytes| meeting::introduction(&String::from_utf8_lossy(bytes))),
    ("verdict", |bytes| meeting::verdict(&String::from_utf8_lossy(bytes))),
    ("id", id),
    ("table", table),
    ("setting", setting),
];

fn id(bytes: &[u8]) {
    if let Ok(id) = String::from_utf8_lossy(bytes).parse::<UniqueId>() {
        let again: UniqueId = id.to_string().parse().expect("what was written");
        assert_eq!(again.to_string(), id.to_string());
    }
}

fn table(bytes: &[u8]) {
    if let Ok(table) = Table::parse(&String::from_utf8_lossy(bytes)) {
        let again = Table::parse(&table.to_string()).expect("what was written");
        assert_eq!(again.to_string(), table.to_string());
    }
}

/// `NAME=value`, as in the environment; a table would be read from a file.
fn setting(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut config = Config::default();
    match text.split_once('=') {
        Some((name, value)) if name != "TABLE" => drop(config.set(name, value)),
        _ => {}
    }
    // Whatever can be set can be laid out, or is refused.
    let _ = unisono_transports::shm::Layout::new(2, &config.geometry());
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Words that such texts have, in any order and with anything between.
    fn text() -> impl Strategy<Value = String> {
        const WORDS: [&str; 28] = [
            "table",
            "failed",
            "ready",
            "missing",
            "world",
            "settings",
            "died",
            "0",
            "1",
            "2,3",
            "18446744073709551615",
            "127.0.0.1:80",
            "[fe80::1%2]:65535",
            "\n",
            "\0",
            "\x1f",
            " ",
            "/",
            "=",
            "#",
            "any",
            "windows",
            "ring",
            "all_reduce",
            "SLOT_BYTES",
            "TIMEOUT_MS",
            "00000000000000000000000000000000",
            "é",
        ];
        let word =
            prop_oneof![4 => prop::sample::select(&WORDS[..]).prop_map(str::to_owned), 1 => any::<String>()];
        prop::collection::vec(word, 0..24).prop_map(|words| words.concat())
    }

    proptest! {
        #[test]
        fn whatever_comes_is_parsed_without_panic_and_survives_being_written(text in text(), bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for (_, parse) in TARGETS {
                parse(text.as_bytes());
                parse(&bytes);
            }
        }
    }

    #[test]
    fn every_parser_has_seeds_and_survives_them() {
        for (name, parse) in TARGETS {
            let seeds =
                std::fs::read_dir(format!("{}/fuzz/corpus/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap();
            let seeds: Vec<_> = seeds.map(|seed| std::fs::read(seed.unwrap().path()).unwrap()).collect();
            assert!(!seeds.is_empty(), "{name}");
            seeds.iter().for_each(|seed| parse(seed));
        }
    }

    #[test]
    fn every_setting_of_any_number_can_be_laid_out_or_is_refused() {
        for name in [
            "SLOTS",
            "SLOT_BYTES",
            "HEAP_BYTES",
            "WINDOW_BYTES",
            "CHANNELS",
            "SOCKETS",
            "TIMEOUT_MS",
            "GPU_SLOT_BYTES",
        ] {
            for value in [0, 1, 4096, 1 << 46, usize::MAX / 2, usize::MAX] {
                setting(format!("{name}={value}").as_bytes());
            }
        }
    }
}
