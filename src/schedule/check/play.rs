//! Plays a schedule on small numbers, in an order of steps drawn at random.
//!
//! Nothing here is shared with the run on expressions but where blocks lie and how rounds are
//! counted: what one accepts, the other can be asked to refute.

use super::ports::Ports;
use super::room::Room;
use super::value::mix;
use super::violation::{At, Blocked, Fault, Need, Violation};
use crate::schedule::{Block, Place, Rank, Schedule, Space, Step, Strand, input, output};
use std::collections::{HashMap, VecDeque};

/// How to play.
#[derive(Clone, Copy, Debug)]
pub struct Player {
    /// Messages that a link holds for each direction and lane.
    pub fifo_slots: usize,
    /// Whether input and output share memory, where the collective has such a form.
    pub in_place: bool,
    /// Numbers in a block.
    pub block_len: usize,
    /// What finishing does to a sum.
    pub finish: fn(i64) -> i64,
    /// Draws which strand goes next.
    pub seed: u64,
}

impl Default for Player {
    fn default() -> Self {
        Self { fifo_slots: 2, in_place: false, block_len: 1, finish: |sum| sum, seed: 0 }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Rounds until the last strand was through.
    pub rounds: u64,
    /// Every step, in the order played.
    pub events: Vec<Event>,
    /// The output of each rank; blocks that hold nothing are left out.
    pub outputs: Vec<Vec<i64>>,
}

/// One step that was played.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Which one.
    pub at: At,
    /// The round after which it was under way: for a message, when it left.
    pub begun: u64,
    /// The round after which it was done: for a message, when it arrived.
    pub ended: u64,
    /// The send or signal that it waited for, by its place among the events.
    pub cause: Option<usize>,
    /// What it stored.
    pub writes: Vec<Write>,
}

/// A block that was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Where.
    pub place: Place,
    /// What.
    pub values: Vec<i64>,
}

impl Player {
    /// Plays `schedule`; element `index` of the input of `rank` is `element(rank, index)`.
    ///
    /// # Errors
    /// A deadlock, or the first step that cannot be carried out.
    pub fn play(
        &self,
        schedule: &Schedule,
        element: impl Fn(Rank, usize) -> i64,
    ) -> Result<Trace, Violation> {
        super::is_well_formed(schedule)?;
        let mut table = Table::new(self, schedule, element)?;
        let mut random = mix(self.seed);
        let mut candidates: Vec<usize> = (0..table.strands.len()).collect();
        while !candidates.is_empty() {
            random = mix(random);
            let chosen = (random % candidates.len() as u64) as usize;
            if table.step(candidates[chosen])? {
                candidates = table.unfinished();
            } else {
                candidates.swap_remove(chosen);
            }
        }
        table.end()
    }
}

struct Table<'s> {
    player: Player,
    rooms: Vec<Room>,
    cells: Vec<Vec<Option<Vec<i64>>>>,
    strands: Vec<Seat<'s>>,
    queues: HashMap<(Rank, Rank, usize), VecDeque<Message>>,
    events: Vec<Event>,
}

/// One strand.
struct Seat<'s> {
    at: At,
    strand: &'s Strand,
    ports: Ports,
    /// Events that were signals.
    signals: Vec<usize>,
}

struct Message {
    blocks: Vec<Vec<i64>>,
    event: usize,
}

/// What a step needs that is not there yet; or why it can never be.
enum Stop {
    Wait(Rank, Need),
    Fault(Fault),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Stop::Fault(fault)
    }
}

impl<'s> Table<'s> {
    fn new(
        player: &Player,
        schedule: &'s Schedule,
        element: impl Fn(Rank, usize) -> i64,
    ) -> Result<Self, Violation> {
        let rooms = (0..schedule.spec.ranks).map(|rank| Room::new(schedule, rank, player.in_place));
        let rooms: Vec<Room> =
            rooms.collect::<Option<_>>().ok_or(Violation::Malformed("more blocks than fit a memory"))?;
        let mut cells: Vec<_> = rooms.iter().map(|room| vec![None; room.cells]).collect();
        for (rank, room) in rooms.iter().enumerate() {
            for index in 0..room.blocks(Space::Input) {
                if let Some(cell) = room.cell(input(index)) {
                    let first = index * player.block_len;
                    cells[rank][cell] =
                        Some((first..first + player.block_len).map(|i| element(rank, i)).collect());
                }
            }
        }
        let mut strands = Vec::new();
        for (rank, program) in schedule.programs.iter().enumerate() {
            for (index, strand) in program.strands.iter().enumerate() {
                let at = At { rank, strand: index, step: 0 };
                strands.push(Seat { at, strand, ports: Ports::default(), signals: Vec::new() });
            }
        }
        Ok(Self { player: *player, rooms, cells, strands, queues: HashMap::new(), events: Vec::new() })
    }

    fn unfinished(&self) -> Vec<usize> {
        let strands = self.strands.iter().enumerate();
        strands.filter(|(_, seat)| seat.at.step < seat.strand.steps.len()).map(|(index, _)| index).collect()
    }

    /// Plays the next step of a strand, unless it has to wait.
    fn step(&mut self, index: usize) -> Result<bool, Violation> {
        let at = self.strands[index].at;
        let Some(step) = self.strands[index].strand.steps.get(at.step) else {
            return Ok(false);
        };
        match self.carry_out(index, step) {
            Ok(event) => {
                self.events.push(event);
                self.strands[index].at.step += 1;
                Ok(true)
            }
            Err(Stop::Wait(..)) => Ok(false),
            Err(Stop::Fault(fault)) => Err(Violation::Step { at, fault }),
        }
    }

