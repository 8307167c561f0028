//! Checks for parts of the command that a build may not have. They are optional so that an
//! installation takes only a minute.

/// Fails if this build has no ranks on GPUs.
pub(crate) fn require_gpu() -> Result<(), String> {
    require("gpu", cfg!(feature = "gpu"), "GPUs")
}

/// Fails if this build has no software device.
pub(crate) fn require_emulator() -> Result<(), String> {
    require("emulator", cfg!(feature = "emulator"), "the software device")
}

fn require(feature: &str, is_built: bool, what: &str) -> Result<(), String> {
    if is_built {
        return Ok(());
    }
    Err(format!(
        "this command was built without {what}; install it again from a checkout with \
         `cargo install --path cli --features {feature}`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_feature_is_named_with_its_flag() {
        assert_eq!(require("gpu", true, "GPUs"), Ok(()));
        let error = require("gpu", false, "GPUs").unwrap_err();
        assert!(error.contains("without GPUs") && error.contains("--features gpu"), "{error}");
    }

    #[test]
    fn tests_run_the_command_with_all_parts() {
        assert_eq!((require_gpu(), require_emulator()), (Ok(()), Ok(())));
    }
}
