//! Fuzz targets: the parsers of untrusted texts and messages, each as one function of bytes.
//!
//! A parser must end without a panic on all bytes. A value that it accepts must survive being
//! written and parsed again. `cargo xtask fuzz` searches for bytes that violate this.

use crate::bootstrap::endpoint::Endpoint;
use crate::bootstrap::fuzzing as bootstrap;
use crate::bootstrap::invitation::Invitation;
use crate::bootstrap::{RankInfo, UniqueId};
use crate::config::{Config, Interface};
use crate::select::TuningTable;
use unisono_transports::testing::seeds::Target;
use unisono_transports::text::printable;

/// The parsers, each with its name.
pub const TARGETS: &[Target] = &[
    ("control_msg", crate::engine::fuzz_control_msg),
    ("messages", crate::engine::fuzz_messages),
    ("join_request", |bytes| bootstrap::join_request(&String::from_utf8_lossy(bytes))),
    ("root_reply", |bytes| bootstrap::root_reply(&String::from_utf8_lossy(bytes))),
    ("unique_id", id),
    ("tuning_table", table),
    ("setting", setting),
    ("environment", environment),
    ("file_store", crate::bootstrap::fuzz_store),
    ("ticket", crate::communicator::fuzz_ticket),
    #[cfg(feature = "serde")]
    ("objects", crate::communicator::fuzz_objects),
    ("peer_offsets", crate::engine::fuzz_peer_offsets),
    #[cfg(feature = "gpu")]
    ("gpu_cards", crate::device::fuzz_cards),
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

/// Parses a whole environment: `NAME=value`, each ended by a zero byte, as in
/// `/proc/PID/environ`.
///
/// No file is read, and no name is looked up: the ranks have a secret.
fn environment(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let pairs: Vec<(&str, &str)> = text.split('\0').filter_map(|pair| pair.split_once('=')).collect();
    let is_file = |name: &str| matches!(name, "UNISONO_SECRET_FILE" | "UNISONO_TUNING_FILE");
    let value = |name: &str| {
        let found = pairs.iter().find(|(known, _)| *known == name && !is_file(name));
        let usual = (name == "UNISONO_SECRET").then(|| "5a".repeat(32));
        found.map(|(_, value)| (*value).to_owned()).or(usual)
    };
    let check_text = |text: &str| assert_eq!(printable(text), text, "an error steers no terminal");
    match RankInfo::from_vars(value) {
        Ok(info) => {
            assert!(info.rank < info.ranks);
            id(info.id.to_string().as_bytes());
        }
        Err(error) => check_text(&error.to_string()),
    }
    let variables = pairs.iter().filter(|(name, _)| !is_file(name));
    let variables = variables.map(|&(name, value)| (name.to_owned(), value.to_owned()));
    if let Err(error) = Config::from_vars(variables) {
        check_text(&error.to_string());
    }
    for (_, value) in pairs {
        if let Ok(interface) = value.parse::<Interface>() {
            assert_eq!(interface.to_string().parse::<Interface>(), Ok(interface));
        }
        if let Ok(endpoint) = value.parse::<Endpoint>() {
            assert_eq!(endpoint.to_string().parse::<Endpoint>(), Ok(endpoint));
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use unisono_transports::testing::seeds::{parse_changed_seeds, parse_seeds};

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
        parse_seeds(TARGETS);
    }

    #[test]
    fn parsers_survive_changed_corpus_seeds() {
        parse_changed_seeds(TARGETS, 300);
    }

    /// Miri can run this test, because these parsers make no system calls.
    #[test]
    fn messages_of_peers_survive_changed_corpus_seeds() {
        let mut targets = TARGETS.to_vec();
        targets.retain(|(name, _)| {
            ["control_msg", "ticket", "objects", "root_reply", "peer_offsets"].contains(name)
        });
        parse_seeds(&targets);
        // A changed seed may announce a million elements, which take Miri minutes.
        if !cfg!(miri) {
            parse_changed_seeds(&targets, 1000);
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
