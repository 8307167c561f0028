//! Ulysses: ranks of a group that share sequences exchange their positions for heads.
//!
//! Source: Jacobs et al., "DeepSpeed Ulysses", 2023. Heads need not divide evenly: each rank has a
//! range of them, which may be empty.

use super::shared_sequence::SharedSequence;
use std::ops::Range;
use unisono_nn::allocator::F32Vec;
use unisono_nn::error::Result;
use unisono_nn::modules::Attention;
use unisono_nn::pass::Pass;
use unisono_nn::tensor::Tensor;

/// Exchange of rows and heads between the ranks of a group.
pub(super) struct HeadExchange {
    shared: SharedSequence,
    attention: Attention,
    /// Row in the group's part of a sequence, by rank in the group and row of its chunk.
    places: Vec<Vec<usize>>,
}

/// Side of attention on which rows are exchanged.
#[derive(Clone, Copy)]
pub(super) enum Side {
    /// Queries | keys | values.
    Input,
    /// Outputs of heads.
    Output,
}

impl HeadExchange {
    pub(super) fn new(attention: Attention, shared: SharedSequence) -> Self {
        let group = shared.own_group();
        let positions = shared.positions(group);
        let place = |position| positions.partition_point(|&other| other < position);
        let of_rank = |rank| shared.positions_of(rank).map(place).collect();
        let places = shared.members(group).map(of_rank).collect();
        Self { shared, attention, places }
    }

    /// Returns the division of the sequences.
    pub(super) fn shared(&self) -> &SharedSequence {
        &self.shared
    }

    /// Returns this rank's number in its group.
    fn own(&self) -> usize {
        self.shared.ranks.rank() % self.shared.group_size
    }

    /// Returns the heads of queries of a rank of the group.
    fn heads_of(&self, rank: usize) -> Range<usize> {
        let (heads, count) = (self.attention.heads(), self.shared.group_size);
        rank * heads / count..(rank + 1) * heads / count
    }

    /// Returns the heads of keys and values on a rank, as numbers in the whole attention. There is
    /// one for each group of heads of queries. If the rank's range cuts a group, there is one for
    /// each head of queries.
    fn kv_heads_of(&self, rank: usize) -> Vec<usize> {
        let group = self.attention.heads() / self.attention.kv_heads();
        let heads = self.heads_of(rank);
        let step =
            if heads.start.is_multiple_of(group) && heads.end.is_multiple_of(group) { group } else { 1 };
        heads.step_by(step).map(|head| head / group).collect()
    }

    /// Returns attention of this rank's heads.
    pub(super) fn local(&self) -> Attention {
        let (heads, kv_heads) = (self.heads_of(self.own()).len(), self.kv_heads_of(self.own()).len());
        self.attention.with_heads(heads, kv_heads)
    }

    /// Returns the columns, by head, that a rank has of `side`.
    fn columns_of(&self, rank: usize, side: Side) -> Vec<usize> {
        let (heads, kv_heads) = (self.attention.heads(), self.attention.kv_heads());
        let head_dim = self.attention.head_dim();
        let mut blocks: Vec<usize> = self.heads_of(rank).collect();
        if let Side::Input = side {
            let kv = self.kv_heads_of(rank);
            blocks.extend(kv.iter().map(|head| heads + head));
            blocks.extend(kv.iter().map(|head| heads + kv_heads + head));
        }
        blocks.into_iter().map(|block| block * head_dim).collect()
    }

    /// Returns the elements that this rank exchanges with each rank: its rows of that rank's heads,
    /// and that rank's rows of its own. Ranks of other groups get none.
    fn counts(&self, side: Side) -> [Vec<usize>; 2] {
        let SharedSequence { ranks, group_size, .. } = &self.shared;
        let rows = self.rows() * self.attention.head_dim();
        let blocks = self.columns_of(self.own(), side).len();
        let mut counts = [vec![0; ranks.size()], vec![0; ranks.size()]];
        for (member, rank) in (0..*group_size).zip(self.shared.members(self.shared.own_group())) {
            counts[0][rank] = self.columns_of(member, side).len() * rows;
            counts[1][rank] = blocks * rows;
        }
        counts
    }

    /// Returns the number of rows of this rank.
    fn rows(&self) -> usize {
        self.shared.sequences * self.shared.length
    }

    /// Returns the row of row `row` of a rank in tensors of all rows of the group.
    fn whole_row(&self, rank: usize, row: usize) -> usize {
        let (number, chunk_row) = (row / self.shared.length, row % self.shared.length);
        number * self.shared.group_length() + self.places[rank][chunk_row]
    }

    fn all_to_all(
        &self,
        pass: &Pass<'_>,
        [sends, receives]: [&[usize]; 2],
        values: &[f32],
    ) -> Result<F32Vec> {
        let mut received = pass.floats(receives.iter().sum());
        pass.waits().time("heads for positions", || {
            self.shared.ranks.all_to_all_v(values, sends, &mut received, receives)
        })?;
        Ok(received)
    }

    /// Returns all positions of this rank's heads, from this rank's positions of all heads.
    pub(super) fn to_heads(&self, pass: &Pass<'_>, side: Side, rows: &Tensor) -> Result<Tensor> {
        let [sends, receives] = self.counts(side);
        let dim = self.attention.head_dim();
        let mut packed = pass.floats(sends.iter().sum());
        let mut blocks = packed.chunks_exact_mut(dim);
        for rank in 0..self.shared.group_size {
            let columns = self.columns_of(rank, side);
            for (row, &column) in
                (0..rows.rows()).flat_map(|row| columns.iter().map(move |column| (row, column)))
            {
                blocks.next().expect("room").copy_from_slice(&rows.row(row)[column..column + dim]);
            }
        }
        let received = self.all_to_all(pass, [&sends, &receives], &packed)?;
        let width = self.columns_of(self.own(), side).len() * dim;
        let mut group_rows = pass.tensor(rows.rows() * self.shared.group_size, width);
        // A rank without heads has a width of 0, and chunks of no elements would panic.
        for (index, values) in received.chunks_exact(width.max(1)).enumerate() {
            let row = self.whole_row(index / rows.rows(), index % rows.rows());
            group_rows.row_mut(row).copy_from_slice(values);
        }
        Ok(group_rows)
    }

    /// Returns this rank's positions of all heads, from all positions of this rank's heads. Values
    /// of a head that several ranks have are added up.
    pub(super) fn to_rows(&self, pass: &Pass<'_>, side: Side, group_rows: &Tensor) -> Result<Tensor> {
        let [receives, sends] = self.counts(side);
        let (rows, dim) = (self.rows(), self.attention.head_dim());
        let mut packed = pass.floats(sends.iter().sum());
        for (index, values) in packed.chunks_exact_mut(group_rows.columns().max(1)).enumerate() {
            values.copy_from_slice(group_rows.row(self.whole_row(index / rows, index % rows)));
        }
        let received = self.all_to_all(pass, [&sends, &receives], &packed)?;
        let width = match side {
            Side::Input => self.attention.input_width(),
            Side::Output => self.attention.width(),
        };
        let mut result = Tensor::zeros(pass.memory(), rows, width);
        let mut blocks = received.chunks_exact(dim);
        for rank in 0..self.shared.group_size {
            let columns = self.columns_of(rank, side);
            for (row, &column) in (0..rows).flat_map(|row| columns.iter().map(move |column| (row, column))) {
                let values = blocks.next().expect("values");
                let sums = &mut result.row_mut(row)[column..column + dim];
                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
        }
        Ok(result)
    }
}
