//! Runs all programs at once, on expressions instead of numbers.
//!
//! Every receive names its sender and every wait its signal, so that the ranks form a network of
//! processes whose outcome no timing can change (Kahn 1974): one run stands for all.

use crate::schedule::check::address_space::{AddressSpace, address_spaces};
use crate::schedule::check::expression::{ExprId, Expressions, ORIGINAL_INPUT, UNINITIALIZED};
use crate::schedule::check::fate::History;
use crate::schedule::check::port_clock::PortClock;
use crate::schedule::check::vector_clock::{
    Access, AccessHistory, ClockMode, Edge, LaneProgramId, LaneProgramIds, VectorClocks,
};
use crate::schedule::check::violation::{Blocked, BlockedOn, StepError, StepLocation, Violation};
use crate::schedule::{ChunkRef, Collective, LaneProgram, PeerAccess, Rank, Schedule, Space, Step, input};
use std::collections::VecDeque;

/// All ranks, in the middle of a run.
pub(super) struct Executor<'s> {
    pub(super) schedule: &'s Schedule,
    pub(super) values: Expressions,
    pub(super) memories: Vec<Memory>,
    pub(super) numbering: LaneProgramIds,
    pub(super) clocks: VectorClocks,
    lane_states: Vec<LaneState<'s>>,
    channels: Channels,
    /// The lane program of each rank and lane that signals.
    signalers: Vec<[Option<LaneProgramId>; LANES]>,
    /// Lane programs that may be able to go on.
    ready: Vec<LaneProgramId>,
    /// Chunks moved between ranks so far.
    pub(super) chunks_moved: u64,
    /// Every access to memory, if a violation is to be explained.
    pub(super) history: Option<History>,
    /// Room for messages to come.
    free_messages: Vec<Vec<ExprId>>,
}

/// The memory of one rank.
pub(super) struct Memory {
    pub(super) address_space: AddressSpace,
    pub(super) contents: Vec<ExprId>,
    pub(super) records: AccessHistory,
}

/// One lane program and its next step.
pub(super) struct LaneState<'s> {
    pub(super) rank: Rank,
    pub(super) lane: usize,
    steps: &'s [Step],
    position: usize,
    ports: PortClock,
    /// Its signals: when each is seen, and the accesses it orders.
    signals: Vec<(u64, Edge)>,
    /// Lane programs that wait for its next signal.
    waiting: Vec<LaneProgramId>,
}

struct Message {
    values: Vec<ExprId>,
    arrival: u64,
    edge: Edge,
}

/// Messages in progress from one rank to another on one lane.
#[derive(Default)]
struct Channel {
    queue: VecDeque<Message>,
    sender: Option<LaneProgramId>,
    receiver: Option<LaneProgramId>,
    sender_blocked: bool,
    receiver_blocked: bool,
}

/// Channels, made when first used.
struct Channels {
    ranks: usize,
    /// Index into `made`, or [`NO_CHANNEL`].
    index: Vec<u32>,
    channels: Vec<Channel>,
    slots: usize,
}

/// The outcome of a step.
pub(super) enum Outcome {
    Done,
    Blocked(Rank, BlockedOn),
}

pub(super) type StepResult = Result<Outcome, StepError>;

pub(super) const LANES: usize = 2;
const NO_CHANNEL: u32 = u32::MAX;
/// Most input chunks of all ranks together that expressions can number beside the sums.
const INPUTS_MAX: usize = 1 << 31;
/// Up to so many lane programs, everything each knows is passed on.
const FULL_KNOWLEDGE_MAX: usize = 300;

