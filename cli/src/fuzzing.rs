//! Fuzz targets: the parsers of files that ranks and the command write, of answers of ranks, and of
//! texts of the kernel, each as one function of bytes.
//!
//! A parser must end without a panic on all bytes. `cargo xtask fuzz` searches for bytes that
//! violate this.

use unisono_transports::testing::seeds::Target;

/// The parsers, each with its name.
pub const TARGETS: &[Target] = &[
    ("flight_records", crate::flight::fuzz),
    ("trace", crate::trace::fuzz),
    ("perf_results", crate::tune::fuzz),
    ("host_list", crate::launch::fuzz_hosts),
    ("process_texts", process_texts),
    ("schedule", |bytes| crate::given::fuzz(&String::from_utf8_lossy(bytes))),
];

/// Reads bytes as files of `/proc`.
fn process_texts(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    crate::perf::fuzz_memory(&text);
    crate::launch::fuzz_children(&text);
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
        parse_changed_seeds(TARGETS, 500);
    }

    proptest! {
        #[test]
        fn parsers_survive_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200), text: String) {
            for (_, parse) in TARGETS {
                parse(&bytes);
                parse(text.as_bytes());
            }
        }
    }
}
