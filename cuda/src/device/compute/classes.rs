//! Cross entropy where each rank has some of the classes: three kernels, between which ranks exchange numbers of rows.

use super::{Compute, Indices, at, at_mut, expect};
use crate::device::model::Classes;
use crate::device::{GpuError, Stream, View, ViewMut};
use std::ptr::null_mut;

/// Where this rank has the class of each row, if it does.
pub struct Places {
    numbers: Indices,
    /// Columns of the logits.
    columns: usize,
    /// Columns that are classes; the rest is padding.
    count: usize,
}

impl Places {
    /// Of rows of `columns` logits, of which the first `count` are of classes. A place is below `count`, [`Places::ELSEWHERE`] if another
    /// rank has the class, or [`Places::NOWHERE`] for a row that does not count.
    ///
    /// # Errors
    /// [`GpuError::Index`] for one that is none of these, and of the driver.
    pub fn new(stream: &Stream, places: &[u32], columns: usize, count: usize) -> Result<Self, GpuError> {
        expect(count.min(columns), count)?;
        let is_none = |place: &&u32| **place as usize >= count && **place < Self::ELSEWHERE;
        if let Some(&index) = places.iter().find(is_none) {
            return Err(GpuError::Index { index, below: count });
        }
        let place = |&place: &u32| if place == Self::ELSEWHERE { columns as u32 } else { place };
        let places: Vec<u32> = places.iter().map(place).collect();
        let numbers = Indices::new(stream, &places, columns + 1, Some(Self::NOWHERE))?;
        Ok(Self { numbers, columns, count })
    }

    /// Another rank has the class.
    pub const ELSEWHERE: u32 = u32::MAX - 1;
    /// The row does not count.
    pub const NOWHERE: u32 = u32::MAX;

    /// All but the pointers to what changes.
    fn arguments(&self, logits: usize) -> Result<Classes, GpuError> {
        let rows = self.numbers.len();
        expect(logits, rows * self.columns)?;
        Ok(Classes {
            logits: null_mut(),
            targets: at(&self.numbers.numbers.view(..)),
            greatest: null_mut(),
            both: null_mut(),
            rows: rows as u64,
            columns: self.columns as u64,
            count: self.count as u64,
            share: 0.0,
            ignored: Self::NOWHERE,
            ignores: 1,
            unused: 0,
        })
    }
}

impl Compute {
    /// The greatest of this rank's logits of each row.
    ///
    /// # Errors
    /// If lengths do not go together, and of the driver; here and below.
    pub fn class_greatest(
        &self,
        logits: View<'_, f32>,
        places: &Places,
        greatest: ViewMut<'_, f32>,
    ) -> Result<(), GpuError> {
        let rows = places.numbers.len();
        expect(greatest.len(), rows)?;
        let (from, to) = (at(&logits).cast_mut(), at_mut(&greatest));
        let arguments = Classes { logits: from, greatest: to, ..places.arguments(logits.len())? };
        let greatest = greatest.as_view();
        // SAFETY: pointers are to views of these extents; logits are only read.
        unsafe {
            self.launch("class_greatest", self.by_rows(rows), &[logits.memory, greatest.memory], &arguments)
        }
    }

    /// Logits become powers of e, each less the `greatest` of its row; `both` gets the sum of those of each row, then the logit at the
    /// target of each, or 0.
    ///
    /// # Errors
    /// As [`Compute::class_greatest`].
    pub fn class_powers(
        &self,
        logits: ViewMut<'_, f32>,
        places: &Places,
        greatest: View<'_, f32>,
        both: ViewMut<'_, f32>,
    ) -> Result<(), GpuError> {
        let rows = places.numbers.len();
        expect(greatest.len(), rows)?;
        expect(both.len(), 2 * rows)?;
        let arguments = Classes {
            logits: at_mut(&logits),
            greatest: at(&greatest).cast_mut(),
            both: at_mut(&both),
            ..places.arguments(logits.len())?
        };
        let (logits, both) = (logits.as_view(), both.as_view());
        let memories = [logits.memory, greatest.memory, both.memory, places.numbers.numbers.view(..).memory];
        // SAFETY: pointers are to views of these extents; `greatest` is only read, and no place is beyond the columns.
        unsafe { self.launch("class_powers", self.by_rows(rows), &memories, &arguments) }
    }

    /// Powers become the gradient of `share` times the sum of the losses, and `greatest` the losses, by what `both` is summed over ranks.
    ///
    /// # Errors
    /// As [`Compute::class_greatest`].
    pub fn class_slopes(
        &self,
        powers: ViewMut<'_, f32>,
        places: &Places,
        both: View<'_, f32>,
        greatest: ViewMut<'_, f32>,
        share: f32,
    ) -> Result<(), GpuError> {
        let rows = places.numbers.len();
        expect(greatest.len(), rows)?;
        expect(both.len(), 2 * rows)?;
        let arguments = Classes {
            logits: at_mut(&powers),
            greatest: at_mut(&greatest),
            both: at(&both).cast_mut(),
            share,
            ..places.arguments(powers.len())?
        };
        let (powers, greatest) = (powers.as_view(), greatest.as_view());
        let memories = [powers.memory, greatest.memory, both.memory, places.numbers.numbers.view(..).memory];
        // SAFETY: pointers are to views of these extents; `both` is only read, and no place is beyond the columns.
        unsafe { self.launch("class_slopes", self.by_rows(rows), &memories, &arguments) }
    }
}
