//! What the two ways into windows cost, kept apart for what is not to be compared.
//!
//! A byte costs more where operands have left the cache, and a byte of a sum more than one of a copy. So each algorithm
//! learns for itself, and for each power of two of bytes.

use super::staging::Staging;
use crate::call::Digest;
use crate::schedule::Collective;
use unisono_transports::Cell;

/// The accounts of one rank. All ranks run the same operations, so they open and drop the same ones.
#[derive(Debug)]
pub(super) struct Ledger {
    accounts: Vec<(Option<Kind>, Staging)>,
    /// Whose place is taken next, when there are enough.
    oldest: usize,
}

/// What can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    collective: Collective,
    algorithm: Digest,
    magnitude: u32,
    /// In windows, if in none.
    cell: Option<Cell>,
}

impl Kind {
    /// Of an operation over windows with blocks of so many bytes.
    pub(super) fn new(collective: Collective, algorithm: Digest, block_bytes: usize) -> Self {
        Self { collective, algorithm, magnitude: block_bytes.checked_ilog2().unwrap_or(0), cell: None }
    }

    /// The same in cells of this kind.
    pub(super) fn in_cells(self, cell: Cell) -> Self {
        Self { cell: Some(cell), ..self }
    }
}

/// The account of what travels in cells of four pages; in longer ones it has one for each kind of operation.
pub(super) const CELLS: usize = 0;

impl Default for Ledger {
    fn default() -> Self {
        Self { accounts: vec![(None, Staging::default())], oldest: CELLS + 1 }
    }
}

impl Ledger {
    /// Where the account of this kind is, opened now if it is new.
    pub(super) fn place(&mut self, kind: Kind) -> usize {
        if let Some(place) = self.accounts.iter().position(|(known, _)| *known == Some(kind)) {
            return place;
        }
        let account = (Some(kind), Staging::default());
        if self.accounts.len() < ACCOUNTS_MAX {
            self.accounts.push(account);
            return self.accounts.len() - 1;
        }
        let place = self.oldest;
        self.oldest = if place + 1 < ACCOUNTS_MAX { place + 1 } else { CELLS + 1 };
        self.accounts[place] = account;
        place
    }

    pub(super) fn at(&self, place: usize) -> &Staging {
        &self.accounts[place].1
    }

    pub(super) fn at_mut(&mut self, place: usize) -> &mut Staging {
        &mut self.accounts[place].1
    }
}

/// More kinds at a time than a program has.
const ACCOUNTS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(block_bytes: usize) -> Kind {
        let algorithm = crate::schedule::find(Collective::AllReduce, "ring").expect("a ring");
        Kind::new(Collective::AllReduce, Digest::of(algorithm), block_bytes)
    }

    #[test]
    fn what_differs_by_less_than_a_factor_of_two_is_one_kind() {
        assert_eq!(kind(4096), kind(8191));
        assert_ne!(kind(4096), kind(8192));
        assert_ne!(kind(0), kind(4096));
        assert_ne!(Kind { collective: Collective::AllGather, ..kind(4096) }, kind(4096));
        assert_ne!(kind(4096).in_cells(Cell::Pages8), kind(4096));
    }

    #[test]
    fn a_kind_keeps_its_account_and_the_oldest_makes_room() {
        let mut ledger = Ledger::default();
        let kinds: Vec<_> = (0..ACCOUNTS_MAX as u32).map(|magnitude| Kind { magnitude, ..kind(1) }).collect();
        let places: Vec<_> = kinds[1..].iter().map(|&kind| ledger.place(kind)).collect();
        assert_eq!(places, (1..ACCOUNTS_MAX).collect::<Vec<_>>());
        assert_eq!(ledger.place(kinds[7]), 7);
        assert_eq!([kinds[0], kinds[1], kinds[0]].map(|kind| ledger.place(kind)), [1, 2, 1]);
        assert!(kinds.iter().chain(&kinds).all(|&kind| ledger.place(kind) != CELLS));
    }
}
