//! A few programs written out, and what must hold of the table as a whole.

use super::pat::Forest;
use crate::schedule::{Algorithm, Block, Collective, Program, Rank, Reach, Space, Spec, Step, find};
use std::collections::HashSet;

fn spec(ranks: usize, aggregation: usize) -> Spec {
    Spec { ranks, root: 0, aggregation }
}

/// The program of one rank, a word for each step: blocks are named by the letter of their memory.
fn written(collective: Collective, name: &str, spec: &Spec, rank: Rank) -> Vec<Vec<String>> {
    let program = (find(collective, name).unwrap().build)(spec, rank);
    program.strands.iter().map(|strand| strand.steps.iter().map(word).collect()).collect()
}

fn word(step: &Step) -> String {
    match step {
        Step::Send { peer, blocks } => format!("{}>{peer}", named(blocks)),
        Step::Recv { peer, into } => format!("{peer}>{}", named(into)),
        Step::RecvReduce { peer, with, into, finish } => {
            format!("{peer}+{}={}{}", named(with), named(into), if *finish { "!" } else { "" })
        }
        Step::Copy { from, into } => {
            format!("{}:{}={}:{}", from.rank, named(&[from.block]), into.rank, named(&[into.block]))
        }
        Step::Reduce { from, into, finish } => {
            let from: Vec<_> =
                from.iter().map(|place| format!("{}:{}", place.rank, named(&[place.block]))).collect();
            format!("{}={}{}", from.join("+"), named(&[into.block]), if *finish { "!" } else { "" })
        }
        Step::Signal => "signal".to_owned(),
        Step::Wait { peer, signals } => format!("wait {peer}.{signals}"),
    }
}

fn named(blocks: &[Block]) -> String {
    let name = |block: &Block| {
        let memory = match block.space {
            Space::Input => 'i',
            Space::Output => 'o',
            Space::Scratch => 's',
            Space::Window => 'w',
        };
        format!("{memory}{}", block.index)
    };
    blocks.iter().map(name).collect()
}

#[test]
fn ring_sums_each_chunk_on_the_way_to_its_owner_then_tells_it() {
    let reduce_scatter = ["i3>1", "3+i2=o2", "o2>1", "3+i1=o1", "o1>1", "3+i0=o0!"];
    let all_gather = ["o0>1", "3>o3", "o3>1", "3>o2", "o2>1", "3>o1"];
    let expected = [reduce_scatter, all_gather].concat();
    assert_eq!(written(Collective::AllReduce, "ring", &spec(4, 1), 0), [expected]);
}

#[test]
fn opposite_rings_mirror_each_other() {
    let strands = written(Collective::ReduceScatter, "ring2", &spec(3, 1), 0);
    assert_eq!(strands, [["i4>1", "2+i2=s0", "s0>1", "2+i0=o0!"], ["i3>2", "1+i5=s1", "s1>2", "1+i1=o1!"]]);
}

#[test]
fn inner_nodes_of_one_tree_are_leaves_of_the_other() {
    for ranks in 2..=130 {
        for rank in 1..ranks {
            let children = |tree: &[String]| tree.iter().filter(|word| word.starts_with("o")).count();
            let trees = written(Collective::Broadcast, "tree", &spec(ranks, 1), rank);
            assert!(children(&trees[0]) == 0 || children(&trees[1]) == 0, "rank {rank} of {ranks}");
        }
    }
    let trees = written(Collective::Reduce, "tree", &Spec { ranks: 6, root: 2, aggregation: 1 }, 4);
    assert_eq!(trees, [&["5+i0=s0", "3+s0=s0", "s0>0"][..], &["i1>5"]]);
}

#[test]
fn pat_all_gather_packs_as_in_the_paper() {
    let rounds = |ranks, aggregation| {
        let rounds = Forest::new(&spec(ranks, aggregation)).rounds();
        rounds.into_iter().map(|round| (round.distance, round.parents)).collect::<Vec<_>>()
    };
    let one =
        |edges: &[(usize, usize)]| edges.iter().map(|&(d, offset)| (d, vec![offset])).collect::<Vec<_>>();
    assert_eq!(rounds(8, 4), [(4, vec![0]), (2, vec![0, 4]), (1, vec![0, 2, 4, 6])]);
    assert_eq!(rounds(8, 2), [(4, vec![0]), (2, vec![0, 4]), (1, vec![2, 6]), (1, vec![0, 4])]);
    assert_eq!(rounds(8, 1), one(&[(4, 0), (2, 4), (1, 6), (1, 4), (2, 0), (1, 2), (1, 0)]));
    assert_eq!(rounds(6, 4), [(4, vec![0]), (2, vec![0]), (1, vec![0, 2, 4])]);
    assert_eq!(rounds(5, 4), [(4, vec![0]), (2, vec![0]), (1, vec![0, 2])]);
    assert_eq!(rounds(5, 4), rounds(5, 7), "an aggregation is rounded down");
    assert_eq!(rounds(5, 4), rounds(5, 64), "and cut to half the ranks");
}

