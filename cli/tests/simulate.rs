//! A seed gives the same simulation in every environment.

use std::process::Command;

/// Returns the output of one simulation under this setting.
fn output_with(setting: (&str, &str)) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unisono"));
    let output =
        command.args(["simulate", "--seed", "11"]).env(setting.0, setting.1).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn environment_does_not_change_a_simulation() {
    let plain = output_with(("UNISONO_STATUS_SERVER", "off"));
    assert!(plain.contains("trace"), "{plain}");
    for setting in
        [("UNISONO_CHECK_FINITE", "on"), ("UNISONO_REDUCTION_ORDER", "rank"), ("UNISONO_ALGO", "ring")]
    {
        assert_eq!(output_with(setting), plain, "{setting:?}");
    }
}
