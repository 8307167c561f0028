//! One rank's operations as visits of its units.

use crate::pipeline::{Op, Payload, Schedule};
use std::ops::Range;
use unisono_nn::parameter::UnitId;
use unisono_nn::step_plan::{StepPlan, Visit, Work};

/// Value on its way to the stage that needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Message {
    /// Kind of the value.
    pub what: Payload,
    /// Its micro-batch.
    pub micro: usize,
    /// Stage that needs it.
    pub stage: usize,
}

/// Operation of a [`Program`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// Visits the units of a stage in turn.
    Compute {
        /// Value that the first visit needs; `None` at both ends of the model, and for gradients of
        /// weights.
        needs: Option<Message>,
        /// Value that the last visit computes; `None` at the start of the model, and for gradients
        /// of weights.
        gives: Option<Message>,
        /// Numbers of the visits in the plan.
        visits: Range<usize>,
    },
    /// Starts to send a value to rank `peer`.
    Send(Message, usize),
    /// Waits for a value of rank `peer`.
    Receive(Message, usize),
}

/// Operations of one rank in a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// All visits, as strategies need them.
    pub plan: StepPlan,
    /// Visits and messages, in order.
    pub instructions: Vec<Instruction>,
    /// Rank of the pipeline that has the last stage.
    pub last_rank: usize,
}

impl Program {
    /// Translates the row of `rank`. `stages` has the units of each stage.
    ///
    /// # Panics
    /// Panics if there is not one range of units per stage.
    pub fn new(schedule: &Schedule, rank: usize, stages: &[Range<usize>]) -> Self {
        assert_eq!(stages.len(), schedule.stages(), "units of each stage");
        let mut builder = Builder { schedule, rank, stages, visits: Vec::new() };
        let instructions = schedule.rows[rank].iter().filter_map(|&op| builder.translate(op)).collect();
        let (last_rank, _) = schedule.location(schedule.stages() - 1);
        Self { plan: StepPlan::new(builder.visits), instructions, last_rank }
    }

    /// Returns the number of messages that the rank sends.
    pub fn send_count(&self) -> usize {
        let sends = |instruction: &&Instruction| matches!(instruction, Instruction::Send(..));
        self.instructions.iter().filter(sends).count()
    }

    /// Returns the program of a forward pass of one micro-batch through all stages.
    ///
    /// # Panics
    /// Panics as [`Program::new`] does.
    pub fn forward_only(schedule: &Schedule, rank: usize, stages: &[Range<usize>]) -> Self {
        let mut chunks: Vec<usize> = (0..schedule.chunks).collect();
        // A rank with several stages needs the output of an earlier stage before it can run a later
        // one, also where chunks are numbered otherwise.
        chunks.sort_by_key(|&chunk| schedule.stage(rank, chunk));
        let (micro, what) = (0, Payload::Activation);
        let ops = chunks.into_iter().flat_map(|chunk| {
            let receive = schedule.sender(what, rank, chunk);
            let send = schedule.receiver(what, rank, chunk);
            [
                receive.map(|(peer, _)| Op::Receive { what, micro, chunk, peer }),
                Some(Op::Forward { micro, chunk }),
                send.map(|(peer, _)| Op::Send { what, micro, chunk, peer }),
            ]
        });
        let mut rows = vec![Vec::new(); schedule.ranks];
        rows[rank] = ops.flatten().collect();
        Self::new(&Schedule { rows, micro_batches: 1, micro_sequences: 1, ..schedule.clone() }, rank, stages)
    }
}

struct Builder<'a> {
    schedule: &'a Schedule,
    rank: usize,
    stages: &'a [Range<usize>],
    visits: Vec<Visit>,
}

impl Builder<'_> {
    fn translate(&mut self, op: Op) -> Option<Instruction> {
        let (micro, chunk) = op.place()?;
        let (stage, last) = (self.schedule.stage(self.rank, chunk), self.schedule.stages() - 1);
        let message = |what, stage| Message { what, micro, stage };
        Some(match op {
            Op::Forward { .. } => Instruction::Compute {
                needs: (stage > 0).then(|| message(Payload::Activation, stage)),
                gives: Some(match stage {
                    // The last stage sends nothing. Its loss waits on this rank until its own
                    // backward pass takes it.
                    _ if stage == last => message(Payload::Gradient, stage),
                    _ => message(Payload::Activation, stage + 1),
                }),
                visits: self.visit(Work::Forward, stage, micro),
            },
            Op::Backward { .. } => self.backward(Work::Backward, stage, micro),
            Op::BackwardInput { .. } => self.backward(Work::InputGrads, stage, micro),
            Op::BackwardWeights { .. } => Instruction::Compute {
                needs: None,
                gives: None,
                visits: self.visit(Work::WeightGrads, stage, micro),
            },
            Op::Send { what, peer, .. } => Instruction::Send(
                match what {
                    Payload::Activation => message(what, stage + 1),
                    Payload::Gradient => message(what, stage - 1),
                },
                peer,
            ),
            Op::Receive { what, peer, .. } => Instruction::Receive(message(what, stage), peer),
            Op::Step => return None,
        })
    }

    fn backward(&mut self, work: Work, stage: usize, micro: usize) -> Instruction {
        let what = Payload::Gradient;
        let gives = stage.checked_sub(1).map(|stage| Message { what, micro, stage });
        let needs = Some(Message { what, micro, stage });
        Instruction::Compute { needs, gives, visits: self.visit(work, stage, micro) }
    }

    /// Adds the visits of a stage's units, and returns their numbers.
    fn visit(&mut self, work: Work, stage: usize, micro: usize) -> Range<usize> {
        let (start, units) = (self.visits.len(), self.stages[stage].clone());
        let visit = |unit| Visit { work, unit: UnitId(unit), micro_batches: micro..micro + 1 };
        match work {
            Work::Forward => self.visits.extend(units.map(visit)),
            // Gradients of a unit need those of the unit behind it.
            _ => self.visits.extend(units.rev().map(visit)),
        }
        start..self.visits.len()
    }
}
