//! Groups that only their members make, and ranks that meet through a store.

mod support;

use std::io;
use std::time::{Duration, SystemTime};
use support::World;
use unisono::{Communicator, Config, FileStore, Store, Sum};

#[test]
fn members_make_groups_while_others_go_on() {
    for world in World::ALL {
        world.run(5, &Config::default(), |comm| {
            let members: &[usize] = match comm.rank() {
                4 => return assert!(comm.irecv(vec![0u8], 0, 9).wait().is_ok()),
                1 | 3 => &[3, 1],
                _ => &[0, 2],
            };
            for tag in 0..3 {
                let group = comm.create_group(members, tag).unwrap();
                assert_eq!(members[group.rank()], comm.rank());
                let mut sum = [comm.rank()].map(|rank| rank as u32);
                group.all_reduce(&mut sum, Sum).unwrap();
                assert_eq!(sum, [if members[0] == 3 { 4 } else { 2 }]);
            }
            if comm.rank() == 0 {
                comm.isend(vec![1u8], 4, 9).wait().unwrap();
            }
        });
    }
}

#[test]
fn wrong_members_are_refused() {
    let comm = Communicator::local(3).unwrap().remove(0);
    for (members, part) in [
        (&[0, 3][..], "rank 3"),
        (&[0, 1, 0], "rank 0 is in the group twice"),
        (&[1, 2], "this rank is none of them"),
        (&[], "this rank is none of them"),
    ] {
        let error = comm.create_group(members, 0).unwrap_err();
        assert!(error.is_invalid_usage() && error.to_string().contains(part), "{error}");
    }
    assert!(comm.isend(vec![0u8], 1, 1 << 63).wait().unwrap_err().is_invalid_usage());
    assert_eq!(comm.create_group(&[0], 0).unwrap().size(), 1);
}

#[test]
fn absent_leader_ends_at_timeout() {
    let config = Config::default().with_timeout(Duration::from_millis(300));
    World::Threads.run(2, &config, |comm| {
        if comm.rank() == 1 {
            let error = comm.create_group(&[0, 1], 0).unwrap_err();
            assert!(error.to_string().contains("irecv from rank 0"), "{error}");
        } else {
            std::thread::sleep(Duration::from_millis(500));
        }
    });
}

/// A folder that is removed with its value.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("unisono-groups-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn ranks_meet_through_file_store() {
    let folder = Folder::new("meet");
    let store = FileStore::new(&folder.0);
    std::thread::scope(|scope| {
        for rank in 0..3 {
            let store = &store;
            scope.spawn(move || {
                let builder = Communicator::builder().config(&Config::default());
                let comm = builder.join_through(store, "job/1", rank, 3).unwrap();
                let mut sum = [1u32];
                comm.all_reduce(&mut sum, Sum).unwrap();
                assert_eq!((comm.rank(), sum), (rank, [3]));
            });
        }
    });
    let again = Communicator::builder().join_through(&store, "job/1", 0, 3).unwrap_err();
    assert!(again.to_string().contains("rank 0 cannot write `unisono/job/1/id`"), "{again}");
}

#[test]
fn stale_file_of_a_store_is_named_by_every_rank() {
    let folder = Folder::new("stale");
    let store = FileStore::new(&folder.0);
    let join = |rank, ranks| {
        let config = Config::default().with_join_timeout(Duration::from_millis(500));
        Communicator::builder().config(&config).join_through(&store, "job", rank, ranks)
    };
    // An earlier job, which has ended.
    drop(join(0, 1).expect("it is alone"));
    let path = folder.0.join("unisono+job+id");
    let file = std::fs::File::options().write(true).open(&path).expect("it is there");
    file.set_modified(SystemTime::now() - Duration::from_secs(3600)).expect("its owner may");
    std::thread::scope(|scope| {
        let join = &join;
        let ranks: Vec<_> = (0..3).map(|rank| scope.spawn(move || join(rank, 3).unwrap_err())).collect();
        for (rank, error) in ranks.into_iter().enumerate() {
            let text = error.join().expect("no panic").to_string();
            for part in [
                &format!("rank {rank} "),
                &format!("{}, written 36", path.display()),
                "an earlier job",
                "remove it, or give each job a name or a folder of its own",
            ] {
                assert!(text.contains(part), "`{part}` is not in {text}");
            }
        }
    });
}

/// The file leads to the rank 0 of another job that has not met yet.
#[test]
fn file_of_a_job_under_the_same_name_is_named() {
    let folder = Folder::new("same");
    let store = FileStore::new(&folder.0);
    let join = |rank, ranks| {
        Communicator::builder().config(&Config::default()).join_through(&store, "job", rank, ranks)
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| join(0, 2).unwrap_err().to_string());
        let text = join(1, 3).unwrap_err().to_string();
        let path = folder.0.join("unisono+job+id");
        assert!(text.contains("expects 3 ranks, but rank 0 expects 2; rank 1 read this address"), "{text}");
        assert!(text.contains(&format!("{}, written 0.", path.display())), "{text}");
        assert!(other.join().expect("no panic").contains("rank 1"));
    });
}

/// A store that returns the same answer to every call.
struct Broken(fn() -> io::Result<Vec<u8>>);

impl Store for Broken {
    fn set(&self, _: &str, _: &[u8]) -> io::Result<()> {
        (self.0)().map(drop)
    }

    fn get(&self, _: &str, _: Duration) -> io::Result<Vec<u8>> {
        (self.0)()
    }
}

#[test]
fn store_failures_name_the_key() {
    let join = |store: &dyn Store, rank| {
        let config = Config::default().with_join_timeout(Duration::from_millis(200));
        Communicator::builder().config(&config).join_through(store, "x", rank, 2).unwrap_err().to_string()
    };
    let refuses = Broken(|| Err(io::ErrorKind::PermissionDenied.into()));
    assert!(join(&refuses, 0).contains("rank 0 cannot write `unisono/x/id`"));
    assert!(join(&refuses, 1).contains("rank 1 cannot read `unisono/x/id`"));
    let text = join(&Broken(|| Ok(b"nonsense".to_vec())), 1);
    assert!(text.contains("rank 1 finds no unique id of this version under `unisono/x/id`"), "{text}");
    let folder = Folder::new("missing");
    let text = join(&FileStore::new(&folder.0), 1);
    assert!(text.contains("rank 1 waited 0.2 s for `unisono/x/id`"), "{text}");
}
