//! A list that the forked child of a process with threads may read.
//!
//! It only grows, and no lock protects it. A slot whose owner is gone is taken again.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Slots that are never freed.
pub(super) struct SlotList<T: Sync + 'static> {
    first: AtomicPtr<Slot<T>>,
}

struct Slot<T> {
    value: T,
    next: *mut Slot<T>,
}

impl<T: Sync + 'static> SlotList<T> {
    pub(super) const fn new() -> Self {
        Self { first: AtomicPtr::new(null_mut()) }
    }

    /// Returns the values of all slots.
    pub(super) fn values(&self) -> impl Iterator<Item = &'static T> {
        let next = |pointer: *mut Slot<T>| -> Option<&'static Slot<T>> {
            // SAFETY: the list has null or slots that live forever.
            unsafe { pointer.as_ref() }
        };
        let slots =
            std::iter::successors(next(self.first.load(Ordering::Acquire)), move |slot| next(slot.next));
        slots.map(|slot| &slot.value)
    }

    /// Returns the first slot that `takes` takes, or a new one with `value`.
    pub(super) fn take(&self, takes: impl Fn(&T) -> bool, value: T) -> &'static T {
        self.values().find(|value| takes(value)).unwrap_or_else(|| self.add(value))
    }

    fn add(&self, value: T) -> &'static T {
        let slot = Box::leak(Box::new(Slot { value, next: self.first.load(Ordering::Acquire) }));
        let slot = &raw mut *slot;
        loop {
            // SAFETY: nobody else has the slot yet, and it lives forever.
            let next = unsafe { (*slot).next };
            match self.first.compare_exchange(next, slot, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: as above.
                Ok(_) => return unsafe { &(*slot).value },
                // SAFETY: as above.
                Err(newer) => unsafe { (*slot).next = newer },
            }
        }
    }
}
