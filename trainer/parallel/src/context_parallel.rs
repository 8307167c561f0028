//! Context parallelism: ranks have chunks of the same sequences.
//!
//! [`ContextParallel`] is the source of keys and values of a pass ([`KvSource`]): it brings those
//! of the other ranks to attention, in one of the ways of [`KvTransfer`]. A [`Placement`] says
//! which positions each rank has.

mod gather;
mod head_exchange;
mod kv_transfer;
mod placement;
mod ring;
mod shared_sequence;
#[cfg(test)]
mod tests;

pub use kv_transfer::KvTransfer;
pub use placement::{Placement, SequenceChunk};

use crate::context_parallel::gather::Gather;
use crate::context_parallel::head_exchange::{HeadExchange, Side};
use crate::context_parallel::ring::Ring;
use crate::context_parallel::shared_sequence::SharedSequence;
use std::sync::Arc;
use unisono::Communicator;
use unisono_nn::error::{Error, Result};
use unisono_nn::modules::{
    Attention, KvBlocks, KvSource, LocalRows, SequenceKv, sequence_count, set_kv_source,
};
use unisono_nn::pass::{Extension, Pass};
use unisono_nn::tensor::Tensor;

/// Ranks that have equal chunks of the same sequences, and the way in which attention gets the keys
/// and values of all of them.
///
/// Each of the S ranks computes the mean loss of its own tokens. In backward it computes the
/// gradient of the *sum* of all S means along the paths through itself: attention sums the
/// gradients of keys and values of all ranks. The mean of these gradients over the S ranks is the
/// gradient of the mean loss of whole sequences. Gradients and losses are therefore averaged over
/// chunks as over samples: over all data ranks.
#[derive(Clone)]
pub struct ContextParallel {
    ranks: Communicator,
    placement: Placement,
    transfer: KvTransfer,
    ulysses_ranks: usize,
}

impl Extension for ContextParallel {}

impl ContextParallel {
    /// Divides sequences into contiguous chunks of `ranks`, and gathers their keys and values.
    pub fn new(ranks: &Communicator) -> Self {
        Self {
            ranks: ranks.clone(),
            placement: Placement::Contiguous,
            transfer: KvTransfer::Gather,
            ulysses_ranks: 1,
        }
    }

    /// Sets the distribution of positions over the ranks.
    pub fn with_placement(self, placement: Placement) -> Self {
        Self { placement, ..self }
    }

    /// Sets how attention gets the keys and values of other ranks. In a ring, groups of
    /// `ulysses_ranks` neighbors exchange positions for heads.
    pub fn with_transfer(self, transfer: KvTransfer, ulysses_ranks: usize) -> Self {
        Self { transfer, ulysses_ranks, ..self }
    }

    /// Makes the rows of a pass this rank's chunks of sequences.
    pub fn share(self, pass: &mut Pass<'_>) {
        pass.extensions_mut().insert(self.clone());
        set_kv_source(pass, Arc::new(self));
    }

    /// Returns the context parallelism of a pass; `None` if its sequences are whole.
    pub fn of<'p>(pass: &'p Pass<'_>) -> Option<&'p Self> {
        pass.extensions().get()
    }

    /// Returns the ranks with chunks of each sequence of a pass; `None` if its sequences are whole.
    pub fn ranks_of<'p>(pass: &'p Pass<'_>) -> Option<&'p Communicator> {
        Self::of(pass).map(|shared| &shared.ranks)
    }

    /// Returns this rank's chunk of each sequence of a pass, or of its micro-sequence.
    pub fn chunk(pass: &Pass<'_>) -> SequenceChunk {
        let chunk = Self::of(pass).map_or(SequenceChunk::WHOLE, Self::rank_chunk);
        chunk.within(pass.micro_sequence(), pass.micro_sequences())
    }

    /// Returns this rank's chunk of each sequence.
    fn rank_chunk(&self) -> SequenceChunk {
        let chunk = SequenceChunk::new(self.ranks.rank(), self.ranks.size());
        SequenceChunk { placement: self.placement, ..chunk }
    }

