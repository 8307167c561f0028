//! What a seed stands for is the same everywhere.

use std::process::Command;

/// All that is told of one run under this setting.
fn told(setting: (&str, &str)) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unisono"));
    let output =
        command.args(["simulate", "--seed", "11"]).env(setting.0, setting.1).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_settings_around_it_change_nothing_in_a_run() {
    let plain = told(("UNISONO_STATUS", "off"));
    assert!(plain.contains("trace"), "{plain}");
    for setting in [("UNISONO_CHECK_FINITE", "on"), ("UNISONO_ORDER", "ranks"), ("UNISONO_ALGO", "ring")] {
        assert_eq!(told(setting), plain, "{setting:?}");
    }
}
