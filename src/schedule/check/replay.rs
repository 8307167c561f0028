//! Runs a schedule on small numbers, in a random order of steps.
//!
//! The run on expressions uses separate code, except for the places of chunks and the counting of
//! rounds. So each of the two runs can find errors in the other.

use crate::schedule::check::address_space::{AddressSpace, address_spaces};
use crate::schedule::check::expression::mix;
use crate::schedule::check::port_clock::PortClock;
use crate::schedule::check::violation::{Blocked, BlockedOn, StepError, StepLocation, Violation};
use crate::schedule::{Chunk, ChunkRef, LaneProgram, Rank, Schedule, Space, Step, input, output};
use std::collections::{HashMap, VecDeque};

/// The conditions of a replay.
#[derive(Clone, Copy, Debug)]
pub struct Replayer {
    /// Messages that a link holds for each direction and lane.
    pub fifo_slots: usize,
    /// True to let input and output share memory. This has no effect on a collective that has no
    /// in-place form.
    pub in_place: bool,
    /// Numbers in a chunk.
    pub chunk_len: usize,
    /// The function that finishes a sum.
    pub finish: fn(i64) -> i64,
    /// The seed of the random choice of the next lane program.
    pub seed: u64,
}

impl Default for Replayer {
    fn default() -> Self {
        Self { fifo_slots: 2, in_place: false, chunk_len: 1, finish: |sum| sum, seed: 0 }
    }
}

/// The events and results of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Rounds until the last lane program ended.
    pub rounds: u64,
    /// Every step, in the order of the replay.
    pub events: Vec<Event>,
    /// The output of each rank. Chunks without a value are left out.
    pub outputs: Vec<Vec<i64>>,
}

/// One step of the replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The step.
    pub at: StepLocation,
    /// The round in which the step began. For a received message, the round in which it was sent.
    pub start: u64,
    /// The round in which the step ended. For a message, the round in which it arrived.
    pub end: u64,
    /// The send or signal for which the step waited, as its index in the events.
    pub cause: Option<usize>,
    /// The chunks that the step stored.
    pub writes: Vec<Write>,
}

/// A chunk that was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The place.
    pub target: ChunkRef,
    /// The value.
    pub values: Vec<i64>,
}

impl Replayer {
    /// Replays `schedule`. Element `index` of the input of `rank` is `element(rank, index)`.
    ///
    /// # Errors
    /// A deadlock, or the first step that cannot be carried out.
    pub fn replay(
        &self,
        schedule: &Schedule,
        element: impl Fn(Rank, usize) -> i64,
    ) -> Result<Trace, Violation> {
        let (trace, violation) = self.replay_until_violation(schedule, element)?;
        violation.map_or(Ok(trace), Err)
    }

    /// Replays `schedule` up to the end, or up to the first violation. Returns the trace up to
    /// there, and the violation.
    ///
    /// # Errors
    /// Fails if the numbers of the schedule do not fit together.
    pub(in crate::schedule) fn replay_until_violation(
        &self,
        schedule: &Schedule,
        element: impl Fn(Rank, usize) -> i64,
    ) -> Result<(Trace, Option<Violation>), Violation> {
        crate::schedule::check::check_well_formed(schedule)?;
        let mut table = ReplayState::new(self, schedule, element)?;
        let violation = table.run(mix(self.seed)).err();
        Ok((table.into_trace(), violation))
    }
}

struct ReplayState<'s> {
    replayer: Replayer,
    address_spaces: Vec<AddressSpace>,
    memories: Vec<Vec<Option<Vec<i64>>>>,
    lanes: Vec<LaneCursor<'s>>,
    queues: HashMap<(Rank, Rank, usize), VecDeque<Message>>,
    events: Vec<Event>,
}

/// One lane program.
struct LaneCursor<'s> {
    at: StepLocation,
    lane_program: &'s LaneProgram,
    ports: PortClock,
    /// Events that were signals.
    signals: Vec<usize>,
}

struct Message {
    chunks: Vec<Vec<i64>>,
    event: usize,
}

/// The missing condition of a step, or the reason why it can never be carried out.
enum Interrupt {
    Blocked(Rank, BlockedOn),
    Failed(StepError),
}

impl From<StepError> for Interrupt {
    fn from(fault: StepError) -> Self {
        Interrupt::Failed(fault)
    }
}

