//! Checks before a release: versions, dependencies, the changelog and the order of publication.
//! Nothing is published here.

use crate::{Result, cargo};
use serde_json::Value;
use std::fs;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Tag of the release, `v` and the version. With it, the changelog must have a section of that
    /// version; without it, a section of unreleased changes is enough.
    #[arg(long)]
    tag: Option<String>,
}

/// Manifests of published packages that are workspaces of their own.
const OTHER_MANIFESTS: [&str; 3] =
    ["python/Cargo.toml", "adapters/burn/Cargo.toml", "adapters/candle/Cargo.toml"];

/// A package that is published, and what it needs of the same workspace.
#[derive(Debug, Default)]
struct Package {
    name: String,
    version: String,
    needs: Vec<Need>,
}

#[derive(Debug)]
struct Need {
    name: String,
    /// Version requirement, such as `^0.1.0`; `*` where the manifest names none.
    requirement: String,
}

/// Prints the published packages in the order of publication, or what does not agree.
pub(crate) fn run(arguments: &Arguments) -> Result {
    let packages = published()?;
    let version = packages.first().map(|package| package.version.clone()).unwrap_or_default();
    let mut wrong = disagreements(&packages, &version);
    for path in OTHER_MANIFESTS {
        let text = read(path)?;
        let found = own_version(&text);
        if found != Some(version.as_str()) {
            wrong.push(format!("{path} has version {}, not {version}", found.unwrap_or("none")));
        }
    }
    if let Some(tag) = &arguments.tag
        && *tag != format!("v{version}")
    {
        wrong.push(format!("the tag is {tag}, and the version {version}"));
    }
    let section = if arguments.tag.is_some() { version.as_str() } else { "Unreleased" };
    let changelog = read("CHANGELOG.md")?;
    if !has_changes(&changelog, section) && (arguments.tag.is_some() || !has_changes(&changelog, &version)) {
        wrong.push(format!("CHANGELOG.md has no changes below `## [{section}]`"));
    }
    let order = publication_order(&packages)?;
    match wrong.is_empty() {
        true => {
            println!("{version}, in this order: {}", order.join(", "));
            Ok(())
        }
        false => Err(wrong.join("\n")),
    }
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(cargo::root().join(path)).map_err(|error| format!("{path}: {error}"))
}

/// Returns the members of the workspace that are published.
fn published() -> Result<Vec<Package>> {
    let metadata = cargo::output(cargo::cargo().args(["metadata", "--no-deps", "--format-version=1"]))?;
    let metadata: Value =
        serde_json::from_str(&metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    // `publish` is null if the package goes to any registry, and an empty list if it goes to none.
    Ok(packages.filter(|package| package["publish"].is_null()).map(package).collect())
}

fn package(value: &Value) -> Package {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    // Dependencies of tests without a version are not part of what is published.
    let needs = value["dependencies"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|need| need["path"].is_string() && need["kind"].as_str() != Some("dev"));
    let needs = needs.map(|need| Need { name: text(&need["name"]), requirement: text(&need["req"]) });
    Package { name: text(&value["name"]), version: text(&value["version"]), needs: needs.collect() }
}

/// Returns every package with another version, and every need that no published package meets.
fn disagreements(packages: &[Package], version: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for Package { name, version: own, needs } in packages {
        if own != version {
            wrong.push(format!("{name} has version {own}, not {version}"));
        }
        for need in needs {
            if !packages.iter().any(|package| package.name == need.name) {
                wrong.push(format!("{name} needs {}, which is not published", need.name));
            }
            if need.requirement != format!("^{version}") {
                wrong.push(format!("{name} needs {} {}, not ^{version}", need.name, need.requirement));
            }
        }
    }
    wrong
}

/// Returns the names of the packages, each after all that it needs.
fn publication_order(packages: &[Package]) -> Result<Vec<&str>> {
    let mut order: Vec<&str> = Vec::new();
    while order.len() < packages.len() {
        let ready = packages.iter().find(|package| {
            let done = |name: &str| order.contains(&name);
            !done(&package.name) && package.needs.iter().all(|need| done(&need.name))
        });
        match ready {
            Some(package) => order.push(&package.name),
            None => {
                let waiting = packages.iter().map(|package| package.name.as_str());
                let waiting: Vec<&str> = waiting.filter(|name| !order.contains(name)).collect();
                return Err(format!(
                    "these need each other, or what is not published: {}",
                    waiting.join(", ")
                ));
            }
        }
    }
    Ok(order)
}

/// Returns the version of a manifest's package.
fn own_version(manifest: &str) -> Option<&str> {
    manifest.lines().find_map(|line| line.strip_prefix("version = \"")?.split('"').next())
}

/// Returns true if the changelog has lines below the heading of this section.
fn has_changes(changelog: &str, section: &str) -> bool {
    let heading = format!("## [{section}]");
    let lines = changelog.lines().skip_while(|line| !line.starts_with(&heading)).skip(1);
    lines.take_while(|line| !line.starts_with("## ")).any(|line| line.starts_with("- "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needing(name: &str, version: &str, needs: &[(&str, &str)]) -> Package {
        let need = |(name, requirement): &(&str, &str)| Need {
            name: (*name).to_owned(),
            requirement: (*requirement).to_owned(),
        };
        Package {
            name: name.to_owned(),
            version: version.to_owned(),
            needs: needs.iter().map(need).collect(),
        }
    }

    #[test]
    fn repository_can_be_released() {
        assert_eq!(run(&Arguments { tag: None }), Ok(()));
        let error = run(&Arguments { tag: Some("v99.0.0".to_owned()) }).expect_err("another version");
        assert!(error.contains("the tag is v99.0.0"), "{error}");
    }

    #[test]
    fn packages_follow_what_they_need() {
        let packages = [
            needing("command", "1.0.0", &[("library", "^1.0.0"), ("base", "^1.0.0")]),
            needing("library", "1.0.0", &[("base", "^1.0.0")]),
            needing("base", "1.0.0", &[]),
        ];
        assert_eq!(publication_order(&packages), Ok(vec!["base", "library", "command"]));
        assert_eq!(disagreements(&packages, "1.0.0"), Vec::<String>::new());
        let cycle = [needing("a", "1.0.0", &[("b", "^1.0.0")]), needing("b", "1.0.0", &[("a", "^1.0.0")])];
        assert!(publication_order(&cycle).is_err_and(|error| error.ends_with("a, b")));
    }

    #[test]
    fn disagreements_name_package_and_both_versions() {
        let packages =
            [needing("a", "1.0.0", &[("b", "*"), ("hidden", "^1.0.0")]), needing("b", "0.9.0", &[])];
        let wrong = disagreements(&packages, "1.0.0");
        assert_eq!(
            wrong,
            [
                "a needs b *, not ^1.0.0",
                "a needs hidden, which is not published",
                "b has version 0.9.0, not 1.0.0"
            ]
        );
    }

    #[test]
    fn changes_are_lines_below_their_own_heading() {
        let changelog =
            "## [Unreleased]\n\n## [1.0.0] - 2026-01-01\n\n### Added\n\n- A thing\n\n## [0.9.0]\n";
        assert!(has_changes(changelog, "1.0.0"));
        assert!(!has_changes(changelog, "Unreleased") && !has_changes(changelog, "0.9.0"));
    }

    #[test]
    fn own_version_is_that_of_the_package() {
        let manifest =
            "[package]\nname = \"a\"\nversion = \"1.2.3\"\n[dependencies]\nb = { version = \"4\" }\n";
        assert_eq!(own_version(manifest), Some("1.2.3"));
    }
}
