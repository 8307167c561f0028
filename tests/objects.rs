//! Collectives of objects that serde encodes.

mod support;

use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeMap;
use support::World;
use unisono::{Communicator, Config, ErrorKind, Sum};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Report {
    rank: usize,
    name: String,
    losses: Vec<f64>,
    tags: BTreeMap<String, Option<i64>>,
}

/// Returns a report whose length depends on the rank.
fn report(rank: usize) -> Report {
    let losses = (0..rank * 20_000).map(|index| index as f64 / 7.0).collect();
    let tags = BTreeMap::from([("node".to_owned(), Some(rank as i64)), ("none".to_owned(), None)]);
    Report { rank, name: "r".repeat(rank), losses, tags }
}

/// A number that cannot be encoded where it is odd.
#[derive(Debug, PartialEq, Deserialize)]
struct Even(usize);

impl Serialize for Even {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 % 2 {
            0 => serializer.serialize_u64(self.0 as u64),
            _ => Err(serde::ser::Error::custom("odd")),
        }
    }
}

fn object_error_rank(error: &unisono::Error) -> usize {
    assert!(!error.is_poisoning(), "{error}");
    match error.kind() {
        ErrorKind::Object { rank, .. } => *rank,
        _ => panic!("another kind: {error}"),
    }
}

/// Asserts that the communicator still works.
fn assert_works(comm: &Communicator) {
    let mut sum = [1];
    comm.all_reduce(&mut sum, Sum).unwrap();
    assert_eq!(sum[0], comm.size() as i32);
}

#[test]
fn objects_arrive_over_every_transport() {
    for world in World::ALL {
        for ranks in [1, 2, 4] {
            world.run(ranks, &Config::default(), |comm| {
                let rank = comm.rank();
                let reports: Vec<Report> = (0..ranks).map(report).collect();
                assert_eq!(comm.all_gather_object(&reports[rank]).unwrap(), reports);
                for root in 0..ranks {
                    let sent = (rank == root).then(|| reports[root].clone());
                    assert_eq!(comm.broadcast_object(sent, root).unwrap(), reports[root]);
                    let gathered = comm.gather_object(&reports[rank], root).unwrap();
                    assert_eq!(gathered, (rank == root).then(|| reports.clone()));
                    let received: Report =
                        comm.scatter_object((rank == root).then_some(&reports[..]), root).unwrap();
                    assert_eq!(received, reports[rank]);
                }
            });
        }
    }
}

/// Objects longer than the parts in which they travel, of other lengths on each rank.
#[test]
fn long_objects_arrive_whole() {
    let text = |rank: usize| ["", "short", &"0123456789".repeat(2 << 20)][rank].to_owned();
    for world in [World::Threads, World::Shm, World::Tcp] {
        world.run(3, &Config::default(), |comm| {
            let (rank, texts) = (comm.rank(), [text(0), text(1), text(2)]);
            assert!(comm.all_gather_object(&texts[rank]).unwrap() == texts);
            let root = 2;
            let sent = (rank == root).then(|| texts[root].clone());
            assert!(comm.broadcast_object(sent, root).unwrap() == texts[root]);
            for root in [0, 2] {
                let gathered = comm.gather_object(&texts[rank], root).unwrap();
                assert!(gathered == (rank == root).then(|| texts.to_vec()));
                let given = (rank == root).then_some(&texts[..]);
                assert!(comm.scatter_object(given, root).unwrap() == texts[rank]);
            }
            assert_works(&comm);
        });
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Chain {
    next: Option<Box<Chain>>,
}

/// A peer's words must not make a rank recurse until its stack ends.
#[test]
fn deeply_nested_objects_are_refused() {
    let chain =
        |links: usize| (0..links).fold(Chain { next: None }, |next, _| Chain { next: Some(Box::new(next)) });
    World::Threads.run(2, &Config::default(), |comm| {
        let given = (comm.rank() == 0).then(|| chain(100));
        assert_eq!(comm.broadcast_object(given, 0).unwrap(), chain(100));
        // Each byte is a link of a chain.
        let refused = match comm.rank() {
            0 => comm.broadcast_object(Some([[1u8; 32]; 32]), 0).map(drop),
            _ => comm.broadcast_object::<Chain>(None, 0).map(drop),
        };
        assert_eq!(refused.is_err(), comm.rank() == 1);
        if let Err(error) = refused {
            assert_eq!(object_error_rank(&error), 0);
            assert!(error.to_string().contains("nested more than 128 deep"), "{error}");
        }
        assert_works(&comm);
    });
}

#[test]
fn object_that_cannot_be_encoded_is_an_error_everywhere() {
    World::Threads.run(3, &Config::default(), |comm| {
        let rank = comm.rank();
        let error = comm.all_gather_object(&Even(rank)).unwrap_err();
        assert_eq!(object_error_rank(&error), 1);
        assert_eq!(error.to_string().contains("Even cannot be encoded"), rank == 1, "{error}");
        let error = comm.broadcast_object((rank == 1).then_some(Even(1)), 1).unwrap_err();
        assert_eq!(object_error_rank(&error), 1);
        let objects = [Even(0), Even(2), Even(3)];
        let error = comm.scatter_object((rank == 2).then_some(&objects[..]), 2).unwrap_err();
        assert_eq!(object_error_rank(&error), 2);
        match comm.gather_object(&Even(rank), 0) {
            Err(error) => assert!(rank < 2 && object_error_rank(&error) == 1),
            Ok(gathered) => assert_eq!((rank, gathered), (2, None)),
        }
        assert_works(&comm);
    });
}

#[test]
fn object_of_another_type_names_rank_and_type() {
    World::Threads.run(2, &Config::default(), |comm| {
        let broadcast = match comm.rank() {
            0 => comm.broadcast_object(Some("text".to_owned()), 0).map(|_| 0),
            _ => comm.broadcast_object::<u8>(None, 0),
        };
        assert_eq!(broadcast.is_ok(), comm.rank() == 0);
        if let Err(error) = broadcast {
            assert_eq!(object_error_rank(&error), 0);
            let text = error.to_string();
            assert!(text.contains("its 5 bytes cannot be decoded as u8: 4 bytes are left over"), "{text}");
        }
        let short = comm.all_gather_object(&if comm.rank() == 0 { vec![200u8] } else { vec![] });
        assert!(short.is_ok());
        assert_works(&comm);
    });
}

#[test]
fn objects_and_arrays_under_one_number_are_a_mismatch() {
    let results = World::Threads.run(2, &Config::default(), |comm| match comm.rank() {
        0 => comm.all_gather_object(&7u8).map(|_| ()),
        _ => comm.all_gather(&[7u64], &mut [0; 2]),
    });
    for error in results.into_iter().map(Result::unwrap_err) {
        assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{error}");
        assert!(error.to_string().contains("all_gather_object"), "{error}");
    }
}

#[test]
fn objects_of_several_threads_do_not_mix() {
    World::Threads.run(2, &Config::default(), |comm| {
        let works: Vec<_> = (0..20)
            .map(|turn| {
                comm.spawn(move |comm| comm.all_gather_object(&(comm.rank(), turn, "x".repeat(turn))))
            })
            .collect();
        for (turn, work) in works.into_iter().enumerate() {
            let text = "x".repeat(turn);
            assert_eq!(work.wait().unwrap(), [(0, turn, text.clone()), (1, turn, text)]);
        }
    });
}
