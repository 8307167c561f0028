//! Objects behind handles.

use crate::abi::Handle;
use std::collections::HashMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A table of objects by handle. Handles are small numbers, so that they fit into Fortran integers.
pub(crate) struct Handles<T> {
    entries: RwLock<Option<HashMap<Handle, T>>>,
    first: Handle,
}

impl<T> Handles<T> {
    /// Creates a table whose handles begin at `first`.
    pub(crate) const fn new(first: Handle) -> Self {
        Self { entries: RwLock::new(None), first }
    }

    /// Stores an object and returns its handle, the lowest that is free.
    pub(crate) fn add(&self, object: T) -> Handle {
        let mut entries = self.write();
        let entries = entries.get_or_insert_default();
        let mut handle = self.first;
        while entries.contains_key(&handle) {
            handle += 1;
        }
        entries.insert(handle, object);
        handle
    }

    /// Stores an object under a handle of the caller's choice.
    pub(crate) fn set(&self, handle: Handle, object: T) {
        self.write().get_or_insert_default().insert(handle, object);
    }

    /// Returns a copy of the object, if the handle has one.
    pub(crate) fn get(&self, handle: Handle) -> Option<T>
    where
        T: Clone,
    {
        self.read().as_ref()?.get(&handle).cloned()
    }

    /// Removes and returns the object.
    pub(crate) fn remove(&self, handle: Handle) -> Option<T> {
        self.write().as_mut()?.remove(&handle)
    }

    /// Removes and returns all objects.
    pub(crate) fn take_all(&self) -> Vec<T> {
        self.write().take().unwrap_or_default().into_values().collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, Option<HashMap<Handle, T>>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Option<HashMap<Handle, T>>> {
        self.entries.write().unwrap_or_else(PoisonError::into_inner)
    }
}
