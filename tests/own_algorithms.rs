//! Algorithms of callers have names as those of the library have, and are proved before they run.

mod support;

use std::time::Duration;
use support::World;
use unisono::schedule::algorithms::{pat, ring, window_direct, window_reduce};
use unisono::schedule::check::{Options, Violation, cases, check, sweep};
use unisono::schedule::{
    Algorithm, Collective, Embedding, GroupSpec, PeerAccess, ProgramBuilder, Rank, find, input, output,
    scratch,
};
use unisono::select::TuningTable;
use unisono::{Communicator, Config, Sum, parse_algorithms, register_algorithm};

/// The root sends its buffer to every rank, which receives it if there are few ranks.
fn star(name: String, is_wrong_from: usize) -> Algorithm {
    Algorithm::new(name, Collective::Broadcast, move |spec, rank| {
        let mut program = ProgramBuilder::new(rank);
        if rank == spec.root {
            for peer in (0..spec.ranks).filter(|&peer| peer != rank) {
                program.send(peer, [input(0)]);
            }
            program.copy(input(0), output(0));
        } else if spec.ranks < is_wrong_from {
            program.recv(spec.root, [output(0)]);
        }
        program.finish(0, 0)
    })
}

#[test]
fn registered_names_work_wherever_names_of_the_library_do() {
    let registered = register_algorithm(star("own_star".to_owned(), usize::MAX)).expect("a right one");
    assert_eq!(
        find(Collective::Broadcast, "own_star").map(std::ptr::from_ref),
        Some(std::ptr::from_ref(registered))
    );
    assert!(Algorithm::all().iter().any(|row| row.name == "own_star"));
    let table = TuningTable::parse("broadcast tcp any 4096 own_star\n").expect("a known name");
    assert_eq!(table.to_string(), "broadcast tcp any 4096 own_star\n");
    let by_table = Config::default().with_tuning_table(table);
    let by_name = Config::default().with_algorithms(parse_algorithms("broadcast=own_star").expect("known"));
    for world in World::ALL {
        for (config, long) in [(&by_table, false), (&by_name, true)] {
            world.run(5, config, |comm| {
                let mut used = Vec::new();
                for count in [100, 10_000] {
                    let mut values = vec![comm.rank() as f32; count];
                    comm.broadcast(&mut values, 3).expect("a proved algorithm");
                    assert!(values.iter().all(|&value| value == 3.0));
                    used.push(comm.last_algorithm().expect("healthy").expect("it ran").name == "own_star");
                }
                assert_eq!(used, [true, long], "{world:?}");
            });
        }
    }
    World::Threads.run(3, &Config::default(), |comm| {
        comm.set_algorithm(Collective::Broadcast, Some("own_star")).expect("a known name");
        comm.broadcast(&mut [1.0f32; 3], 0).expect("it is proved");
    });
}

#[test]
fn registration_refuses_wrong_schedules_and_names() {
    let text = |algorithm| register_algorithm(algorithm).expect_err("refused").to_string();
    let wrong = text(star("wrong_star".to_owned(), 4));
    assert!(wrong.contains("the schedule of broadcast wrong_star is wrong with 4 ranks"), "{wrong}");
    for name in ["", "two words", "a,b", "a=b", "auto", "new\nline", &"long".repeat(20)] {
        assert!(text(star(name.to_owned(), 99)).contains("cannot name an algorithm"), "{name}");
    }
    assert!(text(star("linear".to_owned(), 99)).contains("broadcast has an algorithm `linear` already"));
    register_algorithm(star("twice".to_owned(), 99)).expect("the first");
    assert!(text(star("twice".to_owned(), 99)).contains("`twice` already"));
}

