//! An operation that has been asked for, and what must hold before anything of it is sent.

use super::Communicator;
use crate::call::Kind;
use crate::error::{Error, Result};
use crate::schedule::Rank;

/// One operation, as long as it may be refused: that names it and both values, and harms nothing.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'c> {
    comm: &'c Communicator,
    /// None where numbers and names are another's.
    kind: Option<Kind>,
}

impl Communicator {
    /// An operation of this kind.
    #[inline]
    pub(crate) fn asked(&self, kind: impl Into<Kind>) -> Asked<'_> {
        Asked { comm: self, kind: Some(kind.into()) }
    }

    /// An operation that is not carried out by this communicator itself.
    #[cfg(feature = "gpu")]
    pub(crate) fn asked_elsewhere(&self) -> Asked<'_> {
        Asked { comm: self, kind: None }
    }
}

impl Asked<'_> {
    pub(crate) fn in_range(self, what: &str, rank: Rank) -> Result<()> {
        if rank < self.comm.ranks() {
            return Ok(());
        }
        Err(self.refused(format!("{what} is rank {rank}, but there are only {} ranks", self.comm.ranks())))
    }

    #[inline]
    pub(crate) fn same_length(self, what: &str, found: usize, expected: usize) -> Result<()> {
        if found == expected { Ok(()) } else { self.wrong_length(what, found, expected) }
    }

    #[cold]
    fn wrong_length(self, what: &str, found: usize, expected: usize) -> Result<()> {
        let ranks = self.comm.ranks();
        Err(self.refused(format!("{what} has length {found}, but {expected} is needed with {ranks} ranks")))
    }

    pub(crate) fn same_length_if(
        self,
        applies: bool,
        what: &str,
        found: usize,
        expected: usize,
    ) -> Result<()> {
        if applies { self.same_length(what, found, expected) } else { Ok(()) }
    }

    /// Elements of one rank's share of a buffer.
    pub(crate) fn share_of(self, elements: usize) -> Result<usize> {
        let ranks = self.comm.ranks();
        if elements.is_multiple_of(ranks) {
            return Ok(elements / ranks);
        }
        Err(self.refused(format!("{elements} elements cannot be cut into {ranks} equal shares")))
    }

    /// Sum of the counts.
    pub(crate) fn total(self, counts: &[usize]) -> Result<usize> {
        let sum: u128 = counts.iter().map(|&count| count as u128).sum();
        usize::try_from(sum)
            .ok()
            .filter(|&sum| sum <= isize::MAX as usize)
            .ok_or_else(|| self.refused(format!("the counts add up to {sum}, more than memory can hold")))
    }

    pub(crate) fn given_at_root(self, what: &str, root: Rank, given: bool) -> Result<()> {
        if given || self.comm.rank() != root {
            return Ok(());
        }
        Err(self.refused(format!("the root, rank {root}, must give an {what}")))
    }

    pub(super) fn only_at_root<'b, T>(
        self,
        what: &str,
        root: Rank,
        buffer: Option<&'b [T]>,
    ) -> Result<&'b [T]> {
        self.given_at_root(what, root, buffer.is_some())?;
        Ok(buffer.filter(|_| self.comm.rank() == root).unwrap_or(&[]))
    }

    pub(super) fn only_at_root_mut<'b, T>(
        self,
        what: &str,
        root: Rank,
        buffer: Option<&'b mut [T]>,
    ) -> Result<&'b mut [T]> {
        self.given_at_root(what, root, buffer.is_some())?;
        Ok(buffer.filter(|_| self.comm.rank() == root).unwrap_or(&mut []))
    }

    /// Why it cannot be carried out, with its name and the number that it would have had; messages between two ranks have
    /// numbers of their own, which a refused one does not use.
    ///
    /// Which number that is, is known when it would have been this call's turn: what was started before may be several operations
    /// yet. No call waits for this that would not have waited for its turn: started ones are refused in theirs.
    #[cold]
    pub(crate) fn refused(self, what: String) -> Error {
        let Some(kind) = self.kind else { return self.comm.place(Error::misuse(what)) };
        let number = self.comm.with(|engine| Ok(engine.next_number())).ok();
        let number = number.filter(|_| kind != Kind::SendRecv);
        let number = number.map_or_else(String::new, |number| format!(" #{number}"));
        self.comm.place(Error::misuse(format!("{}{number}: {what}", kind.name())))
    }
}
