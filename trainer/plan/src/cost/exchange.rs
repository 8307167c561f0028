//! Exchanges of a step: messages, bytes and link of each.
//!
//! The formulas are for the default order of axes, and for experts with equal loads.

use crate::cost::{Estimate, ExchangeCosts, Hardware, LinkClass, ParallelConfig};
use unisono_parallel::data_parallel::remote_fraction;

/// Purpose of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeKind {
    /// Sums of activations of tensor parallel ranks.
    Tensor,
    /// Keys and values of ranks that share sequences, or heads for positions.
    Sequence,
    /// Keys and values that go round ranks beside attention.
    Ring,
    /// Tokens for experts of other ranks.
    Experts,
    /// Activations and their gradients for other pipeline stages.
    Stages,
    /// Weights and gradients of ranks with the same part of the model, within a group that divides
    /// state.
    Data,
    /// Shards of gradients of ranks with the same shards in several groups.
    Groups,
}

impl ExchangeKind {
    /// Returns true for exchanges within layers that nothing hides.
    pub(super) fn is_in_layers(self) -> bool {
        matches!(self, Self::Tensor | Self::Sequence | Self::Experts)
    }
}

/// Messages of a rank in a step within one kind of group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exchange {
    /// Purpose.
    pub kind: ExchangeKind,
    /// Number of ranks in the group.
    pub ranks: usize,
    /// Distance of neighbors in the group, in ranks of the world.
    pub apart: usize,
    /// Number of calls of a collective, or of messages to another stage.
    pub collectives: f64,
    /// Number of messages in sequence.
    pub messages: f64,
    /// Number of bytes.
    pub bytes: f64,
}

impl Exchange {
    /// Returns the slowest link that the exchange uses.
    pub fn link_class(&self, hardware: &Hardware) -> LinkClass {
        hardware.link_class(self.ranks, self.apart)
    }

    /// Returns the seconds that its messages travel. Between ranks that share cores, messages are
    /// copies in memory: see [`Exchange::core_time`].
    pub fn link_time(&self, hardware: &Hardware) -> f64 {
        match (hardware.exchange_costs, self.link_class(hardware)) {
            (Some(_), LinkClass::Domain | LinkClass::Host) => 0.0,
            _ => hardware.link(self.ranks, self.apart).time(self.messages, self.bytes),
        }
    }

    /// Returns the processor time of the exchange, in seconds of all cores. It is 0 if ranks have
    /// cores of their own.
    pub fn core_time(&self, hardware: &Hardware) -> f64 {
        let cost = |costs: ExchangeCosts| if self.has_own_thread() { costs.background } else { costs.calls };
        // The first and the last stage have half as many messages as the others.
        let senders = if self.kind == ExchangeKind::Stages { remote_fraction(self.ranks) } else { 1.0 };
        hardware.exchange_costs.map_or(0.0, |costs| senders * cost(costs).time(self))
    }

    /// Returns true if the exchange runs on a thread of its own.
    fn has_own_thread(&self) -> bool {
        matches!(self.kind, ExchangeKind::Data | ExchangeKind::Groups | ExchangeKind::Experts)
    }

    /// Returns the bytes of the buffers that are exchanged, with the rank's own part.
    pub(super) fn buffer_bytes(&self) -> f64 {
        match self.kind {
            ExchangeKind::Stages | ExchangeKind::Ring => self.bytes,
            _ => self.bytes / remote_fraction(self.ranks),
        }
    }
}

/// Size of one micro-batch between two blocks, and its passes.
struct Rows {
    /// Bytes of all rows of a rank.
    bytes: f64,
    /// Passes of a step through the blocks of this rank.
    passes: f64,
    /// Number of times that forward runs: twice if activations are recomputed.
    forwards: f64,
}

