//! The pairs of ranks that reach each other's peer memory.

/// For each two ranks, whether their kernels access each other's peer memory. It is the same on all
/// ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    ranks: usize,
    /// Row by row: whether the rank of the row reaches the rank of the column.
    rows: Vec<bool>,
}

impl Reach {
    /// Every rank reaches all others.
    pub fn complete(ranks: usize) -> Self {
        Self { ranks, rows: vec![true; ranks * ranks] }
    }

    /// Makes the table from the rows of all ranks, one after another, which have a value other than
    /// 0 for each rank that the rank of the row reaches.
    ///
    /// # Panics
    /// Panics if there are not as many rows as ranks.
    pub fn from_rows(ranks: usize, rows: &[u8]) -> Self {
        assert_eq!(rows.len(), ranks * ranks, "values for {ranks} ranks");
        Self { ranks, rows: rows.iter().map(|&reached| reached != 0).collect() }
    }

    /// Returns true if two ranks reach each other.
    pub fn connects(&self, one: usize, other: usize) -> bool {
        one == other || self.rows[one * self.ranks + other] && self.rows[other * self.ranks + one]
    }

    /// Returns true if every rank reaches all others.
    pub fn is_complete(&self) -> bool {
        (0..self.ranks).all(|rank| (0..rank).all(|other| self.connects(rank, other)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_missing_direction_disconnects_two_ranks() {
        assert!(Reach::complete(3).is_complete());
        let reach = Reach::from_rows(3, &[0, 1, 1, 1, 0, 1, 1, 0, 0]);
        assert!(!reach.is_complete() && reach.connects(0, 1) && reach.connects(2, 2));
        assert!(!reach.connects(1, 2) && !reach.connects(2, 1));
    }
}
