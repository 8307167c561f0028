//! The table of thresholds: built in, or measured on a machine and read from a file.
//!
//! A file has one line for each choice, in the order of preference:
//! `collective medium ranks_max bytes_max algorithm`, for example
//! `all_reduce windows 2 8192 oneshot`. The medium is `windows`, where ranks share
//! memory, `crowded`, where they send messages within a host that has fewer cores,
//! or `messages`, which is for everybody; `any` stands for no bound; bytes are those of
//! one share. What no line covers, the built-in table does. `#` begins a comment.
//! Lines for `windows` are for `crowded-windows` as well, where the ranks that share memory share cores, too. Where they
//! share memory of GPUs, those for `device` are, and no others: what was measured on a host says nothing of GPUs.
//! Where more than two ranks share memory, sums that are rounded to floats of 8 or 16 bits pass over lines that
//! round them more than once.

use crate::schedule::{Algorithm, Collective, Reach, find};
use std::fmt;

/// What lies between the ranks of a communicator, as far as the choice of an algorithm depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Messages.
    Messages,
    /// Messages between more ranks on one host than it has cores: what counts is how much there is to do in
    /// all, not how far anything has to go.
    Crowded,
    /// Memory that all ranks share.
    Windows,
    /// The same, between more ranks than the host has cores.
    CrowdedWindows,
    /// Memory of GPUs that all ranks share.
    Device,
}

impl Medium {
    /// All there are.
    pub const ALL: [Self; 5] =
        [Medium::Windows, Medium::CrowdedWindows, Medium::Device, Medium::Crowded, Medium::Messages];

    /// What ranks can reach of each other without more ado.
    pub fn reach(self) -> Reach {
        match self {
            Medium::Messages | Medium::Crowded => Reach::Messages,
            Medium::Windows | Medium::CrowdedWindows | Medium::Device => Reach::Windows,
        }
    }

    /// Whether what holds for `self` is for communicators of this medium.
    fn is_for(self, medium: Medium) -> bool {
        let general = self == Medium::Windows && medium.reach() == Reach::Windows;
        self == Medium::Messages || self == medium || general
    }

    fn name(self) -> &'static str {
        match self {
            Medium::Messages => "messages",
            Medium::Crowded => "crowded",
            Medium::Windows => "windows",
            Medium::CrowdedWindows => "crowded-windows",
            Medium::Device => "device",
        }
    }
}

/// One line: for up to `ranks_max` ranks and `bytes_max` bytes in a share, use `algorithm`.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// What it is for; for messages is for all.
    pub medium: Medium,
    /// Most ranks that it is for.
    pub ranks_max: usize,
    /// Longest share that it is for, in bytes.
    pub bytes_max: usize,
    /// What to use.
    pub algorithm: &'static Algorithm,
}

/// Choices in the order of preference; the first that applies and fits is taken.
#[derive(Clone, Debug, Default)]
pub struct Table(Vec<Choice>);

/// No bound.
pub const ANY: usize = usize::MAX;

impl Table {
    /// A table of these choices, before the built-in ones.
    pub fn new(choices: Vec<Choice>) -> Self {
        Self(choices)
    }

    /// Reads the lines of a file.
    ///
    /// # Errors
    /// Names the first line that makes no sense, and why.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut choices = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("").trim();
            if !line.is_empty() {
                choices.push(choice(line).map_err(|why| format!("line {}: {why}", number + 1))?);
            }
        }
        Ok(Self(choices))
    }

    /// A number that differs when the table does: ranks compare it when they meet.
    pub(crate) fn digest(&self) -> u64 {
        let text = self.to_string();
        text.bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    /// All choices for this operation, those of the built-in table last.
    pub(super) fn choices(
        &self,
        collective: Collective,
        medium: Medium,
        ranks: usize,
        bytes: usize,
    ) -> impl Iterator<Item = Choice> + '_ {
        let applies = move |choice: &Choice| {
            choice.algorithm.collective == collective
                && choice.medium.is_for(medium)
                && ranks <= choice.ranks_max
                && bytes <= choice.bytes_max
        };
        // What was measured on a host says nothing of GPUs.
        let of_its_kind = move |choice: &&Choice| medium != Medium::Device || choice.medium == Medium::Device;
        let measured = self.0.iter().filter(of_its_kind);
        measured.copied().chain(built_in(collective)).filter(applies)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bound = |bound: usize| if bound == ANY { "any".to_owned() } else { bound.to_string() };
        for Choice { medium, ranks_max, bytes_max, algorithm } in &self.0 {
            let Algorithm { collective, name, .. } = algorithm;
            let medium = medium.name();
            writeln!(f, "{collective} {medium} {} {} {name}", bound(*ranks_max), bound(*bytes_max))?;
        }
        Ok(())
    }
}

