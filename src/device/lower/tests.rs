//! Tests that lowered programs, executed on numbers, compute what their schedules compute.

use crate::device::lower::lower;
use crate::schedule::check::Replayer;
use crate::schedule::{Algorithm, Collective, GroupSpec, PeerAccess, Schedule, Space, find};
use std::collections::{HashMap, VecDeque};
use unisono_cuda::device::{Instr, Opcode};
use unisono_transports::gpu::ProgramTables;

/// Executes all ranks of one schedule. A chunk is one number, and a FIFO holds [`FIFO_DEPTH`]
/// messages.
struct TableExecutor<'s> {
    schedule: &'s Schedule,
    programs: Vec<ProgramTables>,
    chunks: HashMap<ChunkKey, i64>,
    links: HashMap<(u32, u32, u32), VecDeque<Vec<i64>>>,
    signals: HashMap<(u32, u32), usize>,
    lanes: Vec<LaneState>,
    slices: usize,
    /// True if a chunk of the input and the same chunk of the output are one number.
    in_place: bool,
}

/// State of one lane program: its next instruction and its slice.
#[derive(Clone, Copy)]
struct LaneState {
    rank: u32,
    lane_program: usize,
    instr: u32,
    slice: usize,
}

/// (rank, space, index).
type ChunkKey = (u32, u32, u32);

const OPCODES: [Opcode; 7] = [
    Opcode::Send,
    Opcode::Recv,
    Opcode::RecvReduce,
    Opcode::Copy,
    Opcode::Reduce,
    Opcode::Signal,
    Opcode::Wait,
];
const FIFO_DEPTH: usize = 2;
const SLICES: usize = 3;
/// Distance between the chunks of the two parities of a window.
const PARITY_STRIDE: u32 = 1 << 16;

impl<'s> TableExecutor<'s> {
    /// Loads a schedule. Slices share their numbers, so there is one slice if it runs in place.
    fn new(schedule: &'s Schedule, in_place: bool) -> Self {
        let ranks = 0..schedule.spec.ranks;
        let programs: Vec<_> =
            ranks.map(|rank| lower(schedule.programs[rank].clone(), rank).expect("it lowers")).collect();
        let run = |(rank, program): (usize, &ProgramTables)| {
            let start = move |lane_program| LaneState { rank: rank as u32, lane_program, instr: 0, slice: 0 };
            (0..program.lane_programs.len()).map(start).collect::<Vec<_>>()
        };
        let runs = programs.iter().enumerate().flat_map(run).collect();
        let mut table = Self {
            schedule,
            programs,
            chunks: HashMap::new(),
            links: HashMap::new(),
            signals: HashMap::new(),
            lanes: runs,
            slices: if in_place { 1 } else { SLICES },
            in_place,
        };
        table.fill();
        table
    }

    fn fill(&mut self) {
        let GroupSpec { ranks, root, .. } = self.schedule.spec;
        for rank in 0..ranks {
            let blocks =
                self.schedule.collective.shares(ranks, root, rank).0 * self.schedule.chunks_per_share;
            for index in 0..blocks {
                let cell = (rank as u32, self.memory(Space::Input as u32), index as u32);
                self.chunks.insert(cell, element(rank, index));
            }
        }
    }

    /// Returns the memory in which a space lies.
    fn memory(&self, space: u32) -> u32 {
        if self.in_place && space == Space::Input as u32 { Space::Output as u32 } else { space }
    }

    /// Runs until all lane programs are complete. Returns false on a deadlock.
    fn run(&mut self) -> bool {
        loop {
            let mut moved = false;
            for index in 0..self.lanes.len() {
                while self.step(index) {
                    moved = true;
                }
            }
            if self.lanes.iter().all(|run| run.slice == self.slices) {
                return true;
            }
            if !moved {
                return false;
            }
        }
    }

    fn step(&mut self, index: usize) -> bool {
        let run = self.lanes[index];
        let lane_program = self.programs[run.rank as usize].lane_programs[run.lane_program].clone();
        // A parity is free when all have finished the slice before the last.
        let in_windows = self.schedule.peer_access == PeerAccess::Window;
        let is_free = !in_windows || self.lanes.iter().all(|other| other.slice + 1 >= run.slice);
        if run.slice == self.slices || !is_free {
            return false;
        }
        if run.instr == lane_program.instr_count {
            self.lanes[index] = LaneState { instr: 0, slice: run.slice + 1, ..run };
            return true;
        }
        let act =
            self.programs[run.rank as usize].instrs[(lane_program.first_instr + run.instr) as usize].clone();
        let done = self.execute(&run, lane_program.lane, &act);
        self.lanes[index].instr += u32::from(done);
        done
    }

