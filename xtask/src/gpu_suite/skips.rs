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
    rehearsal("train::tests::device::checkpoints_move_between_cpu_and_device", TRAINS),
    rehearsal("train::tests::device::device_run_matches_cpu", TRAINS),
    rehearsal("train::tests::device::device_strategies_match_cpu", TRAINS),
    rehearsal("train::tests::device::device_tensor_parallel_matches_cpu", TRAINS),
    rehearsal("train::tests::device::device_tensor_and_data_parallel_match_cpu", TRAINS),
    rehearsal("train::tests::device::device_pipelines_match_cpu", TRAINS),
    rehearsal("train::tests::device::device_mixed_strategies_match_cpu", TRAINS),
    rehearsal("train::tests::device::device_optimizers_accumulation_and_bf16_match_cpu", TRAINS),
    rehearsal("train::tests::device::offloaded_state_stays_on_host", TRAINS),
    rehearsal("train::tests::device::device_trained_model_generates", TRAINS),
    rehearsal("train::tests::device::steady_tensor_parallel_step_copies_no_activations", TRAINS),
    rehearsal("train::tests::device::steady_step_copies_only_tokens_losses_and_norms", TRAINS),
    rehearsal("train::tests::device::host_strategy_copies_weights_and_gradients", TRAINS),
    rehearsal("train::tests::device::device_model_options_match_cpu", TRAINS),
    rehearsal("train::tests::device::trace_has_tracks_of_the_gpu", TRAINS),
];

/// The emulator runs blocks of 512 threads one thread after the other.
const TRAINS: &str = "it trains a model, which takes minutes on the emulator";

/// Returns the reason why a test is left out.
pub(super) fn reason(test: &str, in_rehearsal: bool) -> Option<&'static str> {
    let found = SKIPS.iter().find(|skip| skip.test == test && (in_rehearsal || !skip.rehearsal_only));
    found.map(|skip| skip.why)
}

/// Returns the names of the table, which `pack` compares with the tests that there are.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    SKIPS.iter().map(|skip| skip.test)
}
