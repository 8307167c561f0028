//! A program as a GPU runs it: flat tables of acts, places and strands.
//!
//! Every strand becomes a block of threads for each channel, which carries out its acts in order and
//! waits inside them. What is one pass over memory becomes one act: a message that is received and
//! then sent on, a result for the window that goes to the output as well, and one that goes to the buffers of peers.

use crate::error::{Error, ErrorKind, Result};
use crate::schedule::{Block, Place as Spot, Program, Rank, Space, Step, Strand as Steps};
use unisono_cuda::device::{Act, Place, Strand, Verb};
use unisono_transports::p2p::Tables;

/// Tables being written.
#[derive(Default)]
struct Writer(Tables);

/// How a step is carried out together with another of its strand.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fused {
    /// By itself.
    Not,
    /// Its results go on to this rank as well.
    Forward(Rank),
    /// Its result goes to these as well.
    Also(Vec<Spot>),
    /// An earlier step has done it.
    Done,
}

/// Flattens the program of `rank`.
///
/// # Errors
/// If a step has more operands than a GPU combines at once.
pub(super) fn lower(program: &Program, rank: Rank) -> Result<Tables> {
    let mut writer = Writer::default();
    for strand in &program.strands {
        writer.strand(strand, rank)?;
    }
    Ok(writer.0)
}

impl Writer {
    fn strand(&mut self, strand: &Steps, rank: Rank) -> Result<()> {
        let first_act = self.0.acts.len() as u32;
        for (step, fused) in strand.steps.iter().zip(fuse(&strand.steps)) {
            if fused != Fused::Done {
                let act = self.act(step, &fused, rank)?;
                self.0.acts.push(act);
            }
        }
        let acts = self.0.acts.len() as u32 - first_act;
        self.0.strands.push(Strand { lane: strand.lane as u32, first_act, acts });
        Ok(())
    }

    /// One step, whose operands go to the table of places.
    fn act(&mut self, step: &Step, fused: &Fused, rank: Rank) -> Result<Act> {
        let here = |block: &Block| Spot { rank, block: *block };
        let also = if let Fused::Also(spots) = fused { &spots[..] } else { &[] };
        let first_place = self.0.places.len() as u32;
        let (verb, peer, operands, targets) = match step {
            Step::Send { peer, blocks } => (Verb::Send, *peer, self.put(blocks.iter().map(here)), 0),
            Step::Recv { peer, into } => (Verb::Recv, *peer, self.put(into.iter().map(here)), 0),
            Step::RecvReduce { peer, with, into, .. } => {
                let operands = self.put(with.iter().map(here));
                self.put(into.iter().map(here));
                (Verb::RecvReduce, *peer, operands, 0)
            }
            Step::Copy { from, into } => {
                (Verb::Copy, rank, self.put([*from]), self.put([*into].iter().chain(also).copied()))
            }
            Step::Reduce { from, into, .. } => {
                let operands = self.put(from.iter().copied());
                (Verb::Reduce, rank, operands, self.put([*into].iter().chain(also).copied()))
            }
            Step::Signal => (Verb::Signal, rank, 0, 0),
            Step::Wait { peer, .. } => (Verb::Wait, *peer, 0, 0),
        };
        if operands.max(targets) > Act::OPERANDS_MAX {
            let text = format!(
                "{operands} operands, {targets} results in one step; a GPU takes {}",
                Act::OPERANDS_MAX
            );
            return Err(Error::new(ErrorKind::Unavailable(text)));
        }
        Ok(Act {
            verb: verb as u8,
            finish: finishes(step).into(),
            operands: operands as u16,
            targets: targets as u16,
            together: 0,
            peer: peer as u32,
            forward: if let Fused::Forward(to) = fused { *to as u32 } else { Act::NOBODY },
            signals: if let Step::Wait { signals, .. } = step { *signals } else { 0 },
            first_place,
        })
    }

    /// Adds places; says how many.
    fn put(&mut self, spots: impl IntoIterator<Item = Spot>) -> usize {
        let before = self.0.places.len();
        self.0.places.extend(spots.into_iter().map(|spot| Place {
            rank: spot.rank as u32,
            space: spot.block.space as u32,
            index: spot.block.index,
        }));
        self.0.places.len() - before
    }
}

fn finishes(step: &Step) -> bool {
    matches!(step, Step::RecvReduce { finish: true, .. } | Step::Reduce { finish: true, .. })
}

fn fuse(steps: &[Step]) -> Vec<Fused> {
    let mut fused = vec![Fused::Not; steps.len()];
    for (index, step) in steps.iter().enumerate() {
        let Some(next) = steps.get(index + 1) else { break };
        if fused[index] != Fused::Not {
            continue;
        }
        if let Some(peer) = forward(step, next) {
            (fused[index], fused[index + 1]) = (Fused::Forward(peer), Fused::Done);
        }
        // A signal may lie between; it is then given a little later.
        let later = index + 1 + usize::from(*next == Step::Signal);
        if let Some(spot) = steps.get(later).and_then(|later| also(step, later)) {
            (fused[index], fused[later]) = (Fused::Also(vec![spot]), Fused::Done);
        }
        let spots: Vec<Spot> = steps[index + 1..].iter().map_while(|later| lent(step, later)).collect();
        if !spots.is_empty() {
            fused[index + 1..=index + spots.len()].fill(Fused::Done);
            fused[index] = Fused::Also(spots);
        }
    }
    fused
}

/// Where in the buffer of a peer the value that `step` writes goes as well, if `later` copies it there.
fn lent(step: &Step, later: &Step) -> Option<Spot> {
    let Step::Copy { from: copied, into: also } = later else { return None };
    let (value, home) = match step {
        Step::Copy { from, into } => (from, into.rank),
        Step::Reduce { into, .. } => (into, into.rank),
        _ => return None,
    };
    (copied == value && also.rank != home && also.block.space == Space::Output).then_some(*also)
}

/// To whom the results of `step` go on, if `next` sends just them.
fn forward(step: &Step, next: &Step) -> Option<Rank> {
    match (step, next) {
        (Step::Recv { into, .. } | Step::RecvReduce { into, .. }, Step::Send { peer, blocks }) => {
            (into == blocks).then_some(*peer)
        }
        _ => None,
    }
}

/// Where in the output the result of `step`, which is for the window, goes as well, if `later` copies it there.
fn also(step: &Step, later: &Step) -> Option<Spot> {
    let Step::Copy { from: copied, into: also } = later else { return None };
    let (result, same) = match step {
        Step::Copy { from, into } => (into, copied == from || copied == into),
        Step::Reduce { into, .. } => (into, copied == into),
        _ => return None,
    };
    (same && result.block.space == Space::Window && also.block.space == Space::Output).then_some(*also)
}

#[cfg(test)]
mod tests;