impl<'s> Executor<'s> {
    /// All ranks before their first step.
    pub(super) fn new(schedule: &'s Schedule, in_place: bool, slots: usize) -> Result<Self, Violation> {
        let (ranks, parts) = (schedule.spec.ranks, schedule.chunks_per_share);
        let numbering =
            LaneProgramIds::new(schedule.programs.iter().map(|program| program.lane_programs.len()));
        let knowledge = clock_mode(schedule, numbering.len());
        let rooms = address_spaces(schedule, in_place)?;
        let stride = rooms.iter().map(|room| room.chunks(Space::Input)).max().unwrap_or(0);
        if ranks.saturating_mul(stride) > INPUTS_MAX {
            return Err(Violation::Malformed("more input chunks than can be told apart"));
        }
        let memories = rooms.into_iter().zip(&schedule.programs);
        Ok(Self {
            schedule,
            values: Expressions::new(schedule.collective, ranks, parts, stride),
            memories: memories
                .map(|(room, program)| Memory::new(room, program.lane_programs.len(), schedule.peer_access))
                .collect(),
            clocks: VectorClocks::new(knowledge, numbering.len()),
            lane_states: lane_states(schedule),
            channels: Channels {
                ranks,
                index: vec![NO_CHANNEL; ranks * ranks * LANES],
                channels: Vec::new(),
                slots,
            },
            signalers: signalers(schedule, &numbering)?,
            ready: (0..numbering.len() as LaneProgramId).rev().collect(),
            numbering,
            chunks_moved: 0,
            history: None,
            free_messages: Vec::new(),
        })
    }

    /// Runs every lane program to its end.
    pub(super) fn run(&mut self) -> Result<(), Violation> {
        while let Some(lane_program) = self.ready.pop() {
            self.advance(lane_program)?;
        }
        self.check_no_deadlock()?;
        self.channels.check_drained()
    }

    /// Rounds until the last lane program has ended.
    pub(super) fn rounds(&self) -> u64 {
        self.lane_states.iter().map(|runner| runner.ports.clock).max().unwrap_or(0)
    }

    /// The position of a lane program.
    pub(super) fn location(&self, lane_program: LaneProgramId, step: usize) -> StepLocation {
        let (rank, lane_program) = self.numbering.locate(lane_program);
        StepLocation { rank, lane_program, step }
    }

