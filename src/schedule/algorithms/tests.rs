//! A few programs written out, and what must hold of the table as a whole.

use super::pat::AggregatedTrees;
use crate::schedule::{
    Algorithm, Chunk, Collective, CombineOrder, GroupSpec, PeerAccess, Program, Rank, Space, Step, find,
};
use std::collections::HashSet;

fn spec(ranks: usize, aggregation: usize) -> GroupSpec {
    GroupSpec { ranks, root: 0, aggregation }
}

/// The program of one rank, a word for each step: chunks are named by the letter of their memory.
fn steps_as_text(collective: Collective, name: &str, spec: &GroupSpec, rank: Rank) -> Vec<Vec<String>> {
    let program = (find(collective, name).unwrap().build)(spec, rank);
    program
        .lane_programs
        .iter()
        .map(|lane_program| lane_program.steps.iter().map(step_as_text).collect())
        .collect()
}

fn step_as_text(step: &Step) -> String {
    match step {
        Step::Send { peer, chunks } => format!("{}>{peer}", chunks_as_text(chunks)),
        Step::Recv { peer, into } => format!("{peer}>{}", chunks_as_text(into)),
        Step::RecvReduce { peer, with, into, finish } => {
            format!(
                "{peer}+{}={}{}",
                chunks_as_text(with),
                chunks_as_text(into),
                if *finish { "!" } else { "" }
            )
        }
        Step::Copy { from, into } => {
            format!(
                "{}:{}={}:{}",
                from.rank,
                chunks_as_text(&[from.chunk]),
                into.rank,
                chunks_as_text(&[into.chunk])
            )
        }
        Step::Reduce { from, into, finish } => {
            let operands: Vec<_> = from
                .iter()
                .map(|place| format!("{}:{}", place.rank, chunks_as_text(&[place.chunk])))
                .collect();
            format!(
                "{}={}{}",
                operands.join("+"),
                chunks_as_text(&[into.chunk]),
                if *finish { "!" } else { "" }
            )
        }
        Step::Signal => "signal".to_owned(),
        Step::Wait { peer, signals } => format!("wait {peer}.{signals}"),
    }
}

fn chunks_as_text(chunks: &[Chunk]) -> String {
    let name = |chunk: &Chunk| {
        let memory = match chunk.space {
            Space::Input => 'i',
            Space::Output => 'o',
            Space::Scratch => 's',
            Space::Window => 'w',
        };
        format!("{memory}{}", chunk.index)
    };
    chunks.iter().map(name).collect()
}

#[test]
fn ring_all_reduce_is_reduce_scatter_then_all_gather() {
    let reduce_scatter = ["i3>1", "3+i2=o2", "o2>1", "3+i1=o1", "o1>1", "3+i0=o0!"];
    let all_gather = ["o0>1", "3>o3", "o3>1", "3>o2", "o2>1", "3>o1"];
    let expected = [reduce_scatter, all_gather].concat();
    assert_eq!(steps_as_text(Collective::AllReduce, "ring", &spec(4, 1), 0), [expected]);
}

#[test]
fn bidirectional_ring_halves_are_mirrored() {
    let lane_programs = steps_as_text(Collective::ReduceScatter, "bidirectional_ring", &spec(3, 1), 0);
    assert_eq!(
        lane_programs,
        [["i4>1", "2+i2=s0", "s0>1", "2+i0=o0!"], ["i3>2", "1+i5=s1", "s1>2", "1+i1=o1!"]]
    );
}

#[test]
fn double_tree_inner_nodes_are_leaves_of_the_other_tree() {
    for ranks in 2..=130 {
        for rank in 1..ranks {
            let children = |tree: &[String]| tree.iter().filter(|word| word.starts_with("o")).count();
            let trees = steps_as_text(Collective::Broadcast, "tree", &spec(ranks, 1), rank);
            assert!(children(&trees[0]) == 0 || children(&trees[1]) == 0, "rank {rank} of {ranks}");
        }
    }
    let trees = steps_as_text(Collective::Reduce, "tree", &GroupSpec::new(6).with_root(2), 4);
    assert_eq!(trees, [&["5+i0=s0", "3+s0=s0", "s0>0"][..], &["i1>5"]]);
}

