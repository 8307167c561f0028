//! Where in a cell the data of a post lies.

use unisono_transports::Cell;

/// The spots in a cell of four pages that is at most half full: one after the other is used, a lap through the cells each. So two ranks
/// write a line again only when the peer's own cache has lost what it read of it, as in cells that are full; until
/// then that takes several times as long. More ranks share a cache, if not a core, where other pages each time cost more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spots {
    /// Posts in a lap, as a power of two.
    lap: u32,
    /// One less than there are.
    mask: u64,
    bytes: usize,
}

impl Spots {
    /// Those for `bytes` bytes in cells of this kind.
    pub(super) fn new(cell: Cell, bytes: usize, ranks: usize) -> Self {
        // Of longer cells the smallest that holds something is more than half full.
        let spots =
            if ranks == 2 && cell == Cell::Pages4 { cell.bytes() / bytes.next_power_of_two() } else { 1 };
        Self { lap: cell.count(ranks).ilog2(), mask: spots as u64 - 1, bytes: cell.bytes() / spots }
    }

    /// Where that of post `number` begins.
    #[inline]
    pub(super) fn of(self, number: u64) -> usize {
        ((number >> self.lap) & self.mask) as usize * self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lap_has_a_spot_of_its_own_until_all_had_their_turn() {
        let spots = Spots::new(Cell::Pages4, 4096, 2);
        let lap = Cell::Pages4.count(2);
        let found = [0, lap - 1, lap, 2 * lap, 3 * lap, 4 * lap].map(|number| spots.of(number));
        assert_eq!(found, [0, 0, 4096, 8192, 12288, 0]);
    }

    #[test]
    fn what_fills_a_cell_is_at_its_beginning_and_nothing_reaches_beyond() {
        for cell in Cell::ALL {
            for ranks in 2..10 {
                for bytes in [1, cell.bytes() / 3, cell.bytes() / 2, cell.bytes() / 2 + 1, cell.bytes()] {
                    let spots = Spots::new(cell, bytes, ranks);
                    let most = (0..2000).map(|number| spots.of(number)).max();
                    assert!(
                        most.is_some_and(|most| most + bytes <= cell.bytes()),
                        "{cell:?} {ranks} {bytes}"
                    );
                    assert!(most == Some(0) || 2 * bytes <= cell.bytes() && ranks == 2);
                }
            }
        }
    }
}
