//! Small algorithms, correct ones and one for each kind of violation.

use super::*;
use crate::schedule::{
    Chunk, ChunkRef, Collective, Complexity, Program, ProgramBuilder, Rank, Space, input, output, scratch,
    window,
};

const BOTH: [bool; 2] = [false, true];

fn schedule(collective: Collective, ranks: usize, parts: usize, build: impl Fn(Rank) -> Program) -> Schedule {
    let spec = GroupSpec::new(ranks);
    Schedule {
        algorithm: String::new(),
        collective,
        spec,
        chunks_per_share: parts,
        peer_access: PeerAccess::Window,
        programs: (0..ranks).map(build).collect(),
    }
}

fn run(schedule: &Schedule) -> Result<Report, Violation> {
    check_schedule(schedule, &Options::default())
}

fn step_error(schedule: &Schedule) -> StepError {
    match run(schedule) {
        Err(Violation::Step { error: fault, .. }) => fault,
        other => panic!("{other:?}"),
    }
}

/// Rank 0 reduces everything and sends the sum back.
fn gather_then_broadcast(ranks: usize, rank: Rank) -> Program {
    let mut program = ProgramBuilder::new(rank);
    if rank > 0 {
        program.send(0, [input(0)]).recv(0, [output(0)]);
        return program.finish(0, 0);
    }
    for peer in 1..ranks {
        let operand = if peer == 1 { input(0) } else { scratch(0) };
        let target = if peer == ranks - 1 { output(0) } else { scratch(0) };
        program.recv_reduce(peer, [operand], [target], peer == ranks - 1);
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
    let place = |rank, chunk: Chunk| ChunkRef { rank, chunk };
    let operand = |peer| if peer == rank { place(peer, input(0)) } else { place(peer, window(0)) };
    program.reduce(vec![operand(0), operand(1)], output(0), true);
    program.finish(0, 1)
}

#[test]
fn check_accepts_a_gather_then_broadcast_all_reduce() {
    for in_place in BOTH {
        let schedule = schedule(Collective::AllReduce, 4, 1, |rank| gather_then_broadcast(4, rank));
        let report = check_schedule(&schedule, &Options { in_place, ..Options::default() }).unwrap();
        assert_eq!((report.steps, report.chunks, report.scratch_chunks), (6, 6, 1));
        assert_eq!(report.min_fifo_slots, 1);
        assert_eq!(report.expression.as_deref(), Some("(((0+1)+2)+3)"));
    }
}

#[test]
fn check_rejects_window_read_without_signal() {
    let right = schedule(Collective::AllReduce, 2, 1, |rank| exchange(rank, true));
    let report = run(&right).unwrap();
    assert_eq!((report.steps, report.chunks), (1, 2));
    let racing = schedule(Collective::AllReduce, 2, 1, |rank| exchange(rank, rank == 0));
    assert!(matches!(step_error(&racing), StepError::Race { .. } | StepError::Uninitialized(..)));
}

#[test]
fn check_rejects_overwrite_during_peer_read() {
    let racing = schedule(Collective::AllReduce, 2, 1, |rank| {
        let mut program = exchange(rank, true);
        let here = |chunk| ChunkRef { rank, chunk };
        program.lane_programs[0].steps.push(Step::Copy { from: here(input(0)), into: here(window(0)) });
        program
    });
    assert!(matches!(step_error(&racing), StepError::Race { .. }));
}

#[test]
fn check_rejects_race_between_lane_programs() {
    let racing = schedule(Collective::Broadcast, 1, 2, |rank| {
        let mut program = ProgramBuilder::new(rank);
        program.copy(input(0), scratch(0)).copy(scratch(0), output(0)).copy(input(1), output(1));
        program.begin_lane(1).copy(input(0), scratch(0));
        program.finish(1, 0)
    });
    assert!(matches!(
        step_error(&racing),
        StepError::Race { chunk: Chunk { space: Space::Scratch, .. }, .. }
    ));
}

#[test]
fn deadlock_lists_every_blocked_rank() {
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
fn check_reports_minimum_fifo_slots() {
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
    assert_eq!(run(&schedule).unwrap().min_fifo_slots, 2);
    let options = Options { fifo_slots: 1, ..Options::default() };
    assert!(matches!(check_schedule(&schedule, &options), Err(Violation::Deadlock { .. })));
}

#[test]
fn check_rejects_incomplete_or_refinished_sums() {
    let single = |finish| {
        schedule(Collective::AllReduce, 1, 1, move |rank| {
            let mut program = ProgramBuilder::new(rank);
            program.reduce(vec![ChunkRef { rank, chunk: input(0) }], output(0), finish);
            program.finish(0, 0)
        })
    };
    assert!(run(&single(true)).is_ok());
    let output_is = |wrong| Err(Violation::Output { rank: 0, index: 0, error: wrong, fate: None });
    assert_eq!(run(&single(false)), output_is(OutputError::NotFinished));
    let mut early = schedule(Collective::AllReduce, 3, 1, |rank| gather_then_broadcast(3, rank));
    if let Step::RecvReduce { finish, .. } = &mut early.programs[0].lane_programs[0].steps[0] {
        *finish = true;
    }
    assert_eq!(run(&early), output_is(OutputError::FinishedTooEarly));
}

/// An error names the step where an input is lost, and not only the output that lacks it.
#[test]
fn check_names_the_step_that_loses_an_input() {
    type Steps = fn(&mut ProgramBuilder);
    let own_chunk = |chunk| ChunkRef { rank: 0, chunk };
    let lost = |collecting: &dyn Fn(&mut ProgramBuilder), of_rank_2: Steps| {
        let schedule = schedule(Collective::AllReduce, 3, 1, |rank| {
            let mut program = ProgramBuilder::new(rank);
            match rank {
                0 => collecting(&mut program),
                1 => _ = program.send(0, [input(0)]).recv(0, [output(0)]),
                _ => of_rank_2(&mut program),
            }
            program.finish(2, 0)
        });
        run(&schedule).unwrap_err().to_string()
    };
    let sends: Steps = |program| _ = program.send(0, [input(0)]).recv(0, [output(0)]);
    let answer = |program: &mut ProgramBuilder| _ = program.send(1, [output(0)]).send(2, [output(0)]);
    let unread = lost(
        &|program| {
            program.recv_reduce(1, [input(0)], [scratch(0)], false).recv(2, [scratch(1)]);
            answer(program.reduce(vec![own_chunk(scratch(0))], output(0), true));
        },
        sends,
    );
    assert_eq!(
        unread,
        "output chunk 0 of rank 0 lacks the input of rank 2; rank 0 lane program 0 step 1 stored that \
         input in tmp1 of rank 0, and no step reads it there"
    );
    let overwritten = lost(
        &|program| {
            program.recv(1, [scratch(0)]).recv(2, [scratch(0)]);
            answer(program.reduce(vec![own_chunk(scratch(0)), own_chunk(input(0))], output(0), true));
        },
        sends,
    );
    assert_eq!(
        overwritten,
        "output chunk 0 of rank 0 lacks the input of rank 1; rank 0 lane program 0 step 0 stored that \
         input in tmp0 of rank 0, and rank 0 lane program 0 step 1 overwrites it before a step reads it \
         there"
    );
    let alone = |program: &mut ProgramBuilder| {
        answer(program.recv_reduce(1, [input(0)], [output(0)], true));
    };
    let never_sent = lost(&alone, |program| _ = program.recv(0, [output(0)]));
    assert!(
        never_sent.ends_with("; that input is in0 of rank 2, and no step reads it there"),
        "{never_sent}"
    );
    let kept = lost(&alone, |program| {
        let operands = vec![ChunkRef { rank: 2, chunk: input(0) }];
        program.recv(0, [scratch(0)]).reduce(operands, output(0), true);
    });
    assert!(kept.ends_with("; that input arrives at rank 2 only"), "{kept}");
}

#[test]
fn check_rejects_differing_reduction_orders() {
    let schedule = schedule(Collective::AllReduce, 3, 1, |rank| {
        let mut program = ProgramBuilder::new(rank);
        let (next, last) = ((rank + 1) % 3, (rank + 2) % 3);
        program.send(next, [input(0)]).send(last, [input(0)]);
        program.recv_reduce(next, [input(0)], [scratch(0)], false);
        program.recv_reduce(last, [scratch(0)], [output(0)], true);
        program.finish(1, 0)
    });
    assert_eq!(
        run(&schedule),
        Err(Violation::Output { rank: 1, index: 0, error: OutputError::DiffersFrom(0), fate: None })
    );
}

#[test]
fn window_target_must_be_the_first_operand() {
    let adds = |first: bool| {
        schedule(Collective::AllReduce, 2, 1, move |rank| {
            let (mut program, sum) = (ProgramBuilder::new(rank), ChunkRef { rank: 0, chunk: window(0) });
            let own_input = ChunkRef { rank, chunk: input(0) };
            match rank {
                0 => program.copy(input(0), window(0)).signal().wait(1, 1),
                _ => {
                    let operands = if first { vec![sum, own_input] } else { vec![own_input, sum] };
                    program.wait(0, 1).step(Step::Reduce { from: operands, into: sum, finish: true }).signal()
                }
            };
            program.get(0, window(0), output(0));
            program.finish(0, 1)
        })
    };
    assert!(run(&adds(true)).is_ok());
    assert_eq!(step_error(&adds(false)), StepError::Overlap(window(0)));
}

#[test]
fn check_rejects_in_place_hazards() {
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
    assert!(matches!(in_place, Err(Violation::Step { error: StepError::InputOverwritten(_), .. })));
}

#[test]
fn check_rejects_length_mismatch() {
    let mixed = schedule(Collective::AllReduce, 1, 2, |rank| {
        let place = |index| ChunkRef { rank, chunk: input(index) };
        let mut program = ProgramBuilder::new(rank);
        program.reduce(vec![place(0), place(1)], output(0), true);
        program.finish(0, 0)
    });
    assert_eq!(step_error(&mixed), StepError::MixedLengths);
    let moved = schedule(Collective::Broadcast, 1, 2, |rank| {
        let mut program = ProgramBuilder::new(rank);
        program.copy(input(0), output(1));
        program.finish(0, 0)
    });
    assert_eq!(step_error(&moved), StepError::LengthMismatch(output(1)));
    let counted = schedule(Collective::Broadcast, 2, 1, |rank| {
        let mut program = ProgramBuilder::new(rank);
        match rank {
            0 => program.copy(input(0), output(0)).send(1, [input(0), input(0)]),
            _ => program.recv(0, [output(0)]),
        };
        program.finish(0, 0)
    });
    assert_eq!(step_error(&counted), StepError::ChunkCountMismatch(2, 1, 1));
}

#[test]
fn check_rejects_out_of_bounds_chunks() {
    let broadcast = |step: Step| {
        schedule(Collective::Broadcast, 2, 1, move |rank| {
            let mut program = ProgramBuilder::new(rank);
            program.step(step.clone());
            program.finish(1, 0)
        })
    };
    let place = |rank, chunk| ChunkRef { rank, chunk };
    let copy = |source, target| broadcast(Step::Copy { from: source, into: target });
    assert_eq!(
        step_error(&copy(place(0, scratch(0)), place(0, output(0)))),
        StepError::Uninitialized(0, scratch(0))
    );
    assert_eq!(
        step_error(&copy(place(0, scratch(1)), place(0, output(0)))),
        StepError::NoSuchChunk(0, scratch(1))
    );
    assert_eq!(
        step_error(&copy(place(1, scratch(0)), place(0, output(0)))),
        StepError::NotReachable(1, scratch(0))
    );
    assert_eq!(step_error(&copy(place(0, input(0)), place(0, input(0)))), StepError::InputWritten(input(0)));
    assert_eq!(step_error(&broadcast(Step::Send { peer: 2, chunks: vec![] })), StepError::NoSuchPeer(2));
    assert_eq!(step_error(&broadcast(Step::Wait { peer: 1, signals: 0 })), StepError::WaitForSignalZero);
    let combines = Step::Reduce { from: vec![place(0, input(0))], into: place(0, output(0)), finish: false };
    assert_eq!(step_error(&broadcast(combines)), StepError::UnexpectedReduction);
}

#[test]
fn check_counts_unreceived_messages() {
    let schedule = schedule(Collective::Barrier, 2, 1, |rank| {
        let mut program = ProgramBuilder::new(rank);
        program.send(1 - rank, []);
        program.finish(0, 0)
    });
    assert_eq!(run(&schedule), Err(Violation::UnreceivedMessages { from: 0, to: 1, lane: 0, messages: 1 }));
}

#[test]
fn check_barrier_needs_every_rank() {
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
fn check_compares_stated_complexity() {
    let silent = Algorithm::new("collect", Collective::AllReduce, |spec, rank| {
        gather_then_broadcast(spec.ranks, rank)
    })
    .with_supports(|spec| spec.ranks > 1);
    let states = |steps| silent.with_complexity(move |_| Complexity { steps, chunks: 4, scratch_chunks: 1 });
    let spec = GroupSpec::new(3);
    assert!(check(&silent, &spec, &Options::default()).is_ok());
    assert!(check(&states(4), &spec, &Options::default()).is_ok());
    let wrong = check(&states(3), &spec, &Options::default());
    assert_eq!(wrong, Err(Violation::Count { what: "steps", stated: 3, found: 4 }));
    let alone = GroupSpec { ranks: 1, ..spec };
    assert_eq!(check(&silent, &alone, &Options::default()), Err(Violation::UnsupportedGroup));
}

#[test]
fn replay_agrees_with_check() {
    let schedule = schedule(Collective::AllReduce, 5, 1, |rank| gather_then_broadcast(5, rank));
    for seed in 0..20 {
        let player =
            Replayer { seed, fifo_slots: 1, chunk_len: 3, finish: |sum| 10 * sum, ..Replayer::default() };
        let trace = player.replay(&schedule, |rank, index| (rank + index) as i64).unwrap();
        assert_eq!(trace.rounds, run(&schedule).unwrap().steps);
        assert!(trace.outputs.iter().all(|output| output == &[100, 150, 200]));
    }
}

#[test]
fn check_rejects_buffer_release_during_peer_access() {
    let row = crate::schedule::find(Collective::AllReduce, "zero_copy").unwrap();
    let sound = row.schedule(&GroupSpec::new(3));
    let judge = |schedule: &Schedule| check_schedule(schedule, &Options::default());
    assert!(judge(&sound).is_ok());
    let mut hasty = sound;
    hasty.programs[1].lane_programs[0].steps.pop();
    let text = judge(&hasty).unwrap_err().to_string();
    assert!(text.contains("rank 1") && text.contains("in no order"), "{text}");
}
