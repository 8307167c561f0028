//! GPUs of this host, where they are, and how they reach each other.

use std::fmt::Write;
use unisono_cuda::device::{GpuError, Links, Path, Site};

/// Prints a table of GPUs, and one of the paths between them.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, String> {
    if arguments.software {
        unisono_cuda::software::install().map_err(|error| error.to_string())?;
    }
    let sites = Site::all().map_err(|error| error.to_string())?;
    print!("{}", text(&sites).map_err(|error| error.to_string())?);
    Ok(0)
}

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Ask the software device, which is built by the C++ compiler.
    #[arg(long)]
    software: bool,
}

fn text(sites: &[Site]) -> Result<String, GpuError> {
    let mut text = format!("{:<5}{:<15}{:<6}name\n", "GPU", "bus", "node");
    for site in sites {
        let node = site.numa_node()?.map_or_else(|| "-".to_owned(), |node| node.to_string());
        let _ = writeln!(text, "{:<5}{:<15}{node:<6}{}", site.ordinal(), site.bus_id()?, site.name()?);
    }
    text += &between(sites, |from, to| Ok(cell(&from.path_to(to)?)))?;
    text.push_str(
        "\n\nhost: by way of it; a number: direct, and how good the driver finds the link, 0 is best; +: with its atomics\n",
    );
    match between(sites, |from, to| Ok(links(from.links_to(to)?))) {
        Ok(table) => text += &format!("{table}\n\nNVLinks between them, and their version\n"),
        Err(why) => text += &format!("\n{why}\n"),
    }
    Ok(text)
}

/// A table of every two GPUs.
fn between(
    sites: &[Site],
    cell: impl Fn(&Site, &Site) -> Result<String, GpuError>,
) -> Result<String, GpuError> {
    let mut text = format!("\n{:<6}", "from");
    text.extend(sites.iter().map(|to| format!("{:>8}", format!("to {}", to.ordinal()))));
    for from in sites {
        let _ = write!(text, "\n{:<6}", from.ordinal());
        for to in sites {
            let cell = if from == to { "-".to_owned() } else { cell(from, to)? };
            let _ = write!(text, "{cell:>8}");
        }
    }
    Ok(text)
}

fn links(links: Links) -> String {
    match links {
        Links { count: 0, .. } => "none".to_owned(),
        Links { count, version: (0, 0) } => count.to_string(),
        Links { count, version: (major, minor) } => format!("{count} {major}.{minor}"),
    }
}

fn cell(path: &Path) -> String {
    match path {
        Path { direct: false, .. } => "host".to_owned(),
        Path { rank, atomics, .. } => format!("{rank}{}", if *atomics { "+" } else { "" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unisono_cuda::software::{SoftwareError, set_gpus, set_path};

    #[test]
    fn the_table_says_who_reaches_whom() {
        match set_gpus(3) {
            Err(SoftwareError::NoCompiler { program, reason }) => {
                return eprintln!("SKIPPED: needs a C++ compiler: {program}: {reason}");
            }
            ended => ended.unwrap(),
        }
        set_path(0, 1, Path { direct: false, rank: 0, atomics: false }).unwrap();
        set_path(1, 2, Path { direct: true, rank: 2, atomics: false }).unwrap();
        let text = text(&Site::all().unwrap()).unwrap();
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1][..3], ["0", "ffff:10:00.0", "-"], "{text}");
        assert_eq!(rows[6], ["0", "-", "host", "0+"], "{text}");
        assert_eq!(rows[7], ["1", "0+", "-", "2"], "{text}");
        assert!(text.contains("NVLinks are not known: libnvidia-ml.so.1"), "{text}");
    }

    #[test]
    fn links_are_said_by_number_and_version() {
        let of = |count, version| links(Links { count, version });
        assert_eq!([of(18, (4, 0)), of(4, (0, 0)), of(0, (0, 0))], ["18 4.0", "4", "none"]);
    }
}