    pub(super) fn lane_state(&self, lane_program: LaneProgramId) -> &LaneState<'s> {
        &self.lane_states[lane_program as usize]
    }

    /// The step that `lane_program` is in, as an access.
    pub(super) fn current_access(&self, lane_program: LaneProgramId) -> Access {
        Access { lane_program, tick: self.lane_state(lane_program).position as u32 + 1 }
    }

    fn advance(&mut self, lane_program: LaneProgramId) -> Result<(), Violation> {
        let steps = self.lane_state(lane_program).steps;
        while let Some(step) = steps.get(self.lane_state(lane_program).position) {
            match self.step(lane_program, step) {
                Ok(Outcome::Done) => self.lane_states[lane_program as usize].position += 1,
                Ok(Outcome::Blocked(..)) => break,
                Err(fault) => {
                    return Err(Violation::Step {
                        at: self.location(lane_program, self.lane_state(lane_program).position),
                        error: fault,
                    });
                }
            }
        }
        let position = self.lane_state(lane_program).position;
        if position == steps.len() && self.schedule.peer_access == PeerAccess::ZeroCopy {
            let location = self.location(lane_program, position.saturating_sub(1));
            return self
                .release_buffers(lane_program)
                .map_err(|fault| Violation::Step { at: location, error: fault });
        }
        Ok(())
    }

    fn step(&mut self, lane_program: LaneProgramId, step: &Step) -> StepResult {
        match step {
            Step::Send { peer, chunks } => self.send(lane_program, *peer, chunks),
            Step::Recv { peer, into } => self.recv(lane_program, *peer, into),
            Step::RecvReduce { peer, with, into, finish } => {
                self.recv_reduce(lane_program, *peer, with, into, *finish)
            }
            Step::Copy { from, into } => self.copy(lane_program, from, into),
            Step::Reduce { from, into, finish } => self.reduce(lane_program, from, into, *finish),
            Step::Signal => Ok(self.signal(lane_program)),
            Step::Wait { peer, signals } => self.wait(lane_program, *peer, *signals),
        }
    }

    /// Returns true if `lane_program` can send to `peer` now.
    pub(super) fn can_send(&mut self, lane_program: LaneProgramId, peer: Rank) -> StepResult {
        self.check_peer(lane_program, peer)?;
        let LaneState { rank, lane, .. } = *self.lane_state(lane_program);
        let slots = self.channels.slots;
        let channel = self.channels.get_or_create(rank, peer, lane);
        if *channel.sender.get_or_insert(lane_program) != lane_program {
            return Err(StepError::SharedChannel(peer));
        }
        channel.sender_blocked = channel.queue.len() >= slots;
        Ok(if channel.sender_blocked {
            Outcome::Blocked(peer, BlockedOn::SendSlot(lane))
        } else {
            Outcome::Done
        })
    }

    /// Sends a message.
    pub(super) fn enqueue(&mut self, lane_program: LaneProgramId, peer: Rank, values: Vec<ExprId>) {
        let edge = self.clocks.edge(self.current_access(lane_program));
        let runner = &mut self.lane_states[lane_program as usize];
        let arrival = runner.ports.send();
        let channel = self.channels.get_or_create(runner.rank, peer, runner.lane);
        self.chunks_moved += values.len() as u64;
        channel.queue.push_back(Message { values, arrival, edge });
        if std::mem::take(&mut channel.receiver_blocked) {
            self.ready.extend(channel.receiver);
        }
    }

    /// Room for a message.
    pub(super) fn take_free_message(&mut self) -> Vec<ExprId> {
        self.free_messages.pop().unwrap_or_default()
    }

    /// Frees the room of a message.
    pub(super) fn recycle_message(&mut self, mut values: Vec<ExprId>) {
        values.clear();
        self.free_messages.push(values);
    }

    /// The next message of `peer`, if it has arrived.
    pub(super) fn dequeue(
        &mut self,
        lane_program: LaneProgramId,
        peer: Rank,
    ) -> Result<Result<Vec<ExprId>, Outcome>, StepError> {
        self.check_peer(lane_program, peer)?;
        let runner = &mut self.lane_states[lane_program as usize];
        let channel = self.channels.get_or_create(peer, runner.rank, runner.lane);
        if *channel.receiver.get_or_insert(lane_program) != lane_program {
            return Err(StepError::SharedChannel(peer));
        }
        let Some(message) = channel.queue.pop_front() else {
            channel.receiver_blocked = true;
            return Ok(Err(Outcome::Blocked(peer, BlockedOn::Message(runner.lane))));
        };
        if std::mem::take(&mut channel.sender_blocked) {
            self.ready.extend(channel.sender);
        }
        runner.ports.receive(message.arrival);
        self.clocks.merge(lane_program, &message.edge);
        Ok(Ok(message.values))
    }

    fn signal(&mut self, lane_program: LaneProgramId) -> Outcome {
        let edge = self.clocks.edge(self.current_access(lane_program));
        let runner = &mut self.lane_states[lane_program as usize];
        let seen = runner.ports.signal();
        runner.signals.push((seen, edge));
        self.ready.append(&mut runner.waiting);
        Outcome::Done
    }

    fn wait(&mut self, lane_program: LaneProgramId, peer: Rank, signals: u32) -> StepResult {
        self.check_peer(lane_program, peer)?;
        let last = signals.checked_sub(1).ok_or(StepError::WaitForSignalZero)? as usize;
        let blocked = Ok(Outcome::Blocked(peer, BlockedOn::Signals(signals)));
        let Some(signaler) = self.signalers[peer][self.lane_state(lane_program).lane] else {
            return blocked;
        };
        let Some((seen, edge)) = self.lane_states[signaler as usize].signals.get(last) else {
            self.lane_states[signaler as usize].waiting.push(lane_program);
            return blocked;
        };
        let seen = *seen;
        self.clocks.merge(lane_program, edge);
        self.lane_states[lane_program as usize].ports.wait(seen);
        Ok(Outcome::Done)
    }

    fn check_peer(&self, lane_program: LaneProgramId, peer: Rank) -> Result<(), StepError> {
        match peer < self.schedule.spec.ranks && peer != self.lane_state(lane_program).rank {
            true => Ok(()),
            false => Err(StepError::NoSuchPeer(peer)),
        }
    }

    fn check_no_deadlock(&mut self) -> Result<(), Violation> {
        let mut blocked = Vec::new();
        for lane_program in 0..self.lane_states.len() as LaneProgramId {
            let LaneState { steps, position, .. } = *self.lane_state(lane_program);
            let Some(step) = steps.get(position) else {
                continue;
            };
            let location = self.location(lane_program, position);
            // The step is tried once more, because only the attempt tells for what it waits.
            match self.step(lane_program, step) {
                Ok(Outcome::Blocked(peer, needs)) => {
                    blocked.push(Blocked { at: location, peer, blocked_on: needs })
                }
                Ok(Outcome::Done) => {}
                Err(fault) => return Err(Violation::Step { at: location, error: fault }),
            }
        }
        if blocked.is_empty() { Ok(()) } else { Err(Violation::Deadlock { blocked }) }
    }
}

