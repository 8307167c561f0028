//! Feeds bytes to the parser that `FUZZ_TARGET` names; `cargo xtask fuzz` starts the program for
//! each of them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;
use unisono_transports::testing::seeds::Target;

/// The targets of each crate.
const TARGETS: [&[Target]; 4] = [
    unisono_transports::testing::fuzzing::TARGETS,
    unisono::fuzzing::TARGETS,
    unisono_trainer::fuzzing::TARGETS,
    unisono_cli::fuzzing::TARGETS,
];

/// Targets that call libraries whose panics they turn into errors. The hook of libFuzzer would end
/// the program at a panic; without it, one that is not caught still does.
const CATCH_PANICS: [&str; 1] = ["tokenizer"];

/// The parser that is asked for.
fn target() -> fn(&[u8]) {
    static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();
    *TARGET.get_or_init(|| {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        if CATCH_PANICS.contains(&name.as_str()) {
            std::panic::set_hook(Box::new(|_| {}));
        }
        let targets = TARGETS.concat();
        let found = targets.iter().find(|(known, _)| *known == name);
        let names = || targets.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        found.unwrap_or_else(|| panic!("FUZZ_TARGET={name} is none of {}", names())).1
    })
}

fuzz_target!(|bytes: &[u8]| target()(bytes));
