//! The algorithms whose names this process knows: those of the library, and those that callers
//! register.

use super::algorithm::TABLE;
use super::{Algorithm, Collective};
use std::sync::{PoisonError, RwLock};

/// The algorithms that callers have registered, in the order of registration.
static REGISTERED: RwLock<Vec<&'static Algorithm>> = RwLock::new(Vec::new());

impl Algorithm {
    /// Returns the algorithms of the library, followed by those that
    /// [`register_algorithm`](crate::register_algorithm) has added.
    pub fn all() -> Vec<&'static Algorithm> {
        let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
        TABLE.iter().chain(registered.iter().copied()).collect()
    }

    /// Returns true if this is a row of the library's table, and not a copy of a row.
    pub(crate) fn is_built_in(&self) -> bool {
        TABLE.as_ptr_range().contains(&std::ptr::from_ref(self))
    }
}

/// Returns the algorithm called `name` for `collective`. It belongs to the library, or was
/// registered.
pub fn find(collective: Collective, name: &str) -> Option<&'static Algorithm> {
    let is_named = |row: &&'static Algorithm| row.collective == collective && row.name == name;
    let registered = || {
        let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
        registered.iter().copied().find(is_named)
    };
    TABLE.iter().find(is_named).or_else(registered)
}

/// Registers an algorithm in this process. If another algorithm has the same name, returns that one
/// as the error.
pub(crate) fn add(algorithm: Algorithm) -> Result<&'static Algorithm, &'static Algorithm> {
    // One lock covers the search and the addition, so that two threads cannot add the same name.
    let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
    let is_named =
        |row: &&&'static Algorithm| (row.collective, row.name) == (algorithm.collective, algorithm.name);
    let built_in = TABLE.iter().find(|row| is_named(&row));
    if let Some(known) = built_in.or_else(|| registered.iter().find(is_named).copied()) {
        return Err(known);
    }
    let algorithm = algorithm.leak();
    registered.push(algorithm);
    Ok(algorithm)
}
