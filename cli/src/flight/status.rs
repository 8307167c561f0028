//! `unisono status` shows the operations of the ranks of running jobs.

use super::record::Record;
use std::path::Path;
use std::time::Duration;
use unisono::bootstrap::RankInfo;
use unisono::status;
use unisono_transports::text::printable;

#[derive(clap::Args)]
pub(crate) struct StatusArguments {
    /// Update the output every second.
    #[arg(short, long)]
    watch: bool,
}

/// Queries all ranks of this user on this host, and prints their answers.
pub(crate) fn status(arguments: &StatusArguments) -> Result<u8, String> {
    loop {
        let records: Vec<Record> = status::list_processes().into_iter().flat_map(query_process).collect();
        match records.is_empty() {
            true => println!("no rank of yours answers on this host; those that `unisono run` started do"),
            false => drop(super::print(records)),
        }
        if !arguments.watch {
            return Ok(0);
        }
        std::thread::sleep(REFRESH_INTERVAL);
        println!();
    }
}

/// Queries the state of one process.
///
/// Returns nothing for processes of other users, and prints a reason if a process should have
/// answered.
fn query_process(process: u32) -> Vec<Record> {
    let Ok(variables) = std::fs::read(Path::new("/proc").join(process.to_string()).join("environ")) else {
        return Vec::new();
    };
    let said = RankInfo::from_vars(|name| env_value(&variables, name))
        .and_then(|identity| status::query(process, &identity.id))
        .map_err(|error| error.to_string())
        .and_then(|text| records_in(&text));
    said.unwrap_or_else(|why| {
        eprintln!("unisono: process {process} does not answer: {}", printable(&why));
        Vec::new()
    })
}

/// Returns the records in the answer of a process. Impossible records are left out.
pub(super) fn records_in(text: &str) -> Result<Vec<Record>, String> {
    let mut records: Vec<Record> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    records.retain(Record::is_valid);
    Ok(records)
}

/// Returns the value of a variable in the environment of another process.
pub(super) fn env_value(variables: &[u8], name: &str) -> Option<String> {
    let mut texts = variables.split(|byte| *byte == 0).filter_map(|text| std::str::from_utf8(text).ok());
    texts.find_map(|text| text.strip_prefix(name)?.strip_prefix('=').map(str::to_owned))
}

const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_found_by_its_whole_name() {
        let variables = b"RANKS=7\0RANK=3\0EMPTY=\0";
        assert_eq!(env_value(variables, "RANK").as_deref(), Some("3"));
        assert_eq!(env_value(variables, "EMPTY").as_deref(), Some(""));
        assert_eq!(env_value(variables, "ANK"), None);
    }
}
