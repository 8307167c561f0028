//! Tests that do not run in the suite, each with its reason. All others must pass.

/// Why a test is left out, and where.
struct Skip {
    test: &'static str,
    why: &'static str,
    /// Left out of a rehearsal only: a GPU runs it.
    rehearsal_only: bool,
}

const fn everywhere(test: &'static str, why: &'static str) -> Skip {
    Skip { test, why, rehearsal_only: false }
}

const fn rehearsal(test: &'static str, why: &'static str) -> Skip {
    Skip { test, why, rehearsal_only: true }
}

const SKIPS: &[Skip] = &[
    everywhere("driver::driver_properties_are_reported", "it replaces the machine's driver"),
    everywhere("install::emulator_install_names_missing_parts", "it is about the emulator's compiler"),
    everywhere(
        "nvml::links_are_counted_where_there_is_nvml",
        "it makes the emulator the driver of its process",
    ),
];

/// Returns the reason why a test is left out.
pub(super) fn reason(test: &str, in_rehearsal: bool) -> Option<&'static str> {
    let found = SKIPS.iter().find(|skip| skip.test == test && (in_rehearsal || !skip.rehearsal_only));
    found.map(|skip| skip.why)
}

/// Returns the names of the table, which `pack` compares with the tests that there are.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    SKIPS.iter().map(|skip| skip.test)
}