impl<'s> ReplayState<'s> {
    fn new(
        player: &Replayer,
        schedule: &'s Schedule,
        element: impl Fn(Rank, usize) -> i64,
    ) -> Result<Self, Violation> {
        let rooms = address_spaces(schedule, player.in_place)?;
        let mut cells: Vec<_> = rooms.iter().map(|room| vec![None; room.size]).collect();
        for (rank, room) in rooms.iter().enumerate() {
            for index in 0..room.chunks(Space::Input) {
                if let Some(cell) = room.address(input(index)) {
                    let first = index * player.chunk_len;
                    cells[rank][cell] =
                        Some((first..first + player.chunk_len).map(|i| element(rank, i)).collect());
                }
            }
        }
        let mut lane_programs = Vec::new();
        for (rank, program) in schedule.programs.iter().enumerate() {
            for (index, lane_program) in program.lane_programs.iter().enumerate() {
                let location = StepLocation { rank, lane_program: index, step: 0 };
                lane_programs.push(LaneCursor {
                    at: location,
                    lane_program,
                    ports: PortClock::default(),
                    signals: Vec::new(),
                });
            }
        }
        Ok(Self {
            replayer: *player,
            address_spaces: rooms,
            memories: cells,
            lanes: lane_programs,
            queues: HashMap::new(),
            events: Vec::new(),
        })
    }

    /// Runs all lane programs, one step at a time in a random order.
    fn run(&mut self, mut random: u64) -> Result<(), Violation> {
        let mut candidates: Vec<usize> = (0..self.lanes.len()).collect();
        while !candidates.is_empty() {
            random = mix(random);
            let chosen = (random % candidates.len() as u64) as usize;
            if self.step(candidates[chosen])? {
                // A step may end the waits of others, so all lane programs are candidates again.
                candidates = self.unfinished();
            } else {
                // A lane program that waits is not tried again until another one has moved.
                candidates.swap_remove(chosen);
            }
        }
        self.check_ended()
    }

    fn unfinished(&self) -> Vec<usize> {
        let lane_programs = self.lanes.iter().enumerate();
        lane_programs
            .filter(|(_, seat)| seat.at.step < seat.lane_program.steps.len())
            .map(|(index, _)| index)
            .collect()
    }

    /// Carries out the next step of a lane program, unless it has to wait.
    fn step(&mut self, index: usize) -> Result<bool, Violation> {
        let location = self.lanes[index].at;
        let Some(step) = self.lanes[index].lane_program.steps.get(location.step) else {
            return Ok(false);
        };
        match self.execute(index, step) {
            Ok(event) => {
                self.events.push(event);
                self.lanes[index].at.step += 1;
                Ok(true)
            }
            Err(Interrupt::Blocked(..)) => Ok(false),
            Err(Interrupt::Failed(fault)) => Err(Violation::Step { at: location, error: fault }),
        }
    }

