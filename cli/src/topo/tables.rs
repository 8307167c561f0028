//! Tables of GPUs.

use std::fmt::Write;
use unisono_cuda::device::{GpuError, GpuInfo, NvLinks, PeerPath};

/// Returns a table of the GPUs of this host, and tables of the paths between them.
pub(super) fn of_this_host() -> Result<String, GpuError> {
    text(&GpuInfo::all()?)
}

fn text(sites: &[GpuInfo]) -> Result<String, GpuError> {
    let mut text = format!("{:<5}{:<15}{:<6}name\n", "GPU", "bus", "node");
    for site in sites {
        let node = site.numa_node()?.map_or_else(|| "-".to_owned(), |node| node.to_string());
        let _ = writeln!(text, "{:<5}{:<15}{node:<6}{}", site.ordinal(), site.bus_id()?, site.name()?);
    }
    text += &between(sites, |source, target| Ok(cell(&source.peer_path(target)?)))?;
    text.push_str(
        "\n\nhost: through the host; a number: direct, with the driver's rank of the link, 0 is best; +: with atomics\n",
    );
    match between(sites, |source, target| Ok(links(source.nvlinks_to(target)?))) {
        Ok(table) => text += &format!("{table}\n\nNVLinks between them, and their version\n"),
        Err(why) => text += &format!("\n{why}\n"),
    }
    Ok(text)
}

/// Formats a table of all pairs of GPUs.
fn between(
    sites: &[GpuInfo],
    cell: impl Fn(&GpuInfo, &GpuInfo) -> Result<String, GpuError>,
) -> Result<String, GpuError> {
    let mut text = format!("\n{:<6}", "from");
    text.extend(sites.iter().map(|target| format!("{:>8}", format!("to {}", target.ordinal()))));
    for source in sites {
        let _ = write!(text, "\n{:<6}", source.ordinal());
        for target in sites {
            let cell = if source == target { "-".to_owned() } else { cell(source, target)? };
            let _ = write!(text, "{cell:>8}");
        }
    }
    Ok(text)
}

fn links(links: NvLinks) -> String {
    match links {
        NvLinks { count: 0, .. } => "none".to_owned(),
        NvLinks { count, version: (0, 0) } => count.to_string(),
        NvLinks { count, version: (major, minor) } => format!("{count} {major}.{minor}"),
    }
}

fn cell(path: &PeerPath) -> String {
    match path {
        PeerPath { direct: false, .. } => "host".to_owned(),
        PeerPath { rank, atomics, .. } => format!("{rank}{}", if *atomics { "+" } else { "" }),
    }
}

#[cfg(all(test, feature = "emulator"))]
mod tests {
    use super::*;
    use unisono_cuda::emulator::{EmulatorError, set_gpu_count, set_peer_path};

    #[test]
    fn text_shows_paths_between_gpus() {
        match set_gpu_count(3) {
            Err(EmulatorError::NoCompiler { program, reason }) => {
                return eprintln!("SKIPPED: needs a C++ compiler: {program}: {reason}");
            }
            ended => ended.unwrap(),
        }
        set_peer_path(0, 1, PeerPath { direct: false, rank: 0, atomics: false }).unwrap();
        set_peer_path(1, 2, PeerPath { direct: true, rank: 2, atomics: false }).unwrap();
        let text = text(&GpuInfo::all().unwrap()).unwrap();
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1][..3], ["0", "ffff:10:00.0", "-"], "{text}");
        assert_eq!(rows[6], ["0", "-", "host", "0+"], "{text}");
        assert_eq!(rows[7], ["1", "0+", "-", "2"], "{text}");
        assert!(text.contains("NVLinks are not known: libnvidia-ml.so.1"), "{text}");
    }

    #[test]
    fn links_show_number_and_version() {
        let shown = |count, version| links(NvLinks { count, version });
        assert_eq!([shown(18, (4, 0)), shown(4, (0, 0)), shown(0, (0, 0))], ["18 4.0", "4", "none"]);
    }
}
