//! Proves a schedule by playing all ranks, and names the operation that breaks a rule.
//!
//! A link of one payload from one rank to another holds one message: a send waits until the message
//! before it has been received. A schedule that ends with such links also ends with longer ones.
//! Ranks name their peers and wait for nothing else, so that their speed changes no outcome (Kahn,
//! 1974): one run stands for all.

mod violation;

pub use violation::{Fault, OpLocation, Violation};

use crate::pipeline::{Op, Payload, Placement, Schedule};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Most that each rank of a checked schedule holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holdings {
    /// Activations per rank: pairs of micro-batch and chunk between the forward pass and the end of
    /// the backward pass, including the gradients of weights.
    pub activations: Vec<usize>,
    /// Received values per rank that wait for their pass.
    pub received: Vec<usize>,
}

/// Checks that every rank does every pass once, in an order that no dependency or link forbids.
///
/// # Errors
/// Returns the first rule that is broken.
pub fn check(schedule: &Schedule) -> Result<Holdings, Violation> {
    let &Schedule { ranks, micro_batches, chunks, placement, ref rows, .. } = schedule;
    if ranks.min(micro_batches).min(chunks) == 0 || rows.len() != ranks {
        return Err(Violation::Malformed("one row per rank, and at least one micro-batch and chunk"));
    }
    if schedule.micro_sequences == 0 || !micro_batches.is_multiple_of(schedule.micro_sequences) {
        return Err(Violation::Malformed("every micro-batch has as many micro-sequences, at least one"));
    }
    if placement == Placement::V && chunks != 2 {
        return Err(Violation::Malformed("stages in the shape of a V are two per rank"));
    }
    let mut players = Players::new(schedule);
    while players.advance_all()? {}
    players.check_ended()?;
    Ok(players.holdings)
}

/// One stage's progress with one micro-batch.
#[derive(Clone, Copy, Default)]
struct Progress {
    forward: bool,
    input: bool,
    weights: bool,
    /// By payload.
    received: [bool; 2],
    sent: [bool; 2],
}

struct Players<'s> {
    schedule: &'s Schedule,
    /// Next operation of each rank.
    at: Vec<usize>,
    /// By stage and micro-batch.
    progress: Vec<Progress>,
    /// Micro-batch and receiving stage in transfer, by sender, receiver and payload.
    links: HashMap<(usize, usize, Payload), (usize, usize)>,
    live: Vec<usize>,
    waiting: Vec<usize>,
    holdings: Holdings,
}

/// True if the operation is done, false if its rank must wait.
type Outcome = Result<bool, Fault>;

impl<'s> Players<'s> {
    fn new(schedule: &'s Schedule) -> Self {
        let zeros = vec![0; schedule.ranks];
        Self {
            schedule,
            at: zeros.clone(),
            progress: vec![Progress::default(); schedule.stages() * schedule.micro_batches],
            links: HashMap::new(),
            live: zeros.clone(),
            waiting: zeros.clone(),
            holdings: Holdings { activations: zeros.clone(), received: zeros },
        }
    }

    /// Returns true if any rank has moved.
    fn advance_all(&mut self) -> Result<bool, Violation> {
        let mut moved = false;
        for rank in self.schedule.rounds() {
            while let Some(place) = self.location(rank) {
                match self.run(rank, place.op) {
                    Ok(true) => self.at[rank] += 1,
                    Ok(false) => break,
                    Err(fault) => return Err(Violation::Op { at: place, fault }),
                }
                moved = true;
            }
        }
        Ok(moved)
    }

    fn location(&self, rank: usize) -> Option<OpLocation> {
        let index = self.at[rank];
        self.schedule.rows[rank].get(index).map(|&op| OpLocation { rank, index, op })
    }

    fn check_ended(&self) -> Result<(), Violation> {
        let blocked: Vec<_> = (0..self.schedule.ranks).filter_map(|rank| self.location(rank)).collect();
        if !blocked.is_empty() {
            return Err(Violation::Deadlock(blocked));
        }
        let unstepped = self.schedule.rows.iter().position(|row| row.last() != Some(&Op::Step));
        unstepped.map_or(Ok(()), |rank| Err(Violation::NoStep(rank)))
    }

    fn run(&mut self, rank: usize, op: Op) -> Outcome {
        let Some((micro, chunk)) = op.place() else {
            return self.step(rank).map(|()| true);
        };
        if micro >= self.schedule.micro_batches || chunk >= self.schedule.chunks {
            return Err(Fault::NoSuchPlace);
        }
        match op {
            Op::Send { what, peer, .. } => self.send(rank, what, micro, chunk, peer),
            Op::Receive { what, peer, .. } => self.receive(rank, what, micro, chunk, peer),
            _ => self.pass(rank, op, micro, chunk).map(|()| true),
        }
    }

    fn progress(&mut self, stage: usize, micro: usize) -> &mut Progress {
        &mut self.progress[stage * self.schedule.micro_batches + micro]
    }

