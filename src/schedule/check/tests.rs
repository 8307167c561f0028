//! Toy algorithms, right and wrong in every way there is.

use super::*;
use crate::schedule::{Block, Collective, Place, Program, ProgramBuilder, Rank, Space};
use crate::schedule::{input, output, scratch, window};

const BOTH: [bool; 2] = [false, true];

fn schedule(collective: Collective, ranks: usize, parts: usize, build: impl Fn(Rank) -> Program) -> Schedule {
    let spec = Spec { ranks, root: 0, aggregation: 1 };
    Schedule { collective, spec, parts, reach: Reach::Windows, programs: (0..ranks).map(build).collect() }
}

fn run(schedule: &Schedule) -> Result<Report, Violation> {
    check_schedule(schedule, &Options::default())
}

fn fault(schedule: &Schedule) -> Fault {
    match run(schedule) {
        Err(Violation::Step { fault, .. }) => fault,
        other => panic!("{other:?}"),
    }
}

/// Rank 0 reduces everything and sends the sum back.
fn collect(ranks: usize, rank: Rank) -> Program {
    let mut program = ProgramBuilder::new(rank);
    if rank > 0 {
        program.send(0, [input(0)]).recv(0, [output(0)]);
        return program.finish(0, 0);
    }
    for peer in 1..ranks {
        let with = if peer == 1 { input(0) } else { scratch(0) };
        let into = if peer == ranks - 1 { output(0) } else { scratch(0) };
        program.recv_reduce(peer, [with], [into], peer == ranks - 1);
    }
    for peer in 1..ranks {
        program.send(peer, [output(0)]);
    }
    program.finish(1, 0)
}

/// Two ranks show each other their input; `waits` is how many signals they wait for.
fn exchange(rank: Rank, waits: bool) -> Program {
    let peer = 1 - rank;
    let mut program = ProgramBuilder::new(rank);
    program.copy(input(0), window(0)).signal();
    if waits {
        program.wait(peer, 1);
    }
    let place = |rank, block: Block| Place { rank, block };
    let operand = |of| if of == rank { place(of, input(0)) } else { place(of, window(0)) };
    program.reduce(vec![operand(0), operand(1)], output(0), true);
    program.finish(0, 1)
}

#[test]
fn the_simplest_all_reduce_is_right() {
    for in_place in BOTH {
        let schedule = schedule(Collective::AllReduce, 4, 1, |rank| collect(4, rank));
        let report = check_schedule(&schedule, &Options { in_place, ..Options::default() }).unwrap();
        assert_eq!((report.steps, report.blocks, report.scratch), (6, 6, 1));
        assert_eq!(report.fifo_slots_needed, 1);
        assert_eq!(report.expression.as_deref(), Some("(((0+1)+2)+3)"));
    }
}

#[test]
fn a_window_needs_its_signal() {
    let right = schedule(Collective::AllReduce, 2, 1, |rank| exchange(rank, true));
    let report = run(&right).unwrap();
    assert_eq!((report.steps, report.blocks), (1, 2));
    let racing = schedule(Collective::AllReduce, 2, 1, |rank| exchange(rank, rank == 0));
    assert!(matches!(fault(&racing), Fault::Race { .. } | Fault::Empty(..)));
}

#[test]
fn a_value_that_is_overwritten_while_a_peer_reads_is_a_race() {
    let racing = schedule(Collective::AllReduce, 2, 1, |rank| {
        let mut program = exchange(rank, true);
        let here = |block| Place { rank, block };
        program.strands[0].steps.push(Step::Copy { from: here(input(0)), into: here(window(0)) });
        program
    });
    assert!(matches!(fault(&racing), Fault::Race { .. }));
}

#[test]
fn strands_may_not_write_what_the_other_reads() {
    let racing = schedule(Collective::Broadcast, 1, 2, |rank| {
        let mut program = ProgramBuilder::new(rank);
        program.copy(input(0), scratch(0)).copy(scratch(0), output(0)).copy(input(1), output(1));
        program.strand(1).copy(input(0), scratch(0));
        program.finish(1, 0)
    });
    assert!(matches!(fault(&racing), Fault::Race { block: Block { space: Space::Scratch, .. }, .. }));
}

#[test]
fn everyone_in_a_deadlock_is_named() {
    let schedule = schedule(Collective::AllGather, 3, 1, |rank| {
        let mut program = ProgramBuilder::new(rank);
        program.copy(input(0), output(rank));
        program.recv((rank + 1) % 3, [output((rank + 1) % 3)]);
        program.send((rank + 2) % 3, [output(rank)]);
        program.finish(0, 0)
    });
    let Err(Violation::Deadlock { blocked }) = run(&schedule) else { panic!("no deadlock") };
    let ranks: Vec<_> =
        blocked.iter().map(|blocked| (blocked.at.rank, blocked.at.step, blocked.peer)).collect();
    assert_eq!(ranks, [(0, 1, 1), (1, 1, 2), (2, 1, 0)]);
}