    /// Resolves chunks. Window chunks lie in the parity of the slice.
    fn resolve_chunks(&self, run: &LaneState, act: &Instr, start: usize, count: usize) -> Vec<ChunkKey> {
        let places = &self.programs[run.rank as usize].chunks[act.first_chunk as usize + start..][..count];
        let bank =
            |space| if space == Space::Window as u32 { (run.slice & 1) as u32 * PARITY_STRIDE } else { 0 };
        places
            .iter()
            .map(|place| (place.rank, self.memory(place.space), bank(place.space) + place.index))
            .collect()
    }

    fn has_room(&mut self, sender: u32, receiver: u32, lane: u32) -> bool {
        self.links.entry((sender, receiver, lane)).or_default().len() < FIFO_DEPTH
    }

    fn has_message(&mut self, sender: u32, receiver: u32, lane: u32) -> bool {
        !self.links.entry((sender, receiver, lane)).or_default().is_empty()
    }

    fn execute(&mut self, run: &LaneState, lane: u32, act: &Instr) -> bool {
        let (rank, operands) = (run.rank, act.operands as usize);
        let verb = OPCODES[act.opcode as usize];
        let receives = matches!(verb, Opcode::Recv | Opcode::RecvReduce);
        let goes_on = (act.forward != Instr::NO_PEER).then_some(act.forward);
        let receiver = if verb == Opcode::Send { Some(act.peer) } else { goes_on };
        if receives && !self.has_message(act.peer, rank, lane)
            || receiver.is_some_and(|receiver| !self.has_room(rank, receiver, lane))
        {
            return false;
        }
        let first = self.resolve_chunks(run, act, 0, operands);
        let held = |table: &Self, cell: &ChunkKey| *table.chunks.get(cell).expect("a block that is held");
        let mut result = Vec::new();
        match verb {
            Opcode::Send => result = first.iter().map(|place| held(self, place)).collect(),
            Opcode::Recv | Opcode::RecvReduce => {
                let message = self.links.get_mut(&(act.peer, rank, lane)).unwrap().pop_front().unwrap();
                assert_eq!(message.len(), operands);
                let adds = verb == Opcode::RecvReduce;
                let targets = self.resolve_chunks(run, act, if adds { operands } else { 0 }, operands);
                for ((operand, target), arrived) in first.iter().zip(targets).zip(message) {
                    let sum = arrived + if adds { held(self, operand) } else { 0 };
                    self.chunks.insert(target, finished(act, sum));
                    result.push(finished(act, sum));
                }
            }
            Opcode::Copy | Opcode::Reduce => {
                let sum = first.iter().map(|place| held(self, place)).sum();
                for target in self.resolve_chunks(run, act, operands, act.targets as usize) {
                    self.chunks.insert(target, finished(act, sum));
                }
            }
            Opcode::Signal => *self.signals.entry((rank, lane)).or_default() += 1,
            Opcode::Wait => return self.has_signaled(run, lane, act),
        }
        if let Some(receiver) = receiver {
            self.links.get_mut(&(rank, receiver, lane)).unwrap().push_back(result);
        }
        true
    }

    /// Returns the chunks of a rank's output, in their order.
    fn output(&self, rank: usize) -> Vec<i64> {
        let is_output = |cell: &ChunkKey| cell.0 as usize == rank && cell.1 == Space::Output as u32;
        let mut found: Vec<_> = self.chunks.iter().filter(|(cell, _)| is_output(cell)).collect();
        found.sort();
        found.into_iter().map(|(_, value)| *value).collect()
    }

    /// Returns true if the awaited peer has signaled as often as needed, over all slices so far.
    fn has_signaled(&self, run: &LaneState, lane: u32, act: &Instr) -> bool {
        let program = &self.programs[act.peer as usize];
        let signals = program.instrs.iter().filter(|act| act.opcode == Opcode::Signal as u8).count();
        let given = self.signals.get(&(act.peer, lane)).copied().unwrap_or(0);
        given >= run.slice * signals + act.signals as usize
    }
}

fn finished(act: &Instr, sum: i64) -> i64 {
    if act.post_op != 0 { finish(sum) } else { sum }
}

fn finish(sum: i64) -> i64 {
    sum * 2 + 1
}

fn element(rank: usize, index: usize) -> i64 {
    (rank * 1000 + index * 7 + 1) as i64
}

fn specs(algorithm: &Algorithm) -> impl Iterator<Item = GroupSpec> {
    let groups =
        (1..=17).flat_map(|ranks| [0, ranks - 1].map(|root| GroupSpec { ranks, root, aggregation: 4 }));
    let roots = algorithm.collective.has_root();
    let fits = algorithm.supports;
    groups.filter(move |spec| (spec.root == 0 || roots) && fits(spec))
}