fn choice(line: &str) -> Result<Choice, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [collective, medium, ranks_max, bytes_max, name] = words[..] else {
        return Err(format!("{} words where five are due", words.len()));
    };
    let bound = |word: &str| match word {
        "any" => Ok(ANY),
        _ => word.parse().map_err(|_| format!("`{word}` is neither a number nor `any`")),
    };
    let found = Collective::ALL.into_iter().find(|known| known.name() == collective);
    let collective = found.ok_or_else(|| format!("no collective `{collective}`"))?;
    let Some(medium) = Medium::ALL.into_iter().find(|known| known.name() == medium) else {
        let all = Medium::ALL.map(|medium| format!("`{}`", medium.name())).join(", ");
        return Err(format!("`{medium}` is none of {all}"));
    };
    let algorithm =
        find(collective, name).ok_or_else(|| format!("no algorithm `{name}` for {collective}"))?;
    if algorithm.reach > medium.reach() {
        return Err(format!("{collective} {name} does not run on {medium:?} alone"));
    }
    Ok(Choice { medium, ranks_max: bound(ranks_max)?, bytes_max: bound(bytes_max)?, algorithm })
}

/// What holds where nothing was measured: (collective, medium, most ranks, longest share, name). Lines after one without
/// bounds are for operations that it is not allowed to serve.
const BUILT_IN: &[(Collective, Medium, usize, usize, &str)] = {
    use Collective::*;
    use Medium::{Crowded, CrowdedWindows, Device, Messages, Windows};
    &[
        (AllReduce, Device, ANY, 16 << 10, "oneshot"),
        (AllReduce, Device, ANY, ANY, "twoshot"),
        (AllReduce, Windows, 2, 8 << 10, "oneshot"),
        (AllReduce, Windows, 2, ANY, "relay"),
        (AllReduce, Windows, ANY, 16 << 10, "oneshot"),
        (AllReduce, CrowdedWindows, ANY, 384 << 10, "twoshot"),
        (AllReduce, CrowdedWindows, ANY, ANY, "relay"),
        (AllReduce, Windows, ANY, ANY, "twoshot"),
        (AllGather, Windows, ANY, ANY, "direct"),
        (ReduceScatter, CrowdedWindows, ANY, 64 << 10, "direct"),
        (ReduceScatter, CrowdedWindows, ANY, ANY, "relay"),
        (ReduceScatter, Windows, ANY, ANY, "direct"),
        (Broadcast, Windows, ANY, ANY, "direct"),
        (Reduce, Windows, ANY, ANY, "direct"),
        (Gather, Windows, ANY, ANY, "direct"),
        (Scatter, Windows, ANY, ANY, "direct"),
        (AllToAll, Windows, ANY, ANY, "direct"),
        (Barrier, Windows, ANY, ANY, "direct"),
        (AllReduce, Messages, 2, 1 << 20, "doubling"),
        (AllReduce, Crowded, ANY, 48 << 10, "doubling"),
        (AllReduce, Crowded, 4, 512 << 10, "halving"),
        (AllReduce, Messages, ANY, 8 << 10, "doubling"),
        (AllReduce, Messages, ANY, 256 << 10, "halving"),
        (AllReduce, Messages, ANY, ANY, "ring"),
        (AllReduce, Messages, ANY, ANY, "ordered"),
        (AllGather, Messages, 2, 1 << 20, "doubling"),
        (AllGather, Crowded, ANY, 2 << 10, "doubling"),
        (AllGather, Crowded, 4, 512 << 10, "pat"),
        (AllGather, Messages, ANY, 64 << 10, "pat"),
        (AllGather, Messages, ANY, ANY, "ring"),
        (ReduceScatter, Crowded, ANY, 32 << 10, "halving"),
        (ReduceScatter, Crowded, 4, 256 << 10, "pat"),
        (ReduceScatter, Crowded, ANY, ANY, "ring"),
        (ReduceScatter, Messages, ANY, 64 << 10, "pat"),
        (ReduceScatter, Messages, ANY, ANY, "ring"),
        (ReduceScatter, Messages, ANY, ANY, "ordered"),
        (Broadcast, Crowded, ANY, ANY, "binomial"),
        (Broadcast, Messages, 2, 1 << 20, "binomial"),
        (Broadcast, Messages, ANY, 64 << 10, "binomial"),
        (Broadcast, Messages, ANY, ANY, "tree"),
        (Reduce, Crowded, 5, ANY, "binomial"),
        (Reduce, Crowded, 8, 2 << 10, "ordered"),
        (Reduce, Crowded, ANY, ANY, "binomial"),
        (Reduce, Messages, 2, 1 << 20, "binomial"),
        (Reduce, Messages, ANY, 64 << 10, "binomial"),
        (Reduce, Messages, ANY, ANY, "tree"),
        (Reduce, Messages, ANY, ANY, "ordered"),
        (Gather, Crowded, 4, 512, "binomial"),
        (Gather, Crowded, ANY, ANY, "linear"),
        (Gather, Messages, ANY, 4 << 10, "binomial"),
        (Gather, Messages, ANY, ANY, "linear"),
        (Scatter, Crowded, ANY, 16 << 10, "binomial"),
        (Scatter, Messages, ANY, 4 << 10, "binomial"),
        (Scatter, Messages, ANY, ANY, "linear"),
        (AllToAll, Messages, 2, 1 << 20, "exchange"),
        (AllToAll, Crowded, 4, 16 << 10, "bruck"),
        (AllToAll, Crowded, 8, 8 << 10, "bruck"),
        (AllToAll, Crowded, 16, 4 << 10, "bruck"),
        (AllToAll, Messages, ANY, 512, "bruck"),
        (AllToAll, Crowded, ANY, 64 << 10, "pairwise"),
        (AllToAll, Crowded, ANY, 512 << 10, "exchange"),
        (AllToAll, Crowded, ANY, ANY, "bursts"),
        (AllToAll, Messages, ANY, ANY, "pairwise"),
        (Barrier, Messages, ANY, ANY, "dissemination"),
    ]
};