#[test]
fn pat_programs_at_six_ranks() {
    let all_gather = ["0:i0=0:o0", "o0>2", "4>o4", "o0>4", "2>o2", "o0o2o4>5", "1>o1o3o5"];
    assert_eq!(written(Collective::AllGather, "pat", &spec(6, 4), 0), [all_gather]);
    let reduce_scatter = ["i1i3i5>1", "5+i0i2i4=o0s0s1", "s0>2", "4+o0=o0", "s1>4", "2+o0=o0!"];
    assert_eq!(written(Collective::ReduceScatter, "pat", &spec(6, 4), 0), [reduce_scatter]);
}

#[test]
fn pat_staging_grows_with_the_logarithm_of_the_ranks() {
    let row = find(Collective::ReduceScatter, "pat").unwrap();
    let staging = |ranks, aggregation| (row.cost)(&spec(ranks, aggregation)).scratch;
    assert_eq!([1, 8, 32].map(|aggregation| staging(64, aggregation)), [5, 23, 31]);
    assert_eq!([128, 256, 512, 1024].map(|ranks| staging(ranks, 1)), [6, 7, 8, 9]);
}

#[test]
fn two_shot_reads_each_operand_once_and_hands_over_twice() {
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
    assert_eq!(written(Collective::AllReduce, "twoshot", &spec(3, 1), 1), [expected]);
}

#[test]
fn a_relay_adds_to_each_sum_where_it_lies() {
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
    let program = &written(Collective::AllReduce, "relay", &spec(4, 1), 1)[0];
    assert_eq!(program[..expected.len()], expected);
    assert_eq!(program[expected.len()..][..2], ["wait 0.4", "3:w0=1:o3"]);
}

/// Steps that write into another rank's window: rank, strand, step, and whose window it is.
fn writes_to_others(programs: &[Program]) -> Vec<(Rank, usize, usize, Rank)> {
    let steps = programs.iter().enumerate().flat_map(|(rank, program)| {
        let strands = program.strands.iter().enumerate();
        strands.flat_map(move |(number, strand)| {
            strand.steps.iter().enumerate().map(move |(at, step)| (rank, number, at, step))
        })
    });
    let writes = steps.filter_map(|(rank, strand, at, step)| match step {
        Step::Copy { into, .. } | Step::Reduce { into, .. } => Some((rank, strand, at, into)),
        _ => None,
    });
    writes
        .filter(|(rank, .., into)| into.block.space == Space::Window && into.rank != *rank)
        .map(|(rank, strand, at, into)| (rank, strand, at, into.rank))
        .collect()
}

/// The ranks of which it is known, at a step of a strand of a rank, that they take part.
fn heard_of(programs: &[Program], strand: usize, rank: Rank, step: usize) -> HashSet<Rank> {
    let mut heard = HashSet::from([rank]);
    for step in &programs[rank].strands[strand].steps[..step] {
        if let Step::Wait { peer, signals } = *step {
            let steps = programs[peer].strands[strand].steps.iter().enumerate();
            let signal = steps.filter(|(_, step)| **step == Step::Signal).nth(signals as usize - 1);
            heard.extend(heard_of(programs, strand, peer, signal.expect("somebody waits for it").0));
        }
    }
    heard
}

#[test]
fn nobody_writes_into_a_window_before_it_has_heard_of_its_rank() {
    // Who calls something else by mistake must not change what others exchange.
    let mut writes = 0;
    for row in Algorithm::ALL.iter().filter(|row| row.reach == Reach::Windows) {
        for spec in (2..=7).map(|ranks| spec(ranks, 1)).filter(|spec| (row.fits)(spec)) {
            let programs: Vec<Program> = (0..spec.ranks).map(|rank| (row.build)(&spec, rank)).collect();
            for (rank, strand, step, owner) in writes_to_others(&programs) {
                let heard = heard_of(&programs, strand, rank, step);
                assert!(
                    heard.contains(&owner),
                    "{row:?}, {spec:?}, rank {rank}, strand {strand}, step {step}"
                );
                writes += 1;
            }
        }
    }
    assert!(writes > 0, "some do");
}

#[test]
fn names_are_unique_and_every_collective_has_a_row_without_windows() {
    let names: HashSet<_> = Algorithm::ALL.iter().map(|row| (row.collective, row.name)).collect();
    assert_eq!(names.len(), Algorithm::ALL.len());
    for collective in Collective::ALL {
        for reach in [Reach::Messages, Reach::Windows] {
            let row = Algorithm::ALL.iter().find(|row| (row.collective, row.reach) == (collective, reach));
            assert!(row.is_some(), "{collective}, {reach:?}");
        }
    }
}

#[test]
fn a_lone_rank_moves_nothing_and_finishes_what_it_reduces() {
    for row in Algorithm::ALL {
        let cost = (row.cost)(&spec(1, 1));
        assert_eq!((cost.steps, cost.blocks, cost.scratch), (0, 0, 0), "{} {}", row.collective, row.name);
        let program = (row.build)(&spec(1, 1), 0);
        let mut steps = program.strands.iter().flat_map(|strand| &strand.steps);
        let reduces = |step: &Step| matches!(step, Step::Reduce { finish: true, .. });
        let copies = |step: &Step| matches!(step, Step::Copy { .. });
        let fine = if row.collective.reduces() { steps.all(reduces) } else { steps.all(copies) };
        assert!(fine && program.window == 0, "{} {}", row.collective, row.name);
    }
}