#[test]
fn lowered_tables_match_schedules() {
    let player = Replayer { finish, ..Replayer::default() };
    for algorithm in Algorithm::ALL {
        for spec in specs(algorithm) {
            let schedule = algorithm.schedule(&spec);
            let expected = player.replay(&schedule, element).expect("a schedule that was checked");
            let mut table = TableExecutor::new(&schedule, false);
            assert!(table.run(), "{algorithm:?} {spec:?} waits for ever with {FIFO_DEPTH} slots");
            for (rank, expected) in expected.outputs.iter().enumerate() {
                assert_eq!(table.output(rank), *expected, "{algorithm:?} {spec:?} rank {rank}");
            }
        }
    }
}

/// Returns the names of the algorithms whose programs allow an all_to_all in place.
fn names_in_place(ranks: usize) -> Vec<&'static str> {
    let runs_in_place = |row: &&Algorithm| {
        let schedule = row.schedule(&GroupSpec::new(ranks));
        let programs = schedule.programs.into_iter().enumerate();
        let mut tables = programs.map(|(rank, program)| lower(program, rank).expect("it lowers"));
        tables.all(|tables| tables.runs_in_place())
    };
    let rows = Algorithm::ALL.iter().filter(|row| row.collective == Collective::AllToAll);
    rows.filter(runs_in_place).map(|row| row.name).collect()
}

#[test]
fn in_place_tables_match_schedules() {
    assert_eq!(names_in_place(6), ["pairwise_exchange", "pairwise_windowed", "window_direct"]);
    assert_eq!(names_in_place(8), ["pairwise_exchange", "pairwise_windowed", "bruck", "window_direct"]);
    for ranks in 1..=17 {
        for name in names_in_place(ranks) {
            let row = find(Collective::AllToAll, name).expect("an algorithm of the table");
            let schedule = row.schedule(&GroupSpec::new(ranks));
            let expected =
                Replayer::default().replay(&schedule, element).expect("a schedule that was checked");
            let mut table = TableExecutor::new(&schedule, true);
            assert!(table.run(), "{name} waits for ever at {ranks} ranks");
            for (rank, expected) in expected.outputs.iter().enumerate() {
                assert_eq!(table.output(rank), *expected, "{name} at rank {rank} of {ranks}");
            }
        }
    }
}

/// Counts the chunks of buffers that all ranks together read and write, and those of scratch and
/// windows.
fn count_accesses(collective: Collective, name: &str, ranks: usize) -> [usize; 3] {
    let schedule = find(collective, name).unwrap().schedule(&GroupSpec::new(ranks).with_root(1));
    let mut touched = [0; 3];
    for rank in 0..ranks {
        let tables = lower(schedule.programs[rank].clone(), rank).unwrap();
        for act in &tables.instrs {
            let (reads, total) = (usize::from(act.operands), usize::from(act.operands + act.targets));
            let places = tables.chunks[act.first_chunk as usize..].iter().take(total).enumerate();
            for (index, place) in places {
                let is_buffer = place.space == Space::Input as u32 || place.space == Space::Output as u32;
                touched[if !is_buffer { 2 } else { usize::from(index >= reads) }] += 1;
            }
        }
    }
    touched
}

#[test]
fn zero_copy_tables_read_once_and_write_in_place() {
    use Collective::{AllGather, AllReduce, Broadcast, ReduceScatter};
    // Chunks of four ranks: all are read by their owners, and written to all.
    assert_eq!(count_accesses(AllReduce, "zero_copy", 4), [16, 16, 0]);
    assert_eq!(count_accesses(AllReduce, "zero_copy_scaled", 4), [16 + 16, 16 + 16, 0], "once more at home");
    assert_eq!(count_accesses(AllGather, "zero_copy", 4), [4, 16, 0]);
    assert_eq!(count_accesses(ReduceScatter, "zero_copy", 4), [16, 4, 0]);
    assert_eq!(count_accesses(Broadcast, "zero_copy_push", 4), [1, 4, 0]);
    assert_eq!(count_accesses(Broadcast, "zero_copy", 4), [4, 4, 0]);
    assert!(count_accesses(Broadcast, "window_direct", 4)[2] > 0, "windows are counted");
}

#[test]
fn lowering_fuses_one_pass_into_one_instr() {
    let lowered_as = |name, ranks| {
        let row = find(Collective::AllReduce, name).unwrap();
        lower((row.build)(&GroupSpec::new(ranks), 1), 1).unwrap()
    };
    let forwards = |lowered: &ProgramTables| {
        lowered
            .instrs
            .iter()
            .filter(|act| act.forward != Instr::NO_PEER)
            .map(|act| act.forward)
            .collect::<Vec<_>>()
    };
    let ring = lowered_as("ring", 3);
    assert_eq!(forwards(&ring), [2, 2, 2], "received from 0 and sent on to 2, but for the last");
    let twoshot = lowered_as("twoshot", 3);
    let reduce = twoshot.instrs.iter().find(|act| act.opcode == Opcode::Reduce as u8).unwrap();
    assert_eq!((reduce.operands, reduce.targets), (3, 2), "into the window and the output");
}
