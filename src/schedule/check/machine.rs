//! Runs all programs at once, on expressions instead of numbers.
//!
//! Every receive names its sender and every wait its signal, so that the ranks form a network of
//! processes whose outcome no timing can change (Kahn 1974): one run stands for all.

use super::order::{Access, Clocks, Edge, Knowledge, Numbering, Records, StrandId};
use super::ports::Ports;
use super::room::Room;
use super::value::{EMPTY, RAW, Value, Values};
use super::violation::{At, Blocked, Fault, Need, Violation};
use crate::schedule::{Collective, Place, Rank, Reach, Schedule, Space, Step, Strand, input};
use std::collections::VecDeque;

/// All ranks, in the middle of a run.
pub(super) struct Machine<'s> {
    pub(super) schedule: &'s Schedule,
    pub(super) values: Values,
    pub(super) memories: Vec<Memory>,
    pub(super) numbering: Numbering,
    pub(super) clocks: Clocks,
    runners: Vec<Runner<'s>>,
    channels: Channels,
    /// The strand of each rank and lane that signals.
    signallers: Vec<[Option<StrandId>; LANES]>,
    /// Strands that may be able to go on.
    ready: Vec<StrandId>,
    /// Blocks moved between ranks so far.
    pub(super) blocks: u64,
    /// Room for messages to come.
    spare: Vec<Vec<Value>>,
}

/// One rank's memory.
pub(super) struct Memory {
    pub(super) room: Room,
    pub(super) cells: Vec<Value>,
    pub(super) records: Records,
}

/// One strand and how far it is.
pub(super) struct Runner<'s> {
    pub(super) rank: Rank,
    pub(super) lane: usize,
    steps: &'s [Step],
    position: usize,
    ports: Ports,
    /// What it signalled: when that is seen, and what it tells.
    signals: Vec<(u64, Edge)>,
    /// Strands that wait for its next signal.
    waiting: Vec<StrandId>,
}

struct Message {
    values: Vec<Value>,
    arrival: u64,
    edge: Edge,
}

/// Messages under way from one rank to another on one lane.
#[derive(Default)]
struct Channel {
    queue: VecDeque<Message>,
    sender: Option<StrandId>,
    receiver: Option<StrandId>,
    sender_waits: bool,
    receiver_waits: bool,
}

/// Channels, made when first used.
struct Channels {
    ranks: usize,
    /// Index into `made`, or [`NO_CHANNEL`].
    index: Vec<u32>,
    made: Vec<Channel>,
    slots: usize,
}

/// What became of a step.
pub(super) enum Outcome {
    Done,
    Blocked(Rank, Need),
}

pub(super) type Stepped = Result<Outcome, Fault>;

pub(super) const LANES: usize = 2;
const NO_CHANNEL: u32 = u32::MAX;
/// Most input blocks of all ranks together that expressions can number beside the sums.
const INPUTS_MAX: usize = 1 << 31;
/// Up to so many strands, everything each knows is passed on.
const FULL_KNOWLEDGE_MAX: usize = 300;

impl<'s> Machine<'s> {
    /// All ranks before their first step.
    pub(super) fn new(schedule: &'s Schedule, in_place: bool, slots: usize) -> Result<Self, Violation> {
        let (ranks, parts) = (schedule.spec.ranks, schedule.parts);
        let numbering = Numbering::new(schedule.programs.iter().map(|program| program.strands.len()));
        let knowledge = knowledge(schedule, numbering.len());
        let rooms = (0..ranks).map(|rank| Room::new(schedule, rank, in_place));
        let rooms: Vec<Room> =
            rooms.collect::<Option<_>>().ok_or(Violation::Malformed("more blocks than fit a memory"))?;
        let stride = rooms.iter().map(|room| room.blocks(Space::Input)).max().unwrap_or(0);
        if ranks.saturating_mul(stride) > INPUTS_MAX {
            return Err(Violation::Malformed("more input blocks than can be told apart"));
        }
        let memories = rooms.into_iter().zip(&schedule.programs);
        Ok(Self {
            schedule,
            values: Values::new(schedule.collective, ranks, parts, stride),
            memories: memories
                .map(|(room, program)| Memory::new(room, program.strands.len(), schedule.reach))
                .collect(),
            clocks: Clocks::new(knowledge, numbering.len()),
            runners: runners(schedule),
            channels: Channels {
                ranks,
                index: vec![NO_CHANNEL; ranks * ranks * LANES],
                made: Vec::new(),
                slots,
            },
            signallers: signallers(schedule, &numbering)?,
            ready: (0..numbering.len() as StrandId).rev().collect(),
            numbering,
            blocks: 0,
            spare: Vec::new(),
        })
    }

    /// Runs every strand to its end.
    pub(super) fn run(&mut self) -> Result<(), Violation> {
        while let Some(strand) = self.ready.pop() {
            self.advance(strand)?;
        }
        self.nobody_is_blocked()?;
        self.channels.are_empty()
    }

    /// Rounds until the last strand is through.
    pub(super) fn rounds(&self) -> u64 {
        self.runners.iter().map(|runner| runner.ports.clock).max().unwrap_or(0)
    }

