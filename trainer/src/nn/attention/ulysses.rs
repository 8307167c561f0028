//! Ulysses: ranks that share sequences exchange their positions for heads.
//!
//! Source: Jacobs et al., "DeepSpeed Ulysses", 2023. Heads need not divide evenly: each rank has a
//! range of them, which may be empty.

use super::Attention;
use crate::allocator::F32Vec;
use crate::data::SequenceChunk;
use crate::error::Result;
use crate::pass::Pass;
use crate::tensor::Tensor;
use std::ops::Range;
use unisono::Communicator;

struct Saved {
    /// Queries | keys | values of all positions for this rank's heads.
    input: Tensor,
    log_sums: Tensor,
}

/// Exchange of rows and heads between ranks.
struct HeadExchange<'a> {
    ranks: &'a Communicator,
    attention: Attention,
    /// Number of sequences of the micro-batch.
    sequences: usize,
    /// Rows of a sequence on each rank.
    length: usize,
    chunk: SequenceChunk,
}

/// Rows of columns: on a rank with all heads, or with some of them.
#[derive(Clone, Copy)]
enum Side {
    /// Queries | keys | values.
    Input,
    Output,
}

impl Attention {
    /// Computes attention of this rank's heads over whole sequences. Two exchanges bring the rows
    /// of all ranks here, and the results back.
    pub(super) fn forward_ulysses(
        &self,
        pass: &mut Pass<'_>,
        input: &Tensor,
        ranks: &Communicator,
    ) -> Result<Tensor> {
        pass.expect_host("an exchange of heads for positions")?;
        let exchange = HeadExchange::new(*self, pass, input.rows(), ranks);
        let local = exchange.local();
        let gathered = exchange.to_heads(pass, Side::Input, input)?;
        let rows = gathered.rows();
        let [mut found, mut log_sums] =
            [local.width(), local.heads].map(|columns| pass.tensor(rows, columns));
        if local.heads > 0 {
            let visible = exchange.visible();
            let (shape, to, sums) = (local.shape_of(&visible), found.values_mut(), log_sums.values_mut());
            pass.ops().attention(&shape, 0..exchange.sequences, gathered.values(), None, to, sums)?;
        }
        let output = exchange.to_rows(pass, Side::Output, &found)?;
        pass.save(Saved { input: gathered, log_sums });
        Ok(output)
    }

    /// Computes the gradient of the input, with an exchange each way as in forward.
    pub(super) fn backward_ulysses(
        &self,
        pass: &mut Pass<'_>,
        gradient: &Tensor,
        ranks: &Communicator,
    ) -> Result<Tensor> {
        let Saved { input, log_sums } = pass.restore();
        let exchange = HeadExchange::new(*self, pass, gradient.rows(), ranks);
        let local = exchange.local();
        let gathered = exchange.to_heads(pass, Side::Output, gradient)?;
        let mut found = Tensor::zeros(pass.memory(), input.rows(), input.columns());
        if local.heads > 0 {
            let visible = exchange.visible();
            let (shape, to) = (local.shape_of(&visible), found.values_mut());
            let from = [input.values(), log_sums.values(), gathered.values()];
            pass.ops().attention_backward(&shape, 0..exchange.sequences, from, [None; 2], to, None)?;
        }
        exchange.to_rows(pass, Side::Input, &found)
    }
}

impl<'a> HeadExchange<'a> {
    fn new(attention: Attention, pass: &Pass<'_>, rows: usize, ranks: &'a Communicator) -> Self {
        let length = pass.sequence();
        Self { ranks, attention, sequences: super::sequence_count(pass, rows), length, chunk: pass.chunk() }
    }

    /// Returns the heads of queries of a rank.
    fn heads_of(&self, rank: usize) -> Range<usize> {
        let (heads, count) = (self.attention.heads, self.ranks.size());
        rank * heads / count..(rank + 1) * heads / count
    }

    /// Returns the head of keys and values for each local head of them on a rank: one for each
    /// group of queries, or one for each query if the rank's range divides a group.
    fn kv_heads_of(&self, rank: usize) -> Vec<usize> {
        let (heads, group) = (self.heads_of(rank), self.attention.heads / self.attention.kv_heads);
        let step =
            if heads.start.is_multiple_of(group) && heads.end.is_multiple_of(group) { group } else { 1 };
        heads.step_by(step).map(|head| head / group).collect()
    }

    /// Returns attention of this rank's heads.
    fn local(&self) -> Attention {
        let (heads, kv_heads) =
            (self.heads_of(self.ranks.rank()).len(), self.kv_heads_of(self.ranks.rank()).len());
        Attention { heads, kv_heads, ..self.attention }
    }

