//! Files that the command line of a plan names.

use crate::file_kind;
use std::path::Path;
use unisono_nn::error::{Error, Result};
use unisono_plan::cost::{Hardware, parse_measurements};
use unisono_plan::planner::Topology;

/// Reads a description of hosts and links.
///
/// # Errors
/// [`Error::File`] for text that is no topology, and for numbers that are not above 0.
pub(super) fn topology(path: &Path) -> Result<Topology> {
    let text = file_kind::read_text(path, TOPOLOGY)?;
    Topology::parse(&text).map_err(|what| file_kind::recognized(path, TOPOLOGY, what))
}

/// Fits a link of `hardware` to a file of measured all-reduces. Returns the maximum relative error
/// of the fit.
///
/// # Errors
/// [`Error::File`] for any other format, and for times to which no link fits.
pub(super) fn fit(hardware: &mut Hardware, path: &Path) -> Result<f64> {
    let text = file_kind::read_text(path, MEASUREMENTS)?;
    let parsed = parse_measurements(&text);
    let (ranks, points) = parsed.map_err(|what| file_kind::recognized(path, MEASUREMENTS, what))?;
    hardware.fit(ranks, &points).map_err(|error| Error::file(path, error))
}

const TOPOLOGY: &str = "a topology in TOML";
const MEASUREMENTS: &str = "a file of measurements";