    fn execute(&mut self, index: usize, step: &Step) -> Result<Event, Interrupt> {
        // The clock is a copy, so that a step that has to wait does not change it.
        let LaneCursor { at, lane_program, mut ports, .. } = self.lanes[index];
        let (rank, lane) = (at.rank, lane_program.lane);
        let here = |chunk: Chunk| ChunkRef { rank, chunk };
        let mut event = Event { at, start: ports.clock, end: 0, cause: None, writes: Vec::new() };
        match step {
            Step::Send { peer, chunks } => {
                let sent = chunks.iter().map(|&chunk| self.load(here(chunk))).collect::<Result<_, _>>()?;
                let queue = self.queues.entry((rank, *peer, lane)).or_default();
                if queue.len() >= self.replayer.fifo_slots {
                    return Err(Interrupt::Blocked(*peer, BlockedOn::SendSlot(lane)));
                }
                queue.push_back(Message { chunks: sent, event: self.events.len() });
                event.end = ports.send();
                event.start = event.end - 1;
            }
            Step::Recv { peer, into } => {
                let message = self.receive(&mut event, &mut ports, *peer, lane)?;
                for (&chunk, values) in into.iter().zip(message) {
                    self.store(&mut event, here(chunk), values)?;
                }
            }
            Step::RecvReduce { peer, with, into, finish } => {
                let message = self.receive(&mut event, &mut ports, *peer, lane)?;
                for ((&operand, &chunk), arrived) in with.iter().zip(into).zip(message) {
                    let home = self.load(here(operand))?;
                    let sum = self.sum(&[home, arrived], *finish);
                    self.store(&mut event, here(chunk), sum)?;
                }
            }
            Step::Copy { from, into } => {
                let values = self.load(*from)?;
                self.store(&mut event, *into, values)?;
            }
            Step::Reduce { from, into, finish } => {
                let operands = from.iter().map(|&place| self.load(place)).collect::<Result<Vec<_>, _>>()?;
                let sum = self.sum(&operands, *finish);
                self.store(&mut event, *into, sum)?;
            }
            Step::Signal => {
                self.lanes[index].signals.push(self.events.len());
                event.end = ports.signal();
            }
            Step::Wait { peer, signals } => {
                let signaler = |seat: &&LaneCursor<'_>| {
                    seat.at.rank == *peer
                        && seat.lane_program.lane == lane
                        && seat.lane_program.steps.contains(&Step::Signal)
                };
                let given = self.lanes.iter().find(signaler).map_or(&[][..], |seat| &seat.signals);
                let last = (*signals as usize).checked_sub(1).and_then(|last| given.get(last));
                let cause = *last.ok_or(Interrupt::Blocked(*peer, BlockedOn::Signals(*signals)))?;
                event.cause = Some(cause);
                ports.wait(self.events[cause].end);
            }
        }
        event.end = event.end.max(ports.clock);
        self.lanes[index].ports = ports;
        Ok(event)
    }

    fn receive(
        &mut self,
        event: &mut Event,
        ports: &mut PortClock,
        peer: Rank,
        lane: usize,
    ) -> Result<Vec<Vec<i64>>, Interrupt> {
        let queue = self.queues.get_mut(&(peer, event.at.rank, lane));
        let message =
            queue.and_then(VecDeque::pop_front).ok_or(Interrupt::Blocked(peer, BlockedOn::Message(lane)))?;
        let sent = &self.events[message.event];
        ports.receive(sent.end);
        (event.start, event.cause) = (sent.start, Some(message.event));
        Ok(message.chunks)
    }

    fn sum(&self, operands: &[Vec<i64>], finish: bool) -> Vec<i64> {
        let element = |index: usize| {
            let sum = operands.iter().fold(0i64, |sum, operand| sum.wrapping_add(operand[index]));
            if finish { (self.replayer.finish)(sum) } else { sum }
        };
        (0..self.replayer.chunk_len).map(element).collect()
    }

    fn resolve(&self, place: ChunkRef) -> Result<(Rank, usize), StepError> {
        let room = self.address_spaces.get(place.rank).ok_or(StepError::NoSuchPeer(place.rank))?;
        let cell = room.address(place.chunk).ok_or(StepError::NoSuchChunk(place.rank, place.chunk))?;
        Ok((place.rank, cell))
    }

    fn load(&self, place: ChunkRef) -> Result<Vec<i64>, StepError> {
        let (rank, cell) = self.resolve(place)?;
        self.memories[rank][cell].clone().ok_or(StepError::Uninitialized(rank, place.chunk))
    }

    fn store(&mut self, event: &mut Event, place: ChunkRef, values: Vec<i64>) -> Result<(), StepError> {
        let (rank, cell) = self.resolve(place)?;
        self.memories[rank][cell] = Some(values.clone());
        event.writes.push(Write { target: place, values });
        Ok(())
    }

    /// Checks that no lane program waits.
    fn check_ended(&mut self) -> Result<(), Violation> {
        let mut blocked = Vec::new();
        for index in self.unfinished() {
            let LaneCursor { at, lane_program, .. } = self.lanes[index];
            match self.execute(index, &lane_program.steps[at.step]) {
                Err(Interrupt::Blocked(peer, needs)) => blocked.push(Blocked { at, peer, blocked_on: needs }),
                Err(Interrupt::Failed(fault)) => return Err(Violation::Step { at, error: fault }),
                Ok(_) => {}
            }
        }
        if blocked.is_empty() { Ok(()) } else { Err(Violation::Deadlock { blocked }) }
    }

    fn into_trace(self) -> Trace {
        let outputs = self.address_spaces.iter().zip(&self.memories).map(|(room, cells)| {
            let chunks = (0..room.chunks(Space::Output)).filter_map(|index| room.address(output(index)));
            chunks.flat_map(|cell| cells[cell].clone().unwrap_or_default()).collect()
        });
        let rounds = self.lanes.iter().map(|seat| seat.ports.clock).max().unwrap_or(0);
        Trace { rounds, outputs: outputs.collect(), events: self.events }
    }
}