impl<'s> LaneState<'s> {
    fn new(rank: Rank, lane_program: &'s LaneProgram) -> Self {
        Self {
            rank,
            lane: lane_program.lane,
            steps: &lane_program.steps,
            position: 0,
            ports: PortClock::default(),
            signals: Vec::new(),
            waiting: Vec::new(),
        }
    }
}

impl Memory {
    fn new(room: AddressSpace, lane_programs: usize, reach: PeerAccess) -> Self {
        let mut cells = vec![UNINITIALIZED; room.size];
        for index in 0..room.chunks(Space::Input) {
            if let Some(cell) = room.address(input(index)) {
                cells[cell] = ORIGINAL_INPUT;
            }
        }
        // Memory that only one lane program can access has no races and needs no records.
        let alone = lane_programs <= 1 && reach < PeerAccess::ZeroCopy;
        let shared = if alone { room.size - room.chunks(Space::Window) } else { 0 };
        Self { address_space: room, records: AccessHistory::new(shared, room.size), contents: cells }
    }
}

impl Channels {
    fn get_or_create(&mut self, sender: Rank, receiver: Rank, lane: usize) -> &mut Channel {
        let index = &mut self.index[(sender * self.ranks + receiver) * LANES + lane];
        if *index == NO_CHANNEL {
            *index = self.channels.len() as u32;
            self.channels.push(Channel::default());
        }
        &mut self.channels[*index as usize]
    }

    fn check_drained(&self) -> Result<(), Violation> {
        for (position, &index) in self.index.iter().enumerate() {
            let messages = self.channels.get(index as usize).map_or(0, |channel| channel.queue.len());
            if messages > 0 {
                let (pair, lane) = (position / LANES, position % LANES);
                return Err(Violation::UnreceivedMessages {
                    from: pair / self.ranks,
                    to: pair % self.ranks,
                    lane,
                    messages,
                });
            }
        }
        Ok(())
    }
}

fn lane_states(schedule: &Schedule) -> Vec<LaneState<'_>> {
    let mut runners = Vec::new();
    for (rank, program) in schedule.programs.iter().enumerate() {
        runners.extend(program.lane_programs.iter().map(|lane_program| LaneState::new(rank, lane_program)));
    }
    runners
}

/// The lane program that signals on each lane of each rank.
fn signalers(
    schedule: &Schedule,
    numbering: &LaneProgramIds,
) -> Result<Vec<[Option<LaneProgramId>; LANES]>, Violation> {
    let mut signalers = vec![[None; LANES]; schedule.spec.ranks];
    for (rank, program) in schedule.programs.iter().enumerate() {
        for (index, (lane_program, id)) in program.lane_programs.iter().zip(numbering.of(rank)).enumerate() {
            let location = |step| StepLocation { rank, lane_program: index, step };
            let Some(signaler) = signalers[rank].get_mut(lane_program.lane) else {
                return Err(Violation::Step {
                    at: location(0),
                    error: StepError::NoSuchLane(lane_program.lane),
                });
            };
            if let Some(step) = lane_program.steps.iter().position(|step| *step == Step::Signal)
                && signaler.replace(id).is_some()
            {
                return Err(Violation::Step { at: location(step), error: StepError::SharedSignals });
            }
        }
    }
    Ok(signalers)
}

/// The knowledge of lane programs that a check of the schedule needs.
fn clock_mode(schedule: &Schedule, lane_programs: usize) -> ClockMode {
    let windows = schedule.programs.iter().any(|program| program.window > 0);
    let meets = windows || schedule.peer_access == PeerAccess::ZeroCopy;
    match schedule.collective {
        Collective::Barrier => ClockMode::Full,
        _ if !meets => ClockMode::Disabled,
        _ if lane_programs <= FULL_KNOWLEDGE_MAX => ClockMode::Full,
        _ => ClockMode::Direct,
    }
}

/// Returns true if the place is in another rank's memory.
pub(super) fn is_remote(place: &ChunkRef, rank: Rank) -> bool {
    place.rank != rank
}
