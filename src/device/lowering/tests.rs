//! Tables programs, played on numbers, do what their schedules do.

use super::lower;
use crate::schedule::check::Player;
use crate::schedule::{Algorithm, Collective, Reach, Schedule, Space, Spec, find};
use std::collections::{HashMap, VecDeque};
use unisono_cuda::device::{Act, Verb};
use unisono_transports::p2p::Tables;

/// All ranks of one schedule: a block is one number, a FIFO holds [`SLOTS`] messages.
struct Table<'s> {
    schedule: &'s Schedule,
    programs: Vec<Tables>,
    cells: HashMap<Cell, i64>,
    links: HashMap<(u32, u32, u32), VecDeque<Vec<i64>>>,
    signals: HashMap<(u32, u32), usize>,
    runs: Vec<Run>,
}

/// One strand: where it is in its acts, and in its pieces.
#[derive(Clone, Copy)]
struct Run {
    rank: u32,
    strand: usize,
    act: u32,
    piece: usize,
}

/// (rank, space, index).
type Cell = (u32, u32, u32);

const VERBS: [Verb; 7] =
    [Verb::Send, Verb::Recv, Verb::RecvReduce, Verb::Copy, Verb::Reduce, Verb::Signal, Verb::Wait];
const SLOTS: usize = 2;
const PIECES: usize = 3;
/// From the blocks of one bank of a window to those of the other.
const BANK: u32 = 1 << 16;

impl<'s> Table<'s> {
    fn new(schedule: &'s Schedule) -> Self {
        let ranks = 0..schedule.spec.ranks;
        let programs: Vec<_> =
            ranks.map(|rank| lower(&schedule.programs[rank], rank).expect("it lowers")).collect();
        let run = |(rank, program): (usize, &Tables)| {
            let start = move |strand| Run { rank: rank as u32, strand, act: 0, piece: 0 };
            (0..program.strands.len()).map(start).collect::<Vec<_>>()
        };
        let runs = programs.iter().enumerate().flat_map(run).collect();
        let mut table = Self {
            schedule,
            programs,
            cells: HashMap::new(),
            links: HashMap::new(),
            signals: HashMap::new(),
            runs,
        };
        table.fill();
        table
    }

    fn fill(&mut self) {
        let Spec { ranks, root, .. } = self.schedule.spec;
        for rank in 0..ranks {
            let blocks = self.schedule.collective.shares(ranks, root, rank).0 * self.schedule.parts;
            for index in 0..blocks {
                let cell = (rank as u32, Space::Input as u32, index as u32);
                self.cells.insert(cell, element(rank, index));
            }
        }
    }

    /// Runs until all are through; false: somebody waits for ever.
    fn play(&mut self) -> bool {
        loop {
            let mut moved = false;
            for index in 0..self.runs.len() {
                while self.step(index) {
                    moved = true;
                }
            }
            if self.runs.iter().all(|run| run.piece == PIECES) {
                return true;
            }
            if !moved {
                return false;
            }
        }
    }

    fn step(&mut self, index: usize) -> bool {
        let run = self.runs[index];
        let strand = self.programs[run.rank as usize].strands[run.strand].clone();
        // A bank is free when all have finished the piece before the last.
        let in_windows = self.schedule.reach == Reach::Windows;
        let is_free = !in_windows || self.runs.iter().all(|other| other.piece + 1 >= run.piece);
        if run.piece == PIECES || !is_free {
            return false;
        }
        if run.act == strand.acts {
            self.runs[index] = Run { act: 0, piece: run.piece + 1, ..run };
            return true;
        }
        let act = self.programs[run.rank as usize].acts[(strand.first_act + run.act) as usize].clone();
        let done = self.carry_out(&run, strand.lane, &act);
        self.runs[index].act += u32::from(done);
        done
    }

    /// Blocks of windows lie in the bank of the piece.
    fn places(&self, run: &Run, act: &Act, from: usize, count: usize) -> Vec<Cell> {
        let places = &self.programs[run.rank as usize].places[act.first_place as usize + from..][..count];
        let bank = |space| if space == Space::Window as u32 { (run.piece & 1) as u32 * BANK } else { 0 };
        places.iter().map(|place| (place.rank, place.space, bank(place.space) + place.index)).collect()
    }

    fn has_room(&mut self, from: u32, to: u32, lane: u32) -> bool {
        self.links.entry((from, to, lane)).or_default().len() < SLOTS
    }

    fn has_message(&mut self, from: u32, to: u32, lane: u32) -> bool {
        !self.links.entry((from, to, lane)).or_default().is_empty()
    }

    fn carry_out(&mut self, run: &Run, lane: u32, act: &Act) -> bool {
        let (rank, operands) = (run.rank, act.operands as usize);
        let verb = VERBS[act.verb as usize];
        let receives = matches!(verb, Verb::Recv | Verb::RecvReduce);
        let goes_on = (act.forward != Act::NOBODY).then_some(act.forward);
        let to = if verb == Verb::Send { Some(act.peer) } else { goes_on };
        if receives && !self.has_message(act.peer, rank, lane)
            || to.is_some_and(|to| !self.has_room(rank, to, lane))
        {
            return false;
        }
        let first = self.places(run, act, 0, operands);
        let held = |table: &Self, cell: &Cell| *table.cells.get(cell).expect("a block that is held");
        let mut result = Vec::new();
        match verb {
            Verb::Send => result = first.iter().map(|place| held(self, place)).collect(),
            Verb::Recv | Verb::RecvReduce => {
                let message = self.links.get_mut(&(act.peer, rank, lane)).unwrap().pop_front().unwrap();
                assert_eq!(message.len(), operands);
                let adds = verb == Verb::RecvReduce;
                let into = self.places(run, act, if adds { operands } else { 0 }, operands);
                for ((with, into), arrived) in first.iter().zip(into).zip(message) {
                    let sum = arrived + if adds { held(self, with) } else { 0 };
                    self.cells.insert(into, finished(act, sum));
                    result.push(finished(act, sum));
                }
            }
            Verb::Copy | Verb::Reduce => {
                let sum = first.iter().map(|place| held(self, place)).sum();
                for into in self.places(run, act, operands, act.targets as usize) {
                    self.cells.insert(into, finished(act, sum));
                }
            }
            Verb::Signal => *self.signals.entry((rank, lane)).or_default() += 1,
            Verb::Wait => return self.has_signalled(run, lane, act),
        }
        if let Some(to) = to {
            self.links.get_mut(&(rank, to, lane)).unwrap().push_back(result);
        }
        true
    }

