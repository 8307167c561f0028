//! The compared cases: a collective, a number of ranks, a transport, a load.

use crate::load::Load;

/// The collectives that every library has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Collective {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    AllToAll,
}

impl Collective {
    pub(crate) const ALL: [Self; 5] =
        [Self::AllReduce, Self::AllGather, Self::ReduceScatter, Self::Broadcast, Self::AllToAll];

    /// Name on command lines and in records.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::Broadcast => "broadcast",
            Self::AllToAll => "all_to_all",
        }
    }

    /// Bus bandwidth over algorithm bandwidth, as in nccl-tests.
    pub(crate) fn bus_factor(self, ranks: usize) -> f64 {
        let share = (ranks - 1) as f64 / ranks as f64;
        match self {
            Self::AllReduce => 2.0 * share,
            Self::Broadcast => 1.0,
            Self::AllGather | Self::ReduceScatter | Self::AllToAll => share,
        }
    }
}

/// Transport between the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Transport {
    /// The memory of one host; a library without that takes what it has.
    Shm,
    /// TCP over loopback.
    Tcp,
}

impl Transport {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        }
    }
}

/// Parameters that one launch shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct World {
    pub(crate) transport: Transport,
    pub(crate) ranks: usize,
    pub(crate) load: Load,
}

impl World {
    pub(crate) fn case(self, collective: Collective) -> Case {
        Case { transport: self.transport, collective, ranks: self.ranks, load: self.load }
    }
}

impl std::fmt::Display for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ranks, {}{}", self.ranks, self.transport.name(), suffix(self.load))
    }
}

/// One plot, and one part of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Case {
    pub(crate) transport: Transport,
    pub(crate) collective: Collective,
    pub(crate) ranks: usize,
    pub(crate) load: Load,
}

impl Case {
    /// Rounds `bytes` to a size with whole, nonempty blocks.
    pub(crate) fn stated(self, bytes: usize) -> usize {
        let blocks = match self.collective {
            Collective::AllReduce | Collective::Broadcast => 1,
            Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => self.ranks,
        };
        let elements = bytes / size_of::<f32>() / blocks;
        elements.max(1) * blocks * size_of::<f32>()
    }

    /// Returns the name of the case without its load.
    pub(crate) fn place(self) -> String {
        format!("{}, {} ranks, {}", self.collective.name(), self.ranks, self.transport.name())
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.place(), suffix(self.load))
    }
}

/// Words on the load behind a name; none on a quiet machine.
fn suffix(load: Load) -> String {
    if load.is_quiet() { String::new() } else { format!(", {load}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_stated_in_whole_blocks() {
        let world = World { transport: Transport::Shm, ranks: 8, load: Load::QUIET };
        let stated = |collective, bytes| world.case(collective).stated(bytes);
        assert_eq!((stated(Collective::AllReduce, 8), stated(Collective::AllGather, 8)), (8, 32));
        assert_eq!((stated(Collective::Broadcast, 1002), stated(Collective::AllToAll, 1002)), (1000, 992));
        assert_eq!(stated(Collective::ReduceScatter, 1 << 20), 1 << 20);
    }
}