    fn pass(&mut self, rank: usize, op: Op, micro: usize, chunk: usize) -> Result<(), Fault> {
        let stage = self.schedule.stage(rank, chunk);
        let done = *self.progress(stage, micro);
        let repeated = match op {
            Op::Forward { .. } => done.forward,
            Op::BackwardWeights { .. } => done.weights,
            _ => done.input,
        };
        match op {
            _ if repeated => return Err(Fault::Repeated),
            Op::Forward { .. } => {}
            _ if !done.forward => return Err(Fault::NoForward),
            Op::BackwardWeights { .. } if !done.input => return Err(Fault::NoBackwardInput),
            _ => {}
        }
        self.check_micro_sequence(stage, op, micro)?;
        if let Some(what) = op.needs() {
            self.take_operand(rank, what, micro, chunk)?;
        }
        let now = self.progress(stage, micro);
        match op {
            Op::Forward { .. } => now.forward = true,
            Op::BackwardInput { .. } => now.input = true,
            Op::BackwardWeights { .. } => now.weights = true,
            _ => (now.input, now.weights) = (true, true),
        }
        if let Op::Forward { .. } = op {
            self.live[rank] += 1;
            raise(&mut self.holdings.activations[rank], self.live[rank]);
        } else if now.weights {
            self.live[rank] -= 1;
        }
        Ok(())
    }

    /// Checks that the micro-sequence whose keys and values, or their gradients, a pass needs is
    /// done.
    fn check_micro_sequence(&mut self, stage: usize, op: Op, micro: usize) -> Result<(), Fault> {
        let (count, part) = (self.schedule.micro_sequences, micro % self.schedule.micro_sequences);
        let done = match op {
            Op::Forward { .. } => part == 0 || self.progress(stage, micro - 1).forward,
            Op::BackwardWeights { .. } => true,
            _ => part + 1 == count || self.progress(stage, micro + 1).input,
        };
        done.then_some(()).ok_or(Fault::NoMicroSequence)
    }

    /// Takes what a pass needs from the stage before or after.
    fn take_operand(&mut self, rank: usize, what: Payload, micro: usize, chunk: usize) -> Result<(), Fault> {
        let source = match what {
            Payload::Activation => self.schedule.previous(rank, chunk),
            Payload::Gradient => self.schedule.next(rank, chunk),
        };
        let there = match source {
            None => true,
            Some((peer, chunk)) if peer == rank => {
                let made = *self.progress(self.schedule.stage(rank, chunk), micro);
                if what == Payload::Activation { made.forward } else { made.input }
            }
            Some(_) => {
                let received = self.progress(self.schedule.stage(rank, chunk), micro).received[what as usize];
                self.waiting[rank] -= usize::from(received);
                received
            }
        };
        there.then_some(()).ok_or(Fault::NoOperand(what))
    }

    fn send(&mut self, rank: usize, what: Payload, micro: usize, chunk: usize, peer: usize) -> Outcome {
        let receiver = self.schedule.receiver(what, rank, chunk);
        let Some((_, chunk_there)) = receiver.filter(|&(expected, _)| expected == peer) else {
            return Err(Fault::WrongPeer(receiver.map(|(expected, _)| expected)));
        };
        let done = *self.progress(self.schedule.stage(rank, chunk), micro);
        let made = if what == Payload::Activation { done.forward } else { done.input };
        if done.sent[what as usize] || !made {
            return Err(if made { Fault::Repeated } else { Fault::NothingToSend });
        }
        let stage = self.schedule.stage(peer, chunk_there);
        match self.links.entry((rank, peer, what)) {
            Entry::Occupied(_) => return Ok(false),
            Entry::Vacant(link) => link.insert((micro, stage)),
        };
        self.progress(self.schedule.stage(rank, chunk), micro).sent[what as usize] = true;
        Ok(true)
    }

    fn receive(&mut self, rank: usize, what: Payload, micro: usize, chunk: usize, peer: usize) -> Outcome {
        let sender = self.schedule.sender(what, rank, chunk).map(|(expected, _)| expected);
        if sender != Some(peer) {
            return Err(Fault::WrongPeer(sender));
        }
        let mine = self.schedule.stage(rank, chunk);
        if self.progress(mine, micro).received[what as usize] {
            return Err(Fault::Repeated);
        }
        match self.links.remove(&(peer, rank, what)) {
            None => return Ok(false),
            Some(message) if message == (micro, mine) => {}
            Some((micro, stage)) => return Err(Fault::OutOfOrder { micro, stage }),
        }
        self.progress(mine, micro).received[what as usize] = true;
        self.waiting[rank] += 1;
        raise(&mut self.holdings.received[rank], self.waiting[rank]);
        Ok(true)
    }

    /// Checks that the rank has done all of its work.
    fn step(&mut self, rank: usize) -> Result<(), Fault> {
        if self.at[rank] + 1 != self.schedule.rows[rank].len() {
            return Err(Fault::StepBeforeEnd);
        }
        for chunk in 0..self.schedule.chunks {
            for micro in 0..self.schedule.micro_batches {
                let done = *self.progress(self.schedule.stage(rank, chunk), micro);
                let unsent = |what| {
                    let sends = self.schedule.receiver(what, rank, chunk).is_some();
                    sends && !done.sent[what as usize]
                };
                let lacks = match done {
                    Progress { forward: false, .. } => "forward",
                    Progress { input: false, .. } => "backward",
                    Progress { weights: false, .. } => "the gradients of weights",
                    _ if Payload::ALL.into_iter().any(unsent) => "a send",
                    _ => continue,
                };
                return Err(Fault::Unfinished { micro, chunk, lacks });
            }
        }
        Ok(())
    }
}

fn raise(peak: &mut usize, value: usize) {
    *peak = value.max(*peak);
}
