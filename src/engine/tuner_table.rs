//! What the two ways into windows cost, kept apart for what is not to be compared.
//!
//! A byte costs more where operands have left the cache, and a byte of a sum more than one of a copy. So each algorithm
//! learns for itself, and for each power of two of bytes.

use crate::engine::store_tuner::StoreTuner;
use crate::op_desc::AlgorithmDigest;
use crate::schedule::Collective;
use unisono_transports::SlotClass;

/// The accounts of one rank. All ranks run the same operations, so they open and drop the same ones.
#[derive(Debug)]
pub(super) struct TunerTable {
    entries: Vec<(Option<OpClass>, StoreTuner)>,
    /// Whose place is taken next, when there are enough.
    oldest: usize,
}

/// What can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpClass {
    collective: Collective,
    algorithm: AlgorithmDigest,
    log2_bytes: u32,
    /// In windows, if in none.
    slot_class: Option<SlotClass>,
}

impl OpClass {
    /// Of an operation over windows with chunks of so many bytes.
    pub(super) fn new(collective: Collective, algorithm: AlgorithmDigest, chunk_bytes: usize) -> Self {
        Self { collective, algorithm, log2_bytes: chunk_bytes.checked_ilog2().unwrap_or(0), slot_class: None }
    }

    /// The same in slots of this kind.
    pub(super) fn in_slots(self, slot: SlotClass) -> Self {
        Self { slot_class: Some(slot), ..self }
    }
}

/// The account of what travels in slots of four pages; in longer ones it has one for each kind of operation.
pub(super) const EAGER_K16: usize = 0;

impl Default for TunerTable {
    fn default() -> Self {
        Self { entries: vec![(None, StoreTuner::default())], oldest: EAGER_K16 + 1 }
    }
}

impl TunerTable {
    /// Where the account of this kind is, opened now if it is new.
    pub(super) fn entry(&mut self, kind: OpClass) -> usize {
        if let Some(place) = self.entries.iter().position(|(known, _)| *known == Some(kind)) {
            return place;
        }
        let account = (Some(kind), StoreTuner::default());
        if self.entries.len() < ENTRIES_MAX {
            self.entries.push(account);
            return self.entries.len() - 1;
        }
        let place = self.oldest;
        self.oldest = if place + 1 < ENTRIES_MAX { place + 1 } else { EAGER_K16 + 1 };
        self.entries[place] = account;
        place
    }

    pub(super) fn tuner(&self, place: usize) -> &StoreTuner {
        &self.entries[place].1
    }

    pub(super) fn tuner_mut(&mut self, place: usize) -> &mut StoreTuner {
        &mut self.entries[place].1
    }
}

/// More kinds at a time than a program has.
const ENTRIES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn op_class(chunk_bytes: usize) -> OpClass {
        let algorithm = crate::schedule::find(Collective::AllReduce, "ring").expect("a ring");
        OpClass::new(Collective::AllReduce, AlgorithmDigest::of(algorithm), chunk_bytes)
    }

    #[test]
    fn op_class_groups_sizes_by_power_of_two() {
        assert_eq!(op_class(4096), op_class(8191));
        assert_ne!(op_class(4096), op_class(8192));
        assert_ne!(op_class(0), op_class(4096));
        assert_ne!(OpClass { collective: Collective::AllGather, ..op_class(4096) }, op_class(4096));
        assert_ne!(op_class(4096).in_slots(SlotClass::K32), op_class(4096));
    }

    #[test]
    fn tuner_table_evicts_oldest_entry() {
        let mut ledger = TunerTable::default();
        let kinds: Vec<_> = (0..ENTRIES_MAX as u32)
            .map(|magnitude| OpClass { log2_bytes: magnitude, ..op_class(1) })
            .collect();
        let places: Vec<_> = kinds[1..].iter().map(|&kind| ledger.entry(kind)).collect();
        assert_eq!(places, (1..ENTRIES_MAX).collect::<Vec<_>>());
        assert_eq!(ledger.entry(kinds[7]), 7);
        assert_eq!([kinds[0], kinds[1], kinds[0]].map(|kind| ledger.entry(kind)), [1, 2, 1]);
        assert!(kinds.iter().chain(&kinds).all(|&kind| ledger.entry(kind) != EAGER_K16));
    }
}
