//! Exchanges of a step: messages, bytes and link of each.
//!
//! The formulas are for the default order of axes, `context.kv_transfer = "gather"` and experts
//! with equal loads.

use crate::cost::{Estimate, Hardware, LinkClass, ParallelConfig, Turns, remote_fraction};

/// Purpose of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeKind {
    /// Sums of activations of tensor parallel ranks.
    Tensor,
    /// Keys and values of ranks that share sequences.
    Sequence,
    /// Tokens for experts of other ranks.
    Experts,
    /// Activations and their gradients for other pipeline stages.
    Stages,
    /// Weights and gradients of ranks with the same part of the model.
    Data,
}

impl ExchangeKind {
    /// Returns true for exchanges within layers, which computing waits for.
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
    /// Number of collectives.
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
        match (hardware.turns, self.link_class(hardware)) {
            (Some(_), LinkClass::Domain | LinkClass::Host) => 0.0,
            _ => hardware.link(self.ranks, self.apart).time(self.messages, self.bytes),
        }
    }

    /// Returns the seconds that it keeps ranks from computing that share cores.
    pub fn core_time(&self, hardware: &Hardware) -> f64 {
        let cost = |turns: Turns| if self.is_in_background() { turns.background } else { turns.calls };
        hardware.turns.map_or(0.0, |turns| cost(turns).time(self))
    }

    /// Returns true if ranks compute beside the exchange.
    fn is_in_background(&self) -> bool {
        self.kind == ExchangeKind::Data
    }

    /// Returns the bytes of the buffers that are exchanged, with the rank's own part.
    pub(super) fn buffer_bytes(&self) -> f64 {
        match self.kind {
            ExchangeKind::Stages => self.bytes,
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
        let rows = self.rows(micro_batch, micro_batches);
        let within = [self.tensor(&rows), self.sequence(&rows), self.experts(&rows)];
        let one = self.stage_message(micro_batch);
        let count = 2.0 * micro_batches as f64;
        let stages = Exchange { collectives: count, messages: count, bytes: count * one.bytes, ..one };
        let all = within.into_iter().chain([stages]).filter(|exchange| exchange.ranks > 1);
        all.chain(self.data_exchanges(bucket, micro_batches).into_iter().flatten()).collect()
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

    /// Returns the gathers of keys and values of whole sequences, and the sum of their gradients.
    fn sequence(&self, rows: &Rows) -> Exchange {
        let (gpt, ParallelConfig { context: ranks, tensor, .. }) = (&self.shape.gpt, self.parallel);
        let gathers = (rows.forwards + 2.0) * rows.passes;
        let keys = 2.0 * (gpt.kv_width() as f64 / gpt.width as f64) / tensor as f64;
        Exchange {
            kind: ExchangeKind::Sequence,
            ranks,
            apart: tensor,
            collectives: gathers,
            messages: (ranks - 1) as f64 * gathers,
            bytes: (ranks - 1) as f64 * keys * rows.bytes * gathers,
        }
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