#[test]
fn pat_all_gather_aggregates_as_in_the_paper() {
    let rounds = |ranks, aggregation| {
        let rounds = AggregatedTrees::new(&spec(ranks, aggregation)).rounds();
        rounds.into_iter().map(|round| (round.distance, round.parents)).collect::<Vec<_>>()
    };
    let single =
        |edges: &[(usize, usize)]| edges.iter().map(|&(d, offset)| (d, vec![offset])).collect::<Vec<_>>();
    assert_eq!(rounds(8, 4), [(4, vec![0]), (2, vec![0, 4]), (1, vec![0, 2, 4, 6])]);
    assert_eq!(rounds(8, 2), [(4, vec![0]), (2, vec![0, 4]), (1, vec![2, 6]), (1, vec![0, 4])]);
    assert_eq!(rounds(8, 1), single(&[(4, 0), (2, 4), (1, 6), (1, 4), (2, 0), (1, 2), (1, 0)]));
    assert_eq!(rounds(6, 4), [(4, vec![0]), (2, vec![0]), (1, vec![0, 2, 4])]);
    assert_eq!(rounds(5, 4), [(4, vec![0]), (2, vec![0]), (1, vec![0, 2])]);
    assert_eq!(rounds(5, 4), rounds(5, 7), "an aggregation is rounded down");
    assert_eq!(rounds(5, 4), rounds(5, 64), "and cut to half the ranks");
}

#[test]
fn pat_six_ranks_match_expected_steps() {
    let all_gather = ["0:i0=0:o0", "o0>2", "4>o4", "o0>4", "2>o2", "o0o2o4>5", "1>o1o3o5"];
    assert_eq!(steps_as_text(Collective::AllGather, "pat", &spec(6, 4), 0), [all_gather]);
    let reduce_scatter = ["i1i3i5>1", "5+i0i2i4=o0s0s1", "s0>2", "4+o0=o0", "s1>4", "2+o0=o0!"];
    assert_eq!(steps_as_text(Collective::ReduceScatter, "pat", &spec(6, 4), 0), [reduce_scatter]);
}

#[test]
fn pat_scratch_is_logarithmic_in_ranks() {
    let row = find(Collective::ReduceScatter, "pat").unwrap();
    let staging = |ranks, aggregation| row.complexity.unwrap()(&spec(ranks, aggregation)).scratch_chunks;
    assert_eq!([1, 8, 32].map(|aggregation| staging(64, aggregation)), [5, 23, 31]);
    assert_eq!([128, 256, 512, 1024].map(|ranks| staging(ranks, 1)), [6, 7, 8, 9]);
}

#[test]
fn two_shot_reads_each_operand_once_with_two_signals() {
    let expected = [
        "1:i2=1:w0",
        "1:i0=1:w1",
        "signal",
        "wait 2.1",
        "wait 0.1",
        "0:w0+1:i1+2:w1=w2!",
        "signal",
        "1:w2=1:o1",
        "wait 2.2",
        "2:w2=1:o2",
        "wait 0.2",
        "0:w2=1:o0",
    ];
    assert_eq!(steps_as_text(Collective::AllReduce, "twoshot", &spec(3, 1), 1), [expected]);
}

#[test]
fn inplace_ring_reduces_in_place() {
    let expected = [
        "1:i1=1:w0",
        "signal",
        "wait 0.1",
        "0:w0+1:i0=w0",
        "signal",
        "wait 2.2",
        "3:w0+1:i3=w0",
        "signal",
        "wait 0.3",
        "2:w0+1:i2=w0!",
        "signal",
        "2:w0=1:o2",
    ];
    let program = &steps_as_text(Collective::AllReduce, "inplace_ring", &spec(4, 1), 1)[0];
    assert_eq!(program[..expected.len()], expected);
    assert_eq!(program[expected.len()..][..2], ["wait 0.4", "3:w0=1:o3"]);
}

/// Steps that write into another rank's window: rank, lane program, step, and whose window it is.
fn remote_writes(programs: &[Program]) -> Vec<(Rank, usize, usize, Rank)> {
    let steps = programs.iter().enumerate().flat_map(|(rank, program)| {
        let lane_programs = program.lane_programs.iter().enumerate();
        lane_programs.flat_map(move |(number, lane_program)| {
            lane_program.steps.iter().enumerate().map(move |(index, step)| (rank, number, index, step))
        })
    });
    let writes = steps.filter_map(|(rank, lane_program, index, step)| match step {
        Step::Copy { into, .. } | Step::Reduce { into, .. } => Some((rank, lane_program, index, into)),
        _ => None,
    });
    writes
        .filter(|(rank, .., target)| target.chunk.space == Space::Window && target.rank != *rank)
        .map(|(rank, lane_program, index, target)| (rank, lane_program, index, target.rank))
        .collect()
}

