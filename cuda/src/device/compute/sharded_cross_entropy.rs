//! Cross entropy where each rank has some of the classes: three kernels, between which ranks
//! exchange a number for each row.

use crate::device::compute::{Compute, Indices, as_device_mut_ptr, as_device_ptr, check_len};
use crate::device::model::ShardedCrossEntropy;
use crate::device::{GpuError, Stream, View, ViewMut};
use std::ptr::null_mut;

/// Column of the target class of each row, if this rank has the class.
pub struct LocalTargets {
    numbers: Indices,
    /// Columns of the logits.
    columns: usize,
    /// Columns that are classes; the rest is padding.
    count: usize,
}

impl LocalTargets {
    /// Uploads the targets of rows of `columns` logits, of which the first `count` are classes. A
    /// place is below `count`, [`LocalTargets::OTHER_RANK`] if another rank has the class, or
    /// [`LocalTargets::IGNORED`] for a row that has no loss.
    ///
    /// # Errors
    /// [`GpuError::IndexOutOfRange`] for another place, or the driver fails.
    pub fn new(stream: &Stream, places: &[u32], columns: usize, count: usize) -> Result<Self, GpuError> {
        check_len(count.min(columns), count)?;
        let is_none = |place: &&u32| **place as usize >= count && **place < Self::OTHER_RANK;
        if let Some(&index) = places.iter().find(is_none) {
            return Err(GpuError::IndexOutOfRange { index, below: count });
        }
        let place = |&place: &u32| if place == Self::OTHER_RANK { columns as u32 } else { place };
        let places: Vec<u32> = places.iter().map(place).collect();
        let numbers = Indices::new(stream, &places, columns + 1, Some(Self::IGNORED))?;
        Ok(Self { numbers, columns, count })
    }

    /// Another rank has the class.
    pub const OTHER_RANK: u32 = u32::MAX - 1;
    /// Target of a row that adds nothing to the loss.
    pub const IGNORED: u32 = u32::MAX;

    /// All but the pointers to what changes.
    fn arguments(&self, logits: usize) -> Result<ShardedCrossEntropy, GpuError> {
        let rows = self.numbers.len();
        check_len(logits, rows * self.columns)?;
        Ok(ShardedCrossEntropy {
            logits: null_mut(),
            targets: as_device_ptr(&self.numbers.numbers.view(..)),
            max: null_mut(),
            sums_and_target_logits: null_mut(),
            rows: rows as u64,
            columns: self.columns as u64,
            count: self.count as u64,
            share: 0.0,
            ignored: Self::IGNORED,
            ignores: 1,
            unused: 0,
        })
    }
}

impl Compute {
    /// The max of this rank's logits of each row.
    ///
    /// # Errors
    /// If lengths do not go together, and of the driver; here and below.
    pub fn class_max(
        &self,
        logits: View<'_, f32>,
        places: &LocalTargets,
        max: ViewMut<'_, f32>,
    ) -> Result<(), GpuError> {
        let rows = places.numbers.len();
        check_len(max.len(), rows)?;
        let (logits_address, max_address) = (as_device_ptr(&logits).cast_mut(), as_device_mut_ptr(&max));
        let arguments = ShardedCrossEntropy {
            logits: logits_address,
            max: max_address,
            ..places.arguments(logits.len())?
        };
        let max = max.as_view();
        // SAFETY: pointers are to views of these extents; logits are only read.
        unsafe { self.launch("class_max", self.by_rows(rows), &[logits.memory, max.memory], &arguments) }
    }

    /// Turns logits into exponentials, each less the `max` of its row. `both` gets the sum of the
    /// exponentials of each row, and then the logit at the target of each, or 0.
    ///
    /// # Errors
    /// Same as [`Compute::class_max`].
    pub fn class_exp(
        &self,
        logits: ViewMut<'_, f32>,
        places: &LocalTargets,
        max: View<'_, f32>,
        both: ViewMut<'_, f32>,
    ) -> Result<(), GpuError> {
        let rows = places.numbers.len();
        check_len(max.len(), rows)?;
        check_len(both.len(), 2 * rows)?;
        let arguments = ShardedCrossEntropy {
            logits: as_device_mut_ptr(&logits),
            max: as_device_ptr(&max).cast_mut(),
            sums_and_target_logits: as_device_mut_ptr(&both),
            ..places.arguments(logits.len())?
        };
        let (logits, sums) = (logits.as_view(), both.as_view());
        let memories = [logits.memory, max.memory, sums.memory, places.numbers.numbers.view(..).memory];
        // SAFETY: pointers are to views of these extents. `max` is only read, and no place is
        // beyond the columns.
        unsafe { self.launch("class_exp", self.by_rows(rows), &memories, &arguments) }
    }

    /// Turns exponentials into the gradient of `share` times the sum of the losses, and `max` into
    /// the losses. `both` is summed over the ranks.
    ///
    /// # Errors
    /// Same as [`Compute::class_max`].
    pub fn class_backward(
        &self,
        powers: ViewMut<'_, f32>,
        places: &LocalTargets,
        both: View<'_, f32>,
        max: ViewMut<'_, f32>,
        share: f32,
    ) -> Result<(), GpuError> {
        let rows = places.numbers.len();
        check_len(max.len(), rows)?;
        check_len(both.len(), 2 * rows)?;
        let arguments = ShardedCrossEntropy {
            logits: as_device_mut_ptr(&powers),
            max: as_device_mut_ptr(&max),
            sums_and_target_logits: as_device_ptr(&both).cast_mut(),
            share,
            ..places.arguments(powers.len())?
        };
        let (powers, max) = (powers.as_view(), max.as_view());
        let memories = [powers.memory, max.memory, both.memory, places.numbers.numbers.view(..).memory];
        // SAFETY: pointers are to views of these extents. `both` is only read, and no place is
        // beyond the columns.
        unsafe { self.launch("class_backward", self.by_rows(rows), &memories, &arguments) }
    }
}