/// More ranks than a registration proves are proved before the first operation.
#[test]
fn numbers_of_ranks_are_proved_before_their_first_use() {
    register_algorithm(star("wrong_from_ten".to_owned(), 10)).expect("right for up to nine ranks");
    let config = Config::default()
        .with_timeout(Duration::from_secs(20))
        .with_algorithms(parse_algorithms("broadcast=wrong_from_ten").expect("known"));
    World::Threads.run(10, &config, |comm| {
        let error = comm.broadcast(&mut [1.0f32; 3], 0).expect_err("it is wrong");
        assert!(error.is_invalid_usage() && error.to_string().contains("is wrong with 10 ranks"), "{error}");
        let error = comm.set_algorithm(Collective::Broadcast, Some("wrong_from_ten")).expect_err("wrong");
        assert!(error.to_string().contains("is wrong with 10 ranks"), "{error}");
    });
}

/// Two parts of PAT are its all_reduce, step by step. The library writes that at once, because it
/// is built in a third of the time.
#[test]
fn parts_of_an_algorithm_are_the_whole() {
    for ranks in 1..=17 {
        for aggregation in [1, 2, 4] {
            let spec = GroupSpec::new(ranks).with_aggregation(aggregation);
            let members: Vec<Rank> = (0..ranks).collect();
            for rank in 0..ranks {
                let part = || Embedding::new(&members).with_aggregation(aggregation);
                let mut program = ProgramBuilder::new(rank);
                program.embed(&pat::REDUCE_SCATTER, &part().with_output(|_| output(rank)));
                program.embed(&pat::ALL_GATHER, &part().with_input(|_| output(rank)));
                assert_eq!(program.finish(0, 0), (pat::ALL_REDUCE.build)(&spec, rank), "{ranks} ranks");
            }
        }
    }
}

/// Windows and signals of parts are counted on.
#[test]
fn parts_with_windows_follow_one_another() {
    let two_parts = |unfinished: bool| {
        Algorithm::new("windowed_parts", Collective::AllReduce, move |spec, rank| {
            let ranks: Vec<Rank> = (0..spec.ranks).collect();
            let part = || Embedding::new(&ranks);
            let sums = part().with_output(|_| output(rank));
            let mut program = ProgramBuilder::new(rank);
            program.embed(&window_reduce::REDUCE_SCATTER, &if unfinished { sums.unfinished() } else { sums });
            program.embed(&window_direct::ALL_GATHER, &part().with_input(|_| output(rank)));
            program.finish(0, 0)
        })
        .with_peer_access(PeerAccess::Window)
        .with_chunks_per_share(|spec| spec.ranks)
    };
    let right = two_parts(false);
    assert!(sweep(&right, &cases(&right, 12, false)).violation.is_none());
    let wrong = check(&two_parts(true), &GroupSpec::new(3), &Options::default());
    assert!(matches!(wrong, Err(Violation::Output { .. })), "{wrong:?}");
    let right = right.leak();
    World::Shm.run(4, &Config::default(), |comm: Communicator| {
        comm.set_custom_algorithm(right).expect("a right one");
        let mut values: Vec<f32> = (0..5000).map(|index| (index % 7) as f32).collect();
        comm.all_reduce(&mut values, Sum).expect("healthy");
        assert!(values.iter().enumerate().all(|(index, &value)| value == 4.0 * (index % 7) as f32));
    });
}

/// Scratch and window that a caller reserves are not those of a part.
#[test]
fn reserved_scratch_is_kept_apart_from_parts() {
    let algorithm = Algorithm::new("kept", Collective::AllReduce, |spec, rank| {
        let ranks: Vec<Rank> = (0..spec.ranks).collect();
        let mut program = ProgramBuilder::new(rank);
        let kept = program.reserve_scratch(1);
        assert_eq!(kept, 0);
        let chunk = scratch(kept);
        program.embed(&ring::REDUCE_SCATTER, &Embedding::new(&ranks).with_output(move |_| chunk));
        program.embed(&ring::ALL_GATHER, &Embedding::new(&ranks).with_input(move |_| chunk));
        program.finish(0, 0)
    })
    .with_chunks_per_share(|spec| spec.ranks);
    assert!(sweep(&algorithm, &cases(&algorithm, 9, false)).violation.is_none());
    let schedule = algorithm.schedule(&GroupSpec::new(5));
    assert!(schedule.programs.iter().all(|program| (program.scratch, program.window) == (2, 0)));
}