    fn carry_out(&mut self, index: usize, step: &Step) -> Result<Event, Stop> {
        let Seat { at, strand, mut ports, .. } = self.strands[index];
        let (rank, lane) = (at.rank, strand.lane);
        let here = |block: Block| Place { rank, block };
        let mut event = Event { at, begun: ports.clock, ended: 0, cause: None, writes: Vec::new() };
        match step {
            Step::Send { peer, blocks } => {
                let sent = blocks.iter().map(|&block| self.load(here(block))).collect::<Result<_, _>>()?;
                let queue = self.queues.entry((rank, *peer, lane)).or_default();
                if queue.len() >= self.player.fifo_slots {
                    return Err(Stop::Wait(*peer, Need::Room(lane)));
                }
                queue.push_back(Message { blocks: sent, event: self.events.len() });
                event.ended = ports.send();
                event.begun = event.ended - 1;
            }
            Step::Recv { peer, into } => {
                let message = self.receive(&mut event, &mut ports, *peer, lane)?;
                for (&block, values) in into.iter().zip(message) {
                    self.store(&mut event, here(block), values)?;
                }
            }
            Step::RecvReduce { peer, with, into, finish } => {
                let message = self.receive(&mut event, &mut ports, *peer, lane)?;
                for ((&with, &block), arrived) in with.iter().zip(into).zip(message) {
                    let home = self.load(here(with))?;
                    let sum = self.sum(&[home, arrived], *finish);
                    self.store(&mut event, here(block), sum)?;
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
                self.strands[index].signals.push(self.events.len());
                event.ended = ports.signal();
            }
            Step::Wait { peer, signals } => {
                let signaller = |seat: &&Seat<'_>| {
                    seat.at.rank == *peer
                        && seat.strand.lane == lane
                        && seat.strand.steps.contains(&Step::Signal)
                };
                let given = self.strands.iter().find(signaller).map_or(&[][..], |seat| &seat.signals);
                let last = (*signals as usize).checked_sub(1).and_then(|last| given.get(last));
                let cause = *last.ok_or(Stop::Wait(*peer, Need::Signals(*signals)))?;
                event.cause = Some(cause);
                ports.wait(self.events[cause].ended);
            }
        }
        event.ended = event.ended.max(ports.clock);
        self.strands[index].ports = ports;
        Ok(event)
    }

    fn receive(
        &mut self,
        event: &mut Event,
        ports: &mut Ports,
        peer: Rank,
        lane: usize,
    ) -> Result<Vec<Vec<i64>>, Stop> {
        let queue = self.queues.get_mut(&(peer, event.at.rank, lane));
        let message = queue.and_then(VecDeque::pop_front).ok_or(Stop::Wait(peer, Need::Message(lane)))?;
        let sent = &self.events[message.event];
        ports.receive(sent.ended);
        (event.begun, event.cause) = (sent.begun, Some(message.event));
        Ok(message.blocks)
    }

    fn sum(&self, operands: &[Vec<i64>], finish: bool) -> Vec<i64> {
        let at = |index: usize| {
            let sum = operands.iter().fold(0i64, |sum, operand| sum.wrapping_add(operand[index]));
            if finish { (self.player.finish)(sum) } else { sum }
        };
        (0..self.player.block_len).map(at).collect()
    }

    fn cell(&self, place: Place) -> Result<(Rank, usize), Fault> {
        let room = self.rooms.get(place.rank).ok_or(Fault::NoSuchPeer(place.rank))?;
        let cell = room.cell(place.block).ok_or(Fault::NoSuchBlock(place.rank, place.block))?;
        Ok((place.rank, cell))
    }

    fn load(&self, place: Place) -> Result<Vec<i64>, Fault> {
        let (rank, cell) = self.cell(place)?;
        self.cells[rank][cell].clone().ok_or(Fault::Empty(rank, place.block))
    }

    fn store(&mut self, event: &mut Event, place: Place, values: Vec<i64>) -> Result<(), Fault> {
        let (rank, cell) = self.cell(place)?;
        self.cells[rank][cell] = Some(values.clone());
        event.writes.push(Write { place, values });
        Ok(())
    }

    fn end(mut self) -> Result<Trace, Violation> {
        let mut blocked = Vec::new();
        for index in self.unfinished() {
            let Seat { at, strand, .. } = self.strands[index];
            match self.carry_out(index, &strand.steps[at.step]) {
                Err(Stop::Wait(peer, needs)) => blocked.push(Blocked { at, peer, needs }),
                Err(Stop::Fault(fault)) => return Err(Violation::Step { at, fault }),
                Ok(_) => {}
            }
        }
        if !blocked.is_empty() {
            return Err(Violation::Deadlock { blocked });
        }
        let outputs = self.rooms.iter().zip(&self.cells).map(|(room, cells)| {
            let blocks = (0..room.blocks(Space::Output)).filter_map(|index| room.cell(output(index)));
            blocks.flat_map(|cell| cells[cell].clone().unwrap_or_default()).collect()
        });
        let rounds = self.strands.iter().map(|seat| seat.ports.clock).max().unwrap_or(0);
        Ok(Trace { rounds, outputs: outputs.collect(), events: self.events })
    }
}