#[test]
fn the_depth_of_the_queues_is_found() {
    let schedule = schedule(Collective::AllToAll, 2, 2, |rank| {
        let (peer, mut program) = (1 - rank, ProgramBuilder::new(rank));
        for part in 0..2 {
            program.copy(input(rank * 2 + part), output(rank * 2 + part));
            program.send(peer, [input(peer * 2 + part)]);
        }
        for part in 0..2 {
            program.recv(peer, [output(peer * 2 + part)]);
        }
        program.finish(0, 0)
    });
    assert_eq!(run(&schedule).unwrap().fifo_slots_needed, 2);
    let options = Options { fifo_slots: 1, ..Options::default() };
    assert!(matches!(check_schedule(&schedule, &options), Err(Violation::Deadlock { .. })));
}

#[test]
fn sums_must_be_whole_and_finished_once() {
    let single = |finish| {
        schedule(Collective::AllReduce, 1, 1, move |rank| {
            let mut program = ProgramBuilder::new(rank);
            program.reduce(vec![Place { rank, block: input(0) }], output(0), finish);
            program.finish(0, 0)
        })
    };
    assert!(run(&single(true)).is_ok());
    let output_is = |wrong| Err(Violation::Output { rank: 0, index: 0, wrong });
    assert_eq!(run(&single(false)), output_is(Wrong::NotFinished));
    let mut early = schedule(Collective::AllReduce, 3, 1, |rank| collect(3, rank));
    if let Step::RecvReduce { finish, .. } = &mut early.programs[0].strands[0].steps[0] {
        *finish = true;
    }
    assert_eq!(run(&early), output_is(Wrong::FinishedEarly));
}

#[test]
fn the_order_must_be_the_same_on_all_ranks() {
    let schedule = schedule(Collective::AllReduce, 3, 1, |rank| {
        let mut program = ProgramBuilder::new(rank);
        let (next, last) = ((rank + 1) % 3, (rank + 2) % 3);
        program.send(next, [input(0)]).send(last, [input(0)]);
        program.recv_reduce(next, [input(0)], [scratch(0)], false);
        program.recv_reduce(last, [scratch(0)], [output(0)], true);
        program.finish(1, 0)
    });
    assert_eq!(run(&schedule), Err(Violation::Output { rank: 1, index: 0, wrong: Wrong::DiffersFrom(0) }));
}

#[test]
fn what_lies_in_a_window_can_be_added_to_as_the_first_operand_alone() {
    let adds = |first: bool| {
        schedule(Collective::AllReduce, 2, 1, move |rank| {
            let (mut program, sum) = (ProgramBuilder::new(rank), Place { rank: 0, block: window(0) });
            let own = Place { rank, block: input(0) };
            match rank {
                0 => program.copy(input(0), window(0)).signal().wait(1, 1),
                _ => {
                    let from = if first { vec![sum, own] } else { vec![own, sum] };
                    program.wait(0, 1).step(Step::Reduce { from, into: sum, finish: true }).signal()
                }
            };
            program.get(0, window(0), output(0));
            program.finish(0, 1)
        })
    };
    assert!(run(&adds(true)).is_ok());
    assert_eq!(fault(&adds(false)), Fault::Overlap(window(0)));
}

#[test]
fn hazards_in_place_are_seen() {
    // The result lands in the output before the input, which is the same memory, is sent.
    let schedule = schedule(Collective::AllReduce, 2, 1, |rank| {
        let (peer, mut program) = (1 - rank, ProgramBuilder::new(rank));
        match rank {
            0 => program.send(peer, [input(0)]).recv_reduce(peer, [input(0)], [output(0)], true),
            _ => program.recv_reduce(peer, [input(0)], [output(0)], true).send(peer, [input(0)]),
        };
        program.finish(0, 0)
    });
    assert!(run(&schedule).is_ok());
    let in_place = check_schedule(&schedule, &Options { in_place: true, ..Options::default() });
    assert!(matches!(in_place, Err(Violation::Step { fault: Fault::InputOverwritten(_), .. })));
}

#[test]
fn lengths_must_agree() {
    let mixed = schedule(Collective::AllReduce, 1, 2, |rank| {
        let place = |index| Place { rank, block: input(index) };
        let mut program = ProgramBuilder::new(rank);
        program.reduce(vec![place(0), place(1)], output(0), true);
        program.finish(0, 0)
    });
    assert_eq!(fault(&mixed), Fault::MixedLengths);
    let moved = schedule(Collective::Broadcast, 1, 2, |rank| {
        let mut program = ProgramBuilder::new(rank);
        program.copy(input(0), output(1));
        program.finish(0, 0)
    });
    assert_eq!(fault(&moved), Fault::WrongLength(output(1)));
    let counted = schedule(Collective::Broadcast, 2, 1, |rank| {
        let mut program = ProgramBuilder::new(rank);
        match rank {
            0 => program.copy(input(0), output(0)).send(1, [input(0), input(0)]),
            _ => program.recv(0, [output(0)]),
        };
        program.finish(0, 0)
    });
    assert_eq!(fault(&counted), Fault::MessageBlocks(2, 1, 1));
}