/// Whether `row` combines operands in the order of the ranks; so does everything that combines only two, or none.
pub(super) fn is_in_rank_order(row: &Algorithm, ranks: usize) -> bool {
    rounds_once(row, ranks) || ["ordered", "naive"].contains(&row.name)
}

/// Whether `row` sums all operands in one pass, so that a sum is rounded once; so does everything that combines only two, or none.
pub(super) fn rounds_once(row: &Algorithm, ranks: usize) -> bool {
    let in_one_pass = row.reach != Reach::Messages && row.name != "relay";
    !row.collective.reduces() || ranks <= 2 || in_one_pass
}

fn built_in(collective: Collective) -> impl Iterator<Item = Choice> {
    BUILT_IN.iter().filter(move |line| line.0 == collective).filter_map(
        |&(collective, medium, ranks_max, bytes_max, name)| {
            let algorithm = find(collective, name)?;
            Some(Choice { medium, ranks_max, bytes_max, algorithm })
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_built_in_exists_and_reaches_no_further_than_it_says() {
        for &(collective, medium, _, _, name) in BUILT_IN {
            assert!(
                find(collective, name).is_some_and(|row| row.reach == medium.reach()),
                "{collective} {name}"
            );
        }
    }

    #[test]
    fn a_table_survives_its_file() {
        let text = "all_reduce windows 2 8192 oneshot\nall_reduce crowded-windows any any relay\n\
            all_reduce device any 8 oneshot\nall_reduce crowded 8 any tree\nall_reduce messages any any ring\n";
        assert_eq!(Table::parse(&format!("# measured\n\n{text}")).unwrap().to_string(), text);
    }

    #[test]
    fn lines_without_sense_are_named() {
        for (line, why) in [
            ("all_reduce windows 2 8192", "4 words"),
            ("reduce_all windows 2 8192 ring", "no collective `reduce_all`"),
            ("all_reduce near 2 8192 ring", "`near`"),
            ("all_reduce windows two 8192 ring", "`two`"),
            ("all_reduce windows 2 8192 rong", "no algorithm `rong`"),
            ("all_reduce messages 2 8192 oneshot", "does not run on Messages"),
            ("all_reduce windows 2 8192 zerocopy", "does not run on Windows"),
        ] {
            let error = Table::parse(&format!("\n{line}")).unwrap_err();
            assert!(error.starts_with("line 2") && error.contains(why), "{error}");
        }
    }
}