    /// Where a strand stands.
    pub(super) fn at(&self, strand: StrandId, step: usize) -> At {
        let (rank, strand) = self.numbering.place(strand);
        At { rank, strand, step }
    }

    pub(super) fn runner(&self, strand: StrandId) -> &Runner<'s> {
        &self.runners[strand as usize]
    }

    /// The step that `strand` is in, as an access.
    pub(super) fn now(&self, strand: StrandId) -> Access {
        Access { strand, tick: self.runner(strand).position as u32 + 1 }
    }

    fn advance(&mut self, strand: StrandId) -> Result<(), Violation> {
        let steps = self.runner(strand).steps;
        while let Some(step) = steps.get(self.runner(strand).position) {
            match self.step(strand, step) {
                Ok(Outcome::Done) => self.runners[strand as usize].position += 1,
                Ok(Outcome::Blocked(..)) => break,
                Err(fault) => {
                    return Err(Violation::Step { at: self.at(strand, self.runner(strand).position), fault });
                }
            }
        }
        let position = self.runner(strand).position;
        if position == steps.len() && self.schedule.reach == Reach::Buffers {
            let at = self.at(strand, position.saturating_sub(1));
            return self.hand_back(strand).map_err(|fault| Violation::Step { at, fault });
        }
        Ok(())
    }

    fn step(&mut self, strand: StrandId, step: &Step) -> Stepped {
        match step {
            Step::Send { peer, blocks } => self.send(strand, *peer, blocks),
            Step::Recv { peer, into } => self.recv(strand, *peer, into),
            Step::RecvReduce { peer, with, into, finish } => {
                self.recv_reduce(strand, *peer, with, into, *finish)
            }
            Step::Copy { from, into } => self.copy(strand, from, into),
            Step::Reduce { from, into, finish } => self.reduce(strand, from, into, *finish),
            Step::Signal => Ok(self.signal(strand)),
            Step::Wait { peer, signals } => self.wait(strand, *peer, *signals),
        }
    }

    /// Whether `strand` can send to `peer` now.
    pub(super) fn room_towards(&mut self, strand: StrandId, peer: Rank) -> Stepped {
        self.is_peer(strand, peer)?;
        let Runner { rank, lane, .. } = *self.runner(strand);
        let slots = self.channels.slots;
        let channel = self.channels.between(rank, peer, lane);
        if *channel.sender.get_or_insert(strand) != strand {
            return Err(Fault::SharedChannel(peer));
        }
        channel.sender_waits = channel.queue.len() >= slots;
        Ok(if channel.sender_waits { Outcome::Blocked(peer, Need::Room(lane)) } else { Outcome::Done })
    }

    /// Puts a message on its way.
    pub(super) fn post(&mut self, strand: StrandId, peer: Rank, values: Vec<Value>) {
        let edge = self.clocks.edge(self.now(strand));
        let runner = &mut self.runners[strand as usize];
        let arrival = runner.ports.send();
        let channel = self.channels.between(runner.rank, peer, runner.lane);
        self.blocks += values.len() as u64;
        channel.queue.push_back(Message { values, arrival, edge });
        if std::mem::take(&mut channel.receiver_waits) {
            self.ready.extend(channel.receiver);
        }
    }

    /// Room for a message.
    pub(super) fn blank(&mut self) -> Vec<Value> {
        self.spare.pop().unwrap_or_default()
    }

    /// Gives the room of a message back.
    pub(super) fn discard(&mut self, mut values: Vec<Value>) {
        values.clear();
        self.spare.push(values);
    }

    /// The next message of `peer`, if it is there.
    pub(super) fn take(
        &mut self,
        strand: StrandId,
        peer: Rank,
    ) -> Result<Result<Vec<Value>, Outcome>, Fault> {
        self.is_peer(strand, peer)?;
        let runner = &mut self.runners[strand as usize];
        let channel = self.channels.between(peer, runner.rank, runner.lane);
        if *channel.receiver.get_or_insert(strand) != strand {
            return Err(Fault::SharedChannel(peer));
        }
        let Some(message) = channel.queue.pop_front() else {
            channel.receiver_waits = true;
            return Ok(Err(Outcome::Blocked(peer, Need::Message(runner.lane))));
        };
        if std::mem::take(&mut channel.sender_waits) {
            self.ready.extend(channel.sender);
        }
        runner.ports.receive(message.arrival);
        self.clocks.learn(strand, &message.edge);
        Ok(Ok(message.values))
    }

    fn signal(&mut self, strand: StrandId) -> Outcome {
        let edge = self.clocks.edge(self.now(strand));
        let runner = &mut self.runners[strand as usize];
        let seen = runner.ports.signal();
        runner.signals.push((seen, edge));
        self.ready.append(&mut runner.waiting);
        Outcome::Done
    }

    fn wait(&mut self, strand: StrandId, peer: Rank, signals: u32) -> Stepped {
        self.is_peer(strand, peer)?;
        let last = signals.checked_sub(1).ok_or(Fault::WaitsForNothing)? as usize;
        let blocked = Ok(Outcome::Blocked(peer, Need::Signals(signals)));
        let Some(signaller) = self.signallers[peer][self.runner(strand).lane] else {
            return blocked;
        };
        let Some((seen, edge)) = self.runners[signaller as usize].signals.get(last) else {
            self.runners[signaller as usize].waiting.push(strand);
            return blocked;
        };
        let seen = *seen;
        self.clocks.learn(strand, edge);
        self.runners[strand as usize].ports.wait(seen);
        Ok(Outcome::Done)
    }

    fn is_peer(&self, strand: StrandId, peer: Rank) -> Result<(), Fault> {
        match peer < self.schedule.spec.ranks && peer != self.runner(strand).rank {
            true => Ok(()),
            false => Err(Fault::NoSuchPeer(peer)),
        }
    }

    fn nobody_is_blocked(&mut self) -> Result<(), Violation> {
        let mut blocked = Vec::new();
        for strand in 0..self.runners.len() as StrandId {
            let Runner { steps, position, .. } = *self.runner(strand);
            let Some(step) = steps.get(position) else {
                continue;
            };
            let at = self.at(strand, position);
            match self.step(strand, step) {
                Ok(Outcome::Blocked(peer, needs)) => blocked.push(Blocked { at, peer, needs }),
                Ok(Outcome::Done) => {}
                Err(fault) => return Err(Violation::Step { at, fault }),
            }
        }
        if blocked.is_empty() { Ok(()) } else { Err(Violation::Deadlock { blocked }) }
    }
}