    /// Returns the number of keys that each position attends to.
    fn visible(&self) -> Vec<usize> {
        let all = self.length * self.ranks.size();
        match self.attention.is_causal {
            true => (1..=all).collect(),
            false => vec![all; all],
        }
    }

    /// Returns the columns, by head, that a rank has of `side`.
    fn columns_of(&self, rank: usize, side: Side) -> Vec<usize> {
        let Attention { heads, kv_heads, head_dim, .. } = self.attention;
        let mut all: Vec<usize> = self.heads_of(rank).collect();
        if let Side::Input = side {
            let kv = self.kv_heads_of(rank);
            all.extend(kv.iter().map(|head| heads + head));
            all.extend(kv.iter().map(|head| heads + kv_heads + head));
        }
        all.into_iter().map(|head| head * head_dim).collect()
    }

    /// Returns the elements that this rank exchanges with each rank: its rows of that rank's heads,
    /// and that rank's rows of its own.
    fn counts(&self, side: Side) -> [Vec<usize>; 2] {
        let rows = self.sequences * self.length * self.attention.head_dim;
        let own = self.columns_of(self.ranks.rank(), side).len();
        let of_rank = |rank| self.columns_of(rank, side).len() * rows;
        [(0..self.ranks.size()).map(of_rank).collect(), vec![own * rows; self.ranks.size()]]
    }

    /// Returns the row of row `row` of a rank in tensors of whole sequences.
    fn whole_row(&self, rank: usize, row: usize) -> usize {
        let (number, within) = (row / self.length, row % self.length);
        let chunk = SequenceChunk { index: rank, ..self.chunk };
        number * self.length * self.ranks.size() + chunk.position(within, self.length)
    }

    fn all_to_all(
        &self,
        pass: &Pass<'_>,
        [sends, receives]: [&[usize]; 2],
        values: &[f32],
    ) -> Result<F32Vec> {
        let mut received = pass.floats(receives.iter().sum());
        pass.timed_wait("heads for positions", || {
            self.ranks.all_to_all_v(values, sends, &mut received, receives)
        })?;
        Ok(received)
    }

    /// Returns all positions of this rank's heads, from this rank's positions of all heads.
    fn to_heads(&self, pass: &Pass<'_>, side: Side, rows: &Tensor) -> Result<Tensor> {
        let [sends, receives] = self.counts(side);
        let dim = self.attention.head_dim;
        let mut packed = pass.floats(sends.iter().sum());
        let mut to = packed.chunks_exact_mut(dim);
        for rank in 0..self.ranks.size() {
            let columns = self.columns_of(rank, side);
            for (row, &column) in
                (0..rows.rows()).flat_map(|row| columns.iter().map(move |column| (row, column)))
            {
                to.next().expect("room").copy_from_slice(&rows.row(row)[column..column + dim]);
            }
        }
        let received = self.all_to_all(pass, [&sends, &receives], &packed)?;
        let width = self.columns_of(self.ranks.rank(), side).len() * dim;
        let mut whole = pass.tensor(rows.rows() * self.ranks.size(), width);
        for (at, values) in received.chunks_exact(width.max(1)).enumerate() {
            let row = self.whole_row(at / rows.rows(), at % rows.rows());
            whole.row_mut(row).copy_from_slice(values);
        }
        Ok(whole)
    }

    /// Returns this rank's positions of all heads, from all positions of this rank's heads. Values
    /// of a head that several ranks have are added up.
    fn to_rows(&self, pass: &Pass<'_>, side: Side, whole: &Tensor) -> Result<Tensor> {
        let [receives, sends] = self.counts(side);
        let (rows, dim) = (self.sequences * self.length, self.attention.head_dim);
        let mut packed = pass.floats(sends.iter().sum());
        for (at, values) in packed.chunks_exact_mut(whole.columns().max(1)).enumerate() {
            values.copy_from_slice(whole.row(self.whole_row(at / rows, at % rows)));
        }
        let received = self.all_to_all(pass, [&sends, &receives], &packed)?;
        let width = match side {
            Side::Input => self.attention.columns().all(),
            Side::Output => self.attention.width(),
        };
        let mut result = Tensor::zeros(pass.memory(), rows, width);
        let mut from = received.chunks_exact(dim);
        for rank in 0..self.ranks.size() {
            let columns = self.columns_of(rank, side);
            for (row, &column) in (0..rows).flat_map(|row| columns.iter().map(move |column| (row, column))) {
                let values = from.next().expect("values");
                let to = &mut result.row_mut(row)[column..column + dim];
                to.iter_mut().zip(values).for_each(|(to, value)| *to += value);
            }
        }
        Ok(result)
    }
}
