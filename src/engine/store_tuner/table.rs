//! Store tuners for classes of operations. Classes whose costs cannot be compared have separate
//! tuners.
//!
//! A byte costs more when the operands have left the cache, and a byte of a sum costs more than one
//! of a copy. So each algorithm learns for itself, and for each power of two of bytes.

use crate::engine::store_tuner::StoreTuner;
use crate::op_desc::AlgorithmDigest;
use crate::schedule::Collective;
use unisono_transports::SlotClass;

/// The tuners of one rank. All ranks run the same operations, so they create and drop the same
/// tuners.
#[derive(Debug)]
pub(in crate::engine) struct TunerTable {
    entries: Vec<(Option<OpClass>, StoreTuner)>,
    /// Index of the entry to replace next when the table is full.
    oldest: usize,
}

/// Operations whose costs can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct OpClass {
    collective: Collective,
    algorithm: AlgorithmDigest,
    log2_bytes: u32,
    /// The slots that carry the data; `None` for windows.
    slot_class: Option<SlotClass>,
}

impl OpClass {
    /// Returns the class of an operation over windows with chunks of `chunk_bytes` bytes.
    pub(in crate::engine) fn new(
        collective: Collective,
        algorithm: AlgorithmDigest,
        chunk_bytes: usize,
    ) -> Self {
        Self { collective, algorithm, log2_bytes: chunk_bytes.checked_ilog2().unwrap_or(0), slot_class: None }
    }

    /// Returns the class of the same operation over slots.
    pub(in crate::engine) fn in_slots(self, slot_class: SlotClass) -> Self {
        Self { slot_class: Some(slot_class), ..self }
    }
}

/// Index of the tuner for 16 KiB slots, which all operations share. Longer slots have one for each
/// class.
pub(in crate::engine) const EAGER_K16: usize = 0;

impl Default for TunerTable {
    fn default() -> Self {
        Self { entries: vec![(None, StoreTuner::default())], oldest: EAGER_K16 + 1 }
    }
}

impl TunerTable {
    /// Returns the index of the tuner for a class, and creates the tuner if it is new.
    pub(in crate::engine) fn entry(&mut self, class: OpClass) -> usize {
        if let Some(index) = self.entries.iter().position(|(known, _)| *known == Some(class)) {
            return index;
        }
        let entry = (Some(class), StoreTuner::default());
        if self.entries.len() < ENTRIES_MAX {
            self.entries.push(entry);
            return self.entries.len() - 1;
        }
        let index = self.oldest;
        self.oldest = if index + 1 < ENTRIES_MAX { index + 1 } else { EAGER_K16 + 1 };
        self.entries[index] = entry;
        index
    }

    pub(in crate::engine) fn tuner(&self, index: usize) -> &StoreTuner {
        &self.entries[index].1
    }

    pub(in crate::engine) fn tuner_mut(&mut self, index: usize) -> &mut StoreTuner {
        &mut self.entries[index].1
    }
}

/// Number of tuners kept; more than the classes of one program.
const ENTRIES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn op_class(chunk_bytes: usize) -> OpClass {
        let algorithm = crate::schedule::find(Collective::AllReduce, "ring").expect("a ring");
        OpClass::new(Collective::AllReduce, AlgorithmDigest::of(algorithm, 4), chunk_bytes)
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
        let mut table = TunerTable::default();
        let classes: Vec<_> =
            (0..ENTRIES_MAX as u32).map(|log2_bytes| OpClass { log2_bytes, ..op_class(1) }).collect();
        let indices: Vec<_> = classes[1..].iter().map(|&class| table.entry(class)).collect();
        assert_eq!(indices, (1..ENTRIES_MAX).collect::<Vec<_>>());
        assert_eq!(table.entry(classes[7]), 7);
        assert_eq!([classes[0], classes[1], classes[0]].map(|class| table.entry(class)), [1, 2, 1]);
        assert!(classes.iter().chain(&classes).all(|&class| table.entry(class) != EAGER_K16));
    }
}
