//! Errors of installing the emulator where that is not possible.

use std::path::Path;
use std::process::Command;
use unisono_cuda::emulator::{self, EmulatorError};

/// Tells a process what it should find.
const EXPECTED: &str = "UNISONO_TEST_SOFTWARE_EXPECTED";

/// A process of this test with these variables, and no other that it would find a folder by: the
/// folder for temporary files is none, unless a variable says otherwise.
fn install(expected: &str, variables: &[(&str, &Path)]) {
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args(["install::emulator_install_names_missing_parts", "--exact", "--nocapture"]);
    process.env_remove("HOME").env_remove("XDG_CACHE_HOME").env(EXPECTED, expected);
    process.env("TMPDIR", "/dev/null");
    let output = process.envs(variables.iter().copied()).output().unwrap();
    assert!(output.status.success(), "{expected}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn emulator_install_names_missing_parts() {
    if let Ok(expected) = std::env::var(EXPECTED) {
        let error = emulator::install().unwrap_err();
        let found = match &error {
            EmulatorError::NoFolder(_) => "folder",
            EmulatorError::NoCompiler { program, .. } if program == "/nowhere/compiler" => "compiler",
            EmulatorError::Refused { said } if said.contains("unknown option") => "refused",
            _ => "something else",
        };
        return assert_eq!(found, expected, "{error}");
    }
    let name = format!("no-device-{}", std::process::id());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let refuses = folder.join("compiler");
    std::fs::write(&refuses, "#!/bin/sh\necho unknown option >&2\nexit 1\n").unwrap();
    std::fs::set_permissions(&refuses, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    install("folder", &[]);
    install("folder", &[("XDG_CACHE_HOME", Path::new("relative"))]);
    install("folder", &[("XDG_CACHE_HOME", &refuses)]);
    // A home that cannot be written is no obstacle where another folder can be.
    install("compiler", &[("HOME", &refuses), ("TMPDIR", &folder), ("CXX", Path::new("/nowhere/compiler"))]);
    install("compiler", &[("HOME", &folder), ("CXX", Path::new("/nowhere/compiler"))]);
    install("refused", &[("HOME", &folder), ("CXX", &refuses)]);
    std::fs::remove_dir_all(&folder).unwrap();
}
