//! Gets what is missing: packages of Debian, wheels of PyPI.

use crate::library::{Library, PackageSource, Paths};
use crate::process;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Installs every library that is not there; what fails is reported and left out.
pub(crate) fn install(libraries: &[Library], places: &Paths) {
    let sources = || libraries.iter().map(|&library| (library, library.package_source(places.torch_wheel)));
    let packages: Vec<&str> = sources()
        .filter_map(
            |(_, source)| if let PackageSource::Debian(packages) = source { Some(packages) } else { None },
        )
        .flatten()
        .copied()
        .filter(|package| !is_installed(package))
        .collect();
    if !packages.is_empty() {
        report(&packages.join(" "), debian(&packages));
    }
    for (library, source) in sources() {
        if let PackageSource::Wheels(name, wheels) = source {
            let folder = places.cache.join(name);
            if !folder.join("bin/pip").exists() || crate::library::find(library, places).is_err() {
                report(library.name(), wheels_into(&folder, wheels));
            }
        }
    }
}

fn report(what: &str, outcome: Result<(), String>) {
    match outcome {
        Ok(()) => eprintln!("installed {what}"),
        Err(reason) => eprintln!("not installed: {what}: {reason}"),
    }
}

fn is_installed(package: &str) -> bool {
    let query = Command::new("dpkg-query").args(["-W", "-f=${Status}", package]).output();
    query.is_ok_and(|output| output.stdout.ends_with(b"install ok installed"))
}

fn debian(packages: &[&str]) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err(format!("needs root; run: apt-get install {}", packages.join(" ")));
    }
    let apt = |arguments: &[&str]| {
        run(Command::new("apt-get").env("DEBIAN_FRONTEND", "noninteractive").args(arguments))
    };
    apt(&["update", "-q"])?;
    apt(&[&["install", "-y", "-q", "--no-install-recommends"], packages].concat())
}

fn wheels_into(folder: &Path, wheels: &[&str]) -> Result<(), String> {
    run(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    run(Command::new(folder.join("bin/pip")).args(["install", "--quiet"]).args(wheels))
}

fn run(command: &mut Command) -> Result<(), String> {
    process::run(command, DOWNLOAD_LIMIT).failure.map_or(Ok(()), Err)
}

/// PyTorch is 5 GB.
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(3600);