impl<'s> Runner<'s> {
    fn new(rank: Rank, strand: &'s Strand) -> Self {
        Self {
            rank,
            lane: strand.lane,
            steps: &strand.steps,
            position: 0,
            ports: Ports::default(),
            signals: Vec::new(),
            waiting: Vec::new(),
        }
    }
}

impl Memory {
    fn new(room: Room, strands: usize, reach: Reach) -> Self {
        let mut cells = vec![EMPTY; room.cells];
        for index in 0..room.blocks(Space::Input) {
            if let Some(cell) = room.cell(input(index)) {
                cells[cell] = RAW;
            }
        }
        // What one strand alone can reach, nothing races for.
        let alone = strands <= 1 && reach < Reach::Buffers;
        let shared = if alone { room.cells - room.blocks(Space::Window) } else { 0 };
        Self { room, records: Records::new(shared, room.cells), cells }
    }
}

impl Channels {
    fn between(&mut self, from: Rank, to: Rank, lane: usize) -> &mut Channel {
        let index = &mut self.index[(from * self.ranks + to) * LANES + lane];
        if *index == NO_CHANNEL {
            *index = self.made.len() as u32;
            self.made.push(Channel::default());
        }
        &mut self.made[*index as usize]
    }

    fn are_empty(&self) -> Result<(), Violation> {
        for (position, &index) in self.index.iter().enumerate() {
            let messages = self.made.get(index as usize).map_or(0, |channel| channel.queue.len());
            if messages > 0 {
                let (pair, lane) = (position / LANES, position % LANES);
                return Err(Violation::LeftOver {
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

fn runners(schedule: &Schedule) -> Vec<Runner<'_>> {
    let mut runners = Vec::new();
    for (rank, program) in schedule.programs.iter().enumerate() {
        runners.extend(program.strands.iter().map(|strand| Runner::new(rank, strand)));
    }
    runners
}

/// Who signals on each lane of each rank.
fn signallers(
    schedule: &Schedule,
    numbering: &Numbering,
) -> Result<Vec<[Option<StrandId>; LANES]>, Violation> {
    let mut signallers = vec![[None; LANES]; schedule.spec.ranks];
    for (rank, program) in schedule.programs.iter().enumerate() {
        for (index, (strand, id)) in program.strands.iter().zip(numbering.of(rank)).enumerate() {
            let at = |step| At { rank, strand: index, step };
            let Some(signaller) = signallers[rank].get_mut(strand.lane) else {
                return Err(Violation::Step { at: at(0), fault: Fault::NoSuchLane(strand.lane) });
            };
            if let Some(step) = strand.steps.iter().position(|step| *step == Step::Signal)
                && signaller.replace(id).is_some()
            {
                return Err(Violation::Step { at: at(step), fault: Fault::SharedSignals });
            }
        }
    }
    Ok(signallers)
}

/// How much strands must know for the schedule to be judged.
fn knowledge(schedule: &Schedule, strands: usize) -> Knowledge {
    let windows = schedule.programs.iter().any(|program| program.window > 0);
    let meets = windows || schedule.reach == Reach::Buffers;
    match schedule.collective {
        Collective::Barrier => Knowledge::Full,
        _ if !meets => Knowledge::Nothing,
        _ if strands <= FULL_KNOWLEDGE_MAX => Knowledge::Full,
        _ => Knowledge::Direct,
    }
}

/// Whether the place is in another rank's memory.
pub(super) fn is_remote(place: &Place, rank: Rank) -> bool {
    place.rank != rank
}
