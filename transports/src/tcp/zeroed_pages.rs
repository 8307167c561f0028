//! Zeroed memory from the system, which costs nothing until it is touched.

use crate::sys::segment::Segment;
use crate::{Error, Result};
use std::ops::{Deref, DerefMut};

/// Zeroed bytes of one owner, none at first.
///
/// An allocator keeps large touched blocks for later requests, and clears them then. These pages go
/// back to the system instead.
#[derive(Debug, Default)]
pub(crate) struct ZeroedPages(Option<Segment>);

impl ZeroedPages {
    /// Allocates `bytes` zeros.
    ///
    /// # Errors
    /// Returns the system's error, with the number of bytes.
    pub(crate) fn new(bytes: usize) -> Result<Self> {
        let failed = |error| match error {
            Error::System { source, .. } => {
                let what = format!(
                    "cannot get {bytes} bytes for messages that arrive (address space by `ulimit -v`)"
                );
                Error::System { what, source }
            }
            other => other,
        };
        Ok(Self(Some(Segment::private(bytes).map_err(failed)?)))
    }
}

impl Deref for ZeroedPages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let Some(segment) = &self.0 else { return &[] };
        // SAFETY: mapped and zeroed for as long as the segment, which nobody else has.
        unsafe { std::slice::from_raw_parts(segment.at(0, segment.bytes()), segment.bytes()) }
    }
}

impl DerefMut for ZeroedPages {
    fn deref_mut(&mut self) -> &mut [u8] {
        let Some(segment) = &self.0 else { return &mut [] };
        // SAFETY: as above, and `&mut self` is the only borrow of it.
        unsafe { std::slice::from_raw_parts_mut(segment.at(0, segment.bytes()), segment.bytes()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroed_pages_are_writable() {
        assert!(ZeroedPages::default().is_empty());
        let mut zeros = ZeroedPages::new(10_000).unwrap();
        assert_eq!((zeros.len(), zeros.iter().max()), (10_000, Some(&0)));
        zeros.fill(7);
        assert!(zeros.iter().all(|&byte| byte == 7));
    }
}
