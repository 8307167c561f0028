//! Caches the selected algorithms, so that repeated operations are selected once. [`select`] makes
//! the choice.

use crate::engine::plan::cache::insert_bounded;
use crate::engine::{Engine, Job};
use crate::error::Result;
use crate::hash::fnv1a;
use crate::log;
use crate::op_desc::AlgorithmDigest;
use crate::schedule::{Algorithm, Collective, GroupSpec, Rank};
use crate::select::{self, Topology};

/// The inputs of a selection that differ between the operations of one communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SelectionKey {
    collective: Collective,
    root: Rank,
    bytes: usize,
    combining: Combining,
}

/// The demands of a reduction on the order in which operands are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Combining {
    AnyOrder,
    /// Sums are rounded to floats of 8 or 16 bits, so fewer roundings give better results.
    Narrow,
    RankOrder,
}

impl Combining {
    fn of(job: &Job<'_>) -> Self {
        match job.reduction {
            Some(op) if op.needs_rank_order() => Self::RankOrder,
            _ if job.is_narrow() => Self::Narrow,
            _ => Self::AnyOrder,
        }
    }
}

/// The latest selections, so that a repeated operation does not search the tuning table again.
#[derive(Default)]
pub(super) struct SelectionCache {
    entries: Vec<(SelectionKey, &'static Algorithm, GroupSpec)>,
    /// Index of the entry to replace next when the cache is full.
    oldest: usize,
}

impl SelectionCache {
    fn find(&self, key: &SelectionKey) -> Option<(&'static Algorithm, GroupSpec)> {
        let (_, algorithm, spec) = self.entries.iter().find(|(known, ..)| known == key)?;
        Some((algorithm, *spec))
    }

    fn insert(&mut self, key: SelectionKey, algorithm: &'static Algorithm, spec: GroupSpec) {
        insert_bounded(&mut self.entries, &mut self.oldest, (key, algorithm, spec));
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.oldest = 0;
    }
}

/// An algorithm that the caller has set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Override {
    pub(crate) algorithm: &'static Algorithm,
    /// True if the schedule is proved for each number of ranks before it is used.
    pub(crate) is_proved: bool,
}

/// The algorithms that the caller has set, by collective.
pub(crate) type Overrides = [Option<Override>; Collective::ALL.len()];

impl Engine {
    /// Sets the algorithm of a collective, or returns the choice to the tuning table.
    pub(crate) fn set_override(&mut self, collective: Collective, algorithm: Option<Override>) {
        self.overrides[collective as usize] = algorithm;
        // Plans of the pipelined executor stay, because the algorithm is a part of their key.
        self.selections.clear();
        self.eager.plans.clear();
    }

    /// Returns the algorithms that the caller has set.
    pub(crate) fn overrides(&self) -> Overrides {
        self.overrides
    }

    /// Returns a digest of the algorithms that the caller has set, which is equal on ranks that
    /// made the same calls.
    pub(crate) fn overrides_digest(&self) -> u64 {
        let set = self.overrides.iter().flatten();
        let words = set.flat_map(|Override { algorithm, is_proved }| {
            let digest = AlgorithmDigest::of(algorithm, self.fabric.ranks).bytes();
            let facts = [algorithm.collective as u8, u8::from(*is_proved), digest[0], digest[1]];
            facts.into_iter().chain(algorithm.name.bytes())
        });
        fnv1a(words.map(u64::from))
    }

    /// Forgets the algorithms that were set, because the ranks that are left do not agree on them.
    pub(crate) fn drop_overrides(&mut self) {
        self.overrides = Overrides::default();
        log::warn_user(
            "the ranks that are left had set different algorithms when others failed: the library chooses again",
        );
    }

    /// Checks that an algorithm can be set.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if it needs another transport or
    /// another number of ranks.
    pub(crate) fn check_settable(&self, algorithm: &'static Algorithm) -> Result<()> {
        select::check_settable(algorithm, self.fabric.ranks, self.topology())
    }

    /// Returns the algorithm and the group spec of `job`, from the cache if it has them.
    pub(super) fn select_for(&mut self, job: &Job<'_>) -> Result<(&'static Algorithm, GroupSpec)> {
        let Job { collective, root, share_bytes_max: bytes, .. } = *job;
        let key = SelectionKey { collective, root, bytes, combining: Combining::of(job) };
        if let Some(found) = self.selections.find(&key) {
            return Ok(found);
        }
        let algorithm = match key.combining {
            Combining::RankOrder => self.select_in_rank_order(collective, root, bytes)?,
            combining => self.select_algorithm(collective, root, bytes, combining == Combining::Narrow)?,
        };
        let spec = self.group_spec(collective, root, bytes);
        self.selections.insert(key, algorithm, spec);
        Ok((algorithm, spec))
    }

    /// Returns the algorithm that an operation of this size would use.
    ///
    /// `narrow` is true if the result is rounded to floats of 8 or 16 bits.
    pub(crate) fn select_algorithm(
        &self,
        collective: Collective,
        root: Rank,
        bytes: usize,
        narrow: bool,
    ) -> Result<&'static Algorithm> {
        let spec = self.group_spec(collective, root, bytes);
        match self.overrides[collective as usize] {
            Some(set) => select::set_by_caller(set.algorithm, &spec, self.topology()),
            None => select::algorithm(collective, &spec, bytes, self.topology(), narrow, &self.config),
        }
    }

    /// Returns the algorithm for an operator that is not commutative.
    fn select_in_rank_order(
        &self,
        collective: Collective,
        root: Rank,
        bytes: usize,
    ) -> Result<&'static Algorithm> {
        let set = self.overrides[collective as usize].map(|set| set.algorithm);
        select::in_rank_order(
            collective,
            &self.group_spec(collective, root, bytes),
            (bytes, self.topology()),
            set,
            &self.config,
        )
    }

    /// Returns the topology of this communicator.
    fn topology(&self) -> Topology {
        match self.fabric.window {
            Some(_) if self.fabric.oversubscribed => Topology::SharedMemoryOversubscribed,
            Some(_) => Topology::SharedMemory,
            None if self.fabric.oversubscribed => Topology::NetworkOversubscribed,
            None => Topology::Network,
        }
    }

    fn group_spec(&self, collective: Collective, root: Rank, bytes: usize) -> GroupSpec {
        let ranks = self.fabric.ranks;
        let aggregation = select::aggregation(collective, ranks, bytes, self.fabric.geometry.slot_bytes);
        GroupSpec { ranks, root, aggregation }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::plan::cache::CACHE_ENTRIES_MAX;

    #[test]
    fn selection_cache_replaces_oldest_entry_when_full() {
        let row = crate::schedule::find(Collective::AllReduce, "ring").unwrap();
        let key = |bytes| SelectionKey {
            collective: Collective::AllReduce,
            root: 0,
            bytes,
            combining: Combining::AnyOrder,
        };
        let spec = GroupSpec::new(2);
        let mut cache = SelectionCache::default();
        (0..=CACHE_ENTRIES_MAX).for_each(|bytes| cache.insert(key(bytes), row, spec));
        assert!(cache.find(&key(0)).is_none(), "the first entry was replaced");
        assert!((1..=CACHE_ENTRIES_MAX).all(|bytes| cache.find(&key(bytes)).is_some()));
        let other = SelectionKey { combining: Combining::Narrow, ..key(1) };
        assert!(cache.find(&other).is_none(), "narrow sums are selected apart");
        cache.clear();
        assert!(cache.find(&key(1)).is_none());
    }
}