/// The ranks of which it is known, at a step of a lane program of a rank, that they take part.
fn ranks_known_before(programs: &[Program], lane_program: usize, rank: Rank, step: usize) -> HashSet<Rank> {
    let mut heard = HashSet::from([rank]);
    for step in &programs[rank].lane_programs[lane_program].steps[..step] {
        if let Step::Wait { peer, signals } = *step {
            let steps = programs[peer].lane_programs[lane_program].steps.iter().enumerate();
            let signal = steps.filter(|(_, step)| **step == Step::Signal).nth(signals as usize - 1);
            heard.extend(ranks_known_before(
                programs,
                lane_program,
                peer,
                signal.expect("somebody waits for it").0,
            ));
        }
    }
    heard
}

#[test]
fn window_writes_follow_a_signal_from_the_owner() {
    // A rank that calls another operation by mistake must not change the data of the others.
    let mut writes = 0;
    for row in Algorithm::ALL.iter().filter(|row| row.peer_access == PeerAccess::Window) {
        for spec in (2..=7).map(|ranks| spec(ranks, 1)).filter(|spec| (row.supports)(spec)) {
            let programs: Vec<Program> = (0..spec.ranks).map(|rank| (row.build)(&spec, rank)).collect();
            for (rank, lane_program, step, owner) in remote_writes(&programs) {
                let heard = ranks_known_before(&programs, lane_program, rank, step);
                assert!(
                    heard.contains(&owner),
                    "{row:?}, {spec:?}, rank {rank}, lane program {lane_program}, step {step}"
                );
                writes += 1;
            }
        }
    }
    assert!(writes > 0, "some do");
}

#[test]
fn algorithm_names_are_unique_and_two_sided_exists() {
    let names: HashSet<_> = Algorithm::ALL.iter().map(|row| (row.collective, row.name)).collect();
    assert_eq!(names.len(), Algorithm::ALL.len());
    for collective in Collective::ALL {
        for reach in [PeerAccess::TwoSided, PeerAccess::Window] {
            let row =
                Algorithm::ALL.iter().find(|row| (row.collective, row.peer_access) == (collective, reach));
            assert!(row.is_some(), "{collective}, {reach:?}");
        }
    }
}

#[test]
fn single_rank_moves_nothing_and_finishes_reductions() {
    for row in Algorithm::ALL {
        let cost = row.complexity.unwrap()(&spec(1, 1));
        assert_eq!(
            (cost.steps, cost.chunks, cost.scratch_chunks),
            (0, 0, 0),
            "{} {}",
            row.collective,
            row.name
        );
        let program = (row.build)(&spec(1, 1), 0);
        let mut steps = program.lane_programs.iter().flat_map(|lane_program| &lane_program.steps);
        let reduces = |step: &Step| matches!(step, Step::Reduce { finish: true, .. });
        let copies = |step: &Step| matches!(step, Step::Copy { .. });
        // Sums of a scan are never finished.
        let finishes = row.collective.reduces() && !row.collective.is_scan();
        let fine = if finishes { steps.all(reduces) } else { steps.all(copies) };
        assert!(fine && program.window == 0, "{} {}", row.collective, row.name);
    }
}

/// Returns whether every sum of `program` is one step that reads the first `ranks` ranks in order.
fn combines_in_one_step(program: &Program, ranks: usize) -> bool {
    let mut steps = program.lane_programs.iter().flat_map(|lane_program| &lane_program.steps);
    steps.all(|step| match step {
        Step::Reduce { from, .. } => from.iter().map(|place| place.rank).eq(0..ranks),
        Step::RecvReduce { .. } => false,
        _ => true,
    })
}

#[test]
fn combine_order_single_pass_rows_reduce_in_one_step() {
    for ranks in 3..6 {
        let spec = spec(ranks, 1);
        for row in Algorithm::ALL.iter().filter(|row| row.collective.reduces() && (row.supports)(&spec)) {
            if row.peer_access == PeerAccess::TwoSided {
                assert!(row.combine_order < CombineOrder::SinglePass, "{row:?}");
                continue;
            }
            let operands = |rank| match row.collective {
                Collective::Scan => rank + 1,
                Collective::ExScan => rank,
                _ => ranks,
            };
            let in_one_step = |rank| combines_in_one_step(&(row.build)(&spec, rank), operands(rank));
            let found = (0..ranks).all(in_one_step);
            assert_eq!(found, row.combine_order == CombineOrder::SinglePass, "{row:?} of {ranks} ranks");
        }
    }
}