#[test]
fn nothing_outside_memory_is_touched() {
    let broadcast = |step: Step| {
        schedule(Collective::Broadcast, 2, 1, move |rank| {
            let mut program = ProgramBuilder::new(rank);
            program.step(step.clone());
            program.finish(1, 0)
        })
    };
    let place = |rank, block| Place { rank, block };
    let copy = |from, into| broadcast(Step::Copy { from, into });
    assert_eq!(fault(&copy(place(0, scratch(0)), place(0, output(0)))), Fault::Empty(0, scratch(0)));
    assert_eq!(fault(&copy(place(0, scratch(1)), place(0, output(0)))), Fault::NoSuchBlock(0, scratch(1)));
    assert_eq!(fault(&copy(place(1, scratch(0)), place(0, output(0)))), Fault::NotReachable(1, scratch(0)));
    assert_eq!(fault(&copy(place(0, input(0)), place(0, input(0)))), Fault::InputWritten(input(0)));
    assert_eq!(fault(&broadcast(Step::Send { peer: 2, blocks: vec![] })), Fault::NoSuchPeer(2));
    assert_eq!(fault(&broadcast(Step::Wait { peer: 1, signals: 0 })), Fault::WaitsForNothing);
    let combines = Step::Reduce { from: vec![place(0, input(0))], into: place(0, output(0)), finish: false };
    assert_eq!(fault(&broadcast(combines)), Fault::Combines);
}

#[test]
fn messages_left_over_are_counted() {
    let schedule = schedule(Collective::Barrier, 2, 1, |rank| {
        let mut program = ProgramBuilder::new(rank);
        program.send(1 - rank, []);
        program.finish(0, 0)
    });
    assert_eq!(run(&schedule), Err(Violation::LeftOver { from: 0, to: 1, lane: 0, messages: 1 }));
}

#[test]
fn a_barrier_hears_from_everyone() {
    let barrier = |ranks, hears_all: bool| {
        schedule(Collective::Barrier, ranks, 1, move |rank| {
            let mut program = ProgramBuilder::new(rank);
            for distance in 1..if hears_all { ranks } else { 2 } {
                program.send((rank + distance) % ranks, []).recv((rank + ranks - distance) % ranks, []);
            }
            program.finish(0, 0)
        })
    };
    assert!(run(&barrier(5, true)).is_ok());
    assert_eq!(run(&barrier(5, false)), Err(Violation::Barrier { rank: 0, missing: 1 }));
}

#[test]
fn stated_counts_are_compared() {
    let algorithm = |steps| Algorithm {
        name: "collect",
        collective: Collective::AllReduce,
        about: "",
        source: "",
        reach: Reach::Messages,
        aggregates: false,
        fits: |spec| spec.ranks > 1,
        parts: |_| 1,
        build: |spec, rank| collect(spec.ranks, rank),
        cost: if steps {
            |_| crate::schedule::Cost { steps: 4, blocks: 4, scratch: 1 }
        } else {
            |_| crate::schedule::Cost { steps: 3, blocks: 4, scratch: 1 }
        },
    };
    let spec = Spec { ranks: 3, root: 0, aggregation: 1 };
    assert!(check(&algorithm(true), &spec, &Options::default()).is_ok());
    let wrong = check(&algorithm(false), &spec, &Options::default());
    assert_eq!(wrong, Err(Violation::Count { what: "steps", stated: 3, found: 4 }));
    let alone = Spec { ranks: 1, ..spec };
    assert_eq!(check(&algorithm(true), &alone, &Options::default()), Err(Violation::Unfit));
}

#[test]
fn numbers_agree_with_expressions() {
    let schedule = schedule(Collective::AllReduce, 5, 1, |rank| collect(5, rank));
    for seed in 0..20 {
        let player =
            Player { seed, fifo_slots: 1, block_len: 3, finish: |sum| 10 * sum, ..Player::default() };
        let trace = player.play(&schedule, |rank, index| (rank + index) as i64).unwrap();
        assert_eq!(trace.rounds, run(&schedule).unwrap().steps);
        assert!(trace.outputs.iter().all(|output| output == &[100, 150, 200]));
    }
}

#[test]
fn buffers_are_handed_back_only_when_no_peer_reaches_them() {
    let row = crate::schedule::find(Collective::AllReduce, "zerocopy").unwrap();
    let sound = row.schedule(&Spec { ranks: 3, root: 0, aggregation: 1 });
    let judge = |schedule: &Schedule| check_schedule(schedule, &Options::default());
    assert!(judge(&sound).is_ok());
    let mut hasty = sound;
    hasty.programs[1].strands[0].steps.pop();
    let text = judge(&hasty).unwrap_err().to_string();
    assert!(text.contains("rank 1") && text.contains("in no order"), "{text}");
}