    /// Returns the division of the sequences of a pass with `rows` rows, if keys and values go
    /// round a ring of groups. `None` if all ranks gather them.
    fn shared_sequence(&self, pass: &Pass<'_>, rows: usize) -> Option<SharedSequence> {
        let group_size = self.transfer.head_group_size(self.ranks.size(), self.ulysses_ranks)?;
        Some(SharedSequence {
            ranks: self.ranks.clone(),
            group_size,
            sequences: sequence_count(pass, rows),
            length: pass.sequence(),
            chunk: self.rank_chunk(),
        })
    }

    /// Returns the exchange of heads for positions within a group of several ranks.
    fn head_exchange(&self, pass: &Pass<'_>, attention: &Attention, rows: usize) -> Option<HeadExchange> {
        let shared = self.shared_sequence(pass, rows).filter(|shared| shared.group_size > 1)?;
        Some(HeadExchange::new(*attention, shared))
    }
}

impl KvSource for ContextParallel {
    fn chunks(&self) -> usize {
        self.ranks.size()
    }

    fn positions(&self, length: usize) -> Vec<usize> {
        self.rank_chunk().positions_of(self.ranks.rank(), length).collect()
    }

    /// Returns the blocks of whole sequences, which ranks gather one after the other, or those of a
    /// ring.
    fn blocks(&self, pass: &mut Pass<'_>, attention: &Attention, rows: usize) -> Result<Box<dyn KvBlocks>> {
        if let Some(shared) = self.shared_sequence(pass, rows) {
            return group_blocks(pass, attention, shared);
        }
        if pass.micro_sequences() == 1 {
            pass.expect_host("attention between chunks of sequences (mesh.sequence_data)")?;
        }
        let gather = Gather::new(self, pass, attention.kv_width());
        Ok(Box::new(SequenceKv::new(pass, attention, rows, Some(Box::new(gather)))?))
    }

    /// Computes attention. Exchanges within a group of several ranks bring the rows of its ranks
    /// here, for some of the heads, and the results back.
    fn forward(&self, pass: &mut Pass<'_>, attention: &Attention, input: Tensor) -> Result<Tensor> {
        let Some(exchange) = self.head_exchange(pass, attention, input.rows()) else {
            let blocks = self.blocks(pass, attention, input.rows())?;
            return attention.forward_blocks(pass, input, blocks);
        };
        let local = exchange.local();
        let blocks = group_blocks(pass, &local, exchange.shared().clone())?;
        let gathered = exchange.to_heads(pass, Side::Input, &input)?;
        // Attention reads the gathered rows, so the memory of the input is free while it computes.
        drop(input);
        let output = local.forward_blocks(pass, gathered, blocks)?;
        exchange.to_rows(pass, Side::Output, &output)
    }

    fn backward(&self, pass: &mut Pass<'_>, attention: &Attention, gradient: Tensor) -> Result<Tensor> {
        let Some(exchange) = self.head_exchange(pass, attention, gradient.rows()) else {
            let blocks = self.blocks(pass, attention, gradient.rows())?;
            return attention.backward_blocks(pass, &gradient, blocks);
        };
        let local = exchange.local();
        let blocks = group_blocks(pass, &local, exchange.shared().clone())?;
        let gathered = exchange.to_heads(pass, Side::Output, &gradient)?;
        let found = local.backward_blocks(pass, &gathered, blocks)?;
        exchange.to_rows(pass, Side::Input, &found)
    }
}

/// Returns the blocks of the rows that one group has: its own if it is alone, or those of a ring of
/// groups. A rank without heads has none.
fn group_blocks(pass: &Pass<'_>, attention: &Attention, shared: SharedSequence) -> Result<Box<dyn KvBlocks>> {
    pass.expect_host("attention between ranks that share sequences (context.kv_transfer)")?;
    // A micro-sequence also attends to those before it, whose keys these ways do not bring.
    if pass.micro_sequences() > 1 {
        let what = format!("{} micro-sequences (data.micro_sequences)", pass.micro_sequences());
        return Err(Error::Unsupported(format!(
            "{what} with a context.kv_transfer other than \"gather\": set one of them to its default"
        )));
    }
    if attention.heads() > 0 && shared.ring_size() > 1 {
        return Ok(Box::new(Ring::new(*attention, shared)));
    }
    let visible = shared.visible(attention.is_causal(), shared.own_group());
    let sequences = if attention.heads() > 0 { shared.sequences } else { 0 };
    Ok(Box::new(LocalRows::new(visible, sequences)))
}
