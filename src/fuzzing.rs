//! Fuzz targets: the parsers of untrusted texts and messages, each as one function of bytes.
//!
//! A parser must end without a panic on all bytes. A value that it accepts must survive being
//! written and parsed again. `cargo xtask fuzz` searches for bytes that violate this.

use crate::bootstrap::UniqueId;
use crate::bootstrap::fuzzing as bootstrap;
use crate::bootstrap::invitation::Invitation;
use crate::config::Config;
use crate::select::TuningTable;

/// A parser as a function of bytes.
pub type ParserFn = fn(&[u8]);

/// The parsers, each with its name.
pub const TARGETS: &[(&str, ParserFn)] = &[
    ("control_msg", crate::engine::fuzz_control_msg),
    ("messages", crate::engine::fuzz_messages),
    ("join_request", |bytes| bootstrap::join_request(&String::from_utf8_lossy(bytes))),
    ("root_reply", |bytes| bootstrap::root_reply(&String::from_utf8_lossy(bytes))),
    ("unique_id", id),
    ("tuning_table", table),
    ("setting", setting),
];

/// Parses a text of a store or of another rank: an id, or an invitation.
fn id(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(id) = text.parse::<UniqueId>() {
        let again: UniqueId = id.to_string().parse().expect("what was written");
        assert_eq!(again.to_string(), id.to_string());
    }
    if let Ok(invitation) = text.parse::<Invitation>() {
        assert_eq!(invitation.to_string().parse::<Invitation>().ok(), Some(invitation));
    }
}

fn table(bytes: &[u8]) {
    if let Ok(table) = TuningTable::parse(&String::from_utf8_lossy(bytes)) {
        let again = TuningTable::parse(&table.to_string()).expect("what was written");
        assert_eq!(again.to_string(), table.to_string());
    }
}

/// Parses `NAME=value`, as in the environment. A tuning table is left out, since it would be read
/// from a file.
fn setting(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut config = Config::default();
    match text.split_once('=') {
        Some((name, value)) if name != "TUNING_FILE" => drop(config.set(name, value)),
        _ => {}
    }
    // A layout of accepted settings is computed or refused, without a panic.
    let _ = unisono_transports::shm::Layout::new(2, &config.geometry());
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Generates words of such texts in any order, with anything between.
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
            "shm",
            "ring",
            "all_reduce",
            "FIFO_SLOT_BYTES",
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
        fn parsers_never_panic_and_output_round_trips(text in text(), bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for (_, parse) in TARGETS {
                parse(text.as_bytes());
                parse(&bytes);
            }
        }
    }

    #[test]
    fn parsers_accept_every_corpus_seed() {
        for (name, parse) in TARGETS {
            let seeds =
                std::fs::read_dir(format!("{}/fuzz/corpus/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap();
            let seeds: Vec<_> = seeds.map(|seed| std::fs::read(seed.unwrap().path()).unwrap()).collect();
            assert!(!seeds.is_empty(), "{name}");
            seeds.iter().for_each(|seed| parse(seed));
        }
    }

    #[test]
    fn settings_of_any_number_are_laid_out_or_rejected() {
        for name in [
            "FIFO_DEPTH",
            "FIFO_SLOT_BYTES",
            "SYMMETRIC_HEAP_BYTES",
            "SHM_WINDOW_BYTES",
            "CHANNELS",
            "SOCKETS_PER_PEER",
            "TIMEOUT_MS",
            "GPU_FIFO_SLOT_BYTES",
        ] {
            for value in [0, 1, 4096, 1 << 46, usize::MAX / 2, usize::MAX] {
                setting(format!("{name}={value}").as_bytes());
            }
        }
    }
}
