//! Hosts of a job, each of which has a separate launcher.

use std::process::Command;

/// Place of this host among the hosts of a job, all with the same number of ranks.
#[derive(Debug, PartialEq)]
pub(crate) struct Hosts {
    count: usize,
    number: usize,
    /// Host and port where the ranks meet. `None` for a single host, because its launcher chooses
    /// them.
    master: Option<(String, u16)>,
}

impl Hosts {
    /// This host alone.
    pub(crate) const ONE: Self = Self { count: 1, number: 0, master: None };

    /// Checks the options of a job on `count` hosts.
    ///
    /// # Errors
    /// Names the option that is missing or impossible.
    pub(crate) fn new(count: usize, number: usize, master: Option<&str>) -> Result<Self, String> {
        if count == 0 {
            return Err("--nnodes 0: a job has at least one host".to_owned());
        }
        if number >= count {
            return Err(format!("--node-rank {number} is not below --nnodes {count}"));
        }
        let master = match (count, master) {
            (1, None) => None,
            (1, Some(_)) => return Err("--master is for several hosts: give --nnodes too".to_owned()),
            (_, None) => {
                let what = format!("--nnodes {count} needs --master HOST:PORT");
                return Err(format!("{what}: the address of host 0 and a free port on it"));
            }
            (_, Some(text)) => Some(parse_master(text)?),
        };
        Ok(Self { count, number, master })
    }

    /// Sets the variables of rank `local` of `ranks` on this host.
    pub(super) fn set_rank(&self, command: &mut Command, local: usize, ranks: usize) {
        let variables = [
            ("RANK", self.number * ranks + local),
            ("WORLD_SIZE", self.count * ranks),
            ("LOCAL_RANK", local),
            ("LOCAL_WORLD_SIZE", ranks),
            ("GROUP_RANK", self.number),
        ];
        command.envs(variables.map(|(name, value)| (name, value.to_string())));
    }

    /// Returns the host and port where ranks of several hosts meet.
    pub(super) fn master(&self) -> Option<(&str, u16)> {
        self.master.as_ref().map(|(host, port)| (host.as_str(), *port))
    }
}

/// Parses `host:port`; the host may be an IPv6 address in brackets.
fn parse_master(text: &str) -> Result<(String, u16), String> {
    let parts = text.rsplit_once(':').filter(|(host, _)| !host.is_empty() && !host.contains('/'));
    let parts =
        parts.and_then(|(host, port)| Some((host, port.parse::<u16>().ok().filter(|&port| port > 0)?)));
    match parts {
        Some((host, port)) => Ok((host.trim_start_matches('[').trim_end_matches(']').to_owned(), port)),
        None => Err(format!("--master {text} is not HOST:PORT")),
    }
}

/// Reads text as the address of host 0.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok((host, port)) = parse_master(&text) {
        assert!(port > 0 && text.contains(&host));
    }
    assert!(
        Hosts::new(2, 1, Some(&text)).is_ok_and(|hosts| hosts.master().is_some())
            || parse_master(&text).is_err()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_several_hosts_are_checked() {
        let refused = |count, number, master| Hosts::new(count, number, master).unwrap_err();
        assert!(refused(0, 0, None).contains("--nnodes 0"));
        assert!(refused(2, 2, Some("a:1")).contains("--node-rank 2 is not below --nnodes 2"));
        assert!(refused(2, 0, None).contains("--nnodes 2 needs --master HOST:PORT"));
        assert!(refused(1, 0, Some("a:1")).contains("give --nnodes too"));
        for text in ["a", "a:", "a:0", ":5", "a:70000", "http://a:1"] {
            assert!(refused(2, 0, Some(text)).contains(text), "{text}");
        }
        assert_eq!(Hosts::new(2, 1, Some("[::1]:29500")).unwrap().master(), Some(("::1", 29500)));
        assert_eq!(Hosts::new(1, 0, None).unwrap().master(), None);
    }
}