impl Estimate<'_> {
    /// Returns all exchanges of a step of `micro_batches`, each with `micro_batch` samples.
    pub fn exchanges(&self, micro_batch: usize, micro_batches: usize, bucket: f64) -> Vec<Exchange> {
        let data = self.data_exchanges(bucket, micro_batches).into_iter().flatten();
        self.other_exchanges(micro_batch, micro_batches).chain(data).collect()
    }

    /// Returns the exchanges within layers and between stages.
    pub(super) fn other_exchanges(
        &self,
        micro_batch: usize,
        micro_batches: usize,
    ) -> impl Iterator<Item = Exchange> {
        let rows = self.rows(micro_batch, micro_batches);
        let [sequence, ring] = self.sequence(&rows);
        let in_layers = [self.tensor(&rows), sequence, ring, self.experts(&rows)];
        let message = self.stage_message(micro_batch);
        let count = 2.0 * micro_batches as f64;
        let stages =
            Exchange { collectives: count, messages: count, bytes: count * message.bytes, ..message };
        in_layers.into_iter().chain([stages]).filter(|exchange| exchange.ranks > 1)
    }

    fn rows(&self, micro_batch: usize, micro_batches: usize) -> Rows {
        let gpt = &self.shape.gpt;
        let tokens = micro_batch * gpt.context / self.parallel.context;
        Rows {
            bytes: (tokens * gpt.width * self.shape.activation_bytes) as f64,
            passes: (micro_batches * gpt.layers) as f64 / self.parallel.pipeline as f64,
            forwards: if self.recomputes() { 2.0 } else { 1.0 },
        }
    }

    /// Returns the sums over tensor parallel ranks: two per block in forward, and in backward.
    fn tensor(&self, rows: &Rows) -> Exchange {
        let ranks = self.parallel.tensor;
        let sums = 2.0 * (rows.forwards + 1.0) * rows.passes;
        Exchange {
            kind: ExchangeKind::Tensor,
            ranks,
            apart: 1,
            collectives: sums,
            messages: 2.0 * (ranks - 1) as f64 * sums,
            bytes: 2.0 * remote_fraction(ranks) * rows.bytes * sums,
        }
    }

    /// Returns the exchanges of ranks that share sequences, and those in a ring.
    fn sequence(&self, rows: &Rows) -> [Exchange; 2] {
        let (gpt, ParallelConfig { context: ranks, tensor, .. }) = (&self.shape.gpt, self.parallel);
        let group = self.shape.sharing.head_group_size(ranks);
        // Bytes of this rank's queries, and of its keys and values.
        let of_feature = rows.bytes / tensor as f64 / gpt.width as f64;
        let queries = gpt.query_width() as f64 * of_feature;
        let keys = 2.0 * gpt.kv_width_on(tensor) as f64 * of_feature;
        let exchange = |kind, ranks: usize, apart, count: f64, bytes| Exchange {
            kind,
            ranks,
            apart,
            collectives: count * rows.passes,
            messages: (ranks - 1) as f64 * count * rows.passes,
            bytes: bytes * rows.passes,
        };
        let Some(group) = group else {
            // Keys and values in forward and backward, and the sum of their gradients.
            let gathers = rows.forwards + 2.0;
            let bytes = (ranks - 1) as f64 * keys * gathers;
            let none = exchange(ExchangeKind::Ring, 1, 1, 0.0, 0.0);
            return [exchange(ExchangeKind::Sequence, ranks, tensor, gathers, bytes), none];
        };
        // Queries, keys and values to other heads, and results back, in each direction.
        let passes = rows.forwards + 1.0;
        let bytes = remote_fraction(group) * passes * (keys + 2.0 * queries);
        let heads = exchange(ExchangeKind::Sequence, group, tensor, 2.0 * passes, bytes);
        // Gradients of keys and values return with one more hop.
        let ring = ranks / group;
        let hops = if ring > 1 { passes * (ring - 1) as f64 + ring as f64 } else { 0.0 };
        let apart = tensor * group;
        let round = exchange(ExchangeKind::Ring, ring, apart, hops, hops * keys);
        [heads, Exchange { messages: round.collectives, ..round }]
    }

    /// Returns the rows that go to the experts of other ranks and back, in forward and in backward.
    fn experts(&self, rows: &Rows) -> Exchange {
        let (ranks, per_token) = (self.parallel.expert, self.shape.gpt.experts.as_ref());
        let per_token = per_token.map_or(0.0, |experts| experts.per_token as f64);
        let exchanges = 2.0 * (rows.forwards + 1.0) * rows.passes;
        Exchange {
            kind: ExchangeKind::Experts,
            ranks,
            apart: self.parallel.tensor,
            collectives: exchanges,
            messages: (ranks - 1) as f64 * exchanges,
            bytes: remote_fraction(ranks) * per_token * rows.bytes * exchanges,
        }
    }

    /// Returns one message to the next or previous pipeline stage.
    pub(super) fn stage_message(&self, micro_batch: usize) -> Exchange {
        let ParallelConfig { tensor, pipeline, data, .. } = self.parallel;
        let bytes = self.rows(micro_batch, 1).bytes;
        Exchange {
            kind: ExchangeKind::Stages,
            ranks: pipeline,
            apart: tensor * data,
            collectives: 1.0,
            messages: 1.0,
            bytes,
        }
    }
}
