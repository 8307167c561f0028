//! Feeds bytes to the parser that `FUZZ_TARGET` names; `cargo xtask fuzz` starts the program for
//! each of them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;
use unisono::fuzzing::ParserFn;

/// The parser that is asked for.
fn target() -> ParserFn {
    static TARGET: OnceLock<ParserFn> = OnceLock::new();
    *TARGET.get_or_init(|| {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        let all = unisono::fuzzing::TARGETS.iter().chain(unisono_transports::testing::fuzzing::TARGETS);
        let found = all.clone().find(|(known, _)| *known == name);
        found.unwrap_or_else(|| panic!("FUZZ_TARGET={name} is none of {:?}", all.map(|(name, _)| name).collect::<Vec<_>>())).1
    })
}

fuzz_target!(|bytes: &[u8]| target()(bytes));