    /// Whether the peer of a wait has signalled as often as that, in all pieces so far.
    fn has_signalled(&self, run: &Run, lane: u32, act: &Act) -> bool {
        let program = &self.programs[act.peer as usize];
        let signals = program.acts.iter().filter(|act| act.verb == Verb::Signal as u8).count();
        let given = self.signals.get(&(act.peer, lane)).copied().unwrap_or(0);
        given >= run.piece * signals + act.signals as usize
    }
}

fn finished(act: &Act, sum: i64) -> i64 {
    if act.finish != 0 { finish(sum) } else { sum }
}

fn finish(sum: i64) -> i64 {
    sum * 2 + 1
}

fn element(rank: usize, index: usize) -> i64 {
    (rank * 1000 + index * 7 + 1) as i64
}

fn specs(algorithm: &Algorithm) -> impl Iterator<Item = Spec> {
    let all = (1..=17).flat_map(|ranks| [0, ranks - 1].map(|root| Spec { ranks, root, aggregation: 4 }));
    let roots = algorithm.collective.has_root();
    let fits = algorithm.fits;
    all.filter(move |spec| (spec.root == 0 || roots) && fits(spec))
}

#[test]
fn every_algorithm_does_the_same_when_lowered() {
    let player = Player { finish, ..Player::default() };
    for algorithm in Algorithm::ALL {
        for spec in specs(algorithm) {
            let schedule = algorithm.schedule(&spec);
            let expected = player.play(&schedule, element).expect("a schedule that was checked");
            let mut table = Table::new(&schedule);
            assert!(table.play(), "{algorithm:?} {spec:?} waits for ever with {SLOTS} slots");
            for (rank, expected) in expected.outputs.iter().enumerate() {
                let mut found: Vec<_> = table
                    .cells
                    .iter()
                    .filter(|(cell, _)| cell.0 as usize == rank && cell.1 == Space::Output as u32)
                    .collect();
                found.sort();
                let found: Vec<i64> = found.into_iter().map(|(_, value)| *value).collect();
                assert_eq!(found, *expected, "{algorithm:?} {spec:?} rank {rank}");
            }
        }
    }
}

/// Blocks of buffers that all ranks together read and write, and of scratch and windows.
fn touched(collective: Collective, name: &str, ranks: usize) -> [usize; 3] {
    let schedule = find(collective, name).unwrap().schedule(&Spec { ranks, root: 1, aggregation: 1 });
    let mut touched = [0; 3];
    for rank in 0..ranks {
        let tables = lower(&schedule.programs[rank], rank).unwrap();
        for act in &tables.acts {
            let (reads, all) = (usize::from(act.operands), usize::from(act.operands + act.targets));
            let places = tables.places[act.first_place as usize..].iter().take(all).enumerate();
            for (at, place) in places {
                let is_buffer = place.space == Space::Input as u32 || place.space == Space::Output as u32;
                touched[if !is_buffer { 2 } else { usize::from(at >= reads) }] += 1;
            }
        }
    }
    touched
}

#[test]
fn what_is_lent_is_read_once_and_written_where_it_goes() {
    use Collective::{AllGather, AllReduce, Broadcast, ReduceScatter};
    // Chunks of four ranks: all are read by their owners, and written to all.
    assert_eq!(touched(AllReduce, "zerocopy", 4), [16, 16, 0]);
    assert_eq!(touched(AllReduce, "scaled", 4), [16 + 16, 16 + 16, 0], "once more at home");
    assert_eq!(touched(AllGather, "zerocopy", 4), [4, 16, 0]);
    assert_eq!(touched(ReduceScatter, "zerocopy", 4), [16, 4, 0]);
    assert_eq!(touched(Broadcast, "push", 4), [1, 4, 0]);
    assert_eq!(touched(Broadcast, "zerocopy", 4), [4, 4, 0]);
    assert!(touched(Broadcast, "direct", 4)[2] > 0, "windows are counted");
}

#[test]
fn what_is_one_pass_is_one_act() {
    let of = |name, ranks| {
        let row = find(Collective::AllReduce, name).unwrap();
        lower(&(row.build)(&Spec { ranks, root: 0, aggregation: 1 }, 1), 1).unwrap()
    };
    let forwards = |lowered: &Tables| {
        lowered
            .acts
            .iter()
            .filter(|act| act.forward != Act::NOBODY)
            .map(|act| act.forward)
            .collect::<Vec<_>>()
    };
    let ring = of("ring", 3);
    assert_eq!(forwards(&ring), [2, 2, 2], "received from 0 and sent on to 2, but for the last");
    let twoshot = of("twoshot", 3);
    let reduce = twoshot.acts.iter().find(|act| act.verb == Verb::Reduce as u8).unwrap();
    assert_eq!((reduce.operands, reduce.targets), (3, 2), "into the window and the output");
}
